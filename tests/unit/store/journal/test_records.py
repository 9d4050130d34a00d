"""Blocks and sections as octets."""

from __future__ import annotations

import pytest

from vouchmq.store.errors import UnsupportedFormat
from vouchmq.store.journal import records
from vouchmq.store.journal.records import BlockHeader

HEADER = BlockHeader(
    kind=records.BATCH,
    flags=0,
    length=9,
    generation=3,
    salt=77,
    number=12,
    synced=10,
    oldest=2,
    first_lsn=5,
    next_lsn=8,
)


def block(payload: bytes = b"some body") -> bytes:
    return records.seal(HEADER, [payload[:4], payload[4:]]) + payload


def test_a_block_reads_back_as_it_was_sealed() -> None:
    assert records.read_block(block(), 0, 3, 77) == HEADER
    assert records.read_block(b"junk" + block(), 4, 3, None) == HEADER


@pytest.mark.parametrize(("generation", "salt"), [(4, 77), (3, 78)])
def test_a_block_of_another_life_of_the_file_is_none(generation: int, salt: int) -> None:
    assert records.read_block(block(), 0, generation, salt) is None


def test_zeros_are_no_block() -> None:
    assert records.read_block(bytes(500), 0, 0, None) is None


def test_every_flipped_octet_is_noticed() -> None:
    whole = block()
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 0x20
        assert records.read_block(bytes(broken), 0, 3, 77) is None, f"octet {at}"


def test_header_is_80_octets_as_documented() -> None:
    assert records.HEADER_SIZE == len(records.seal(HEADER, [])) == 80
    assert block().startswith(b"VQJRNL\x01\x00")


def test_a_newer_format_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFormat, match=r"7\.journal has journal format 2"):
        records.refuse_newer_versions(b"VQJRNL\x02\x00", "7.journal")


@pytest.mark.parametrize("head", [b"", b"VQJ", b"VQJRNL", b"VQJRNL\x01", b"VQJRNL\x00\x00"])
def test_a_torn_head_does_not_pass_for_a_newer_format(head: bytes) -> None:
    records.refuse_newer_versions(head.ljust(12, b"\x00"), "1.journal")
    records.refuse_newer_versions(head, "1.journal")


def test_sections_read_back_and_unknown_skippable_ones_are_skipped() -> None:
    parts = records.pack_section(records.RUNS, 1, records.pack_numbers([1, 2, 3]))
    parts += records.pack_section(records.SKIPPABLE | 5, 1, b"what?")
    parts += records.pack_texts(records.DEFINITIONS, [b"", b"one", b"three"])
    buffer = b"".join(parts)
    sections = records.read_sections(buffer, 0, len(buffer))
    assert set(sections) == {records.RUNS, records.DEFINITIONS}
    assert records.unpack_numbers(buffer, sections[records.RUNS]) == [1, 2, 3]
    texts = records.unpack_texts(buffer, sections[records.DEFINITIONS])
    assert texts == [b"", b"one", b"three"]


def test_an_unknown_section_that_matters_is_refused() -> None:
    buffer = b"".join(records.pack_section(14, 0))
    with pytest.raises(UnsupportedFormat, match="section of kind 14"):
        records.read_sections(buffer, 0, len(buffer))


def test_routes_read_back() -> None:
    routes = [(0, (1, 2, 1 << 60), b"tail"), (9, (7,), b"")]
    body = [records.pack_route(*route) for route in routes]
    buffer = b"".join(records.pack_section(records.ROUTES, 2, *body))
    section = records.read_sections(buffer, 0, len(buffer))[records.ROUTES]
    assert list(records.unpack_routes(buffer, section)) == routes


def test_what_is_packed_at_once_is_what_sections_say() -> None:
    numbers = records.pack_numbers
    section = records.pack_section
    assert [records.pack_row_of_2(records.DELIVERED_MARKS, 7, 8)] == [
        b"".join(section(records.DELIVERED_MARKS, 1, numbers([7, 8])))
    ]
    assert records.pack_row_of_3(records.SETTLED_RANGES, 7, 8, 1) == b"".join(
        records.pack_settles([(7, [8])])
    )
    run = b"".join(section(records.RUNS, 1, numbers([1, 2, 3])))
    assert records.pack_run_written(1, 2, 3, 4) == run + records.pack_written(4)
    lengths, total = records.pack_lengths([b"12345"])
    lone = records.pack_lone_length(5)
    assert lone == b"".join(
        [*section(records.LENGTHS, 1, lengths), records.open_section(records.CONTENTS, 1, total)]
    )
    assert len(lone) == records.LONE_LENGTH_SIZE
