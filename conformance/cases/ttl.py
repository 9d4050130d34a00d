"""Section TTL: messages that expire, and when they do not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import NEVER_MS, SHORT_MS, fetch, history, mortal
from vouchmq.conformance.expect import equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Table

# Rule TTL-04: an expired head is gone at the latest this much after its deadline.
LATE_S: Final = 0.1


def _past(deadline_ms: int) -> None:
    """Wait until a message with that time to live, published before, must have expired."""
    time.sleep(deadline_ms / 1000 + 2 * LATE_S)


def _publish(
    channel: Channel, queue: str, body: str, expiration: str | None, *, mandatory: bool = False
) -> None:
    if expiration is None:
        channel.publish("", queue, body, mandatory=mandatory)
    else:
        channel.publish("", queue, body, mandatory=mandatory, expiration=expiration)


# --- how long -------------------------------------------------------------------------------


def _expires(arguments: Table, expiration: str | None, stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, arguments)
    channel.consume(target, no_ack=True)
    begin = time.monotonic()
    _publish(channel, source, "x", expiration)
    event = channel.deliver()
    stage.in_time(event.at, begin + 0.3, LATE_S, "the dead letter")
    equal(history(event), [(source, "expired", 1)], "x-death")


for _what, _arguments, _expiration in (
    ("x-message-ttl alone", {"x-message-ttl": 300}, None),
    ("expiration alone", {}, "300"),
    ("the smaller x-message-ttl", {"x-message-ttl": 300}, "3600000"),
    ("the smaller expiration", {"x-message-ttl": NEVER_MS}, "300"),
    ("an expiration with sign and zeros", {}, "+000300"),
):
    case("TTL-01", says=f"{_what} is the time to live")(partial(_expires, _arguments, _expiration))


@case("TTL-01", says="without one a message stays, beside one that expires")
def unlimited(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.publish("", queue, "short", expiration=str(SHORT_MS))
    channel.publish("", queue, "unlimited")
    channel.publish("", queue, "long", expiration="315360000000")
    channel.holds(queue, 2)
    _past(SHORT_MS)
    equal(channel.drain(queue), ["unlimited", "long"], "messages")


@case("TTL-01", says="each queue has its own clock")
def own_clocks(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "fanout")
    lasting = stage.bound(channel, exchange)
    fleeting = stage.queue(channel, arguments={"x-message-ttl": SHORT_MS})
    channel.call("queue.bind", queue=fleeting, exchange=exchange)
    channel.publish(exchange, "", "x")
    channel.holds(lasting, 1)
    channel.holds(fleeting, 0)
    _past(SHORT_MS)
    equal(channel.drain(lasting), ["x"], "messages without a time to live")


@case("TTL-01", says="the time starts anew in the queue a dead letter comes to")
def anew_in_next_queue(stage: Stage) -> None:
    channel = stage.channel()
    target = stage.queue(channel, label="end")
    second = stage.queue(
        channel,
        arguments={
            "x-message-ttl": 600,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": target,
        },
    )
    first = stage.queue(
        channel,
        arguments={
            "x-message-ttl": 400,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": second,
        },
    )
    channel.consume(target, no_ack=True)
    begin = time.monotonic()
    channel.publish("", first, "x")
    event = channel.deliver()
    stage.in_time(event.at, begin + 1.0, 2 * LATE_S, "the dead letter of both")
    equal(history(event), [(second, "expired", 1), (first, "expired", 1)], "x-death")


@case("TTL-01", says="in a transaction the time starts at commit, when the message is enqueued")
def from_commit(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    source, target = mortal(stage, watcher)
    channel.publish("", source, "x", expiration="500")
    channel.sync()
    _past(500)
    equal((watcher.count(source), watcher.count(target)), (0, 0), "messages before commit")
    watcher.consume(target, no_ack=True)
    begin = time.monotonic()
    channel.call("tx.commit")
    stage.in_time(watcher.deliver().at, begin + 0.5, LATE_S, "the dead letter")


@case("TTL-02", says="get never returns an expired message")
def get_after_expiry(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for number in range(20):
        channel.publish("", queue, f"short {number}", expiration=str(SHORT_MS))
    channel.publish("", queue, "long")
    channel.publish("", queue, "short behind it", expiration=str(SHORT_MS))
    channel.sync()
    _past(SHORT_MS)
    equal(channel.drain(queue), ["long"], "what get returns")


@case("TTL-02", says="a consumer never gets an expired message")
def deliver_after_expiry(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for number in range(20):
        channel.publish("", queue, f"short {number}", expiration=str(SHORT_MS))
        channel.publish("", queue, f"long {number}")
    channel.sync()
    _past(SHORT_MS)
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue)
    for number in range(20):
        event = channel.deliver()
        equal(event.body.decode(), f"long {number}", "delivery")
        channel.ack(event.tag)
    channel.quiet("basic.deliver", seconds=0.1)


# --- the head of the line -------------------------------------------------------------------


@case("TTL-03", says="expired behind an unexpired one: counted as ready until it is the head")
def behind_the_head(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    channel.publish("", source, "long")
    channel.publish("", source, "short", expiration=str(SHORT_MS))
    channel.holds(source, 2)
    _past(SHORT_MS)
    equal((channel.count(source), channel.count(target)), (2, 0), "ready messages and dead ones")
    event = channel.get(source)
    equal(event.body, b"long", "the head")
    equal(fetch(channel, target).body, b"short", "dead letter")
    equal(channel.count(source), 0, "ready messages at the end")


@case("TTL-03", says="expired behind an unexpired one: it occupies the length limit")
def behind_the_head_with_limit(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-max-length": 2})
    channel.publish("", source, "long")
    channel.publish("", source, "short", expiration=str(SHORT_MS))
    channel.holds(source, 2)
    _past(SHORT_MS)
    channel.publish("", source, "new")
    channel.holds(target, 2)
    dead = [channel.get(target) for _ in range(2)]
    got = [(event.body.decode(), history(event)[0][1]) for event in dead]
    equal(got, [("long", "maxlen"), ("short", "expired")], "dead letters")
    equal(channel.drain(source), ["new"], "what is left")


@case(
    "TTL-03",
    says="each level of a priority queue has a head of its own",
    referee_reason="C-61: 3.10.8 looks only at the highest level that has messages",
)
def heads_of_levels(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-max-priority": 2})
    channel.publish("", source, "high", priority=2)
    channel.publish("", source, "middle", priority=1)
    channel.publish("", source, "short behind it", priority=1, expiration=str(SHORT_MS))
    channel.publish("", source, "short low head", expiration=str(SHORT_MS))
    channel.publish("", source, "low")
    channel.holds(source, 4)
    equal(fetch(channel, target).body, b"short low head", "dead letter")
    _past(SHORT_MS)
    equal(channel.count(source), 4, "ready messages, the one behind included")
    equal(channel.drain(source), ["high", "middle", "low"], "what get returns")


@case("TTL-04", says="a whole backlog expires without consumer or publish, in order")
def backlog_expires(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-message-ttl": 500})
    bodies = [str(number) for number in range(300)]
    for body in bodies:
        channel.publish("", source, body)
    channel.holds(target, 300)
    equal(channel.count(source), 0, "ready messages")
    equal(channel.drain(target), bodies, "dead letters")


@case("TTL-04", says="without a DLX the expired are simply gone")
def without_dlx(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-message-ttl": SHORT_MS})
    for _ in range(10):
        channel.publish("", queue, "x")
    channel.sync()
    _past(SHORT_MS)
    channel.holds(queue, 0)


@case("TTL-04", says="a shorter message that becomes the head expires at its own deadline")
def next_head(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    channel.consume(target, no_ack=True)
    begin = time.monotonic()
    for ttl in (200, 500, 800):
        channel.publish("", source, str(ttl), expiration=str(ttl))
    for ttl in (200, 500, 800):
        event = channel.deliver()
        equal(event.body.decode(), str(ttl), "dead letter")
        stage.in_time(event.at, begin + ttl / 1000, LATE_S, f"the dead letter of {ttl} ms")


# --- while unacked, and after a requeue -----------------------------------------------------


@case("TTL-05", says="unacked it does not expire; requeued after its deadline it does at once")
def requeued_late(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-message-ttl": 400})
    stage.load(channel, source, "x")
    tag = channel.get(source, no_ack=False).tag
    _past(400)
    channel.consume(target, no_ack=True)
    channel.quiet("basic.deliver")
    channel.nack(tag)
    event = channel.deliver()
    equal(history(event), [(source, "expired", 1)], "x-death")
    equal(channel.get(source).name, "basic.get_empty", "get")


@case("ACK-07", says="an expired unacked message: ack is fine, requeue makes it expire")
def settle_expired(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    for body in ("acked", "requeued"):
        channel.publish("", source, body, expiration="400")
    channel.holds(source, 2)
    tags = [channel.get(source, no_ack=False).tag for _ in range(2)]
    _past(400)
    channel.ack(tags[0])
    channel.nack(tags[1])
    equal(fetch(channel, target).body, b"requeued", "dead letter")
    channel.sync()
    equal(channel.count(source), 0, "ready messages")


@case("TTL-05", says="requeued after its deadline it is not delivered to a waiting consumer")
def requeued_late_with_consumer(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    source, target = mortal(stage, channel, {"x-message-ttl": 400})
    stage.load(channel, source, "x")
    tag = channel.get(source, no_ack=False).tag
    other.consume(source)
    _past(400)
    channel.reject(tag)
    equal(history(fetch(channel, target)), [(source, "expired", 1)], "x-death")
    other.quiet("basic.deliver", seconds=0.1)


@case("TTL-05", says="a lost channel requeues the expired, which then expire", slow=True)
def requeued_by_close(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    source, target = mortal(stage, channel, {"x-message-ttl": 400})
    other.consume(source)
    for body in ("a", "b", "c"):
        channel.publish("", source, body)
    other.deliveries(3)
    _past(400)
    other.connection.drop()
    channel.holds(target, 3)
    equal(channel.drain(target), ["a", "b", "c"], "dead letters")


@case("TTL-05", says="a requeue does not renew the time to live", slow=True)
def requeue_keeps_deadline(stage: Stage) -> None:
    channel = stage.channel()
    target = stage.queue(channel, label="dead")
    lead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    source, clock = (stage.queue(channel, arguments=lead) for _ in range(2))
    channel.publish("", source, "requeued", expiration="3000")
    channel.holds(source, 1)
    tag = channel.get(source, no_ack=False).tag
    time.sleep(1.5)
    # 1.5 s are left, or 3 s if the requeue began anew: this one's deadline lies between.
    channel.nack(tag)
    channel.publish("", clock, "clock", expiration="2250")
    channel.holds(target, 2)
    equal(channel.drain(target), ["requeued", "clock"], "order of expiry")


# --- the property itself --------------------------------------------------------------------


@case("TTL-07", says="expiration is delivered as it was published")
def expiration_is_kept(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-message-ttl": NEVER_MS})
    for text in ("3600000", "+3600000", "0003600000", "7200000"):
        channel.publish("", queue, "x", expiration=text)
        equal(fetch(channel, queue).properties, {"expiration": text}, "properties")
    channel.publish("", queue, "x")
    equal(fetch(channel, queue).properties, {}, "properties without one")


# --- over a restart -------------------------------------------------------------------------


def _stored(channel: Channel, queue: str, body: str, expiration: str | None = None) -> None:
    if expiration is None:
        channel.publish("", queue, body, delivery_mode=2)
    else:
        channel.publish("", queue, body, delivery_mode=2, expiration=expiration)
    channel.wait("basic.ack")


@case("DURABLE-20", says="what falls due while the broker is down is dead-lettered", restart=True)
def due_while_down(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    source, target = mortal(stage, channel, durable=True)
    _stored(channel, source, "short", expiration="1000")
    _stored(channel, source, "long", expiration=str(NEVER_MS))
    _stored(channel, source, "unlimited")
    yield
    channel = stage.channel()
    event = fetch(channel, target)
    equal((event.body, history(event)), (b"short", [(source, "expired", 1)]), "dead letter")
    got = [channel.get(source) for _ in range(2)]
    equal([event.body for event in got], [b"long", b"unlimited"], "what is left")
    equal(got[0].properties.get("expiration"), str(NEVER_MS), "its expiration")


@case(
    "DURABLE-20",
    says="what falls due unacked while the broker is down is dead-lettered",
    restart=True,
)
def due_unacked(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    source, target = mortal(stage, channel, durable=True)
    _stored(channel, source, "short", expiration="1000")
    equal(channel.get(source, no_ack=False).body, b"short", "get")
    _stored(channel, source, "long", expiration=str(NEVER_MS))
    yield
    channel = stage.channel()
    equal(history(fetch(channel, target)), [(source, "expired", 1)], "x-death")
    equal(channel.drain(source), ["long"], "what is left")


@case("DURABLE-20", says="a restart does not renew the time to live", restart=True)
def not_renewed(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    target = stage.queue(channel, label="dead", durable=True)
    lead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    old = stage.queue(channel, arguments={"x-message-ttl": 6000, **lead}, durable=True)
    clock = stage.queue(channel, arguments=lead, durable=True)
    begin = time.monotonic()
    _stored(channel, old, "from before")
    yield
    channel = stage.channel()
    # Anew it would live until 6 s from now; this one's deadline lies before that.
    spent_ms = int((time.monotonic() - begin) * 1000)
    channel.publish("", clock, "clock", expiration=str(max(6000 - spent_ms // 2, 1000)))
    channel.holds(target, 2)
    equal(channel.drain(target), ["from before", "clock"], "order of expiry")
