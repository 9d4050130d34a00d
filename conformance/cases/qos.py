"""Section QOS: prefetch."""

from __future__ import annotations

from functools import partial

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage

SOME = [str(number) for number in range(1, 11)]
OTHERS = [str(number) for number in range(11, 21)]


def qos(channel: Channel, count: int, *, whole: bool = False, size: int = 0) -> None:
    """basic.qos; `whole` means global=1, the whole channel."""
    channel.call("basic.qos", prefetch_count=count, prefetch_size=size, global_=whole)


def received(channel: Channel, wanted: list[str]) -> list[int]:
    """These bodies and no others must come; their tags."""
    events = channel.deliveries(len(wanted))
    equal([event.body.decode() for event in events], wanted, "deliveries")
    channel.quiet("basic.deliver")
    return [event.tag for event in events]


def loaded(stage: Stage, channel: Channel, bodies: list[str]) -> str:
    """A queue with these messages."""
    queue = stage.queue(channel)
    stage.load(channel, queue, *bodies)
    return queue


@case("QOS-01", says="qos is answered; 0 means no limit")
def zero_is_unlimited(stage: Stage) -> None:
    channel = stage.channel()
    queue = loaded(stage, channel, SOME)
    qos(channel, 2)
    qos(channel, 0)
    channel.consume(queue)
    received(channel, SOME)


@case("QOS-02", says="global=0: a limit for each consumer started afterwards, separately")
def per_consumer(stage: Stage) -> None:
    channel = stage.channel()
    queue = loaded(stage, channel, SOME)
    qos(channel, 2)
    channel.consume(queue)
    received(channel, ["1", "2"])
    qos(channel, 3)
    channel.consume(queue)
    received(channel, ["3", "4", "5"])


@case("QOS-02", says="global=1: a limit for all consumers of the channel, present and future")
def per_channel(stage: Stage) -> None:
    channel = stage.channel()
    first, second = loaded(stage, channel, SOME), loaded(stage, channel, OTHERS)
    qos(channel, 3, whole=True)
    channel.consume(first)
    received(channel, ["1", "2", "3"])
    channel.consume(second)
    channel.quiet("basic.deliver")


@case("QOS-02", says="global=1 does not reach over to other channels")
def other_channels(stage: Stage) -> None:
    connection = stage.connect()
    first, second = connection.channel(1), connection.channel(2)
    qos(first, 1, whole=True)
    queue = loaded(stage, second, ["1", "2", "3"])
    second.consume(queue)
    received(second, ["1", "2", "3"])


@case("QOS-04", says="per consumer 3, channel 5: 1, 2, 3 and 11, 12, never more than 5 together")
def both_limits(stage: Stage) -> None:
    channel = stage.channel()
    first, second = loaded(stage, channel, SOME), loaded(stage, channel, OTHERS)
    qos(channel, 3)
    qos(channel, 5, whole=True)
    channel.consume(first)
    received(channel, ["1", "2", "3"])
    channel.consume(second)
    received(channel, ["11", "12"])


@case("QOS-03", says="the order of the two calls does not matter", mark="≠")
def both_limits_reversed(stage: Stage) -> None:
    channel = stage.channel()
    first, second = loaded(stage, channel, SOME), loaded(stage, channel, OTHERS)
    qos(channel, 5, whole=True)
    qos(channel, 3)
    channel.consume(first)
    received(channel, ["1", "2", "3"])
    channel.consume(second)
    received(channel, ["11", "12"])


@case("QOS-05", says="global=0 leaves existing consumers as they are")
def existing_consumers(stage: Stage) -> None:
    channel = stage.channel()
    queue = loaded(stage, channel, SOME)
    qos(channel, 2)
    channel.consume(queue)
    received(channel, ["1", "2"])
    qos(channel, 5)
    channel.quiet("basic.deliver")


@case("QOS-06", says="global=1 raised: more deliveries at once")
def raised(stage: Stage) -> None:
    channel = stage.channel()
    queue = loaded(stage, channel, SOME)
    qos(channel, 1, whole=True)
    channel.consume(queue)
    received(channel, ["1"])
    qos(channel, 3, whole=True)
    received(channel, ["2", "3"])
    qos(channel, 0, whole=True)
    received(channel, SOME[3:])


@case("QOS-06", says="global=1 lowered: nothing until enough is settled, nothing is requeued")
def lowered(stage: Stage) -> None:
    channel, watcher = stage.channel(), stage.channel()
    queue = loaded(stage, channel, SOME)
    qos(channel, 4, whole=True)
    channel.consume(queue)
    tags = received(channel, SOME[:4])
    qos(channel, 2, whole=True)
    channel.ack(tags[0])
    channel.ack(tags[1])
    channel.quiet("basic.deliver")
    equal(watcher.count(queue), 6, "ready messages")
    channel.ack(tags[2])
    received(channel, ["5"])


@case("QOS-07", says="gets do not count")
def gets_do_not_count(stage: Stage) -> None:
    channel = stage.channel()
    queue = loaded(stage, channel, SOME)
    qos(channel, 2, whole=True)
    channel.consume(queue)
    received(channel, ["1", "2"])
    equal(channel.get(queue, no_ack=False).body, b"3", "get at the limit")
    channel.ack(1)
    received(channel, ["4"])


@case("QOS-07", says="gets outstanding when global=1 is called do not count", mark="≠")
def earlier_gets_do_not_count(stage: Stage) -> None:
    channel = stage.channel()
    queue = loaded(stage, channel, SOME)
    for _ in range(2):
        channel.get(queue, no_ack=False)
    qos(channel, 2, whole=True)
    channel.consume(queue)
    received(channel, ["3", "4"])


