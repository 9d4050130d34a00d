"""Paging by its bounds: what a turn may read, what a page may hold, what short memory changes."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Sequence
from itertools import pairwise

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from tests import wire
from tests.simulation.sim_disk import SimDisk
from tests.unit.server import amqp_client
from tests.unit.server.broker.paging.paged_worlds import FakePagedStore
from tests.unit.server.in_memory import Client
from tests.unit.server.on_disk import DiskWorld
from tests.unit.server.queues import QUEUE_ID, TAIL, Stage, no_features
from vouchmq.server.broker import delays
from vouchmq.server.broker.message import Message
from vouchmq.server.broker.paging import pager as pager_module
from vouchmq.server.broker.paging.paged_store import DiskPages, JournalClock
from vouchmq.server.broker.paging.pager import (
    FIRST_REFILL_MESSAGES,
    LEAST_OCTETS,
    LEAST_REFILL_OCTETS,
    PAGE_OCTETS,
    REFILL_MESSAGES,
    REFILL_OCTETS,
    TINY_OCTETS,
    TURN_DISCARDED,
    TURN_LINES,
    TURN_READS,
    Backlog,
    Pager,
)
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.queues.spec import QueueSpec
from vouchmq.server.runtime.periodic_check import TELL_S
from vouchmq.store.errors import ReadFailed
from vouchmq.store.reading.reader import RUN_STEPS
from vouchmq.store.scratch import Scratch

KIB = 1024


def restored(stage: Stage, lsns: Sequence[int], size: int = 100) -> None:
    stage.store.stored.update(dict.fromkeys(lsns, (b"r" * size, TAIL)))
    stage.queue.restore(QUEUE_ID, [lsns], 0)


def test_a_queue_reads_more_each_time_that_was_not_enough() -> None:
    stage = Stage()
    restored(stage, range(1, 10_001))
    alice = stage.consume("alice", 1)
    sizes = []
    while stage.queue.ready.backlog is not None:
        stage.pager.run()
        before = len(stage.store.fetched)
        alice.left = len(stage.queue.ready.ready) + 1
        stage.queue.wake()
        stage.turn.run()
        sizes.append(len(stage.store.fetched) - before)
    assert sizes[0] == FIRST_REFILL_MESSAGES
    assert max(sizes) == REFILL_MESSAGES
    assert sizes[:-1] == sorted(sizes[:-1])
    assert [seq >> 1 for seq, _ in alice.served] == list(range(1, len(alice.served) + 1))


def test_a_turn_reads_no_more_than_it_may_and_the_next_goes_on() -> None:
    stage = Stage()
    # Each message is a run of its own, which is what makes reading slow.
    lsns = range(1, 4001, 2)
    restored(stage, lsns)
    alice = stage.consume("alice")
    stage.turn.run()
    first = len(alice.served)
    assert 0 < first <= 2 * TURN_READS // RUN_STEPS
    assert stage.turn.asked == []
    stage.pager.run()
    assert stage.turn.asked == [stage.queue]
    while stage.queue.ready_count:
        stage.turn.run()
        stage.pager.run()
    assert [seq >> 1 for seq, _ in alice.served] == list(lsns)


def test_basic_get_is_answered_whatever_the_turn_has_read() -> None:
    stage = Stage()
    restored(stage, range(1, 100))
    stage.pager.reads_left = 0
    got = stage.queue.get(no_ack=True)
    assert got is not None
    assert got[0][2] >> 1 == 1


def test_a_queue_that_goes_is_not_woken() -> None:
    stage = Stage()
    restored(stage, range(1, 100))
    stage.consume("alice")
    stage.pager.reads_left = 0
    stage.turn.run()
    stage.queue.deleted()
    stage.pager.run()
    assert stage.turn.asked == []


def test_what_deleted_queues_had_is_freed_in_slices() -> None:
    """LIMIT-23: a million messages take longer than a turn should."""
    stage = Stage()
    stage.enqueue(3 * TURN_DISCARDED)
    stage.queue.ready.page_out(stage.queue.ready.octets // 2)
    ready, backlog = stage.queue.ready.ready, stage.queue.ready.backlog
    assert backlog is not None
    spans, tail = backlog.parts()
    stage.enqueue(10)
    pages = len(stage.store.pages)
    assert pages
    stage.queue.deleted()
    assert stage.pager.total == 0
    left = [len(ready) + len(spans) + len(tail)]
    while stage.pager.is_behind:
        stage.pager.run()
        left.append(len(ready) + len(spans) + len(tail))
    assert left[-1] == 0
    steps = [before - after for before, after in pairwise(left)]
    assert steps == [TURN_DISCARDED] * (len(steps) - 1) + [steps[-1]]
    assert len(steps) > 1
    assert stage.store.pages == {}


def test_what_came_back_to_a_deleted_queue_is_freed_in_slices() -> None:
    stage = Stage()
    stage.enqueue(2 * TURN_DISCARDED)
    taken = stage.queue.take(stage.queue.ready, TURN_DISCARDED)
    stage.queue.put_back(taken[::2])
    stage.queue.put_back(taken[1::2])
    requeued = stage.queue.ready.requeued
    assert requeued is not None
    parts = [*requeued.runs(), stage.queue.ready.ready]
    stage.queue.deleted()
    before = sum(map(len, parts))
    assert before == 2 * TURN_DISCARDED
    stage.pager.run()
    assert before - sum(map(len, parts)) == TURN_DISCARDED
    stage.pager.run()
    assert not any(parts)
    assert not stage.pager.is_behind


def test_less_is_read_back_at_a_time_when_memory_is_short() -> None:
    stage = Stage(budget=(1 << 62, 10 * REFILL_OCTETS))
    assert stage.pager.refill_octets == REFILL_OCTETS
    stage.pager.total = 6 * REFILL_OCTETS
    assert LEAST_REFILL_OCTETS < stage.pager.refill_octets < REFILL_OCTETS
    stage.pager.total = 20 * REFILL_OCTETS
    assert stage.pager.refill_octets == LEAST_REFILL_OCTETS
    restored(stage, range(1, 100), size=10_000)
    stage.consume("alice", 0)
    stage.turn.run()
    assert len(stage.queue.ready.ready) == 2


@pytest.mark.parametrize(("size", "most"), [(100, 512), (PAGE_OCTETS // 4, 5), (PAGE_OCTETS, 2)])
def test_a_scratch_page_is_bounded_in_messages_and_octets(size: int, most: int) -> None:
    stage = Stage()
    seqs = stage.enqueue(600 if size == 100 else 20, size=size)
    stage.queue.ready.page_out(0)
    pages = list(stage.store.pages.values())
    assert max(map(len, pages)) == min(most, len(seqs) - 1)
    assert [message[2] for page in pages for message in page] == seqs[1:]


def test_many_small_queues_are_paged_too_when_that_is_needed() -> None:
    """LIMIT-21: a thousand queues that each have little are much together."""
    stage = Stage(budget=(1 << 30, 40 * LEAST_OCTETS))
    queues = []
    for number in range(100):
        spec = QueueSpec(f"q{number}", "/", number, True, None, False, {})
        queue = ClassicQueue(
            spec, stage.turn, stage.log, stage.pager, stage.unused.append, no_features()
        )
        for at in range(60):
            lsn = number * 100 + at + 1
            stage.store.stored[lsn] = (b"r" * KIB, TAIL)
            queue.enqueue([(b"r" * KIB, TAIL, 2 * lsn + 1, 0)], (1, KIB, KIB), stored=True)
        queues.append(queue)
    assert stage.pager.total > 40 * LEAST_OCTETS
    assert max(queue.ready.octets for queue in queues) < LEAST_OCTETS
    stage.pager.run()
    assert stage.pager.total <= 40 * LEAST_OCTETS * 4 // 5
    assert min(queue.ready.octets for queue in queues) <= TINY_OCTETS
    assert all(queue.ready_count == 60 for queue in queues)
    assert all(queue.ready.ready for queue in queues)


def test_no_turn_pages_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIMIT-23: however many queues there are, and however little each has."""
    monkeypatch.setattr(pager_module, "TURN_ROOM_OCTETS", 100 * KIB)
    budget = 3000 * KIB
    stage = Stage(budget=(1 << 30, budget))
    lsn = 0
    for number in range(101):
        spec = QueueSpec(f"q{number}", "/", number, True, None, False, {})
        queue = ClassicQueue(
            spec, stage.turn, stage.log, stage.pager, stage.unused.append, no_features()
        )
        for _ in range(30):
            lsn += 1
            stage.store.stored[lsn] = (b"r" * KIB, TAIL)
            queue.enqueue([(b"r" * KIB, TAIL, 2 * lsn + 1, 0)], (1, KIB, KIB), stored=True)
        if number == 99:
            # From here on little comes, and it is too much.
            stage.pager.run()
            assert stage.pager.total == budget
    pager, freed = stage.pager, []
    for _ in range(100):
        before = pager.total
        pager.run()
        freed.append(before - pager.total)
        if not pager.is_behind:
            break
    assert max(freed) <= 100 * KIB + 30 * KIB
    assert len(freed) > 5
    assert pager.total <= budget * 4 // 5
    pager.run()
    assert not pager.is_behind


