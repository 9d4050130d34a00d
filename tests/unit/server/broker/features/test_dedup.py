"""De-duplication as clients see it, and what the journal keeps of keys."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, declare, got, publish, reject
from tests.unit.server.in_memory import World
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.broker import definitions
from vouchmq.server.broker.features.dedup import Dedup

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client

HEADER = "x-deduplication-header"


def keys_of_queue(client: Client) -> int:
    """How many keys the queue `q` remembers."""
    dedup = client.world.vhost.queues["q"].feature(Dedup)
    assert dedup is not None
    return len(dedup.window)


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channel 1 open."""
    client = world.connect()
    client.open()
    return client


def offer(client: Client, queue: str, body: bytes, key: Any, **more: Any) -> None:
    """Publish with a key."""
    publish(client, queue, body, headers={HEADER: key, **more})


def test_known_while_the_message_is_in_the_queue(client: Client) -> None:
    """DUP-04: ready, unacked, gone."""
    declare(client, "q", message_deduplication=True)
    offer(client, "q", b"a", "k")
    offer(client, "q", b"b", "k")
    what = got(client, "q", no_ack=False)
    offer(client, "q", b"c", "k")
    assert client.message_count("q") == 0
    client.send(wire.ack(1, what.method.delivery_tag))
    offer(client, "q", b"d", "k")
    assert bodies(client, "q") == [b"d"]
    offer(client, "q", b"e", "k")
    reject(client, "q")
    offer(client, "q", b"f", "k")
    assert bodies(client, "q") == [b"f"]


def test_the_last_ones_and_for_so_long(client: Client) -> None:
    """DUP-04, DUP-05, DUP-06."""
    declare(client, "q", message_deduplication=True, cache_size=2, cache_ttl=1000)
    for key in ("a", "b", "a", "c", "a"):
        offer(client, "q", key.encode(), key)
    assert bodies(client, "q") == [b"a", b"b", b"c", b"a"]
    offer(client, "q", b"short", "s", **{"x-cache-ttl": 100})
    client.world.pass_time(0.2)
    offer(client, "q", b"again", "s")
    client.world.pass_time(2)
    assert not keys_of_queue(client)
    assert bodies(client, "q") == [b"short", b"again"]


def test_equal_is_by_class_and_value(client: Client) -> None:
    """DUP-01."""
    declare(client, "q", message_deduplication=True)
    for key in (1, True, "1", 1.0, None, [1], {"a": 1}, None, 1, "1"):
        offer(client, "q", b"x", key)
    assert client.message_count("q") == 8


def test_refused_one_leaves_no_key(client: Client) -> None:
    """DUP-07, DUP-08: a duplicate for a full queue is acked, a new one is nacked."""
    declare(client, "q", message_deduplication=True, max_length=1, overflow="reject-publish")
    client.ask(1, commands.Confirm.Select())
    for key in ("a", "b", "a"):
        offer(client, "q", key.encode(), key)
    said = [(what.name, what.delivery_tag) for _, what in client.hear()]  # type: ignore[union-attr]
    assert said == [("Basic.Ack", 1), ("Basic.Nack", 2), ("Basic.Ack", 3)]
    got(client, "q")
    offer(client, "q", b"again", "b")
    client.hear()
    assert bodies(client, "q") == [b"again"]


def test_exchange_lets_each_key_pass_once(client: Client) -> None:
    """DUP-02, DUP-07, DUP-11."""
    client.ask(
        1,
        commands.Exchange.Declare(
            exchange="once",
            exchange_type="x-message-deduplication",
            arguments={"x-cache-size": "10"},
        ),
    )
    properties = commands.Basic.Properties(headers={HEADER: "k"})
    for _ in range(2):
        client.send(wire.publish(1, "", b"lost", properties, exchange="once"))
    declare(client, "q")
    client.ask(1, commands.Queue.Bind(queue="q", exchange="once"))
    for body in (b"a", b"b"):
        client.send(wire.publish(1, "", body, properties, exchange="once", mandatory=True))
    assert client.hear() == []
    assert bodies(client, "q") == [b"a"]


def test_a_run_of_new_keys_is_stored_as_one(client: Client) -> None:
    """It decides what a message costs: the unit is the run (docs/internals/architecture.md)."""
    arguments: dict[str, Any] = {"x-message-deduplication": True, "x-cache-size": 100}
    declared = commands.Exchange.Declare(
        exchange="once", exchange_type="fanout", durable=True, arguments=arguments
    )
    client.ask(1, declared)
    client.declare("q", durable=True)
    client.ask(1, commands.Queue.Bind(queue="q", exchange="once"))
    runs = client.world.calls.runs
    for keys, lengths in (("abc", [3]), ("def", [3]), ("gah", [1, 1])):
        runs.clear()
        contents = [wire.persistent(headers={HEADER: key}) for key in keys]
        client.send(*(wire.publish(1, "", b"x", each, exchange="once") for each in contents))
        assert [len(raws) for _, _, raws in runs] == lengths


