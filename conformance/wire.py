"""AMQP 0-9-1 on the wire, written a second time on purpose.

The suite judges a broker, so its codec shares nothing with any broker's: a mistake made on
both sides would cancel itself out. It is slow, complete and strict about what it reads, and
lets a case send anything, malformed bytes included (`Raw`). It knows no sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8


class WireError(Exception):
    """The peer sent octets that are not AMQP 0-9-1."""


class Raw(bytes):
    """Octets that go out as they are, in place of a table or a whole property block."""


class Typed(NamedTuple):
    """A field value together with its type octet, which plain Python values do not carry."""

    kind: str
    value: object


Plain: TypeAlias = (
    "bool | int | float | str | bytes | Typed | Sequence[Plain] | Mapping[str, Plain] | None"
)
Table: TypeAlias = Mapping[str, Plain]
Argument: TypeAlias = "bool | int | str | bytes | Table | Raw"

# One line per method: class id, method id, name, fields. Types: o octet, h short, l long,
# q longlong, s shortstr, S longstr, t table, b bit (consecutive bits share octets).
_METHODS: Final = """
10 10 connection.start version_major:o version_minor:o server_properties:t mechanisms:S locales:S
10 11 connection.start_ok client_properties:t mechanism:s response:S locale:s
10 20 connection.secure challenge:S
10 21 connection.secure_ok response:S
10 30 connection.tune channel_max:h frame_max:l heartbeat:h
10 31 connection.tune_ok channel_max:h frame_max:l heartbeat:h
10 40 connection.open vhost:s capabilities:s insist:b
10 41 connection.open_ok known_hosts:s
10 50 connection.close reply_code:h reply_text:s class_id:h method_id:h
10 51 connection.close_ok
10 60 connection.blocked reason:s
10 61 connection.unblocked
10 70 connection.update_secret new_secret:S reason:s
10 71 connection.update_secret_ok
20 10 channel.open out_of_band:s
20 11 channel.open_ok channel_id:S
20 20 channel.flow active:b
20 21 channel.flow_ok active:b
20 40 channel.close reply_code:h reply_text:s class_id:h method_id:h
20 41 channel.close_ok
30 10 access.request realm:s exclusive:b passive:b active:b write:b read:b
30 11 access.request_ok ticket:h
40 10 exchange.declare ticket:h exchange:s type:s passive:b durable:b auto_delete:b \
      internal:b nowait:b arguments:t
40 11 exchange.declare_ok
40 20 exchange.delete ticket:h exchange:s if_unused:b nowait:b
40 21 exchange.delete_ok
40 30 exchange.bind ticket:h destination:s source:s routing_key:s nowait:b arguments:t
40 31 exchange.bind_ok
40 40 exchange.unbind ticket:h destination:s source:s routing_key:s nowait:b arguments:t
40 51 exchange.unbind_ok
50 10 queue.declare ticket:h queue:s passive:b durable:b exclusive:b auto_delete:b \
      nowait:b arguments:t
50 11 queue.declare_ok queue:s message_count:l consumer_count:l
50 20 queue.bind ticket:h queue:s exchange:s routing_key:s nowait:b arguments:t
50 21 queue.bind_ok
50 30 queue.purge ticket:h queue:s nowait:b
50 31 queue.purge_ok message_count:l
50 40 queue.delete ticket:h queue:s if_unused:b if_empty:b nowait:b
50 41 queue.delete_ok message_count:l
50 50 queue.unbind ticket:h queue:s exchange:s routing_key:s arguments:t
50 51 queue.unbind_ok
60 10 basic.qos prefetch_size:l prefetch_count:h global_:b
60 11 basic.qos_ok
60 20 basic.consume ticket:h queue:s consumer_tag:s no_local:b no_ack:b exclusive:b \
      nowait:b arguments:t
