"""Deliveries become rows that Spark takes, whatever a publisher has put into its properties."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from tests.pipeline import wire_values
from tests.pipeline.row_schemas import Schema, Spelt
from tests.pipeline.wire_values import Content, Typed, contents, table
from vouchmq.kit import bulk
from vouchmq.spark.columns import ALL, COLUMNS, SCHEMA_DDL, SchemaError, projection
from vouchmq.spark.options import SinkOptions
from vouchmq.spark.properties import sequences
from vouchmq.spark.rows import Delivery, arrow_schema, batch_from
from vouchmq.spark.sink.property_edit import edited
from vouchmq.spark.sink.publishes import Publisher

RAW_ONLY = ("body", "properties_raw")
SINK = SinkOptions.parse({"url": "amqp://broker", "routingKey": "q"})
PROPERTY_COLUMNS = [name for name in ALL if name not in ALL[:5] and name != "properties_raw"]


def delivery(raw: bytes, body: bytes = b"body", tag: int = 1) -> Delivery:
    return tag, False, "x", "key", raw, body


def rows_of(raws: Sequence[bytes], columns: tuple[str, ...] = ALL) -> list[dict[str, Any]]:
    batch = batch_from("orders", [delivery(raw) for raw in raws], columns)
    assert batch.schema.equals(arrow_schema(columns))
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    return rows


def raw_again(batch: pa.RecordBatch) -> list[bytes]:
    """The properties that the sink would send for these rows."""
    return [raw for _, _, raw, _ in Publisher(SINK, None).publishes(batch, 0)]


def test_the_schema_is_what_spark_makes_of_it() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_schema

    text = types.StringType()
    kinds = {
        "string": text,
        "binary": types.BinaryType(),
        "boolean": types.BooleanType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(text, text),
    }
    schema = types.StructType([types.StructField(n, kinds[kind]) for n, kind in COLUMNS.items()])
    assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(), check_metadata=True)
    assert projection(schema) == ALL


@settings(deadline=None)
@given(st.lists(contents, max_size=6))
def test_each_property_is_in_its_column(messages: list[Content]) -> None:
    for row, message in zip(rows_of([each.raw for each in messages]), messages, strict=True):
        assert row["properties_raw"] == message.raw
        assert {name: row[name] for name in PROPERTY_COLUMNS if row[name] is not None} == (
            message.columns
        )


@settings(deadline=None)
@given(st.lists(contents, min_size=1, max_size=6))
def test_what_was_received_is_sent_again_to_the_bit(messages: list[Content]) -> None:
    raws = [each.raw for each in messages]
    batch = batch_from("orders", [delivery(raw, body=raw) for raw in raws], RAW_ONLY)
    assert raw_again(batch) == raws
    assert [body for *_, body in Publisher(SINK, None).publishes(batch, 0)] == raws


@settings(deadline=None)
@given(st.lists(contents, min_size=1, max_size=4), st.permutations(ALL), st.integers(1, len(ALL)))
def test_a_projection_is_a_cut_of_all_columns(
    messages: list[Content], columns: list[str], count: int
) -> None:
    raws = [each.raw for each in messages]
    chosen = tuple(columns[:count])
    full = rows_of(raws)
    assert rows_of(raws, chosen) == [{name: row[name] for name in chosen} for row in full]


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), contents.map(lambda each: each.raw)), max_size=6))
def test_any_octets_become_a_row(raws: list[bytes]) -> None:
    broken: list[int] = []
    batch = batch_from("orders", [delivery(raw) for raw in raws], ALL, broken)
    batch.validate(full=True)
    rows = batch.to_pylist()
    assert [row["properties_raw"] for row in rows] == raws
    assert [row["body"] for row in rows] == [b"body"] * len(raws)
    for number in broken:
        assert all(rows[number][name] is None for name in PROPERTY_COLUMNS)


@settings(deadline=None)
@given(contents, st.data())
def test_properties_that_are_cut_off_are_broken(message: Content, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(message.raw) - 1))
    broken: list[int] = []
    batch_from("orders", [delivery(message.raw[:cut])], ALL, broken)
    # Without its last octet a header has less than its flags promise.
    assert broken == [0]


def test_a_broken_message_does_not_stop_its_neighbours() -> None:
    good = wire_values.content({"message_id": "m", "headers": table({"a": Typed(b"V", b"", None)})})
    broken: list[int] = []
    batch = batch_from(
        "orders",
        [delivery(good.raw), delivery(good.raw[:-1] + b"\xff\xff"), delivery(good.raw)],
        ALL,
        broken,
    )
    assert broken == [1]
    assert batch.column("message_id").to_pylist() == ["m", None, "m"]
    assert batch.column("headers").to_pylist() == [[("a", None)], None, [("a", None)]]
    assert batch.column("body").to_pylist() == [b"body"] * 3


def nested(depth: int) -> bytes:
    octets = b""
    for _ in range(depth):
        inner = b"\x01nF" + len(octets).to_bytes(4, "big") + octets
        octets = inner
    return b"\x20\x00" + len(octets).to_bytes(4, "big") + octets


BROKEN = {
    "nothing at all": b"",
    "one octet": b"\x80",
    "a flag that there is not": b"\x00\x02",
    "a second word of flags": b"\x00\x01\x00\x00",
    "octets behind the last property": b"\x00\x00x",
    "a string that ends too late": b"\x80\x00\x05text",
    "a table that ends too late": b"\x20\x00\x00\x00\x00\x09\x01aS\x00\x00\x00\x01",
    "a text that ends behind its table": b"\x20\x80\0\0\0\x08\x01aS\0\0\0\x09z\x05hello12",
    "an unknown type": b"\x20\x00\x00\x00\x00\x03\x01aQ",
    "a key without a value": b"\x20\x00\x00\x00\x00\x02\x01a",
    "an array that ends inside a field": b"\x20\x00\x00\x00\x00\x09\x01aA\x00\x00\x00\x02l\x00",
    "too deep": nested(300),
}


@pytest.mark.parametrize("seconds", [253_402_300_800, 1_700_000_000_000, 2**64 - 1])
def test_a_time_that_no_column_holds_costs_only_itself(seconds: int) -> None:
    """The second is milliseconds, as many a publisher writes them."""
    raw = b"\x00\xc0\x02id" + seconds.to_bytes(8, "big")
    broken: list[int] = []
    row = batch_from("q", [delivery(raw)], ALL, broken).to_pylist()[0]
    assert broken == []
    assert (row["message_id"], row["timestamp"], row["properties_raw"]) == ("id", None, raw)


def placed(raw: bytes, seq: int) -> bytes:
    """As VouchMQ delivers it to a consumer that asks for places."""
    added = b"\x0bx-queue-seql" + seq.to_bytes(8, "big")
    return edited(raw, add=added + b"\x0ax-queue-idl" + (3).to_bytes(8, "big"))


def test_places_are_columns_and_leave_no_header() -> None:
    with_headers = bulk.encode_properties(
        {"message_id": "m", "headers": {"a": 1, "b": "x-queue-seql"}}
    )
    plain = bulk.encode_properties({"content_type": "text/plain", "priority": 3})
    raws = [with_headers, plain, b"\0\0"]
    deliveries = [delivery(placed(raw, 7 + at)) for at, raw in enumerate(raws)]
    deliveries += [delivery(with_headers), delivery(b"\x80")]
    rows = batch_from("orders", deliveries, ALL, is_placed=True).to_pylist()
    assert [row["offset"] for row in rows] == [7, 8, 9, None, None]
    assert [row["queue_id"] for row in rows] == [3, 3, 3, None, None]
    assert [row["properties_raw"] for row in rows] == [*raws, with_headers, b"\x80"]
    headers = [("a", "1"), ("b", "x-queue-seql")]
    assert [row["headers"] for row in rows] == [headers, None, None, headers, None]
    assert [row["message_id"] for row in rows] == ["m", None, None, "m", None]


def streamed(raw: bytes, offset: int) -> bytes:
    """As a broker delivers it from a stream."""
    return edited(raw, add=b"\x0fx-stream-offsetl" + offset.to_bytes(8, "big"))


def test_offsets_of_streams_are_a_column_and_leave_no_header() -> None:
    raws = [
        bulk.encode_properties({"message_id": "m", "headers": {"a": 1, "b": "x-stream-offsetl"}}),
        bulk.encode_properties(
            {"content_type": "t", "content_encoding": "e", "headers": {"a": "b"}, "app_id": "z"}
        ),
        bulk.encode_properties({"content_type": "text/plain", "priority": 3}),
        b"\0\0",
    ]
    deliveries = [delivery(streamed(raw, 7 + at)) for at, raw in enumerate(raws)]
    # RabbitMQ sorts them; the last two have none, or are none.
    first = edited(streamed(b"\0\0", 2**40), add=b"\x01zI\0\0\0\x05")
    deliveries += [delivery(raw) for raw in (first, raws[0], b"\x80\x0fx-stream-offsetl")]
    rows = batch_from("orders", deliveries, ALL, is_stream=True).to_pylist()
    assert [row["offset"] for row in rows] == [7, 8, 9, 10, 2**40, None, None]
    only_z = edited(b"\0\0", add=b"\x01zI\0\0\0\x05")
    assert [row["properties_raw"] for row in rows] == [*raws, only_z, raws[0], deliveries[-1][4]]
    headers = [("a", "1"), ("b", "x-stream-offsetl")]
    assert [row["headers"] for row in rows] == [
        *(headers, [("a", "b")], None, None, [("z", "5")], headers, None),
    ]
    assert [row["app_id"] for row in rows[:2]] == [None, "z"]


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_a_row_leaves_its_properties_null(raw: bytes) -> None:
    broken: list[int] = []
    row = batch_from("q", [delivery(raw)], ALL, broken).to_pylist()[0]
    assert broken == [0]
    assert [name for name, value in row.items() if value is not None] == [
        *("queue", "body", "exchange", "routing_key", "redelivered", "properties_raw"),
    ]
    assert row["properties_raw"] == raw


def test_octets_that_are_no_text_are_shown_as_such() -> None:
    raw = b"\xa0\x00\x03a\xffb\x00\x00\x00\x0a\x02k\xfeS\x00\x00\x00\x02\xc3("
    row = rows_of([raw])[0]
    assert row["content_type"] == "a\\xffb"
    assert row["headers"] == {"k\\xfe": '"wyg="'}
    name = b"k\xff".decode("utf-8", "surrogateescape")
    batch = batch_from("q", [(1, False, name, name, b"\0\0", b"")])
    assert batch.column("exchange").to_pylist() == batch.column("routing_key").to_pylist()
    assert batch.column("exchange").to_pylist() == ["k\\xff"]


def test_no_deliveries_are_no_rows() -> None:
    assert rows_of([]) == []


def test_a_row_of_everything_pamqp_can_say() -> None:
    moment = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    given_ = commands.Basic.Properties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"text": "ä", "number": 7, "yes": True, "list": [1, "a"], "sub": {"at": moment}},
        delivery_mode=2,
        priority=9,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=moment,
        message_type="t",
        user_id="guest",
        app_id="a",
    )
    row = rows_of([given_.marshal()])[0]
    assert row["headers"] == {
        "list": '[1,"a"]',
        "number": "7",
        "sub": '{"at":"2026-01-31T12:00:00Z"}',
        "text": "ä",
        "yes": "true",
    }
    for name in ("content_type", "delivery_mode", "priority", "expiration", "timestamp", "user_id"):
        assert row[name] == getattr(given_, name)
    assert (row["type"], row["queue"], row["redelivered"]) == ("t", "orders", False)


def test_sequences_are_those_of_the_columns() -> None:
    marked = wire_values.content(
        {
            "headers": table(
                {
                    "x-queue-id": Typed(b"l", (3).to_bytes(8, "big"), 3),
                    "x-queue-seq": Typed(b"l", (2**40).to_bytes(8, "big"), 2**40),
                }
            )
        }
    )
    fake = wire_values.content(
        {"headers": table({"x-queue-seq": Typed(b"S", b"\0\0\0\x019", "9")})}
    )
    assert sequences([b"\0\0", marked.raw, fake.raw]) == ([None, 3, None], [None, 2**40, None])
    assert sequences([b"\0\0"]) == ([None], [None])


def test_a_schema_of_some_columns_is_a_projection() -> None:
    assert projection(Schema(Spelt("offset", "bigint"), Spelt("body", "binary"))) == (
        *("offset", "body"),
    )
    assert projection(Schema()) == ()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([Spelt("bodi", "binary")], "column bodi: unknown; there are queue, body"),
        ([Spelt("body", "string")], "column body: is binary, and not string"),
        ([Spelt("offset", "int")], "column offset: is bigint, and not int"),
        ([Spelt("body", "binary", nullable=False)], "column body: values may be null"),
        ([Spelt("body", "binary")] * 2, "column body: asked for twice"),
    ],
)
def test_a_schema_of_other_columns_is_refused(fields: list[Spelt], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        projection(Schema(*fields))


def test_columns_are_those_of_the_text() -> None:
    assert ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items()) == SCHEMA_DDL
