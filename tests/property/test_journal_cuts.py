"""A journal cut anywhere, torn anywhere: what comes back is a prefix of what was written."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.simulation.sim_disk import Inode, SimDisk
from vouchmq.store.journal.records import FORMAT_VERSION, MAGIC
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.recovery.recover import Recovered, open_journal

SEGMENT_SIZE_BYTES = 4096
VERSION_END = len(MAGIC) + 2
VERSION = FORMAT_VERSION.to_bytes(2, "little")


def put(disk: SimDisk, name: str, octets: bytes) -> None:
    inode = Inode()
    inode.visible = bytearray(octets)
    inode.durable = bytearray(octets)
    disk.visible[name] = disk.durable[name] = inode


def recover(disk: SimDisk) -> Recovered:
    return open_journal(disk, segment_size_bytes=SEGMENT_SIZE_BYTES, wall_ms=lambda: 0)[1]


def written() -> tuple[bytes, list[bytes], list[int]]:
    """Return a segment's octets, the message of each block, and where each block ends."""
    disk = SimDisk(7)
    journal, _ = open_journal(disk, segment_size_bytes=SEGMENT_SIZE_BYTES, wall_ms=lambda: 0)
    messages, ends = [], [journal._chain.active.offset]
    for n in range(9):
        messages.append(b"message %d " % n * (n + 1))
        journal.append_run((1,), b"tail", [messages[-1]])
        journal.write()
        ends.append(journal._chain.active.offset)
    return bytes(disk.visible[segment_name(1)].visible), messages, ends


OCTETS, MESSAGES, ENDS = written()


def found(recovered: Recovered) -> list[bytes]:
    assert recovered.report.damaged == []
    queue = recovered.queues.get(1)
    return [raw for _, raw, _ in queue.messages] if queue else []


def intact_before(octets: bytes) -> list[bytes]:
    """Return the messages whose blocks end before the first octet that was changed."""
    changed = next((n for n, octet in enumerate(octets) if octet != OCTETS[n]), len(OCTETS))
    changed = min(changed, len(octets))
    return MESSAGES[: sum(end <= changed for end in ENDS[1:])]


@pytest.mark.parametrize("filler", [b"", b"\x00", b"\xff"])
def test_a_journal_cut_at_every_byte_recovers_a_prefix(filler: bytes) -> None:
    for cut in range(ENDS[-1] + 1):
        octets = OCTETS[:cut] + filler * (len(OCTETS) - cut)
        if octets.startswith(MAGIC) and octets[len(MAGIC) : VERSION_END] > VERSION:
            continue  # would be of a newer format: tests/unit/store/recovery/test_recover.py
        disk = SimDisk()
        put(disk, segment_name(1), octets)
        assert found(recover(disk)) == intact_before(octets), f"cut at {cut}"


def test_zeros_anywhere_end_an_unsynced_journal_there() -> None:
    for start in range(ENDS[-1]):
        octets = bytearray(OCTETS)
        octets[start : start + 16] = bytes(16)
        disk = SimDisk()
        put(disk, segment_name(1), bytes(octets[: len(OCTETS)]))
        assert found(recover(disk)) == intact_before(bytes(octets)), f"zeros at {start}"


@given(at=st.integers(0, ENDS[-1] - 1), bit=st.integers(0, 7))
@settings(max_examples=300, deadline=None)
def test_one_flipped_bit_costs_its_block_and_those_behind_it(at: int, bit: int) -> None:
    octets = bytearray(OCTETS)
    octets[at] ^= 1 << bit
    assume(not len(MAGIC) <= at < VERSION_END)  # another version: test_recovery.py
    disk = SimDisk()
    put(disk, segment_name(1), bytes(octets))
    assert found(recover(disk)) == intact_before(bytes(octets))
    assert found(recover(disk)) == intact_before(bytes(octets))
