"""Section DELAY 16.2: exchanges that hold messages back, compatible with the community plugin."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed

KIND: Final = "x-delayed-message"
TEN_YEARS: Final = 315_360_000_000
PATIENCE_S: Final = 15.0
# The rule, whatever the delay.
LATE_S: Final = 0.1


def delayed(
    stage: Stage,
    channel: Channel,
    routing: str = "direct",
    *,
    more: Table | None = None,
    **flags: bool,
) -> str:
    """A new delaying exchange."""
    return stage.exchange(
        channel, KIND, arguments={"x-delayed-type": routing, **(more or {})}, **flags
    )


def send(
    channel: Channel, exchange: str, key: str, body: str, delay: Plain, **headers: Plain
) -> None:
    """Publish with this x-delay."""
    channel.publish(exchange, key, body, headers={"x-delay": delay, **headers}, delivery_mode=2)


def arrives(stage: Stage, channel: Channel, began: float, delay_s: float, body: str = "x") -> None:
    """Fail unless the next delivery is this one, `delay_s` after `began`."""
    event = channel.deliver(PATIENCE_S)
    equal(event.body.decode(), body, "message")
    stage.in_time(event.at, began + delay_s, LATE_S, "the delayed message")


# --- declaring --------------------------------------------------------------------------------

NO_TYPE: Final = (
    "PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' must be an existing exchange type"
)
ITSELF: Final = (
    "PRECONDITION_FAILED - Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'"
)


def _refused(arguments: Table, text: str, stage: Stage) -> None:
    channel = stage.channel()
    with channel.soft(406, text, "exchange.declare"):
        channel.call("exchange.declare", exchange=stage.name("x"), type=KIND, arguments=arguments)


for _says, _arguments, _text in (
    ("without x-delayed-type", {}, NO_TYPE),
    ("with an unknown x-delayed-type", {"x-delayed-type": "express"}, NO_TYPE),
    ("with an x-delayed-type of another type", {"x-delayed-type": 5}, NO_TYPE),
    ("of itself", {"x-delayed-type": KIND}, ITSELF),
):
    case("DELAY-10", says=f"a delaying exchange {_says} is soft 406", mark="+")(
        partial(_refused, _arguments, _text)
    )


@case("DELAY-10", says="x-delayed-type takes part in equivalence", mark="+")
def equivalence(stage: Stage) -> None:
    channel = stage.channel()
    exchange = delayed(stage, channel, "topic")
    again = {"x-delayed-type": "topic"}
    channel.call("exchange.declare", exchange=exchange, type=KIND, arguments=again)
    differs = f"inequivalent arg '{{}}' for {stage.the_exchange(exchange)}: received"
    text = f"PRECONDITION_FAILED - {differs} 'direct' but current is 'topic'"
    channel.soft_again(
        406,
        text.format("x-delayed-type"),
        "exchange.declare",
        exchange=exchange,
        type=KIND,
        arguments={"x-delayed-type": "direct"},
    )
    text = f"PRECONDITION_FAILED - {differs} 'topic' but current is '{KIND}'"
    channel.soft_again(
        406, text.format("type"), "exchange.declare", exchange=exchange, type="topic"
    )


# Per routing type: binding key and arguments, a key that matches, one that does not, headers.
_TYPES: Final[tuple[tuple[str, str, Table, str, str, Table], ...]] = (
    ("direct", "k", {}, "k", "other", {}),
    ("topic", "a.*", {}, "a.b", "b.a", {}),
    ("fanout", "", {}, "any", "", {}),
    ("headers", "", {"colour": "red"}, "", "", {"colour": "red"}),
)


def _routes(row: tuple[str, str, Table, str, str, Table], stage: Stage) -> None:
    routing, binding_key, binding_arguments, key, miss, headers = row
    channel = stage.confirming()
    exchange = delayed(stage, channel, routing)
    queue = stage.bound(channel, exchange, binding_key, binding_arguments)
    if routing != "fanout":
        send(channel, exchange, miss, "missed", 100)
    send(channel, exchange, key, "hit", 200, **headers)
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["hit"], "messages")


for _row in _TYPES:
    case("DELAY-10", says=f"x-delayed-type {_row[0]} routes as that type", mark="+")(
        partial(_routes, _row)
    )


@case("DELAY-11", says="x-delayed-exchange makes an ordinary exchange delay", mark="+")
def other_form(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "topic", arguments={"x-delayed-exchange": True})
    queue = stage.bound(channel, exchange, "a.#")
    channel.consume(queue, no_ack=True)
    began = time.monotonic()
    send(channel, exchange, "a.b", "x", 400)
    send(channel, exchange, "b", "missed", 100)
    arrives(stage, channel, began, 0.4)
    channel.quiet("basic.deliver")


@case("DELAY-11", says="x-delayed-exchange false does not delay", mark="+")
def other_form_off(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "fanout", arguments={"x-delayed-exchange": False})
    queue = stage.bound(channel, exchange)
    send(channel, exchange, "", "x", 60_000)
    channel.holds(queue, 1)


# --- how long ---------------------------------------------------------------------------------


def _held(delay: Plain, wanted_s: float, stage: Stage) -> None:
    channel = stage.channel()
    exchange = delayed(stage, channel, "fanout")
    channel.consume(stage.bound(channel, exchange), no_ack=True)
    began = time.monotonic()
    send(channel, exchange, "", "x", delay)
    arrives(stage, channel, began, wanted_s)


for _says, _delay, _wanted in (
    ("300", 300, 0.3),
    ("1500", 1500, 1.5),
    ("300 as an octet pair", Typed("s", 300), 0.3),
    ("100 as an octet", Typed("b", 100), 0.1),
    ("300 as an unsigned short", Typed("u", 300), 0.3),
    ("300 as an unsigned long", Typed("i", 300), 0.3),
    ("300 as a long long", Typed("l", 300), 0.3),
    ("the text 300", "300", 0.3),
    ("the float 300.9", Typed("d", 300.9), 0.3),
    ("the short float 300.5", Typed("f", 300.5), 0.3),
):
    case("DELAY-12", says=f"an x-delay of {_says} is kept", mark="+", slow=True)(
        partial(_held, _delay, _wanted)
    )


def _at_once(headers: Table | None, stage: Stage) -> None:
    channel = stage.channel()
    exchange = delayed(stage, channel, "fanout")
    queue = stage.bound(channel, exchange)
    if headers is None:
        channel.publish(exchange, "", "x")
    else:
        channel.publish(exchange, "", "x", headers=headers)
    channel.holds(queue, 1)
    event = channel.get(queue)
    names = list(event.headers) if isinstance(event.headers, dict) else []
    equal(names, list(headers or {}), "headers")


for _says, _headers in (
    ("no headers", None),
    ("no x-delay", {"a": 1}),
    ("an x-delay of 0", {"x-delay": 0}),
    ("a negative x-delay", {"x-delay": -5000}),
    ("an x-delay that is no number", {"x-delay": "soon"}),
    ("an x-delay that is a table", {"x-delay": Typed("F", {"a": 1})}),
    ("a void x-delay", {"x-delay": None}),
):
    case("DELAY-12", says=f"{_says}: routed at once, headers as they were", mark="+")(
        partial(_at_once, _headers)
    )


@case("DELAY-12", says="more than ten years is soft 406", mark="+")
def too_long(stage: Stage) -> None:
    channel = stage.channel()
    exchange = delayed(stage, channel, "fanout")
    delay = TEN_YEARS + 1
    text = f"PRECONDITION_FAILED - invalid x-delay '{delay}': {{value_too_large,{delay}}}"
    with channel.soft(406, text, "basic.publish"):
        send(channel, exchange, "", "x", delay)


def _long(delay: int, stage: Stage) -> None:
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout")
    queue = stage.bound(channel, exchange)
    send(channel, exchange, "", "x", delay)
    equal(channel.confirms(1), {1: "ack"}, "confirm")
    channel.connection.listen(0.3)
    equal(channel.count(queue), 0, "messages routed already")


for _delay_is in (2**31, 2**32 - 1, 2**32, TEN_YEARS):
    case("DELAY-12", says=f"{_delay_is} ms is held", mark="+")(partial(_long, _delay_is))


# --- what happens at the end ------------------------------------------------------------------


@case("DELAY-13", says="the bindings at the end of the delay count", mark="+", slow=True)
def bindings_at_the_end(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout")
    early = stage.bound(channel, exchange)
    send(channel, exchange, "", "x", 2000)
    channel.confirms(1)
    channel.call("queue.unbind", queue=early, exchange=exchange)
    late = stage.bound(channel, exchange)
    channel.holds(late, 1)
    equal(channel.count(early), 0, "messages in the queue that was unbound")


@case("DELAY-14", says="x-delay is negative afterwards, other headers and key stay", mark="+")
def header_afterwards(stage: Stage) -> None:
    channel = stage.channel()
    exchange = delayed(stage, channel)
    queue = stage.bound(channel, exchange, "k")
    channel.publish(
        exchange, "k", "x", headers={"a": "b", "x-delay": 150}, message_id="m", delivery_mode=2
    )
    channel.holds(queue, 1)
    event = channel.get(queue)
    equal(event.headers, {"a": "b", "x-delay": -150}, "headers")
    equal((event.text("exchange"), event.text("routing_key")), (exchange, "k"), "route")
    equal((event.properties["message_id"], event.redelivered), ("m", False), "message")


@case("DELAY-14", says="through a second delaying exchange it is not delayed again", mark="+")
def not_again(stage: Stage) -> None:
    channel = stage.channel()
    first, second = (delayed(stage, channel, "fanout") for _ in range(2))
    channel.call("exchange.bind", source=first, destination=second)
    channel.consume(stage.bound(channel, second), no_ack=True)
    began = time.monotonic()
    send(channel, first, "", "x", 1500)
    arrives(stage, channel, began, 1.5)


def _in_order(delays: Sequence[int], wanted: Sequence[int], stage: Stage) -> None:
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout")
    queue = stage.bound(channel, exchange)
    for number, delay in enumerate(delays):
        send(channel, exchange, "", str(number), delay)
    channel.confirms(len(delays))
    channel.holds(queue, len(delays))
    equal(channel.drain(queue), [str(number) for number in wanted], "order")


case("DELAY-15", says="the shortest delay comes first", mark="+", slow=True)(
    partial(_in_order, (2400, 1200, 1800, 600), (3, 1, 2, 0))
)


@case("DELAY-15", says="equal due times keep the publish order", mark="+", slow=True)
def equal_delays(stage: Stage) -> None:
    _in_order((1200,) * 40, range(40), stage)


@case("DELAY-15", says="a long delay does not hold back a short one", mark="+")
def no_blocking(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout")
    queue = stage.bound(channel, exchange)
    send(channel, exchange, "", "long", 600_000)
    send(channel, exchange, "", "short", 100)
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["short"], "message")


# --- confirms, returns ------------------------------------------------------------------------


@case("DELAY-16", says="the confirm comes when it is held, not when it is routed", mark="+")
def confirm(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout", durable=True)
    queue = stage.bound(channel, exchange)
    for delay in (600_000, 600_000, 600_000):
        send(channel, exchange, "", "x", delay)
    equal(set(channel.confirms(3).values()), {"ack"}, "confirms")
    equal(channel.count(queue), 0, "messages routed already")


def _never_returned(flag: str, stage: Stage) -> None:
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout")
    channel.publish(
        exchange,
        "",
        "x",
        mandatory=flag == "mandatory",
        immediate=flag == "immediate",
        headers={"x-delay": 100},
    )
    equal(channel.confirms(1), {1: "ack"}, "confirm")
    channel.quiet(seconds=1.0)


for _flag in ("mandatory", "immediate"):
    case("DELAY-16", says=f"{_flag} with a delay is never returned", mark="+")(
        partial(_never_returned, _flag)
    )


@case("DELAY-16", says="mandatory without a delay is returned as usual", mark="≠")
def returned(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout")
    channel.publish(exchange, "", "x", mandatory=True)
    event = channel.wait("basic.return")
    equal((event.number("reply_code"), event.text("reply_text")), (312, "NO_ROUTE"), "return")
    channel.wait("basic.ack")


@case("DELAY-16", says="a delayed publish in a transaction is held from commit on", mark="+")
def transaction(stage: Stage) -> None:
    channel = stage.transactional()
    exchange = delayed(stage, channel, "fanout")
    queue = stage.bound(channel, exchange)
    send(channel, exchange, "", "dropped", 50)
    channel.call("tx.rollback")
    send(channel, exchange, "", "kept", 100)
    channel.connection.listen(0.5)
    equal(channel.count(queue), 0, "messages before commit")
    channel.call("tx.commit")
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["kept"], "messages")