60 21 basic.consume_ok consumer_tag:s
60 30 basic.cancel consumer_tag:s nowait:b
60 31 basic.cancel_ok consumer_tag:s
60 40 basic.publish ticket:h exchange:s routing_key:s mandatory:b immediate:b
60 50 basic.return reply_code:h reply_text:s exchange:s routing_key:s
60 60 basic.deliver consumer_tag:s delivery_tag:q redelivered:b exchange:s routing_key:s
60 70 basic.get ticket:h queue:s no_ack:b
60 71 basic.get_ok delivery_tag:q redelivered:b exchange:s routing_key:s message_count:l
60 72 basic.get_empty cluster_id:s
60 80 basic.ack delivery_tag:q multiple:b
60 90 basic.reject delivery_tag:q requeue:b
60 100 basic.recover_async requeue:b
60 110 basic.recover requeue:b
60 111 basic.recover_ok
60 120 basic.nack delivery_tag:q multiple:b requeue:b
85 10 confirm.select nowait:b
85 11 confirm.select_ok
90 10 tx.select
90 11 tx.select_ok
90 20 tx.commit
90 21 tx.commit_ok
90 30 tx.rollback
90 31 tx.rollback_ok
"""

# Name and type of the content properties, in the order of their flags from bit 15 down.
PROPERTIES: Final = (
    ("content_type", "s"),
    ("content_encoding", "s"),
    ("headers", "t"),
    ("delivery_mode", "o"),
    ("priority", "o"),
    ("correlation_id", "s"),
    ("reply_to", "s"),
    ("expiration", "s"),
    ("message_id", "s"),
    ("timestamp", "q"),
    ("type", "s"),
    ("user_id", "s"),
    ("app_id", "s"),
    ("cluster_id", "s"),
)

_NUMBERS: Final = {"o": ">B", "h": ">H", "l": ">I", "q": ">Q"}
_FIELD_NUMBERS: Final = {
    "b": ">b",
    "B": ">B",
    "s": ">h",
    "u": ">H",
    "I": ">i",
    "i": ">I",
    "l": ">q",
    "L": ">q",
    "f": ">f",
    "d": ">d",
    "T": ">Q",
}


class _Shape(NamedTuple):
    ids: tuple[int, int]
    name: str
    fields: tuple[tuple[str, str], ...]


def _shapes() -> list[_Shape]:
    shapes = []
    for line in _METHODS.strip().splitlines():
        class_id, method_id, name, *fields = line.split()
        pairs = [field.split(":") for field in fields]
        shapes.append(
            _Shape((int(class_id), int(method_id)), name, tuple((p[0], p[1]) for p in pairs))
        )
    return shapes


_BY_NAME: Final = {shape.name: shape for shape in _shapes()}
_BY_IDS: Final = {shape.ids: shape for shape in _BY_NAME.values()}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it came: type octet, channel, payload."""

    kind: int
    channel: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Method:
    """A decoded method; arguments by name, tables with `Typed` values."""

    name: str
    ids: tuple[int, int]
    arguments: dict[str, Argument]


@dataclass(frozen=True, slots=True)
class Header:
    """A content header: the announced body size and the raw property block (flags and values)."""

    class_id: int
    weight: int
    body_size: int
    block: bytes

    def properties(self) -> dict[str, Argument]:
        """The properties that are present, decoded."""
        return decode_properties(self.block)


def ids_of(name: str) -> tuple[int, int]:
    """Class and method id of a method given by name."""
    return _BY_NAME[name].ids


