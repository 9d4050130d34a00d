"""Section LIMIT: what alarms and busy consumers do to publishers.

Cases about alarms need a broker that is in alarm and stays so, for example one that was started
with a tiny `vm_memory_high_watermark`; against any other they are skipped.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Final

from vouchmq.conformance import wire
from vouchmq.conformance.case import case
from vouchmq.conformance.client import CAPABILITIES, Channel, Connection
from vouchmq.conformance.events import EndedError, Event, RefusedError, SilenceError
from vouchmq.conformance.expect import MismatchError, SkipError, check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.target import Target

PATIENCE_S: Final = 1.5
FLOW_COUNT: Final = 1_000
SILENT_S: Final = 6.0
REASONS: Final = frozenset(
    {"low on memory", "low on disk", "low on memory & disk", "low on disk & memory"}
)


@cache
def in_alarm(target: Target) -> bool:
    """Whether the broker holds back whoever publishes."""
    connection = Connection(target).open()
    try:
        channel = connection.channel()
        channel.publish("", "nowhere", "x")
        channel.send("basic.qos", prefetch_count=0)
        channel.wait("basic.qos_ok", timeout_s=PATIENCE_S)
    except (SilenceError, EndedError, RefusedError):
        return True
    finally:
        connection.drop()
    return False


def need_alarm(stage: Stage) -> None:
    """Skip unless the broker is in alarm."""
    if not in_alarm(stage.target):
        raise SkipError("needs a broker in alarm, e.g. with a tiny vm_memory_high_watermark")


def blocked(channel: Channel) -> Event:
    """The broker's word that the connection is blocked."""
    return channel.connection.wait(0, "connection.blocked", timeout_s=PATIENCE_S)


@case("LIMIT-10", says="who does not publish works on during an alarm, also on new connections")
def others_work(stage: Stage) -> None:
    need_alarm(stage)
    channel = stage.channel()
    queue = stage.queue(channel)
    exchange = stage.exchange(channel, "topic")
    channel.call("queue.bind", queue=queue, exchange=exchange, routing_key="#")
    channel.consume(queue)
    equal(channel.count(queue), 0, "messages")
    equal(channel.get(queue).name, "basic.get_empty", "answer to get")
    stage.channel().close()
    channel.connection.channel(2).close()
    check(not channel.connection.inbox(0), "something was said on channel 0")


@case("LIMIT-10", says="the content header of the first publish blocks, its body may be missing")
def blocked_at_the_header(stage: Stage) -> None:
    need_alarm(stage)
    channel = stage.channel()
    queue = stage.queue(channel)
    octets = wire.method(1, "basic.publish", exchange="", routing_key=queue) + wire.content(
        1, b"x" * 100, wire.encode_properties(), channel.connection.frame_max
    )
    channel.connection.send(octets[: -100 - wire.FRAME_OVERHEAD])
    blocked(channel)
    equal(stage.channel().count(queue), 0, "messages")


@case("LIMIT-10", says="a publish that is blocked is not enqueued, nor confirmed")
def not_enqueued(stage: Stage) -> None:
    need_alarm(stage)
    channel = stage.confirming()
    queue = stage.queue(channel)
    channel.publish("", queue, "x")
    blocked(channel)
    channel.quiet("basic.ack", "basic.nack")
    equal(stage.channel().count(queue), 0, "messages")


@case("LIMIT-11", says="a blocked connection is not read: qos, channel.open and close wait")
def not_read(stage: Stage) -> None:
    need_alarm(stage)
    channel = stage.channel()
    channel.publish("", "nowhere", "x")
    blocked(channel)
    channel.send("basic.qos", prefetch_count=1)
    channel.connection.send_method(2, "channel.open")
    channel.connection.send_method(0, "connection.close", reply_code=200, reply_text="bye")
    channel.connection.listen(PATIENCE_S)
    for number in range(3):
        said = [event.name for event in channel.connection.inbox(number)]
        equal(said, [], f"answers on channel {number}")
    check(not channel.connection.end, f"the connection ended: {channel.connection.end}")


@case("LIMIT-11", says="other connections of the same client are not blocked with it")
def one_by_one(stage: Stage) -> None:
    need_alarm(stage)
    publisher, other = stage.channel(), stage.channel()
    publisher.publish("", "nowhere", "x")
    blocked(publisher)
    other.sync()


@case("LIMIT-13", says="connection.blocked names memory or disk, and comes once")
def told_once(stage: Stage) -> None:
    need_alarm(stage)
    channel = stage.channel()
    for _ in range(3):
        channel.publish("", "nowhere", "x")
    reason = blocked(channel).text("reason")
    check(reason in REASONS, f"the reason is {reason!r}")
    channel.connection.listen(PATIENCE_S)
    equal([event.name for event in channel.connection.inbox(0)], [], "more on channel 0")


