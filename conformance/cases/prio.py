"""Section PRIO: priorities of messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import NEVER_MS, SHORT_MS, fetch, mortal
from vouchmq.conformance.expect import equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Table

# Priorities as they were published (None: no property), by position, and the order measured.
PUBLISHED: Final = (None, 1, 5, 9, 0, 3, 5)
DELIVERED: Final = ("2", "3", "6", "5", "1", "0", "4")


def _publish(channel: Channel, queue: str, body: str, level: int | None) -> None:
    if level is None:
        channel.publish("", queue, body)
    else:
        channel.publish("", queue, body, priority=level)


def _ready(
    stage: Stage, levels: Sequence[int | None], maximum: int = 5, more: Table | None = None
) -> tuple[Channel, str]:
    """A priority queue holding one message per level, its body the position."""
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-max-priority": maximum, **(more or {})})
    for at, level in enumerate(levels):
        _publish(channel, queue, str(at), level)
    channel.holds(queue, len(levels))
    return channel, queue


@case("PRIO-01", says="x-max-priority 0 is a queue without priorities")
def no_levels(stage: Stage) -> None:
    channel, queue = _ready(stage, (0, 9, 5, None, 255), maximum=0)
    equal(channel.drain(queue), ["0", "1", "2", "3", "4"], "order")


@case("PRIO-01", says="without x-max-priority priorities mean nothing")
def no_argument(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for level in (0, 9, 5):
        channel.publish("", queue, str(level), priority=level)
    channel.holds(queue, 3)
    equal(channel.drain(queue), ["0", "9", "5"], "order")


@case("PRIO-01", says="255 levels are told apart")
def all_levels(stage: Stage) -> None:
    levels = [level * 7 % 256 for level in range(256)]
    channel, queue = _ready(stage, levels, maximum=255)
    got = [levels[int(body)] for body in channel.drain(queue)]
    equal(got, sorted(levels, reverse=True), "levels in order")


@case("PRIO-02", says="no priority is level 0")
def absent_is_lowest(stage: Stage) -> None:
    channel, queue = _ready(stage, (None, 1, 0, None))
    equal(channel.drain(queue), ["1", "0", "2", "3"], "order")


@case("PRIO-02", says="a priority above the highest level counts as that level, FIFO among them")
def clamped(stage: Stage) -> None:
    channel, queue = _ready(stage, (2, 255, 5, 6, 4), maximum=5)
    equal(channel.drain(queue), ["1", "2", "3", "4", "0"], "order")


@case("PRIO-02", says="the delivered property keeps its value")
def property_is_kept(stage: Stage) -> None:
    channel, queue = _ready(stage, (9, 3, None), maximum=2)
    got = [channel.get(queue).properties for _ in range(3)]
    equal(got, [{"priority": 9}, {"priority": 3}, {}], "properties")


@case("PRIO-03", says="highest level first, FIFO within a level, by get")
def order_of_get(stage: Stage) -> None:
    channel, queue = _ready(stage, PUBLISHED)
    equal(channel.drain(queue), list(DELIVERED), "order")


@case("PRIO-03", says="highest level first, FIFO within a level, by consume")
def order_of_consume(stage: Stage) -> None:
    channel, queue = _ready(stage, PUBLISHED)
    channel.consume(queue, no_ack=True)
    equal(channel.bodies(7), list(DELIVERED), "order")


@case("PRIO-03", says="with prefetch 1 each ack brings the highest that is ready then")
def order_with_prefetch(stage: Stage) -> None:
    channel, queue = _ready(stage, (1, 1))
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue)
    first = channel.deliver()
    channel.publish("", queue, "later, higher", priority=4)
    channel.holds(queue, 2)
    channel.ack(first.tag)
    second = channel.deliver()
    equal((first.body, second.body), (b"0", b"later, higher"), "deliveries")


@case("PRIO-03", says="committed together they still come by priority")
def order_of_commit(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    queue = stage.queue(watcher, arguments={"x-max-priority": 5})
    for at, level in enumerate(PUBLISHED):
        _publish(channel, queue, str(at), level)
    channel.call("tx.commit")
    watcher.holds(queue, 7)
    equal(watcher.drain(queue), list(DELIVERED), "order")


@case("PRIO-03", says="the order survives a restart", restart=True)
def order_over_restart(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments={"x-max-priority": 5}, durable=True)
    for at, level in enumerate(PUBLISHED):
        if level is None:
            channel.publish("", queue, str(at), delivery_mode=2)
        else:
            channel.publish("", queue, str(at), delivery_mode=2, priority=level)
    equal(set(channel.confirms(7).values()), {"ack"}, "confirms")
    yield
    channel = stage.channel()
    channel.holds(queue, 7)
    equal(channel.drain(queue), list(DELIVERED), "order")


# --- requeue --------------------------------------------------------------------------------


@case("PRIO-04", says="requeued in any order, each returns to its place within its level")
def requeue(stage: Stage) -> None:
    channel, queue = _ready(stage, (1, 3, 3, 1, 3))
    tags = {event.body: event.tag for event in (channel.get(queue, no_ack=False) for _ in range(4))}
    for body in (b"0", b"4", b"1", b"2"):
        channel.nack(tags[body])
    channel.holds(queue, 5)
    got = [channel.get(queue) for _ in range(5)]
    equal([event.body for event in got], [b"1", b"2", b"4", b"0", b"3"], "order")
    equal([event.redelivered for event in got], [True] * 4 + [False], "redelivered bits")


@case("PRIO-04", says="a requeued message does not overtake a higher level")
def requeued_stays_low(stage: Stage) -> None:
    channel, queue = _ready(stage, (1,))
    tag = channel.get(queue, no_ack=False).tag
    channel.publish("", queue, "higher", priority=2)
    channel.publish("", queue, "same", priority=1)
    channel.holds(queue, 2)
    channel.nack(tag)
    channel.holds(queue, 3)
    equal(channel.drain(queue), ["higher", "0", "same"], "order")


@case("PRIO-04", says="a channel that ends puts all back into their levels")
def requeue_by_close(stage: Stage) -> None:
    channel, queue = _ready(stage, PUBLISHED)
    other = stage.channel()
    other.consume(queue)
    other.deliveries(7)
    other.close()
    channel.holds(queue, 7)
    equal(channel.drain(queue), list(DELIVERED), "order")


@case("PRIO-05", says="what is in a consumer's window is not overtaken")
def window_is_not_overtaken(stage: Stage) -> None:
    channel, queue = _ready(stage, (1, 1, 1))
    channel.call("basic.qos", prefetch_count=2)
    channel.consume(queue)
    channel.publish("", queue, "high", priority=5)
    channel.sync()
    first, second = channel.deliveries(2)
    equal([first.body, second.body], [b"0", b"1"], "window")
    channel.ack(first.tag)
    channel.ack(second.tag)
    equal(channel.bodies(2), ["high", "2"], "after it")


# --- with everything else -------------------------------------------------------------------


@case("PRIO-06", says="counts, purge and delete work over all levels")
def counts(stage: Stage) -> None:
    channel, queue = _ready(stage, (0, 1, 2, 3, 4, 5))
    equal(channel.get(queue).number("message_count"), 5, "left after get")
    equal(channel.call("queue.purge", queue=queue).number("message_count"), 5, "purged")
    for level in (5, 0):
        channel.publish("", queue, "x", priority=level)
    channel.holds(queue, 2)
    text = f"PRECONDITION_FAILED - {stage.the_queue(queue)} not empty"
    channel.soft_again(406, text, "queue.delete", queue=queue, if_empty=True)
    equal(channel.call("queue.delete", queue=queue).number("message_count"), 2, "deleted")


@case("PRIO-06", says="a TTL of the queue ends messages of all levels")
def expiry(stage: Stage) -> None:
    channel = stage.channel()
    arguments: Table = {"x-max-priority": 3, "x-message-ttl": 400}
    source, target = mortal(stage, channel, arguments)
    for level in (0, 3, 1, 2, 0):
        channel.publish("", source, str(level), priority=level)
    channel.holds(target, 5)
    equal(sorted(channel.drain(target)), ["0", "0", "1", "2", "3"], "dead letters")
    channel.holds(source, 0)


@case("PRIO-06", says="an expired low one is not delivered when its turn comes")
def expired_low(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-max-priority": 3})
    channel.publish("", source, "high", priority=3, expiration=str(NEVER_MS))
    channel.publish("", source, "low", priority=0, expiration=str(SHORT_MS))
    channel.sync()
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(source)
    event = channel.deliver()
    equal(event.body, b"high", "delivery")
    equal(fetch(channel, target).body, b"low", "dead letter")
    channel.ack(event.tag)
    channel.quiet("basic.deliver", seconds=0.1)


@case("PRIO-06", says="dead letters keep their priority and compete by it in the target")
def dead_letters_by_priority(stage: Stage) -> None:
    channel = stage.channel()
    target = stage.queue(channel, arguments={"x-max-priority": 5})
    lead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    source = stage.queue(channel, arguments={"x-max-length": 0, **lead})
    for level in (1, 5, 3):
        channel.publish("", source, str(level), priority=level)
    channel.holds(target, 3)
    equal(channel.drain(target), ["5", "3", "1"], "order in the target")


@case("PRIO-07", says="x-max-priority on a quorum-type queue is soft 406")
def not_for_quorum(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name()
    text = (
        f"PRECONDITION_FAILED - invalid arg 'x-max-priority' for {stage.the_queue(queue)} "
        "of queue type rabbit_quorum_queue"
    )
    arguments: Table = {"x-queue-type": "quorum", "x-max-priority": 5}
    channel.soft_again(406, text, "queue.declare", queue=queue, durable=True, arguments=arguments)


def _quorum(stage: Stage, levels: Sequence[int | None]) -> tuple[Channel, str]:
    channel = stage.channel()
    queue = stage.queue(channel, durable=True, arguments={"x-queue-type": "quorum"})
    for at, level in enumerate(levels):
        _publish(channel, queue, str(at), level)
    channel.holds(queue, len(levels))
    return channel, queue


@case("PRIO-07", says="quorum-type queues have levels 0 to 31, absent is 4", mark="≡4")
def quorum_levels(stage: Stage) -> None:
    channel, queue = _quorum(stage, (0, 4, None, 5, 31, 40, 4, 3))
    equal(channel.drain(queue), ["4", "5", "3", "1", "2", "6", "7", "0"], "order")


@case("PRIO-07", says="requeued ones come first there, in order of return", mark="≡4")
def quorum_requeue(stage: Stage) -> None:
    channel, queue = _quorum(stage, (1, 9, 1))
    events = [channel.get(queue, no_ack=False) for _ in range(3)]
    equal([event.body for event in events], [b"1", b"0", b"2"], "order")
    channel.publish("", queue, "new", priority=31)
    for at in (2, 0, 1):
        channel.nack(events[at].tag)
    channel.holds(queue, 4)
    equal(channel.drain(queue), ["2", "1", "0", "new"], "order after the requeue")


def _starved(stage: Stage) -> None:
    channel, queue = _ready(stage, (0, 0, 1))
    for number in range(50):
        channel.publish("", queue, f"high {number}", priority=5)
        channel.holds(queue, 4)
        equal(channel.get(queue).body.decode(), f"high {number}", "get")
    equal(channel.drain(queue), ["2", "0", "1"], "the starved ones")


case("PRIO-08", says="strict: a stream of high ones starves the low ones")(partial(_starved))
