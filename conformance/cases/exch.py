"""Section EXCH: declaring, deleting, binding, alternate exchanges."""

from __future__ import annotations

from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Argument, Typed

DEFAULT_REFUSED: Final = "ACCESS_REFUSED - operation not permitted on the default exchange"
PREDECLARED: Final = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)


def exists(channel: Channel, exchange: str) -> bool:
    """True if a passive declare finds the exchange."""
    channel.send("exchange.declare", exchange=exchange, type="", passive=True)
    event = channel.wait("exchange.declare_ok", "channel.close")
    if event.name == "channel.close":
        equal(event.number("reply_code"), 404, "reply code of the passive declare")
        channel.send("channel.close_ok")
        channel.reopen()
        return False
    return True


def bind_exchange(
    channel: Channel, source: str, target: str, key: str = "", verb: str = "bind"
) -> None:
    """An exchange-to-exchange binding."""
    channel.call(f"exchange.{verb}", source=source, destination=target, routing_key=key)


def _declares(kind: str, stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, kind)
    check(exists(channel, exchange), "declared, but not found")


for _type in ("direct", "fanout", "topic", "headers"):
    case("EXCH-01", says=f"type {_type} can be declared")(partial(_declares, _type))


@case("EXCH-01", says="an unknown type is soft 406", mark="≡4")
def unknown_type(stage: Stage) -> None:
    channel = stage.channel()
    with channel.soft(
        406, "PRECONDITION_FAILED - unknown exchange type 'x-nothing'", "exchange.declare"
    ):
        channel.call("exchange.declare", exchange=stage.name(), type="x-nothing")


@case("EXCH-01", says="the type is checked before anything else", mark="≡4")
def type_first(stage: Stage) -> None:
    channel = stage.channel()
    for name in ("amq.fresh", "", "amq.direct"):
        channel.soft_again(
            406,
            "PRECONDITION_FAILED - unknown exchange type 'x-nothing'",
            "exchange.declare",
            exchange=name,
            type="x-nothing",
        )


@case("EXCH-02", says="amq.direct, .fanout, .topic, .headers and .match exist, durable")
def predeclared(stage: Stage) -> None:
    channel = stage.channel()
    for name, kind in PREDECLARED:
        channel.call("exchange.declare", exchange=name, type=kind, durable=True)


@case("EXCH-02", says="amq.rabbitmq.trace is a durable internal topic exchange")
def trace_exchange(stage: Stage) -> None:
    stage.channel().call(
        "exchange.declare", exchange="amq.rabbitmq.trace", type="topic", durable=True, internal=True
    )


