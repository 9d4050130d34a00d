"""Segments that recovery need not read, and when it reads them all the same."""

from __future__ import annotations

import errno

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import corrupt, lsns_of, publish, sync
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.errors import CorruptSegment, ReadFailed
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.segment import segment_name, summary_name
from vouchmq.store.recovery.recover import Recovered, open_journal
from vouchmq.store.recovery.summary import read_summary

SIZE = 64 * 1024


def open_lazily(disk: SimDisk, **options: bool) -> tuple[Journal, Recovered]:
    return open_journal(
        disk,
        segment_size_bytes=SIZE,
        wall_ms=lambda: 0,
        whole_bytes=0,
        **options,  # type: ignore[arg-type]
    )


def filled(disk: SimDisk, count: int = 300) -> list[int]:
    """Publish as many messages, which takes some segments; return their LSNs."""
    journal, _ = open_lazily(disk)
    lsns: list[int] = []
    for n in range(count // 10):
        first = journal.append_run(
            (1,), b"tail", [b"message %d|" % (10 * n + m) * 90 for m in range(10)]
        )
        lsns += range(first, first + 10)
        sync(journal)
    return lsns


def place_of(disk: SimDisk, name: str, number: int) -> int:
    at = bytes(disk.visible[name].visible).find(b"message %d|" % number)
    assert at >= 0
    return at


def reads_of(disk: SimDisk) -> tuple[int, Recovered]:
    before = disk.calls["read"]
    _, recovered = open_lazily(disk)
    return disk.calls["read"] - before, recovered


def test_only_the_newest_segment_is_read() -> None:
    disk = SimDisk()
    lsns = filled(disk)
    _, recovered = open_lazily(disk)
    assert recovered.report.segments >= 5
    assert recovered.report.unread_segments == recovered.report.segments - 1
    assert lsns_of(recovered, 1) == lsns
    assert [raw[:9] for _, raw, _ in recovered.queues[1].messages[:2]] == [
        b"message 0",
        b"message 1",
    ]


def test_the_newest_segments_are_read_up_to_a_size() -> None:
    disk = SimDisk()
    filled(disk)
    _, recovered = open_journal(
        disk, segment_size_bytes=SIZE, wall_ms=lambda: 0, whole_bytes=2 * SIZE + 1
    )
    assert recovered.report.unread_segments == recovered.report.segments - 3


def test_what_summaries_tell_is_what_reading_tells() -> None:
    disk = SimDisk()
    lsns = filled(disk)
    journal, _ = open_lazily(disk)
    journal.settle(1, lsns[5:40])
    journal.settle(1, lsns[100:260:3])
    journal.delivered(1, lsns[250])
    journal.note(1, b"key", b"value")
    sync(journal)
    filled(disk)
    found = [open_lazily(disk)[1]]
    for name in disk.listdir():
        if name.endswith(".summary"):
            disk.unlink(name)
    found.append(open_lazily(disk)[1])
    assert found[0].report.unread_segments > found[1].report.unread_segments == 0
    assert found[0].queues[1].messages == found[1].queues[1].messages
    assert found[0].queues[1].delivered_lsn == found[1].queues[1].delivered_lsn == lsns[250]
    assert found[0].notes == found[1].notes == {1: {b"key": b"value"}}


@pytest.mark.parametrize("at", [0, 6, 9, 20, 200])
def test_a_summary_that_is_not_whole_costs_time_only(at: int) -> None:
    disk = SimDisk()
    lsns = filled(disk)
    corrupt(disk, summary_name(2), at, 1)
    assert read_summary(disk, 2) is None
    _, recovered = open_lazily(disk)
    assert recovered.report.unread_segments == recovered.report.segments - 2
    assert lsns_of(recovered, 1) == lsns
    assert read_summary(disk, 2) is not None, "the next start has it again"


def test_damage_is_found_when_it_is_read_and_dealt_with_at_the_next_start() -> None:
    disk = SimDisk()
    lsns = filled(disk)
    name = segment_name(2)
    number = lsns.index(read_summary_first(disk, 2)) + 25
    corrupt(disk, name, place_of(disk, name, number))
    journal, recovered = open_lazily(disk)
    assert recovered.report.damaged == []
    with pytest.raises(ReadFailed):
        journal.fetch(lsns)
    journal.close()
    _, recovered = open_lazily(disk)
    (damage,) = recovered.report.damaged
    assert (damage.segment, damage.queue_ids) == (name, (1,))
    lost = range(damage.first_lsn, damage.last_lsn + 1)
    assert lsns[number] in lost
    assert len(lost) == 10
    assert lsns_of(recovered, 1) == [lsn for lsn in lsns if lsn not in lost]
    assert len(recovered.queues[1].messages) == len(lsns) - 10


def read_summary_first(disk: SimDisk, generation: int) -> int:
    found = read_summary(disk, generation)
    assert found is not None
    return found.facts.first_lsn


@pytest.mark.parametrize("is_one", [True, False])
def test_a_message_is_checked_although_its_block_is_large(is_one: bool) -> None:
    disk = SimDisk()
    journal, _ = open_journal(disk, segment_size_bytes=1 << 20, wall_ms=lambda: 0, whole_bytes=0)
    first = journal.append_run((1,), b"tail", [b"message %d|" % n * 200 for n in range(100)])
    sync(journal)
    publish(journal, 1, b"x" * (1 << 20))
    sync(journal)
    corrupt(disk, segment_name(1), place_of(disk, segment_name(1), 70) + 600)
    journal, recovered = open_journal(
        disk, segment_size_bytes=1 << 20, wall_ms=lambda: 0, whole_bytes=0
    )
    assert recovered.report.unread_segments >= 1
    with pytest.raises(ReadFailed):
        journal.fetch([first + 70] if is_one else [first + 3, first + 40])


def test_a_missing_file_a_short_one_and_a_bad_head_are_found_at_the_start() -> None:
    for harm in ("missing", "short", "head"):
        disk = SimDisk()
        lsns = filled(disk)
        name = segment_name(3)
        inode = disk.visible[name]
        if harm == "missing":
            disk.unlink(name)
            disk.directory.sync()
        elif harm == "short":
            for octets in (inode.visible, inode.durable):
                del octets[SIZE // 2 :]
        else:
            corrupt(disk, name, 90)
        _, recovered = open_lazily(disk)
        assert recovered.report.damaged, harm
        assert recovered.report.unread_segments > 0
        assert len(recovered.queues[1].messages) >= len(lsns) - 70, harm
        assert open_lazily(disk)[1].report.damaged == []


def test_who_refuses_damage_has_everything_read() -> None:
    disk = SimDisk()
    filled(disk)
    corrupt(disk, segment_name(2), SIZE // 2)
    with pytest.raises(CorruptSegment):
        open_lazily(disk, refuse_damage=True)


def test_compaction_reads_what_nobody_has_read_before_it_believes_a_word() -> None:
    disk = SimDisk()
    lsns = filled(disk)
    name = segment_name(2)
    corrupt(disk, name, SIZE // 2)
    journal, recovered = open_lazily(disk)
    assert recovered.report.damaged == []
    journal.settle(1, [lsn for lsn in lsns if lsn % 20])
    sync(journal)
    corrupted: list[str] = []
    compactor = Compactor(journal, lambda segment, why: corrupted.append(segment))
    for _ in range(500):
        compactor.step(1 << 20)
        sync(journal)
    assert corrupted == [name]
    assert summary_name(2) not in disk.listdir()
    assert open_lazily(disk)[1].report.damaged[0].segment == name


def test_summaries_go_with_their_segments() -> None:
    disk = SimDisk()
    lsns = filled(disk)
    journal, _ = open_lazily(disk)
    journal.settle(1, lsns)
    for _ in range(3):
        sync(journal)
    for file_task in journal.take_file_tasks():
        if file_task.verb == "unlink":
            disk.unlink(file_task.name)
    segments = {name for name in disk.listdir() if name.endswith(".journal")}
    summaries = {name for name in disk.listdir() if name.endswith(".summary")}
    assert len(segments) <= 2
    assert summaries <= {f"{name}.summary" for name in segments}


def test_a_full_disk_only_costs_the_summary() -> None:
    disk = SimDisk()
    journal, _ = open_lazily(disk)
    fail = disk.create

    def refuse(name: str, size: int) -> object:
        if name.endswith(".summary"):
            raise OSError(errno.ENOSPC, "full")
        return fail(name, size)

    disk.create = refuse  # type: ignore[method-assign,assignment]
    lsns = publish(journal, 1, *[b"x" * 20_000] * 12)
    assert not [name for name in disk.listdir() if name.endswith(".summary")]
    assert lsns_of(open_lazily(disk)[1], 1) == lsns


@pytest.mark.parametrize("seed", range(12))
def test_a_segment_that_was_cut_is_not_believed_by_its_old_summary(seed: int) -> None:
    disk = SimDisk(seed)
    disk.sticky_suffix = ".summary"
    journal, _ = open_lazily(disk)
    kept = publish(journal, 1, *[b"x" * 1000] * 40)
    # Never synced, but large enough to begin another segment: the summary speaks of it.
    while summary_name(1) not in disk.listdir():
        journal.append_run((1,), b"", [b"y" * 6000])
        journal.write()
    disk.crash(seed)
    assert summary_name(1) in disk.listdir()
    for turn in range(3):
        journal, recovered = open_lazily(disk)
        assert recovered.report.damaged == []
        found = lsns_of(recovered, 1)
        assert found[: len(kept)] == kept
        kept = found + publish(journal, 1, *[b"z" * 3000] * 30)
        disk.crash(seed + turn)
    assert lsns_of(open_lazily(disk)[1], 1) == kept
