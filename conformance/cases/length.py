"""Section LEN: what a queue drops when it is too long."""

from __future__ import annotations

from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import NEVER_MS, fetch, history, mortal
from vouchmq.conformance.expect import equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Table


def _dead(channel: Channel, target: str, count: int) -> list[tuple[str, object]]:
    """Bodies and reasons of that many dead letters."""
    channel.holds(target, count)
    events = [channel.get(target) for _ in range(count)]
    return [(event.body.decode(), history(event)[0][1]) for event in events]


# --- what is counted ------------------------------------------------------------------------


@case("LEN-01", says="x-max-length counts ready messages, not the unacked")
def unacked_do_not_count(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-max-length": 2})
    stage.load(channel, queue, "a", "b")
    for _ in range(2):
        channel.get(queue, no_ack=False)
    stage.load(channel, queue, "c", "d")
    channel.publish("", queue, "e")
    channel.sync()
    equal(channel.drain(queue), ["d", "e"], "ready messages")


@case("LEN-01", says="x-max-length-bytes sums the bodies of ready messages, not of the unacked")
def unacked_bytes_do_not_count(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-max-length-bytes": 10})
    stage.load(channel, queue, "a" * 10)
    channel.get(queue, no_ack=False)
    stage.load(channel, queue, "b" * 5, "c" * 5)
    equal(channel.drain(queue), ["b" * 5, "c" * 5], "ready messages")


@case("LEN-01", says="x-max-length-bytes counts no properties, and empty bodies as nothing")
def only_bodies_count(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-max-length-bytes": 10})
    for body in ("a" * 5, "b" * 5, "", ""):
        channel.publish("", queue, body, headers={"long": "x" * 1000}, message_id="m" * 200)
    channel.holds(queue, 4)


@case("LEN-01", says="with both limits the first that is reached acts")
def both_limits(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-max-length": 3, "x-max-length-bytes": 10})
    for body in ("1", "2", "3", "4"):
        channel.publish("", queue, body)
    channel.sync()
    equal(channel.drain(queue), ["2", "3", "4"], "after too many")
    for body in ("a" * 4, "b" * 4, "c" * 4):
        channel.publish("", queue, body)
    channel.sync()
    equal(channel.drain(queue), ["b" * 4, "c" * 4], "after too much")


# --- drop-head ------------------------------------------------------------------------------

DROPPING: Final[tuple[Table, ...]] = ({}, {"x-overflow": "drop-head"})


def _drops_oldest(more: Table, stage: Stage) -> None:
    channel = stage.confirming()
    source, target = mortal(stage, channel, {"x-max-length": 2, **more}, durable=True)
    for body in ("a", "b", "c", "d"):
        channel.publish("", source, body, delivery_mode=2)
    equal(set(channel.confirms(4).values()), {"ack"}, "confirms")
    equal(_dead(channel, target, 2), [("a", "maxlen"), ("b", "maxlen")], "dead letters")
    equal(channel.drain(source), ["c", "d"], "what is left")


for _more in DROPPING:
    case(
        "LEN-02", says=f"the oldest are dropped, all are confirmed with ack {_more or ''}".strip()
    )(partial(_drops_oldest, _more))


@case("LEN-02", says="one large message may push out several")
def pushes_out_several(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-max-length-bytes": 10})
    for body in ("aa", "bb", "cc", "dd", "e" * 5):
        channel.publish("", source, body)
    wanted = [("aa", "maxlen"), ("bb", "maxlen")]
    equal(_dead(channel, target, 2), wanted, "dead letters")
    equal(channel.drain(source), ["cc", "dd", "e" * 5], "what is left")


@case("LEN-02", says="the limit itself is allowed")
def exactly_full(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-max-length": 3, "x-max-length-bytes": 6})
    for body in ("aa", "bb", "cc"):
        channel.publish("", queue, body)
    channel.holds(queue, 3)


@case("LEN-02", says="with a waiting consumer nothing is dropped")
def waiting_consumer(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-max-length": 1, "x-max-length-bytes": 3})
    channel.consume(source)
    for number in range(20):
        channel.publish("", source, f"long {number}")
        equal(channel.deliver().body.decode(), f"long {number}", "delivery")
    equal(channel.count(target), 0, "dead letters")


@case("LEN-02", says="other queues of the same publish keep their copy")
def other_queues_keep(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "fanout")
    roomy = stage.bound(channel, exchange)
    short = stage.queue(channel, arguments={"x-max-length": 1})
    channel.call("queue.bind", queue=short, exchange=exchange)
    for body in ("a", "b", "c"):
        channel.publish(exchange, "", body)
    channel.holds(roomy, 3)
    equal((channel.drain(roomy), channel.drain(short)), (["a", "b", "c"], ["c"]), "both queues")


@case("LEN-02", says="a committed transaction may push out, too")
def in_transaction(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    source, target = mortal(stage, watcher, {"x-max-length": 2})
    stage.load(watcher, source, "a", "b")
    for body in ("c", "d", "e"):
        channel.publish("", source, body)
    channel.sync()
    equal(watcher.count(target), 0, "dead letters before commit")
    channel.call("tx.commit")
    wanted = [("a", "maxlen"), ("b", "maxlen"), ("c", "maxlen")]
    equal(_dead(watcher, target, 3), wanted, "dead letters")
    equal(watcher.drain(source), ["d", "e"], "what is left")


@case("LEN-03", says="larger than x-max-length-bytes alone: all before it go, then itself")
def too_large_alone(stage: Stage) -> None:
    channel = stage.confirming()
    source, target = mortal(stage, channel, {"x-max-length-bytes": 10})
    channel.publish("", source, "a" * 4)
    channel.publish("", source, "b" * 11)
    equal(channel.confirms(2), {1: "ack", 2: "ack"}, "confirms")
    wanted = [("a" * 4, "maxlen"), ("b" * 11, "maxlen")]
    equal(_dead(channel, target, 2), wanted, "dead letters")
    equal(channel.count(source), 0, "ready messages")


def _nothing_is_kept(limit: str, stage: Stage) -> None:
    channel = stage.confirming()
    source, target = mortal(stage, channel, {limit: 0})
    channel.publish("", source, "nobody waits")
    equal(channel.confirms(1), {1: "ack"}, "confirm")
    equal(_dead(channel, target, 1), [("nobody waits", "maxlen")], "dead letters")
    channel.consume(source, no_ack=True)
    channel.publish("", source, "somebody waits")
    equal(channel.deliver().body, b"somebody waits", "delivery")
    equal(channel.count(target), 0, "dead letters")


for _limit in ("x-max-length", "x-max-length-bytes"):
    case("LEN-04", says=f"{_limit} 0 keeps nothing, but a waiting consumer gets the message")(
        partial(_nothing_is_kept, _limit)
    )


# --- with priorities ------------------------------------------------------------------------


def _prioritized(stage: Stage, arguments: Table, *levels: int) -> tuple[Channel, str]:
    """A priority queue that got messages named by their levels."""
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-max-priority": 5, **arguments})
    for level in levels:
        channel.publish("", queue, str(level), priority=level)
    channel.sync()
    return channel, queue


@case("LEN-05", says="drop-head drops the highest priority first: 5, 1, 3 in two leave 3 and 1")
def drops_highest(stage: Stage) -> None:
    channel, queue = _prioritized(stage, {"x-max-length": 2}, 5, 1, 3)
    channel.holds(queue, 2)
    equal(channel.drain(queue), ["3", "1"], "what is left")


@case("LEN-05", says="a message of the highest priority pushes itself out")
def highest_is_dropped_at_once(stage: Stage) -> None:
    channel, queue = _prioritized(stage, {"x-max-length": 2}, 1, 2, 5)
    channel.holds(queue, 2)
    equal(channel.drain(queue), ["2", "1"], "what is left")


@case("LEN-05", says="bytes are counted over all levels")
def bytes_over_levels(stage: Stage) -> None:
    channel, queue = _prioritized(stage, {"x-max-length-bytes": 3}, 1, 2, 3, 2)
    channel.holds(queue, 3)
    equal(channel.drain(queue), ["2", "2", "1"], "what is left")


@case("LEN-05", says="drop-lowest drops the oldest of the lowest level", mark="+")
def drops_lowest(stage: Stage) -> None:
    arguments: Table = {"x-max-length": 3, "x-overflow": "drop-lowest"}
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-max-priority": 5, **arguments})
    for level, body in ((5, "high"), (1, "low 1"), (1, "low 2"), (3, "middle"), (0, "lowest")):
        channel.publish("", queue, body, priority=level)
    channel.holds(queue, 3)
    equal(channel.drain(queue), ["high", "middle", "low 2"], "what is left")


# --- after a requeue ------------------------------------------------------------------------


@case("LEN-06", says="a requeue that overflows drops the requeued one, it is the head")
def requeue_overflows(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-max-length": 2})
    stage.load(channel, source, "a", "b")
    tag = channel.get(source, no_ack=False).tag
    stage.load(channel, source, "c")
    channel.nack(tag)
    equal(_dead(channel, target, 1), [("a", "maxlen")], "dead letters")
    equal(channel.drain(source), ["b", "c"], "what is left")


@case("LEN-06", says="a channel that ends requeues more than there is room for: heads go")
def close_overflows(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    source, target = mortal(stage, channel, {"x-max-length": 3})
    tag = other.consume(source)
    for body in ("a", "b", "c"):
        channel.publish("", source, body)
    other.deliveries(3)
    other.call("basic.cancel", consumer_tag=tag)
    stage.load(channel, source, "d", "e")
    other.connection.drop()
    equal(_dead(channel, target, 2), [("a", "maxlen"), ("b", "maxlen")], "dead letters")
    equal(channel.drain(source), ["c", "d", "e"], "what is left")


@case("ACK-13", says="a requeue over the length limit drops heads, maybe the requeued ones")
def requeue_over_limit(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-max-length": 1})
    stage.load(channel, queue, "a")
    tag = channel.get(queue, no_ack=False).tag
    stage.load(channel, queue, "b")
    channel.reject(tag)
    channel.sync()
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["b"], "what is left")


@case("LEN-02", says="an unexpired head is dropped as maxlen although it has a TTL")
def reason_with_ttl(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-max-length": 1, "x-message-ttl": NEVER_MS})
    for body in ("a", "b"):
        channel.publish("", source, body)
    event = fetch(channel, target)
    equal((event.body, history(event)), (b"a", [(source, "maxlen", 1)]), "dead letter")


@case("CONF-06", says="dropped by drop-head: acked when it was processed, persistent or not")
def confirmed_when_dropped(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments={"x-max-length": 3}, durable=True)
    for number in range(200):
        channel.publish("", queue, str(number), delivery_mode=1 + number % 2)
    equal(set(channel.confirms(200).values()), {"ack"}, "confirms")
    channel.holds(queue, 3)


@case("CONF-06", says="expired with TTL 0: acked when it was processed, persistent or not")
def confirmed_when_expired(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments={"x-message-ttl": 0}, durable=True)
    for number in range(200):
        channel.publish("", queue, str(number), delivery_mode=1 + number % 2)
    equal(set(channel.confirms(200).values()), {"ack"}, "confirms")
    channel.holds(queue, 0)
