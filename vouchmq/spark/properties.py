"""A content header's octets → columns of values: flags and fields walked by hand, a run at a time.

The octets are those of AMQP's property flags and values, as a delivery brought them. Only what is
asked for is decoded, the rest is stepped over; a column that no message of the run has is left out.
Imports neither Spark nor Arrow. What cannot be read leaves its message without properties, and the
caller learns which; the octets themselves are still there for `properties_raw`.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, cast

from vouchmq.protocol.constants import MAX_TABLE_DEPTH
from vouchmq.protocol.fields import FIXED, INTEGER_OCTETS, SIZED, WIDTHS
from vouchmq.protocol.property_layout import (
    FLAG_OF,
    OCTET,
    PROPERTIES,
    RESERVED_FLAGS,
    SHORTSTR,
    TABLE,
)
from vouchmq.spark.columns import TYPED
from vouchmq.spark.typed_headers import read_typed

Headers = dict[str, str | None]
# One property of a flags word: how its field is read, and the column that takes it.
Step = tuple[int, list[Any] | None]

NO_PROPERTIES: Final = b"\x00\x00"
# 9999-12-31T23:59:59Z: later ones no program of Python could read back.
MAX_SECONDS: Final = 253_402_300_799
MICROSECONDS: Final = 1_000_000
# A client may nest as deep as a frame is long; a row does not follow it everywhere.
MAX_DEPTH: Final = MAX_TABLE_DEPTH

_MARKS: Final = {
    b"x-stream-offset": "offset",
    b"x-queue-seq": "seq",
    b"x-queue-id": "queue_id",
    b"x-delivery-count": "delivery_count",
}
MARKED: Final = frozenset({"offset", "queue_id", "delivery_count"})
_MAX_INT: Final = 2**31 - 1

_U32: Final = struct.Struct(">I").unpack_from
_U64: Final = struct.Struct(">Q").unpack_from
# What JSON shows as a number or a truth value, by its type.
_FIXED: Final[dict[int, tuple[Callable[..., tuple[Any, ...]], int]]] = {
    **{ord(kind): (FIXED[kind].unpack_from, FIXED[kind].size) for kind in "bBsuIilLfd"},
    ord("t"): (struct.Struct(">?").unpack_from, 1),
}
# Bound here: looked up for every field, the imported names cost 5 to 10 % of a row.
_INTEGERS: Final = INTEGER_OCTETS
_WIDTHS: Final = WIDTHS
_LONG: Final = SIZED
_TEXT: Final = ord("S")


class BrokenPropertiesError(ValueError):
    """Octets that are no content header, or hold what no column can."""


class PropertyReader:
    """Reads the same columns from one run of content headers after the other."""

    def __init__(self, columns: Iterable[str]) -> None:
        """`columns` that are no properties, nor come from headers, are left to others."""
        wanted = set(columns)
        self._wanted = wanted & {TYPED, *(name for name, _ in PROPERTIES)}
        self._marks = wanted & MARKED

    def read(self, raws: Sequence[bytes]) -> tuple[dict[str, list[Any]], list[int]]:
        """The columns of these content headers, and the numbers of those that are broken.

        Of the values: timestamps are microseconds since 1970, None beyond the year 9999; headers
        are dicts of text. A column that has no value in the whole run is missing.
        """
        if not self._wanted and not self._marks:
            return {}, []
        size = len(raws)
        lists: dict[str, list[Any]] = {}
        plans: dict[bytes, list[Step]] = {}
        broken: list[int] = []
        for row, raw in enumerate(raws):
            if raw == NO_PROPERTIES:
                continue
            try:
                flags = raw[:2]
                plan = plans.get(flags)
                if plan is None:
                    plan = plans[flags] = self._plan(flags, lists, size)
                self._read_one(raw, plan, row, lists)
            except (ValueError, IndexError, struct.error):
                broken.append(row)
        for row in broken:
            for values in lists.values():
                values[row] = None
        self._finish_marks(lists)
        return lists, broken

    def _plan(self, flags: bytes, lists: dict[str, list[Any]], size: int) -> list[Step]:
        word = int.from_bytes(flags, "big")
        if len(flags) < 2 or word & RESERVED_FLAGS:
            raise BrokenPropertiesError("flags of unknown properties")
        plan: list[Step] = []
        for name, kind in PROPERTIES:
            if not word & FLAG_OF[name]:
                continue
            if name == "headers" and TYPED in self._wanted:
                lists.setdefault(TYPED, [None] * size)
            if name in self._wanted and name not in lists:
                lists[name] = [None] * size
            plan.append((kind, lists.get(name)))
        if word & FLAG_OF["headers"] and self._marks:
            for mark in _MARKS.values():
                lists.setdefault(mark, [None] * size)
        return plan

    def _read_one(
        self, raw: bytes, plan: list[Step], row: int, lists: dict[str, list[Any]]
    ) -> None:
        at = 2
        for kind, values in plan:
            if kind == SHORTSTR:
                end = at + 1 + raw[at]
                if values is not None:
                    values[row] = raw[at + 1 : end].decode("utf-8", "backslashreplace")
                at = end
            elif kind == OCTET:
                if values is not None:
                    values[row] = raw[at]
                at += 1
            elif kind == TABLE:
                end = at + 4 + _U32(raw, at)[0]
                if values is not None:
                    values[row] = read_headers(raw, at + 4, end)
                self._read_more(raw, at + 4, end, row, lists)
                at = end
            else:
                if values is not None:
                    values[row] = _microseconds(_U64(raw, at)[0])
                at += 8
        if at != len(raw):
            raise BrokenPropertiesError("the size does not match the flags")

    def _read_more(
        self, raw: bytes, at: int, end: int, row: int, lists: dict[str, list[Any]]
    ) -> None:
        """What else comes from the headers."""
        if self._marks:
            _read_marks(raw, at, end, row, lists)
        if TYPED in self._wanted:
            lists[TYPED][row] = read_typed(raw, at, end)

    def _finish_marks(self, lists: dict[str, list[Any]]) -> None:
        """An offset is that of the stream, or else the position in the queue."""
        positions = lists.pop("seq", None)
        if positions is not None:
            lists["offset"] = [
                position if offset is None else offset
                for offset, position in zip(lists["offset"], positions, strict=True)
            ]
        for name in MARKED - self._marks:
            lists.pop(name, None)


def sequences(raws: Sequence[bytes]) -> tuple[list[int | None], list[int | None]]:
    """Queue ids and offsets of these content headers, None where a message has none."""
    columns, _ = PropertyReader(("queue_id", "offset")).read(raws)
    nothing: list[int | None] = [None] * len(raws)
    return columns.get("queue_id", nothing), columns.get("offset", nothing)


def _microseconds(seconds: int) -> int | None:
    """Nothing for a year that no column holds: many a publisher writes milliseconds."""
    return seconds * MICROSECONDS if seconds <= MAX_SECONDS else None


def _read_marks(raw: bytes, at: int, end: int, row: int, lists: dict[str, list[Any]]) -> None:
    """Find the headers that a broker adds to a delivery, and step over all others."""
    while at < end:
        key_end = at + 1 + raw[at]
        kind = raw[key_end]
        name = _MARKS.get(raw[at + 1 : key_end])
        at = key_end + 1
        if name is not None and kind in _INTEGERS:
            value = _FIXED[kind][0](raw, at)[0]
            if value >= 0 and (name != "delivery_count" or value <= _MAX_INT):
                lists[name][row] = value
        if kind in _LONG:
            at += 4 + cast(int, _U32(raw, at)[0])
        else:
            width = _WIDTHS.get(kind)
            if width is None:
                raise BrokenPropertiesError("a field of a type that does not exist")
            at += width
    if at != end:
        raise BrokenPropertiesError("a table that ends inside a field")


def read_headers(raw: bytes, at: int, end: int) -> Headers:
    """The table between two positions as text: what is text stays so, all else becomes JSON.

    Raises:
        BrokenPropertiesError, ValueError, IndexError, struct.error: it is none
    """
    headers: Headers = {}
    while at < end:
        key_end = at + 1 + raw[at]
        key = raw[at + 1 : key_end].decode("utf-8", "backslashreplace")
        kind = raw[key_end]
        at = key_end + 1
        if kind == _TEXT:
            stop = at + 4 + _U32(raw, at)[0]
            headers[key] = _text_or_json(raw[at + 4 : stop])
            at = stop
        elif kind in _INTEGERS:
            unpack, width = _FIXED[kind]
            # As JSON writes it, at a tenth of the price.
            headers[key] = str(unpack(raw, at)[0])
            at += width
        else:
            value, at = _value(raw, kind, at, end, 1)
            headers[key] = None if value is None else _json(value)
    if at != end:
        raise BrokenPropertiesError("a table that ends inside a field")
    return headers


def _text_or_json(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return _json(b64encode(octets).decode())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _value(raw: bytes, kind: int, at: int, end: int, depth: int) -> tuple[Any, int]:
    """One field as JSON would hold it, and where the next begins."""
    fixed = _FIXED.get(kind)
    if fixed is not None:
        value = fixed[0](raw, at)[0]
        # JSON has no such numbers.
        if value != value or value in (float("inf"), float("-inf")):
            value = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        return value, at + fixed[1]
    if kind in _LONG:
        stop = at + 4 + _U32(raw, at)[0]
        if stop > end:
            raise BrokenPropertiesError("a field longer than its table")
        return _long_value(raw, kind, at + 4, stop, depth), stop
    if kind == ord("T"):
        seconds = _U64(raw, at)[0]
        if seconds <= MAX_SECONDS:
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), at + 8
        return seconds, at + 8
    if kind == ord("D"):
        return format(Decimal(_U32(raw, at + 1)[0]).scaleb(-raw[at]), "f"), at + 5
    if kind == ord("V"):
        return None, at
    raise BrokenPropertiesError("a field of a type that does not exist")


def _long_value(raw: bytes, kind: int, at: int, end: int, depth: int) -> Any:
    if kind == _TEXT:
        try:
            return raw[at:end].decode()
        except UnicodeDecodeError:
            return b64encode(raw[at:end]).decode()
    if kind == ord("x"):
        return b64encode(raw[at:end]).decode()
    if depth > MAX_DEPTH:
        raise BrokenPropertiesError("a table nested too deep")
    table: dict[str, Any] = {}
    items: list[Any] = []
    while at < end:
        key = ""
        if kind == ord("F"):
            key_end = at + 1 + raw[at]
            key = raw[at + 1 : key_end].decode("utf-8", "backslashreplace")
            at = key_end
        value, at = _value(raw, raw[at], at + 1, end, depth + 1)
        if kind == ord("F"):
            table[key] = value
        else:
            items.append(value)
    if at != end:
        raise BrokenPropertiesError("a table that ends inside a field")
    return table if kind == ord("F") else items
