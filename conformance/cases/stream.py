"""Section STREAM: declaring streams, appending to them, and what consumers may and may not do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from vouchmq.conformance.case import Mark, case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.events import Event, RefusedError
from vouchmq.conformance.expect import PATIENCE_S, MismatchError, check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed

TYPE: Final = {"x-queue-type": "stream"}


def stream(stage: Stage, arguments: Table | None = None) -> str:
    """A new stream."""
    return stage.queue(
        stage.channel(), label="stream", durable=True, arguments={**TYPE, **(arguments or {})}
    )


def append(
    stage: Stage, name: str, bodies: Sequence[str | bytes], *, delivery_mode: int = 2
) -> None:
    """Publish these bodies at once, on a channel of their own, and wait for the confirms."""
    connection = stage.connect()
    channel = connection.channel()
    channel.call("confirm.select")
    for body in bodies:
        channel.publish("", name, body, delivery_mode=delivery_mode)
    equal(set(channel.confirms(len(bodies)).values()), {"ack"}, "confirms")
    connection.close()


def reader(stage: Stage, name: str, start: Plain = "first", prefetch: int = 100) -> Channel:
    """A channel that reads the stream from there on, on a connection of its own."""
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=prefetch)
    channel.consume(name, arguments={"x-stream-offset": start})
    return channel


def offset(event: Event) -> int:
    """The `x-stream-offset` of a delivery."""
    table = event.properties.get("headers")
    value = table.get("x-stream-offset") if isinstance(table, dict) else None
    if not isinstance(value, Typed) or not isinstance(value.value, int):
        raise MismatchError(f"x-stream-offset: got {value!r}, wanted a number")
    return value.value


def _invalid_property(word: str, flags: Mapping[str, bool], stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name("stream")
    text = f"PRECONDITION_FAILED - invalid property '{word}' for {stage.the_queue(name)}"
    channel.soft_again(406, text, "queue.declare", queue=name, arguments=TYPE, **flags)
    with channel.soft(404, None, "queue.declare"):
        channel.call("queue.declare", queue=name, passive=True)


for _word, _flags in (
    ("non-durable", {}),
    ("exclusive-owner", {"durable": True, "exclusive": True}),
    ("auto-delete", {"durable": True, "auto_delete": True}),
):
    case("STREAM-01", says=f"a stream that is {_word} is soft 406 and not created")(
        partial(_invalid_property, _word, _flags)
    )


@case("STREAM-01", says="a server-named stream is soft 406")
def server_named(stage: Stage) -> None:
    text = "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_stream_queue"
    channel = stage.channel()
    with channel.soft(406, text, "queue.declare"):
        channel.call("queue.declare", queue="", durable=True, arguments=TYPE)


@case("STREAM-02", says="consuming removes nothing: every consumer sees every message, in order")
def every_consumer_sees_all(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a", "b", "c"])
    one, other = reader(stage, name), reader(stage, name)
    for channel in (one, other):
        events = channel.deliveries(3)
        equal([event.body for event in events], [b"a", b"b", b"c"], "messages")
        channel.ack(events[-1].tag, multiple=True)
        channel.sync()
    append(stage, name, ["d"])
    equal([one.deliver().body, other.deliver().body], [b"d", b"d"], "a later message")
    equal(reader(stage, name).bodies(4), ["a", "b", "c", "d"], "messages for a third consumer")


@case("STREAM-02", says="offsets count 0, 1, 2 … over several publishers and routes")
def offsets_count(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.channel()
    channel.call("queue.bind", queue=name, exchange="amq.direct", routing_key=name)
    append(stage, name, ["a", "b"])
    channel.call("confirm.select")
    channel.publish("amq.direct", name, "c")
    channel.confirms(1)
    append(stage, name, ["d"])
    equal([offset(event) for event in reader(stage, name).deliveries(4)], [0, 1, 2, 3], "offsets")


def _reader_once_up(stage: Stage, name: str) -> Channel:
    """A reader; RabbitMQ's streams come up some time after their node."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return reader(stage, name)
        except RefusedError as refused:
            if "down or inaccessible" not in refused.text or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@case("STREAM-02", says="all messages survive a restart, the transient ones too", restart=True)
