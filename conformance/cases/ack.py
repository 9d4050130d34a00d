"""Section ACK: delivery tags, settling, requeue to the original place, recover."""

from __future__ import annotations

from functools import partial

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.events import Event
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage

UNKNOWN = "PRECONDITION_FAILED - unknown delivery tag {}"


def taken(stage: Stage, *bodies: str) -> tuple[Channel, str, list[Event]]:
    """A channel that has consumed these messages without settling them; its consumer is gone."""
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, *bodies)
    tag = channel.consume(queue)
    events = channel.deliveries(len(bodies))
    channel.call("basic.cancel", consumer_tag=tag)
    return channel, queue, events


@case("ACK-01", says="tags start at 1 and count deliveries and get-oks of the channel")
def tags_count(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a", "b", "c")
    tags = [channel.get(queue).tag, channel.get(queue, no_ack=False).tag]
    channel.consume(queue, no_ack=True)
    tags.append(channel.deliver().tag)
    channel.publish("", queue, "d")
    tags.append(channel.deliver().tag)
    equal(tags, [1, 2, 3, 4], "tags")


@case("ACK-01", says="tags are counted per channel")
def tags_per_channel(stage: Stage) -> None:
    connection = stage.connect()
    for number in (1, 2):
        channel = connection.channel(number)
        queue = stage.queue(channel)
        stage.load(channel, queue, "a")
        equal(channel.get(queue).tag, 1, f"tag on channel {number}")


@case("ACK-02", says="a no-ack delivery is gone and cannot be settled")
def no_ack(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a", "b")
    got = channel.get(queue, no_ack=True)
    with channel.soft(406, UNKNOWN.format(got.tag), "basic.ack"):
        channel.ack(got.tag)
    channel.reopen()
    channel.consume(queue, no_ack=True)
    event = channel.deliver()
    with channel.soft(406, UNKNOWN.format(event.tag), "basic.nack"):
        channel.nack(event.tag)
    channel.reopen()
    equal(channel.count(queue), 0, "messages that came back")


@case("ACK-03", says="a single ack settles that delivery only")
def single_ack(stage: Stage) -> None:
    channel, queue, _ = taken(stage, "a", "b", "c")
    channel.ack(2)
    channel.close()
    channel.reopen()
    channel.holds(queue, 2)
    equal(channel.drain(queue), ["a", "c"], "messages that came back")


@case("ACK-03", says="a multiple ack settles all up to the tag, over consumers and gets")
def multiple_ack(stage: Stage) -> None:
    channel = stage.channel()
    first, second = stage.queue(channel), stage.queue(channel)
    stage.load(channel, first, "a", "b")
    stage.load(channel, second, "c", "d", "e")
    channel.get(first, no_ack=False)
    channel.consume(second)
    channel.deliveries(3)
    channel.get(first, no_ack=False)
    channel.ack(3, multiple=True)
    channel.close()
    channel.reopen()
    channel.holds(second, 1)
    channel.holds(first, 1)
    equal(channel.drain(first) + channel.drain(second), ["b", "e"], "messages that came back")


def _everything(verb: str, stage: Stage) -> None:
    channel, queue, _ = taken(stage, "a", "b", "c")
    if verb == "ack":
        channel.ack(0, multiple=True)
    else:
        channel.nack(0, multiple=True, requeue=False)
    channel.sync()
    channel.close()
    channel.reopen()
    equal(channel.count(queue), 0, "messages that came back")


for _verb in ("ack", "nack"):
    case("ACK-04", says=f"{_verb} of tag 0 with multiple settles everything outstanding")(
        partial(_everything, _verb)
    )


@case("ACK-04", says="tag 0 with multiple and nothing outstanding is a no-op")
def nothing_outstanding(stage: Stage) -> None:
    channel = stage.channel()
    channel.ack(0, multiple=True)
    channel.nack(0, multiple=True)
    channel.sync()


def _unknown(name: str, tag: int, multiple: bool, stage: Stage) -> None:
    channel, queue, _ = taken(stage, "a")
    with channel.soft(406, UNKNOWN.format(tag), name):
        if name == "basic.reject":
            channel.reject(tag)
        else:
            channel.send(name, delivery_tag=tag, multiple=multiple)
    channel.reopen()
    channel.holds(queue, 1)


for _name, _tag, _multiple, _what in (
    ("basic.ack", 0, False, "tag 0"),
    ("basic.nack", 0, False, "tag 0"),
    ("basic.reject", 0, False, "tag 0"),
    ("basic.ack", 2, False, "a tag never delivered"),
    ("basic.nack", 2, False, "a tag never delivered"),
    ("basic.reject", 2, False, "a tag never delivered"),
    ("basic.ack", 2, True, "a multiple whose tag is not outstanding itself"),
    ("basic.nack", 2, True, "a multiple whose tag is not outstanding itself"),
    ("basic.ack", 2**63, False, "a huge tag"),
):
    case("ACK-05", says=f"{_name} of {_what} is soft 406")(
        partial(_unknown, _name, _tag, _multiple)
    )


@case("ACK-05", says="settling a tag twice is soft 406, with multiple too")
def settled_twice(stage: Stage) -> None:
    for multiple in (False, True):
        channel, _, _ = taken(stage, "a", "b", "c")
        channel.ack(2)
        with channel.soft(406, UNKNOWN.format(2), "basic.ack"):
            channel.ack(2, multiple=multiple)


@case("ACK-05", says="a tag of another channel is unknown")
def tag_of_other_channel(stage: Stage) -> None:
    channel, _, events = taken(stage, "a")
    other = channel.connection.channel(2)
    with other.soft(406, UNKNOWN.format(events[0].tag), "basic.ack"):
        other.ack(events[0].tag)
    channel.ack(events[0].tag)
    channel.sync()


def _discarded(verb: str, stage: Stage) -> None:
    channel, queue, _ = taken(stage, "a", "b")
    if verb == "reject":
        channel.reject(1, requeue=False)
        channel.reject(2, requeue=False)
    else:
        channel.nack(2, multiple=True, requeue=False)
    channel.sync()
    channel.close()
    channel.reopen()
    equal(channel.count(queue), 0, "messages that came back")


def _requeued(verb: str, stage: Stage) -> None:
    channel, queue, _ = taken(stage, "a", "b", "c")
    if verb == "reject":
        channel.reject(2, requeue=True)
        channel.reject(1, requeue=True)
    else:
        channel.nack(2, multiple=True, requeue=True)
    channel.holds(queue, 2)
    got = [channel.get(queue), channel.get(queue)]
    equal([event.body for event in got], [b"a", b"b"], "bodies")
    equal([event.redelivered for event in got], [True, True], "redelivered bits")


for _verb in ("reject", "nack"):
    case("ACK-06", says=f"{_verb} without requeue discards")(partial(_discarded, _verb))
    case("ACK-06", says=f"{_verb} with requeue puts back")(partial(_requeued, _verb))


@case("ACK-10", says="requeued in the order 1, 3, 2 they come back as 1, 2, 3, before younger ones")
def original_position(stage: Stage) -> None:
    channel, queue, _ = taken(stage, "a", "b", "c")
    stage.load(channel, queue, "d")
    for tag in (1, 3, 2):
        channel.reject(tag)
    channel.holds(queue, 4)
    equal(channel.drain(queue), ["a", "b", "c", "d"], "order")


@case("ACK-10", says="one message returns between its neighbours")
def between_neighbours(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a", "b", "c", "d", "e")
    for _ in range(4):
        channel.get(queue, no_ack=False)
    for tag in (4, 1, 3):
        channel.nack(tag)
        channel.sync()
    channel.holds(queue, 4)
    equal(channel.drain(queue), ["a", "c", "d", "e"], "order")


@case("ACK-11", says="a requeued message may go to the same consumer at once")
def to_the_same_consumer(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue)
    channel.publish("", queue, "a")
    for wanted in (False, True, True):
        event = channel.deliver()
        equal(event.redelivered, wanted, "redelivered bit")
        channel.reject(event.tag)


@case("ACK-12", says="redelivered stays set on every later delivery, per queue")
def redelivered_stays(stage: Stage) -> None:
    channel, watcher = stage.channel(), stage.channel()
    exchange = stage.exchange(channel, "fanout")
    queue, other = stage.bound(channel, exchange), stage.bound(channel, exchange)
    channel.publish(exchange, "", "a")
    channel.holds(queue, 1)
    channel.reject(channel.get(queue, no_ack=False).tag)
    watcher.holds(queue, 1)
    for reader in (watcher, channel):
        reader.holds(queue, 1)
        event = reader.get(queue, no_ack=False)
        check(event.redelivered, "not marked as redelivered")
        reader.nack(event.tag)
    channel.holds(other, 1)
    check(not channel.get(other).redelivered, "marked in the queue that never delivered it")


@case("ACK-20", says="recover requeues everything; recover-ok comes before the redeliveries")
def recover(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a", "b", "c")
    channel.consume(queue)
    channel.deliveries(3)
    channel.send("basic.recover", requeue=True)
    first = channel.wait("basic.recover_ok", "basic.deliver")
    equal(first.name, "basic.recover_ok", "first event")
    events = channel.deliveries(3)
    equal([event.body for event in events], [b"a", b"b", b"c"], "order")
    equal([event.tag for event in events], [4, 5, 6], "tags")
    check(all(event.redelivered for event in events), "not all are marked as redelivered")


@case("ACK-20", says="recover requeues gets, too; the old tags are dead")
def recover_gets(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a")
    old = channel.get(queue, no_ack=False).tag
    channel.call("basic.recover", requeue=True)
    channel.holds(queue, 1)
    with channel.soft(406, UNKNOWN.format(old), "basic.ack"):
        channel.ack(old)


@case("ACK-21", says="recover-async requeues without a reply")
def recover_async(stage: Stage) -> None:
    channel, queue, _ = taken(stage, "a", "b")
    channel.send("basic.recover_async", requeue=True)
    channel.holds(queue, 2)
    check(not channel.connection.inbox(1), "a reply came")


@case("ACK-22", says="recover without requeue sends again, same tag, redelivered set", mark="+")
def recover_in_place(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a", "b")
    channel.consume(queue)
    channel.deliveries(2)
    channel.ack(1)
    channel.send("basic.recover", requeue=False)
    first = channel.wait("basic.recover_ok", "basic.deliver")
    equal(first.name, "basic.recover_ok", "first event")
    event = channel.deliver()
    equal((event.tag, event.body, event.redelivered), (2, b"b", True), "redelivery")
    channel.quiet("basic.deliver", seconds=0.2)
    channel.ack(2)
    channel.sync()


@case("ACK-22", says="recover-async without requeue sends again without a reply", mark="+")
def recover_async_in_place(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a")
    channel.consume(queue)
    channel.deliver()
    channel.send("basic.recover_async", requeue=False)
    event = channel.deliver()
    equal((event.tag, event.redelivered), (1, True), "redelivery")
    channel.ack(1)
    channel.sync()
    check(not channel.connection.inbox(1), "a reply came")


@case("ACK-22", says="recover without requeue puts back gets and cancelled consumers'", mark="+")
def recover_without_consumer(stage: Stage) -> None:
    channel, queue, _ = taken(stage, "a", "b")
    channel.call("basic.recover", requeue=False)
    channel.holds(queue, 2)
    equal(channel.drain(queue), ["a", "b"], "messages that came back")


@case("ACK-40", says="the end of a channel requeues in order, ahead of what came later")
def channel_end(stage: Stage) -> None:
    channel, queue, _ = taken(stage, "a", "b", "c")
    watcher = stage.channel()
    stage.load(watcher, queue, "d")
    channel.ack(2)
    channel.close()
    watcher.holds(queue, 3)
    got = [watcher.get(queue) for _ in range(3)]
    equal([event.body for event in got], [b"a", b"c", b"d"], "order")
    equal([event.redelivered for event in got], [True, True, False], "redelivered bits")


@case("ACK-41", says="cancel does not requeue; outstanding deliveries can still be settled")
def cancel_keeps(stage: Stage) -> None:
    channel, queue, events = taken(stage, "a", "b")
    channel.sync()
    equal(channel.count(queue), 0, "messages that came back")
    channel.ack(events[0].tag)
    channel.nack(events[1].tag)
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["b"], "messages that came back")
