"""Section GEN: reply texts, ids, no-wait, order of replies."""

from __future__ import annotations

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.events import RefusedError
from vouchmq.conformance.expect import MismatchError, check, equal
from vouchmq.conformance.stage import Stage


def _long_refusal(stage: Stage, name: str) -> str:
    channel = stage.channel()
    channel.send("queue.declare", queue=name, passive=True)
    try:
        channel.wait("queue.declare_ok")
    except RefusedError as refused:
        return refused.text
    raise MismatchError("a passive declare of a missing queue was answered")


@case("GEN-03", says="a reply text that would be too long is cut to a shortstr, not refused")
def long_text_is_cut(stage: Stage) -> None:
    name = "n" * 250
    text = _long_refusal(stage, name)
    check(len(text.encode()) <= 255, f"{len(text.encode())} octets")
    check(text.startswith("NOT_FOUND - no queue '" + "n" * 200), f"text is {text!r}")


@case(
    "GEN-03",
    says="the cut is at 255 octets, at a UTF-8 boundary",
    mark="≠",
)
def long_text_is_cut_at_a_boundary(stage: Stage) -> None:
    for lead in ("", "x"):
        name = lead + "é" * 125
        whole = f"NOT_FOUND - no {stage.the_queue(name)}"
        wanted = whole.encode()[:255].decode("utf-8", "ignore")
        equal(_long_refusal(stage, name), wanted, "reply text")


@case("GEN-04", says="texts name a queue as queue 'q' in vhost 'v', an exchange likewise")
def names_in_texts(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name("a b€")
    channel.soft_again(
        404,
        f"NOT_FOUND - no {stage.the_queue(name)}",
        "queue.declare",
        queue=name,
        passive=True,
    )
    channel.soft_again(
        404,
        f"NOT_FOUND - no {stage.the_exchange(name)}",
        "exchange.declare",
        exchange=name,
        type="direct",
        passive=True,
    )


@case("GEN-05", says="a close carries the ids of the method that failed")
def ids_of_the_failing_method(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name()
    text = f"NOT_FOUND - no {stage.the_queue(name)}"
    channel.soft_again(404, text, "queue.purge", queue=name)
    channel.soft_again(404, text, "basic.get", queue=name)
    channel.soft_again(404, text, "basic.consume", queue=name)
    channel.soft_again(404, text, "queue.bind", queue=name, exchange="amq.direct")


@case("GEN-05", says="a close that no method caused carries 0,0")
def no_ids_without_a_method(stage: Stage) -> None:
    connection = stage.connect()
    with connection.hard(501, None):
        connection.send(b"\x05\x00\x00\x00\x00\x00\x00\xce")


def _silent(channel: Channel, name: str, **arguments: str | bool) -> None:
    """Send with no-wait; nothing may come before the reply to a later method."""
    channel.send(name, nowait=True, **arguments)
    channel.sync()
    inbox = channel.connection.inbox(channel.number)
    check(not inbox, f"{name} with no-wait was answered: {[event.name for event in inbox]}")


@case("GEN-06", says="exchange methods with no-wait succeed without a reply")
def nowait_exchange(stage: Stage) -> None:
    channel = stage.channel()
    source, target = stage.name("s"), stage.name("t")
    _silent(channel, "exchange.declare", exchange=source, type="fanout")
    _silent(channel, "exchange.declare", exchange=target, type="fanout")
    _silent(channel, "exchange.bind", source=source, destination=target)
    queue = stage.bound(channel, target)
    channel.publish(source, "", "through")
    equal(channel.drain(queue), ["through"], "bodies behind the silent binding")
    _silent(channel, "exchange.unbind", source=source, destination=target)
    channel.publish(source, "", "lost")
    equal(channel.drain(queue), [], "bodies after the silent unbinding")
    _silent(channel, "exchange.delete", exchange=source)
    with channel.soft(404, None, "exchange.declare"):
        channel.call("exchange.declare", exchange=source, type="fanout", passive=True)


@case("GEN-06", says="queue methods with no-wait succeed without a reply")
def nowait_queue(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name()
    _silent(channel, "queue.declare", queue=queue)
    _silent(channel, "queue.bind", queue=queue, exchange="amq.direct", routing_key=queue)
    channel.publish("amq.direct", queue, "one")
    channel.holds(queue, 1)
    _silent(channel, "queue.purge", queue=queue)
    equal(channel.count(queue), 0, "messages after the silent purge")
    _silent(channel, "queue.delete", queue=queue)
    with channel.soft(404, None, "queue.declare"):
        channel.call("queue.declare", queue=queue, passive=True)


@case("GEN-06", says="consume, cancel and confirm.select with no-wait succeed without a reply")
def nowait_basic(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    _silent(channel, "basic.consume", queue=queue, consumer_tag="quiet")
    channel.publish("", queue, "one")
    equal(channel.deliver().text("consumer_tag"), "quiet", "tag of the silent consumer")
    _silent(channel, "basic.cancel", consumer_tag="quiet")
    equal(
        channel.call("queue.declare", queue=queue, passive=True).number("consumer_count"),
        0,
        "consumers after the silent cancel",
    )
    _silent(channel, "confirm.select")
    channel.publish("", queue, "two")
    equal(channel.confirms(1), {1: "ack"}, "confirms after the silent select")


@case("GEN-06", says="a failing method with no-wait raises the same error")
def nowait_failure(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name()
    text = f"NOT_FOUND - no {stage.the_queue(name)}"
    channel.soft_again(404, text, "queue.declare", queue=name, passive=True, nowait=True)
    channel.soft_again(404, text, "basic.consume", queue=name, nowait=True)
    channel.soft_again(404, text, "queue.bind", queue=name, exchange="amq.direct", nowait=True)
    channel.soft_again(404, text, "queue.purge", queue=name, nowait=True)


@case("GEN-08", says="pipelined methods are answered in the order in which they came")
def replies_in_order(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name()
    channel.send("queue.declare", queue=queue)
    channel.send("basic.qos", prefetch_count=3)
    channel.send("queue.bind", queue=queue, exchange="amq.topic", routing_key=queue)
    channel.publish("amq.topic", queue, "one")
    channel.send("queue.declare", queue=queue, passive=True)
    channel.send("basic.get", queue=queue, no_ack=True)
    channel.send("queue.purge", queue=queue)
    channel.send("queue.delete", queue=queue)
    wanted = [
        "queue.declare_ok",
        "basic.qos_ok",
        "queue.bind_ok",
        "queue.declare_ok",
        "basic.get_ok",
        "queue.purge_ok",
        "queue.delete_ok",
    ]
    got = [channel.wait(*wanted) for _ in wanted]
    equal([event.name for event in got], wanted, "replies")
    equal(got[4].body, b"one", "the message published in between")
