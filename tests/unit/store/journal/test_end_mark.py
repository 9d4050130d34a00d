"""What was on disk for certain is missed when it is not there. Spec: DURABLE-14, DURABLE-22"""

from __future__ import annotations

import errno

import pytest

from tests.simulation.sim_disk import PowerCut, SimDisk
from tests.unit.store.journals import (
    SEGMENT_SIZE_BYTES,
    corrupt,
    lsns_of,
    open_on,
    publish,
    raws_of,
    seal,
    segments_on,
)
from vouchmq.store.errors import CorruptSegment
from vouchmq.store.inspection import Inspector
from vouchmq.store.journal.end_mark import END_NAME, EndMark, EndMarkFile, read_end_mark
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.recovery.recover import Recovered, open_journal

BODY = b"x" * 300


def sealed(disk: SimDisk, count: int = 4) -> tuple[Journal, list[int]]:
    """A journal with so many messages that was closed in order."""
    journal, _ = open_on(disk)
    lsns = publish(journal, 1, *[BODY] * count)
    seal(journal)
    return journal, lsns


def end_of(journal: Journal) -> int:
    return journal.chain.active.offset


def remove(disk: SimDisk, name: str) -> None:
    """As somebody else would: nothing is pending."""
    del disk.visible[name], disk.durable[name]


def cut(disk: SimDisk, name: str, size: int) -> None:
    inode = disk.visible[name]
    for octets in (inode.visible, inode.durable):
        del octets[size:]


def test_a_sealed_journal_opens_clean() -> None:
    disk = SimDisk()
    _, lsns = sealed(disk)
    assert Inspector(disk).inspect().is_sealed
    _, recovered = open_on(disk)
    assert recovered.report.is_sealed
    assert lsns_of(recovered, 1) == lsns
    assert (recovered.report.truncated_bytes, recovered.report.quarantined) == (0, [])
    # Once something is written behind it, it is the seal of another day.
    assert not open_on(disk)[1].report.is_sealed


def test_damage_of_the_last_block_after_a_clean_stop_is_no_torn_tail() -> None:
    disk = SimDisk()
    journal, lsns = sealed(disk)
    name = segment_name(1)
    corrupt(disk, name, end_of(journal) - 100, 64)
    before = bytes(disk.visible[name].visible)
    assert len(Inspector(disk).inspect().damaged) == 1
    journal, recovered = open_on(disk)
    report = recovered.report
    assert lsns_of(recovered, 1) == lsns[:-1]
    assert report.truncated_bytes == 0
    assert not report.is_sealed
    (damage,) = report.damaged
    assert (damage.segment, damage.first_lsn, damage.last_lsn) == (name, lsns[-1], lsns[-1])
    assert (damage.queue_ids, damage.offset + damage.size_bytes) == ((1,), end_of_damage(before))
    assert bytes(disk.visible[name + ".damaged"].visible) == before
    # What comes next has numbers of its own, and nothing is told twice.
    later = publish(journal, 1, b"later")
    assert later[0] > lsns[-1]
    _, again = open_on(disk)
    assert lsns_of(again, 1) == [*lsns[:-1], *later]
    assert again.report.damaged == []


def end_of_damage(octets: bytes) -> int:
    return len(octets.rstrip(b"\0"))


def test_a_file_that_was_cut_short_after_a_clean_stop_is_damage() -> None:
    disk = SimDisk()
    journal, lsns = sealed(disk)
    cut(disk, segment_name(1), end_of(journal) - 500)
    _, recovered = open_on(disk)
    assert lsns_of(recovered, 1) == lsns[:2]
    (damage,) = recovered.report.damaged
    assert (damage.first_lsn, damage.last_lsn) == (lsns[2], lsns[3])


def test_the_newest_segment_is_missed_after_a_clean_stop() -> None:
    disk = SimDisk()
    journal, lsns = sealed(disk, 20)
    newest = journal.chain.active
    remove(disk, newest.name)
    journal, recovered = open_on(disk)
    kept = [lsn for lsn in lsns if lsn < newest.first_lsn]
    assert lsns_of(recovered, 1) == kept
    (damage,) = recovered.report.damaged
    assert (damage.segment, damage.offset, damage.size_bytes) == (newest.name, 0, newest.offset)
    assert (damage.first_lsn, damage.last_lsn) == (newest.first_lsn, lsns[-1])
    # Should it come back, it is not taken for what is written now.
    assert journal.chain.active.generation > newest.generation
    assert open_on(disk)[1].report.damaged == []


