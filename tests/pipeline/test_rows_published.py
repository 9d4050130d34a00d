"""Rows become publishes: what columns say, ids that stay, and each bad value named by its row."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.row_schemas import Schema, Spelt
from vouchmq.kit.bulk import decode_properties
from vouchmq.spark.columns import SchemaError, check_published
from vouchmq.spark.options import OptionError, SinkOptions
from vouchmq.spark.rows import arrow_schema
from vouchmq.spark.sink.publishes import Publish, Publisher, RowError, check_ids

TEXTS = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type", "user_id", "app_id"),
)
# pamqp takes seconds above 32 bits for milliseconds.
LATEST = dt.datetime(2106, 2, 7)


def options(**given_: str) -> SinkOptions:
    return SinkOptions.parse({"url": "amqp://broker", **given_})


def batch_of(**columns: list[Any]) -> pa.RecordBatch:
    """Columns of the types that the source gives them; those of body may differ."""
    schema = arrow_schema(tuple(columns))
    return pa.record_batch([pa.array(columns[each.name], each.type) for each in schema], schema)


def publishes(
    batch: pa.RecordBatch, *, position: str | None = None, first: int = 0, **given_: str
) -> list[Publish]:
    return list(Publisher(options(**given_), position).publishes(batch, first))


def ids(made: list[Publish]) -> list[str | None]:
    return [decode_properties(raw).message_id or None for _, _, raw, _ in made]


shorts = st.text(max_size=20)
rows = st.fixed_dictionaries(
    {"body": st.binary(max_size=20)},
    optional={
        **dict.fromkeys(TEXTS, shorts),
        "exchange": shorts,
        "routing_key": shorts,
        "headers": st.dictionaries(
            st.text(min_size=1, max_size=10), st.one_of(st.none(), st.text(max_size=20)), max_size=4
        ),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "timestamp": st.datetimes(dt.datetime(1970, 1, 1), LATEST, timezones=st.just(dt.UTC)),
    },
)


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=5))
def test_columns_are_read_back_by_another_codec(table: list[dict[str, Any]]) -> None:
    names = sorted({name for row in table for name in row})
    batch = batch_of(**{name: [_listed(row.get(name)) for row in table] for name in names})
    made = publishes(batch, exchange="dx", routingKey="dk", messageId="none")
    for row, (exchange, key, raw, body) in zip(table, made, strict=True):
        assert (exchange, key) == (row.get("exchange", "dx"), row.get("routing_key", "dk"))
        assert body == row["body"]
        said = decode_properties(raw)
        assert said.delivery_mode == row.get("delivery_mode", 2)
        for name in TEXTS:
            # pamqp says "" both for an empty property and for none.
            attribute = "message_type" if name == "type" else name
            assert (getattr(said, attribute) or "") == row.get(name, "")
        assert said.priority == row.get("priority")
        assert (said.headers or {}) == (row.get("headers") or {})
        if "timestamp" in row:
            assert said.timestamp == row["timestamp"].replace(microsecond=0)


def _listed(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


def test_a_row_wins_over_the_options() -> None:
    made = publishes(
        batch_of(
            body=[b"1", b"2"],
            exchange=["mine", None],
            routing_key=[None, "key"],
            delivery_mode=[1, None],
        ),
        exchange="theirs",
        messageId="none",
    )
    assert [(exchange, key) for exchange, key, _, _ in made] == [("mine", ""), ("theirs", "key")]
    assert [raw for _, _, raw, _ in made] == [b"\x10\x00\x01", b"\x10\x00\x02"]
    assert publishes(batch_of(body=[b""]), persistent="false", messageId="none")[0][2] == (
        b"\x10\x00\x01"
    )


def test_a_body_of_text_is_sent_as_utf_8() -> None:
    batch = pa.record_batch({"body": pa.array(["ä"])})
    assert publishes(batch)[0][3] == "ä".encode()


def test_raw_properties_are_sent_as_they_are() -> None:
    raws = [b"\x80\x00\x01x", None, b"\x00\x00"]
    batch = batch_of(body=[b"a"] * 3, properties_raw=raws, content_type=["c"] * 3)
    made = publishes(batch, messageId="none")
    assert [raw for _, _, raw, _ in made] == [raws[0], b"\x90\x00\x01c\x02", raws[2]]


def test_a_batch_of_any_size_is_taken_piece_by_piece() -> None:
    bodies = [str(number).encode() for number in range(2500)]
    made = publishes(batch_of(body=bodies), position="p", first=7)
    assert [body for *_, body in made] == bodies
    assert ids(made) == [f"p/{number + 7}" for number in range(2500)]
    large = [bytes([number]) * (9 << 20) for number in range(4)]
    assert [body for *_, body in publishes(batch_of(body=large))] == large
    # A failure is told by the row's place in the whole.
    with pytest.raises(RowError, match="row 2500: column body: is null"):
        publishes(batch_of(body=[*bodies, None]))


def test_ids_come_from_the_column_or_the_position() -> None:
    batch = batch_of(body=[b"a", b"a", b"a"], message_id=["m", None, ""])
    assert ids(publishes(batch, position="q/7/1", first=10)) == ["m", "q/7/1/11", None]
    assert ids(publishes(batch, position="q/7/1", messageId="position")) == [
        *("q/7/1/0", "q/7/1/1", "q/7/1/2"),
    ]
    assert ids(publishes(batch.slice(0, 1), messageId="column")) == ["m"]
    with pytest.raises(RowError, match="row 1: column message_id: is null, and messageId is col"):
        publishes(batch, messageId="column")


def test_ids_by_hash_are_equal_for_equal_rows_only() -> None:
    columns: dict[str, list[Any]] = {
        "body": [b"a", b"a", b"b", b"a", b"a", b"a"],
        "routing_key": ["k", "k", "k", "l", "k", "k"],
        "exchange": ["", "", "", "", "k", ""],
        "content_type": [None, None, None, None, None, "c"],
    }
    batch = batch_of(**columns)
    made = ids(publishes(batch))
    assert made[0] == made[1]
    assert len(set(made)) == 5
    assert all(each is not None and len(each) == 32 for each in made)
    assert ids(publishes(batch, messageId="hash", first=99)) == made
    # The same row in another batch, among others.
    assert ids(publishes(batch.slice(3, 1))) == made[3:4]


def test_the_id_is_put_into_the_header_for_de_duplication() -> None:
    batch = batch_of(
        body=[b"a", b"b", b"c"],
        message_id=["m1", "m2", "m3"],
        headers=[None, [("k", "v"), ("x-deduplication-header", "old")], []],
    )
    made = publishes(batch, dedupeHeader="x-deduplication-header")
    assert [decode_properties(raw).headers for _, _, raw, _ in made] == [
        {"x-deduplication-header": "m1"},
        {"x-deduplication-header": "m2", "k": "v"},
        {"x-deduplication-header": "m3"},
    ]
    assert made[1][2].count(b"x-deduplication-header") == 1


BAD_ROWS = [
    ({"body": [b"", None]}, "row 6: column body: is null"),
    ({"body": [b""], "content_type": ["x" * 256]}, "row 5: column content_type: has 256 bytes"),
    ({"body": [b""], "message_id": ["ä" * 128]}, "row 5: column message_id: has 256 bytes"),
    ({"body": [b""], "priority": [256]}, "row 5: column priority: 256 is not from 0 to 255"),
    ({"body": [b""], "priority": [-1]}, "row 5: column priority: -1 is not"),
    ({"body": [b""], "delivery_mode": [3]}, "row 5: column delivery_mode: 3 is not from 1 to 2"),
    ({"body": [b""], "headers": [[("k" * 129, "")]]}, "row 5: column headers: a key has 129 bytes"),
    ({"body": [b""], "headers": [[("", "")]]}, "row 5: column headers: a key has 0 bytes"),
    ({"body": [b""], "properties_raw": [b"x"]}, "row 5: column properties_raw: is too short"),
    (
        {"body": [b""], "timestamp": [dt.datetime(1969, 12, 31, tzinfo=dt.UTC)]},
        "row 5: column timestamp: is before 1970",
    ),
]


@pytest.mark.parametrize(("columns", "text"), BAD_ROWS, ids=[text for _, text in BAD_ROWS])
def test_a_value_that_does_not_fit_is_named(columns: dict[str, list[Any]], text: str) -> None:
    with pytest.raises(RowError, match=text):
        publishes(batch_of(**columns), first=5)


def test_columns_that_can_be_published() -> None:
    schema = Schema(
        *(Spelt("body", "string"), Spelt("headers", "map<string,string>")),
        *(Spelt("priority", "tinyint"), Spelt("timestamp", "timestamp", nullable=False)),
    )
    assert check_published(schema) == ("body", "headers", "priority", "timestamp")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([Spelt("routing_key", "string")], "column body: required"),
        ([Spelt("body", "binary"), Spelt("id", "int")], "column id: unknown; drop it, or rename"),
        ([Spelt("body", "binary"), Spelt("offset", "bigint")], "column offset: tells of a deliv"),
        ([Spelt("body", "binary"), Spelt("queue", "string")], "column queue: tells of a delivery"),
        ([Spelt("body", "int")], "column body: must be binary or string, and is int"),
        ([Spelt("body", "binary"), Spelt("timestamp", "bigint")], "column timestamp: must be tim"),
        ([Spelt("body", "binary"), Spelt("body", "string")], "column body: listed twice"),
        (
            [
                Spelt("body", "binary"),
                Spelt("headers", "map<string,string>"),
                Spelt("headers_typed", "map<string,struct<type:string,value:string>>"),
            ],
            "column headers_typed: contains the same as column headers; drop one",
        ),
    ],
)
def test_columns_that_cannot_be_published_are_named(fields: list[Spelt], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        check_published(Schema(*fields))


@pytest.mark.parametrize(
    ("given_", "columns", "text"),
    [
        ({"messageId": "column"}, ["body"], "option messageId: column, but there is no column"),
        ({"messageId": "position"}, ["body"], "option messageId: position is for writeStream"),
        ({"messageId": "hash"}, ["body", "properties_raw"], "option messageId: hash cannot be put"),
        ({"dedupeHeader": "k"}, ["body", "properties_raw"], "option dedupeHeader: cannot be put"),
    ],
)
def test_ids_that_cannot_be_made_are_refused(
    given_: dict[str, str], columns: list[str], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        check_ids(options(routingKey="q", **given_), columns, is_stream=False)


def test_rows_without_a_way_to_go_are_refused() -> None:
    with pytest.raises(SchemaError, match="column routing_key: neither it nor option routingKey"):
        check_ids(options(), ["body"], is_stream=True)
    for given_, columns in (
        ({"routingKey": ""}, ["body"]),
        ({"exchange": "x"}, ["body"]),
        ({}, ["body", "exchange"]),
        ({}, ["body", "routing_key"]),
    ):
        check_ids(options(**given_), columns, is_stream=True)
    check_ids(options(routingKey="q", messageId="position"), ["body"], is_stream=True)
