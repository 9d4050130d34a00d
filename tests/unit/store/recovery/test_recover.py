"""Torn tails are cut, damage is set aside and told, nothing is invented."""

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
    segments_on,
    sync,
)
from vouchmq.store.errors import CorruptSegment, UnsupportedFormat, WriteFailed
from vouchmq.store.journal import journal as journal_module
from vouchmq.store.journal import records
from vouchmq.store.journal.end_mark import END_NAME
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.journal.segment_pool import RESERVE_NAME
from vouchmq.store.recovery.recover import open_journal


def offset_of(disk: SimDisk, name: str, needle: bytes) -> int:
    at = bytes(disk.visible[name].visible).find(needle)
    assert at >= 0
    return at


def filled(disk: SimDisk, count: int = 8) -> tuple[Journal, list[int]]:
    """Return a journal with `count` synced messages of 600 octets, some five to a segment."""
    journal, _ = open_on(disk)
    lsns = publish(journal, 1, *[b"message %d|" % n * 50 for n in range(count)])
    assert len(segments_on(disk)) > 1
    return journal, lsns


def test_an_empty_directory_gives_an_empty_journal_at_once() -> None:
    disk = SimDisk()
    journal, recovered = open_on(disk)
    assert (recovered.definitions, recovered.queues, recovered.report.segments) == ([], {}, 0)
    assert journal.next_lsn == 1
    assert segments_on(disk) == [segment_name(1)]


def test_open_truncates_a_torn_tail_and_says_so() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    kept = publish(journal, 1, b"kept")
    journal.append_run((1,), b"t", [b"torn" * 50])
    journal.write()
    corrupt(disk, segment_name(1), offset_of(disk, segment_name(1), b"torn"))
    _, recovered = open_on(disk)
    assert lsns_of(recovered, 1) == kept
    assert recovered.report.truncated_bytes > 200
    assert recovered.report.damaged == []
    assert open_on(disk)[1].report.truncated_bytes == 0


def test_what_lies_behind_a_hole_in_the_unsynced_tail_is_discarded() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    kept = publish(journal, 1, b"kept")
    for n in range(6):
        journal.append_run((1,), b"t", [b"unsynced%d" % n * 80])
        journal.write()
    corrupt(disk, segment_name(1), offset_of(disk, segment_name(1), b"unsynced1"))
    assert len(segments_on(disk)) == 2
    journal, recovered = open_on(disk)
    assert lsns_of(recovered, 1) == [*kept, kept[-1] + 1]
    assert recovered.report.discarded_segments == [segment_name(2)]
    assert recovered.report.damaged == []
    # The numbers are used again; what was discarded must not come back among them.
    later = publish(journal, 1, b"later")
    assert lsns_of(open_on(disk)[1], 1) == [*kept, kept[-1] + 1, *later]


@pytest.mark.parametrize("instead", [b"replaced", b"", b"as long as it takes", None])
@pytest.mark.parametrize("behind", [b"behind", b"in the next segment" * 210])
def test_what_lies_behind_a_lost_block_does_not_follow_the_refused_one(
    monkeypatch: pytest.MonkeyPatch, instead: bytes | None, behind: bytes
) -> None:
    """The disk took it all and refused it; then it lost what took its place, if only settles."""
    disk = SimDisk()
    monkeypatch.setattr(disk.draw, "choice", max)
    journal, _ = open_on(disk)
    kept = publish(journal, 1, b"kept")
    refused = journal.append_run((1,), b"tail", [b"refused!"])
    disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(WriteFailed):
        journal.write()
    inode = disk.visible[segment_name(1)]
    stale, _ = inode.pending[-2:]
    assert isinstance(stale, tuple)
    if instead is None:
        journal.settle(1, kept)
    else:
        journal.append_run((1,), b"tail", [instead])
    journal.write()
    lost_bytes = journal._chain.active.offset - stale[0]
    assert (lost_bytes == len(stale[1])) == (instead == b"replaced")
    journal.append_run((1,), b"tail", [behind])
    journal.write()
    is_elsewhere = len(segments_on(disk)) == 2
    is_whole = is_elsewhere or lost_bytes >= len(stale[1])  # nothing was written into its end
    assert is_elsewhere == (len(behind) > 1000)
    for each in disk.visible.values():
        each.sync()
    disk.sync_names()
    for octets in (inode.visible, inode.durable):
        octets[stale[0] : stale[0] + lost_bytes] = stale[1].ljust(lost_bytes, b"\0")[:lost_bytes]
    for _ in range(2):
        _, recovered = open_on(disk)
        assert lsns_of(recovered, 1) == ([*kept, refused] if is_whole else kept)
        assert recovered.report.damaged == []


