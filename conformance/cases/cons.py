"""Section CONS: consuming, cancelling, priorities, get, direct reply-to."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import partial

from vouchmq.conformance.case import case
from vouchmq.conformance.cases.queue import LOCKED
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import check, equal, within
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Typed


@case("CONS-01", says="deliveries come after consume-ok, which names the tag")
def consume_ok_first(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a")
    channel.send("basic.consume", queue=queue, consumer_tag="my tag €")
    first = channel.wait("basic.consume_ok", "basic.deliver")
    equal((first.name, first.text("consumer_tag")), ("basic.consume_ok", "my tag €"), "first event")
    equal(channel.deliver().text("consumer_tag"), "my tag €", "tag in deliver")


@case("CONS-01", says="an empty tag gets amq.ctag- and 22 base64url characters")
def generated_tag(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for _ in range(2):
        tag = channel.consume(queue)
        check(re.fullmatch(r"amq\.ctag-[A-Za-z0-9_-]{22}", tag) is not None, f"tag is {tag!r}")


@case("CONS-02", says="a tag in use on the same channel is hard 530")
def tag_in_use(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue, tag="t")
    text = "NOT_ALLOWED - attempt to reuse consumer tag 't'"
    with channel.connection.hard(530, text, "basic.consume"):
        channel.consume(queue, tag="t")


@case("CONS-02", says="a tag is free after cancel, and on another channel")
def tag_is_free(stage: Stage) -> None:
    connection = stage.connect()
    first, second = connection.channel(1), connection.channel(2)
    queue = stage.queue(first)
    for _ in range(2):
        first.consume(queue, tag="t")
        first.call("basic.cancel", consumer_tag="t")
    first.consume(queue, tag="t")
    second.consume(queue, tag="t")


@case("CONS-03", says="consuming from a missing queue is soft 404")
def missing_queue(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name()
    with channel.soft(404, f"NOT_FOUND - no {stage.the_queue(name)}", "basic.consume"):
        channel.consume(name)


@case("CONS-03", says="consuming from another connection's exclusive queue is soft 405")
def locked_queue(stage: Stage) -> None:
    owner, other = stage.channel(), stage.channel()
    queue = stage.queue(owner, exclusive=True)
    with other.soft(405, LOCKED.format(stage.the_queue(queue)), "basic.consume"):
        other.consume(queue)


@case("CONS-04", says="no-local is accepted and ignored")
def no_local(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue, no_local=True)
    channel.publish("", queue, "own")
    equal(channel.deliver().body, b"own", "own message")


def _exclusive(first_is_exclusive: bool, stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    tag = channel.consume(queue, exclusive=first_is_exclusive)
    text = f"ACCESS_REFUSED - {stage.the_queue(queue)} in exclusive use"
    with other.soft(403, text, "basic.consume"):
        other.consume(queue, exclusive=not first_is_exclusive)
    other.reopen()
    channel.call("basic.cancel", consumer_tag=tag)
    other.consume(queue, exclusive=not first_is_exclusive)


case("CONS-05", says="a second consumer beside an exclusive one is soft 403, until it is gone")(
    partial(_exclusive, True)
)
case("CONS-05", says="an exclusive consumer beside another one is soft 403, until it is gone")(
    partial(_exclusive, False)
)


@case("CONS-06", says="unknown consume arguments are ignored")
def unknown_arguments(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue, arguments={"x-mine": "anything", "more": [1]})


@case("CONS-08", says="cancel-ok names the tag, for an unknown tag, too")
def cancel(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    tag = channel.consume(queue)
    for one in (tag, tag, "never seen"):
        reply = channel.call("basic.cancel", consumer_tag=one)
        equal(reply.text("consumer_tag"), one, "tag")


@case("CONS-08", says="no delivery for a tag after cancel-ok")
def nothing_after_cancel(stage: Stage) -> None:
    channel, writer = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    tag = channel.consume(queue, no_ack=True)
    for number in range(300):
        writer.publish("", queue, str(number))
    channel.deliver()
    channel.call("basic.cancel", consumer_tag=tag)
    channel.connection.inbox(1).clear()
    writer.publish("", queue, "late")
    channel.quiet("basic.deliver")


@case(
    "CONS-08",
    says="consume and cancel pipelined: consume-ok, perhaps deliveries, cancel-ok",
    referee_reason="C-63: now and then crashes the channel: 541",
)
def pipelined_cancel(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a")
    channel.send("basic.consume", queue=queue, consumer_tag="t")
    channel.send("basic.cancel", consumer_tag="t")
    names = []
    while "basic.cancel_ok" not in names:
        event = channel.wait("basic.consume_ok", "basic.deliver", "basic.cancel_ok")
        names.append(event.name)
    equal((names[0], names[-1]), ("basic.consume_ok", "basic.cancel_ok"), "first and last")
    channel.quiet("basic.deliver")


@case("CONS-52", says="messages published before a cancel go to its consumer, not to the next")
def published_before_a_cancel(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue, tag="high", no_ack=True, arguments={"x-priority": 1})
    channel.consume(queue, tag="low", no_ack=True)
    for number in range(10):
        channel.publish("", queue, str(number))
    channel.send("basic.cancel", consumer_tag="high")
    channel.publish("", queue, "last")
    tags = [channel.deliver().text("consumer_tag") for _ in range(11)]
    equal(tags, ["high"] * 10 + ["low"], "consumers")


@case("CONS-09", says="deliver carries tag, delivery tag, redelivered, exchange and key")
def deliver_fields(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "topic")
    queue = stage.bound(channel, exchange, "a.#")
    channel.consume(queue, tag="t")
    channel.publish(exchange, "a.b", "x")
    event = channel.deliver()
    wanted = {
        "consumer_tag": "t",
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": exchange,
        "routing_key": "a.b",
    }
    equal(event.arguments, wanted, "deliver")


@case("CONS-10", says="three idle consumers get a, b, c, a, b, c")
def round_robin(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for tag in "abc":
        channel.consume(queue, tag=tag, no_ack=True)
    tags = []
    for number in range(6):
        channel.publish("", queue, str(number))
        tags.append(channel.deliver().text("consumer_tag"))
    equal("".join(tags), "abcabc", "consumers")


@case("CONS-10", says="with prefetch 1 whoever acks gets the next message")
def whoever_acks(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.call("basic.qos", prefetch_count=1)
    for tag in "ab":
        channel.consume(queue, tag=tag)
    for body in ("1", "2", "3", "4"):
        channel.publish("", queue, body)
    events = {event.text("consumer_tag"): event for event in channel.deliveries(2)}
    equal(sorted(events), ["a", "b"], "consumers of the first two")
    for body in ("3", "4"):
        channel.ack(events["b"].tag)
        events["b"] = channel.deliver()
        got = (events["b"].text("consumer_tag"), events["b"].body.decode())
        equal(got, ("b", body), "next delivery")


@case("CONS-10", says="a consumer without limit takes a whole backlog before a second one comes")
def backlog(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, *map(str, range(50)))
    channel.consume(queue)
    other.consume(queue)
    equal(channel.bodies(50), [str(number) for number in range(50)], "deliveries")
    other.quiet("basic.deliver", seconds=0.1)


@case("CONS-11", says="a consumer that does not read holds up nobody else", slow=True)
def slow_reader(stage: Stage) -> None:
    blocked, other, writer = stage.connect(), stage.channel(), stage.channel()
    blocked.shrink_receive_buffer(4096)
    sleeper = blocked.channel()
    queue = stage.queue(writer)
    sleeper.consume(queue, no_ack=True)
    octets = bytes(200_000)
    for _ in range(100):
        writer.publish("", queue, octets)
    writer.sync()
    mine = stage.queue(other)
    other.consume(mine, no_ack=True)
    begin = time.monotonic()
    for _ in range(20):
        writer.publish("", mine, "x")
        other.deliver()
    within(time.monotonic() - begin, 5, "twenty messages of other clients")


@case("CONS-12", says="one publisher, one queue, one consumer: the order is kept")
def order(stage: Stage) -> None:
    channel, writer = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue, no_ack=True)
    for number in range(500):
        writer.publish("", queue, str(number), delivery_mode=1 + number % 2)
    equal(channel.bodies(500), [str(number) for number in range(500)], "order")


# --- priority ---------------------------------------------------------------------------------


@case("CONS-20", says="hi(10), lo, neg(-1) with prefetch 2 get hi, hi, lo, lo, neg, neg")
def priorities(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.call("basic.qos", prefetch_count=2)
    channel.consume(queue, tag="neg", arguments={"x-priority": -1})
    channel.consume(queue, tag="hi", arguments={"x-priority": Typed("b", 10)})
    channel.consume(queue, tag="lo")
    for number in range(7):
        channel.publish("", queue, str(number))
    events = channel.deliveries(6)
    tags = [event.text("consumer_tag") for event in events]
    equal(tags, ["hi", "hi", "lo", "lo", "neg", "neg"], "consumers")
    channel.ack(events[1].tag)
    equal(channel.deliver().text("consumer_tag"), "hi", "consumer of the seventh")


def _bad_priority(value: Plain, kind: str, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    text = (
        f"PRECONDITION_FAILED - invalid arg 'x-priority' for {stage.the_queue(queue)}: "
        f'"expected integer, got {kind}"'
    )
    with channel.soft(406, text, "basic.consume"):
        channel.consume(queue, arguments={"x-priority": value})


for _value, _kind in (("high", "longstr"), (True, "bool"), (Typed("d", 1.0), "double")):
    case("CONS-21", says=f"x-priority of type {_kind} is soft 406")(
        partial(_bad_priority, _value, _kind)
    )


# --- cancelled by the broker --------------------------------------------------------------------


@case("CONS-40", says="queue deleted by somebody: basic.cancel with no-wait for each consumer")
def cancelled(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    tags = {channel.consume(queue), channel.consume(queue)}
    other.call("queue.delete", queue=queue)
    events = [channel.wait("basic.cancel") for _ in tags]
    equal({event.text("consumer_tag") for event in events}, tags, "tags")
    check(all(event.arguments["nowait"] for event in events), "no-wait is not set")


def _broker_cancels(stage: Stage) -> tuple[Channel, str]:
    """A channel whose consumer, named by its tag, the broker has just cancelled."""
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    tag = channel.consume(queue)
    other.call("queue.delete", queue=queue)
    channel.wait("basic.cancel")
    return channel, tag


@case("CONS-41", says="an own cancel in answer to it gets cancel-ok")
def cancel_in_answer(stage: Stage) -> None:
    channel, tag = _broker_cancels(stage)
    equal(channel.call("basic.cancel", consumer_tag=tag).text("consumer_tag"), tag, "tag")


@case(
    "CONS-41",
    says="cancel-ok in answer to it is accepted",
    referee_reason="C-62: 503 COMMAND_INVALID - unimplemented method",
)
def cancel_ok_in_answer(stage: Stage) -> None:
    channel, tag = _broker_cancels(stage)
    channel.send("basic.cancel_ok", consumer_tag=tag)
    channel.sync()


@case("CONS-42", says="outstanding deliveries of a deleted queue stay settleable")
def settle_after_delete(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue)
    channel.publish("", queue, "a")
    event = channel.deliver()
    other.call("queue.delete", queue=queue)
    channel.wait("basic.cancel")
    channel.ack(event.tag)
    channel.sync()


# --- get ----------------------------------------------------------------------------------------


@case("CONS-50", says="get-ok has tag, redelivered, address and the ready messages left")
def get_ok(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a", "b", "c")
    for left, body in ((2, b"a"), (1, b"b"), (0, b"c")):
        event = channel.get(queue)
        equal((event.number("message_count"), event.body), (left, body), "left and body")
        equal((event.text("exchange"), event.text("routing_key")), ("", queue), "address")
        check(not event.redelivered, "marked as redelivered")


@case("CONS-50", says="get on an empty queue is get-empty with an empty cluster-id")
def get_empty(stage: Stage) -> None:
    channel = stage.channel()
    event = channel.get(stage.queue(channel))
    equal((event.name, event.text("cluster_id")), ("basic.get_empty", ""), "answer")


def _owed(stage: Stage) -> Iterator[tuple[Channel, str]]:
    """A queue with a waiting consumer, to which the same channel has published just now."""
    channel = stage.channel()
    for number in range(20):
        queue = stage.queue(channel)
        channel.consume(queue)
        channel.publish("", queue, str(number))
        yield channel, queue
        equal(channel.deliver().body.decode(), str(number), "delivery")


@case("CONS-52", says="get does not take what a waiting consumer is owed")
def get_behind_consumer(stage: Stage) -> None:
    for channel, queue in _owed(stage):
        equal(channel.get(queue).name, "basic.get_empty", "get")


@case("CONS-52", says="declare does not count what a waiting consumer is owed")
def declare_behind_consumer(stage: Stage) -> None:
    for channel, queue in _owed(stage):
        equal(channel.count(queue), 0, "messages")


@case("CONS-52", says="purge does not drop what a waiting consumer is owed")
def purge_behind_consumer(stage: Stage) -> None:
    for channel, queue in _owed(stage):
        reply = channel.call("queue.purge", queue=queue)
        equal(reply.number("message_count"), 0, "purged")


@case("CONS-52", says="a queue is empty when all that was in it is a waiting consumer's")
def delete_behind_consumer(stage: Stage) -> None:
    for channel, queue in _owed(stage):
        reply = channel.call("queue.delete", queue=queue, if_empty=True)
        equal(reply.number("message_count"), 0, "messages")


@case("CONS-51", says="get works beside an exclusive consumer, and is no consumer")
def get_beside_exclusive(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue, exclusive=True)
    channel.publish("", queue, "a")
    channel.publish("", queue, "b")
    channel.deliver()
    other.holds(queue, 1)
    equal(other.get(queue).body, b"b", "get")
    reply = other.call("queue.declare", queue=queue, passive=True)
    equal(reply.number("consumer_count"), 1, "consumers")
