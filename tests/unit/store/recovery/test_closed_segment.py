"""Summaries of segments that somebody else has written."""

from __future__ import annotations

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import corrupt, open_on, sync
from vouchmq.store.journal.segment import segment_name, summary_name
from vouchmq.store.recovery.closed_segment import summarize
from vouchmq.store.recovery.recover import open_journal
from vouchmq.store.recovery.scan import list_generations


def filled() -> SimDisk:
    """Some segments with messages, settlements, notes and definitions; no summaries."""
    disk = SimDisk()
    journal, _ = open_on(disk, definitions=[b"a definition"])
    for number in range(60):
        first = journal.append_run((1, 2), b"tail", [b"m%d" % number * 80] * 2)
        journal.settle(2, [first])
        journal.note(1, b"key", b"%d" % number)
        sync(journal)
    journal.close()
    for generation in list_generations(disk.listdir()):
        disk.unlink(summary_name(generation))
    return disk


def contents(disk: SimDisk, generation: int) -> bytes:
    return bytes(disk.visible[summary_name(generation)].visible)


def test_it_is_the_one_that_recovery_writes() -> None:
    disk, other = filled(), filled()
    open_journal(other, segment_size_bytes=4096, wall_ms=lambda: 1)
    *full, _ = list_generations(disk.listdir())
    assert len(full) > 3
    for generation in full:
        name = segment_name(generation)
        # What is chance in it is the same.
        disk.visible[name] = other.visible[name]
        assert summarize(disk, generation)
        assert contents(disk, generation) == contents(other, generation)
    _, recovered = open_journal(disk, segment_size_bytes=4096, wall_ms=lambda: 1, whole_bytes=0)
    assert recovered.report.unread_segments >= len(full) - 1
    assert recovered.queues[1].count == 120
    assert recovered.queues[2].count == 60


def test_a_damaged_segment_gets_none() -> None:
    disk = filled()
    corrupt(disk, segment_name(2), 2000)
    assert not summarize(disk, 2)
    assert summary_name(2) not in disk.listdir()
