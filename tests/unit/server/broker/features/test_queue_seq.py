"""The place of each copy in its queue, as consumers that ask for it see it (SEQ)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import closes_channel, content
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.broker.features.queue_seq import QueueSequence
from vouchmq.server.broker.paging.pager import FIRST_REFILL_MESSAGES

if TYPE_CHECKING:
    from pamqp.common import FieldTable

    from tests.unit.server.in_memory import Client

ASKING: FieldTable = {"x-queue-seq": True}


@pytest.fixture
def world() -> DiskWorld:
    """A broker with a journal."""
    return DiskWorld()


@pytest.fixture
def client(world: DiskWorld) -> Client:
    """A client with channel 1 open."""
    return connected(world)


def connected(world: DiskWorld) -> Client:
    client = world.connect()
    client.open()
    return client


def declare(client: Client, name: str, *, durable: bool = True, **arguments: object) -> None:
    table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    client.ask(1, commands.Queue.Declare(queue=name, durable=durable, arguments=table))  # type: ignore[arg-type]


def put(client: Client, queue: str, *bodies: bytes, mode: int = 2) -> None:
    """Publish each body by itself, so that other LSNs may come between them."""
    for body in bodies:
        client.send(wire.publish(1, queue, body, commands.Basic.Properties(delivery_mode=mode)))
        client.world.sync()


def ask(client: Client, queue: str, **more: bool) -> None:
    consume = commands.Basic.Consume(queue=queue, consumer_tag="c", arguments=ASKING, **more)
    client.method(1, consume)
    client.world.sync()


def places(client: Client) -> dict[bytes, tuple[int, int]]:
    """By body: x-queue-id and x-queue-seq of what was delivered since the last time."""
    client.world.sync()
    found = {}
    for _, what in client.hear():
        if not isinstance(what, wire.Content):
            continue
        headers = what.properties.headers or {}
        found[what.body] = (headers["x-queue-id"], headers["x-queue-seq"])
    return found  # type: ignore[return-value]


def numbers(client: Client) -> dict[bytes, int]:
    return {body: number for body, (_, number) in places(client).items()}


class TestNumbers:
    """SEQ-01."""

    def test_they_count_from_one_in_each_queue(self, client: Client) -> None:
        declare(client, "q")
        declare(client, "r", durable=False)
        put(client, "q", b"a", b"b")
        put(client, "r", b"c")
        put(client, "q", b"d", mode=1)
        ask(client, "q")
        first = places(client)
        assert {body: number for body, (_, number) in first.items()} == {b"a": 1, b"b": 2, b"d": 3}
        client.method(1, commands.Basic.Cancel(consumer_tag="c"))
        ask(client, "r")
        second = places(client)
        assert second[b"c"][1] == 1
        assert second[b"c"][0] not in {queue_id for queue_id, _ in first.values()}

    def test_what_left_before_anybody_asked_counts(self, client: Client) -> None:
        declare(client, "q")
        put(client, "q", b"a", b"b")
        client.method(1, commands.Basic.Get(queue="q", no_ack=True))
        client.method(1, commands.Queue.Purge(queue="q"))
        put(client, "q", b"c")
        client.hear()
        ask(client, "q")
        assert numbers(client) == {b"c": 3}

    def test_what_was_requeued_before_anybody_asked_keeps_its_place(self, client: Client) -> None:
        declare(client, "q")
        put(client, "q", b"a", b"b", b"c")
        client.method(1, commands.Basic.Get(queue="q"))
        client.method(1, commands.Basic.Get(queue="q"))
        client.send(wire.nack(1, 2, multiple=True))
        client.hear()
        ask(client, "q")
        assert numbers(client) == {b"a": 1, b"b": 2, b"c": 3}

    def test_a_backlog_on_disk_is_numbered(self, client: Client) -> None:
        declare(client, "q")
        count = 5 * FIRST_REFILL_MESSAGES
        put(client, "q", *(b"%d" % number for number in range(count)))
        client.world.vhost.queues["q"].ready.page_out(0)
        ask(client, "q")
        assert numbers(client) == {b"%d" % number: number + 1 for number in range(count)}

    def test_bad_type(self, client: Client) -> None:
        declare(client, "q")
        text = (
            "PRECONDITION_FAILED - invalid arg 'x-queue-seq' for queue 'q' in vhost '/': "
            '"expected boolean, got longstr"'
        )
        with closes_channel(client, 406, text, (60, 20)):
            client.method(1, commands.Basic.Consume(queue="q", arguments={"x-queue-seq": "yes"}))


class TestStay:
    """SEQ-02."""

    def test_over_requeue_in_any_order(self, client: Client) -> None:
        declare(client, "q")
        put(client, "q", b"a", b"b", b"c", b"d")
        ask(client, "q")
        before = places(client)
        client.send(wire.ack(1, 2))
        for tag in (4, 1, 3):
            client.send(wire.nack(1, tag))
        again = places(client)
        assert again == {body: before[body] for body in (b"a", b"c", b"d")}

    def test_over_a_power_cut(self, world: DiskWorld, client: Client) -> None:
        declare(client, "q")
        put(client, "q", b"a", b"b", b"c")
        ask(client, "q")
        before = places(client)
        client.send(wire.ack(1, 1))
        put(client, "q", b"d")
        before |= places(client)
        put(client, "other", b"x")
        client.method(1, commands.Basic.Cancel(consumer_tag="c"))
        put(client, "q", b"e")
        client = connected(world.after_power_cut())
        put(client, "q", b"f")
        ask(client, "q")
        after = places(client)
        assert {body: after[body] for body in (b"b", b"c", b"d")} == {
            body: before[body] for body in (b"b", b"c", b"d")
        }
        assert [after[body][1] for body in (b"d", b"e", b"f")] == [4, 5, 6]

    def test_numbers_of_settled_ones_are_not_used_after_a_restart(
        self, world: DiskWorld, client: Client
    ) -> None:
        declare(client, "q")
        ask(client, "q", no_ack=True)
        put(client, "q", b"a", b"b", b"c")
        assert numbers(client) == {b"a": 1, b"b": 2, b"c": 3}
        declare(client, "other")  # an ack asks for no sync, and rides with the next
        world.sync()
        client = connected(world.after_power_cut())
        put(client, "q", b"d")
        ask(client, "q")
        assert numbers(client) == {b"d": 4}

    def test_of_what_was_requeued_before_anybody_asked(self, world: DiskWorld) -> None:
        """Each power cut comes when one more has its number; no number is given twice."""
        client = connected(world)
        declare(client, "q")
        bodies = (b"a", b"b", b"c", b"d")
        declare(client, "other")
        for body in bodies:
            put(client, "q", body)
            put(client, "other", b"between")
        for _ in bodies:
            client.method(1, commands.Basic.Get(queue="q"))
        client.send(wire.nack(1, 4, multiple=True))
        client.hear()
        found: dict[bytes, int] = {}
        for count in range(1, 6):
            client.qos(count)
            ask(client, "q")
            seen = numbers(client)
            assert len(seen) == count
            assert found == {body: seen[body] for body in found}
            found = seen
            put(client, "other", b"syncs")
            if count == 4:
                put(client, "q", b"fresh")
            world = world.after_power_cut()
            client = connected(world)
        assert found == {b"a": 1, b"b": 2, b"c": 3, b"d": 4, b"fresh": 5}

    def test_over_two_power_cuts_with_holes(self, world: DiskWorld, client: Client) -> None:
        declare(client, "q")
        put(client, "q", *(b"%d" % number for number in range(8)))
        ask(client, "q")
        before = places(client)
        for tag in (1, 3, 4, 8):
            client.send(wire.ack(1, tag))
        put(client, "q", b"8")
        before |= places(client)
        for _ in range(2):
            world = world.after_power_cut()
            client = connected(world)
            ask(client, "q")
            left = (b"1", b"4", b"5", b"6", b"8")
            assert places(client) == {body: before[body] for body in left}

    def test_over_a_commit_that_the_disk_refuses(self, world: DiskWorld, client: Client) -> None:
        """TX-09."""
        declare(client, "q")
        declare(client, "other")
        for body in (b"a", b"b", b"c"):
            put(client, "q", body)
            put(client, "other", body)
        client.method(1, commands.Tx.Select())
        ask(client, "q")
        before = places(client)
        client.send(wire.ack(1, 2))
        world.disk.fail[("write", world.disk.calls["write"] + 1)] = errno.ENOSPC
        client.method(1, commands.Tx.Commit())
        world.sync()
        client.hear()
        client.finish()
        world.check()
        client = connected(world)
        ask(client, "q")
        assert places(client) == before
        put(client, "q", b"d")
        assert numbers(client) == {b"d": 4}

    @pytest.mark.parametrize("is_cancelled", [True, False])
    def test_over_a_refused_commit_with_somebody_behind_it(
        self, world: DiskWorld, client: Client, is_cancelled: bool
    ) -> None:
        """TX-09: what stands before the write is not done, whoever takes what meanwhile.

        While there is a consumer with room, a get has the block written first (CONS-52).
        """
        declare(client, "q")
        declare(client, "other")
        for body in (b"a", b"b", b"c", b"d", b"e"):
            put(client, "q", body)
            put(client, "other", body)  # so that each has a row of its own
        client.method(1, commands.Basic.Qos(prefetch_count=1))
        ask(client, "q")
        client.send(wire.ack(1, 1))
        before = places(client)
        assert list(before) == [b"a", b"b"]
        client.method(1, commands.Tx.Select())
        if is_cancelled:
            client.method(1, commands.Basic.Cancel("c"))
        other = connected(world)
        world.disk.fail[("write", world.disk.calls["write"] + 1)] = errno.ENOSPC
        client.send(wire.ack(1, 2), wire.method(1, commands.Tx.Commit()))
        for _ in range(3):
            other.send(wire.method(1, commands.Basic.Get(queue="q")))
        world.sync()
        client.hear()
        client.finish()
        assert [what.body for _, what in other.hear() if isinstance(what, wire.Content)] == (
            [b"c", b"d", b"e"] if is_cancelled else [b"b", b"c", b"d"]
        )
        other.send(wire.nack(1, 3, multiple=True, requeue=True))
        world.check()
        client = connected(world)
        ask(client, "q")
        after = places(client)
        assert after[b"b"] == before[b"b"]

    def test_rows_are_let_go(self, client: Client) -> None:
        """Memory and notes are for what may come back, not for what ever was."""
        declare(client, "q")
        declare(client, "other")
        ask(client, "q")
        for number in range(50):
            put(client, "q", b"%d" % number)
            put(client, "other", b"x")
            client.send(wire.ack(1, number + 1))
            assert list(numbers(client).values()) == [number + 1]
        sequence = client.world.vhost.queues["q"].feature(QueueSequence)
        assert sequence is not None
        assert len(sequence._rows) <= 2


class TestOthers:
    """SEQ-03."""

    def test_the_stored_content_stays_and_others_see_it(self, client: Client) -> None:
        declare(client, "q")
        block = commands.Basic.Properties(headers={"x-queue-seq": "mine", "z": 1})
        client.send(wire.publish(1, "q", b"a", block))
        ask(client, "q")
        ((_, consumed), (_, delivered)) = client.hear()
        assert isinstance(consumed, commands.Basic.ConsumeOk)
        headers = content(delivered).properties.headers
        assert headers == {"z": 1, "x-queue-seq": 1, "x-queue-id": headers["x-queue-id"]}  # type: ignore[index]
        client.send(wire.nack(1, 1))
        client.hear()
        client.method(1, commands.Basic.Cancel(consumer_tag="c"))
        client.send(wire.nack(1, 2))
        client.hear()
        client.consume("q", "plain")
        queue = client.world.vhost.queues["q"]
        assert queue.came_count == 1

    def test_a_queue_of_priorities_numbers_by_first_leaving(self, client: Client) -> None:
        declare(client, "q", max_priority=5)
        for body, priority in ((b"a", 0), (b"b", 5), (b"c", 3)):
            block = commands.Basic.Properties(delivery_mode=2, priority=priority)
            client.send(wire.publish(1, "q", body, block))
        ask(client, "q")
        before = numbers(client)
        assert before == {b"b": 1, b"c": 2, b"a": 3}
        client.send(wire.nack(1, 3, multiple=True))
        assert numbers(client) == before

    def test_a_quorum_queue_keeps_numbers_over_returns_and_restarts(
        self, world: DiskWorld, client: Client
    ) -> None:
        """What comes back stands before all levels there, in the order of its return."""
        declare(client, "q", queue_type="quorum")
        put(client, "q", b"a", b"b", b"c", mode=1)
        ask(client, "q")
        before = places(client)
        assert [number for _, number in before.values()] == [1, 2, 3]
        for tag in (2, 3, 1):
            client.send(wire.nack(1, tag))
        assert places(client) == before
        put(client, "q", b"d", mode=1)
        before |= places(client)
        client.send(wire.ack(1, 4))
        put(client, "q", b"e", mode=1)
        before |= places(client)
        client = connected(world.after_power_cut())
        ask(client, "q")
        after = places(client)
        assert after.items() <= before.items()
        put(client, "q", b"f", mode=1)
        (late,) = numbers(client).values()
        assert late == 6
