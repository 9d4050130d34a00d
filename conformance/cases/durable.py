"""Section DURABLE: what a restart leaves. All cases here share one restart of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.cases import exch, queue
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import MismatchError, check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed

POSITION: Final = "amq.vouchmq.position"


def _queue_exists(stage: Stage, name: str) -> bool:
    return queue.exists(stage.channel(), name)


def _stored(stage: Stage, channel: Channel, *bodies: str) -> str:
    """A durable queue with these persistent messages, confirmed."""
    name = stage.queue(channel, durable=True)
    channel.call("confirm.select")
    for body in bodies:
        channel.publish("", name, body, delivery_mode=2)
    channel.confirms(len(bodies))
    channel.holds(name, len(bodies))
    return name


@case(
    "DURABLE-01",
    says="durable exchanges survive with their arguments, transient ones do not",
    restart=True,
)
def exchanges(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    arguments = {"alternate-exchange": "amq.fanout"}
    kept = stage.exchange(channel, "topic", durable=True, arguments=arguments)
    fleeting = stage.exchange(channel, "topic")
    yield
    channel = stage.channel()
    channel.call("exchange.declare", exchange=kept, type="topic", durable=True, arguments=arguments)
    check(not exch.exists(channel, fleeting), "the transient exchange is there")


@case("DURABLE-01", says="a durable auto-delete exchange survives", restart=True)
def auto_delete_exchange(stage: Stage) -> Iterator[None]:
    kept = stage.exchange(stage.channel(), "fanout", durable=True, auto_delete=True)
    yield
    check(exch.exists(stage.channel(), kept), "it is gone")


@case(
    "DURABLE-01",
    says="durable queues survive with their arguments, transient ones do not",
    restart=True,
)
def queues(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    arguments: Table = {"x-queue-mode": "lazy", "x-mine": 5}
    kept = stage.queue(channel, durable=True, arguments=arguments)
    fleeting = stage.queue(channel)
    channel.publish("", fleeting, "x", delivery_mode=2)
    yield
    channel = stage.channel()
    channel.call("queue.declare", queue=kept, durable=True, arguments=arguments)
    check(not queue.exists(channel, fleeting), "the transient queue is there")


@case("DURABLE-01", says="a durable exclusive queue does not survive", restart=True)
def exclusive_queue(stage: Stage) -> Iterator[None]:
    name = stage.queue(stage.channel(), durable=True, exclusive=True)
    yield
    check(not _queue_exists(stage, name), "it is there")


@case(
    "DURABLE-01",
    says="a durable auto-delete queue survives without consumers, goes with its next last one",
    restart=True,
)
def auto_delete_queue(stage: Stage) -> Iterator[None]:
    name = stage.queue(stage.channel(), durable=True, auto_delete=True)
    yield
    check(_queue_exists(stage, name), "it is gone")
    channel = stage.channel()
    channel.call("basic.cancel", consumer_tag=channel.consume(name))
    check(not _queue_exists(stage, name), "it is there after its last consumer")


@case("DURABLE-01", says="bindings survive if both ends are durable", restart=True)
def bindings(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    source = stage.exchange(channel, "direct", durable=True)
    target = stage.exchange(channel, "direct", durable=True)
    name = stage.queue(channel, durable=True)
    channel.call("exchange.bind", source=source, destination=target, routing_key="k")
    channel.call("queue.bind", queue=name, exchange=target, routing_key="k", arguments={"a": 1})
    channel.call("queue.bind", queue=name, exchange=source, routing_key="gone")
    channel.call("queue.unbind", queue=name, exchange=source, routing_key="gone")
    yield
    channel = stage.channel()
    channel.publish(source, "k", "through both")
    channel.publish(source, "gone", "lost")
    channel.holds(name, 1)
    equal(channel.drain(name), ["through both"], "messages")


@case(
    "DURABLE-01",
    says="confirmed persistent messages survive with order and properties",
    restart=True,
)
def messages(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    bodies = [str(number) for number in range(50)]
    name = _stored(stage, channel, *bodies)
    channel.publish(
        "", name, b"z" * 300_000, delivery_mode=2, headers={"h": [1]}, message_id="last"
    )
    channel.wait("basic.ack")
    yield
    channel = stage.channel()
    channel.holds(name, 51)
    equal([channel.get(name).body.decode() for _ in bodies], bodies, "messages")
    last = channel.get(name)
    equal(len(last.body), 300_000, "octets of the last one")
    equal(
        (last.properties["message_id"], last.properties["delivery_mode"], last.headers),
        ("last", 2, {"h": [1]}),
        "properties of the last one",
    )
    check(not last.redelivered, "marked as redelivered without having been delivered")


@case(
    "DURABLE-01", says="a persistent message in several queues survives in each, once", restart=True
)
def fan_out(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    exchange = stage.exchange(channel, "fanout", durable=True)
    names = [stage.queue(channel, durable=True) for _ in range(3)]
    for name in names:
        channel.call("queue.bind", queue=name, exchange=exchange)
    channel.publish(exchange, "", "x", delivery_mode=2)
    channel.confirms(1)
    equal(channel.get(names[0]).body, b"x", "taken from the first queue")
    channel.sync()
    channel.close()
    yield
    channel = stage.channel()
    counts = [len(channel.drain(name)) for name in names[1:]]
    equal(counts, [1, 1], "messages in the two other queues")


@case("DURABLE-01", says="transient messages in a durable queue do not survive", restart=True)
def transient_messages(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    name = _stored(stage, channel, "kept")
    channel.publish("", name, "lost", delivery_mode=1)
    channel.publish("", name, "lost")
    channel.holds(name, 3)
    yield
    equal(stage.channel().drain(name), ["kept"], "messages")


@case("DURABLE-01", says="unacked persistent messages come back with redelivered = 1", restart=True)
def unacked_messages(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    name = _stored(stage, channel, "a", "b", "c")
    channel.get(name, no_ack=False)
    channel.get(name, no_ack=False)
    # The mark becomes durable with the next sync: a confirm behind it says that this has been.
    channel.publish("", name, "d", delivery_mode=2)
    channel.wait("basic.ack")
    yield
    channel = stage.channel()
    got = [channel.get(name) for _ in range(4)]
    equal([event.body for event in got], [b"a", b"b", b"c", b"d"], "order")
    equal([event.redelivered for event in got], [True, True, False, False], "redelivered bits")


@case("DURABLE-12", says="redelivered is kept for a message that had been requeued", restart=True)
def redelivered_is_kept(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    name = _stored(stage, channel, "a", "b")
    channel.nack(channel.get(name, no_ack=False).tag)
    channel.holds(name, 2)
    channel.publish("", name, "c", delivery_mode=2)
    channel.wait("basic.ack")
    yield
    channel = stage.channel()
    got = [channel.get(name).redelivered for _ in range(3)]
    equal(got, [True, False, False], "redelivered bits")


@case("DURABLE-01", says="acked messages stay away", restart=True)
def acked_messages(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    name = _stored(stage, channel, "a", "b", "c")
    for _ in range(2):
        channel.ack(channel.get(name, no_ack=False).tag)
    channel.publish("", name, "d", delivery_mode=2)
    channel.wait("basic.ack")
    yield
    equal(stage.channel().drain(name), ["c", "d"], "messages")


@case("DURABLE-01", says="uncommitted transactions leave nothing, committed ones all", restart=True)
def transactions(stage: Stage) -> Iterator[None]:
    channel, other = stage.transactional(), stage.transactional()
    name, second = (stage.queue(channel, durable=True) for _ in range(2))
    for number in range(10):
        channel.publish("", (name, second)[number % 2], str(number), delivery_mode=2)
    channel.call("tx.commit")
    other.publish("", name, "uncommitted", delivery_mode=2)
    other.sync()
    yield
    channel = stage.channel()
    equal(channel.drain(name), ["0", "2", "4", "6", "8"], "messages in the first queue")
    equal(channel.drain(second), ["1", "3", "5", "7", "9"], "messages in the second queue")


@case(
    "DURABLE-02",
    says="a definition is durable when its -ok is there, with no-wait at the next reply",
    restart=True,
)
def definitions(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    kept = stage.name("no-wait")
    channel.send("queue.declare", queue=kept, durable=True, nowait=True)
    channel.send("queue.bind", queue=kept, exchange="amq.direct", routing_key=kept, nowait=True)
    gone = stage.queue(channel, durable=True)
    channel.call("queue.delete", queue=gone)
    yield
    channel = stage.channel()
    channel.publish("amq.direct", kept, "x", mandatory=True)
    channel.holds(kept, 1)
    check(not queue.exists(channel, gone), "the deleted queue is back")


@case(
    "DURABLE-01",
    says="consumers and direct replies are gone, clients find an open broker",
    restart=True,
)
def consumers(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    name = stage.queue(channel, durable=True)
    channel.consume(name)
    yield
    reply = stage.channel().call("queue.declare", queue=name, passive=True)
    equal(reply.number("consumer_count"), 0, "consumers")


@case("DURABLE-10", says="what was confirmed one by one is all there after a restart", restart=True)
def confirmed_one_by_one(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    name = stage.queue(channel, durable=True)
    for number in range(100):
        channel.publish("", name, str(number), delivery_mode=2)
        channel.wait("basic.ack")
    yield
    equal(stage.channel().drain(name), [str(number) for number in range(100)], "messages")


def _identities(stage: Stage) -> tuple[str, str]:
    """Of the data directory and of the start, as server-properties tell them."""
    table = stage.dial().wait(0, "connection.start").arguments["server_properties"]
    told = table if isinstance(table, dict) else {}
    found = []
    for name in ("data_directory_id", "start_id"):
        value = told.get(name)
        if not isinstance(value, Typed) or not isinstance(value.value, bytes) or not value.value:
            raise MismatchError(f"{name} is {value!r}, wanted a longstr")
        found.append(value.value.decode())
    return found[0], found[1]


def _position(channel: Channel, arguments: Table) -> int:
    answer = channel.call("queue.declare", queue=POSITION, passive=True, arguments=arguments)
    return answer.number("message_count") | answer.number("consumer_count") << 32


@case(
    "DURABLE-26",
    says="the data directory keeps its identity, and each start has another",
    mark="+",
    restart=True,
)
def identities(stage: Stage) -> Iterator[None]:
    directory, start = _identities(stage)
    equal(_identities(stage), (directory, start), "what another connection is told")
    seen: Table = {
        "data-directory": directory,
        "start": start,
        "lsn": _position(stage.channel(), {}),
    }
    yield
    now = _identities(stage)
    equal(now[0], directory, "data_directory_id")
    check(now[1] != start, "start_id is the same")
    _position(stage.channel(), seen)


@case("DURABLE-28", says="a position tells an LSN that grows, and checks one", mark="+")
def position(stage: Stage) -> None:
    directory, start = _identities(stage)
    channel = stage.channel()
    first = _position(channel, {})
    confirming = stage.confirming()
    name = stage.queue(confirming, durable=True)
    stage.load(confirming, name, "a", "b")
    second = _position(channel, {})
    check(second > first + 2, f"the LSN was {first}, and is {second} after two messages")
    seen: dict[str, Plain] = {"data-directory": directory, "start": start, "lsn": second}
    check(_position(channel, seen) > second, "it does not grow")
    wrongs: tuple[dict[str, Plain], ...] = (
        {"data-directory": "x"},
        {"start": "x"},
        {"lsn": second + 1_000_000},
        {"lsn": "many"},
    )
    for wrong in wrongs:
        with channel.soft(406, None, "queue.declare"):
            channel.send("queue.declare", queue=POSITION, passive=True, arguments=seen | wrong)
        channel.reopen()
