"""Headers with their types: a table of AMQP ↔ pairs of a type's name and a value as text.

The names are those that RabbitMQ's error texts have. The value of a table or an array is JSON, in
which each field is an object of `type` and `value`; a table inside it is an object there and not
text, or each level would escape the one below. What is read and written again is the same table,
but for keys that are no UTF-8, keys that stand in it twice, `L` (becomes `l`, which means the same)
and the bits of a NaN. Imports neither Spark nor Arrow.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from decimal import Decimal, DecimalException
from typing import Any, Final, NamedTuple

from vouchmq.protocol.constants import MAX_TABLE_DEPTH
from vouchmq.protocol.fields import FIXED, TYPE_NAMES

_TABLE_KEY: Final = 128
_U32: Final = struct.Struct(">I")
# `l` after `L`, which has the same name: it is the one that is written.
_INTEGERS: Final = "bBsuIiLl"
_FLOATS: Final = "fd"
# Text that is no UTF-8.
_LONGSTR_BASE64: Final = "longstr_base64"


class Typed(NamedTuple):
    """A header: the name of its type, and its value as text; None is the value of a void."""

    type: str
    value: str | None


# The same where tables and arrays are objects of Python.
_Field = tuple[str, Any]


class TypedHeaderError(ValueError):
    """What is no header, read or to be written; the text says why."""


def read_typed(raw: bytes, at: int, end: int) -> dict[str, Typed]:
    """The table between two positions.

    Raises:
        TypedHeaderError, IndexError, struct.error: it is none
    """
    return {
        key: Typed(name, value if value is None or isinstance(value, str) else _json(value))
        for key, (name, value) in _read_table(raw, at, end, 1).items()
    }


def encode_typed(entries: Iterable[tuple[str, Typed]]) -> bytes:
    """The entries of a table, without its length.

    Raises:
        TypedHeaderError: a key, a type or a value does not fit
    """
    return _encode_table([(key, (each.type, _parsed(each))) for key, each in entries], 1)


def _parsed(field: Typed) -> Any:
    if field.type not in ("table", "array") or field.value is None:
        return field.value
    try:
        return json.loads(field.value)
    except (ValueError, RecursionError):
        raise _misfit(field.type, field.value) from None


def _misfit(name: str, value: Any) -> TypedHeaderError:
    return TypedHeaderError(f"{str(value)[:100]!r} is not a value of type {name}")


def _read_table(raw: bytes, at: int, end: int, depth: int) -> dict[str, _Field]:
    table: dict[str, _Field] = {}
    while at < end:
        key_end = at + 1 + raw[at]
        key = raw[at + 1 : key_end].decode("utf-8", "backslashreplace")
        table[key], at = _read(raw, key_end, end, depth)
    if at != end:
        raise TypedHeaderError("a table that ends inside a field")
    return table


def _read(raw: bytes, at: int, end: int, depth: int) -> tuple[_Field, int]:
    """One field from its letter on, and where the next begins."""
    kind = chr(raw[at])
    at += 1
    if kind in _NUMBERS:
        name, form = _NUMBERS[kind]
        value = form.unpack_from(raw, at)[0]
        return (name, repr(value) if kind in "fd" else str(value)), at + form.size
    if kind == "t":
        return ("bool", "true" if raw[at] else "false"), at + 1
    if kind == "V":
        return ("void", None), at
    if kind == "T":
        return ("timestamp", str(FIXED["T"].unpack_from(raw, at)[0])), at + 8
    if kind == "D":
        scale, digits = FIXED["D"].unpack_from(raw, at)
        return ("decimal", format(Decimal(digits).scaleb(-scale), "f")), at + 5
    if kind not in "SxAF":
        raise TypedHeaderError("a field of a type that does not exist")
    start = at + 4
    stop = start + int(_U32.unpack_from(raw, at)[0])
    if stop > end:
        raise TypedHeaderError("a field longer than its table")
    return _read_long(raw, kind, start, stop, depth), stop


def _read_long(raw: bytes, kind: str, at: int, end: int, depth: int) -> _Field:
    if kind == "S":
        try:
            return "longstr", raw[at:end].decode()
        except UnicodeDecodeError:
            return _LONGSTR_BASE64, b64encode(raw[at:end]).decode()
    if kind == "x":
        return "binary", b64encode(raw[at:end]).decode()
    if depth > MAX_TABLE_DEPTH:
        raise TypedHeaderError("a table nested too deep")
    if kind == "F":
        table = _read_table(raw, at, end, depth + 1)
        return "table", {key: _object(each) for key, each in table.items()}
    items: list[dict[str, Any]] = []
    while at < end:
        item, at = _read(raw, at, end, depth + 1)
        items.append(_object(item))
    if at != end:
        raise TypedHeaderError("an array that ends inside a field")
    return "array", items


def _object(field: _Field) -> dict[str, Any]:
    return {"type": field[0], "value": field[1]}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _encode_table(entries: Iterable[tuple[str, _Field]], depth: int) -> bytes:
    parts: list[bytes] = []
    for key, field in entries:
        name = key.encode()
        if not 1 <= len(name) <= _TABLE_KEY:
            raise TypedHeaderError(f"a key has {len(name)} bytes, not 1 to {_TABLE_KEY}")
        try:
            parts.append(bytes((len(name),)) + name + _encode(field, depth))
        except TypedHeaderError as error:
            raise TypedHeaderError(f"{key}: {error}") from None
    return b"".join(parts)


def _encode(field: _Field, depth: int) -> bytes:
    """The letter of a field and its value."""
    name, value = field
    if name == "void":
        if value is not None:
            raise TypedHeaderError("a void has no value")
        return b"V"
    if name in ("table", "array"):
        return _encode_nested(name, value, depth)
    encode = _ENCODERS.get(name)
    if encode is None:
        known = ", ".join((*_ENCODERS, "table", "array", "void"))
        raise TypedHeaderError(f"type {name!r} is none of {known}")
    if not isinstance(value, str):
        raise _misfit(name, value)
    try:
        return encode(value)
    except (ValueError, DecimalException, struct.error, OverflowError):
        raise _misfit(name, value) from None


def _encode_nested(name: str, value: Any, depth: int) -> bytes:
    if depth > MAX_TABLE_DEPTH:
        raise TypedHeaderError("a table nested too deep")
    if name == "table" and isinstance(value, dict):
        entries = [(key, _field(each)) for key, each in value.items()]
        return _long(b"F", _encode_table(entries, depth + 1))
    if name == "array" and isinstance(value, list):
        return _long(b"A", b"".join([_encode(_field(each), depth + 1) for each in value]))
    raise _misfit(name, value)


def _field(found: Any) -> _Field:
    if (
        not isinstance(found, dict)
        or found.keys() != {"type", "value"}
        or not isinstance(found["type"], str)
    ):
        raise TypedHeaderError(f"{str(found)[:100]!r} is not an object with type and value")
    return found["type"], found["value"]


def _long(code: bytes, octets: bytes) -> bytes:
    return code + _U32.pack(len(octets)) + octets


def _bool(value: str) -> bytes:
    return b"t" + bytes((("false", "true").index(value),))


def _decimal(value: str) -> bytes:
    sign, digits, exponent = Decimal(value).as_tuple()
    if sign or not isinstance(exponent, int) or exponent > 0:
        raise ValueError(value)
    return b"D" + FIXED["D"].pack(-exponent, int("".join(map(str, digits))))


def _number(code: str, form: struct.Struct, of: Callable[[str], Any]) -> Callable[[str], bytes]:
    def encode(value: str) -> bytes:
        return code.encode() + form.pack(of(value))

    return encode


_NUMBERS: Final = {code: (TYPE_NAMES[code], FIXED[code]) for code in _INTEGERS + _FLOATS}
_ENCODERS: Final[dict[str, Callable[[str], bytes]]] = {
    "bool": _bool,
    **{TYPE_NAMES[code]: _number(code, FIXED[code], int) for code in _INTEGERS},
    **{TYPE_NAMES[code]: _number(code, FIXED[code], float) for code in _FLOATS},
    "decimal": _decimal,
    "timestamp": _number("T", FIXED["T"], int),
    "longstr": lambda value: _long(b"S", value.encode()),
    _LONGSTR_BASE64: lambda value: _long(b"S", b64decode(value, validate=True)),
    "binary": lambda value: _long(b"x", b64decode(value, validate=True)),
}
