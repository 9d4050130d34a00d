"""Large contents that are written before their block, and only once."""

from __future__ import annotations

import errno
import random
from itertools import count
from typing import Any
from zlib import crc32

import pytest

from tests.simulation.sim_disk import PowerCut, SimDisk, SimFile
from tests.unit.store.journals import lsns_of, open_on, publish, raws_of, sync
from vouchmq.store.errors import WriteFailed
from vouchmq.store.journal import records
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.staging import MOST, StagedContent
from vouchmq.store.recovery.recover import Recovered

LARGE = random.Random(7).randbytes(9000)


def opened(disk: SimDisk) -> Journal:
    """A journal that stages small contents, with a message in queue 1."""
    journal, _ = open_on(disk)
    journal.chain.staging.room_bytes, journal.chain.staging.piece_bytes = 400, 1000
    publish(journal, 1, b"first")
    return journal


def opened_wide(disk: SimDisk) -> Journal:
    """The same with segments in which there is room ahead of the end."""
    journal, _ = open_on(disk, size=1 << 16)
    staging = journal.chain.staging
    staging.room_bytes, staging.piece_bytes, staging.ahead_bytes = 400, 1000, 2000
    publish(journal, 1, b"first")
    return journal


def reopened(disk: SimDisk) -> tuple[Journal, Recovered]:
    return open_on(disk, size=1 << 16)


def staged_whole(journal: Journal, raw: bytes = LARGE) -> StagedContent:
    """Have a content staged, a piece at a time."""
    content = journal.stage(raw)
    assert content is not None
    while not content.go_on(lambda: True):
        pass
    content.is_due = True
    return content


def spares_on(disk: SimDisk) -> list[str]:
    return [name for name in disk.listdir() if name.startswith("staged")]


def octets_written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    write = SimFile.write

    def watched(self: SimFile, parts: Any, offset: int) -> None:
        sizes.append(sum(map(len, parts)))
        write(self, parts, offset)

    monkeypatch.setattr(SimFile, "write", watched)
    return sizes


def test_checksums_are_joined() -> None:
    draw = random.Random(1)
    for size in (0, 1, 2, 63, 64, 65, 1000, 4097):
        first, second = draw.randbytes(draw.randrange(99)), draw.randbytes(size)
        joined = records.join_checksums(crc32(first), crc32(second), size)
        assert joined == crc32(first + second)


def test_a_look_at_the_clock_behind_each_piece() -> None:
    journal = opened(SimDisk())
    content = journal.stage(LARGE)
    assert content is not None
    looks = count(1)
    assert not content.go_on(lambda: next(looks) == 3)
    assert not content.is_whole
    assert content.go_on(lambda: next(looks) > 99)
    assert (content.is_whole, next(looks)) == (True, 10)


def test_the_block_is_written_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    journal = opened(disk)
    staged_whole(journal)
    sizes = octets_written(monkeypatch)
    before = journal.append_run((1,), b"t", [b"before"])
    journal.append_run((1, 2), b"t", [LARGE])
    journal.append_run((2,), b"t", [b"behind"])
    sync(journal)
    assert sum(sizes) < 2500
    assert spares_on(disk) == []
    journal.settle(1, [before])
    sync(journal)
    disk.crash(3)
    journal, recovered = open_on(disk)
    assert raws_of(recovered, 1) == [b"first", LARGE]
    assert raws_of(recovered, 2) == [LARGE, b"behind"]
    assert journal.fetch(lsns_of(recovered, 2)) == [(LARGE, b"t"), (b"behind", b"t")]
    assert recovered.report.damaged == []


def test_it_is_one_of_a_block_that_is_there_or_not() -> None:
    """Whatever the power cut leaves: nothing that was synced is missing, no part is there."""
    found = set()
    for at in range(40):
        for seed in range(6):
            disk = SimDisk(seed, is_strict=seed % 2 == 0)
            journal = opened(disk)
            disk.crash_after = at
            is_synced = False
            try:
                staged_whole(journal)
                journal.append_run((1,), b"t", [LARGE])
                sync(journal)
                is_synced = True
            except PowerCut:
                pass
            disk.crash(seed)
            journal, recovered = open_on(disk)
            raws = raws_of(recovered, 1)
            assert raws in ([b"first"], [b"first", LARGE])
            assert len(raws) == 2 or not is_synced
            assert spares_on(disk) == []
            found.add((len(raws), is_synced))
    assert found == {(1, False), (2, False), (2, True)}


