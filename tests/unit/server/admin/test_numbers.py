"""What is worked out of queues and virtual hosts when somebody asks (HTTP-14, HTTP-19, HTTP-23)."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import listed
from tests.unit.server.amqp_client import declare, publish
from tests.unit.server.in_memory import Client
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.admin.numbers import sizes
from vouchmq.server.auth.attempts import AMQP, HTTP, AttemptCounts, LoginAttempts


@pytest.fixture
def world() -> DiskWorld:
    return DiskWorld()


@pytest.fixture
def client(world: DiskWorld) -> Client:
    client = world.connect()
    client.ask(1, commands.Channel.Open())
    return client


def test_bytes_of_ready_and_of_unacknowledged_messages(world: DiskWorld, client: Client) -> None:
    client.ask(1, commands.Queue.Declare(queue="q", durable=True))
    for size, is_persistent in ((10, True), (5, False), (0, True), (4, True)):
        mode = commands.Basic.Properties(delivery_mode=2 if is_persistent else 1)
        client.send(wire.publish(1, "q", b"x" * size, properties=mode))
    client.ask(1, commands.Basic.Get(queue="q"))
    [row] = listed(world, "queue-sizes", name="q")
    assert row == {
        "vhost": "/",
        "name": "q",
        "ready_bytes": 9,
        "unacknowledged_bytes": 10,
        "persistent": 3,
        "persistent_bytes": 14,
        "ready_in_memory": 3,
        "ready_bytes_in_memory": 9,
        "memory_bytes": row["memory_bytes"],
        "has_room": False,
        "head_timestamp": None,
    }
    client.method(1, commands.Basic.Ack(delivery_tag=1))
    assert listed(world, "queue-sizes")[0]["unacknowledged_bytes"] == 0


def test_of_many_messages_some_are_looked_at(
    world: DiskWorld, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(client, "q")
    publish(client, "q", *[b"x" * 7] * 50)
    monkeypatch.setattr(sizes, "LOOKED_AT", 10)
    assert listed(world, "queue-sizes")[0]["ready_bytes"] == 350


def test_a_queue_has_room_while_a_consumer_has(world: DiskWorld, client: Client) -> None:
    declare(client, "q")
    assert listed(world, "queue-sizes")[0]["has_room"] is False
    client.ask(1, commands.Basic.Qos(prefetch_count=1))
    client.ask(1, commands.Basic.Consume(queue="q"))
    assert listed(world, "queue-sizes")[0]["has_room"] is True
    publish(client, "q", b"1", b"2")
    assert listed(world, "queue-sizes")[0]["has_room"] is False


def test_what_deliveries_consist_of(world: DiskWorld, client: Client) -> None:
    declare(client, "q")
    publish(client, "q", *[b"x"] * 6)
    client.ask(1, commands.Basic.Get(queue="q"))
    client.ask(1, commands.Basic.Get(queue="q", no_ack=True))
    client.ask(1, commands.Basic.Qos(prefetch_count=1))
    for tag, no_ack in (("acks", False), ("never", True)):
        client.method(1, commands.Basic.Consume(queue="q", consumer_tag=tag, no_ack=no_ack))
        client.hear()
        client.ask(1, commands.Basic.Cancel(consumer_tag=tag))
    client.ask(1, commands.Basic.Get(queue="q"))
    expected = {"delivered_no_ack": 3, "got": 1, "got_no_ack": 1, "get_empty": 1, "delivered": 6}
    for what in ("queue-details", "channel-details", "overview", "vhost-totals"):
        [row] = listed(world, what)
        assert {name: row[name] for name in expected} == expected, what
    client.ask(1, commands.Channel.Close(200, "", 0, 0))
    for what in ("overview", "vhost-totals"):
        [row] = listed(world, what)
        assert {name: row[name] for name in expected} == expected, what
    assert row["published"] == 6 and row["received_bytes"] > 0


def test_queues_that_come_and_go(world: DiskWorld, client: Client) -> None:
    for _ in range(2):
        declare(client, "q")
    client.ask(1, commands.Queue.Delete(queue="q"))
    declare(client, "r")
    [row] = listed(world, "overview")
    names = ("queues_declared", "queues_created", "queues_deleted")
    assert [row[name] for name in names] == [3, 2, 1]


def test_login_attempts() -> None:
    attempts = LoginAttempts()
    attempts.count(AMQP, is_ok=True)
    attempts.count(AMQP, is_ok=False)
    attempts.count(HTTP, is_ok=True)
    assert attempts.by_protocol == {AMQP: AttemptCounts(1, 1), HTTP: AttemptCounts(1, 0)}
    attempts.reset()
    assert attempts.by_protocol == {AMQP: AttemptCounts(), HTTP: AttemptCounts()}
