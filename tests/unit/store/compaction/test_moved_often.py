"""Messages that are moved again and again: in order, at hand, and none lost, whatever the order."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from itertools import chain

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import lsns_of, open_on, sync
from vouchmq.server.version import build_kind
from vouchmq.store.compaction import compactor as module
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.reading.index import SegmentIndex
from vouchmq.store.recovery.summary import read_summary

SIZE = 64 * 1024
KEPT = 400
STEP_OCTETS = 4096


class Load:
    """A queue that keeps what it has, beside one whose messages come and go, most of them soon."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.disk = SimDisk(seed)
        self.kept: list[int] = []
        self.passing: list[int] = []
        self.lasting: list[int] = []
        self.open()
        while len(self.kept) < KEPT:
            self.turn(1)

    def open(self) -> None:
        """Open the directory, as after a crash or for the first time."""
        self.journal, _ = open_on(self.disk, size=SIZE)
        self.compactor = Compactor(self.journal, self._corrupt)

    @staticmethod
    def _corrupt(name: str, why: str) -> None:
        raise AssertionError(f"{name}: {why}")

    def publish(self, queue_id: int, count: int) -> list[int]:
        raws = [bytes(self.draw.randint(50, 300)) for _ in range(count)]
        first = self.journal.append_run((queue_id,), b"tail", raws)
        return list(range(first, first + count))

    def turn(self, kept: int = 0) -> None:
        self.kept += self.publish(1, kept) if kept else []
        for lsn in self.publish(2, self.draw.randint(1, 6)):
            (self.passing if self.draw.random() < 0.95 else self.lasting).append(lsn)
        self.journal.write()
        if len(self.passing) > 100:
            self.journal.settle(2, self.passing[:80])
            del self.passing[:80]
        if len(self.lasting) > 100:
            self.draw.shuffle(self.lasting)
            self.journal.settle(2, sorted(self.lasting[:20]))
            del self.lasting[:20]
        self.compactor.step(STEP_OCTETS)
        sync(self.journal)

    def move(self, times: int) -> None:
        """Go on until all that is kept was moved so often."""
        moved = self.compactor.counters.moved_messages
        turns = 0
        while self.compactor.counters.moved_messages - moved < times * (
            len(self.kept) + len(self.lasting)
        ):
            self.turn()
            turns += 1
            assert turns < 1000 * times

    def lsns(self) -> list[int]:
        return sorted(chain(self.kept, self.passing, self.lasting))


def steps_per_message(journal: Journal, lsns: list[int]) -> float:
    before = journal.read_steps
    assert len(journal.fetch(lsns)) == len(lsns)
    return (journal.read_steps - before) / len(lsns)


def moved_rows(journal: Journal) -> list[tuple[int, int, int]]:
    rows: list[tuple[int, int, int]] = []
    for segment in journal._index._segments:
        _, _, moves = segment.rows()
        rows += zip(moves[::3], moves[1::3], moves[2::3], strict=True)
    return rows


@pytest.mark.parametrize("times", [1, 5, 20])
def test_reading_costs_the_same_however_often_messages_were_moved(times: int) -> None:
    load = Load(times)
    fresh = steps_per_message(load.journal, load.kept)
    load.move(times)
    assert steps_per_message(load.journal, load.kept) <= fresh
    # Looking messages up takes memory for blocks rather than for messages.
    assert len(moved_rows(load.journal)) < KEPT
    assert len(load.journal.chain._segment_map) < KEPT // 4
    load.open()
    assert steps_per_message(load.journal, load.kept) <= fresh
    # Nor does one that is asked for alone: its block is looked at, and where its route is logged.
    for lsn in load.kept[::37]:
        load.journal._reader.close()
        before = load.journal.read_steps
        load.journal.fetch([lsn])
        assert load.journal.read_steps - before < 500
    assert lsns_of(open_on(load.disk, size=SIZE)[1], 2) == sorted([*load.passing, *load.lasting])