@case("LIMIT-13", says="it is not said before the first publish, nor to consumers")
def not_told_before(stage: Stage) -> None:
    need_alarm(stage)
    channel = stage.channel()
    channel.consume(stage.queue(channel))
    channel.connection.listen(PATIENCE_S)
    equal([event.name for event in channel.connection.inbox(0)], [], "events on channel 0")


@case("LIMIT-13", says="without the capability nothing is said, but the connection is blocked")
def not_told_without_capability(stage: Stage) -> None:
    need_alarm(stage)
    capabilities = {**CAPABILITIES, "connection.blocked": False}
    connection = stage.connect(client_properties={"capabilities": capabilities})
    channel = connection.channel()
    channel.publish("", "nowhere", "x")
    channel.send("basic.qos", prefetch_count=1)
    connection.listen(PATIENCE_S)
    equal([event.name for event in connection.inbox(0)], [], "events on channel 0")
    equal([event.name for event in connection.inbox(1)], [], "events on channel 1")


@case("CONN-62", says="a blocked client gets heartbeats and need not send any", slow=True)
def heartbeats_while_blocked(stage: Stage) -> None:
    need_alarm(stage)
    connection = stage.connect(beat=1)
    channel = connection.channel()
    channel.publish("", "nowhere", "x")
    blocked(channel)
    begin = time.monotonic()
    connection.listen(SILENT_S)
    if connection.end:
        raise MismatchError(f"ended ({connection.end}) after {time.monotonic() - begin:.1f} s")
    count = len(connection.heartbeats)
    check(count >= SILENT_S - 1, f"{count} heartbeats in {SILENT_S} s")


@case("LIMIT-29", says="consumers that acknowledge nothing hold no publisher", mark="+")
def slow_consumers_hold_nobody(stage: Stage) -> None:
    consumer, publisher = stage.channel(), stage.confirming()
    queue = stage.queue(consumer)
    consumer.call("basic.qos", prefetch_count=10)
    consumer.consume(queue)
    for _ in range(FLOW_COUNT):
        publisher.publish("", queue, "x")
    settled = publisher.confirms(FLOW_COUNT)
    equal(set(settled.values()), {"ack"}, "confirms")
    consumer.deliveries(10)


@case("LIMIT-29", says="publishers at full speed and prompt consumers both go on", mark="+")
def prompt_consumers_get_everything(stage: Stage) -> None:
    consumer = stage.channel()
    queue = stage.queue(consumer)
    consumer.call("basic.qos", prefetch_count=10)
    consumer.consume(queue)
    publishers = [stage.confirming() for _ in range(2)]
    for number in range(FLOW_COUNT):
        for publisher in publishers:
            publisher.publish("", queue, f"{number}")
    seen: dict[str, int] = {}
    for _ in range(FLOW_COUNT * len(publishers)):
        event = consumer.deliver()
        body = event.body.decode()
        seen[body] = seen.get(body, 0) + 1
        consumer.ack(event.tag)
    equal(set(seen.values()), {len(publishers)}, "copies of each body")
    for publisher in publishers:
        equal(set(publisher.confirms(FLOW_COUNT).values()), {"ack"}, "confirms")


@case("LIMIT-29", says="a connection that consumes what it publishes is not held", mark="+")
def own_consumer_goes_on(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel)
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue)
    for _ in range(FLOW_COUNT):
        channel.publish("", queue, "x")
    for _ in range(FLOW_COUNT):
        channel.ack(channel.deliver().tag)
    equal(set(channel.confirms(FLOW_COUNT).values()), {"ack"}, "confirms")


@case("LIMIT-24", says="names, keys and consumer tags may have 255 octets")
def longest_names(stage: Stage) -> None:
    channel = stage.channel()
    queue, exchange = (stage.doomed(f"{stage.name()}.".ljust(255, mark)) for mark in "qx")
    channel.call("queue.declare", queue=queue)
    channel.call("exchange.declare", exchange=exchange, type="direct")
    key = "k" * 255
    channel.call("queue.bind", queue=queue, exchange=exchange, routing_key=key)
    tag = channel.consume(queue, tag="t" * 255, no_ack=True)
    equal(tag, "t" * 255, "consumer tag")
    channel.publish(exchange, key, "x")
    event = channel.deliver()
    equal(
        (event.text("consumer_tag"), event.text("exchange"), event.text("routing_key")),
        (tag, exchange, key),
        "delivery",
    )
