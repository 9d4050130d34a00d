"""Section DUP: keys, and exchanges that let each of them pass once."""

from __future__ import annotations

from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import Text, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed

KIND: Final = "x-message-deduplication"
HEADER: Final = "x-deduplication-header"


def offer(
    channel: Channel, exchange: str, routing_key: str, body: str, key: Plain, **headers: Plain
) -> None:
    """Publish with a deduplication key."""
    table: Table = {HEADER: key, **headers}
    channel.publish(exchange, routing_key, body, headers=table, delivery_mode=2)


def window(stage: Stage, channel: Channel, **arguments: Plain) -> str:
    """A durable queue that lets each key in once; `cache_size=5` is `x-cache-size: 5`."""
    more = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return stage.queue(channel, durable=True, arguments={KIND: True, **more})


def filtering(stage: Stage, channel: Channel, **arguments: Plain) -> str:
    """A durable exchange of the type that lets each key pass once."""
    more = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return stage.exchange(channel, KIND, durable=True, arguments={"x-cache-size": 100, **more})


def kept(channel: Channel, queue: str, *bodies: str) -> None:
    """Confirms are in: the queue holds exactly these messages, which are taken from it."""
    equal(channel.drain(queue), list(bodies), f"messages in {queue}")


def confirmed(channel: Channel, count: int) -> None:
    """All publishes so far are acked, duplicates too. Spec: DUP-07"""
    equal(set(channel.confirms(count).values()), {"ack"}, "confirms")


# --- keys -------------------------------------------------------------------------------------


def _same(first: Plain, second: Plain, stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel)
    offer(channel, "", queue, "a", first)
    offer(channel, "", queue, "b", second)
    confirmed(channel, 2)
    kept(channel, queue, "a")


def _different(first: Plain, second: Plain, stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel)
    offer(channel, "", queue, "a", first)
    offer(channel, "", queue, "b", second)
    confirmed(channel, 2)
    kept(channel, queue, "a", "b")


_LONG: Final = "k" * 5000
_SAME: Final[tuple[tuple[str, Plain, Plain], ...]] = (
    ("a text", "order 1", "order 1"),
    ("an empty text", "", ""),
    ("octets that are no text", b"\xff\x00", b"\xff\x00"),
    ("an integer", 5, 5),
    ("an integer in two widths", Typed("s", 5), Typed("l", 5)),
    ("a bool", True, True),
    ("a float", Typed("d", 1.5), Typed("d", 1.5)),
    ("a timestamp", Typed("T", 1_700_000_000), Typed("T", 1_700_000_000)),
    ("a text of 5000 octets", _LONG, _LONG),
)
for _says, _first, _second in _SAME:
    case("DUP-01", says=f"{_says} is a key: the second one is dropped", mark="+")(
        partial(_same, _first, _second)
    )
_DIFFERENT: Final[tuple[tuple[str, Plain, Plain], ...]] = (
    ("two texts", "a", "b"),
    ("texts that differ in case", "key", "KEY"),
    ("the text 1 and the number 1", "1", 1),
    ("true and 1", True, 1),
    ("1 and 1.0", 1, Typed("d", 1.0)),
    ("a timestamp and its number", Typed("T", 1_700_000_000), Typed("l", 1_700_000_000)),
    ("two long texts that differ at their end", _LONG + "a", _LONG + "b"),
    ("void, which is not checked", None, None),
    ("a table, which is not checked", Typed("F", {"a": 1}), Typed("F", {"a": 1})),
    ("an array, which is not checked", [1], [1]),
)
for _says, _first, _second in _DIFFERENT:
    case("DUP-01", says=f"no duplicates: {_says}", mark="+")(partial(_different, _first, _second))


@case("DUP-01", says="messages without the header are never duplicates", mark="+")
def without_key(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel)
    channel.publish("", queue, "a")
    channel.publish("", queue, "a", headers={"other": 1})
    confirmed(channel, 2)
    kept(channel, queue, "a", "a")


