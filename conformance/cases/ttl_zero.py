"""Section TTL: a time to live of nothing, for whom a consumer must be waiting."""

from __future__ import annotations

from functools import partial
from typing import Final

from conformance.case import case
from conformance.client import Channel
from conformance.expect import equal
from conformance.letters import fetch, history, mortal
from conformance.stage import Stage
from conformance.wire import Table


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