def test_the_newest_segment_is_missed_after_a_crash() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    lsns = publish(journal, 1, *[BODY] * 20)
    newest = journal.chain.active
    disk.kill()
    remove(disk, newest.name)
    _, recovered = open_on(disk)
    assert lsns_of(recovered, 1) == [lsn for lsn in lsns if lsn < newest.first_lsn]
    (damage,) = recovered.report.damaged
    assert damage.segment == newest.name


def test_segments_that_are_all_gone_are_missed() -> None:
    disk = SimDisk()
    journal, lsns = sealed(disk, 20)
    for name in segments_on(disk):
        remove(disk, name)
    journal, recovered = open_on(disk)
    (damage,) = recovered.report.damaged
    assert damage.last_lsn == lsns[-1]
    assert publish(journal, 1, b"later")[0] > lsns[-1]
    _, again = open_on(disk)
    assert (raws_of(again, 1), again.report.damaged) == ([b"later"], [])


def test_damage_behind_a_seal_can_be_refused() -> None:
    disk = SimDisk()
    journal, _ = sealed(disk)
    corrupt(disk, segment_name(1), end_of(journal) - 100, 64)
    before = {name: bytes(inode.visible) for name, inode in disk.visible.items()}
    with pytest.raises(CorruptSegment, match=r"0001\.journal is damaged at offset"):
        opened_strictly(disk)
    assert {name: bytes(inode.visible) for name, inode in disk.visible.items()} == before


def opened_strictly(disk: SimDisk) -> tuple[Journal, Recovered]:
    return open_journal(
        disk,
        segment_size_bytes=SEGMENT_SIZE_BYTES,
        wall_ms=lambda: 0,
        refuse_damage=True,
    )


def test_a_directory_without_an_end_mark_is_read_as_before() -> None:
    disk = SimDisk()
    journal, lsns = sealed(disk)
    remove(disk, END_NAME)
    corrupt(disk, segment_name(1), end_of(journal) - 100, 64)
    _, recovered = open_on(disk)
    assert lsns_of(recovered, 1) == lsns[:-1]
    assert recovered.report.damaged == []
    assert recovered.report.truncated_bytes > 0


def test_either_place_of_the_seal_is_enough() -> None:
    for place in (0, 4096):
        disk = SimDisk()
        journal, _ = sealed(disk)
        corrupt(disk, END_NAME, place + 20)
        corrupt(disk, segment_name(1), end_of(journal) - 100, 64)
        assert len(open_on(disk)[1].report.damaged) == 1, place


def test_a_mark_that_a_crash_tears_leaves_the_one_before() -> None:
    disk = SimDisk()
    file = EndMarkFile(disk)
    marks = [EndMark(n, n, n, 100 * n, n) for n in range(1, 6)]
    for mark, before in zip(marks, [None, *marks], strict=False):
        file.put(mark)
        assert read_end_mark(disk) == mark
        octets = disk.visible[END_NAME].visible
        whole = bytes(octets)
        place = 4096 * (mark.generation % 2)
        octets[place + 12 : place + 30] = bytes(18)
        assert read_end_mark(disk) == before
        octets[:] = whole


def test_a_disk_that_refuses_the_mark_costs_the_mark_only() -> None:
    disk = SimDisk()
    file = EndMarkFile(disk)
    disk.fail_next("create", errno.ENOSPC)
    file.put(EndMark(1, 1, 1, 1, 1))
    assert file.targets() == []
    disk.fail_next("write", errno.ENOSPC)
    file.put(EndMark(1, 1, 1, 1, 1))
    assert file.targets() == []
    file.put(EndMark(1, 1, 1, 1, 1))
    assert len(file.targets()) == 2


def test_a_seal_waits_for_the_last_sync() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    publish(journal, 1, b"a")
    journal.append_run((1,), b"tail", [b"written only"])
    journal.write()
    assert not journal.seal()
    mark = read_end_mark(disk)
    assert mark is None or not mark.is_sealed