def frame(kind: int, channel: int, payload: bytes, *, end: int = FRAME_END) -> bytes:
    """A whole frame; `end` may be wrong on purpose."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


def method_payload(name: str, **arguments: Argument) -> bytes:
    """Ids and arguments of a method; what is not given is zero or empty."""
    shape = _BY_NAME[name]
    unknown = set(arguments) - {field for field, _ in shape.fields}
    if unknown:
        raise TypeError(f"{name} has no field {', '.join(sorted(unknown))}")
    out = [struct.pack(">HH", *shape.ids)]
    bits: list[bool] = []
    for field, kind in shape.fields:
        value = arguments.get(field)
        if kind == "b":
            bits.append(bool(value))
            continue
        out += [_packed_bits(bits), _encode_argument(kind, value)]
        bits = []
    out.append(_packed_bits(bits))
    return b"".join(out)


def method(channel: int, name: str, **arguments: Argument) -> bytes:
    """A method frame."""
    return frame(METHOD, channel, method_payload(name, **arguments))


def header_payload(body_size: int, block: bytes, *, class_id: int = 60, weight: int = 0) -> bytes:
    """The payload of a content header frame."""
    return struct.pack(">HHQ", class_id, weight, body_size) + block


def content(channel: int, body: bytes, block: bytes, frame_max: int) -> bytes:
    """Header and body frames of one message, bodies cut to `frame_max`."""
    out = [frame(HEADER, channel, header_payload(len(body), block))]
    step = frame_max - FRAME_OVERHEAD
    out += [frame(BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join(out)


def _packed_bits(bits: Sequence[bool]) -> bytes:
    return bytes([sum(bit << at for at, bit in enumerate(bits))]) if bits else b""


def _encode_argument(kind: str, value: Argument | None) -> bytes:
    if isinstance(value, Raw):
        return bytes(value)
    if kind in _NUMBERS:
        return struct.pack(_NUMBERS[kind], int(value) if isinstance(value, int) else 0)
    if kind == "t":
        return encode_table(value if isinstance(value, Mapping) else {})
    octets = value if isinstance(value, bytes) else _octets(value if isinstance(value, str) else "")
    if kind == "s":
        return bytes([len(octets)]) + octets
    return struct.pack(">I", len(octets)) + octets


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def shortstr(text: str) -> bytes:
    """Length octet and octets."""
    octets = _octets(text)
    return bytes([len(octets)]) + octets


def encode_table(table: Table) -> bytes:
    """A field table with its length; plain Python values get the type clients commonly use."""
    body = b"".join(shortstr(key) + encode_field(value) for key, value in table.items())
    return struct.pack(">I", len(body)) + body


def encode_field(value: Plain) -> bytes:
    """Type octet and value."""
    field = value if isinstance(value, Typed) else _typed(value)
    return field.kind.encode() + _encode_value(field)


def _typed(value: Plain) -> Typed:
    if value is None:
        return Typed("V", None)
    if isinstance(value, bool):
        return Typed("t", value)
    if isinstance(value, int):
        return Typed("I" if -(2**31) <= value < 2**31 else "l", value)
    if isinstance(value, float):
        return Typed("d", value)
    if isinstance(value, (str, bytes)):
        return Typed("S", value)
    return Typed("F" if isinstance(value, Mapping) else "A", value)


def _encode_value(field: Typed) -> bytes:
    kind, value = field
    if kind in _FIELD_NUMBERS:
        return struct.pack(_FIELD_NUMBERS[kind], value)
    if kind == "V":
        return b""
    if kind == "t":
        return b"\x01" if value else b"\x00"
    if isinstance(value, Raw):
        return bytes(value)
    if kind == "D" and isinstance(value, tuple):
        return struct.pack(">BI", *value)
    if kind == "F" and isinstance(value, Mapping):
        return encode_table(value)
    if kind == "A" and isinstance(value, Sequence):
        body = b"".join(encode_field(item) for item in value)
    elif isinstance(value, (str, bytes)):
        body = _octets(value) if isinstance(value, str) else value
    else:
        raise TypeError(f"cannot encode {value!r} as {kind}")
    return struct.pack(">I", len(body)) + body


def encode_properties(**properties: Argument) -> Raw:
    """A property block: flags, then the values in flag order."""
    unknown = set(properties) - {name for name, _ in PROPERTIES}
    if unknown:
        raise TypeError(f"no property {', '.join(sorted(unknown))}")
    flags, values = 0, b""
    for at, (name, kind) in enumerate(PROPERTIES):
        if name in properties:
            flags |= 1 << (15 - at)
            values += _encode_argument(kind, properties[name])
    return Raw(struct.pack(">H", flags) + values)


class _Cursor:
    """Reads forward through octets; running out is a `WireError`."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        """The next `count` octets."""
        if self.at + count > len(self.data):
            raise WireError(f"{count} octets wanted, {len(self.data) - self.at} left")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, pattern: str) -> int:
        """One number of the given struct pattern."""
        value: int = struct.unpack(pattern, self.take(struct.calcsize(pattern)))[0]
        return value

    def done(self) -> bool:
        """True when nothing is left."""
        return self.at == len(self.data)


def decode_method(payload: bytes) -> Method:
    """The method in the payload of a method frame.

    Raises:
        WireError: unknown ids, arguments too short or too long.
    """
    cursor = _Cursor(payload)
    ids = (cursor.number(">H"), cursor.number(">H"))
    shape = _BY_IDS.get(ids)
    if shape is None:
        raise WireError(f"unknown method {ids[0]}.{ids[1]}")
    arguments: dict[str, Argument] = {}
    bit = bits = 0
    for name, kind in shape.fields:
        if kind != "b":
            bit = 0
            arguments[name] = _decode_argument(cursor, kind)
            continue
        if bit % 8 == 0:
            bits = cursor.number(">B")
        arguments[name] = bool(bits >> (bit % 8) & 1)
        bit += 1
    if not cursor.done():
        raise WireError(f"{shape.name}: {len(payload) - cursor.at} octets too many")
    return Method(shape.name, ids, arguments)


def _decode_argument(cursor: _Cursor, kind: str) -> Argument:
    if kind in _NUMBERS:
        return cursor.number(_NUMBERS[kind])
    if kind == "s":
        return cursor.take(cursor.number(">B")).decode("utf-8", "surrogateescape")
    octets = cursor.take(cursor.number(">I"))
    return octets if kind == "S" else decode_table(octets)


def decode_table(body: bytes) -> dict[str, Plain]:
    """A table body, without its length, as `Typed` values by key."""
    cursor = _Cursor(body)
    table: dict[str, Plain] = {}
    while not cursor.done():
        key = cursor.take(cursor.number(">B")).decode("utf-8", "surrogateescape")
        table[key] = _decode_field(cursor)
    return table


def _decode_field(cursor: _Cursor) -> Typed:
    kind = chr(cursor.number(">B"))
    if kind in _FIELD_NUMBERS:
        pattern = _FIELD_NUMBERS[kind]
        return Typed(kind, struct.unpack(pattern, cursor.take(struct.calcsize(pattern)))[0])
    if kind == "t":
        return Typed(kind, cursor.number(">B") != 0)
    if kind == "V":
        return Typed(kind, None)
    if kind == "D":
        return Typed(kind, (cursor.number(">B"), cursor.number(">I")))
    if kind not in "SxAF":
        raise WireError(f"unknown field type {kind!r}")
    octets = cursor.take(cursor.number(">I"))
    if kind == "F":
        return Typed(kind, decode_table(octets))
    if kind == "A":
        inner, items = _Cursor(octets), []
        while not inner.done():
            items.append(_decode_field(inner))
        return Typed(kind, tuple(items))
    return Typed(kind, octets)


def decode_header(payload: bytes) -> Header:
    """The payload of a content header frame."""
    cursor = _Cursor(payload)
    class_id, weight = cursor.number(">H"), cursor.number(">H")
    size = cursor.number(">Q")
    return Header(class_id, weight, size, payload[cursor.at :])


def decode_properties(block: bytes) -> dict[str, Argument]:
    """A whole property block; present properties by name."""
    cursor = _Cursor(block)
    flags = cursor.number(">H")
    properties = {}
    for at, (name, kind) in enumerate(PROPERTIES):
        if flags >> (15 - at) & 1:
            properties[name] = _decode_argument(cursor, kind)
    if not cursor.done():
        raise WireError("octets after the last property")
    return properties


def plain(value: Plain) -> object:
    """A decoded field without its types: longstrs as text, tables and arrays all the way down."""
    if isinstance(value, Typed):
        inner = value.value
        if value.kind == "F" and isinstance(inner, Mapping):
            return {key: plain(item) for key, item in inner.items()}
        if value.kind == "A" and isinstance(inner, Sequence):
            return [plain(item) for item in inner]
        if isinstance(inner, bytes) and value.kind == "S":
            return inner.decode("utf-8", "surrogateescape")
        return inner
    return value