@case("EXCH-03", says="every queue is bound to the default exchange under its own name")
def default_exchange(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    stage.load(channel, queue, "a")
    got = channel.get(queue)
    equal((got.text("exchange"), got.text("routing_key")), ("", queue), "exchange and key")


ON_DEFAULT: Final[tuple[tuple[str, dict[str, Argument]], ...]] = (
    ("exchange.declare", {"exchange": "", "type": "direct", "durable": True}),
    ("exchange.declare", {"exchange": "", "type": "direct", "passive": True}),
    ("exchange.delete", {"exchange": ""}),
    ("exchange.bind", {"source": "", "destination": "amq.fanout"}),
    ("exchange.bind", {"source": "amq.fanout", "destination": ""}),
    ("exchange.unbind", {"source": "", "destination": "amq.fanout"}),
    ("exchange.unbind", {"source": "amq.fanout", "destination": ""}),
)


def _on_default(verb: str, arguments: dict[str, Argument], stage: Stage) -> None:
    stage.channel().soft_again(403, DEFAULT_REFUSED, verb, **arguments)


for _verb, _arguments in ON_DEFAULT:
    _shown = ", ".join(f"{name}={value!r}" for name, value in _arguments.items())
    case("EXCH-03", says=f"{_verb}({_shown}) is soft 403")(partial(_on_default, _verb, _arguments))


@case("EXCH-03", says="queue.bind and queue.unbind on the default exchange are soft 403")
def bind_to_default(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for verb in ("queue.bind", "queue.unbind"):
        channel.soft_again(403, DEFAULT_REFUSED, verb, queue=queue, exchange="")


@case("EXCH-04", says="creating an amq.* name is soft 403")
def reserved_prefix(stage: Stage) -> None:
    channel = stage.channel()
    text = "ACCESS_REFUSED - exchange name 'amq.conformance' contains reserved prefix 'amq.*'"
    with channel.soft(403, text, "exchange.declare"):
        channel.call("exchange.declare", exchange="amq.conformance", type="direct")


@case("EXCH-05", says="deleting an amq.* exchange is soft 403")
def delete_system(stage: Stage) -> None:
    channel = stage.channel()
    for name in ("amq.direct", "amq.rabbitmq.trace"):
        text = f"ACCESS_REFUSED - deletion of system {stage.the_exchange(name)} not allowed"
        channel.soft_again(403, text, "exchange.delete", exchange=name)


@case("EXCH-06", says="CR and LF are removed from names in declare, delete, bind, unbind")
def line_ends_are_removed(stage: Stage) -> None:
    channel = stage.channel()
    exchange, queue = stage.name("x"), stage.queue(channel)
    odd = f"\r{exchange[:5]}\n{exchange[5:]}\r\n"
    channel.call("exchange.declare", exchange=odd, type="fanout")
    check(exists(channel, exchange), "not found under the clean name")
    channel.call("queue.bind", queue=queue, exchange=odd)
    channel.publish(exchange, "", "a")
    channel.holds(queue, 1)
    channel.call("queue.unbind", queue=queue, exchange=odd)
    channel.publish(exchange, "", "b")
    equal(channel.count(queue), 1, "messages after the unbinding")
    channel.call("exchange.delete", exchange=odd)
    check(not exists(channel, exchange), "still there under the clean name")


@case("EXCH-06", says="publish takes the name as it is")
def line_ends_in_publish(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "fanout")
    with channel.soft(
        404, f"NOT_FOUND - no {stage.the_exchange(exchange + chr(10))}", "basic.publish"
    ):
        channel.publish(exchange + "\n", "", "x")


@case("EXCH-07", says="passive compares nothing, the type is not even looked at")
def passive_compares_nothing(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "fanout")
    for kind in ("", "topic", "x-nothing"):
        channel.call(
            "exchange.declare",
            exchange=exchange,
            type=kind,
            passive=True,
            durable=True,
            internal=True,
            arguments={"alternate-exchange": "other"},
        )


@case("EXCH-07", says="passive on a missing exchange is soft 404")
def passive_missing(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name("x")
    with channel.soft(404, f"NOT_FOUND - no {stage.the_exchange(name)}", "exchange.declare"):
        channel.call("exchange.declare", exchange=name, type="fanout", passive=True)


INEQUIVALENT: Final = (
    ("type", {"type": "topic"}, "'topic' but current is 'direct'"),
    ("durable", {"durable": True}, "'true' but current is 'false'"),
    ("auto_delete", {"auto_delete": True}, "'true' but current is 'false'"),
    ("internal", {"internal": True}, "'true' but current is 'false'"),
)


def _inequivalent(field: str, change: dict[str, Argument], tail: str, stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "direct")
    text = (
        f"PRECONDITION_FAILED - inequivalent arg '{field}' for {stage.the_exchange(exchange)}: "
        f"received {tail}"
    )
    arguments: dict[str, Argument] = {"exchange": exchange, "type": "direct", **change}
    channel.soft_again(406, text, "exchange.declare", **arguments)


for _field, _change, _tail in INEQUIVALENT:
    case("EXCH-08", says=f"re-declaring with another {_field} is soft 406")(
        partial(_inequivalent, _field, dict(_change), _tail)
    )


@case("EXCH-08", says="the differences are found in the order type, durable, auto_delete, internal")
def order_of_differences(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "direct")
    change: dict[str, Argument] = {"internal": True}
    for field, more, tail in reversed(INEQUIVALENT):
        change.update(more)
        text = (
            f"PRECONDITION_FAILED - inequivalent arg '{field}' for "
            f"{stage.the_exchange(exchange)}: received {tail}"
        )
        given: dict[str, Argument] = {"exchange": exchange, "type": "direct", **change}
        channel.soft_again(406, text, "exchange.declare", **given)


@case("EXCH-08", says="the argument alternate-exchange is compared, others are not")
def arguments_compared(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(
        channel, "direct", arguments={"alternate-exchange": "one", "x-mine": 1}
    )
    declare = partial(
        channel.soft_again, 406, name="exchange.declare", exchange=exchange, type="direct"
    )
    head = (
        "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for "
        f"{stage.the_exchange(exchange)}: received "
    )
    declare(text=head + "'two' but current is 'one'", arguments={"alternate-exchange": "two"})
    declare(
        text=head + "none but current is the value 'one' of type 'longstr'", arguments={"x-mine": 1}
    )
    channel.call(
        "exchange.declare",
        exchange=exchange,
        type="direct",
        arguments={"alternate-exchange": "one", "x-mine": 2, "x-more": True},
    )


@case("EXCH-09", says="alternate-exchange that is not a longstr is soft 406")
def alternate_of_wrong_type(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name("x")
    text = (
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in "
        f"{stage.the_exchange(name)}"
    )
    with channel.soft(406, text, "exchange.declare"):
        channel.call(
            "exchange.declare",
            exchange=name,
            type="direct",
            arguments={"alternate-exchange": Typed("I", 7)},
        )


@case("EXCH-10", says="publishing to an internal exchange is soft 403, an e2e binding reaches it")
def internal_exchange(stage: Stage) -> None:
    channel = stage.channel()
    inner, outer = (
        stage.exchange(channel, "fanout", internal=True),
        stage.exchange(channel, "fanout"),
    )
    queue = stage.bound(channel, inner)
    bind_exchange(channel, outer, inner)
    channel.publish(outer, "", "in")
    channel.holds(queue, 1)
    text = f"ACCESS_REFUSED - cannot publish to internal {stage.the_exchange(inner)}"
    with channel.soft(403, text, "basic.publish"):
        channel.publish(inner, "", "out")


@case("EXCH-10", says="an internal exchange works as alternate exchange")
def internal_alternate(stage: Stage) -> None:
    channel = stage.channel()
    inner = stage.exchange(channel, "fanout", internal=True)
    outer = stage.exchange(channel, "direct", arguments={"alternate-exchange": inner})
    queue = stage.bound(channel, inner)
    channel.publish(outer, "nowhere", "in")
    channel.holds(queue, 1)


@case("EXCH-11", says="auto-delete: gone with the last unbinding, not before")
def auto_delete_by_unbind(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "direct", auto_delete=True)
    check(exists(channel, exchange), "gone without ever having had a binding")
    queue = stage.bound(channel, exchange, "a")
    channel.call("queue.bind", queue=queue, exchange=exchange, routing_key="b")
    channel.call("queue.unbind", queue=queue, exchange=exchange, routing_key="a")
    check(exists(channel, exchange), "gone while a binding was left")
    channel.call("queue.unbind", queue=queue, exchange=exchange, routing_key="b")
    check(not exists(channel, exchange), "still there after the last unbinding")


@case("EXCH-11", says="auto-delete: gone when its last queue is deleted")
def auto_delete_by_queue(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "fanout", auto_delete=True)
    queue = stage.bound(channel, exchange)
    channel.call("queue.delete", queue=queue)
    check(not exists(channel, exchange), "still there")


@case("EXCH-11", says="auto-delete: gone when its last e2e destination is deleted, and cascades")
def auto_delete_cascades(stage: Stage) -> None:
    channel = stage.channel()
    first = stage.exchange(channel, "fanout", auto_delete=True)
    second = stage.exchange(channel, "fanout", auto_delete=True)
    bind_exchange(channel, first, second)
    queue = stage.bound(channel, second)
    channel.call("queue.delete", queue=queue)
    check(not exists(channel, second), "the second one is still there")
    check(not exists(channel, first), "the first one is still there")


@case("EXCH-11", says="auto-delete: being an e2e destination does not count")
def auto_delete_as_destination(stage: Stage) -> None:
    channel = stage.channel()
    source = stage.exchange(channel, "fanout")
    target = stage.exchange(channel, "fanout", auto_delete=True)
    bind_exchange(channel, source, target)
    bind_exchange(channel, source, target, verb="unbind")
    check(exists(channel, target), "deleted although it never was a source")


@case("EXCH-12", says="deleting a missing exchange is delete-ok")
def delete_missing(stage: Stage) -> None:
    stage.channel().call("exchange.delete", exchange=stage.name("x"))


@case("EXCH-12", says="if-unused: soft 406 for a source of bindings, not for a destination")
def delete_if_unused(stage: Stage) -> None:
    channel = stage.channel()
    source, target = stage.exchange(channel, "fanout"), stage.exchange(channel, "fanout")
    bind_exchange(channel, source, target)
    text = f"PRECONDITION_FAILED - {stage.the_exchange(source)} in use"
    channel.soft_again(406, text, "exchange.delete", exchange=source, if_unused=True)
    channel.call("exchange.delete", exchange=target, if_unused=True)
    channel.call("exchange.delete", exchange=source, if_unused=True)


@case("EXCH-13", says="deleting an exchange removes its bindings as source and as destination")
def delete_removes_bindings(stage: Stage) -> None:
    channel = stage.channel()
    source, target = stage.exchange(channel, "fanout"), stage.exchange(channel, "fanout")
    queue = stage.bound(channel, target)
    bind_exchange(channel, source, target)
    channel.call("exchange.delete", exchange=target)
    channel.call("exchange.declare", exchange=target, type="fanout")
    channel.publish(target, "", "lost")
    channel.publish(source, "", "lost")
    channel.call("queue.bind", queue=queue, exchange=target)
    channel.publish(source, "", "lost")
    channel.publish(target, "", "kept")
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["kept"], "bodies")