@case("DUP-01", says="the header's name can be chosen, for a queue and an exchange", mark="+")
def other_header(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, deduplication_header="order")
    exchange = filtering(stage, channel, deduplication_header="order")
    behind = stage.queue(channel)
    channel.call("queue.bind", queue=behind, exchange=exchange)
    for where, key in (("", queue), (exchange, "")):
        channel.publish(where, key, "a", headers={"order": 1})
        channel.publish(where, key, "b", headers={"order": 1})
        channel.publish(where, key, "c", headers={HEADER: 1})
        channel.publish(where, key, "d", headers={HEADER: 1})
    confirmed(channel, 8)
    for name in (queue, behind):
        kept(channel, name, "a", "c", "d")


@case("DUP-14", says="the header name message-id means the property", mark="+")
def message_id(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, deduplication_header="message-id")
    channel.publish("", queue, "a", message_id="m")
    channel.publish("", queue, "b", message_id="m")
    channel.publish("", queue, "c", message_id="n")
    channel.publish("", queue, "d", headers={"message-id": "m"})
    confirmed(channel, 4)
    kept(channel, queue, "a", "c", "d")


@case("DUP-14", says="without that argument the message-id means nothing", mark="+")
def message_id_ignored(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel)
    channel.publish("", queue, "a", message_id="m")
    channel.publish("", queue, "b", message_id="m")
    confirmed(channel, 2)
    kept(channel, queue, "a", "b")


# --- exchanges --------------------------------------------------------------------------------

SIZE: Final = (
    "PRECONDITION_FAILED - Missing or invalid argument, "
    "'x-cache-size' must be an integer greater than 0"
)


def _refused(arguments: Table, text: Text, stage: Stage) -> None:
    channel = stage.channel()
    with channel.soft(406, text, "exchange.declare"):
        channel.call("exchange.declare", exchange=stage.name("x"), type=KIND, arguments=arguments)


_BAD: Final[tuple[tuple[str, Table, Text], ...]] = (
    ("without x-cache-size", {}, SIZE),
    ("with x-cache-size 0", {"x-cache-size": 0}, SIZE),
    ("with a negative x-cache-size", {"x-cache-size": -1}, SIZE),
    ("with an x-cache-size that is no number", {"x-cache-size": "many"}, SIZE),
    ("with x-cache-size true", {"x-cache-size": True}, SIZE),
    ("with x-cache-ttl 0", {"x-cache-size": 5, "x-cache-ttl": 0}, None),
    ("with x-cache-ttl that is no number", {"x-cache-size": 5, "x-cache-ttl": "long"}, None),
    (
        "with an unknown x-cache-persistence",
        {"x-cache-size": 5, "x-cache-persistence": "tape"},
        None,
    ),
)
for _says, _arguments, _text in _BAD:
    case("DUP-02", says=f"an exchange of the type {_says} is soft 406", mark="+")(
        partial(_refused, _arguments, _text)
    )


