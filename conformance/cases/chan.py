"""Section CHAN: opening, closing, flow."""

from __future__ import annotations

from functools import partial
from typing import Final

from vouchmq.conformance import wire
from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage

NOT_OPEN: Final = "CHANNEL_ERROR - expected 'channel.open'"
SECOND_OPEN: Final = "CHANNEL_ERROR - second 'channel.open' seen"


@case("CHAN-01", says="channels 1 and 65535 open; open-ok has an empty channel-id")
def channels_open(stage: Stage) -> None:
    connection = stage.connect()
    for number in (1, 65535):
        reply = Channel(connection, number).call("channel.open")
        equal(reply.text("channel_id"), "", "channel-id")


def _never_open(name: str, stage: Stage) -> None:
    connection = stage.connect()
    connection.channel(1)
    with connection.hard(504, NOT_OPEN, name):
        connection.send_method(7, name)


for _name in ("queue.declare", "basic.ack", "basic.cancel", "channel.close", "tx.select"):
    case("CHAN-02", says=f"{_name} on a number that was never open is hard 504")(
        partial(_never_open, _name)
    )


@case("CHAN-02", says="a method on a closed number is hard 504")
def method_after_close(stage: Stage) -> None:
    connection = stage.connect()
    channel = connection.channel()
    channel.close()
    with connection.hard(504, NOT_OPEN, "queue.declare"):
        channel.send("queue.declare")


@case("CHAN-02", says="content frames on a number that was never open are hard 504 or 505")
def content_on_closed(stage: Stage) -> None:
    connection = stage.connect()
    connection.send(wire.frame(wire.BODY, 3, b"x"))
    code = connection.wait(0, "connection.close").number("reply_code")
    check(code in (504, 505), f"code {code}")


@case("CHAN-03", says="channel.open on an open number is hard 504")
def second_open(stage: Stage) -> None:
    connection = stage.connect()
    channel = connection.channel()
    with connection.hard(504, SECOND_OPEN, "channel.open"):
        channel.send("channel.open")


@case("CHAN-03", says="channel.open before close-ok of the broker's close is hard 504")
def open_before_close_ok(stage: Stage) -> None:
    connection = stage.connect()
    channel = connection.channel()
    channel.send("queue.declare", queue="no such queue", passive=True)
    channel.wait("channel.close")
    with connection.hard(504, SECOND_OPEN, "channel.open"):
        channel.send("channel.open")