class Crowded:
    """One that always has more than its budget, and counts how often it is asked to page."""

    def __init__(self) -> None:
        self.octets = 10 * KIB
        self.backlog: Backlog | None = None
        self.asked_count = 0

    def page_out(self, keep_octets: int) -> None:
        assert keep_octets == KIB // 2
        self.asked_count += 1

    def wake(self) -> None:
        raise AssertionError("nothing is to be read")


def test_no_turn_looks_at_more_queues_than_it_may() -> None:
    """LIMIT-23: all are looked at in turn, also while messages come to all of them."""
    pager = Pager(FakePagedStore(), KIB, 1 << 40)
    lines = [Crowded() for _ in range(2 * TURN_LINES + 10)]
    for number in range(1, 7):
        for line in lines:
            pager.charge(line, 10 * KIB)
        pager.run()
        assert pager.is_behind
        assert sum(line.asked_count for line in lines) == number * TURN_LINES
    assert min(line.asked_count for line in lines) >= 2
    while pager.is_behind:
        pager.run()
    assert sum(line.asked_count for line in lines) == 7 * TURN_LINES + 10


def test_what_cannot_be_paged_is_not_tried_every_turn() -> None:
    stage = Stage(budget=(1 << 30, 2 * LEAST_OCTETS))
    stage.enqueue(400, stored=True, size=KIB)
    tries: list[int] = []

    def refuse(messages: list[Message]) -> int:
        tries.append(len(messages))
        raise OSError(errno.ENOSPC, "No space left on device")

    stage.enqueue(400, size=KIB)
    stage.store.page_out = refuse  # type: ignore[method-assign]
    for _ in range(10):
        stage.pager.run()
    assert 1 <= len(tries) <= 2
    assert stage.pager.refused_count == len(tries)
    assert stage.queue.ready_count == 800
    stage.enqueue(200, size=KIB)
    stage.pager.run()
    assert len(tries) > 1


