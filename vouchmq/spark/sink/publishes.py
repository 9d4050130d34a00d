"""Record batches → what the bulk client publishes: properties encoded by hand, ids that stay.

A batch is taken apart column by column once and then walked row by row. What a row says wins over
the options; `properties_raw` wins over all columns and is sent as it is. Knows Arrow and the wire's
forms, neither Spark nor a connection. Sequences of a task's rows are counted over its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, NoReturn

import pyarrow as pa

from vouchmq.protocol.property_layout import FLAG_OF, OCTET, PROPERTIES, SHORTSTR, TABLE
from vouchmq.spark.columns import TYPED, SchemaError
from vouchmq.spark.options import SinkOptions, refuse
from vouchmq.spark.properties import MICROSECONDS
from vouchmq.spark.typed_headers import Typed, TypedHeaderError, encode_typed

# Exchange, routing key, properties as on the wire, body.
Publish = tuple[str, str, bytes, bytes]

_KINDS: Final = dict(PROPERTIES)
# Typed headers are another way to say the same.
_FLAGS: Final = {**FLAG_OF, TYPED: FLAG_OF["headers"]}
_LENGTH: Final = tuple(bytes((size,)) for size in range(256))
_TRANSIENT: Final = 1
_PERSISTENT: Final = 2
_OCTETS: Final = {"delivery_mode": (_TRANSIENT, _PERSISTENT), "priority": (0, 255)}
_TABLE_KEY: Final = 128
_ID_BYTES: Final = 16
# A batch may be as large as Spark's memory: it becomes objects of Python's piece by piece.
_SLICE_ROWS: Final = 1000
_SLICE_BYTES: Final = 16 << 20
_VOID: Final = b"V"


class RowError(ValueError):
    """A row cannot be published; the text names the row of the task, and the column."""


def check_ids(options: SinkOptions, columns: Sequence[str], *, is_stream: bool) -> None:
    """Whether the ids that are asked for can be made, and rows have a way to go.

    Raises:
        OptionError: they cannot
        SchemaError: neither columns nor options say where to
    """
    way = options.message_id
    if way == "column" and "message_id" not in columns:
        refuse("messageId", "column, but there is no column message_id")
    if way == "position" and not is_stream:
        refuse(
            "messageId",
            "position is for writeStream: a batch write has no number that its repetition would "
            "have too; use column or hash",
        )
    if "properties_raw" in columns:
        if way in ("column", "position", "hash"):
            refuse("messageId", f"{way} cannot be put into properties_raw, which is sent as it is")
        if options.dedupe_header is not None:
            refuse("dedupeHeader", "cannot be put into properties_raw, which is sent as it is")
    is_default = not options.exchange and "exchange" not in columns
    if is_default and options.routing_key is None and "routing_key" not in columns:
        raise SchemaError(
            "column routing_key: neither it nor option routingKey is there, and the default "
            "exchange routes by it"
        )


class Publisher:
    """Makes the publishes of one task."""

    def __init__(self, options: SinkOptions, position: str | None) -> None:
        """`position` is what the ids by position begin with; None: this write has none."""
        self._options = options
        self._position = position
        self._mode = _LENGTH[_PERSISTENT if options.persistent else _TRANSIENT]

    def publishes(self, batch: pa.RecordBatch, first: int) -> Iterator[Publish]:
        """The publishes of a record batch, in its order; each time the same.

        Args:
            batch: columns of `columns.PUBLISHABLE`
            first: the number of its first row in the task

        Raises:
            RowError: a value is missing or does not fit
        """
        average = max(1, batch.nbytes // max(1, batch.num_rows))
        step = max(1, min(_SLICE_ROWS, _SLICE_BYTES // average))
        for start in range(0, batch.num_rows, step):
            yield from self._slice(batch.slice(start, step), first + start)

    def _slice(self, batch: pa.RecordBatch, first: int) -> Iterator[Publish]:
        values = {name: _values(batch.column(name), name) for name in batch.schema.names}
        size = batch.num_rows
        bodies = values.pop("body")
        exchanges = values.pop("exchange", [None] * size)
        keys = values.pop("routing_key", [None] * size)
        raws = values.pop("properties_raw", [None] * size)
        ids = values.pop("message_id", None)
        plan = _plan(values, self._options.dedupe_header)
        row = first
        try:
            for index in range(size):
                row = first + index
                body = bodies[index]
                if body is None:
                    _wrong("body", "is null")
                exchange = exchanges[index]
                if exchange is None:
                    exchange = self._options.exchange
                key = keys[index]
                if key is None:
                    key = self._options.routing_key or ""
                raw = raws[index]
                if raw is None:
                    raw = self._properties(
                        plan, index, ids[index] if ids else None, (exchange, key, body), row
                    )
                elif len(raw) < 2:
                    _wrong("properties_raw", "is too short for its flags")
                yield exchange, key, raw, body
        except ValueError as error:
            raise RowError(f"row {row}: {error}") from None

    def _properties(
        self,
        plan: list[_Step],
        index: int,
        given: str | None,
        content: tuple[str, str, bytes],
        row: int,
    ) -> bytes:
        """The properties of one row, with the id that it shall have."""
        fields: dict[int, bytes] = {}
        for flag, encode, values in plan:
            value = values[index]
            if value is not None:
                fields[flag] = encode(value)
        fields.setdefault(_FLAGS["delivery_mode"], self._mode)
        identity = self._identity(given, fields, content, row)
        if identity is not None:
            fields[_FLAGS["message_id"]] = _short("message_id", identity)
            if self._options.dedupe_header is not None:
                flag = _FLAGS["headers"]
                fields[flag] = _with_header(
                    fields.get(flag, b"\0\0\0\0"), self._options.dedupe_header, identity
                )
        return _assemble(fields)

    def _identity(
        self, given: str | None, fields: dict[int, bytes], content: tuple[str, str, bytes], row: int
    ) -> str | None:
        way = self._options.message_id
        if way == "auto":
            if given is not None:
                return given
            way = "position" if self._position is not None else "hash"
        if way == "position":
            return f"{self._position}/{row}"
        if way == "hash":
            return _hash(content, fields)
        if way == "column" and given is None:
            _wrong("message_id", "is null, and messageId is column")
        return given


_Step = tuple[int, Callable[[Any], bytes], list[Any]]


def _values(column: pa.Array, name: str) -> list[Any]:
    """A column as a list of what its encoder takes."""
    if name in ("body", "properties_raw"):
        column = column.cast(pa.large_binary())
    elif name == "timestamp":
        column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _plan(columns: dict[str, list[Any]], dedupe_header: str | None) -> list[_Step]:
    return [
        (_FLAGS[name], _encoder(name, dedupe_header), values)
        for name, values in columns.items()
        if any(value is not None for value in values)
    ]


def _encoder(name: str, dedupe_header: str | None) -> Callable[[Any], bytes]:
    if name == TYPED:
        return lambda value: _typed(value, dedupe_header)
    kind = _KINDS[name]
    if kind == SHORTSTR:
        return lambda value: _short(name, value)
    if kind == OCTET:
        return lambda value: _octet(name, value)
    if kind == TABLE:
        return lambda value: _headers(value, dedupe_header)
    return _timestamp


def _assemble(fields: dict[int, bytes]) -> bytes:
    flags = 0
    for flag in fields:
        flags |= flag
    # The highest flag's field comes first.
    values = [fields[flag] for flag in sorted(fields, reverse=True)]
    return flags.to_bytes(2, "big") + b"".join(values)


def _wrong(name: str, why: str) -> NoReturn:
    raise RowError(f"column {name}: {why}")


def _short(name: str, value: str) -> bytes:
    octets = value.encode()
    if len(octets) > 255:
        _wrong(name, f"has {len(octets)} bytes, more than 255")
    return _LENGTH[len(octets)] + octets


def _octet(name: str, value: int) -> bytes:
    low, high = _OCTETS[name]
    if not low <= value <= high:
        _wrong(name, f"{value} is not from {low} to {high}")
    return _LENGTH[value]


def _timestamp(microseconds: int) -> bytes:
    if microseconds < 0:
        _wrong("timestamp", "is before 1970")
    return (microseconds // MICROSECONDS).to_bytes(8, "big")


def _headers(entries: list[tuple[str, str | None]], without: str | None) -> bytes:
    table = b"".join([_entry(key, value) for key, value in entries if key != without])
    return len(table).to_bytes(4, "big") + table


def _typed(entries: list[tuple[str, dict[str, str | None] | None]], without: str | None) -> bytes:
    fields: list[tuple[str, Typed]] = []
    for key, field in entries:
        if key == without:
            continue
        if field is None or field["type"] is None:
            _wrong(TYPED, f"{key}: has no type")
        fields.append((key, Typed(field["type"], field["value"])))
    try:
        table = encode_typed(fields)
    except TypedHeaderError as error:
        _wrong(TYPED, str(error))
    return len(table).to_bytes(4, "big") + table


def _entry(key: str, value: str | None) -> bytes:
    name = key.encode()
    if not 1 <= len(name) <= _TABLE_KEY:
        _wrong("headers", f"a key has {len(name)} bytes, not 1 to {_TABLE_KEY}")
    if value is None:
        return _LENGTH[len(name)] + name + _VOID
    text = value.encode()
    return _LENGTH[len(name)] + name + b"S" + len(text).to_bytes(4, "big") + text


def _with_header(table: bytes, key: str, value: str) -> bytes:
    """The table with one more entry."""
    entry = _entry(key, value)
    return (len(table) - 4 + len(entry)).to_bytes(4, "big") + entry + table[4:]


def _hash(content: tuple[str, str, bytes], fields: dict[int, bytes]) -> str:
    """An id of all that is published; equal rows have equal ids."""
    exchange, key, body = content
    digest = blake2b(digest_size=_ID_BYTES)
    for part in (exchange.encode(), key.encode(), _assemble(fields)):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    digest.update(body)
    return digest.hexdigest()
