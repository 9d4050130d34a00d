"""What ends is freed at once: nothing of ours refers back to itself.

The garbage collector looks at what lives longer only when memory is low (`edge/process.py`).

Spec: LIMIT-23
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import Client, World

TIMES = 5


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    """Nothing is collected but by hand."""
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def left_by(action: Callable[[int], None]) -> Counter[str]:
    """Our objects that only the collector finds, after this was done some times."""
    action(0)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    for number in range(1, 1 + TIMES):
        action(number)
    gc.collect()
    kinds = (type(found) for found in gc.garbage)
    return Counter(kind.__name__ for kind in kinds if kind.__module__.startswith("vouchmq."))


def opened() -> tuple[World, Client]:
    """A broker, and a client with channel 1 open."""
    world = World()
    client = world.connect()
    client.open()
    return world, client


def settle(world: World) -> None:
    """Run all turns, the disk included."""
    world.run_turns()
    world.sync()
    world.run_turns()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-max-length": 5},
        {"x-max-length-bytes": 500, "x-overflow": "reject-publish"},
        {"x-message-ttl": 60_000},
        {"x-dead-letter-exchange": "amq.fanout"},
        {"x-max-priority": 3},
        {"x-single-active-consumer": True},
        {"x-message-deduplication": True},
        {"x-queue-seq": True},
        {"x-queue-type": "quorum", "x-delivery-limit": 3, "x-dead-letter-exchange": "amq.fanout"},
        {"x-queue-type": "stream"},
    ],
    ids=str,
)
def test_a_deleted_queue(arguments: dict[str, Any]) -> None:
    world, client = opened()
    properties = commands.Basic.Properties(
        delivery_mode=2, priority=1, headers={"x-deduplication-header": "key"}
    )

    def action(number: int) -> None:
        name = f"q{number}"
        client.ask(1, commands.Queue.Declare(queue=name, durable=True, arguments=arguments))
        client.ask(1, commands.Queue.Bind(queue=name, exchange="amq.topic", routing_key="a.#"))
        client.send(wire.publish(1, "a.b", b"x", properties, exchange="amq.topic") * 3)
        settle(world)
        client.qos(2)
        client.method(1, commands.Basic.Consume(queue=name, consumer_tag=name))
        settle(world)
        client.hear()
        client.method(1, commands.Queue.Delete(queue=name))
        settle(world)
        client.hear()
        # The routes that were remembered for publishes and deliveries that wait hold on to it.
        client.method(1, commands.Channel.Close(0, "", 0, 0))
        settle(world)
        client.hear()
        client.open()

    assert left_by(action) == {}


def test_channels_that_end() -> None:
    world, client = opened()
    client.declare("q", durable=True)

    def action(number: int) -> None:
        del number
        for channel in (2, 3, 4):
            client.open(channel)
        client.ask(2, commands.Confirm.Select())
        client.ask(3, commands.Tx.Select())
        client.send(wire.publish(2, "q", b"x", wire.persistent()) * 3)
        client.send(wire.publish(3, "q", b"x", wire.persistent()) * 3)
        settle(world)
        client.method(4, commands.Basic.Consume(queue="q", consumer_tag="c"))
        settle(world)
        client.hear()
        for channel in (2, 3, 4):
            client.method(channel, commands.Channel.Close(0, "", 0, 0))
        settle(world)
        client.hear()

    assert left_by(action) == {}


@pytest.mark.parametrize(
    "kind", ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-delayed-message"]
)
def test_a_deleted_exchange(kind: str) -> None:
    world, client = opened()
    client.declare("q")
    arguments: Any = {"x-delayed-type": "fanout"} if kind == "x-delayed-message" else {}

    def action(number: int) -> None:
        name = f"x{number}"
        declare = commands.Exchange.Declare(
            exchange=name, exchange_type=kind, durable=True, arguments=arguments
        )
        client.ask(1, declare)
        client.ask(1, commands.Queue.Bind(queue="q", exchange=name, routing_key="1"))
        delayed = commands.Basic.Properties(headers={"x-delay": 100})
        client.send(wire.publish(1, "1", b"x", delayed, exchange=name))
        settle(world)
        client.ask(1, commands.Exchange.Delete(exchange=name))
        settle(world)
        client.hear()

    assert left_by(action) == {}
