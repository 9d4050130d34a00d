"""What the HTTP API is told of objects beyond a listing."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import WALL_MS, listed
from tests.unit.server.amqp_client import declare, publish
from tests.unit.server.in_memory import Client
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.broker.policy.policies import Policy


@pytest.fixture
def world() -> DiskWorld:
    return DiskWorld()


@pytest.fixture
def client(world: DiskWorld) -> Client:
    client = world.connect()
    client.ask(1, commands.Channel.Open())
    return client


def test_a_queue(world: DiskWorld, client: Client) -> None:
    world.vhost.policy_engine.set_policy(Policy("p", "^q", {"max-length": 5, "expires": 9}))
    world.vhost.policy_engine.set_policy(Policy("o", "^q", {"expires": 7}, is_operator=True))
    client.ask(1, commands.Queue.Declare(queue="q", exclusive=True))
    [row] = listed(world, "queue-details")
    [plain] = listed(world, "queues")
    assert plain.items() <= row.items()
    [connection] = listed(world, "connections")
    assert {name: row[name] for name in row.keys() - plain.keys()} == {
        "owner": connection["name"],
        "single_active": "",
        "exclusive_consumer": "",
        "flow": False,
        "policy_definition": {"max-length": 5, "expires": 7},
        **dict.fromkeys(("delivered_no_ack", "got", "got_no_ack", "get_empty"), 0),
        "idle_since_ms": None,
        "rates": {},
    }
    client.ask(1, commands.Basic.Consume(queue="q", consumer_tag="c", exclusive=True))
    assert listed(world, "queue-details")[0]["exclusive_consumer"] == "c"


def test_consumers(world: DiskWorld, client: Client) -> None:
    declare(client, "one", single_active_consumer=True)
    declare(client, "mine")
    for tag in "ab":
        client.ask(1, commands.Basic.Consume(queue="one", consumer_tag=tag))
    client.ask(1, commands.Basic.Consume(queue="mine", consumer_tag="c", exclusive=True))
    rows = {row["tag"]: row for row in listed(world, "consumer-details")}
    assert {tag: (row["single_active"], row["exclusive"]) for tag, row in rows.items()} == {
        "a": (True, False),
        "b": (False, False),
        "c": (False, True),
    }
    assert rows["a"]["user"] == "guest"
    assert listed(world, "queue-details", name="one")[0]["single_active"] == "a"


def test_a_connection(world: DiskWorld, client: Client) -> None:
    del client
    world.now += 3
    [row] = listed(world, "connection-details")
    assert row["opened_at_ms"] == WALL_MS - 3000, "three seconds ago"
    assert row["mechanism"] == "PLAIN"
    assert row["pending_bytes"] == 0
    assert isinstance(row["client_properties"], dict)
    # One that has not logged in yet has no properties.
    early = world.client()
    rows = {row["state"]: row for row in listed(world, "connection-details")}
    assert rows["starting"]["client_properties"] == {}
    early.connection.lost("gone")


def test_a_channel_in_a_transaction(world: DiskWorld, client: Client) -> None:
    declare(client, "q")
    client.ask(1, commands.Basic.Qos(prefetch_count=7))
    client.ask(1, commands.Tx.Select())
    for body in (b"1", b"2"):
        client.send(wire.publish(1, "q", body, commands.Basic.Properties()))
    [row] = listed(world, "channel-details")
    assert (row["consumer_prefetch"], row["uncommitted"], row["uncommitted_acks"]) == (7, 2, 0)
    assert (row["flow"], row["transactional"]) == (True, True)
    client.ask(1, commands.Tx.Commit())
    client.ask(1, commands.Basic.Get(queue="q"))
    client.method(1, commands.Basic.Ack(delivery_tag=1))
    assert listed(world, "channel-details")[0]["uncommitted_acks"] == 1


def test_for_how_long_a_consumer_has_its_oldest_message(world: DiskWorld, client: Client) -> None:
    declare(client, "q", consumer_timeout=60_000)
    declare(client, "untimed")
    for queue in ("q", "untimed"):
        client.ask(1, commands.Basic.Consume(queue=queue, consumer_tag=queue))
    rows = {row["tag"]: row["oldest_held_ms"] for row in listed(world, "consumer-details")}
    assert rows == {"q": None, "untimed": None}
    publish(client, "q", b"1")
    world.now += 2
    publish(client, "q", b"2")
    publish(client, "untimed", b"3")
    world.now += 3
    rows = {row["tag"]: row["oldest_held_ms"] for row in listed(world, "consumer-details")}
    assert rows == {"q": 5000, "untimed": 0}  # nobody has looked at that since
    world.runtime.periodic_check.check(0)
    world.now += 4
    client.method(1, commands.Basic.Ack(delivery_tag=1))
    rows = {row["tag"]: row["oldest_held_ms"] for row in listed(world, "consumer-details")}
    assert rows == {"q": 7000, "untimed": 4000}


def test_how_far_the_reader_of_a_stream_is_behind(world: DiskWorld, client: Client) -> None:
    client.ask(
        1, commands.Queue.Declare(queue="s", durable=True, arguments={"x-queue-type": "stream"})
    )
    publish(client, "s", *(b"%d" % number for number in range(5)), delivery_mode=2)
    client.ask(1, commands.Basic.Qos(prefetch_count=2))
    table = {"x-stream-offset": 1}
    consume = commands.Basic.Consume(queue="s", consumer_tag="c", arguments=table)  # type: ignore[arg-type]
    client.method(1, consume)
    client.hear()
    [row] = listed(world, "consumer-details")
    assert (row["offset"], row["behind"], row["unacknowledged"]) == (3, 2, 2)
    declare(client, "q")
    client.ask(1, commands.Basic.Consume(queue="q", consumer_tag="q"))
    [_, row] = listed(world, "consumer-details")
    assert (row["offset"], row["behind"]) == (None, None)