def scrambled(draw: random.Random) -> tuple[SimDisk, list[int]]:
    """A segment to which messages were moved in no order, among others that are dead by now."""
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    first = journal.append_run((1,), b"tail", [b"%04d" % n * 20 for n in range(300)])
    sync(journal)
    kept = list(range(first, first + 300, 2))
    draw.shuffle(kept)
    while journal.chain.tail_generation < 2:
        journal.settle(1, [*journal_run(journal, 20)])
        sync(journal)
    for at in range(0, len(kept), 10):
        for lsn in kept[at : at + 10]:
            raw = b"%04d" % (lsn - first) * 20
            journal.move_run((1,), b"tail", lsn, [raw], 1)
        journal.settle(1, [*journal_run(journal, 1)])
        sync(journal)
    journal.settle(1, range(first + 1, first + 300, 2))
    while journal.chain.tail_generation < 4:
        journal.settle(1, [*journal_run(journal, 20)])
        sync(journal)
    journal.close()
    return disk, sorted(kept)


def journal_run(journal: Journal, count: int) -> range:
    first = journal.append_run((1,), b"tail", [bytes(1000)] * count)
    journal.write()
    return range(first, first + count)


@pytest.mark.parametrize("spare", [0, 64, 1000])
def test_what_was_moved_in_no_order_is_moved_on_and_none_is_lost(
    spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier program did."""
    monkeypatch.setattr(module, "_SPARE_PARTS", spare)
    disk, kept = scrambled(random.Random(spare))
    corrupted: list[str] = []
    for _ in range(3):
        journal, recovered = open_on(disk, size=SIZE)
        assert lsns_of(recovered, 1) == kept
        compactor = Compactor(journal, lambda name, why: corrupted.append(name + why))
        for _ in range(3000):
            if not compactor.step(16_000):
                break
            sync(journal)
        sync(journal)
        found = journal.fetch(kept)
        assert [raw for raw, _ in found] == [b"%04d" % (lsn - kept[0]) * 20 for lsn in kept]
        journal.settle(1, [*journal_run(journal, 100)])
        sync(journal)
        journal.close()
    assert corrupted == []
    assert segment_name(1) not in disk.listdir()
    if spare == 1000:
        # In order at last: a range for each block, but for where a segment was full.
        rows = moved_rows(open_on(disk, size=SIZE)[0])
        assert len(rows) < 20


Rows = tuple["array[int]", "array[int]", "array[int]"]


def overlapping(rows: Callable[[SegmentIndex], Rows]) -> Callable[[SegmentIndex], Rows]:
    """Rows as an earlier program wrote them: for each block the lowest and the highest LSN."""

    def all_rows(index: SegmentIndex) -> Rows:
        stretches, routes, moves = rows(index)
        blocks: dict[int, tuple[int, int]] = {}
        for low, high, offset in zip(moves[::3], moves[1::3], moves[2::3], strict=True):
            known = blocks.get(offset, (low, high))
            blocks[offset] = min(low, known[0]), max(high, known[1])
        flat = [number for offset in sorted(blocks) for number in (*blocks[offset], offset)]
        return stretches, routes, array("Q", flat)

    return all_rows


@pytest.mark.skipif(build_kind() == "compiled", reason="a method of a compiled class is replaced")
def test_a_summary_that_does_not_say_where_each_message_is_is_written_anew() -> None:
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(SegmentIndex, "rows", overlapping(SegmentIndex.rows))
        disk, kept = scrambled(random.Random(7))
        names = [name for name in disk.listdir() if name.endswith(".summary")]
        unusable = [name for name in names if read_summary(disk, int(name[:16])) is None]
    assert unusable
    journal, recovered = open_on(disk, size=SIZE)
    assert recovered.report.damaged == []
    assert lsns_of(recovered, 1) == kept
    assert [raw for raw, _ in journal.fetch(kept)] == [b"%04d" % (n - kept[0]) * 20 for n in kept]
    for name in unusable:
        assert read_summary(disk, int(name[:16])) is not None