def test_one_that_no_block_wants_goes() -> None:
    disk = SimDisk()
    journal = opened(disk)
    half = journal.stage(LARGE)
    assert half is not None
    half.go_on(lambda: True)
    half.is_due = True
    staged_whole(journal)
    assert len(spares_on(disk)) == 2
    journal.write()
    assert [task.verb for task in journal.take_file_tasks() if "staged" in task.name] == [
        "unlink",
        "unlink",
    ]
    assert not journal.chain.staging


def test_one_that_is_not_due_waits_for_its_block() -> None:
    journal = opened(SimDisk())
    content = staged_whole(journal)
    content.is_due = False
    publish(journal, 1, b"second")
    content.is_due = True
    generation = journal.chain.tail_generation
    journal.append_run((1,), b"t", [LARGE])
    journal.write()
    assert journal.chain.tail_generation == generation + 1
    assert journal.chain.active.size_bytes == content.size_bytes


def test_the_same_octets_in_another_object_are_stored_as_ever() -> None:
    disk = SimDisk()
    journal = opened(disk)
    staged_whole(journal)
    journal.append_run((1,), b"t", [bytes(bytearray(LARGE))])
    sync(journal)
    disk.crash(1)
    assert raws_of(open_on(disk)[1], 1) == [b"first", LARGE]


@pytest.mark.parametrize("where", ["before", "behind"])
def test_without_room_around_it_the_block_is_written_whole(where: str) -> None:
    disk = SimDisk()
    journal = opened(disk)
    staged_whole(journal)
    runs = [[b"x" * 3000], [LARGE]] if where == "before" else [[LARGE], [b"x" * 3000]]
    for raws in runs:
        journal.append_run((1,), b"t", raws)
    sync(journal)
    disk.crash(1)
    assert raws_of(open_on(disk)[1], 1) == [b"first", *(raw for raws in runs for raw in raws)]


def test_nothing_is_staged_that_would_leave_much_of_a_segment_unused() -> None:
    disk = SimDisk()
    journal = opened(disk)
    assert journal.stage(bytes(1000)) is None
    assert journal.stage(bytes(3000)) is not None


def test_only_so_many_at_a_time() -> None:
    journal = opened(SimDisk())
    assert [journal.stage(LARGE) is None for _ in range(MOST + 1)] == [False] * MOST + [True]
    journal.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_no_piece_is_asked_again_with_the_block(number: int) -> None:
    disk = SimDisk()
    journal = opened(disk)
    disk.fail_next("create", number)
    assert journal.stage(LARGE) is None
    content = journal.stage(LARGE)
    assert content is not None
    disk.fail_next("write", number)
    assert content.go_on(lambda: False)
    assert not content.is_whole
    content.is_due = True
    journal.append_run((1,), b"t", [LARGE])
    sync(journal)
    disk.crash(1)
    assert raws_of(open_on(disk)[1], 1) == [b"first", LARGE]


@pytest.mark.parametrize(("verb", "later"), [("rename", 0), ("write", 0), ("write", 3)])
def test_a_refused_block_leaves_the_journal_as_it_was(verb: str, later: int) -> None:
    disk = SimDisk()
    journal = opened(disk)
    staged_whole(journal)
    journal.append_run((1,), b"t", [LARGE])
    disk.fail[verb, disk.calls[verb] + 1 + later] = errno.ENOSPC
    with pytest.raises(WriteFailed):
        journal.write()
    publish(journal, 1, b"second")
    disk.crash(1)
    assert raws_of(open_on(disk)[1], 1) == [b"first", b"second"]


def test_a_start_removes_what_was_staged() -> None:
    disk = SimDisk()
    journal = opened(disk)
    staged_whole(journal)
    disk.directory.sync()
    assert spares_on(disk)
    disk.crash(1)
    assert raws_of(open_on(disk)[1], 1) == [b"first"]
    assert spares_on(disk) == []


