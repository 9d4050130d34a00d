"""Dead letters and a disk that refuses them: nothing is lost, and nobody has anything twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies
from tests.unit.server.full_disk import refuse
from tests.unit.server.in_memory import content
from tests.unit.server.on_disk import DiskWorld

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client

SAFE = {
    "x-dead-letter-exchange": "amq.fanout",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


@pytest.fixture
def world() -> DiskWorld:
    """A broker on a disk that works."""
    return DiskWorld(rings=True)


@pytest.fixture
def client(world: DiskWorld) -> Client:
    """A client with channel 1 open."""
    client = world.connect()
    client.open()
    return client


def declare(
    client: Client, name: str, arguments: dict[str, Any] | None = None, *, durable: bool = True
) -> None:
    """Declare a queue with arguments in full."""
    what = commands.Queue.Declare(queue=name, durable=durable, arguments=arguments)
    client.ask(1, what)


def bind(client: Client, *queues: str) -> None:
    """Bind queues to the exchange of dead letters."""
    for queue in queues:
        client.ask(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))


def put(client: Client, queue: str, body: bytes = b"x", **more: object) -> None:
    """Publish a persistent message, which is synced."""
    client.send(wire.publish(1, queue, body, wire.persistent(**more)))
    client.world.sync()


def refuse_head(client: Client, queue: str, *, is_full: bool = False) -> None:
    """Get the head of a queue and refuse it; `is_full`: the disk has no room for that."""
    client.method(1, commands.Basic.Get(queue=queue))
    ((_, what),) = client.hear()
    got = content(what).method
    assert isinstance(got, commands.Basic.GetOk)
    client.world.sync()
    if is_full:
        assert isinstance(client.world, DiskWorld)
        refuse(client.world)
    client.send(wire.nack(1, got.delivery_tag or 0, requeue=False))
    client.world.run_turns()


class TestAtMostOnce:
    """Plain dead letters."""

    def test_copy_of_a_transient_queue_is_sent_again(
        self, world: DiskWorld, client: Client
    ) -> None:
        """It had gone with the others, for it has the number of a stored one."""
        declare(client, "work", {"x-dead-letter-exchange": "amq.fanout"})
        declare(client, "kept")
        declare(client, "passing", durable=False)
        bind(client, "kept", "passing")
        put(client, "work")
        refuse_head(client, "work", is_full=True)
        world.check()
        assert bodies(client, "kept") == [b"x"]
        assert bodies(client, "passing") == [b"x"]

    def test_source_that_is_not_stored(self, world: DiskWorld, client: Client) -> None:
        """The journal holds its messages for another queue, and hears nothing of their end."""
        declare(client, "passing", {"x-dead-letter-exchange": "amq.fanout"}, durable=False)
        declare(client, "other")
        declare(client, "kept")
        for queue in ("passing", "other"):
            bound = commands.Queue.Bind(queue=queue, exchange="amq.direct", routing_key="k")
            client.ask(1, bound)
        bind(client, "kept")
        client.send(wire.publish(1, "k", b"x", wire.persistent(), exchange="amq.direct"))
        refuse_head(client, "passing", is_full=True)
        world.check()
        assert bodies(client, "kept") == [b"x"]
        assert not world.vhost.queues["passing"].holds_stored

    def test_dead_letter_of_a_message_that_was_refused_itself(
        self, world: DiskWorld, client: Client
    ) -> None:
        """CONF-12: its publisher was told that it is nowhere."""
        declare(client, "work", {"x-dead-letter-exchange": "amq.fanout"})
        declare(client, "kept")
        bind(client, "kept")
        client.ask(1, commands.Confirm.Select())
        refuse(world)
        properties = wire.persistent(expiration="0")
        # Whoever asks for the queue has what is dead in it go at once.
        client.send(
            wire.publish(1, "work", b"x", properties),
            wire.method(1, commands.Queue.Declare(queue="work", passive=True)),
        )
        assert "Basic.Nack" in client.names()
        world.check()
        assert bodies(client, "kept") == []


def test_dead_letter_that_nobody_took_leaves_no_key(client: Client) -> None:
    """DUP-08: a message with the same key is no duplicate of it."""
    arguments: dict[str, Any] = {"x-message-deduplication": True}
    once = commands.Exchange.Declare(exchange="once", exchange_type="fanout", arguments=arguments)
    client.ask(1, once)
    declare(client, "work", {"x-dead-letter-exchange": "once"})
    declare(client, "full", {"x-max-length": 1, "x-overflow": "reject-publish"})
    put(client, "full", b"first")
    client.ask(1, commands.Queue.Bind(queue="full", exchange="once"))
    headers = {"x-deduplication-header": "a"}
    put(client, "work", headers=headers)
    refuse_head(client, "work")
    assert bodies(client, "full") == [b"first"]
    client.send(wire.publish(1, "", b"second", wire.persistent(headers=headers), exchange="once"))
    assert bodies(client, "full") == [b"second"]


class TestAtLeastOnce:
    """DLX-09, DLX-10."""

    def test_target_deleted_while_the_disk_is_full(self, world: DiskWorld, client: Client) -> None:
        declare(client, "work", SAFE)
        declare(client, "first")
        bind(client, "first")
        put(client, "work")
        refuse_head(client, "work", is_full=True)
        client.method(1, commands.Queue.Delete(queue="first"))
        world.check()
        client.hear()
        declare(client, "second")
        bind(client, "second")
        world.pass_time(60.0)
        world.sync()
        assert world.vhost.queues["second"].ready_count == 1

    def test_who_had_it_not_is_noted_so(self, world: DiskWorld, client: Client) -> None:
        """One target takes it and the disk does not: after a restart it must get it still."""
        declare(client, "work", SAFE)
        declare(client, "other")
        declare(client, "open")
        declare(client, "full", {"x-max-length": 1, "x-overflow": "reject-publish"})
        put(client, "full")
        bind(client, "open", "full")
        put(client, "work")
        refuse_head(client, "work", is_full=True)
        world.check()
        put(client, "other")
        after = world.after_power_cut()
        client = after.connect()
        client.open()
        assert bodies(client, "full") == [b"x"]
        after.pass_time(60.0)
        after.sync()
        assert bodies(client, "open") == [b"x"]
        assert bodies(client, "full") == [b"x"]

    def test_queue_that_looked_empty_lets_go_all_the_same(
        self, world: DiskWorld, client: Client
    ) -> None:
        """DLX-08: taken in the end, it is not in its queue as well after a restart."""
        declare(client, "work", SAFE)
        declare(client, "dead")
        bind(client, "dead")
        put(client, "work")
        refuse_head(client, "work", is_full=True)
        world.check()
        world.pass_time(60.0)
        world.sync()
        put(client, "dead", b"next")
        after = world.after_power_cut()
        assert after.vhost.queues["work"].held_count == 0
        client = after.connect()
        client.open()
        assert bodies(client, "dead") == [b"x", b"next"]

    def test_commit_that_is_refused(self, world: DiskWorld, client: Client) -> None:
        """TX-09: what was kept by it is unacked again, and nothing else."""
        declare(client, "work", SAFE)
        put(client, "work")
        client.ask(1, commands.Tx.Select())
        refuse_head(client, "work")
        refuse(world)
        client.method(1, commands.Tx.Commit())
        assert client.names() == ["Channel.Close"]
        client.method(1, commands.Channel.CloseOk())
        world.check()
        queue = world.vhost.queues["work"]
        assert (queue.ready_count, queue.unacked_count, queue.held_count) == (1, 0, 1)

    def test_key_after_a_commit_that_is_refused(self, world: DiskWorld, client: Client) -> None:
        """TX-09, DUP-04: its message is there again."""
        declare(client, "q", {"x-message-deduplication": True})
        headers = {"x-deduplication-header": "a"}
        put(client, "q", headers=headers)
        client.ask(1, commands.Tx.Select())
        client.method(1, commands.Basic.Get(queue="q"))
        client.hear()
        world.sync()
        client.send(wire.ack(1, 1))
        refuse(world)
        client.method(1, commands.Tx.Commit())
        assert client.names() == ["Channel.Close"]
        client.method(1, commands.Channel.CloseOk())
        for _ in range(2):
            world.check()
        client.open()
        put(client, "q", headers=headers)
        assert world.vhost.queues["q"].ready_count == 1

    def test_key_of_what_is_kept_is_free_after_a_restart(
        self, world: DiskWorld, client: Client
    ) -> None:
        """DUP-04."""
        declare(client, "work", {**SAFE, "x-message-deduplication": True})
        put(client, "work", headers={"x-deduplication-header": "a"})
        refuse_head(client, "work")
        declare(client, "other")
        put(client, "other")  # nobody waits for notes: they are synced with what somebody waits for
        after = world.after_power_cut()
        client = after.connect()
        client.open()
        put(client, "work", b"y", headers={"x-deduplication-header": "a"})
        assert bodies(client, "work") == [b"y"]

    def test_duplicates_that_may_be_dead_letters_are_not_kept(self, client: Client) -> None:
        """DUP-16: the queue never had them."""
        arguments = {"x-message-deduplication": True, "x-deduplication-dead-letter": True}
        declare(client, "work", {**SAFE, **arguments})
        for _ in range(3):
            put(client, "work", headers={"x-deduplication-header": "a"})
        queue = client.world.vhost.queues["work"]
        assert (queue.ready_count, queue.held_count) == (1, 1)

    def test_through_a_deduplicating_exchange(self, world: DiskWorld, client: Client) -> None:
        """Its key was looked at when it was tried first."""
        once = commands.Exchange.Declare(
            exchange="once", exchange_type="fanout", arguments={"x-message-deduplication": True}
        )
        client.ask(1, once)
        declare(client, "work", {**SAFE, "x-dead-letter-exchange": "once"})
        declare(client, "full", {"x-max-length": 1, "x-overflow": "reject-publish"})
        put(client, "full", b"first")
        client.ask(1, commands.Queue.Bind(queue="full", exchange="once"))
        put(client, "work", headers={"x-deduplication-header": "a"})
        refuse_head(client, "work")
        assert bodies(client, "full") == [b"first", b"x"]

    def test_duplicate_at_its_target_is_taken(self, world: DiskWorld, client: Client) -> None:
        """DUP-07."""
        declare(client, "work", SAFE)
        declare(client, "dead", {"x-message-deduplication": True})
        bind(client, "dead")
        headers = {"x-deduplication-header": "a"}
        put(client, "dead", headers=headers)
        put(client, "work", headers=headers)
        refuse_head(client, "work")
        assert world.vhost.queues["work"].held_count == 0
