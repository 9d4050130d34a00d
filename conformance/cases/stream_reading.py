"""Section STREAM: where consumers start, what retention takes, and filters."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from vouchmq.conformance.case import Mark, case
from vouchmq.conformance.cases.stream import append, offset, reader, stream
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import Starting, check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed

# Small segments, so that retention has something to drop: ten messages of 1 kB fill one.
SMALL: Final[Table] = {"x-stream-max-segment-size-bytes": 10_000}
PADDING: Final = b"x" * 990
# RabbitMQ drops segments in a process of its own and says afterwards what is the oldest offset: who
# reads meanwhile jumps over what went, or waits at its end for the next append.
RETENTION_S: Final = 2.0


def _body(number: int) -> bytes:
    return b"%010d" % number + PADDING


def _fill(stage: Stage, name: str, batches: int, begin: int = 0) -> int:
    """Ten numbered messages of 1 kB per batch, confirmed batch by batch, so that segments get full.

    Returns the number behind the last one.
    """
    connection = stage.connect()
    channel = connection.channel()
    channel.call("confirm.select")
    for batch in range(batches):
        for number in range(batch * 10, batch * 10 + 10):
            channel.publish("", name, _body(begin + number))
        channel.confirms(batch * 10 + 10)
    connection.close()
    return begin + batches * 10


def _first_offset(stage: Stage, name: str) -> int:
    """The oldest offset that is retained."""
    channel = reader(stage, name, prefetch=1)
    first = offset(channel.deliver())
    channel.connection.close()
    return first


# --- where a consumer starts ------------------------------------------------------------------


def _starts(start: Plain, wanted: str, stage: Stage) -> None:
    """Messages `0` to `4` are there, `5` comes later: the first one delivered is `wanted`."""
    name = stream(stage)
    append(stage, name, ["0", "1", "2", "3", "4"])
    channel = reader(stage, name, start)
    append(stage, name, ["5"])
    equal(channel.deliver().body.decode(), wanted, "first message")


def _start(says: str, start: Plain, wanted: str, *, mark: Mark = "≡") -> None:
    case("STREAM-20", says=f"{says} starts at {wanted}", mark=mark)(partial(_starts, start, wanted))


_start("first", "first", "0")
_start("next", "next", "5")
_start("offset 0", 0, "0")
_start("offset 3", 3, "3")
_start("offset 3 as a short integer", Typed("s", 3), "3")
_start("offset 3 as a long integer", Typed("l", 3), "3")
_start("the offset right behind the end", 5, "5")
_start("an offset far beyond the end: the next one", 1000, "5", mark="≠")
_start("-2: two before the end", -2, "3", mark="+")
_start("-1000: the oldest", -1000, "0", mark="+")
_start("the interval 1h", "1h", "0")
_start("the interval 7D", "7D", "0")


@case("STREAM-20", says="absent is as next")
def absent_is_next(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["old"])
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=10)
    channel.consume(name)
    append(stage, name, ["new"])
    event = channel.deliver()
    equal((event.body, offset(event)), (b"new", 1), "first message")


@case("STREAM-20", says="last starts within the last 256 messages and brings the rest")
def last(stage: Stage) -> None:
    name = stream(stage)
    for at in range(0, 600, 100):
        append(stage, name, [str(number) for number in range(at, at + 100)])
    channel = reader(stage, name, "last", prefetch=1000)
    first = offset(channel.deliver())
    check(344 <= first <= 599, f"starts at {first} of 0…599")
    append(stage, name, ["end"])
    seen = first
    while seen < 600:
        event = channel.deliver()
        equal(offset(event), seen + 1, "offset")
        seen = offset(event)
    equal(event.body, b"end", "last message")


@case("STREAM-20", says="last of an empty stream is the first that comes")
def last_of_nothing(stage: Stage) -> None:
    name = stream(stage)
    channel = reader(stage, name, "last")
    append(stage, name, ["a"])
    equal(channel.deliver().body, b"a", "message")


@case("STREAM-20", says="a timestamp starts at what arrived at or after it", slow=True)
def timestamp(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["old", "older"])
    stage.channel().connection.listen(2.1)
    moment = Typed("T", int(time.time()))
    append(stage, name, ["new", "newer"])
    channel = reader(stage, name, moment)
    equal(channel.bodies(2), ["new", "newer"], "messages")


@case("STREAM-20", says="a timestamp before everything is the first")
def early_timestamp(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a"])
    equal(reader(stage, name, Typed("T", 1_000_000)).bodies(1), ["a"], "messages")


@case("STREAM-20", says="a timestamp in the future is next")
def late_timestamp(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a"])
    channel = reader(stage, name, Typed("T", int(time.time()) + 3600))
    channel.quiet("basic.deliver")
    append(stage, name, ["b"])
    equal(channel.bodies(1), ["b"], "messages")


@case("STREAM-20", says="an interval starts at what arrived within it", slow=True)
def interval(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["old"])
    stage.channel().connection.listen(3.2)
    append(stage, name, ["new"])
    equal(reader(stage, name, "2s").deliver().body, b"new", "first message")


@case("STREAM-20", says="two consumers of one channel have positions of their own")
def two_positions(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["0", "1", "2"])
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=10)
    channel.consume(name, tag="all", arguments={"x-stream-offset": "first"})
    channel.consume(name, tag="some", arguments={"x-stream-offset": 2})
    seen = sorted((event.text("consumer_tag"), offset(event)) for event in channel.deliveries(4))
    equal(seen, [("all", 0), ("all", 1), ("all", 2), ("some", 2)], "deliveries")


def _bad_offset(value: Plain, stage: Stage) -> None:
    name = stream(stage)
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=5)
    text = f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for {stage.the_queue(name)}: "
    with channel.soft(406, Starting(text), "basic.consume"):
        channel.consume(name, arguments={"x-stream-offset": value})


for _shown, _value in (
    ("the text 'sometimes'", "sometimes"),
    ("the text '5x'", "5x"),
    ("the empty text", ""),
    ("a float", Typed("d", 1.5)),
    ("a bool", True),
    ("void", None),
    ("a table", Typed("F", {"a": 1})),
):
    case("STREAM-20", says=f"{_shown} is soft 406", mark="≡4")(partial(_bad_offset, _value))


@case("STREAM-20", says="an offset beyond 2^31 is an offset", mark="+")
def large_offset(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a"])
    channel = reader(stage, name, Typed("l", 1 << 40))
    append(stage, name, ["b"])
    equal(channel.deliver().body, b"b", "message")


# --- retention --------------------------------------------------------------------------------


def _oldest_goes(stage: Stage, name: str, batches: int = 12, begin: int = 0) -> int:
    """Fill until the beginning is gone; the oldest offset left."""
    number = _fill(stage, name, batches, begin)
    deadline = time.monotonic() + 15
    while (first := _first_offset(stage, name)) == 0 and time.monotonic() < deadline:
        number = _fill(stage, name, 1, number)
        time.sleep(0.3)
    check(first > 0, "nothing was dropped")
    return first


@case("STREAM-21", says="x-max-length-bytes drops the oldest, what is left has no gaps", slow=True)
def max_length_bytes(stage: Stage) -> None:
    name = stream(stage, {**SMALL, "x-max-length-bytes": 30_000})
    first = _oldest_goes(stage, name)
    append(stage, name, ["end"])
    stage.channel().connection.listen(RETENTION_S)
    channel = reader(stage, name, prefetch=1000)
    event = channel.deliver()
    check(offset(event) >= first, f"offset {offset(event)} after {first}")
    wanted = int(event.body[:10])
    check(wanted > 0, "the oldest message is still there")
    while event.body != b"end":
        equal(event.body, _body(wanted), "message")
        wanted += 1
        event = channel.deliver()


@case("STREAM-21", says="without limits nothing is dropped")
def no_limits(stage: Stage) -> None:
    name = stream(stage, SMALL)
    _fill(stage, name, 8)
    events = reader(stage, name, prefetch=1000).deliveries(80)
    equal([int(event.body[:10]) for event in events], list(range(80)), "messages")


@case("STREAM-02", says="offsets have no gaps, also over segments", mark="≠")
def offsets_over_segments(stage: Stage) -> None:
    name = stream(stage, SMALL)
    _fill(stage, name, 8)
    events = reader(stage, name, prefetch=1000).deliveries(80)
    equal([offset(event) for event in events], list(range(80)), "offsets")


@case("STREAM-21", says="x-max-age drops what is older", slow=True)
def max_age(stage: Stage) -> None:
    name = stream(stage, {**SMALL, "x-max-age": "3s"})
    begin = time.monotonic()
    _fill(stage, name, 6)
    first = _first_offset(stage, name)
    check(first == 0 or time.monotonic() - begin > 2.5, f"{first} dropped while young")
    stage.channel().connection.listen(4.0)
    check(_oldest_goes(stage, name, 3) > 0, "nothing was dropped")


@case("STREAM-21", says="x-max-length drops the oldest by number", slow=True, mark="+")
def max_length(stage: Stage) -> None:
    name = stream(stage, {**SMALL, "x-max-length": 40})
    first = _oldest_goes(stage, name)
    check(first >= 5, f"the oldest offset is {first}: less than a segment was dropped")


@case("STREAM-21", says="a limit smaller than a segment still keeps what is being written")
def one_segment_is_kept(stage: Stage) -> None:
    name = stream(stage, {"x-max-length-bytes": 10})
    append(stage, name, [_body(0), _body(1), _body(2)])
    events = reader(stage, name).deliveries(3)
    equal([offset(event) for event in events], [0, 1, 2], "offsets")


@case("STREAM-21", says="an offset below the oldest starts at the oldest", slow=True)
def below_the_oldest(stage: Stage) -> None:
    name = stream(stage, {**SMALL, "x-max-length-bytes": 30_000})
    first = _oldest_goes(stage, name)
    check(offset(reader(stage, name, 1).deliver()) >= first, "it starts before the oldest")


@case("STREAM-23", says="a consumer that lags behind goes on at the oldest retained", slow=True)
def lagging(stage: Stage) -> None:
    name = stream(stage, {**SMALL, "x-max-length-bytes": 30_000})
    append(stage, name, ["0", "1"])
    channel = reader(stage, name, prefetch=1)
    event = channel.deliver()
    equal(offset(event), 0, "first offset")
    first = _oldest_goes(stage, name)
    append(stage, name, ["end"])
    stage.channel().connection.listen(RETENTION_S)
    before = 0
    while event.body != b"end":
        channel.ack(event.tag)
        event = channel.deliver()
        check(offset(event) > before, f"offset {offset(event)} after {before}")
        before = offset(event)
    check(before > first, f"the end has offset {before}, the oldest {first}")


# --- filters ----------------------------------------------------------------------------------


def _filtered(stage: Stage, name: str, **arguments: Plain) -> Channel:
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=100)
    table: Table = {
        "x-stream-offset": "first",
        **{f"x-stream-{key.replace('_', '-')}": value for key, value in arguments.items()},
    }
    channel.consume(name, arguments=table)
    return channel


def _colours(stage: Stage, name: str) -> None:
    channel = stage.confirming()
    for number, colour in enumerate(("red", "blue", "", "green", "red", "end")):
        headers: Table = {"x-stream-filter-value": colour} if colour else {}
        channel.publish("", name, str(number), headers=headers)
    channel.confirms(6)


for _shown, _arguments, _wanted in (
    ("one value", {"filter": "red"}, ["0", "4"]),
    ("several values", {"filter": ["red", "green"]}, ["0", "3", "4"]),
    (
        "match-unfiltered",
        {"filter": "red", "match_unfiltered": True},
        ["0", "2", "4"],
    ),
    ("no filter", {}, ["0", "1", "2", "3", "4"]),
):

    @case("STREAM-22", says=f"a consumer with {_shown} gets just these", mark="≡4")
    def filtered(
        stage: Stage,
        arguments: dict[str, Plain] = _arguments,  # type: ignore[assignment]
        wanted: list[str] = _wanted,
    ) -> None:
        name = stream(stage)
        _colours(stage, name)
        channel = _filtered(stage, name, **arguments)
        equal(channel.bodies(len(wanted)), wanted, "messages")