class TestAhead:
    """Where the active segment has room, the content is staged there."""

    def test_the_block_is_written_around_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = SimDisk()
        journal = opened_wide(disk)
        generation = journal.chain.tail_generation
        content = staged_whole(journal)
        assert content.is_ahead
        assert spares_on(disk) == []
        sizes = octets_written(monkeypatch)
        # Others write meanwhile, also in the same block.
        content.is_due = False
        publish(journal, 2, b"meanwhile")
        content.is_due = True
        journal.append_run((1,), b"t", [b"before"])
        journal.append_run((1, 2), b"t", [LARGE])
        journal.append_run((2,), b"t", [b"behind"])
        sync(journal)
        assert sum(sizes) < 3500
        assert journal.chain.tail_generation == generation
        publish(journal, 1, b"last")
        disk.crash(3)
        journal, recovered = reopened(disk)
        assert raws_of(recovered, 1) == [b"first", b"before", LARGE, b"last"]
        assert raws_of(recovered, 2) == [b"meanwhile", LARGE, b"behind"]
        assert recovered.report.damaged == []
        assert recovered.report.truncated_bytes == 0

    def test_no_write_is_longer_than_a_piece(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """LIMIT-23: neither the content nor what is around it."""
        journal = opened_wide(SimDisk())
        sizes = octets_written(monkeypatch)
        staged_whole(journal)
        journal.append_run((1,), b"t", [LARGE])
        journal.write()
        assert len(sizes) == 10  # of the content 9, all else at once
        assert max(sizes) <= 2000

    def test_it_is_one_of_a_block_that_is_there_or_not(self) -> None:
        """Whatever the power cut leaves: nothing that was synced is missing, no part is there."""
        found = set()
        for at in range(40):
            for seed in range(6):
                disk = SimDisk(seed, is_strict=seed % 2 == 0)
                journal = opened_wide(disk)
                disk.crash_after = at
                is_synced = False
                try:
                    staged_whole(journal)
                    journal.append_run((1,), b"t", [LARGE])
                    sync(journal)
                    is_synced = True
                except PowerCut:
                    pass
                disk.crash(seed)
                raws = raws_of(reopened(disk)[1], 1)
                assert raws in ([b"first"], [b"first", LARGE])
                assert len(raws) == 2 or not is_synced
                found.add((len(raws), is_synced))
        assert found == {(1, False), (2, False), (2, True)}

    @pytest.mark.parametrize("is_half", [True, False])
    def test_what_others_write_is_never_overwritten(self, is_half: bool) -> None:
        """One that blocks have reached is written no further, and with its block as a whole."""
        disk = SimDisk()
        journal = opened_wide(disk)
        content = journal.stage(LARGE)
        assert content is not None
        content.go_on(lambda: is_half)
        assert content.is_whole is not is_half
        publish(journal, 1, b"x" * 5000)
        assert content.go_on(lambda: False)
        assert not content.is_whole
        content.is_due = True
        journal.append_run((1,), b"t", [LARGE])
        sync(journal)
        disk.crash(1)
        _, recovered = reopened(disk)
        assert raws_of(recovered, 1) == [b"first", b"x" * 5000, LARGE]
        assert recovered.report.damaged == []

    def test_a_block_that_was_refused_may_have_spoilt_it(self) -> None:
        disk = SimDisk()
        journal = opened_wide(disk)
        content = staged_whole(journal)
        content.is_due = False
        disk.fail_next("write", errno.ENOSPC)
        journal.append_run((1,), b"t", [b"x" * 5000])
        with pytest.raises(WriteFailed):
            journal.write()
        assert not content.is_whole

    def test_it_does_not_follow_into_another_segment(self) -> None:
        disk = SimDisk()
        journal = opened_wide(disk)
        content = journal.stage(LARGE)
        assert content is not None
        content.go_on(lambda: True)
        publish(journal, 1, b"x" * 60_000)
        publish(journal, 1, b"y" * 60_000)
        assert content.go_on(lambda: False)
        content.is_due = True
        journal.append_run((1,), b"t", [LARGE])
        sync(journal)
        disk.crash(1)
        raws = raws_of(reopened(disk)[1], 1)
        assert raws == [b"first", b"x" * 60_000, b"y" * 60_000, LARGE]

    def test_without_room_around_it_the_block_is_written_whole(self) -> None:
        disk = SimDisk()
        journal = opened_wide(disk)
        staged_whole(journal)
        journal.append_run((1,), b"t", [b"x" * 3000])
        journal.append_run((1,), b"t", [LARGE])
        sync(journal)
        disk.crash(1)
        assert raws_of(reopened(disk)[1], 1) == [b"first", b"x" * 3000, LARGE]

    def test_one_at_a_time(self) -> None:
        journal = opened_wide(SimDisk())
        first = journal.stage(LARGE)
        assert first is not None
        assert journal.stage(bytes(LARGE)) is None
        first.is_due = True
        journal.write()
        second = journal.stage(LARGE)
        assert second is not None
        assert second.is_ahead
        journal.close()

    def test_what_no_block_wanted_is_no_part_of_the_journal(self) -> None:
        disk = SimDisk()
        journal = opened_wide(disk)
        staged_whole(journal)
        publish(journal, 1, b"second")
        disk.crash(1)
        _, recovered = reopened(disk)
        assert raws_of(recovered, 1) == [b"first", b"second"]
        assert recovered.report.damaged == []