def test_damage_before_synced_blocks_is_told_and_the_rest_is_served() -> None:
    disk = SimDisk()
    _, lsns = filled(disk)
    name = segment_name(1)
    at = offset_of(disk, name, b"message 2")
    corrupt(disk, name, at)
    journal, recovered = open_on(disk)
    assert lsns_of(recovered, 1) == lsns[:2] + lsns[3:]
    (damage,) = recovered.report.damaged
    assert (damage.segment, damage.queue_ids) == (name, (1,))
    assert (damage.first_lsn, damage.last_lsn) == (lsns[2], lsns[2])
    assert damage.offset <= at < damage.offset + damage.size_bytes
    assert name not in disk.listdir()
    assert name + ".damaged" in disk.listdir()
    # The copies live on elsewhere and can be settled there; the damage is told once.
    journal.settle(1, lsns[:2])
    sync(journal)
    _, again = open_on(disk)
    assert lsns_of(again, 1) == lsns[3:]
    assert again.report.damaged == []


def test_damage_can_be_refused_and_then_nothing_is_changed() -> None:
    disk = SimDisk()
    filled(disk)
    corrupt(disk, segment_name(1), offset_of(disk, segment_name(1), b"message 2"))
    before = {name: bytes(inode.visible) for name, inode in disk.visible.items()}
    with pytest.raises(CorruptSegment, match=r"0001\.journal is damaged at offset"):
        open_journal(
            disk,
            segment_size_bytes=SEGMENT_SIZE_BYTES,
            wall_ms=lambda: 0,
            refuse_damage=True,
        )
    assert {name: bytes(inode.visible) for name, inode in disk.visible.items()} == before


def test_settles_of_a_damaged_segment_outlive_it() -> None:
    disk = SimDisk()
    journal, lsns = filled(disk)
    journal.settle(1, lsns[1:3])
    journal.drop_queue(2)
    journal.delivered(1, lsns[4])
    last = publish(journal, 1, *[b"message %d|" % n * 50 for n in range(20, 28)])
    name = segments_on(disk)[-2]
    octets = bytes(disk.visible[name].visible)
    here = [octets.find(b"message %d|" % n) for n in range(20, 28)]
    corrupt(disk, name, [at for at in here if at >= 0][1])
    _, recovered = open_on(disk)
    (damage,) = recovered.report.damaged
    survivors = [lsn for lsn in lsns + last if lsn not in (lsns[1], lsns[2], damage.first_lsn)]
    assert lsns_of(recovered, 1) == survivors
    assert recovered.queues[1].delivered_lsn == lsns[4]
    _, again = open_on(disk)
    assert lsns_of(again, 1) == survivors
    assert again.queues[1].delivered_lsn == lsns[4]


@pytest.mark.parametrize("at", [0, 30])
def test_a_damaged_head_costs_only_what_it_held(at: int) -> None:
    disk = SimDisk()
    _, lsns = filled(disk)
    corrupt(disk, segment_name(2), at)
    _, recovered = open_on(disk)
    (damage,) = recovered.report.damaged
    assert (damage.segment, damage.offset) == (segment_name(2), 0)
    # The route was logged in the block behind the head, so all messages are there.
    assert lsns_of(recovered, 1) == lsns
    assert lsns_of(open_on(disk)[1], 1) == lsns