class TestDiskPages:
    """The real thing on a simulated disk."""

    def test_a_page_that_cannot_be_read_is_told(self) -> None:
        disk = SimDisk()
        failures: list[str] = []
        pages = DiskPages(
            FakePagedStore(),
            Scratch(disk, file_size_bytes=1 << 20, remove=disk.unlink),
            failures.append,
            JournalClock(lambda: 0, lambda: 0),
            recovered_lsn=0,
        )
        page = pages.page_out([(b"raw", TAIL, 2, 0)])
        disk.fail_next("read", errno.EIO)
        with pytest.raises(ReadFailed, match="Input/output error"):
            pages.page_in(page)
        assert len(failures) == 1
        assert pages.page_in(page) == [(b"raw", TAIL, 2, 0)]

    def test_a_message_that_cannot_be_read_ends_the_broker(self) -> None:
        """DURABLE-21: it is no bug, and nothing is passed over."""
        world = DiskWorld()
        client = world.connect()
        client.open()
        client.declare("q", durable=True)
        journal = world.runtime.journal
        queue = world.vhost.queues["q"]
        first = journal.append_run((queue.spec.queue_id,), TAIL, [b"raw"] * 3)
        world.sync()
        queue.restore(QUEUE_ID, [range(first, first + 3)], 0)
        for number in range(1, 20):
            world.disk.fail["read", world.disk.calls["read"] + number] = errno.EIO
        with capture_logs() as lines:
            client.consume("q", "tag")
            world.run_turns()
        assert len(world.fatal) == 1
        assert f"cannot read message {first}" in world.fatal[0]
        assert client.deliveries() == []
        assert not [line for line in lines if line["event"] == "internal_error"]

    def test_refused_pages_are_logged_once_a_minute(self) -> None:
        world = DiskWorld()
        pager = world.runtime.pager
        with capture_logs() as lines:
            for _ in range(3):
                pager.tell(OSError(errno.ENOSPC, "No space left on device"))
                world.check()
                world.now += 1
            assert [line["count"] for line in lines if line["event"] == "paging.write_failed"] == [
                1
            ]
            world.now += TELL_S
            world.check()
            world.now += TELL_S
            world.check()
        told = [line for line in lines if line["event"] == "paging.write_failed"]
        assert [line["count"] for line in told] == [1, 2]
        assert "No space left" in told[0]["reason"]


