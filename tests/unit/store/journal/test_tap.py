"""Who taps the journal is told of every byte of it, and nothing leaves before it is committed."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import SEGMENT_SIZE_BYTES, corrupt, publish, segments_on, sync
from vouchmq.store.errors import WriteFailed
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

    @property
    def waiting_bytes(self) -> int:
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


def test_it_is_told_of_what_recovery_writes() -> None:
    disk = SimDisk()
    journal = open_tapped(disk, Copy())
    for n in range(20):
        publish(journal, 1, bytes([n]) * 500)
    journal.close()
    corrupt(disk, segments_on(disk)[0], 1000)
    copy = Copy()
    journal, recovered = open_journal(
        disk,
        segment_size_bytes=SEGMENT_SIZE_BYTES,
        wall_ms=lambda: 1,
        tap=copy,
        whole_bytes=1 << 30,
    )
    assert recovered.report.damaged
    assert copy.files
    assert_copied(disk, copy)


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
    assert journal.unsafe_bytes == copy.waiting_bytes > 0
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