def _no_ack_ignores(whole: bool, stage: Stage) -> None:
    channel = stage.channel()
    queue = loaded(stage, channel, SOME)
    qos(channel, 1, whole=whole)
    channel.consume(queue, no_ack=True)
    received(channel, SOME)


for _whole in (False, True):
    case("QOS-08", says=f"a no-ack consumer fills up no limit of global={int(_whole)}")(
        partial(_no_ack_ignores, _whole)
    )


@case("QOS-08", says="a no-ack consumer gets nothing while others fill the channel's limit")
def no_ack_waits(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    acked, unacked = stage.queue(channel), stage.queue(channel)
    qos(channel, 1, whole=True)
    channel.consume(acked)
    channel.consume(unacked, no_ack=True)
    other.publish("", unacked, "1")
    received(channel, ["1"])
    other.publish("", acked, "2")
    (tag,) = received(channel, ["2"])
    other.publish("", unacked, "3")
    other.publish("", unacked, "4")
    channel.quiet("basic.deliver")
    channel.ack(tag)
    received(channel, ["3", "4"])


@case("QOS-14", says="room that comes back goes round the channel's consumers")
def room_goes_round(stage: Stage) -> None:
    channel = stage.channel()
    queues = [loaded(stage, channel, [str(number)] * 40) for number in range(3)]
    qos(channel, 1, whole=True)
    for queue in queues:
        channel.consume(queue)
    counts = {str(number): 0 for number in range(3)}
    for _ in range(60):
        event = channel.deliver()
        counts[event.body.decode()] += 1
        channel.ack(event.tag)
    check(min(counts.values()) >= 5, f"a queue starves: {counts}")


@case("QOS-09", says="settling frees room at once, a multiple one n slots")
def settling_frees(stage: Stage) -> None:
    channel = stage.channel()
    queue = loaded(stage, channel, SOME)
    qos(channel, 3)
    channel.consume(queue)
    tags = received(channel, ["1", "2", "3"])
    channel.ack(tags[1])
    received(channel, ["4"])
    channel.ack(0, multiple=True)
    tags = received(channel, ["5", "6", "7"])
    channel.nack(tags[0], requeue=False)
    received(channel, ["8"])
    channel.reject(tags[1], requeue=False)
    received(channel, ["9"])


@case("QOS-09", says="recover frees room, too")
def recover_frees(stage: Stage) -> None:
    channel = stage.channel()
    queue = loaded(stage, channel, SOME)
    qos(channel, 2)
    channel.consume(queue)
    received(channel, ["1", "2"])
    channel.call("basic.recover", requeue=True)
    received(channel, ["1", "2"])


@case("QOS-10", says="a cancelled consumer's deliveries still count toward the channel limit")
def cancelled_counts(stage: Stage) -> None:
    channel = stage.channel()
    first, second = loaded(stage, channel, SOME), loaded(stage, channel, OTHERS)
    qos(channel, 3, whole=True)
    tag = channel.consume(first)
    tags = received(channel, ["1", "2", "3"])
    channel.call("basic.cancel", consumer_tag=tag)
    channel.consume(second)
    channel.quiet("basic.deliver")
    channel.ack(tags[0])
    received(channel, ["11"])


@case("QOS-12", says="65535 is the largest count")
def largest_count(stage: Stage) -> None:
    channel = stage.channel()
    queue = loaded(stage, channel, SOME)
    qos(channel, 65535)
    qos(channel, 65535, whole=True)
    channel.consume(queue)
    received(channel, SOME)


# --- prefetch_size ----------------------------------------------------------------------------


def _sized(stage: Stage, *sizes: int, whole: bool = False, count: int = 0) -> Channel:
    """A channel with prefetch_size 100, consuming messages of these sizes."""
    channel = stage.channel()
    queue = loaded(stage, channel, ["x" * size for size in sizes])
    qos(channel, count, size=100, whole=whole)
    channel.consume(queue)
    return channel


def _sizes(channel: Channel, wanted: list[int]) -> list[int]:
    return received(channel, ["x" * size for size in wanted])


for _whole in (False, True):

    def _by_size(whole: bool, stage: Stage) -> None:
        channel = _sized(stage, 40, 40, 40, 20, whole=whole)
        tags = _sizes(channel, [40, 40])
        channel.ack(tags[0])
        _sizes(channel, [40, 20])

    case("QOS-20", says=f"prefetch_size limits outstanding octets, global={int(_whole)}", mark="+")(
        partial(_by_size, _whole)
    )


@case("QOS-21", says="a message larger than the window is delivered alone", mark="+")
def alone(stage: Stage) -> None:
    channel = _sized(stage, 500, 1)
    tags = _sizes(channel, [500])
    channel.ack(tags[0])
    _sizes(channel, [1])


@case("QOS-21", says="the window may be filled exactly", mark="+")
def exactly(stage: Stage) -> None:
    _sizes(_sized(stage, 60, 40, 1), [60, 40])


@case("QOS-22", says="a too large head is not skipped; another consumer may get it", mark="+")
def no_skipping(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = loaded(stage, channel, ["x" * size for size in (60, 70, 10)])
    qos(channel, 0, size=100)
    channel.consume(queue)
    _sizes(channel, [60])
    other.consume(queue)
    received(other, ["x" * 70, "x" * 10])


@case("QOS-23", says="prefetch_size: ignored with no-ack, and count applies as well", mark="+")
def size_and_count(stage: Stage) -> None:
    _sizes(_sized(stage, 10, 10, 10, count=2), [10, 10])
    channel = stage.channel()
    queue = loaded(stage, channel, ["x" * 90, "x" * 90])
    qos(channel, 0, size=100)
    channel.consume(queue, no_ack=True)
    _sizes(channel, [90, 90])