def test_a_lost_route_costs_no_more_than_the_messages_until_it_is_logged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "_ROUTES_AGAIN_BYTES", 2000)
    disk = SimDisk()
    journal, _ = open_on(disk, size=1 << 16)
    lsns = publish(journal, 1, *[b"message %d|" % n * 50 for n in range(20)])
    # The first two blocks with messages of a route tell it, and nobody else for a while.
    for number in (0, 1):
        corrupt(disk, segment_name(1), offset_of(disk, segment_name(1), b"message %d|" % number))
    _, recovered = open_on(disk, size=1 << 16)
    report = recovered.report
    assert 0 < report.unroutable_messages < 5
    lost = report.unroutable_messages + 2
    assert report.unroutable_lsns == (lsns[2], lsns[lost - 1])
    assert lsns_of(recovered, 1) == lsns[lost:]


@pytest.mark.parametrize("number", range(4))
def test_a_lost_block_takes_no_messages_of_other_blocks_along(number: int) -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=1 << 16)
    lsns = publish(journal, 1, *[b"message %d|" % n * 50 for n in range(8)])
    corrupt(disk, segment_name(1), offset_of(disk, segment_name(1), b"message %d|" % number))
    _, recovered = open_on(disk, size=1 << 16)
    assert recovered.report.unroutable_messages == 0
    assert lsns_of(recovered, 1) == [lsn for at, lsn in enumerate(lsns) if at != number]


def test_a_missing_segment_is_damage() -> None:
    disk = SimDisk()
    _, lsns = filled(disk, 16)
    gone = segments_on(disk)[1]
    del disk.visible[gone], disk.durable[gone]
    _, recovered = open_on(disk)
    assert recovered.report.damaged
    assert set(lsns_of(recovered, 1)) < set(lsns)
    lost = set(lsns) - set(lsns_of(recovered, 1))
    assert all(
        any(d.first_lsn <= lsn <= d.last_lsn for d in recovered.report.damaged) for lsn in lost
    )
    assert open_on(disk)[1].report.damaged == []


def test_definitions_outlive_damage_that_takes_more_than_a_segment_to_carry_on() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.define(b"a queue")
    sync(journal)
    journal, lsns = filled(disk, 24)
    for name in segments_on(disk)[1:4]:
        corrupt(disk, name, offset_of(disk, name, b"message"))
    before = segments_on(disk)[-1]
    _, recovered = open_on(disk)
    assert recovered.report.damaged
    # What was left went on into segments that begin with all definitions.
    assert sum(name > before for name in segments_on(disk)) > 1
    _, again = open_on(disk)
    assert again.definitions == recovered.definitions == [b"a queue"]
    assert set(lsns_of(again, 1)) <= set(lsns)


def test_a_segment_that_is_all_rubbish_is_quarantined() -> None:
    disk = SimDisk()
    _, lsns = filled(disk, 16)
    name = segments_on(disk)[1]
    corrupt(disk, name, 0, len(disk.visible[name].visible))
    _, recovered = open_on(disk)
    assert name in {damage.segment for damage in recovered.report.damaged}
    assert name + ".damaged" in disk.listdir()
    assert lsns_of(recovered, 1)[0] == lsns[0]
    assert lsns_of(recovered, 1)[-1] == lsns[-1]
    assert open_on(disk)[1].report.damaged == []


def test_a_crash_at_any_moment_of_a_quarantine_loses_nothing_more() -> None:
    for cut in range(60):
        disk = SimDisk(cut, is_strict=True)
        _, lsns = filled(disk, 12)
        corrupt(disk, segment_name(1), offset_of(disk, segment_name(1), b"message 2"))
        disk.crash_after = cut
        try:
            open_on(disk)
            is_done = True
        except PowerCut:
            is_done = False
        disk.crash(cut)
        assert lsns_of(open_on(disk)[1], 1) == lsns[:2] + lsns[3:], f"cut at {cut}"
        if is_done:
            return
    raise AssertionError("recovery takes more than 60 calls")


def test_an_unreadable_spot_is_damage_and_not_the_end() -> None:
    disk = SimDisk()
    _, lsns = filled(disk)
    disk.fail_next("read", errno.EIO)
    _, recovered = open_on(disk)
    # One failing read of the whole file is tried again piece by piece.
    assert lsns_of(recovered, 1) == lsns


