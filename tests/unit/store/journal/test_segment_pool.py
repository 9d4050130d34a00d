"""Files are there when a segment is begun, and a small one when the disk has no room."""

from __future__ import annotations

import errno
from collections import deque

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import lsns_of, open_on, segments_on, sync
from vouchmq.store.disk import Disk, DiskFile
from vouchmq.store.errors import WriteFailed
from vouchmq.store.journal.segment_pool import PREPARED_NAME, RESERVE_NAME, SegmentPool
from vouchmq.store.recovery.recover import open_journal

SIZE = 64 * 1024
RAW = b"r" * 1000


class FullDisk(SimDisk):
    """A disk with so many octets for files."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    @property
    def used(self) -> int:
        return sum(len(self.visible[name].visible) for name in self.listdir())

    def create(self, name: str, size: int) -> DiskFile:
        old = len(self.visible[name].visible) if name in self.listdir() else 0
        if self.used - old + size > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(name, size)

    def prepare(self, name: str, size: int) -> None:
        self.create(name, size)


def test_a_file_is_ordered_when_half_of_one_is_used() -> None:
    disk: Disk = SimDisk()
    segment_pool = SegmentPool(disk, SIZE)
    segment_pool.look_after(SIZE // 2)
    assert segment_pool.take_file_tasks() == []
    for _ in range(2):
        segment_pool.look_after(SIZE // 2 + 1)
    (file_task,) = segment_pool.take_file_tasks()
    assert file_task == ("prepare", PREPARED_NAME, SIZE)
    disk.prepare(file_task.name, file_task.size)
    segment_pool.take("a", SIZE)
    assert disk.listdir() == ["a"]


def test_files_grow_with_what_they_begin_with() -> None:
    disk = SimDisk()
    segment_pool = SegmentPool(disk, SIZE)
    segment_pool.fit(SIZE // 4)
    assert segment_pool.size_bytes == SIZE
    disk.prepare(PREPARED_NAME, SIZE)
    segment_pool.fit(SIZE)
    assert segment_pool.size_bytes == 4 * SIZE
    assert [file_task.verb for file_task in segment_pool.take_file_tasks()] == ["unlink"]
    # It was ordered before, and is found too small.
    assert segment_pool.take("a", 4 * SIZE).size() == 4 * SIZE
    segment_pool.fit(100)
    assert segment_pool.size_bytes == SIZE


@pytest.mark.parametrize("backlog", [0.2, 0.5, 0.75, 1.4, 1.75, 2.25])
def test_files_are_used_again_whatever_the_length_of_a_constant_backlog(backlog: float) -> None:
    """Each file that is prepared is filled with zeros, which doubles what is written for it."""

    class CountingDisk(SimDisk):
        prepared_count = 0

        def prepare(self, name: str, size: int) -> None:
            self.prepared_count += 1
            super().prepare(name, size)

    disk = CountingDisk()
    journal, _ = open_on(disk, size=SIZE)
    lsns: deque[int] = deque()
    for _ in range(20 * SIZE // len(RAW)):
        lsns.append(journal.append_run((1,), b"", [RAW]))
        if len(lsns) > backlog * SIZE / len(RAW):
            journal.settle(1, [lsns.popleft()])
        sync(journal)
    assert journal.chain.tail_generation > 20
    assert disk.prepared_count <= 2 + backlog


def test_a_file_of_another_size_is_not_kept() -> None:
    disk = SimDisk()
    segment_pool = SegmentPool(disk, SIZE)
    disk.create("small", SIZE // 2)
    assert not segment_pool.keep("small", 1, SIZE // 2)
    assert segment_pool.take_file_tasks() == [("unlink", "small", 0)]
    disk.create("usual", SIZE)
    assert segment_pool.keep("usual", 2, SIZE)
    segment_pool.take("next", SIZE)
    assert sorted(disk.listdir()) == ["next", "small"]


def test_a_full_disk_gives_what_it_has_and_then_the_reserve() -> None:
    disk = FullDisk(SIZE)
    segment_pool = SegmentPool(disk, SIZE)
    segment_pool.hold_back(100)
    assert RESERVE_NAME in disk.listdir()
    with pytest.raises(OSError, match="No space"):
        segment_pool.take("a", SIZE)
    sizes = [segment_pool.take_small(name, 1000)[1] for name in ("a", "b", "c", "d")]
    assert sizes == [SIZE // 2, SIZE // 4, SIZE // 8, SIZE // 16]
    assert RESERVE_NAME not in disk.listdir()
    assert segment_pool.take_small("e", 1000)[1] == SIZE // 16, "what the reserve had left over"
    with pytest.raises(OSError, match="No space"):
        segment_pool.take_small("f", 1000)


def test_acks_are_logged_on_a_full_disk_and_free_it() -> None:
    disk = FullDisk(4 * SIZE + SIZE // 4)
    journal, _ = open_on(disk, size=SIZE)
    lsns = []
    with pytest.raises(WriteFailed):
        for _ in range(1000):
            lsn = journal.append_run((1,), b"", [RAW])
            journal.write()
            lsns.append(lsn)
            sync(journal)
    before = segments_on(disk)
    assert disk.room - disk.used < SIZE // 2
    journal.settle(1, lsns[:-5])
    sync(journal)
    sync(journal)
    assert len(segments_on(disk)) < len(before)
    # Publishers are served again, and what was logged in the small segment holds.
    lsns.append(journal.append_run((1,), b"", [RAW]))
    sync(journal)
    _, recovered = open_journal(disk, segment_size_bytes=SIZE, wall_ms=lambda: 0)
    assert lsns_of(recovered, 1) == lsns[-6:]


def test_a_small_segment_takes_no_messages() -> None:
    disk = FullDisk(SIZE + SIZE // 4)
    journal, _ = open_on(disk, size=SIZE)
    lsn = journal.append_run((1,), b"", [bytes(SIZE - 2000)])
    journal.append_run((1,), b"", [RAW])
    sync(journal)
    with pytest.raises(WriteFailed):
        for _ in range(3):
            journal.append_run((1,), b"", [RAW])
            journal.write()
    for _ in range(20):
        journal.delivered(1, lsn)
        journal.barrier()
        journal.write()
        with pytest.raises(WriteFailed):
            journal.append_run((1,), b"", [bytes(500)])
            journal.write()
