"""Events of a broker, as whoever watches gets them."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.unit.server.admin.listings import Reader
from tests.unit.server.in_memory import World
from vouchmq.server.admin.commands import ControlCommands
from vouchmq.server.admin.watch import WatchCommand
from vouchmq.server.broker.policy.policies import Policy


@pytest.fixture
def world() -> World:
    return World()


def watching(world: World, **arguments: object) -> Reader:
    registry = ControlCommands()
    WatchCommand(world.runtime.events, lambda: 7).register(registry)
    reader = Reader()
    registry.run({"command": "watch events", **arguments}, reader)
    assert reader.facts is None
    return reader


def told(reader: Reader) -> list[tuple[str, dict[str, Any]]]:
    assert all(row["time_ms"] == 7 for row in reader.lines)
    got = [(row["event"], row["facts"]) for row in reader.lines]
    reader.lines.clear()
    return got


def test_all_that_comes_and_goes_is_told(world: World) -> None:
    reader = watching(world)
    client = world.connect()
    client.ask(1, commands.Channel.Open())
    name = world.runtime.connections and next(iter(world.runtime.connections)).label
    who = {"connection": name, "channel": 1, "user": "guest", "vhost": "/"}
    identity = {"name": name, "user": "guest", "vhost": "/", "client_name": ""}
    assert told(reader) == [("connection.created", identity), ("channel.created", who)]
    client.ask(1, commands.Exchange.Declare(exchange="x", exchange_type="fanout", durable=True))
    client.ask(1, commands.Queue.Declare(queue="q", durable=True))
    client.ask(1, commands.Queue.Bind(queue="q", exchange="x", routing_key="k"))
    client.ask(1, commands.Queue.Bind(queue="q", exchange="x", routing_key="k"))
    client.ask(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    world.vhost.policy_engine.set_policy(Policy("p", "^q", {"max-length": 5}))
    queue = {"vhost": "/", "name": "q"}
    binding = {
        "vhost": "/",
        "source": "x",
        "destination": "q",
        "destination_type": "queue",
        "routing_key": "k",
    }
    consumer = {**who, "queue": "q", "tag": "c"}
    assert told(reader) == [
        ("exchange.created", {"vhost": "/", "name": "x", "type": "fanout"}),
        ("queue.created", {**queue, "durable": True}),
        ("binding.created", binding),
        ("consumer.created", consumer),
        ("policy.set", {"vhost": "/", "name": "p"}),
    ]
    world.vhost.policy_engine.delete_policy("p")
    client.ask(1, commands.Queue.Unbind(queue="q", exchange="x", routing_key="k"))
    client.ask(1, commands.Basic.Cancel(consumer_tag="c"))
    client.ask(1, commands.Queue.Delete(queue="q"))
    client.ask(1, commands.Exchange.Delete(exchange="x"))
    client.ask(1, commands.Channel.Close(200, "", 0, 0))
    client.ask(0, commands.Connection.Close(200, "", 0, 0))
    assert told(reader) == [
        ("policy.cleared", {"vhost": "/", "name": "p"}),
        ("binding.deleted", binding),
        ("consumer.deleted", consumer),
        ("queue.deleted", queue),
        ("exchange.deleted", {"vhost": "/", "name": "x"}),
        ("channel.closed", who),
        ("connection.closed", identity),
    ]


def test_a_lost_connection_tells_of_all_that_goes_with_it(world: World) -> None:
    client = world.connect()
    client.ask(1, commands.Channel.Open())
    client.ask(1, commands.Queue.Declare(queue="mine", exclusive=True))
    client.ask(1, commands.Basic.Consume(queue="mine", consumer_tag="c"))
    reader = watching(world)
    client.connection.lost("gone")
    world.sync()
    assert [event for event, _ in told(reader)] == [
        "channel.closed",
        "consumer.deleted",
        "queue.deleted",
        "connection.closed",
    ]


def test_alarms_concern_every_virtual_host(world: World) -> None:
    reader = watching(world, vhost="another")
    declare = commands.Queue.Declare(queue="q")
    client = world.connect()
    client.ask(1, commands.Channel.Open())
    client.ask(1, declare)
    world.runtime.alarms.storage_failed(10)
    world.runtime.alarms.storage_recovered()
    facts = {"resource": "storage", "free_bytes": 10}
    assert told(reader) == [("alarm.set", facts), ("alarm.cleared", facts)]


def test_only_the_events_asked_for(world: World) -> None:
    reader = watching(world, prefixes=["queue.", "binding."])
    client = world.connect()
    client.ask(1, commands.Channel.Open())
    client.ask(1, commands.Queue.Declare(queue="q"))
    assert [event for event, _ in told(reader)] == ["queue.created"]


def test_who_does_not_keep_up_hears_how_many_it_has_missed(world: World) -> None:
    reader = watching(world, prefixes=["queue."])
    client = world.connect()
    client.ask(1, commands.Channel.Open())
    reader.is_full = True
    for name in ("a", "b", "c"):
        client.ask(1, commands.Queue.Declare(queue=name))
    assert told(reader) == []
    reader.is_full = False
    client.ask(1, commands.Queue.Declare(queue="d"))
    assert [(event, facts.get("count"), facts.get("name")) for event, facts in told(reader)] == [
        ("events.missed", 3, None),
        ("queue.created", None, "d"),
    ]


def test_a_reader_that_has_gone_is_told_nothing(world: World) -> None:
    reader = watching(world)
    [gone] = reader.gone
    gone()
    world.connect()
    assert told(reader) == []
