"""Records of the shared log as bytes."""

from __future__ import annotations

import pytest

from vouchmq.store.errors import UnsupportedFormat
from vouchmq.store.replication import record
from vouchmq.store.replication.record import RecordHeader, Subjects

HEADER = RecordHeader(
    kind=record.BLOCKS,
    previous=0x1234_5678,
    epoch=3,
    number=12,
    committed=11,
    generation=7,
    offset=4096,
    block=40,
    lsn=2**33,
    part=2,
    parts=3,
)


def sealed(header: RecordHeader = HEADER, body: bytes = b"some body") -> bytes:
    return record.seal(header, [body[:4], body[4:]])[0] + body


def test_a_record_reads_back_as_it_was_sealed() -> None:
    head, checksum = record.seal(HEADER, [b"some", b" body"])
    assert record.open_record(head + b"some body") == (HEADER, checksum, b"some body")


def test_a_header_has_84_bytes_as_documented() -> None:
    assert record.HEADER_SIZE == len(record.seal(HEADER, [])[0]) == 84
    assert sealed().startswith(b"VQRECD\x01\x00")


def test_every_flipped_byte_is_noticed() -> None:
    whole = sealed()
    for at in (at for at in range(len(whole)) if at not in (6, 7)):
        broken = bytearray(whole)
        broken[at] ^= 0x20
        assert record.open_record(bytes(broken)) is None, f"byte {at}"


def test_a_record_cut_or_lengthened_anywhere_is_none() -> None:
    whole = sealed()
    assert all(record.open_record(whole[:size]) is None for size in range(len(whole)))
    assert record.open_record(whole + b"\0") is None


def test_the_checksum_covers_the_one_before() -> None:
    other = HEADER._replace(previous=1)
    assert record.seal(HEADER, [b"x"])[1] != record.seal(other, [b"x"])[1]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"VQRECD\x02\x00" + sealed()[8:], "records of format 2, this program reads 1"),
        (sealed(HEADER._replace(kind=9)), "a record of kind 9"),
    ],
)
def test_what_a_newer_program_wrote_is_refused_by_name(raw: bytes, text: str) -> None:
    with pytest.raises(UnsupportedFormat, match=text):
        record.open_record(raw)


def test_claims_of_one_epoch_differ_by_name_and_by_chance() -> None:
    bodies = {
        record.claim_body(name, bytes([chance]) * 16) for name in ("a", "b") for chance in (1, 2)
    }
    assert len(bodies) == 4
    assert {record.claimant(body) for body in bodies} == {"a", "b"}
    with pytest.raises(ValueError, match="16 bytes of chance, not 3"):
        record.claim_body("a", b"abc")


def test_an_origin_names_its_log_and_nothing_else() -> None:
    opened = record.open_record(record.origin(b"0123456789abcdef"))
    assert opened is not None
    assert opened.body == b"0123456789abcdef"
    assert opened.header == RecordHeader(record.ORIGIN, *[0] * 8)
    with pytest.raises(ValueError, match="has 16 bytes, this has 3"):
        record.origin(b"abc")


def test_segments_have_subjects_of_their_own_and_epochs_one_that_stays() -> None:
    subjects = Subjects("orders")
    assert subjects.of(HEADER) == subjects.of_segment(7) == "vq.orders.7"
    assert subjects.of(HEADER._replace(kind=record.BEAT)) == "vq.orders.7"
    for kind in (record.CLAIM, record.ORIGIN):
        assert subjects.of(HEADER._replace(kind=kind)) == subjects.lasting == "vq.orders.epochs"
