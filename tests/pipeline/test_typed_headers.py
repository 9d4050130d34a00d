"""Headers with their types: what is read is written again, and what cannot be is named."""

from __future__ import annotations

import json
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.pipeline import wire_values
from tests.pipeline.row_schemas import Schema, Spelt
from tests.pipeline.wire_values import Content, contents, tables
from vouchmq.kit.bulk import decode_properties
from vouchmq.spark.columns import KINDS, TYPED
from vouchmq.spark.options import OptionError, SinkOptions
from vouchmq.spark.rows import arrow_schema, batch_from
from vouchmq.spark.sink.publishes import Publisher, RowError
from vouchmq.spark.typed_headers import Typed, TypedHeaderError, encode_typed, read_typed

SINK = SinkOptions.parse({"url": "amqp://broker", "routingKey": "q"})
BOTH = ("body", "headers", TYPED)


def is_exact(field: wire_values.Typed) -> bool:
    """Whether each bit of it comes back."""
    if field.kind in (b"F", b"A"):
        return b"L" not in field.octets and "NaN" not in json.dumps(field.json)
    return True


@settings(deadline=None)
@given(tables)
def test_a_table_that_was_read_is_written_again(table: wire_values.Typed) -> None:
    octets = table.octets[4:]
    read = read_typed(octets, 0, len(octets))
    assert read.keys() == table.entries.keys()
    written = encode_typed(read.items())
    assert read_typed(written, 0, len(written)) == read
    if is_exact(table):
        assert written == octets


@settings(deadline=None)
@given(contents)
def test_rows_have_both_forms_of_the_same_headers(message: Content) -> None:
    batch = batch_from("orders", [(1, False, "x", "key", message.raw, b"")], BOTH)
    assert batch.schema.equals(arrow_schema(BOTH))
    batch.validate(full=True)
    (row,) = batch.to_pylist(maps_as_pydicts="strict")
    assert (row[TYPED] is None) == ("headers" not in message.columns)
    for key, typed in (row[TYPED] or {}).items():
        text = row["headers"][key]
        if typed["type"] in ("longstr", "void", "long", "signedint", "bool", "unsignedbyte"):
            assert typed["value"] == text
    # And what is written has the same headers.
    ((_, _, raw, _),) = Publisher(SINK, None).publishes(batch.select(["body", TYPED]), 0)
    (again,) = batch_from("orders", [(1, False, "x", "key", raw, b"")], BOTH).to_pylist()
    assert again[TYPED] == (None if row[TYPED] is None else list(row[TYPED].items()))


def test_each_type_has_its_name_and_its_text() -> None:
    entries = {
        "flag": Typed("bool", "true"),
        "tries": Typed("signedint", "-3"),
        "size": Typed("long", "9007199254740993"),
        "price": Typed("decimal", "12.50"),
        "ratio": Typed("double", "0.1"),
        "half": Typed("float", "0.5"),
        "at": Typed("timestamp", "1700000000"),
        "name": Typed("longstr", "Zoë"),
        "octets": Typed("longstr_base64", "/w=="),
        "blob": Typed("binary", "AAE="),
        "nothing": Typed("void", None),
        "list": Typed("array", '[{"type":"short","value":"1"},{"type":"void","value":null}]'),
        "inner": Typed(
            "table", '{"a":{"type":"table","value":{"b":{"type":"longstr","value":"\\"c\\""}}}}'
        ),
    }
    octets = encode_typed(entries.items())
    assert read_typed(octets, 0, len(octets)) == entries
    assert b"\x05triesI\xff\xff\xff\xfd" in octets
    assert b"\x05priceD\x02\x00\x00\x04\xe2" in octets
    assert b"\x06octetsS\x00\x00\x00\x01\xff" in octets


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        *[("byte", -(2**7), 2**7 - 1), ("unsignedbyte", 0, 2**8 - 1)],
        *[("short", -(2**15), 2**15 - 1), ("unsignedshort", 0, 2**16 - 1)],
        *[("signedint", -(2**31), 2**31 - 1), ("unsignedint", 0, 2**32 - 1)],
        *[("long", -(2**63), 2**63 - 1), ("timestamp", 0, 2**64 - 1)],
    ],
)
def test_whole_numbers_have_their_ranges(name: str, low: int, high: int) -> None:
    for number in (low, high):
        octets = encode_typed([("n", Typed(name, str(number)))])
        assert read_typed(octets, 0, len(octets)) == {"n": Typed(name, str(number))}
    for number in (low - 1, high + 1):
        with pytest.raises(TypedHeaderError, match="is not a value"):
            encode_typed([("n", Typed(name, str(number)))])