def survives(stage: Stage) -> Iterator[None]:
    name = stream(stage)
    append(stage, name, ["a", "b"], delivery_mode=1)
    append(stage, name, ["c"], delivery_mode=2)
    yield
    channel = _reader_once_up(stage, name)
    append(stage, name, ["d"])
    events = channel.deliveries(4)
    equal([event.body for event in events], [b"a", b"b", b"c", b"d"], "messages")
    equal([offset(event) for event in events], [0, 1, 2, 3], "offsets")


@case("STREAM-02", says="properties and headers are relayed")
def properties_are_relayed(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.confirming()
    channel.publish("", name, "x", delivery_mode=2, message_id="m", headers={"a": "b", "n": 7})
    channel.publish("", name, "y", delivery_mode=2, priority=3, correlation_id="c")
    channel.confirms(2)
    first, second = reader(stage, name).deliveries(2)
    equal(first.properties["message_id"], "m", "message-id")
    equal(first.headers, {"a": "b", "n": 7, "x-stream-offset": 0}, "headers")
    equal(second.properties["correlation_id"], "c", "correlation-id")
    equal((second.properties["delivery_mode"], second.properties["priority"]), (2, 3), "numbers")


@case("STREAM-02", says="arrays and tables in headers are relayed, delivery-mode 1 too", mark="≠")
def nested_headers_are_relayed(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.confirming()
    channel.publish("", name, "x", delivery_mode=1, headers={"a": [1, "b"], "t": {"k": 2}})
    channel.confirms(1)
    event = reader(stage, name).deliver()
    equal(event.headers, {"a": [1, "b"], "t": {"k": 2}, "x-stream-offset": 0}, "headers")
    equal(event.properties["delivery_mode"], 1, "delivery-mode")


@case("TTL-09", says="a stream ignores expiration and delivers it as a plain property")
def expiration_is_ignored(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.confirming()
    channel.publish("", name, "x", expiration="1")
    channel.confirms(1)
    stage.channel().connection.listen(0.2)
    event = reader(stage, name).deliver()
    equal(event.body, b"x", "message")
    equal(event.properties.get("expiration"), "1", "expiration")


# --- what consumers must bring ----------------------------------------------------------------


def _needs_prefetch(count: int | None, is_global: bool, stage: Stage) -> None:
    name = stream(stage)
    channel = stage.channel()
    if count is not None:
        channel.call("basic.qos", prefetch_count=count, global_=is_global)
    text = f"PRECONDITION_FAILED - consumer prefetch count is not set for '{stage.the_queue(name)}'"
    with channel.soft(406, text, "basic.consume"):
        channel.consume(name)


for _says, _count, _is_global in (
    ("without a prefetch", None, False),
    ("with prefetch 0", 0, False),
    ("with a channel limit alone", 5, True),
):
    case("STREAM-10", says=f"consuming {_says} is soft 406")(
        partial(_needs_prefetch, _count, _is_global)
    )


@case("STREAM-11", says="consuming with no-ack is hard 540")
def no_ack(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=5)
    text = (
        "NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues "
        f"{stage.the_queue(name)}"
    )
    with channel.connection.hard(540, text, "basic.consume"):
        channel.consume(name, no_ack=True)


@case("STREAM-12", says="exclusive is ignored")
def exclusive_is_ignored(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a"])
    for _ in range(2):
        channel = stage.channel()
        channel.call("basic.qos", prefetch_count=5)
        channel.consume(name, exclusive=True, arguments={"x-stream-offset": "first"})
        equal(channel.deliver().body, b"a", "message")


def _not_for_streams(stage: Stage, argument: str, name: str) -> str:
    return (
        f"PRECONDITION_FAILED - invalid arg '{argument}' for {stage.the_queue(name)} "
        "of queue type rabbit_stream_queue"
    )


@case("STREAM-12", says="x-priority on consume is soft 406")
def no_priority(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=5)
    with channel.soft(406, _not_for_streams(stage, "x-priority", name), "basic.consume"):
        channel.consume(name, arguments={"x-priority": 1})


def _refused_argument(argument: str, value: Plain, stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name("stream")
    with channel.soft(406, _not_for_streams(stage, argument, name), "queue.declare"):
        channel.call("queue.declare", queue=name, durable=True, arguments={**TYPE, argument: value})


for _argument, _value in (
    ("x-single-active-consumer", True),
    ("x-message-ttl", 1000),
    ("x-expires", 1000),
    ("x-dead-letter-exchange", "amq.fanout"),
    ("x-max-priority", 5),
    ("x-overflow", "drop-head"),
    ("x-delivery-limit", 5),
):
    case("STREAM-12", says=f"{_argument} on declare is soft 406")(
        partial(_refused_argument, _argument, _value)
    )


# --- what consumers may not do ----------------------------------------------------------------


def _no_nack(method: str, requeue: bool, stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a"])
    channel = reader(stage, name)
    tag = channel.deliver().tag
    text = (
        "NOT_IMPLEMENTED - basic.nack and basic.reject not supported by stream queues "
        f"{stage.the_queue(name)}"
    )
    with channel.connection.hard(540, text, method):
        channel.send(method, delivery_tag=tag, requeue=requeue)


for _method in ("basic.nack", "basic.reject"):
    for _requeue in (True, False):
        case("STREAM-13", says=f"{_method} with requeue {int(_requeue)} is hard 540")(
            partial(_no_nack, _method, _requeue)
        )


@case("STREAM-14", says="get is hard 540")
def no_get(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.channel()
    text = f"NOT_IMPLEMENTED - basic.get not supported by stream queues {stage.the_queue(name)}"
    with channel.connection.hard(540, text, "basic.get"):
        channel.get(name)


@case("STREAM-14", says="purge is hard 540")
def no_purge(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.channel()
    text = f"NOT_IMPLEMENTED - queue.purge not supported by stream queues {stage.the_queue(name)}"
    with channel.connection.hard(540, text, "queue.purge"):
        channel.call("queue.purge", queue=name)


def _no_recover(method: str, stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a"])
    channel = reader(stage, name)
    channel.deliver()
    text = f"NOT_IMPLEMENTED - basic.recover not supported by stream queues {stage.the_queue(name)}"
    with channel.connection.hard(540, text, method):
        channel.send(method, requeue=True)


for _method in ("basic.recover", "basic.recover_async"):
    case("ACK-23", says=f"{_method} with stream deliveries outstanding is hard 540", mark="≡4")(
        partial(_no_recover, _method)
    )


# --- credit -----------------------------------------------------------------------------------


@case("STREAM-15", says="settling messages brings more", mark="≡")
def settling_brings_more(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, [str(number) for number in range(60)])
    channel = reader(stage, name, prefetch=5)
    seen: list[str] = []
    while len(seen) < 60:
        event = channel.deliver()
        seen.append(event.body.decode())
        channel.ack(event.tag)
    equal(seen, [str(number) for number in range(60)], "messages")


def _window(multiple: bool, stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, [str(number) for number in range(20)])
    channel = reader(stage, name, prefetch=5)
    tags = [event.tag for event in channel.deliveries(5)]
    channel.quiet("basic.deliver")
    if multiple:
        channel.ack(tags[1], multiple=True)
    else:
        channel.ack(tags[3])
        channel.ack(tags[1])
    equal(channel.bodies(2), ["5", "6"], "what comes for two settled ones")
    channel.quiet("basic.deliver")


for _multiple in (False, True):
    case(
        "STREAM-15",
        says=f"the window is exact, settled {'with multiple' if _multiple else 'one by one'}",
        mark="≠",
    )(partial(_window, _multiple))


@case("STREAM-15", says="an unknown tag is soft 406, as everywhere")
def unknown_tag(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a"])
    channel = reader(stage, name)
    tag = channel.deliver().tag
    channel.ack(tag)
    with channel.soft(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}", "basic.ack"):
        channel.ack(tag)
        channel.sync()
        channel.sync()


@case("STREAM-16", says="x-stream-offset is an int64 header beside those of the publisher")
def offset_header(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.confirming()
    channel.publish("", name, "bare")
    channel.publish("", name, "dressed", headers={"mine": "yes"})
    channel.confirms(2)
    bare, dressed = reader(stage, name).deliveries(2)
    equal(bare.properties.get("headers"), {"x-stream-offset": Typed("l", 0)}, "headers")
    equal(dressed.headers, {"mine": "yes", "x-stream-offset": 1}, "headers")


@case("STREAM-16", says="redelivered is 0, also when the same message is delivered again")
def never_redelivered(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a"])
    for _ in range(2):
        channel = reader(stage, name)
        check(not channel.deliver().redelivered, "redelivered is 1")
        channel.connection.drop()


@case("STREAM-16", says="exchange and routing key are those of the publish")
def where_it_came_from(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.confirming()
    channel.call("queue.bind", queue=name, exchange="amq.direct", routing_key=name)
    channel.publish("amq.direct", name, "x")
    channel.confirms(1)
    event = reader(stage, name).deliver()
    equal((event.text("exchange"), event.text("routing_key")), ("amq.direct", name), "route")


# --- the queue itself -------------------------------------------------------------------------


@case("STREAM-17", says="if-empty is ignored, the stream is deleted with its messages")
def delete_if_empty(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a"])
    channel = stage.channel()
    channel.call("queue.delete", queue=name, if_empty=True)
    with channel.soft(404, None, "queue.declare"):
        channel.call("queue.declare", queue=name, passive=True)


@case("STREAM-17", says="deleted and declared again it begins at offset 0")
def declared_again(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["old", "older"])
    channel = stage.channel()
    channel.call("queue.delete", queue=name)
    channel.call("queue.declare", queue=name, durable=True, arguments=TYPE)
    append(stage, name, ["new"])
    event = reader(stage, name).deliver()
    equal((event.body, offset(event)), (b"new", 0), "first message")


@case("STREAM-17", says="deleting a stream cancels its consumers")
def delete_cancels(stage: Stage) -> None:
    name = stream(stage)
    channel = reader(stage, name)
    stage.channel().call("queue.delete", queue=name)
    channel.wait("basic.cancel")


@case(
    "STREAM-17",
    says="the count in declare-ok is the number of stored messages",
    slow=True,
    referee_reason="C-80: it lags behind",
)
def count(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a", "b", "c"])
    stage.channel().holds(name, 3)
    channel = reader(stage, name)
    channel.ack(channel.deliveries(3)[-1].tag, multiple=True)
    stage.channel().holds(name, 3)


@case("STREAM-18", says="a transaction appends at commit, nothing at rollback")
def transaction(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["before"])
    channel, watcher = stage.transactional(), reader(stage, name)
    equal(watcher.deliver().body, b"before", "message")
    channel.publish("", name, "dropped")
    channel.call("tx.rollback")
    channel.publish("", name, "kept")
    channel.sync()
    watcher.quiet("basic.deliver")
    channel.call("tx.commit")
    event = watcher.deliver()
    equal((event.body, offset(event)), (b"kept", 1), "message after commit")


def _other_type(arguments: Table, rendered: str, stage: Stage) -> None:
    name = stream(stage)
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for {stage.the_queue(name)}: "
        f"received {rendered}"
    )
    channel = stage.channel()
    with channel.soft(406, text, "queue.declare"):
        channel.call("queue.declare", queue=name, durable=True, arguments=arguments)


for _arguments, _rendered in (
    ({"x-queue-type": "classic"}, "'classic' but current is 'stream'"),
    ({"x-queue-type": "quorum"}, "'quorum' but current is 'stream'"),
):
    case("STREAM-24", says=f"redeclared as {_arguments['x-queue-type']} it is soft 406")(
        partial(_other_type, _arguments, _rendered)
    )


def _offset_elsewhere(kind: str, mark: Mark) -> None:
    def body(stage: Stage) -> None:
        channel = stage.channel()
        name = stage.queue(channel, durable=True, arguments={"x-queue-type": kind})
        text = (
            f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for {stage.the_queue(name)} "
            f"of queue type rabbit_{kind}_queue"
        )
        channel.call("basic.qos", prefetch_count=5)
        with channel.soft(406, text, "basic.consume"):
            channel.consume(name, arguments={"x-stream-offset": "first"})

    case("STREAM-24", says=f"x-stream-offset on a {kind} queue is soft 406", mark=mark)(body)


_offset_elsewhere("classic", "≡")
_offset_elsewhere("quorum", "≡")