def test_duplicates_without_a_dead_letter_exchange_vanish(client: Client) -> None:
    """DUP-16 asks for what is not there."""
    options = {"message_deduplication": True, "deduplication_dead_letter": True}
    declare(client, "q", **options)
    client.ask(1, commands.Confirm.Select())
    for body in (b"a", b"b"):
        offer(client, "q", body, "k")
    assert client.names() == ["Basic.Ack", "Basic.Ack"]
    assert bodies(client, "q") == [b"a"]


def test_commit_decides(client: Client) -> None:
    """DUP-09."""
    declare(client, "q", message_deduplication=True, cache_size=10)
    client.open(2)
    client.ask(1, commands.Tx.Select())
    offer(client, "q", b"a", "k")
    offer(client, "q", b"b", "k")
    client.ask(1, commands.Tx.Rollback())
    assert not keys_of_queue(client)
    offer(client, "q", b"c", "k")
    offer(client, "q", b"d", "k")
    client.ask(1, commands.Tx.Commit())
    assert bodies(client, "q") == [b"c"]


def test_key_is_noted_with_its_message(client: Client) -> None:
    """DUP-08, DUP-10: only for persistent ones."""
    arguments = {"x-message-deduplication": True, "x-cache-size": 10}
    client.ask(1, commands.Queue.Declare(queue="d", durable=True, arguments=arguments))  # type: ignore[arg-type]
    client.send(wire.publish(1, "d", b"x", wire.persistent(headers={HEADER: "k"})))
    offer(client, "d", b"y", "fleeting")
    queue_id = client.world.vhost.queues["d"].spec.queue_id
    assert [key for scope, key in client.world.calls.notes if scope == queue_id] == [b"dsk"]


def test_duplicate_of_one_that_is_safe_is_confirmed_at_once(client: Client) -> None:
    """CONF-06: nothing else need be synced first."""
    arguments = {"x-message-deduplication": True}
    client.ask(1, commands.Queue.Declare(queue="d", durable=True, arguments=arguments))  # type: ignore[arg-type]
    client.ask(1, commands.Confirm.Select())
    properties = wire.persistent(headers={HEADER: "k"})
    client.send(wire.publish(1, "d", b"x", properties))
    assert client.hear() == []
    client.send(wire.publish(1, "d", b"y", properties))
    assert client.hear() == []
    client.world.sync()
    assert [what.delivery_tag for _, what in client.hear()] == [2]  # type: ignore[union-attr]
    client.send(wire.publish(1, "d", b"z", properties))
    assert [what.delivery_tag for _, what in client.hear()] == [3]  # type: ignore[union-attr]


class TestKeysOfAnExchange:
    """The exchange has them, the journal keeps them (DUP-10)."""

    def declare(self, client: Client) -> None:
        arguments: dict[str, Any] = {"x-message-deduplication": True, "x-cache-size": 10}
        client.ask(
            1,
            commands.Exchange.Declare(
                exchange="once", exchange_type="fanout", durable=True, arguments=arguments
            ),
        )
        client.declare("q", durable=True)
        client.ask(1, commands.Queue.Bind(queue="q", exchange="once"))

    def offer(self, client: Client, *keys: str) -> None:
        for key in keys:
            properties = wire.persistent(headers={HEADER: key})
            client.send(wire.publish(1, "", key.encode(), properties, exchange="once"))
        client.world.sync()

    def known(self, world: World) -> int:
        window = world.vhost.exchanges["once"].window
        assert window is not None
        return len(window)

    def client_of(self, world: World) -> Client:
        client = world.connect()
        client.open()
        return client

    def test_no_queue_is_made_for_them(self) -> None:
        world = DiskWorld()
        client = self.client_of(world)
        self.declare(client)
        assert list(world.vhost.queues) == ["q"]
        # The record that older versions wrote for theirs, and read.
        records = [definitions.decode(record) for record in world.calls.records]
        names = [each.name for each in records if isinstance(each, definitions.QueueDeclared)]
        assert names == ["\nkeys\nonce", "q"]

    def test_they_are_known_after_a_power_cut(self) -> None:
        world = DiskWorld()
        client = self.client_of(world)
        self.declare(client)
        self.offer(client, "a", "b")
        again = world.after_power_cut()
        assert list(again.vhost.queues) == ["q"]
        assert self.known(again) == 2
        client = self.client_of(again)
        self.offer(client, "b", "c")
        assert bodies(client, "q") == [b"a", b"b", b"c"]

    def test_they_end_with_the_exchange(self) -> None:
        world = DiskWorld()
        client = self.client_of(world)
        self.declare(client)
        self.offer(client, "a")
        client.ask(1, commands.Exchange.Delete(exchange="once"))
        assert not any(b"keys" in record for record in world.broker.definitions())
        again = world.after_power_cut()
        client = self.client_of(again)
        self.declare(client)
        assert self.known(again) == 0
        self.offer(client, "a")
        assert bodies(client, "q") == [b"a", b"a"]

    def test_what_the_disk_refuses_is_not_known(self) -> None:
        """CONF-12."""
        world = DiskWorld()
        client = self.client_of(world)
        self.declare(client)
        self.offer(client, "a")
        world.disk.fail[("write", world.disk.calls["write"] + 1)] = errno.ENOSPC
        self.offer(client, "b")
        assert self.known(world) == 1