@case("DUP-02", says="it routes like fanout, each key once", mark="+")
def exchange_type(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = filtering(stage, channel)
    queues = [stage.bound(channel, exchange, key) for key in ("a", "b")]
    for body, key in (("1", "x"), ("2", "y"), ("3", "x"), ("4", "y"), ("5", "z")):
        offer(channel, exchange, "any", body, key)
    confirmed(channel, 5)
    for queue in queues:
        kept(channel, queue, "1", "2", "5")


@case("DUP-02", says="numeric texts are accepted as sizes and times", mark="+")
def numeric_texts(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = stage.exchange(
        channel, KIND, arguments={"x-cache-size": "1", "x-cache-ttl": "60000"}
    )
    queue = stage.bound(channel, exchange)
    for body, key in (("1", "a"), ("2", "a"), ("3", "b"), ("4", "a")):
        offer(channel, exchange, "", body, key)
    confirmed(channel, 4)
    kept(channel, queue, "1", "3", "4")


@case("DUP-02", says="x-cache-size takes part in equivalence", mark="+")
def equivalence(stage: Stage) -> None:
    channel = stage.channel()
    exchange = filtering(stage, channel)
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'x-cache-size' for "
        f"{stage.the_exchange(exchange)}: received '5' but current is '100'"
    )
    arguments = {"x-cache-size": 5}
    with channel.soft(406, text, "exchange.declare"):
        channel.call(
            "exchange.declare", exchange=exchange, type=KIND, durable=True, arguments=arguments
        )


@case("DUP-02", says="exchanges and queues have caches of their own", mark="+")
def separate_caches(stage: Stage) -> None:
    channel = stage.confirming()
    first, second = filtering(stage, channel), filtering(stage, channel)
    queue = stage.bound(channel, first)
    channel.call("queue.bind", queue=queue, exchange=second)
    for exchange in (first, second, first, second):
        offer(channel, exchange, "", "x", "k")
    confirmed(channel, 4)
    kept(channel, queue, "x", "x")


def _any_exchange(kind: str, key: str, miss: str, stage: Stage) -> None:
    channel = stage.confirming()
    exchange = stage.exchange(channel, kind, arguments={KIND: True})
    queue = stage.bound(channel, exchange, key)
    offer(channel, exchange, miss, "missed", "1")
    offer(channel, exchange, key, "a", "2")
    offer(channel, exchange, key, "b", "2")
    offer(channel, exchange, key, "c", "3")
    confirmed(channel, 4)
    kept(channel, queue, "a", "c")


for _kind, _key, _miss in (("direct", "k", "other"), ("topic", "a.b", "b.a")):
    case("DUP-03", says=f"a {_kind} exchange with the argument keeps its routing", mark="+")(
        partial(_any_exchange, _kind, _key, _miss)
    )


@case("DUP-03", says="with the argument false nothing is checked", mark="+")
def argument_false(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = stage.exchange(channel, "fanout", arguments={KIND: False})
    queue = stage.bound(channel, exchange)
    for body in ("a", "b"):
        offer(channel, exchange, "", body, "k")
    confirmed(channel, 2)
    kept(channel, queue, "a", "b")


@case("DUP-05", says="a message's x-cache-ttl beats the exchange's", mark="+", slow=True)
def message_ttl_of_exchange(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = filtering(stage, channel, cache_ttl=600_000)
    queue = stage.bound(channel, exchange)
    channel.publish(exchange, "", "short", headers={HEADER: "k", "x-cache-ttl": 300})
    offer(channel, exchange, "", "long", "l")
    confirmed(channel, 2)
    channel.connection.listen(1.5)
    for key in ("k", "l"):
        offer(channel, exchange, "", "again", key)
    confirmed(channel, 4)
    kept(channel, queue, "short", "long", "again")


@case("DUP-06", says="a full cache forgets the key that was inserted first", mark="+")
def first_in_first_out(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = filtering(stage, channel, cache_size=2)
    queue = stage.bound(channel, exchange)
    # The second `a` is dropped and makes it no younger, so `c` pushes `a` out, then `a` `b`.
    for number, key in enumerate(("a", "b", "a", "c", "a", "c", "b")):
        offer(channel, exchange, "", str(number), key)
    confirmed(channel, 7)
    kept(channel, queue, "0", "1", "3", "4", "6")


@case("DUP-06", says="an exchange's x-cache-ttl frees a key", mark="+", slow=True)
def exchange_ttl(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = filtering(stage, channel, cache_ttl=1500)
    queue = stage.bound(channel, exchange)
    offer(channel, exchange, "", "a", "k")
    offer(channel, exchange, "", "b", "k")
    confirmed(channel, 2)
    channel.connection.listen(2.0)
    offer(channel, exchange, "", "c", "k")
    confirmed(channel, 3)
    kept(channel, queue, "a", "c")


@case("DUP-07", says="a duplicate is acked and not returned, also when mandatory", mark="≠")
def acked_and_not_returned(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = filtering(stage, channel)
    queue = stage.bound(channel, exchange)
    own = window(stage, channel)
    for where, key in ((exchange, ""), ("", own)):
        for _ in range(2):
            channel.publish(where, key, "x", mandatory=True, headers={HEADER: "k"})
    confirmed(channel, 4)
    channel.quiet("basic.return", seconds=0.1)
    for name in (queue, own):
        kept(channel, name, "x")


@case("DUP-11", says="an unroutable message records no key", mark="≠")
def unroutable(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = filtering(stage, channel)
    offer(channel, exchange, "", "lost", "k")
    confirmed(channel, 1)
    queue = stage.bound(channel, exchange)
    offer(channel, exchange, "", "kept", "k")
    confirmed(channel, 2)
    kept(channel, queue, "kept")
