"""Columns in and out of the bulk client, and the frames that rows become."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from vouchmq.kit.bulk.columns import DELIVERY_COLUMNS, columns_of, rows_of
from vouchmq.kit.bulk.confirms import Row
from vouchmq.kit.bulk.errors import PropertiesError
from vouchmq.kit.bulk.properties import encode_properties
from vouchmq.kit.bulk.publish import CHUNK_BYTES, Encoder, RowError


def test_deliveries_become_a_list_for_each_field() -> None:
    first = (1, False, "x", "k", b"\x00\x00", b"one")
    second = (2, True, "", "q", b"\x00\x00", b"")
    columns = columns_of([first, second])
    assert tuple(columns) == DELIVERY_COLUMNS
    assert columns["tag"] == [1, 2]
    assert columns["redelivered"] == [False, True]
    assert columns["body"] == [b"one", b""]
    assert columns_of([]) == {name: [] for name in DELIVERY_COLUMNS}


def test_columns_become_rows() -> None:
    raw = encode_properties({"app_id": "raw"})
    rows = list(
        rows_of(
            {
                "body": [b"1", b"2", b"3"],
                "exchange": "shop",
                "routing_key": ["a", "b", "c"],
                "message_id": ["m1", None, "m3"],
                "type": "order",
                "headers": {"for": "all"},
                "properties_raw": [None, None, raw],
            }
        )
    )
    common = {"type": "order", "headers": {"for": "all"}}
    assert rows == [
        ("shop", "a", encode_properties({**common, "message_id": "m1"}), b"1"),
        ("shop", "b", encode_properties(common), b"2"),
        ("shop", "c", raw, b"3"),
    ]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({}, "body must be a sequence"),
        ({"body": b"one"}, "body must be a sequence"),
        ({"body": [b"1"], "tag": [1]}, "no column 'tag'"),
        ({"body": [b"1"], "exchange": ["a", "b"]}, "'exchange' has 2 values, body has 1"),
    ],
)
def test_columns_that_do_not_fit_are_named(columns: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rows_of(columns)


def test_values_that_do_not_fit_are_named() -> None:
    with pytest.raises(TypeError, match="row 1: body"):
        list(rows_of({"body": [b"1", "two"]}))
    with pytest.raises(PropertiesError, match="priority"):
        list(rows_of({"body": [b"1"], "priority": [999]}))


def published(stream: bytes) -> list[tuple[commands.Basic.Publish, bytes, bytes]]:
    """What a broker reads, by pamqp: method, properties as on the wire, body."""
    found: list[tuple[commands.Basic.Publish, bytes, bytes]] = []
    while stream:
        used, channel, read = frame.unmarshal(stream)
        raw, stream = stream[:used], stream[used:]
        assert channel == 3
        if isinstance(read, commands.Basic.Publish):
            found.append((read, b"", b""))
        elif isinstance(read, header.ContentHeader):
            found[-1] = (found[-1][0], raw[19:-1], b"")
            size = read.body_size
        else:
            assert isinstance(read, body.ContentBody)
            assert len(raw) <= 4096
            method, properties, so_far = found[-1]
            found[-1] = (method, properties, so_far + read.value)
            assert len(found[-1][2]) <= size
    return found


short_names = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=12)
rows_strategy = st.lists(
    st.tuples(
        short_names,
        short_names,
        st.sampled_from([b"\x00\x00", encode_properties({"message_id": "m"})]),
        st.sampled_from([0, 1, 300, 4087, 4088, 4089, 9000]).map(lambda size: b"b" * size),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(rows_strategy, st.booleans(), st.integers(1, 4))
def test_a_broker_reads_the_rows_that_were_given(
    rows: list[Row], is_mandatory: bool, count: int
) -> None:
    encoder = Encoder(3, 4096, is_mandatory=is_mandatory)
    left = iter(rows)
    stream = b""
    taken: list[Row] = []
    while parts := encoder.chunk(left, count, len(taken), taken):
        stream += b"".join(parts)
    assert taken == rows
    read = published(stream)
    assert [
        (method.exchange, method.routing_key, properties, content)
        for method, properties, content in read
    ] == rows
    assert all(method.mandatory is is_mandatory for method, _, _ in read)


def test_a_chunk_ends_when_it_is_big() -> None:
    rows = iter([("", "q", b"\x00\x00", bytes(CHUNK_BYTES // 2))] * 10)
    taken: list[Row] = []
    Encoder(1, 131072, is_mandatory=False).chunk(rows, 500, 0, taken)
    assert len(taken) == 2


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (("x" * 256, "", b"", b""), "row 8: exchange is longer than 255 bytes"),
        (("", "я" * 128, b"", b""), "row 8: routing_key is longer than 255 bytes"),
        (("", None, b"", b""), "row 8: routing_key must be a string"),
        (("", "q", bytes(5000), b""), "row 8: properties of 5000 bytes: over frame_max"),
        (("", "q", {"priority": -1}, b""), "row 8: priority"),
        (("", "q", b"", None), "row 8: body must be bytes, not NoneType"),
        (("", "q", b"", "text"), "row 8: body must be bytes, not str"),
        (("", "q", b"", [b"x"]), "row 8: body must be bytes, not list"),
        (("q", b"", b""), "row 8: must be .*, not 3 values"),
        (("", "q", b"", b"", 1), "row 8: must be .*, not 5 values"),
        (7, "row 8: must be .*, not int"),
        ("four", "row 8: must be .*, not str"),
        (("", "q", "abc", b""), "row 8: properties must be a mapping, not str"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(row: Row, text: str) -> None:
    encoder = Encoder(1, 4096, is_mandatory=False)
    good: Row = ("", "q", b"", b"")
    with pytest.raises(RowError, match=text) as raised:
        encoder.chunk(iter([good, row]), 500, 7, [])
    assert raised.value.row == 8
    assert str(raised.value) == f"row 8: {raised.value.reason}"


def test_names_that_are_no_utf8_go_back_as_they_came() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    parts = Encoder(1, 4096, is_mandatory=False).chunk(iter([("", name, b"", b"")]), 1, 0, [])
    assert b"\x04caf\xe9" in b"".join(parts)
