"""Section DELAY 16.2: held messages over restarts, without a route, and in chains."""

from __future__ import annotations

import time
from collections.abc import Iterator

from vouchmq.conformance.case import case
from vouchmq.conformance.cases.delay import KIND, PATIENCE_S, arrives, delayed, send
from vouchmq.conformance.events import Event
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage

# --- restart ----------------------------------------------------------------------------------


def _hold(stage: Stage, delay: int, *, is_durable: bool, mode: int) -> tuple[str, str]:
    """A message that is held; exchange and queue."""
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout", durable=is_durable)
    queue = stage.queue(channel, durable=True)
    channel.call("queue.bind", queue=queue, exchange=exchange)
    channel.publish(exchange, "", "x", headers={"x-delay": delay}, delivery_mode=mode)
    channel.confirms(1)
    return exchange, queue


@case("DELAY-17", says="a held persistent message keeps its due time", mark="+", restart=True)
def survives(stage: Stage) -> Iterator[None]:
    began = time.monotonic()
    _, queue = _hold(stage, 5000, is_durable=True, mode=2)
    yield
    channel = stage.channel()
    channel.consume(queue, no_ack=True)
    event: Event = channel.deliver(PATIENCE_S)
    check(event.at - began >= 5 - 0.01, f"came after {event.at - began:.3f} s")
    equal((event.body, event.headers), (b"x", {"x-delay": -5000}), "message")


@case(
    "DELAY-17", says="what fell due while down comes at start, in due order", mark="+", restart=True
)
def due_while_down(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout", durable=True)
    queue = stage.queue(channel, durable=True)
    channel.call("queue.bind", queue=queue, exchange=exchange)
    for body, delay in (("third", 3), ("first", 1), ("second", 2)):
        send(channel, exchange, "", body, 60 + delay * 20)
    channel.confirms(3)
    yield
    channel = stage.channel()
    channel.holds(queue, 3)
    equal(channel.drain(queue), ["first", "second", "third"], "order")


@case("DELAY-17", says="a held transient message is lost", mark="+", restart=True)
def transient_is_lost(stage: Stage) -> Iterator[None]:
    _, queue = _hold(stage, 3000, is_durable=True, mode=1)
    _, other = _hold(stage, 3000, is_durable=True, mode=2)
    yield
    channel = stage.channel()
    channel.holds(other, 1)
    equal(channel.count(queue), 0, "messages that were transient")


# --- nowhere to go, deletion, chains ----------------------------------------------------------


@case("DELAY-18", says="unroutable at the end: the alternate exchange gets it", mark="+")
def alternate(stage: Stage) -> None:
    channel = stage.channel()
    spare = stage.exchange(channel, "fanout")
    queue = stage.bound(channel, spare)
    exchange = delayed(stage, channel, "direct", more={"alternate-exchange": spare})
    send(channel, exchange, "nobody", "x", 100)
    channel.holds(queue, 1)
    equal(channel.get(queue).text("exchange"), exchange, "exchange in the delivery")


@case(
    "DELAY-18", says="unroutable at the end without one: dropped, the exchange works on", mark="+"
)
def dropped(stage: Stage) -> None:
    channel = stage.channel()
    exchange = delayed(stage, channel, "direct")
    send(channel, exchange, "nobody", "x", 50)
    queue = stage.bound(channel, exchange, "k")
    send(channel, exchange, "k", "y", 300)
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["y"], "messages")


@case("DELAY-19", says="deleting the exchange drops what it holds", mark="+", slow=True)
def deleted(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout")
    queue = stage.bound(channel, exchange)
    send(channel, exchange, "", "x", 1500)
    channel.confirms(1)
    channel.call("exchange.delete", exchange=exchange)
    channel.call(
        "exchange.declare", exchange=exchange, type=KIND, arguments={"x-delayed-type": "fanout"}
    )
    channel.call("queue.bind", queue=queue, exchange=exchange)
    channel.connection.listen(2.5)
    equal(channel.count(queue), 0, "messages")


@case("DELAY-19", says="if-unused looks at bindings only, not at held messages", mark="+")
def if_unused(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = delayed(stage, channel, "fanout")
    send(channel, exchange, "", "x", 600_000)
    channel.confirms(1)
    channel.call("exchange.delete", exchange=exchange, if_unused=True)


@case("DELAY-20", says="arriving over a binding it is delayed, too", mark="+", slow=True)
def over_a_binding(stage: Stage) -> None:
    channel = stage.channel()
    source = stage.exchange(channel, "fanout")
    exchange = delayed(stage, channel, "fanout")
    channel.call("exchange.bind", source=source, destination=exchange)
    direct, held = stage.bound(channel, source), stage.bound(channel, exchange)
    channel.consume(held, no_ack=True)
    began = time.monotonic()
    send(channel, source, "", "x", 1200)
    channel.holds(direct, 1)
    arrives(stage, channel, began, 1.2)
    equal(channel.get(direct).headers, {"x-delay": 1200}, "headers beside the delay")


@case("DELAY-20", says="dead-lettered into it, it is delayed, too", mark="+", slow=True)
def from_a_dlx(stage: Stage) -> None:
    channel = stage.channel()
    exchange = delayed(stage, channel, "fanout")
    target = stage.bound(channel, exchange)
    source = stage.queue(channel, arguments={"x-dead-letter-exchange": exchange})
    channel.publish("", source, "x", headers={"x-delay": 1200})
    channel.holds(source, 1)
    channel.consume(target, no_ack=True)
    event = channel.get(source, no_ack=False)
    began = time.monotonic()
    channel.reject(event.tag, requeue=False)
    arrives(stage, channel, began, 1.2)