class TestCopiesThatTheJournalHoldsForOthers:
    """What a transient queue has goes to no disk as the copy of a durable one beside it."""

    @pytest.fixture
    def world(self) -> DiskWorld:
        """A broker whose timers ring."""
        return DiskWorld(rings=True)

    @pytest.fixture
    def client(self, world: DiskWorld) -> Client:
        """A client with the durable queue d and the transient queue t, both on amq.fanout."""
        client = world.connect()
        client.open()
        client.declare("d", durable=True)
        client.declare("t")
        for queue in "dt":
            client.ask(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        return client

    def publish(self, client: Client, **headers: int) -> list[bytes]:
        """Publish persistent messages of several segments, and take them from the durable queue."""
        bodies = [b"%03d" % number + b"x" * 1000 for number in range(200)]
        properties = wire.persistent(headers=headers)
        for body in bodies:
            client.send(wire.publish(1, "t", body, properties, exchange="amq.fanout"))
        client.world.sync()
        for queue in client.world.vhost.queues.values():
            if isinstance(queue, ClassicQueue):
                queue.ready.page_out(1)
        return bodies

    def forget(self, client: Client) -> None:
        """The durable queue has had its copies, and the journal drops them."""
        amqp_client.bodies(client, "d")
        for _ in range(20):
            client.send(wire.publish(1, "d", b"x" * 4000, wire.persistent()))
            client.world.sync()
            client.world.pass_time(1.0)
            amqp_client.bodies(client, "d")

    def test_backlog(self, world: DiskWorld, client: Client) -> None:
        published = self.publish(client)
        self.forget(client)
        assert amqp_client.bodies(client, "t") == published
        assert not world.fatal

    def test_delayed_ones(
        self, world: DiskWorld, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(delays, "MEMORY_OCTETS", 0)
        what = commands.Exchange.Declare(
            exchange="later",
            exchange_type="x-delayed-message",
            arguments={"x-delayed-type": "fanout"},
        )
        client.ask(1, what)
        client.ask(1, commands.Queue.Unbind(queue="t", exchange="amq.fanout"))
        client.ask(1, commands.Queue.Bind(queue="t", exchange="later"))
        client.ask(1, commands.Exchange.Bind(destination="later", source="amq.fanout"))
        published = self.publish(client, **{"x-delay": 100_000})
        self.forget(client)
        for _ in range(10):
            world.pass_time(10.0)
        assert amqp_client.bodies(client, "t") == published
        assert not world.fatal


def test_stored_messages_are_put_between_those_of_a_backlog() -> None:
    backlog = Backlog(FakePagedStore())
    backlog.restore([range(0, 5000, 2), range(5000, 6000), array("Q", range(6001, 7000, 3))])
    listed = backlog.held_spans()
    before = [list(span) for span in listed]
    added = [1, 3, 4001, 4999, 6000, 6002, 9000]
    backlog.insert(added)
    held = [lsn for span in backlog.held_spans() for lsn in span]
    assert held == sorted([lsn for span in before for lsn in span] + added)
    assert backlog.count == backlog.paged_count == len(held)
    # What was listed before stays as it was.
    assert [list(span) for span in listed] == before
