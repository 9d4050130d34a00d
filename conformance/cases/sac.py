"""Section CONS 11.2: priorities of consumers that come and go, and single active consumers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Table

SINGLE: Final[Table] = {"x-single-active-consumer": True}


def _single(
    stage: Stage, channel: Channel, *, exclusive: bool = False, auto_delete: bool = False
) -> str:
    return stage.queue(channel, arguments=SINGLE, exclusive=exclusive, auto_delete=auto_delete)


def _is_active(writer: Channel, queue: str, active: Channel, others: Sequence[Channel]) -> None:
    """Fail unless this one gets the next messages, and the others none."""
    for number in range(3):
        writer.publish("", queue, str(number))
        event = active.deliver()
        equal(event.body.decode(), str(number), "delivery")
        active.ack(event.tag)
    active.sync()
    for other in others:
        other.sync()
        equal([event.name for event in other.connection.inbox(1)], [], "at a waiting one")


# --- consumer priority ----------------------------------------------------------------------


@case("CONS-20", says="equal priorities take turns, the lower one waits")
def turns_among_equals(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for tag, level in (("low", 1), ("a", 7), ("b", 7)):
        channel.consume(queue, tag=tag, no_ack=True, arguments={"x-priority": level})
    tags = []
    for number in range(6):
        channel.publish("", queue, str(number))
        tags.append(channel.deliver().text("consumer_tag"))
    equal("".join(tags), "ababab", "consumers")


@case("CONS-20", says="a higher one that comes later takes over, until it is cancelled")
def higher_comes_later(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue, tag="old", no_ack=True)
    tags = []
    for step in ("before", "with", "after"):
        if step == "with":
            channel.consume(queue, tag="new", no_ack=True, arguments={"x-priority": 1})
        elif step == "after":
            channel.call("basic.cancel", consumer_tag="new")
        for _ in range(2):
            channel.publish("", queue, step)
            tags.append(channel.deliver().text("consumer_tag"))
    equal(tags, ["old", "old", "new", "new", "old", "old"], "consumers")


@case("CONS-20", says="a requeued message goes to the higher one as soon as it can take it")
def requeued_to_higher(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue, tag="high", arguments={"x-priority": 5})
    channel.consume(queue, tag="low", arguments={"x-priority": -5})
    for body in ("a", "b"):
        channel.publish("", queue, body)
    events = {event.text("consumer_tag"): event for event in channel.deliveries(2)}
    channel.ack(events["high"].tag)
    channel.sync()
    channel.nack(events["low"].tag)
    event = channel.deliver()
    equal((event.text("consumer_tag"), event.body), ("high", b"b"), "redelivery")


# --- single active consumer -----------------------------------------------------------------


@case("CONS-30", says="the first consumer alone is served, also while it can take no more")
def first_alone(stage: Stage) -> None:
    active, waiting, writer = (stage.channel() for _ in range(3))
    queue = _single(stage, writer)
    active.call("basic.qos", prefetch_count=2)
    active.consume(queue)
    waiting.consume(queue)
    for number in range(4):
        writer.publish("", queue, str(number))
    writer.holds(queue, 2)
    equal(active.bodies(2), ["0", "1"], "deliveries to the active one")
    waiting.quiet("basic.deliver", seconds=0.2)
    active.ack(2, multiple=True)
    equal(active.bodies(2), ["2", "3"], "further deliveries to the active one")


@case("CONS-30", says="all consumers count, the waiting ones too")
def all_count(stage: Stage) -> None:
    channel = stage.channel()
    queue = _single(stage, channel)
    for _ in range(3):
        channel.consume(queue)
    reply = channel.call("queue.declare", queue=queue, passive=True)
    equal(reply.number("consumer_count"), 3, "consumers")


def _ends(active: Channel, tag: str, how: str) -> None:
    if how == "cancelled":
        active.call("basic.cancel", consumer_tag=tag)
    elif how == "closing its channel":
        active.close()
    elif how == "closing its connection":
        active.connection.close()
    else:
        active.connection.drop()


def _in_order(how: str, stage: Stage) -> None:
    writer = stage.channel()
    queue = _single(stage, writer)
    line = [stage.channel() for _ in range(4)]
    tags = [channel.consume(queue) for channel in line]
    while line:
        active, *others = line
        _is_active(writer, queue, active, others)
        _ends(active, tags.pop(0), how)
        line = others


for _how in ("cancelled", "closing its channel", "closing its connection", "losing its socket"):
    case("CONS-30", says=f"the active one {_how}: the next in order of registration takes over")(
        partial(_in_order, _how)
    )


@case("CONS-30", says="the highest priority takes over first, then the oldest")
def highest_takes_over(stage: Stage) -> None:
    writer = stage.channel()
    queue = _single(stage, writer)
    line = {level: stage.channel() for level in (0, 1, 9, 5)}
    tags = {
        level: channel.consume(queue, arguments={"x-priority": level})
        for level, channel in line.items()
    }
    for level in (0, 9, 5, 1):
        active = line.pop(level)
        _is_active(writer, queue, active, list(line.values()))
        active.call("basic.cancel", consumer_tag=tags[level])


@case("CONS-30", says="a waiting one that goes away leaves the active one alone")
def waiting_one_leaves(stage: Stage) -> None:
    active, waiting, last, writer = (stage.channel() for _ in range(4))
    queue = _single(stage, writer)
    tag = active.consume(queue)
    waiting.consume(queue)
    last.consume(queue)
    waiting.connection.close()
    _is_active(writer, queue, active, [last])
    active.call("basic.cancel", consumer_tag=tag)
    _is_active(writer, queue, last, [active])


@case("CONS-30", says="two consumers of one channel take turns at being the active one")
def on_one_channel(stage: Stage) -> None:
    channel = stage.channel()
    queue = _single(stage, channel)
    tags = [channel.consume(queue, no_ack=True) for _ in range(2)]
    for tag in tags:
        channel.publish("", queue, "x")
        equal(channel.deliver().text("consumer_tag"), tag, "consumer")
        channel.call("basic.cancel", consumer_tag=tag)


@case(
    "CONS-30",
    says="a backlog goes to the first consumer, the rest to its successor",
    referee_reason="C-64: serves the new active one only when the queue is next used",
)
def backlog(stage: Stage) -> None:
    writer, first, second = (stage.channel() for _ in range(3))
    queue = _single(stage, writer)
    stage.load(writer, queue, *map(str, range(6)))
    first.call("basic.qos", prefetch_count=2)
    tag = first.consume(queue)
    second.consume(queue)
    equal(first.bodies(2), ["0", "1"], "the first one's")
    first.call("basic.cancel", consumer_tag=tag)
    equal(second.bodies(4), ["2", "3", "4", "5"], "the second one's")


@case("CONS-05", says="an exclusive consumer on a single-active-consumer queue is soft 403")
def exclusive_consumer(stage: Stage) -> None:
    channel = stage.channel()
    queue = _single(stage, channel)
    text = f"ACCESS_REFUSED - {stage.the_queue(queue)} in exclusive use"
    with channel.soft(403, text, "basic.consume"):
        channel.consume(queue, exclusive=True)


@case("QUEUE-50", says="an exclusive queue may have a single active consumer")
def exclusive_queue(stage: Stage) -> None:
    connection = stage.connect()
    one, two = connection.channel(1), connection.channel(2)
    queue = _single(stage, one, exclusive=True)
    tag = one.consume(queue)
    two.consume(queue)
    one.publish("", queue, "a")
    equal(one.bodies(1), ["a"], "delivery to the first")
    one.call("basic.cancel", consumer_tag=tag)
    one.publish("", queue, "b")
    equal(two.bodies(1), ["b"], "delivery to the second")


@case("QUEUE-50", says="auto-delete: gone with the last consumer, not with the active one")
def auto_delete(stage: Stage) -> None:
    one, two = stage.channel(), stage.channel()
    queue = _single(stage, one, auto_delete=True)
    tags = one.consume(queue), two.consume(queue)
    one.call("basic.cancel", consumer_tag=tags[0])
    one.publish("", queue, "x")
    equal(two.bodies(1), ["x"], "delivery")
    two.call("basic.cancel", consumer_tag=tags[1])
    one.soft_again(404, None, "queue.declare", queue=queue, passive=True)


@case("QUEUE-50", says="x-single-active-consumer false is a queue like any other")
def switched_off(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-single-active-consumer": False})
    for tag in "ab":
        channel.consume(queue, tag=tag, no_ack=True)
    for _ in range(2):
        channel.publish("", queue, "x")
    tags = sorted(event.text("consumer_tag") for event in channel.deliveries(2))
    equal(tags, ["a", "b"], "consumers")


# --- what the former active one still holds -------------------------------------------------


@case("CONS-31", says="deliveries of a cancelled active one stay with it, new ones go to the next")
def outstanding_stay(stage: Stage) -> None:
    first, second, writer = (stage.channel() for _ in range(3))
    queue = _single(stage, writer)
    tag = first.consume(queue)
    second.consume(queue)
    for body in ("a", "b"):
        writer.publish("", queue, body)
    tags = [event.tag for event in first.deliveries(2)]
    first.call("basic.cancel", consumer_tag=tag)
    writer.publish("", queue, "c")
    equal(second.bodies(1), ["c"], "delivery to the new active one")
    first.ack(tags[0])
    first.nack(tags[1])
    event = second.deliver()
    equal((event.body, event.redelivered), (b"b", True), "what the former one requeued")


@case("CONS-31", says="its channel ends: what it held is requeued to the new active one")
def outstanding_are_requeued(stage: Stage) -> None:
    first, second, writer = (stage.channel() for _ in range(3))
    queue = _single(stage, writer)
    tag = first.consume(queue)
    second.consume(queue)
    for body in ("a", "b"):
        writer.publish("", queue, body)
    first.deliveries(2)
    first.call("basic.cancel", consumer_tag=tag)
    writer.publish("", queue, "c")
    equal(second.bodies(1), ["c"], "delivery to the new active one")
    first.close()
    got = [(event.body, event.redelivered) for event in second.deliveries(2)]
    equal(got, [(b"a", True), (b"b", True)], "requeued to the new active one")


@case("CONS-31", says="an active one that dies: all it held goes to the next, before the rest")
def dies_with_window(stage: Stage) -> None:
    first, second, writer = (stage.channel() for _ in range(3))
    queue = _single(stage, writer)
    first.call("basic.qos", prefetch_count=3)
    first.consume(queue)
    second.consume(queue)
    for number in range(6):
        writer.publish("", queue, str(number))
    first.deliveries(3)
    first.connection.drop()
    events = second.deliveries(6)
    equal([event.body.decode() for event in events], [str(n) for n in range(6)], "order")
    equal([event.redelivered for event in events], [True] * 3 + [False] * 3, "redelivered bits")


# --- who may displace it, and get -----------------------------------------------------------


@case("CONS-32", says="a later consumer of higher priority does not displace the active one")
def no_displacement(stage: Stage) -> None:
    active, higher, writer = (stage.channel() for _ in range(3))
    queue = _single(stage, writer)
    active.consume(queue)
    higher.consume(queue, arguments={"x-priority": 10})
    _is_active(writer, queue, active, [higher])


@case("CONS-32", says="on a quorum-type queue it does, once the active one has settled", mark="≡4")
def quorum_displacement(stage: Stage) -> None:
    active, higher, writer = (stage.channel() for _ in range(3))
    arguments: Table = {"x-queue-type": "quorum", **SINGLE}
    queue = stage.queue(writer, arguments=arguments, durable=True)
    active.consume(queue)
    writer.publish("", queue, "before")
    tag = active.deliver().tag
    higher.consume(queue, arguments={"x-priority": 10})
    writer.publish("", queue, "while it holds one")
    higher.quiet("basic.deliver", seconds=0.2)
    active.ack(tag)
    equal(higher.bodies(1), ["while it holds one"], "delivery to the higher one")
    writer.publish("", queue, "after")
    equal(higher.bodies(1), ["after"], "further delivery to the higher one")
    active.quiet("basic.deliver", seconds=0.1)


@case("CONS-33", says="get works on a classic queue, beside its active consumer, too")
def get_beside_active(stage: Stage) -> None:
    channel, reader = stage.channel(), stage.channel()
    queue = _single(stage, channel)
    stage.load(channel, queue, "a", "b", "c")
    equal(channel.get(queue).body, b"a", "get without a consumer")
    reader.call("basic.qos", prefetch_count=1)
    reader.consume(queue)
    reader.deliver()
    equal(channel.get(queue).body, b"c", "get beside the active consumer")


@case("CONS-33", says="get on a quorum-type queue with a single active consumer is 405", mark="≡4")
def quorum_get(stage: Stage) -> None:
    channel = stage.channel()
    arguments: Table = {"x-queue-type": "quorum", **SINGLE}
    queue = stage.queue(channel, arguments=arguments, durable=True)
    text = (
        f"RESOURCE_LOCKED - cannot obtain access to locked {stage.the_queue(queue)}. basic.get "
        "operations are not supported by quorum queues with single active consumer"
    )
    with channel.soft(405, text, "basic.get"):
        channel.get(queue)
