"""Section TTL: a time to live of nothing, for whom a consumer must be waiting."""

from __future__ import annotations

from functools import partial
from typing import Final

from vouchmq.conformance import wire
from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import fetch, history, mortal
from vouchmq.conformance.expect import equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Table


def _publish(
    channel: Channel, queue: str, body: str, expiration: str | None, *, mandatory: bool = False
) -> None:
    if expiration is None:
        channel.publish("", queue, body, mandatory=mandatory)
    else:
        channel.publish("", queue, body, mandatory=mandatory, expiration=expiration)


NOTHING: Final[tuple[tuple[str, Table, str | None], ...]] = (
    ("x-message-ttl 0", {"x-message-ttl": 0}, None),
    ("expiration 0", {}, "0"),
)


def _at_once(arguments: Table, expiration: str | None, stage: Stage) -> None:
    channel = stage.confirming()
    source, target = mortal(stage, channel, arguments)
    _publish(channel, source, "x", expiration, mandatory=True)
    equal(channel.wait("basic.ack", "basic.nack", "basic.return").name, "basic.ack", "answer")
    equal(history(fetch(channel, target)), [(source, "expired", 1)], "x-death")
    equal(channel.get(source).name, "basic.get_empty", "get")


def _to_a_consumer(arguments: Table, expiration: str | None, stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, arguments)
    channel.consume(source)
    for body in ("a", "b", "c"):
        _publish(channel, source, body, expiration)
    equal(channel.bodies(3), ["a", "b", "c"], "deliveries")
    equal(channel.count(target), 0, "dead letters")


def _although_declared(arguments: Table, expiration: str | None, stage: Stage) -> None:
    channel, writer = stage.channel(), stage.channel()
    source, target = mortal(stage, channel, arguments)
    channel.consume(source)
    for number in range(20):
        _publish(writer, source, str(number), expiration)
        writer.send("queue.declare", queue=source, passive=True)
        equal(channel.deliver().body.decode(), str(number), "delivery")
    equal(channel.count(target), 0, "dead letters")


def _to_a_busy_one(arguments: Table, expiration: str | None, stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, arguments)
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(source)
    _publish(channel, source, "taken", expiration)
    _publish(channel, source, "too much", expiration)
    event = channel.deliver()
    equal(event.body, b"taken", "delivery")
    equal(fetch(channel, target).body, b"too much", "dead letter")
    channel.ack(event.tag)
    channel.quiet("basic.deliver", seconds=0.1)


def _requeued(arguments: Table, expiration: str | None, stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, arguments)
    tag = channel.consume(source)
    _publish(channel, source, "x", expiration)
    event = channel.deliver()
    channel.call("basic.cancel", consumer_tag=tag)
    channel.nack(event.tag)
    equal(history(fetch(channel, target)), [(source, "expired", 1)], "x-death")


for _what, _nothing, _expiration in NOTHING:
    for _says, _body in (
        ("expires at once, no return with mandatory, confirmed with ack", _at_once),
        ("is delivered to a consumer that can take it", _to_a_consumer),
        (
            "is delivered, too, if the queue is declared in between",
            _although_declared,
        ),
        ("expires beside a consumer at its prefetch limit", _to_a_busy_one),
        ("expires when it is requeued", _requeued),
    ):
        case("TTL-06", says=f"{_what} {_says}")(partial(_body, _nothing, _expiration))


@case("TTL-06", says="TTL 0 over several queues: kept by those whose consumer takes it, one ack")
def nothing_in_some(stage: Stage) -> None:
    channel, reader = stage.confirming(), stage.channel()
    exchange = stage.exchange(channel, "fanout")
    served, idle = (
        stage.queue(channel, arguments={"x-message-ttl": 0}, durable=True) for _ in range(2)
    )
    plain = stage.bound(channel, exchange)
    for name in (served, idle):
        channel.call("queue.bind", queue=name, exchange=exchange)
    reader.consume(served)
    channel.publish(exchange, "", "x", delivery_mode=2)
    equal(channel.confirms(1), {1: "ack"}, "confirm")
    equal(reader.bodies(1), ["x"], "delivery")
    equal((channel.count(idle), channel.count(plain)), (0, 1), "ready messages")


@case("PUB-36", says="the substitute for immediate: TTL 0 dead-letters what nobody takes now")
def immediate_substitute(stage: Stage) -> None:
    channel, reader = stage.channel(), stage.channel()
    source, target = mortal(stage, channel)
    channel.publish("", source, "nobody", expiration="0", mandatory=True)
    equal(fetch(channel, target).body, b"nobody", "dead letter")
    reader.consume(source)
    channel.publish("", source, "somebody", expiration="0", mandatory=True)
    equal(reader.bodies(1), ["somebody"], "delivery")
    equal(channel.count(target), 0, "dead letters")
    channel.quiet("basic.return", seconds=0.1)


# --- in one piece ---------------------------------------------------------------------------


def _together(queue: str, *messages: tuple[str, str | None]) -> bytes:
    """Publishes as one piece of octets, which a broker may take in one go."""
    octets = b""
    for body, expiration in messages:
        block = wire.encode_properties(**({} if expiration is None else {"expiration": expiration}))
        octets += wire.method(1, "basic.publish", routing_key=queue)
        octets += wire.content(1, body.encode(), block, 131072)
    return octets


@case("TTL-06", says="TTL 0 that a length limit brings to the head: a get behind it gets the next")
def limit_shows_it(stage: Stage) -> None:
    channel = stage.channel()
    for _ in range(10):
        queue = stage.queue(channel, arguments={"x-max-length": 2})
        octets = _together(queue, ("a", None), ("nothing", "0"), ("b", None))
        channel.connection.send(octets + wire.method(1, "basic.get", queue=queue, no_ack=True))
        event = channel.wait("basic.get_ok", "basic.get_empty")
        equal((event.name, event.body), ("basic.get_ok", b"b"), "get")


@case("TTL-06", says="TTL 0 among those that a length limit drops: expired, in its place")
def among_the_dropped(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-max-length": 1})
    messages = [("a", None), ("nothing", "0"), ("b", None), ("c", None)]
    channel.connection.send(_together(source, *messages))
    channel.holds(target, 3)
    dead = [channel.get(target) for _ in range(3)]
    got = [(event.body.decode(), history(event)[0][1]) for event in dead]
    wanted = [("a", "maxlen"), ("nothing", "expired"), ("b", "maxlen")]
    equal(got, wanted, "dead letters")


@case("TTL-06", says="TTL 0 takes no room from those published behind it")
def takes_no_room(stage: Stage) -> None:
    channel = stage.confirming()
    arguments: Table = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = stage.queue(channel, arguments=arguments)
    octets = _together(queue, ("nothing", "0"), ("a", None), ("b", None))
    channel.connection.send(octets)
    equal(channel.confirms(3), {1: "ack", 2: "ack", 3: "nack"}, "confirms")
    equal(channel.drain(queue), ["a"], "what is in the queue")


@case("TTL-06", says="TTL 0 that a get brings to the head is not counted any more")
def not_counted(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for body, expiration in (("a", None), ("nothing", "0"), ("b", None)):
        _publish(channel, queue, body, expiration)
    channel.holds(queue, 3)
    event = channel.get(queue)
    equal((event.body, event.number("message_count")), (b"a", 1), "get and ready messages left")
