"""Section QUEUE: declaring, equivalence, exclusive access, purge, delete."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import check, equal, eventually
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Argument, Table, Typed

LOCKED: Final = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked {}. It could be originally "
    "declared on another connection or the exclusive property value does not match that of the "
    "original declaration."
)
NO_LAST: Final = "NOT_FOUND - no previously declared queue"


def exists(channel: Channel, queue: str) -> bool:
    """True if a passive declare finds the queue."""
    channel.send("queue.declare", queue=queue, passive=True)
    event = channel.wait("queue.declare_ok", "channel.close")
    if event.name == "channel.close":
        equal(event.number("reply_code"), 404, "reply code of the passive declare")
        channel.send("channel.close_ok")
        channel.reopen()
        return False
    return True


@case("QUEUE-01", says="declare-ok counts ready messages only, and all consumers")
def declare_ok_counts(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a", "b", "c")
    channel.get(queue, no_ack=False)
    channel.holds(queue, 2)
    other.call("basic.qos", prefetch_count=1)
    other.consume(queue)
    other.consume(queue)
    reply = channel.call("queue.declare", queue=queue)
    equal(reply.text("queue"), queue, "name")
    equal((reply.number("message_count"), reply.number("consumer_count")), (0, 2), "counts")


@case("QUEUE-02", says="an empty name gets amq.gen- and 22 base64url characters")
def server_named(stage: Stage) -> None:
    channel = stage.channel()
    names = {channel.call("queue.declare", exclusive=True).text("queue") for _ in range(3)}
    equal(len(names), 3, "different names")
    for name in names:
        check(re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", name) is not None, f"name is {name!r}")


@case("QUEUE-03", says="a non-passive declare of an amq.* name is soft 403")
def reserved_prefix(stage: Stage) -> None:
    channel = stage.channel()
    text = "ACCESS_REFUSED - queue name 'amq.conformance' contains reserved prefix 'amq.*'"
    with channel.soft(403, text, "queue.declare"):
        channel.call("queue.declare", queue="amq.conformance")


@case("QUEUE-03", says="an existing server-named queue: 403 to declare again, passive is allowed")
def reserved_but_existing(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.doomed(channel.call("queue.declare").text("queue"))
    channel.call("queue.declare", queue=name, passive=True)
    text = f"ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'"
    channel.soft_again(403, text, "queue.declare", queue=name)


@case("QUEUE-04", says="CR and LF are stripped from the name")
def line_ends_are_stripped(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name()
    reply = channel.call("queue.declare", queue=f"\n{name[:4]}\r\n{name[4:]}\r")
    equal(reply.text("queue"), name, "name in declare-ok")
    channel.publish("", name, "x")
    channel.holds(name, 1)


@case("QUEUE-04", says="passive with an empty name is soft 404")
def passive_empty(stage: Stage) -> None:
    channel = stage.channel()
    text = f"NOT_FOUND - no {stage.the_queue('')}"
    with channel.soft(404, text, "queue.declare"):
        channel.call("queue.declare", queue="", passive=True)


@case("QUEUE-05", says="passive on a missing queue is soft 404")
def passive_missing(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name()
    with channel.soft(404, f"NOT_FOUND - no {stage.the_queue(name)}", "queue.declare"):
        channel.call("queue.declare", queue=name, passive=True)


@case("QUEUE-05", says="passive compares nothing")
def passive_compares_nothing(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.call(
        "queue.declare",
        queue=queue,
        passive=True,
        durable=True,
        auto_delete=True,
        exclusive=True,
        arguments={"x-message-ttl": "nonsense"},
    )


@case("QUEUE-06", says="durable and exclusive together: re-declared with either durable value")
def durable_exclusive(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, durable=True, exclusive=True)
    channel.call("queue.declare", queue=queue, exclusive=True, durable=True)
    channel.call("queue.declare", queue=queue, exclusive=True)


@case("QUEUE-07", says="an exclusive queue is shared by the channels of its connection")
def exclusive_on_other_channel(stage: Stage) -> None:
    connection = stage.connect()
    first, second = connection.channel(1), connection.channel(2)
    queue = stage.queue(first, exclusive=True)
    second.call("queue.declare", queue=queue, exclusive=True)
    stage.load(second, queue, "a")
    equal(second.get(queue).body, b"a", "message")
    first.close()
    check(exists(second, queue), "the queue went with the channel that declared it")


@case("QUEUE-08", says="auto-delete: gone when the last consumer is cancelled, not before")
def auto_delete_by_cancel(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, auto_delete=True)
    channel.publish("", queue, "x")
    channel.get(queue)
    check(exists(channel, queue), "gone without ever having had a consumer")
    first, second = channel.consume(queue), channel.consume(queue)
    channel.call("basic.cancel", consumer_tag=first)
    check(exists(channel, queue), "gone while a consumer was left")
    channel.call("basic.cancel", consumer_tag=second)
    eventually(partial(exists, channel, queue), False, "the queue exists")


@case("QUEUE-08", says="auto-delete: gone when the last consumer's channel or connection ends")
def auto_delete_by_channel(stage: Stage) -> None:
    watcher = stage.channel()
    for end in ("channel", "connection"):
        channel = stage.channel()
        queue = stage.queue(channel, auto_delete=True)
        channel.consume(queue)
        if end == "channel":
            channel.close()
        else:
            channel.connection.drop()
        eventually(partial(exists, watcher, queue), False, f"the queue exists after {end} end")


# --- the last declared queue --------------------------------------------------------------


@case("QUEUE-14", says="an empty name means the last declared queue, in every method")
def last_queue(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    other = stage.queue(channel)
    channel.call("queue.declare", queue=queue, passive=True)
    stage.load(channel, queue, "a", "b", "c")
    equal(channel.get("").body, b"a", "get")
    tag = channel.consume("", no_ack=True)
    equal(channel.bodies(2), ["b", "c"], "consume")
    channel.call("basic.cancel", consumer_tag=tag)
    exchange = stage.exchange(channel, "direct")
    channel.call("queue.bind", queue="", exchange=exchange, routing_key="k")
    channel.publish(exchange, "k", "d")
    channel.holds(queue, 1)
    equal(channel.call("queue.purge", queue="").number("message_count"), 1, "purge")
    channel.call("queue.unbind", queue="", exchange=exchange, routing_key="k")
    channel.publish(exchange, "k", "e")
    equal(channel.count(queue), 0, "messages after unbind")
    channel.call("queue.delete", queue="")
    check(not exists(channel, queue), "delete did not delete it")
    check(exists(channel, other), "delete took another queue")


@case("QUEUE-14", says="declare with no-wait sets the last queue, too")
def last_queue_nowait(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name()
    channel.send("queue.declare", queue=queue, nowait=True)
    channel.publish("", queue, "a")
    equal(channel.get("").body, b"a", "get")


@case("QUEUE-14", says="the last queue belongs to the channel")
def last_queue_per_channel(stage: Stage) -> None:
    connection = stage.connect()
    stage.queue(connection.channel(1))
    other = connection.channel(2)
    with other.soft(404, NO_LAST, "basic.get"):
        other.get("")


for _verb, _more in (
    ("basic.get", {}),
    ("basic.consume", {}),
    ("queue.purge", {}),
    ("queue.delete", {}),
    ("queue.bind", {"exchange": "amq.direct", "routing_key": "k"}),
    ("queue.unbind", {"exchange": "amq.direct", "routing_key": "k"}),
):

    def _no_last_queue(verb: str, more: dict[str, str], stage: Stage) -> None:
        stage.channel().soft_again(404, NO_LAST, verb, **more)

    case("QUEUE-14", says=f"{_verb} without a last queue is soft 404")(
        partial(_no_last_queue, _verb, _more)
    )


# --- equivalence ----------------------------------------------------------------------------

EQUIVALENCE: Final[tuple[tuple[str, dict[str, Argument], dict[str, Argument], str], ...]] = (
    ("durable", {}, {"durable": True}, "'true' but current is 'false'"),
    ("durable", {"durable": True}, {}, "'false' but current is 'true'"),
    ("auto_delete", {}, {"auto_delete": True}, "'true' but current is 'false'"),
    (
        "durable",
        {},
        {"durable": True, "auto_delete": True},
        "'true' but current is 'false'",
    ),
)


def inequivalent(stage: Stage, queue: str, field: str, tail: str) -> str:
    """The reply text for a re-declaration that differs."""
    return (
        f"PRECONDITION_FAILED - inequivalent arg '{field}' for {stage.the_queue(queue)}: "
        f"received {tail}"
    )


def _differs(
    field: str, old: dict[str, Argument], new: dict[str, Argument], tail: str, stage: Stage
) -> None:
    channel = stage.channel()
    queue = stage.name()
    channel.call("queue.declare", queue=queue, **old)
    text = inequivalent(stage, queue, field, tail)
    channel.soft_again(406, text, "queue.declare", queue=queue, **new)
    channel.call("queue.declare", queue=queue, **old)


for _field, _old, _new, _tail in EQUIVALENCE:
    case("QUEUE-21", says=f"another {_field} ({_new or 'off'}) on re-declare is soft 406")(
        partial(_differs, _field, _old, _new, _tail)
    )


def _arguments_differ(field: str, old: Table, new: Table, tail: str, stage: Stage) -> None:
    _differs(field, {"arguments": old}, {"arguments": new}, tail, stage)


for _what, _before, _after, _tail in (
    (
        "missing on re-declare",
        {"x-queue-mode": "lazy"},
        {},
        "none but current is the value 'lazy' of type 'longstr'",
    ),
    (
        "missing before",
        {},
        {"x-queue-mode": "lazy"},
        "the value 'lazy' of type 'longstr' but current is none",
    ),
    (
        "with another value",
        {"x-queue-mode": "lazy"},
        {"x-queue-mode": "default"},
        "'default' but current is 'lazy'",
    ),
):
    case("QUEUE-22", says=f"a known argument {_what} is soft 406 and shown")(
        partial(_arguments_differ, "x-queue-mode", _before, _after, _tail)
    )
case("QUEUE-22", says="a number missing before is shown with its type")(
    partial(
        _arguments_differ,
        "x-queue-version",
        {},
        {"x-queue-version": Typed("s", 1)},
        "the value '1' of type 'short' but current is none",
    )
)


@case("QUEUE-21", says="unknown arguments are stored, but not compared")
def unknown_arguments(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-mine": 1, "other": ["a"]})
    channel.call("queue.declare", queue=queue, arguments={"x-mine": 2})
    channel.call("queue.declare", queue=queue)


@case("QUEUE-23", says="integers are compared by value over all widths")
def integer_widths(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-queue-version": Typed("b", 1)})
    for kind in "BsuIil":
        channel.call("queue.declare", queue=queue, arguments={"x-queue-version": Typed(kind, 1)})


@case("QUEUE-23", says="x-queue-type absent equals classic, on either side")
def queue_type_default(stage: Stage) -> None:
    channel = stage.channel()
    classic = {"x-queue-type": "classic"}
    first, second = stage.queue(channel), stage.queue(channel, arguments=classic)
    channel.call("queue.declare", queue=first, arguments=classic)
    channel.call("queue.declare", queue=second)


@case("QUEUE-20", says="re-declaring exclusive against not exclusive, and back, is soft 405")
def exclusive_is_first(stage: Stage) -> None:
    channel = stage.channel()
    shared, mine = stage.queue(channel), stage.queue(channel, exclusive=True)
    declare = partial(channel.soft_again, 405, name="queue.declare", durable=True)
    declare(LOCKED.format(stage.the_queue(shared)), queue=shared, exclusive=True)
    declare(LOCKED.format(stage.the_queue(mine)), queue=mine, exclusive=False)


# --- exclusive access -----------------------------------------------------------------------

LOCKED_VERBS: Final[tuple[tuple[str, dict[str, Argument]], ...]] = (
    ("queue.declare", {"exclusive": True}),
    ("queue.declare", {"passive": True}),
    ("basic.consume", {}),
    ("basic.get", {}),
    ("queue.purge", {}),
    ("queue.delete", {}),
    ("queue.bind", {"exchange": "amq.direct", "routing_key": "k"}),
    ("queue.unbind", {"exchange": "amq.fanout"}),
)


def _locked(verb: str, more: dict[str, Argument], stage: Stage) -> None:
    owner, other = stage.channel(), stage.channel()
    queue = stage.queue(owner, exclusive=True)
    owner.call("queue.bind", queue=queue, exchange="amq.fanout")
    text = LOCKED.format(stage.the_queue(queue))
    other.soft_again(405, text, verb, queue=queue, **more)


for _verb, _arguments in LOCKED_VERBS:
    _shown = " passive" if _arguments.get("passive") else ""
    case(
        "QUEUE-30", says=f"{_verb}{_shown} on an exclusive queue of another connection is soft 405"
    )(partial(_locked, _verb, _arguments))


@case("QUEUE-30", says="publishing to an exclusive queue of another connection is allowed")
def publish_to_exclusive(stage: Stage) -> None:
    owner, other = stage.channel(), stage.channel()
    queue = stage.queue(owner, exclusive=True)
    exchange = stage.exchange(other, "fanout")
    owner.call("queue.bind", queue=queue, exchange=exchange)
    other.publish("", queue, "a")
    other.publish(exchange, "", "b")
    owner.holds(queue, 2)


# --- purge and delete -----------------------------------------------------------------------


@case("QUEUE-60", says="purge removes ready messages only and returns their number")
def purge(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a", "b", "c")
    got = channel.get(queue, no_ack=False)
    equal(channel.call("queue.purge", queue=queue).number("message_count"), 2, "purged")
    channel.nack(got.tag)
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["a"], "what is left")
    equal(channel.call("queue.purge", queue=queue).number("message_count"), 0, "purged again")


@case("QUEUE-60", says="purging a missing queue is soft 404")
def purge_missing(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name()
    with channel.soft(404, f"NOT_FOUND - no {stage.the_queue(name)}", "queue.purge"):
        channel.call("queue.purge", queue=name)


@case("QUEUE-61", says="delete returns the number of ready messages, 0 for a missing queue")
def delete(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a", "b", "c")
    channel.get(queue, no_ack=False)
    equal(channel.call("queue.delete", queue=queue).number("message_count"), 2, "count")
    check(not exists(channel, queue), "still there")
    equal(channel.call("queue.delete", queue=queue).number("message_count"), 0, "missing")


@case("QUEUE-61", says="bindings go with the queue")
def delete_removes_bindings(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "fanout")
    queue = stage.bound(channel, exchange)
    channel.call("queue.delete", queue=queue)
    channel.call("queue.declare", queue=queue)
    channel.publish(exchange, "", "x", mandatory=True)
    equal(channel.wait("basic.return").number("reply_code"), 312, "return")


@case("QUEUE-61", says="the deleter's own consumers are cancelled after delete-ok")
def delete_then_cancel(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    tag = channel.consume(queue)
    channel.send("queue.delete", queue=queue)
    first = channel.wait("queue.delete_ok", "basic.cancel")
    equal(first.name, "queue.delete_ok", "first event")
    event = channel.wait("basic.cancel")
    equal((event.text("consumer_tag"), event.arguments["nowait"]), (tag, True), "cancel")


@case("QUEUE-62", says="if-unused is soft 406 while there are consumers")
def delete_if_unused(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    tag = other.consume(queue)
    text = f"PRECONDITION_FAILED - {stage.the_queue(queue)} in use"
    channel.soft_again(406, text, "queue.delete", queue=queue, if_unused=True)
    other.call("basic.cancel", consumer_tag=tag)
    channel.call("queue.delete", queue=queue, if_unused=True)


@case("QUEUE-62", says="if-empty is soft 406 while there are ready messages; unacked do not count")
def delete_if_empty(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a")
    text = f"PRECONDITION_FAILED - {stage.the_queue(queue)} not empty"
    channel.soft_again(406, text, "queue.delete", queue=queue, if_empty=True)
    other.get(queue, no_ack=False)
    channel.call("queue.delete", queue=queue, if_empty=True)


@case(
    "QUEUE-62",
    says="if-unused is checked before if-empty",
    referee_reason="C-35: checks if-empty first",
)
def unused_before_empty(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    other.call("basic.qos", prefetch_count=1)
    other.consume(queue)
    channel.publish("", queue, "a")
    channel.publish("", queue, "b")
    channel.holds(queue, 1)
    text = f"PRECONDITION_FAILED - {stage.the_queue(queue)} in use"
    channel.soft_again(406, text, "queue.delete", queue=queue, if_unused=True, if_empty=True)


@case("QUEUE-63", says="deliveries of a deleted queue can be settled once")
def settle_after_delete(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a", "b")
    first, second = channel.get(queue, no_ack=False), channel.get(queue, no_ack=False)
    channel.call("queue.delete", queue=queue)
    channel.ack(first.tag)
    channel.nack(second.tag)
    channel.sync()
    text = f"PRECONDITION_FAILED - unknown delivery tag {first.tag}"
    with channel.soft(406, text, "basic.ack"):
        channel.ack(first.tag)


@case("QUEUE-64", says="confirms pending on a deleted queue are acked")
def confirms_of_deleted_queue(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, durable=True)
    for _ in range(50):
        channel.publish("", queue, b"x" * 500, delivery_mode=2)
    channel.send("queue.delete", queue=queue)
    equal(set(channel.confirms(50).values()), {"ack"}, "confirms")
    channel.wait("queue.delete_ok")
