"""What must not grow for ever: deadlines, keys, counts and what is remembered of properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, declare, got, publish
from tests.unit.server.full_disk import refuse
from tests.unit.server.in_memory import World
from tests.unit.server.on_disk import DiskWorld
from vouchmq.protocol.contents import REMEMBERED_OCTETS, remembered
from vouchmq.server.broker.dead_letter import dead_letters
from vouchmq.server.broker.features.dedup import Dedup
from vouchmq.server.broker.timers import MOST_MS

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client

KEY = "x-deduplication-header"


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


class TestTimers:
    """One heap for everything that has a deadline."""

    def test_far_deadlines_leave_nothing_behind(self, world: World, client: Client) -> None:
        """A head that is due in ten years, and each second one before it that is due now."""
        declare(client, "q", max_priority=9)
        publish(client, "q", b"old", expiration="315360000000")
        for _ in range(200):
            publish(client, "q", b"new", expiration="10", priority=9)
            world.pass_time(1.0)
        assert world.vhost.queues["q"].ready_count == 1
        assert len(world.timers._heap) < 100

    def test_far_deadlines_are_kept(self, world: World, client: Client) -> None:
        """TTL-04, over many looks at the clock."""
        declare(client, "q", message_ttl=3 * MOST_MS)
        declare(client, "lease", expires=3 * MOST_MS)
        publish(client, "q", b"x")
        for _ in range(17):
            world.pass_time(10.0)
        assert world.vhost.queues["q"].ready_count == 1
        assert "lease" in world.vhost.queues
        for _ in range(2):
            world.pass_time(10.0)
        assert world.vhost.queues["q"].ready_count == 0
        assert "lease" not in world.vhost.queues

    def test_a_bug_in_one_job_stops_no_other(self, world: World) -> None:
        done: list[int] = []
        due_ms = world.timers.now_ms() + 10
        world.timers.at(due_ms, lambda: done.append(1))
        world.timers.at(due_ms, lambda: done.append(1 // 0))
        world.timers.at(due_ms, lambda: done.append(3))
        with pytest.raises(ZeroDivisionError):
            world.pass_time(0.011)
        world.pass_time(0.1)
        assert done == [1, 3]

    def test_deleted_queue_waits_for_nothing(self, world: World, client: Client) -> None:
        declare(client, "q", delayed_retry_type="all", delayed_retry_min=10**9)
        declare(client, "once", message_deduplication=True, cache_ttl=10**9)
        publish(client, "q", b"x")
        publish(client, "once", b"x", headers={KEY: "a"})
        what = got(client, "q", no_ack=False)
        client.send(wire.nack(1, what.method.delivery_tag))
        for queue in ("q", "once"):
            client.ask(1, commands.Queue.Delete(queue=queue))
        world.pass_time(MOST_MS / 1000 + 1)
        assert not world.timers._heap


class TestPurge:
    """What a purge leaves of what is not ready any more."""

    def test_transient_levels_beyond_memory(self) -> None:
        """QUEUE-60."""
        world = DiskWorld()
        client = world.connect()
        client.open()
        declare(client, "q", max_priority=3)
        queue = world.vhost.queues["q"]
        publish(client, "q", *(b"x" * 1000 for _ in range(200)), priority=2)
        for line in queue.lines:
            line.page_out(1)
        assert any(line.backlog is not None for line in queue.lines)
        _, what = client.ask(1, commands.Queue.Purge(queue="q"))
        assert isinstance(what, commands.Queue.PurgeOk)
        assert (what.message_count, queue.ready_count) == (200, 0)
        assert bodies(client, "q") == []

    def test_counts_of_returns(self, world: World, client: Client) -> None:
        """REDELIVER-13: but for those that are still out."""
        arguments = {"x-delivery-limit": 5}
        what = commands.Queue.Declare(queue="q", durable=True, arguments=arguments)  # type: ignore[arg-type]
        client.ask(1, what)
        publish(client, "q", b"1", b"2", b"3", delivery_mode=2)
        for _ in range(3):
            got(client, "q", no_ack=False)
        client.send(wire.nack(1, 3, requeue=True), wire.nack(1, 1), wire.nack(1, 2))
        out = got(client, "q", no_ack=False)
        notes = [key for key in world.calls.notes if key[1][:1] == b"r"]
        assert len(notes) == 3
        client.ask(1, commands.Queue.Purge(queue="q"))
        notes = [key for key in world.calls.notes if key[1][:1] == b"r"]
        assert len(notes) == 1
        client.send(wire.nack(1, out.method.delivery_tag))
        assert got(client, "q").properties.headers["x-delivery-count"] == 2


class TestManyDeaths:
    """A client that refuses thousands of deliveries at once (LIMIT-23)."""

    COUNT = 500

    @pytest.fixture
    def client(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
        """With channel 2 in a transaction; a turn may make 100 dead letters, or one batch more."""
        monkeypatch.setattr(dead_letters, "TURN_DEAD_LETTERS", 100)
        declare(client, "dead")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        what = commands.Queue.Declare(queue="q", durable=True, arguments=arguments)  # type: ignore[arg-type]
        client.ask(1, what)
        publish(client, "q", *(b"%d" % n for n in range(self.COUNT)), delivery_mode=2)
        client.open(2)
        client.ask(2, commands.Tx.Select())
        return client

    def test_in_several_turns(self, world: World, client: Client) -> None:
        client.consume("q", "c")
        client.send(wire.nack(1, 0, multiple=True, requeue=False))
        queue, dead = world.vhost.queues["q"], world.vhost.queues["dead"]
        assert (dead.ready_count, queue.unacked_count, queue.held_count) == (0, 0, self.COUNT)
        assert queue.holds_stored
        (job,), world.scheduled[:] = list(world.scheduled), []
        job()
        assert 100 <= dead.ready_count < 200
        world.run_turns()
        assert (dead.ready_count, queue.held_count) == (self.COUNT, 0)
        assert bodies(client, "dead") == [b"%d" % n for n in range(self.COUNT)]
        assert sum(len(lsns) for _, lsns in world.calls.settled) == self.COUNT

    def test_commit_is_one_block(self, world: World, client: Client) -> None:
        """TX-08."""
        client.consume("q", "c", channel=2)
        client.send(wire.nack(2, 0, multiple=True, requeue=False))
        client.method(2, commands.Tx.Commit())
        assert world.vhost.queues["dead"].ready_count == self.COUNT

    def test_deleted_meanwhile(self, world: World, client: Client) -> None:
        client.consume("q", "c")
        client.send(wire.nack(1, 0, multiple=True, requeue=False))
        client.method(1, commands.Queue.Delete(queue="q"))
        client.hear()
        assert world.vhost.queues["dead"].ready_count == 0


def test_full_queues_in_a_row_do_not_recurse(world: World, client: Client) -> None:
    """DLX-12: each has to let an expired head go before it can take that of the one before."""
    count = 200
    for n in range(count):
        more = {"dead_letter_exchange": "", "dead_letter_routing_key": f"q{n + 1}"}
        declare(client, f"q{n}", max_length=1, overflow="reject-publish", message_ttl=100, **more)
    for n in range(count):
        publish(client, f"q{n}", b"x")
    world.now += 1.0
    publish(client, "q0", b"y")
    assert client.names() == []
    assert world.vhost.queues["q0"].ready_count == 1


class TestKeys:
    """Windows with times to live."""

    def test_swept_in_any_order(self, world: World, client: Client) -> None:
        """DUP-05, DUP-06."""
        declare(client, "q", message_deduplication=True, cache_ttl=5000)
        dedup = world.vhost.queues["q"].feature(Dedup)
        assert dedup is not None
        window = dedup.window
        publish(client, "q", b"x", headers={KEY: "a"})
        publish(client, "q", b"x", headers={KEY: "b"})
        world.pass_time(4.5)
        publish(client, "q", b"x", headers={KEY: "c"})
        world.pass_time(1.0)
        assert len(window) == 1
        publish(client, "q", b"x", headers={KEY: "d", "x-cache-ttl": 100})
        publish(client, "q", b"x", headers={KEY: "e", "x-cache-ttl": 1})
        world.pass_time(1.0)
        assert len(window) == 1
        world.pass_time(5.0)
        assert len(window) == 0


def test_only_so_many_property_blocks_are_remembered() -> None:
    looked_at: list[bytes] = []

    def look(block: bytes) -> int:
        looked_at.append(block)
        return len(block)

    size = remembered(look, 2)
    for block in (b"a", b"b", b"b", b"c", b"a"):
        assert size(block) == 1
    assert looked_at == [b"a", b"b", b"c", b"a"]


def test_large_property_blocks_are_not_remembered() -> None:
    asked: list[bytes] = []

    @remembered
    def size_of(block: bytes) -> int:
        asked.append(block)
        return len(block)

    small, large = b"x" * REMEMBERED_OCTETS, b"x" * (REMEMBERED_OCTETS + 1)
    assert [size_of(small), size_of(small), size_of(large), size_of(large)] == [
        REMEMBERED_OCTETS,
        REMEMBERED_OCTETS,
        REMEMBERED_OCTETS + 1,
        REMEMBERED_OCTETS + 1,
    ]
    assert asked == [small, large, large]


class TestNotesThatWereRefused:
    """A full disk takes no notes either; what they say is said again."""

    def test_counts_of_returns(self) -> None:
        """REDELIVER-13."""
        world = DiskWorld()
        client = world.connect()
        client.open()
        arguments = {"x-delivery-limit": 5}
        queue = commands.Queue.Declare(queue="q", durable=True, arguments=arguments)  # type: ignore[arg-type]
        client.ask(1, queue)
        client.send(wire.publish(1, "q", b"x", wire.persistent()))
        world.sync()
        what = got(client, "q", no_ack=False)
        client.send(wire.nack(1, what.method.delivery_tag))
        world.sync()
        refuse(world)
        got(client, "q", no_ack=False)
        for _ in range(2):
            world.check()
        client.ask(1, commands.Queue.Declare(queue="other", durable=True))
        client.send(wire.publish(1, "other", b"x", wire.persistent()))
        world.sync()
        after = world.after_power_cut().connect()
        after.open()
        headers = got(after, "q", no_ack=False).properties.headers
        assert headers["x-delivery-count"] == 2

    def test_own_times_to_live(self) -> None:
        """TTL-01."""
        world = DiskWorld()
        client = world.connect()
        client.open()
        client.ask(1, commands.Queue.Declare(queue="q", durable=True))
        client.ask(1, commands.Confirm.Select())
        refuse(world)
        for _ in range(2):
            client.send(wire.publish(1, "q", b"x", wire.persistent(expiration="60000")))
            world.sync()
            world.check()
        again = world.after_power_cut()
        again.now += 61.0
        client = again.connect()
        client.open()
        assert bodies(client, "q") == []
