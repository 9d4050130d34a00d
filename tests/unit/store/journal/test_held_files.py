"""A copy of the files that is made piece by piece, while the journal goes on.

Spec: DURABLE-18
"""

from __future__ import annotations

import copy
import random

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import open_on, segments_on, sync
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.inspection import Inspector
from vouchmq.store.journal.end_mark import EndMark, EndMarkFile
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.journal.segments import SegmentExtent
from vouchmq.store.recovery.recover import Recovered

SIZE = 8 * 1024
QUEUES = (1, 2, 3)


class Writer:
    """Does one thing after the other to a journal."""

    def __init__(self, journal: Journal, seed: int) -> None:
        self._journal = journal
        self._random = random.Random(seed)
        self._compactor = Compactor(journal, lambda _name, _why: None)
        self._live: dict[int, list[int]] = {queue_id: [] for queue_id in QUEUES}

    def go_on(self, steps: int) -> None:
        journal, draw = self._journal, self._random
        for _ in range(steps):
            queue_id = draw.choice(QUEUES)
            live = self._live[queue_id]
            match draw.randrange(10):
                case 0 | 1 | 2 | 3:
                    count = draw.randrange(1, 5)
                    raws = [draw.randbytes(draw.randrange(200)) for _ in range(count)]
                    first = journal.append_run((queue_id,), b"tail", raws)
                    live += range(first, first + count)
                case 4 | 5 | 6:
                    gone = sorted(draw.sample(live, len(live) // 2))
                    journal.settle(queue_id, gone)
                    live[:] = sorted({*live}.difference(gone))
                case 7:
                    journal.note(queue_id, b"key %d" % draw.randrange(5), draw.randbytes(5))
                case 8:
                    journal.define(b"definition %d" % draw.randrange(5))
                case _:
                    self._compactor.look()
                    self._compactor.step(1024)
            if draw.random() < 0.5:
                journal.write()
            if draw.random() < 0.3:
                sync(journal)


def copied(source: SimDisk, target: SimDisk, extent: SegmentExtent) -> None:
    name = segment_name(extent.generation)
    file = source.open(name)
    octets = file.read(0, extent.size_bytes)
    file.close()
    assert len(octets) == extent.size_bytes
    made = target.create(name, 0)
    made.write([octets], 0)
    made.sync()
    made.close()


def end_in(disk: SimDisk, mark: EndMark) -> None:
    file = EndMarkFile(disk)
    while not file.seal(mark):
        for target in file.targets():
            target.sync()
        file.synced()
    file.close()


def facts(recovered: Recovered) -> object:
    queues = {
        queue_id: [(lsn, bytes(raw)) for lsn, raw, _ in queue.messages]
        for queue_id, queue in recovered.queues.items()
    }
    return queues, recovered.definitions, recovered.notes


@pytest.mark.parametrize("seed", range(12))
def test_a_copy_is_what_a_kill_at_its_beginning_would_leave(seed: int) -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    writer = Writer(journal, seed)
    writer.go_on(150)
    journal.write()
    killed = copy.deepcopy(disk)
    journal.chain.is_held = True
    extents, end = journal.chain.extents(), journal.end()
    target = SimDisk()
    for extent in extents:
        writer.go_on(20)
        copied(disk, target, extent)
    journal.chain.is_held = False
    end_in(target, end)
    inspection = Inspector(target).inspect()
    assert inspection.is_sealed
    assert inspection.damaged == []
    killed.kill()
    _, expected = open_on(killed, size=SIZE)
    _, recovered = open_on(target, size=SIZE)
    assert recovered.report.is_sealed
    assert recovered.report.damaged == []
    assert facts(recovered) == facts(expected)


def test_files_of_dead_segments_are_there_until_they_are_let_go() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    first = journal.append_run((1,), b"tail", [b"x" * 1000])
    for _ in range(30):
        journal.append_run((1,), b"tail", [b"x" * 1000])
        sync(journal)
    before = segments_on(disk)
    assert len(before) > 3
    journal.chain.is_held = True
    journal.settle(1, range(first, first + 31))
    for _ in range(3):
        sync(journal)
    assert set(before) <= set(segments_on(disk))
    assert journal.chain.has_retired
    assert {each.generation for each in journal.chain.extents()} >= {1, 2, 3}
    journal.chain.is_held = False
    sync(journal)
    for task in journal.take_file_tasks():
        assert task.verb in {"unlink", "prepare"}
        if task.verb == "unlink":
            disk.unlink(task.name)
    assert not set(before[:-1]) & set(segments_on(disk))


def test_a_copy_that_lacks_its_end_is_damaged() -> None:
    """The end mark says what has to be there."""
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    Writer(journal, 7).go_on(60)
    journal.write()
    extents = journal.chain.extents()
    target = SimDisk()
    *others, last = extents
    for extent in others:
        copied(disk, target, extent)
    copied(disk, target, last._replace(size_bytes=last.size_bytes - 1))
    end_in(target, journal.end())
    assert Inspector(target).inspect().damaged
