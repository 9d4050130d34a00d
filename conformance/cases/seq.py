"""Section SEQ: the position of a copy in its queue, for consumers that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from vouchmq.conformance.case import case
from vouchmq.conformance.cases.redeliver import put
from vouchmq.conformance.client import Channel
from vouchmq.conformance.events import Event
from vouchmq.conformance.expect import MismatchError, check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Typed


def asking(stage: Stage, queue: str, prefetch: int = 0) -> Channel:
    """A channel with a consumer that asks for the sequence."""
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=prefetch)
    channel.consume(queue, arguments={"x-queue-seq": True})
    return channel


def place(event: Event) -> tuple[int, int]:
    """x-queue-id and x-queue-seq of a delivery; both must be int64."""
    table = event.properties.get("headers")
    found = []
    for name in ("x-queue-id", "x-queue-seq"):
        value = table.get(name) if isinstance(table, dict) else None
        if not isinstance(value, Typed) or value.kind != "l" or not isinstance(value.value, int):
            raise MismatchError(f"{name}: got {value!r}, wanted an int64")
        found.append(value.value)
    return found[0], found[1]


def _durable(stage: Stage, **arguments: Plain) -> str:
    return stage.queue(stage.channel(), durable=True, arguments=arguments)


@case("SEQ-01", says="copies are numbered from 1 in each queue, under the queue's id", mark="+")
def numbers(stage: Stage) -> None:
    first, second = _durable(stage), _durable(stage)
    put(stage, first, "a", "b", "c")
    put(stage, second, "d", "e")
    places = [place(event) for event in asking(stage, first).deliveries(3)]
    equal([seq for _, seq in places], [1, 2, 3], "x-queue-seq")
    others = [place(event) for event in asking(stage, second).deliveries(2)]
    equal([seq for _, seq in others], [1, 2], "x-queue-seq of the other queue")
    ids = {number for number, _ in places}, {number for number, _ in others}
    check(len(ids[0]) == len(ids[1]) == 1, f"x-queue-id changes: {ids}")
    check(ids[0] != ids[1], f"both queues have the id {ids[0]}")


@case("SEQ-01", says="a number is not used again after settling or purging", mark="+")
def never_reused(stage: Stage) -> None:
    queue = _durable(stage)
    put(stage, queue, "a", "b")
    channel = stage.channel()
    equal(channel.drain(queue), ["a", "b"], "messages")
    put(stage, queue, "c")
    channel.call("queue.purge", queue=queue)
    put(stage, queue, "d")
    event = asking(stage, queue).deliver()
    equal((event.body, place(event)[1]), (b"d", 4), "message and its number")


@case("SEQ-01", says="a queue that is declared again gets another id, and begins at 1", mark="+")
def another_incarnation(stage: Stage) -> None:
    queue = _durable(stage)
    put(stage, queue, "a", "b")
    first = place(asking(stage, queue).deliveries(2)[1])
    channel = stage.channel()
    channel.call("queue.delete", queue=queue)
    channel.call("queue.declare", queue=queue, durable=True)
    put(stage, queue, "c")
    second = place(asking(stage, queue).deliver())
    equal((first[1], second[1]), (2, 1), "numbers before and after")
    check(first[0] != second[0], f"both incarnations have the id {first[0]}")


def _bad_type(value: Plain, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    with channel.soft(406, None, "basic.consume"):
        channel.consume(queue, arguments={"x-queue-seq": value})


for _shown, _value in (
    ("a text", "true"),
    ("a number", 1),
    ("void", None),
    ("a table", Typed("F", {})),
):
    case("SEQ-01", says=f"x-queue-seq with {_shown} is soft 406", mark="+")(
        partial(_bad_type, _value)
    )


@case("SEQ-01", says="x-queue-seq false is as absent", mark="+")
def asked_not_to(stage: Stage) -> None:
    queue = _durable(stage)
    put(stage, queue, "a")
    channel = stage.channel()
    channel.consume(queue, arguments={"x-queue-seq": False})
    equal(channel.deliver().headers, {}, "headers")


@case("SEQ-01", says="no-ack consumers and transient messages and queues have it, too", mark="+")
def transient(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue, no_ack=True, arguments={"x-queue-seq": True})
    for body in ("a", "b"):
        channel.publish("", queue, body)
    events = channel.deliveries(2)
    equal([place(event)[1] for event in events], [1, 2], "x-queue-seq")


@case("SEQ-02", says="requeue and redelivery change neither", mark="+")
def redelivered(stage: Stage) -> None:
    queue = _durable(stage)
    put(stage, queue, "a", "b")
    channel = asking(stage, queue)
    before = [place(event) for event in channel.deliveries(2)]
    channel.call("basic.recover", requeue=True)
    again = channel.deliveries(2)
    check(all(event.redelivered for event in again), "redelivered is 0")
    equal([place(event) for event in again], before, "places after recover")
    channel.connection.drop()
    equal([place(event) for event in asking(stage, queue).deliveries(2)], before, "places again")


@case("SEQ-02", says="a restart changes neither, and numbers go on", mark="+", restart=True)
def over_a_restart(stage: Stage) -> Iterator[None]:
    queue = _durable(stage)
    put(stage, queue, "a", "b", "c")
    channel = asking(stage, queue)
    events = channel.deliveries(3)
    before = [place(event) for event in events]
    channel.ack(events[0].tag)
    channel.sync()
    put(stage, queue, "d")
    yield
    put(stage, queue, "e")
    places = {event.body: place(event) for event in asking(stage, queue).deliveries(4)}
    equal([places[body] for body in (b"b", b"c")], before[1:], "places of what was there")
    later = [places[body][1] for body in (b"d", b"e")]
    check(later[0] == 4 and later[1] > 4, f"numbers of later ones: {later}")


@case("SEQ-02", says="a dead-lettered copy has the place of its target queue", mark="+")
def dead_lettered(stage: Stage) -> None:
    target = _durable(stage)
    source = _durable(stage, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target})
    put(stage, source, "a", "b", "c")
    channel = asking(stage, source)
    events = channel.deliveries(3)
    for event in reversed(events):
        channel.reject(event.tag, requeue=False)
        channel.sync()
    arrived = asking(stage, target).deliveries(3)
    equal([event.body for event in arrived], [b"c", b"b", b"a"], "messages")
    equal([place(event)[1] for event in arrived], [1, 2, 3], "x-queue-seq in the target")
    check(place(arrived[0])[0] != place(events[0])[0], "the id is that of the source")


@case("SEQ-03", says="the server announces the capability queue_sequence", mark="+")
def capability(stage: Stage) -> None:
    start = stage.dial().wait(0, "connection.start")
    table = start.arguments["server_properties"]
    capabilities = table.get("capabilities") if isinstance(table, dict) else None
    value = capabilities.value if isinstance(capabilities, Typed) else None
    equal(
        value.get("queue_sequence") if isinstance(value, dict) else None,
        Typed("t", True),
        "queue_sequence",
    )


@case(
    "SEQ-03", says="published headers are overwritten for who asks, kept for who does not", mark="+"
)
def overwritten(stage: Stage) -> None:
    queue = _durable(stage)
    headers: dict[str, Plain] = {"x-queue-seq": "mine", "x-queue-id": 7, "other": "stays"}
    put(stage, queue, "a", **headers)
    channel = asking(stage, queue)
    event = channel.deliver()
    equal(place(event)[1], 1, "x-queue-seq")
    shown = event.headers if isinstance(event.headers, dict) else {}
    equal((shown.get("other"), len(shown)), ("stays", 3), "the publisher's header")
    channel.connection.drop()
    plain = stage.channel()
    plain.consume(queue)
    equal(plain.deliver().headers, headers, "headers for a consumer that does not ask")