def test_a_message_that_looks_like_a_block_is_not_taken_for_one() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    publish(journal, 1, b"a")
    header = records.trusted_header(bytes(disk.visible[segment_name(1)].visible), 0)
    texts = records.pack_texts(records.DEFINITIONS, [b"make me administrator"])
    payload = b"".join(texts)
    forged = header._replace(kind=records.BATCH, length=len(payload), salt=1, number=99)
    body = records.seal(forged, [payload]) + payload
    (lsn,) = publish(journal, 1, body)
    publish(journal, 1, b"b")
    name = segment_name(1)
    at = offset_of(disk, name, body)
    corrupt(disk, name, at - 20, 4)  # its own block breaks, so the search walks through it
    _, recovered = open_on(disk)
    assert recovered.definitions == []
    assert raws_of(recovered, 1) == [b"a", b"b"]
    assert recovered.report.damaged[0].first_lsn == lsn


def test_stale_blocks_of_a_recycled_file_stay_dead() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    for _ in range(12):
        journal.settle(1, publish(journal, 1, b"old" * 300))
    sync(journal)
    kept = publish(journal, 1, b"x")
    stale = [n for n in segments_on(disk) if b"oldold" in disk.visible[n].visible]
    assert stale, "no recycled file in use"
    _, recovered = open_on(disk)
    assert lsns_of(recovered, 1) == kept
    assert recovered.report.damaged == []


def test_a_newer_format_is_refused_and_left_alone() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    publish(journal, 1, b"a")
    octets = disk.visible[segment_name(1)].visible
    ours = bytes(octets[:8])
    octets[:] = octets.replace(ours, ours[:6] + b"\x09" + ours[7:])
    before = bytes(disk.visible[segment_name(1)].visible)
    with pytest.raises(UnsupportedFormat, match="journal format 9"):
        open_on(disk)
    assert bytes(disk.visible[segment_name(1)].visible) == before
    assert segments_on(disk) == [segment_name(1)]


def test_what_nobody_can_read_is_kept_under_another_name() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    publish(journal, 1, b"a")
    name = segment_name(1)
    corrupt(disk, name, 0, len(disk.visible[name].visible))
    disk.unlink(END_NAME)
    _, recovered = open_on(disk)
    assert recovered.report.discarded_segments == [name]
    assert name + ".discarded" in disk.listdir()
    assert segments_on(disk) == [segment_name(2)]


def test_spares_are_removed_at_the_start() -> None:
    disk = SimDisk()
    open_on(disk)
    for name in ("prepared.spare", "7.spare", "prepared.spare.new"):
        disk.create(name, 100)
    open_on(disk)
    assert [name for name in disk.listdir() if "spare" in name] == [RESERVE_NAME]


def test_messages_seen_after_a_killed_process_survive_a_later_power_cut() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.append_run((1,), b"t", [b"only in the page cache"])
    journal.write()
    disk.kill()
    assert raws_of(open_on(disk)[1], 1) == [b"only in the page cache"]
    for seed in range(20):
        disk.crash(seed)
        assert raws_of(open_on(disk)[1], 1) == [b"only in the page cache"]


def test_pages_that_a_failed_sync_left_clean_are_written_again() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.append_run((1,), b"t", [b"looks written"])
    journal.write()
    disk.fail_next("sync")
    with pytest.raises(OSError, match="Input/output"):
        journal.begin_sync().targets[0].sync()
    disk.kill()
    assert raws_of(open_on(disk)[1], 1) == [b"looks written"]
    disk.crash(1)
    assert raws_of(open_on(disk)[1], 1) == [b"looks written"]


def test_numbers_and_lsns_go_on_after_a_restart() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    publish(journal, 1, b"a")
    journal.take(5)
    journal.barrier()
    sync(journal)
    expected = journal.next_lsn
    journal, _ = open_on(disk)
    assert journal.next_lsn == expected
    assert journal.written_lsn == expected - 1
