"""Deliveries → Arrow record batches that Spark takes as they are, and record batches → publishes.

The schema is that of `columns.py`, in the very types and nullability that Spark's own conversion
gives them: it compares. Knows Arrow and not Spark, and opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa

from vouchmq.protocol.text import shown
from vouchmq.spark.columns import ALL, KINDS
from vouchmq.spark.properties import PropertyReader
from vouchmq.spark.sink.property_edit import RawPropertiesError, edited, without_stream_offset
from vouchmq.spark.source.places import PLACE_HEADERS, places_of
from vouchmq.spark.typed_headers import Typed

# As the bulk client hands them out: tag, redelivered, exchange, routing key, properties, body.
Delivery = tuple[int, bool, str, str, bytes, bytes]

_TYPED: Final = pa.struct([pa.field("type", pa.string()), pa.field("value", pa.string())])
_ARROW: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(
        pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())
    ),
    "map<string,struct<type:string,value:string>>": pa.map_(
        pa.field("key", pa.string(), nullable=False), pa.field("value", _TYPED)
    ),
}


@cache
def arrow_schema(columns: tuple[str, ...] = ALL) -> pa.Schema:
    """The Arrow schema of these columns, all nullable."""
    return pa.schema([pa.field(name, _ARROW[KINDS[name]]) for name in columns])


def batch_from(
    queue: str,
    deliveries: Sequence[Delivery],
    columns: tuple[str, ...] = ALL,
    broken: list[int] | None = None,
    *,
    is_placed: bool = False,
    is_stream: bool = False,
) -> pa.RecordBatch:
    """One row per delivery, in their order, with these columns and no others.

    A message whose properties cannot be read becomes a row without them: `properties_raw` and
    `body` are there.

    Args:
        queue: where all of them come from
        deliveries: as the bulk client took them
        columns: which, in which order
        broken: gets the numbers of the rows whose properties could not be read
        is_placed: the broker was asked for places: they go into columns, and are no headers
        is_stream: the same of the offset in a stream
    """
    size = len(deliveries)
    if not size:
        return pa.RecordBatch.from_arrays(
            [pa.nulls(0, each.type) for each in arrow_schema(columns)], schema=arrow_schema(columns)
        )
    _, redelivered, exchanges, keys, received, bodies = zip(*deliveries, strict=True)
    raws: Sequence[bytes] = received
    places: dict[str, list[int | None]] = {}
    if is_placed:
        raws, places = _without_places(raws)
    elif is_stream:
        raws, offsets = zip(*map(without_stream_offset, raws), strict=True)
        places = {"offset": list(offsets)}
    values, unread = PropertyReader([each for each in columns if each not in places]).read(raws)
    values |= places
    if broken is not None:
        broken.extend(unread)
    of_delivery: dict[str, Callable[[], pa.Array]] = {
        "queue": lambda: _texts((queue,) * size),
        "body": lambda: pa.array(bodies, pa.binary()),
        "exchange": lambda: _texts(exchanges),
        "routing_key": lambda: _texts(keys),
        "redelivered": lambda: pa.array(redelivered, pa.bool_()),
        "properties_raw": lambda: pa.array(raws, pa.binary()),
    }
    arrays = []
    for field in arrow_schema(columns):
        make = of_delivery.get(field.name)
        arrays.append(make() if make else _property_array(values.get(field.name), field.type, size))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _without_places(raws: Sequence[bytes]) -> tuple[list[bytes], dict[str, list[int | None]]]:
    """The properties as they were published, and the columns that places fill."""
    kept: list[bytes] = []
    places = places_of(raws)
    for raw, place in zip(raws, places, strict=True):
        try:
            kept.append(raw if place is None else edited(raw, drop_numbers=PLACE_HEADERS))
        except RawPropertiesError:
            kept.append(raw)
    return kept, {
        "queue_id": [None if place is None else place[0] for place in places],
        "offset": [None if place is None else place[1] for place in places],
    }


def _property_array(values: list[Any] | None, kind: pa.DataType, size: int) -> pa.Array:
    if values is None:
        return pa.nulls(size, kind)
    if pa.types.is_map(kind):
        return _map_array(values, kind)
    return pa.array(values, kind)


def _texts(values: Sequence[str]) -> pa.Array:
    """A column of text, which is often the same in all rows."""
    try:
        if values.count(values[0]) == len(values):
            return pa.repeat(pa.scalar(values[0], pa.string()), len(values))
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array([shown(value) for value in values], pa.string())


def _typed_array(items: list[Typed]) -> pa.Array:
    kinds, values = zip(*items, strict=True) if items else ((), ())
    return pa.StructArray.from_arrays(
        [pa.array(kinds, pa.string()), pa.array(values, pa.string())], fields=list(_TYPED)
    )


def _map_array(tables: list[dict[str, Any] | None], kind: pa.DataType) -> pa.Array:
    keys: list[str] = []
    items: list[Any] = []
    offsets: list[int | None] = []
    for table in tables:
        # A null instead of an offset is a null instead of a map.
        offsets.append(None if table is None else len(keys))
        if table:
            keys.extend(table)
            items.extend(table.values())
    offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(keys, pa.string()),
        _typed_array(items) if kind.item_type == _TYPED else pa.array(items, pa.string()),
        type=kind,
    )
