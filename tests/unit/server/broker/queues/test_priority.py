"""Priorities as clients see them, and how the journal keeps levels apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, declare, publish
from tests.unit.server.in_memory import World, delivery

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channel 1 open and a queue `q` with levels 0 … 5."""
    client = world.connect()
    client.open()
    declare(client, "q", max_priority=5)
    return client


def publish_each(client: Client, *priorities: int | None, queue: str = "q") -> None:
    """Publish messages #0, #1, … with these priorities."""
    for number, priority in enumerate(priorities):
        more = {} if priority is None else {"priority": priority}
        publish(client, queue, b"#%d" % number, **more)


def test_highest_first_and_in_order_within_a_level(client: Client) -> None:
    """PRIO-02, PRIO-03: as measured."""
    publish_each(client, None, 1, 5, 9, 0, 3, 5)
    assert bodies(client, "q") == [b"#2", b"#3", b"#6", b"#5", b"#1", b"#0", b"#4"]


def test_consumer_gets_them_in_that_order(client: Client) -> None:
    publish_each(client, 0, 5, 1)
    heard = [delivery(what) for _, what in client.consume("q", "t")]
    assert [body for _, _, body, _ in heard] == [b"#1", b"#2", b"#0"]
    assert not any(again for _, _, _, again in heard)


def test_what_came_later_but_lower_is_no_redelivery(client: Client) -> None:
    """ACK-12: each level has a mark of its own."""
    publish(client, "q", b"high", priority=5)
    assert len(client.consume("q", "t")) == 1
    publish(client, "q", b"low", priority=1)
    client.send(wire.nack(1, 1))
    heard = [delivery(what) for _, what in client.hear()]
    assert [(body, again) for _, _, body, again in heard] == [(b"low", False), (b"high", True)]


def test_requeue_to_the_place_within_the_level(client: Client) -> None:
    """PRIO-04."""
    publish_each(client, 1, 1, 5, 5)
    for _ in range(4):
        client.method(1, commands.Basic.Get(queue="q"))
    client.hear()
    client.send(wire.nack(1, 3), wire.nack(1, 4), wire.nack(1, 1), wire.nack(1, 2))
    assert bodies(client, "q") == [b"#2", b"#3", b"#0", b"#1"]


def test_zero_is_no_priorities(client: Client) -> None:
    """PRIO-01."""
    declare(client, "plain", max_priority=0)
    publish_each(client, 1, 5, queue="plain")
    assert bodies(client, "plain") == [b"#0", b"#1"]


def test_limits_and_purge_and_counts_over_all_levels(client: Client) -> None:
    """PRIO-06, LEN-05: the head that is dropped is the highest."""
    publish_each(client, 5, 1, 3)
    assert client.message_count("q") == 3
    client.ask(1, commands.Queue.Purge(queue="q"))
    assert client.message_count("q") == 0
    declare(client, "two", max_priority=5, max_length=2)
    publish_each(client, 5, 1, 3, queue="two")
    assert bodies(client, "two") == [b"#2", b"#1"]
    declare(client, "low", max_priority=5, max_length=2, overflow="drop-lowest")
    publish_each(client, 5, 1, 3, queue="low")
    assert bodies(client, "low") == [b"#0", b"#2"]


def test_every_level_expires_at_its_own_head(client: Client) -> None:
    """TTL-03."""
    declare(client, "t", max_priority=5)
    publish(client, "t", b"high", priority=5)
    publish(client, "t", b"low", priority=1, expiration="10")
    client.world.pass_time(0.02)
    assert client.message_count("t") == 1


def test_levels_are_kept_apart_by_the_journal(client: Client) -> None:
    """A copy is stored and settled under the id of its level."""
    arguments = {"x-max-priority": 3}
    client.ask(1, commands.Queue.Declare(queue="d", durable=True, arguments=arguments))  # type: ignore[arg-type]
    base = client.world.vhost.queues["d"].spec.queue_id
    for priority in (3, 0):
        client.send(wire.publish(1, "d", b"x", wire.persistent(priority=priority)))
    client.world.sync()
    assert bodies(client, "d") == [b"x", b"x"]
    assert [store_id for store_id, _ in client.world.calls.settled] == [base + 3, base]
    client.ask(1, commands.Queue.Declare(queue="e", durable=True))
    assert client.world.vhost.queues["e"].spec.queue_id == base + 4


def test_purge_also_of_what_came_back_in_front_of_all_levels(world: World) -> None:
    """QUEUE-60, PRIO-07: the journal hears of each copy under the id of its own level."""
    client = world.connect()
    client.open()
    arguments = {"x-queue-type": "quorum"}
    client.ask(1, commands.Queue.Declare(queue="ranked", durable=True, arguments=arguments))  # type: ignore[arg-type]
    for priority in (1, 9, 5):
        client.send(wire.publish(1, "ranked", b"#", wire.persistent(priority=priority)))
    assert len(client.consume("ranked", "t")) == 3
    client.method(1, commands.Basic.Cancel(consumer_tag="t"))
    client.send(wire.nack(1, 2), wire.nack(1, 3, multiple=True))
    client.hear()
    before = len(world.calls.settled)
    held = {queue_id for ids, _, _ in world.calls.runs for queue_id in ids}
    client.method(1, commands.Queue.Purge(queue="ranked"))
    assert client.names() == ["Queue.PurgeOk"]
    settled = [queue_id for queue_id, lsns in world.calls.settled[before:] for _ in lsns]
    assert len(settled) == 3
    assert set(settled) == held
    assert len(held) == 3


@pytest.mark.parametrize("table", [{}, {"x-max-priority": 3}, {"x-queue-type": "quorum"}])
def test_what_has_come_back_takes_what_it_took(world: World, table: dict[str, object]) -> None:
    """LIMIT-21: by these octets is decided what is left to the disk."""
    client = world.connect()
    client.open()
    client.ask(1, commands.Queue.Declare(queue="d", durable=True, arguments=table))  # type: ignore[arg-type]
    bodies = (b"", b"x" * 5, b"x" * 500)
    client.send(*(wire.publish(1, "d", body, wire.persistent(priority=2)) for body in bodies))
    queue = world.vhost.queues["d"]

    def octets() -> int:
        return sum(line.octets for line in queue.lines)

    before = octets()
    assert before > sum(map(len, bodies))
    client.consume("d", "t")
    assert octets() == 0
    client.method(1, commands.Basic.Cancel(consumer_tag="t"))
    client.send(wire.nack(1, 0, multiple=True))
    world.run_turns()
    assert queue.ready_count == len(bodies)
    assert octets() == before