@case("CHAN-10", says="a closed number can be used again at once, tags start at 1")
def reuse(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for _ in range(3):
        stage.load(channel, queue, "a")
        equal(channel.get(queue).tag, 1, "first delivery tag")
        channel.call("confirm.select")
        channel.publish("", "nowhere", "x")
        equal(channel.confirms(1), {1: "ack"}, "first confirm")
        channel.close()
        channel.reopen()


@case("CHAN-10", says="a client close requeues what was unacked and removes the consumers")
def close_cleans_up(stage: Stage) -> None:
    connection = stage.connect()
    channel, watcher = connection.channel(1), connection.channel(2)
    queue = stage.queue(watcher)
    stage.load(watcher, queue, "a", "b")
    channel.consume(queue)
    channel.deliveries(2)
    channel.close()
    watcher.holds(queue, 2)
    reply = watcher.call("queue.declare", queue=queue, passive=True)
    equal(reply.number("consumer_count"), 0, "consumers")
    check(watcher.get(queue).redelivered, "not marked as redelivered")


def soft_error(channel: Channel) -> None:
    """Make the broker close this channel; leaves close-ok owed."""
    channel.send("queue.declare", queue="no such queue", passive=True)
    equal(channel.wait("channel.close").number("reply_code"), 404, "reply code")


@case("CHAN-11", says="until close-ok everything on the channel is discarded, content too")
def discard_until_close_ok(stage: Stage) -> None:
    connection = stage.connect()
    channel, watcher = connection.channel(1), connection.channel(2)
    queue = stage.queue(watcher)
    soft_error(channel)
    channel.publish("", queue, "late")
    channel.send("queue.declare", queue=queue)
    channel.send("basic.ack", delivery_tag=99)
    channel.send("tx.commit")
    watcher.sync()
    equal(watcher.count(queue), 0, "messages")
    check(not connection.inbox(1), f"answered: {[event.name for event in connection.inbox(1)]}")
    channel.send("channel.close_ok")
    channel.reopen()
    equal(channel.count(queue), 0, "messages")


@case("CHAN-11", says="a client close that crosses the broker's is answered, close-ok still owed")
def crossing_closes(stage: Stage) -> None:
    channel = stage.channel()
    soft_error(channel)
    channel.close()
    channel.send("channel.close_ok")
    channel.reopen()


@case("CHAN-11", says="exactly one channel.close for errors pipelined behind each other", mark="≠")
def one_close(stage: Stage) -> None:
    channel = stage.channel()
    for _ in range(3):
        channel.send("queue.declare", queue="no such queue", passive=True)
        channel.send("queue.purge", queue="")
        channel.send("basic.get", queue="")
    channel.wait("channel.close")
    channel.quiet("channel.close")
    channel.send("channel.close_ok")
    channel.reopen()


@case("CHAN-11", says="the clean-up is done when channel.close is seen")
def soft_error_cleans_up(stage: Stage) -> None:
    connection = stage.connect()
    channel, watcher = connection.channel(1), connection.channel(2)
    queue = stage.queue(watcher)
    stage.load(watcher, queue, "a")
    channel.consume(queue)
    channel.deliver()
    soft_error(channel)
    watcher.holds(queue, 1)


def _late(name: str, stage: Stage) -> None:
    connection = stage.connect()
    channel = connection.channel(1)
    soft_error(channel)
    channel.send("channel.close_ok")
    channel.send(name)
    other = connection.channel(2)
    other.sync()
    channel.reopen()
    channel.close()
    channel.send(name)
    other.sync()


for _name in ("basic.ack", "basic.nack", "basic.reject", "basic.cancel"):
    case("CHAN-12", says=f"a late {_name} on a closed number is discarded silently", mark="≠")(
        partial(_late, _name)
    )


@case("CHAN-13", says="an error on one channel leaves the others untouched")
def errors_are_contained(stage: Stage) -> None:
    connection = stage.connect()
    good, bad = connection.channel(1), connection.channel(2)
    queue = stage.queue(good)
    good.consume(queue)
    good.publish("", queue, "before")
    first = good.deliver()
    for _ in range(3):
        soft_error(bad)
        bad.send("channel.close_ok")
        bad.reopen()
    good.publish("", queue, "after")
    equal(good.deliver().body, b"after", "delivery after the errors")
    good.ack(first.tag, multiple=False)
    good.sync()


@case("CHAN-20", says="flow(active=true) is answered with flow-ok(active=true)")
def flow_on(stage: Stage) -> None:
    reply = stage.channel().call("channel.flow", active=True)
    equal(reply.arguments["active"], True, "active")


@case(
    "CHAN-20", says="flow(active=false) stops deliveries, get still works, true resumes", mark="+"
)
def flow_off(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue, no_ack=True)
    reply = channel.call("channel.flow", active=False)
    equal(reply.arguments["active"], False, "active")
    stage.load(channel, queue, "a", "b", "c")
    channel.quiet("basic.deliver")
    equal(channel.get(queue).body, b"a", "what get finds")
    channel.call("channel.flow", active=True)
    equal(channel.bodies(2), ["b", "c"], "deliveries after resuming")


@case("CHAN-30", says="access.request is answered with access.request-ok, ticket 1")
def access_request(stage: Stage) -> None:
    channel = stage.channel()
    equal(channel.call("access.request", realm="/data").number("ticket"), 1, "ticket")


@case("CHAN-30", says="tickets elsewhere are ignored")
def tickets(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name()
    channel.call("queue.declare", ticket=7, queue=queue)
    channel.call("basic.consume", ticket=65535, queue=queue)


@case("CHAN-31", says="methods that do not wait for replies are processed in order")
def pipelined(stage: Stage) -> None:
    connection = stage.connect()
    queue = stage.name()
    connection.send(
        wire.method(1, "channel.open")
        + wire.method(1, "queue.declare", queue=queue)
        + wire.method(1, "confirm.select")
        + wire.method(1, "basic.publish", routing_key=queue)
        + wire.content(1, b"one", wire.encode_properties(), 131072)
        + wire.method(1, "queue.bind", queue=queue, exchange="amq.fanout")
        + wire.method(1, "queue.unbind", queue=queue, exchange="amq.fanout")
        + wire.method(1, "basic.get", queue=queue, no_ack=True)
        + wire.method(1, "channel.close")
    )
    channel = Channel(connection, 1)
    for name in (
        "channel.open_ok",
        "queue.declare_ok",
        "confirm.select_ok",
        "queue.bind_ok",
        "queue.unbind_ok",
        "basic.get_ok",
        "channel.close_ok",
    ):
        channel.wait(name)
