"""Properties are edited octet by octet: what is not meant stays as it was."""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, decode, encode

from vouchmq.spark.sink.property_edit import (
    EXPIRATION,
    USER_ID,
    Parts,
    RawPropertiesError,
    edited,
    header,
    stream_offset,
)

SHORT = st.text(max_size=20).filter(lambda text: len(text.encode()) < 128)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.text(max_size=40),
        st.binary(max_size=20).map(bytearray),
        st.decimals(-(2**20), 2**20, places=3),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(SHORT, inner, max_size=3)),
    max_leaves=6,
)
PROPERTIES = st.builds(
    commands.Basic.Properties,
    content_type=st.none() | SHORT,
    content_encoding=st.none() | SHORT,
    headers=st.none() | st.dictionaries(SHORT, VALUES, max_size=5),
    delivery_mode=st.none() | st.sampled_from([1, 2]),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | SHORT,
    reply_to=st.none() | SHORT,
    expiration=st.none() | st.sampled_from(["0", "60000"]),
    message_id=st.none() | SHORT,
    timestamp=st.none() | st.just(datetime(2026, 1, 31, tzinfo=UTC)),
    message_type=st.none() | SHORT,
    user_id=st.none() | SHORT,
    app_id=st.none() | SHORT,
)


def entry(name: str, kind: bytes, value: bytes) -> bytes:
    """One header of a table."""
    return bytes((len(name),)) + name.encode() + kind + value


def with_headers(*entries: bytes, more: bytes = b"", flags: int = 0) -> bytes:
    """Properties that hold a table of these headers, and what follows it."""
    table = b"".join(entries)
    return struct.pack(">HI", 1 << 13 | flags, len(table)) + table + more


@given(properties=PROPERTIES, offset=st.integers(0, 2**62))
def test_what_a_broker_added_goes_and_the_rest_is_bit_for_bit(
    properties: commands.Basic.Properties, offset: int
) -> None:
    # An empty table and no table are the same to a broker that adds a header.
    if properties.headers is not None and not properties.headers:
        properties.headers = None
    raw = properties.marshal()
    added = entry("x-stream-offset", b"l", struct.pack(">q", offset))
    delivered = edited(raw, add=added)
    assert edited(delivered, drop=[b"x-stream-offset"]) == raw
    assert added in delivered


@given(properties=PROPERTIES)
def test_properties_are_left_out_by_flag(properties: commands.Basic.Properties) -> None:
    left = edited(properties.marshal(), without=USER_ID | EXPIRATION)
    properties.user_id = properties.expiration = None
    if not properties.headers:
        properties.headers = None
    assert left == properties.marshal()


def test_headers_of_every_kind_stay_and_doubles_go() -> None:
    kept = (
        entry("t", b"t", b"\1"),
        entry("b", b"b", b"\xff"),
        entry("B", b"B", b"\xff"),
        entry("s", b"s", b"\0\1"),
        entry("u", b"u", b"\0\1"),
        entry("I", b"I", bytes(4)),
        entry("i", b"i", bytes(4)),
        entry("l", b"l", bytes(8)),
        entry("L", b"L", bytes(8)),
        entry("f", b"f", bytes(4)),
        entry("d", b"d", bytes(8)),
        entry("D", b"D", bytes(5)),
        entry("T", b"T", bytes(8)),
        entry("V", b"V", b""),
        entry("S", b"S", struct.pack(">I", 3) + b"abc"),
        entry("x", b"x", struct.pack(">I", 3) + b"\xff\0\xff"),
        entry("A", b"A", struct.pack(">I", 2) + b"t\1"),
        # One within another table is the publisher's own.
        entry("F", b"F", struct.pack(">I", 10) + entry("x-death", b"t", b"\1")),
        entry("S", b"S", struct.pack(">I", 0)),
    )
    gone = entry("x-death", b"S", struct.pack(">I", 1) + b"1")
    raw = with_headers(gone, *kept, gone, more=b"\2", flags=1 << 12)
    assert edited(raw, drop=[b"x-death"]) == with_headers(*kept, more=b"\2", flags=1 << 12)


def test_only_numbers_go_where_only_numbers_are_meant() -> None:
    kinds = {b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8}
    numbers = [entry("x-queue-id", kind, bytes(size)) for kind, size in kinds.items()]
    kept = (
        entry("x-queue-id", b"S", struct.pack(">I", 3) + b"own"),
        entry("x-queue-id", b"V", b""),
        entry("x-queue-id", b"t", b"\1"),
        entry("x-queue-id", b"d", bytes(8)),
        entry("other", b"l", bytes(8)),
    )
    raw = with_headers(*numbers[:4], *kept, *numbers[4:])
    assert edited(raw, drop_numbers=[b"x-queue-id"]) == with_headers(*kept)
    assert edited(raw, drop=[b"x-queue-id"]) == with_headers(kept[-1])


def test_the_last_header_takes_the_table_with_it() -> None:
    gone = entry("x-stream-offset", b"l", bytes(8))
    assert edited(with_headers(gone), drop=[b"x-stream-offset"]) == b"\0\0"
    assert edited(b"\0\0", drop=[b"x-stream-offset"]) == b"\0\0"


def test_a_header_is_added_where_there_was_no_table() -> None:
    raw = edited(b"\0\0", add=header("x-replayed-from", "lake/ördars"))
    size, table = decode.field_table(raw[2:])
    assert table == {"x-replayed-from": "lake/ördars"}
    assert size == len(raw) - 2
    assert raw[6:] == encode.field_table(table)[4:]
    with pytest.raises(ValueError, match="300 octets"):
        header("n" * 300, "")


def test_the_offset_in_a_stream_is_found_wherever_it_stands() -> None:
    mine = entry("x-stream-offset", b"l", struct.pack(">q", 2**40))
    other = entry("a", b"S", struct.pack(">I", len(mine)) + mine)
    assert stream_offset(with_headers(other, mine)) == 2**40
    assert stream_offset(with_headers(mine, other)) == 2**40
    assert stream_offset(with_headers(mine, more=b"\2", flags=1 << 12)) == 2**40
    assert stream_offset(with_headers(entry("x-stream-offset", b"t", b"\1"))) is None
    assert stream_offset(b"\0\0") is None


def test_a_text_is_read_in_place() -> None:
    parts = Parts(commands.Basic.Properties(user_id="guest", app_id="x").marshal())
    assert parts.text(USER_ID) == b"guest"
    assert parts.text(EXPIRATION) is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "cut short"),
        (b"\x80\0", "cut short"),
        (b"\x80\0\5abc", "end at"),
        (b"\0\0more", "end at"),
        (b"\0\1", "unknown property flags"),
        (with_headers(entry("x-a", b"?", b"")), "unknown kind '?'"),
        (with_headers(entry("x-a", b"l", b"\0")), "'x-a' is cut short"),
        (with_headers(entry("x-a", b"S", b"\0")), "size is cut short"),
        (with_headers(b"\7x-a"), "name is cut short"),
    ],
)
def test_what_is_no_properties_is_told(raw: bytes, said: str) -> None:
    with pytest.raises(RawPropertiesError, match=said):
        edited(raw, drop=[b"x-a"])


@given(st.binary(max_size=60))
def test_no_octets_do_more_than_raise_that_error(raw: bytes) -> None:
    with suppress(RawPropertiesError):
        assert edited(edited(raw, drop=[b"x"]), drop=[b"x"]) == edited(raw, drop=[b"x"])
