"""Delaying exchanges as clients see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, declare, got, reject
from tests.unit.server.in_memory import World, closes_channel

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channel 1 open, a delaying direct exchange `later` and its queue `q`."""
    client = world.connect()
    client.open()
    delaying(client, "later")
    declare(client, "q")
    client.ask(1, commands.Queue.Bind(queue="q", exchange="later", routing_key="q"))
    return client


def delaying(client: Client, name: str, *, durable: bool = False, **arguments: Any) -> None:
    """Declare a delaying exchange."""
    arguments = arguments or {"x-delayed-type": "direct"}
    client.ask(
        1,
        commands.Exchange.Declare(
            exchange=name, exchange_type="x-delayed-message", durable=durable, arguments=arguments
        ),
    )


def publish(client: Client, body: bytes, delay: Any, key: str = "q", **more: Any) -> None:
    """Publish with an x-delay header; None: without it."""
    headers = {} if delay is None else {"x-delay": delay}
    properties = commands.Basic.Properties(headers=headers, **more)
    client.send(wire.publish(1, key, body, properties, exchange="later"))
    client.world.run_turns()


def test_held_then_routed_with_the_delay_negated(client: Client) -> None:
    """DELAY-12, DELAY-14."""
    publish(client, b"x", 100)
    client.world.pass_time(0.09)
    assert got(client, "q") is None
    client.world.pass_time(0.02)
    what = got(client, "q")
    assert what.body == b"x"
    assert what.properties.headers == {"x-delay": -100}
    assert what.method.exchange == "later"


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_as_soon_as_its_time_is_there(client: Client, delay: int) -> None:
    """DELAY-14: not a millisecond later, also when others wait for longer."""
    publish(client, b"long", 5000)
    publish(client, b"x", delay)
    client.world.pass_time((delay - 0.5) / 1000)
    assert got(client, "q") is None
    client.world.pass_time(0.0006)
    assert bodies(client, "q") == [b"x"]


@pytest.mark.parametrize("delay", [None, 0, -5, "soon", "-7", True])
def test_no_delay_is_routed_at_once(client: Client, delay: Any) -> None:
    publish(client, b"x", delay)
    assert bodies(client, "q") == [b"x"]


@pytest.mark.parametrize("delay", ["100", 100.9])
def test_numbers_of_other_kinds(client: Client, delay: Any) -> None:
    publish(client, b"x", delay)
    assert bodies(client, "q") == []
    client.world.pass_time(0.101)
    assert bodies(client, "q") == [b"x"]


def test_by_due_time_then_publish_order(client: Client) -> None:
    """DELAY-15."""
    for body, delay in ((b"c", 300), (b"a", 100), (b"d", 300), (b"b", 200)):
        publish(client, body, delay)
    client.world.pass_time(1)
    assert bodies(client, "q") == [b"a", b"b", b"c", b"d"]


def test_bindings_of_the_end_count(client: Client) -> None:
    """DELAY-13, DELAY-16, DELAY-18."""
    client.ask(1, commands.Confirm.Select())
    headers = commands.Basic.Properties(headers={"x-delay": 100})
    client.send(wire.publish(1, "new", b"x", headers, exchange="later", mandatory=True))
    assert [what.name for _, what in client.hear()] == ["Basic.Ack"]  # type: ignore[union-attr]
    client.ask(1, commands.Queue.Bind(queue="q", exchange="later", routing_key="new"))
    client.world.pass_time(0.2)
    assert bodies(client, "q") == [b"x"]
    publish(client, b"lost", 100, "nowhere")
    client.hear()
    client.world.pass_time(0.2)
    assert client.world.dead_letter_publisher.unrouted_count == 1


def test_too_long_is_refused(client: Client) -> None:
    text = "PRECONDITION_FAILED - invalid x-delay '315360000001': {value_too_large,315360000001}"
    with closes_channel(client, 406, text, (60, 40)):
        publish(client, b"x", 315_360_000_001)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-other": 1}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        (
            {"x-delayed-type": "colour"},
            "Invalid argument, 'x-delayed-type' must be an existing exchange type",
        ),
        (
            {"x-delayed-type": "x-delayed-message"},
            "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'",
        ),
    ],
)
def test_type_must_be_one(client: Client, arguments: Any, text: str) -> None:
    """DELAY-10."""
    with closes_channel(client, 406, f"PRECONDITION_FAILED - {text}", (40, 10)):
        client.method(
            1,
            commands.Exchange.Declare(
                exchange="bad", exchange_type="x-delayed-message", arguments=arguments
            ),
        )


def test_dead_letters_are_delayed_too(client: Client) -> None:
    """DELAY-20."""
    declare(client, "work", dead_letter_exchange="later", dead_letter_routing_key="q")
    properties = commands.Basic.Properties(headers={"x-delay": 100})
    client.send(wire.publish(1, "work", b"x", properties))
    reject(client, "work")
    assert bodies(client, "q") == []
    client.world.pass_time(0.2)
    assert bodies(client, "q") == [b"x"]


def test_deletion_drops_what_is_held(client: Client) -> None:
    """DELAY-19."""
    publish(client, b"x", 100)
    client.ask(1, commands.Exchange.Delete(exchange="later"))
    assert client.world.vhost.queues.keys() == {"q"}
    assert not client.world.vhost.delay_queues
    client.world.pass_time(0.2)
    assert bodies(client, "q") == []


def test_hold_cannot_be_named(client: Client) -> None:
    publish(client, b"x", 100)
    client.send(wire.publish(1, "\ndelayed\nlater", b"y"))
    client.world.run_turns()
    assert client.world.vhost.delay_queues["later"].ready_count == 1


def test_stored_ones_are_the_journals(client: Client) -> None:
    """DELAY-16, DELAY-17: both in one block when the time has come."""
    delaying(client, "durable", durable=True, **{"x-delayed-type": "fanout"})
    client.ask(1, commands.Queue.Declare(queue="d", durable=True))
    client.ask(1, commands.Queue.Bind(queue="d", exchange="durable"))
    client.ask(1, commands.Confirm.Select())
    properties = wire.persistent(headers={"x-delay": 100})
    client.send(wire.publish(1, "", b"x", properties, exchange="durable"))
    assert client.hear() == []
    client.world.sync()
    assert [what.name for _, what in client.hear()] == ["Basic.Ack"]  # type: ignore[union-attr]
    journal = client.world.calls
    assert (len(journal.runs), len(journal.settled)) == (1, 0)
    client.world.pass_time(0.2)
    assert (len(journal.runs), len(journal.settled)) == (2, 1)
    assert bodies(client, "d") == [b"x"]


def test_every_one_of_several_is_settled(client: Client) -> None:
    delaying(client, "durable", durable=True, **{"x-delayed-type": "fanout"})
    for delay in (100, 200, 300):
        properties = wire.persistent(headers={"x-delay": delay})
        client.send(wire.publish(1, "", b"x", properties, exchange="durable"))
    for done in (1, 2, 3):
        client.world.pass_time(0.1)
        assert len(client.world.calls.settled) == done


def test_released_message_has_its_own_time_to_live(client: Client) -> None:
    """TTL-01: it begins when the message reaches its queue."""
    publish(client, b"x", 10, expiration="50")
    client.world.pass_time(0.02)
    queue = client.world.vhost.queues["q"]
    assert queue.ready_count == 1
    client.world.pass_time(0.06)
    assert queue.ready_count == 0