def test_a_cut_at_any_call_of_sealing_and_of_the_next_start_loses_nothing() -> None:
    for at in range(60):
        disk = SimDisk(seed=at, is_strict=True)
        journal, _ = open_on(disk)
        lsns = publish(journal, 1, BODY, BODY)
        disk.crash_after = at
        try:
            seal(journal)
            journal, _ = open_on(disk)
            lsns += publish(journal, 1, BODY)
            is_done = True
        except PowerCut:
            is_done = False
        disk.crash(at)
        _, recovered = open_on(disk)
        assert recovered.report.damaged == [], at
        assert lsns_of(recovered, 1)[: len(lsns)] == lsns, at
        if is_done:
            return
    raise AssertionError("it takes more than 60 calls")


# What is cut off is kept.


def torn(disk: SimDisk) -> bytes:
    """A crash that leaves the last block in part; the part."""
    journal, _ = open_on(disk)
    publish(journal, 1, b"kept")
    at = end_of(journal)
    journal.append_run((1,), b"t", [b"torn" * 50])
    journal.write()
    end = end_of(journal)
    corrupt(disk, segment_name(1), end - 20)
    return bytes(disk.visible[segment_name(1)].visible[at:end])


def test_a_torn_tail_is_kept() -> None:
    disk = SimDisk()
    part = torn(disk)
    assert Inspector(disk).inspect().torn_bytes == len(part)
    _, recovered = open_on(disk)
    name = segment_name(1) + ".torn"
    assert recovered.report.quarantined == [name]
    assert recovered.report.truncated_bytes == len(part)
    assert bytes(disk.durable[name].durable) == part
    assert Inspector(disk).inspect().quarantined == [name]
    assert open_on(disk)[1].report.quarantined == []


def test_a_tail_whose_header_is_gone_is_kept_too() -> None:
    disk = SimDisk()
    part = torn(disk)
    at = bytes(disk.visible[segment_name(1)].visible).find(part)
    corrupt(disk, segment_name(1), at, 80)
    _, recovered = open_on(disk)
    assert recovered.report.truncated_bytes == len(part)


def test_the_earlier_life_of_a_recycled_file_is_no_tail() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    for _ in range(40):
        journal.settle(1, publish(journal, 1, b"old" * 300))
        if b"oldold" in disk.visible[journal.chain.active.name].visible[end_of(journal) :]:
            break
    else:
        raise AssertionError("no recycled file in use")
    _, recovered = open_on(disk)
    assert (recovered.report.truncated_bytes, recovered.report.quarantined) == (0, [])


def test_no_room_for_what_is_cut_is_no_reason_not_to_start() -> None:
    disk = SimDisk()
    torn(disk)
    disk.fail_next("create", errno.ENOSPC)
    _, recovered = open_on(disk)
    assert raws_of(recovered, 1) == [b"kept"]
    assert recovered.report.quarantined == []
    assert recovered.report.truncated_bytes > 0


def test_what_was_kept_of_many_crashes_does_not_fill_the_disk() -> None:
    disk = SimDisk()
    for _ in range(20):
        journal, _ = open_on(disk)
        publish(journal, 1, b"a")
        journal.append_run((1,), b"t", [b"torn" * 50])
        journal.write()
        corrupt(disk, journal.chain.active.name, end_of(journal) - 20)
        disk.kill()
    open_on(disk)
    kept = [name for name in disk.listdir() if name.endswith(".torn")]
    assert len(kept) == 16
    assert segment_name(20) + ".torn" in kept


def test_a_segment_behind_the_torn_tail_is_kept() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    publish(journal, 1, b"kept")
    for n in range(6):
        journal.append_run((1,), b"t", [b"unsynced%d" % n * 80])
        journal.write()
    octets = bytes(disk.visible[segment_name(1)].visible)
    corrupt(disk, segment_name(1), octets.find(b"unsynced1"))
    _, recovered = open_on(disk)
    names = [segment_name(2) + ".discarded", segment_name(1) + ".torn"]
    assert recovered.report.quarantined == names
    assert b"unsynced5" in disk.visible[names[0]].visible
    assert b"unsynced2" in disk.visible[names[1]].visible
