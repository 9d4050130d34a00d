"""Who taps the journal is told of every byte of it, and nothing leaves before it is committed."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import SEGMENT_SIZE_BYTES, corrupt, publish, segments_on, sync
from vouchmq.store.errors import CopyDamaged, WriteFailed
from vouchmq.store.journal import records
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.segment import parse_generation, segment_name
from vouchmq.store.recovery.recover import open_journal


class Copy:
    """Keeps what it is told, and the numbers and LSNs."""

    def __init__(self) -> None:
        self.files: dict[int, bytes] = {}
        self.ends: list[tuple[int, int]] = []
        self.purged: list[int] = []
        self.requested: list[int] = []
        self.last_number = 0

    @property
    def unsafe_bytes(self) -> int:
        return sum(map(len, self.files.values()))

    def request(self) -> None:
        self.requested.append(self.ends[-1][0])

    def appended(
        self, generation: int, offset: int, number: int, lsn: int, body: Sequence[bytes]
    ) -> None:
        before = self.files.get(generation, b"")
        assert len(before) == offset
        self.files[generation] = before + b"".join(body)
        header = records.read_block(self.files[generation], offset, generation, None)
        assert header is not None
        assert (header.number, header.next_lsn) == (number, lsn + 1)
        self.ends.append((number, lsn))

    def purge(self, generation: int) -> None:
        self.purged.append(generation)


def open_tapped(disk: SimDisk, copy: Copy) -> Journal:
    journal, _ = open_journal(
        disk, segment_size_bytes=SEGMENT_SIZE_BYTES, wall_ms=lambda: 1, tap=copy
    )
    return journal


def assert_copied(disk: SimDisk, copy: Copy) -> None:
    for generation, copied in copy.files.items():
        name = segment_name(generation)
        if name in disk.visible:
            whole = bytes(disk.visible[name].visible)
            assert whole.startswith(copied)
            assert not any(whole[len(copied) :])


def test_it_is_told_of_every_block_and_every_head() -> None:
    disk, copy = SimDisk(), Copy()
    journal = open_tapped(disk, copy)
    for n in range(20):
        publish(journal, 1, bytes([n]) * 500)
    assert len(copy.files) > 2
    assert_copied(disk, copy)
    assert sorted(copy.files) == [parse_generation(name) for name in segments_on(disk)]
    assert [number for number, _ in copy.ends] == list(range(1, len(copy.ends) + 1))


def test_it_is_told_of_large_contents_that_were_written_before_their_block() -> None:
    disk, copy = SimDisk(), Copy()
    journal = open_tapped(disk, copy)
    journal.chain.staging.room_bytes, journal.chain.staging.piece_bytes = 400, 1000
    publish(journal, 1, b"first")
    raw = bytes(range(250)) * 36
    content = journal.stage(raw)
    assert content is not None
    while not content.go_on(lambda: True):
        pass
    content.is_due = True
    publish(journal, 1, raw)
    assert_copied(disk, copy)
    assert any(raw in copied for copied in copy.files.values())


def test_it_is_told_of_blocks_that_are_written_in_pieces() -> None:
    disk, copy = SimDisk(), Copy()
    journal = open_tapped(disk, copy)
    journal.chain.whole_bytes, journal.chain.piece_bytes = 1000, 300
    raws = [bytes([n]) * 40 for n in range(50)]
    journal.append_run((1,), b"tail", raws)
    sync(journal)
    assert_copied(disk, copy)
    assert any(b"".join(raws) in copied for copied in copy.files.values())


def test_a_block_that_the_disk_refuses_is_none() -> None:
    disk, copy = SimDisk(), Copy()
    journal = open_tapped(disk, copy)
    publish(journal, 1, b"one")
    before = [*copy.ends]
    disk.fail["write", disk.calls["write"] + 1] = errno.ENOSPC
    journal.append_run((1,), b"tail", [b"two"])
    with pytest.raises(WriteFailed):
        journal.write()
    assert copy.ends == before
    publish(journal, 1, b"three")
    assert_copied(disk, copy)


def filled_disk() -> tuple[SimDisk, int]:
    """A disk with several segments, and the number of its last block."""
    disk = SimDisk()
    journal = open_tapped(disk, Copy())
    for n in range(20):
        publish(journal, 1, bytes([n]) * 500)
        sync(journal)
    journal.close()
    return disk, journal.chain.number - 1


def contents(disk: SimDisk) -> dict[str, bytes]:
    """All files."""
    return {name: bytes(disk.visible[name].visible) for name in disk.visible}


def test_damage_is_not_left_out_where_a_log_has_what_is_missing() -> None:
    """And nothing is changed: the same directory says afterwards what has to be read again."""
    disk, last = filled_disk()
    corrupt(disk, segments_on(disk)[1], 1000)
    copy, before = Copy(), contents(disk)
    copy.last_number = last
    with pytest.raises(CopyDamaged, match=r"is damaged at offset \d+"):
        open_tapped(disk, copy)
    assert contents(disk) == before
    # By itself a broker leaves it out.
    _, recovered = open_journal(disk, segment_size_bytes=SEGMENT_SIZE_BYTES, wall_ms=lambda: 1)
    assert recovered.report.damaged


def test_damage_of_the_last_block_is_no_torn_tail_where_a_log_has_it() -> None:
    disk, last = filled_disk()
    name = segments_on(disk)[-1]
    whole = bytes(disk.visible[name].visible).rstrip(b"\0")
    corrupt(disk, name, len(whole) - 1)
    copy, before = Copy(), contents(disk)
    copy.last_number = last
    with pytest.raises(CopyDamaged, match=f"ends with block {last - 1}, .* up to block {last}"):
        open_tapped(disk, copy)
    assert contents(disk) == before


def test_a_directory_that_has_all_of_the_log_is_opened() -> None:
    disk, last = filled_disk()
    copy = Copy()
    copy.last_number = last
    journal = open_tapped(disk, copy)
    # It was told of what was written since, a head.
    assert [number for number, _ in copy.ends] == list(range(last + 1, journal.chain.number))


def test_it_is_asked_to_commit_what_is_being_synced() -> None:
    disk, copy = SimDisk(), Copy()
    journal = open_tapped(disk, copy)
    journal.append_run((1,), b"tail", [b"one"])
    journal.write()
    assert copy.requested == []
    ticket = journal.begin_sync()
    journal.append_run((1,), b"tail", [b"two"])
    journal.write()
    assert copy.requested == [ticket.scope.number] == [2]


def test_what_is_not_committed_is_not_safe_however_well_it_is_synced() -> None:
    disk, copy = SimDisk(), Copy()
    journal = open_tapped(disk, copy)
    publish(journal, 1, b"one")
    assert journal.unsynced_bytes == 0
    assert journal.unsafe_bytes == copy.unsafe_bytes > 0
    copy.files.clear()
    assert journal.unsafe_bytes == 0


def test_headers_call_safe_what_is_synced_and_committed() -> None:
    disk, copy = SimDisk(), Copy()
    journal = open_tapped(disk, copy)
    publish(journal, 1, b"one", b"two")
    synced = copy.ends[-1][0]

    def said() -> int:
        publish(journal, 1, b"x")
        (copied,) = copy.files.values()
        headers, at = [], 0
        while at < len(copied):
            header = records.trusted_header(copied, at)
            headers.append(header.synced)
            at += records.HEADER_SIZE + header.length
        return headers[-1]

    assert said() == 0
    journal.committed(2)
    assert said() == 2
    journal.committed(synced + 99)
    assert said() == synced + 2


def test_no_segment_leaves_before_its_last_settle_is_committed() -> None:
    disk, copy = SimDisk(), Copy()
    journal = open_tapped(disk, copy)
    lsns = [lsn for n in range(20) for lsn in publish(journal, 1, bytes([n]) * 500)]
    for lsn in lsns:
        journal.settle(1, [lsn])
        sync(journal)
    sync(journal)
    assert segment_name(1) in segments_on(disk)
    assert copy.purged == []
    # The settles are committed: now a block may say that it is gone, which has to be so as well.
    journal.committed(copy.ends[-1][0])
    sync(journal)
    assert segment_name(1) in segments_on(disk)
    assert copy.purged == []
    journal.committed(copy.ends[-1][0])
    assert segment_name(1) not in segments_on(disk)
    assert copy.purged[0] == 1