def test_a_table_in_a_table_is_not_escaped_once_more() -> None:
    value: Any = {}
    for _ in range(60):
        value = {"a": {"type": "table", "value": value}}
    octets = encode_typed([("deep", Typed("table", json.dumps(value)))])
    assert len(read_typed(octets, 0, len(octets))["deep"].value or "") < 3000


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("signedint", "2147483648", "tries: '2147483648' is not a value of type signedint"),
        ("signedint", "1.5", "is not a value of type signedint"),
        ("bool", "yes", "'yes' is not a value of type bool"),
        ("decimal", "-1", "is not a value of type decimal"),
        ("decimal", "NaN", "is not a value of type decimal"),
        ("binary", "a", "is not a value of type binary"),
        ("timestamp", "-1", "is not a value of type timestamp"),
        ("void", "x", "a void has no value"),
        ("longstr", None, "is not a value of type longstr"),
        ("int", "1", "type 'int' is none of bool, byte"),
        ("table", "[]", "is not a value of type table"),
        ("array", "{", "is not a value of type array"),
        ("array", '["1"]', "is not an object with type and value"),
        ("table", '{"a":{"type":"byte","value":"900"}}', "tries: a: '900' is not a value"),
    ],
)
def test_what_is_no_header_is_named(type_: str, value: str | None, text: str) -> None:
    with pytest.raises(TypedHeaderError, match=text):
        encode_typed([("tries", Typed(type_, value))])


def row_of(*headers: tuple[str, Any]) -> pa.RecordBatch:
    """A row of these headers."""
    column = pa.array([list(headers)], arrow_schema((TYPED,))[0].type)
    return pa.record_batch({"body": [b""], TYPED: column})


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"type": "byte", "value": "x"}, "tries: 'x' is not a value of type byte"),
        ({"type": None, "value": "x"}, "tries: has no type"),
        (None, "tries: has no type"),
    ],
)
def test_a_row_with_a_wrong_header_is_named(header: Any, text: str) -> None:
    with pytest.raises(RowError, match=f"row 7: column headers_typed: {text}"):
        list(Publisher(SINK, None).publishes(row_of(("tries", header)), 7))


def test_the_id_is_put_in_the_place_of_a_header_of_its_name() -> None:
    options = SinkOptions.parse(
        {"url": "amqp://broker", "routingKey": "q", "dedupeHeader": "id", "messageId": "hash"}
    )
    batch = row_of(("id", {"type": "long", "value": "1"}), ("n", {"type": "long", "value": "2"}))
    ((_, _, raw, _),) = Publisher(options, None).publishes(batch, 0)
    said = decode_properties(raw)
    assert said.headers == {"id": said.message_id, "n": 2}
    assert raw.count(b"\x02id") == 1


def test_the_option_adds_the_column_and_is_not_ignored() -> None:
    pytest.importorskip("pyspark")
    from vouchmq.spark.data_source import AmqpDataSource

    options = {"url": "amqp://broker", "queue": "s", "mode": "stream"}
    assert TYPED not in AmqpDataSource(options).schema()
    asking = AmqpDataSource({**options, "typedHeaders": "true"})
    assert asking.schema().endswith(f", `{TYPED}` {KINDS[TYPED]}")
    with pytest.raises(OptionError, match="option typedHeaders: true, but the schema"):
        asking.reader(cast(Any, Schema(Spelt("body", "binary"))))


def test_the_type_is_what_spark_makes_of_it() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_type

    text = types.StringType()
    pair = types.StructType([types.StructField(name, text) for name in ("type", "value")])
    kind = types.MapType(text, pair)
    assert kind.simpleString() == KINDS[TYPED]
    assert to_arrow_type(kind, timezone="UTC").equals(arrow_schema((TYPED,))[0].type)
