"""Field tables with their types: what clients put into headers and arguments, kept exactly.

A value keeps the type octet it came with, because RabbitMQ's rules look at it: a declared argument
is refused by type name, a header must leave the broker in the width in which it came.
Must not know which keys mean something; that is `server/broker/features/options.py`.

Order of keys is kept. Of duplicate keys a `Table` holds the first only, which is the one that
look-ups see in RabbitMQ; whoever must relay duplicates works on octets (`properties.py`).

Spec: FRAME-50, FRAME-51, FRAME-52, FRAME-54, FRAME-55
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Final, NamedTuple, Union, cast

from vouchmq.protocol.constants import MAX_TABLE_DEPTH
from vouchmq.protocol.errors import cannot_decode
from vouchmq.protocol.text import cut_octets, decode_text, encode_text


class Field(NamedTuple):
    """One typed value.

    kind   value
    t      bool
    b B s u I i l L   int, within the width of its type (int8 … int64; B, u, i are unsigned)
    f d    float (32 and 64 bits on the wire)
    D      (scale, unsigned 32-bit value)
    S x    bytes
    A      tuple of Field
    T      int, seconds, unsigned 64 bits
    F      Table
    V      None
    """

    kind: str
    value: FieldValue


Table = dict[str, Field]
FieldValue = Union[  # the names are forward references, which X | Y cannot join
    None, bool, int, float, bytes, "tuple[int, int]", "tuple[Field, ...]", "dict[str, Field]"
]

TYPE_NAMES: Final[dict[str, str]] = {
    "t": "bool",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "L": "long",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "S": "longstr",
    "x": "binary",
    "A": "array",
    "T": "timestamp",
    "F": "table",
    "V": "void",
}
INTEGER_KINDS: Final = frozenset("bBsuIilL")
INTEGER_OCTETS: Final = frozenset(b"bBsuIilL")

# Equivalence classes for argument comparison; a kind not named is a class of its own (FRAME-52).
_CLASS: Final[dict[str, str]] = dict.fromkeys((*INTEGER_KINDS, "D"), "integer") | {
    "f": "float",
    "d": "float",
}
# Headers compare integers over all widths, but a decimal only with a decimal (EXCH-51).
_HEADER_CLASS: Final[dict[str, str]] = dict.fromkeys(INTEGER_KINDS, "integer") | {
    "f": "float",
    "d": "float",
}

FIXED: Final[dict[str, struct.Struct]] = {
    "t": struct.Struct(">B"),
    "b": struct.Struct(">b"),
    "B": struct.Struct(">B"),
    "s": struct.Struct(">h"),
    "u": struct.Struct(">H"),
    "I": struct.Struct(">i"),
    "i": struct.Struct(">I"),
    "l": struct.Struct(">q"),
    "L": struct.Struct(">q"),
    "f": struct.Struct(">f"),
    "d": struct.Struct(">d"),
    "D": struct.Struct(">BI"),
    "T": struct.Struct(">Q"),
}
_SIZE: Final[dict[str, int]] = {kind: fixed.size for kind, fixed in FIXED.items()}
# The same by the octet of the type; what is in neither of these two is no field.
WIDTHS: Final[dict[int, int]] = {
    **{ord(kind): size for kind, size in _SIZE.items()},
    ord("V"): 0,
}
# The same for each octet there is; NO_WIDTH where the value says its length, or there is no type.
NO_WIDTH: Final = 255
WIDTH_OF: Final = bytes(WIDTHS.get(kind, NO_WIDTH) for kind in range(256))
# Those whose value need not be looked at, see `normalized.py`.
PLAIN_WIDTH_OF: Final = bytes(
    NO_WIDTH if kind in b"tLfd" else WIDTH_OF[kind] for kind in range(256)
)
SIZED: Final = frozenset(b"SxAF")
_LENGTH: Final = struct.Struct(">I")


def decode_table(body: bytes) -> Table:
    """The table in `body`, which is a table without its 4-octet length.

    Raises:
        FrameError: 501, an unknown type, a length that does not fit, nesting deeper than 64.

    Spec: FRAME-15, FRAME-36, FRAME-54
    """
    return _decode_entries(body, 0, len(body), 0)


def decode_table_at(data: bytes, offset: int) -> tuple[Table, int]:
    """The table whose 4-octet length stands at `offset`, and the offset behind it.

    Raises:
        FrameError: 501, as `decode_table`, or the length reaches past the end of `data`.
    """
    start = offset + 4
    if start > len(data):
        raise cannot_decode(data)
    end = start + int(_LENGTH.unpack_from(data, offset)[0])
    if end > len(data):
        raise cannot_decode(data)
    return _decode_entries(data, start, end, 0), end


def _decode_entries(data: bytes, offset: int, end: int, depth: int) -> Table:
    if depth > MAX_TABLE_DEPTH:
        raise cannot_decode(data)
    table: Table = {}
    while offset < end:
        start = offset + 1
        offset = start + data[offset]
        if offset > end:
            raise cannot_decode(data)
        key = decode_text(data[start:offset])
        field, offset = decode_field(data, offset, end, depth)
        if key not in table:
            table[key] = field
    return table


def decode_field(data: bytes, offset: int, end: int, depth: int = 0) -> tuple[Field, int]:
    """The field whose type octet stands at `offset`, and the offset behind it.

    `end` is that of the table or array it belongs to, `depth` how many others enclose that one.

    Raises:
        FrameError: 501, as `decode_table`.
    """
    if offset >= end:
        raise cannot_decode(data)
    kind = chr(data[offset])
    offset += 1
    size = _SIZE.get(kind)
    if size is not None:
        after = offset + size
        if after > end:
            raise cannot_decode(data)
        numbers = FIXED[kind].unpack_from(data, offset)
        if kind == "t":
            return Field("t", numbers[0] != 0), after
        return Field(kind, numbers if kind == "D" else numbers[0]), after
    if kind == "V":
        return Field("V", None), offset
    if kind not in "SxFA" or offset + 4 > end:
        raise cannot_decode(data)
    start = offset + 4
    after = start + int(_LENGTH.unpack_from(data, offset)[0])
    if after > end:
        raise cannot_decode(data)
    if kind == "F":
        return Field("F", _decode_entries(data, start, after, depth + 1)), after
    if kind == "A":
        return Field("A", _decode_items(data, start, after, depth + 1)), after
    return Field(kind, data[start:after]), after


def _decode_items(data: bytes, offset: int, end: int, depth: int) -> tuple[Field, ...]:
    if depth > MAX_TABLE_DEPTH:
        raise cannot_decode(data)
    items: list[Field] = []
    while offset < end:
        field, offset = decode_field(data, offset, end, depth)
        items.append(field)
    return tuple(items)


def encode_table(table: Table) -> bytes:
    """`table` with its 4-octet length, every value in the type it has.

    A key over 255 octets is cut as every shortstr is (GEN-03).
    """
    parts: list[bytes] = []
    for key, field in table.items():
        parts.append(encode_shortstr(key))
        parts.append(encode_field(field))
    body = b"".join(parts)
    return _LENGTH.pack(len(body)) + body


def encode_field(field: Field) -> bytes:
    """The type octet and the value."""
    kind = field.kind
    octet = kind.encode("ascii")
    fixed = FIXED.get(kind)
    value = field.value
    if fixed is not None:
        if isinstance(value, tuple):
            return octet + fixed.pack(*value)
        return octet + fixed.pack(value)
    if kind == "V":
        return octet
    if isinstance(value, dict):
        return octet + encode_table(value)
    if isinstance(value, tuple):
        # Only arrays get here: the pair of a decimal is fixed-size.
        items = cast("tuple[Field, ...]", value)
        value = b"".join(map(encode_field, items))
    if not isinstance(value, bytes):
        raise TypeError(f"field of kind {kind!r} cannot hold {value!r}")
    return octet + _LENGTH.pack(len(value)) + value


def encode_shortstr(text: str) -> bytes:
    """A length octet and the text; over 255 octets it is cut at a character boundary.

    Spec: GEN-03
    """
    octets = cut_octets(encode_text(text))
    return bytes((len(octets),)) + octets


def decode_shortstr(data: bytes, offset: int) -> tuple[str, int]:
    """The shortstr whose length octet stands at `offset`, and the offset behind it.

    Raises:
        FrameError: 501, it reaches past the end of `data`.
    """
    start = offset + 1
    if start > len(data):
        raise cannot_decode(data)
    end = start + data[offset]
    if end > len(data):
        raise cannot_decode(data)
    return decode_text(data[start:end]), end


def longstr(text: str | bytes) -> Field:
    """A string as the broker writes it (FRAME-55)."""
    return Field("S", text if isinstance(text, bytes) else encode_text(text))


def long_int(number: int) -> Field:
    """An integer as the broker writes it: 64 bits, signed (FRAME-55)."""
    return Field("l", number)


def boolean(value: bool) -> Field:
    """A truth value as the broker writes it (FRAME-55)."""
    return Field("t", value)


def timestamp(seconds: int) -> Field:
    """A time in seconds since 1970 as the broker writes it (FRAME-55)."""
    return Field("T", seconds)


def as_text(field: Field | None) -> str | None:
    """The text of a longstr; None when there is no field or it is of another type."""
    if field is not None and field.kind == "S" and isinstance(field.value, bytes):
        return decode_text(field.value)
    return None


def as_integer(field: Field | None) -> int | None:
    """The value of an integer of any width; None for all else, bool and timestamp included."""
    if field is not None and field.kind in INTEGER_KINDS and isinstance(field.value, int):
        return field.value
    return None


def as_table(field: Field | None) -> Table | None:
    """The nested table; None when there is no field or it is of another type."""
    if field is not None and isinstance(field.value, dict):
        return field.value
    return None


def type_name(field: Field) -> str:
    """The type as error texts call it.

    Spec: FRAME-51
    """
    return TYPE_NAMES[field.kind]


def same_value(a: Field | None, b: Field | None) -> bool:
    """Whether two arguments are equivalent: same class and equal value.

    A missing argument equals a missing one only. Inside arrays and tables the same rule holds
    for every member; the order of keys does not matter.

    Spec: QUEUE-23, FRAME-52
    """
    if a is None or b is None:
        return a is b
    return _equal(a, b, _CLASS)


def header_equal(a: Field, b: Field) -> bool:
    """Whether a header has the value that a binding asks for.

    A void equals a void only; that a void *argument* matches any value is for the binding to say.

    Spec: EXCH-51
    """
    return _equal(a, b, _HEADER_CLASS)


def header_key(field: Field) -> tuple[str, Hashable]:
    """Headers that are equal have the same key; others may have the same one, too.

    Spec: EXCH-51
    """
    kind = _HEADER_CLASS.get(field.kind, field.kind)
    value = field.value
    return (kind, None) if kind in {"A", "F"} or isinstance(value, dict) else (kind, value)


def _equal(a: Field, b: Field, classes: dict[str, str]) -> bool:
    if classes.get(a.kind, a.kind) != classes.get(b.kind, b.kind):
        return False
    if a.kind == "F" and isinstance(a.value, dict) and isinstance(b.value, dict):
        theirs = b.value
        return a.value.keys() == theirs.keys() and all(
            _equal(field, theirs[key], classes) for key, field in a.value.items()
        )
    if a.kind == "A" and isinstance(a.value, tuple) and isinstance(b.value, tuple):
        mine = cast("tuple[Field, ...]", a.value)  # kind A holds fields, not a decimal's pair
        others = cast("tuple[Field, ...]", b.value)
        return len(mine) == len(others) and all(
            _equal(one, other, classes) for one, other in zip(mine, others, strict=True)
        )
    return a.value == b.value


def render(field: Field) -> str:
    """The value as it is shown in error texts, without quotes.

    Texts as they are, numbers plain, booleans `true` and `false`; what is nested is shown as
    RabbitMQ prints its own terms, because people search for those messages.

    Spec: QUEUE-22
    """
    if isinstance(field.value, bytes):
        return decode_text(field.value)
    return _render_term(field)


def _render_term(field: Field) -> str:
    value = field.value
    match value:
        case None:
            return "undefined"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _render_float(value)
        case bytes():
            return _render_binary(value)
        case dict():
            entries = (
                f"{{{_render_binary(encode_text(key))},{TYPE_NAMES[each.kind]},{_render_term(each)}}}"
                for key, each in value.items()
            )
            return "[" + ",".join(entries) + "]"
    if field.kind == "D":
        return "{" + ",".join(map(str, value)) + "}"
    items = cast("tuple[Field, ...]", value)  # of the two kinds with tuples only A is left
    return "[" + ",".join(f"{{{TYPE_NAMES[i.kind]},{_render_term(i)}}}" for i in items) + "]"


def _render_float(value: float) -> str:
    """Python's shortest form, with the point that RabbitMQ's has even before an exponent."""
    mantissa, mark, exponent = repr(value).partition("e")
    if not mark:
        return mantissa
    if "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}e{int(exponent)}"


def _render_binary(octets: bytes) -> str:
    text = decode_text(octets)
    if text.isascii() and (text.isprintable() or not text):
        return f'<<"{text}">>'
    return "<<" + ",".join(map(str, octets)) + ">>"
