"""Content headers of every kind, made octet by octet, and what a row must say of them.

An encoder and an oracle of its own: it shares nothing with the rooms it judges.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

from hypothesis import strategies as st

SHORT = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type", "user_id", "app_id", "cluster_id"),
)
ORDER = (
    *("content_type", "content_encoding", "headers", "delivery_mode", "priority"),
    *("correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type", "user_id"),
    *("app_id", "cluster_id"),
)
LATEST = 253_402_300_799


@dataclass(frozen=True)
class Typed:
    """A field on the wire, and the same as JSON holds it."""

    kind: bytes
    octets: bytes
    json: Any
    entries: dict[str, Typed] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """What the map of headers says."""
        if self.kind == b"V":
            return None
        if self.kind == b"S" and self.octets[4:] == str(self.json).encode():
            return str(self.json)
        return json.dumps(self.json, ensure_ascii=False, separators=(",", ":"))


def _number(kind: str, form: str, low: int, high: int) -> st.SearchStrategy[Typed]:
    return st.integers(low, high).map(
        lambda value: Typed(kind.encode(), struct.pack(f">{form}", value), value)
    )


def _float(kind: str, form: str, width: Literal[32, 64]) -> st.SearchStrategy[Typed]:
    def typed(value: float) -> Typed:
        names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return Typed(kind.encode(), struct.pack(f">{form}", value), names.get(str(value), value))

    return st.floats(width=width).map(typed)


def _octets(kind: bytes, octets: bytes) -> Typed:
    try:
        said = octets.decode() if kind == b"S" else b64encode(octets).decode()
    except UnicodeDecodeError:
        said = b64encode(octets).decode()
    return Typed(kind, len(octets).to_bytes(4, "big") + octets, said)


def _decimal(scale: int, value: int) -> Typed:
    text = format(Decimal(value).scaleb(-scale), "f")
    return Typed(b"D", bytes((scale,)) + value.to_bytes(4, "big"), text)


def _time(seconds: int) -> Typed:
    said: str | int = seconds
    if seconds <= LATEST:
        said = datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    return Typed(b"T", seconds.to_bytes(8, "big"), said)


def _array(items: list[Typed]) -> Typed:
    octets = b"".join(item.kind + item.octets for item in items)
    return Typed(b"A", len(octets).to_bytes(4, "big") + octets, [item.json for item in items])


def table(entries: dict[str, Typed]) -> Typed:
    """A table of these fields."""
    octets = b"".join(
        bytes((len(key.encode()),)) + key.encode() + each.kind + each.octets
        for key, each in entries.items()
    )
    said = {key: each.json for key, each in entries.items()}
    return Typed(b"F", len(octets).to_bytes(4, "big") + octets, said, entries)


texts = st.text(max_size=12)
keys = st.text(min_size=1, max_size=12)
leaves = st.one_of(
    st.booleans().map(lambda value: Typed(b"t", bytes((value,)), value)),
    _number("b", "b", -128, 127),
    _number("B", "B", 0, 255),
    _number("s", "h", -(2**15), 2**15 - 1),
    _number("u", "H", 0, 2**16 - 1),
    _number("I", "i", -(2**31), 2**31 - 1),
    _number("i", "I", 0, 2**32 - 1),
    _number("l", "q", -(2**63), 2**63 - 1),
    _number("L", "q", -(2**63), 2**63 - 1),
    _float("f", "f", 32),
    _float("d", "d", 64),
    st.builds(_decimal, st.integers(0, 30), st.integers(0, 2**32 - 1)),
    st.builds(_octets, st.sampled_from([b"S", b"x"]), st.binary(max_size=12)),
    texts.map(lambda text: _octets(b"S", text.encode())),
    st.one_of(st.integers(0, 4_000_000_000), st.integers(0, 2**64 - 1)).map(_time),
    st.just(Typed(b"V", b"", None)),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(_array),
        st.dictionaries(keys, inner, max_size=4).map(table),
    ),
    max_leaves=8,
)
# As brokers add them.
marks = st.fixed_dictionaries(
    {},
    optional={
        name: _number("l", "q", 0, 2**63 - 1)
        for name in ("x-stream-offset", "x-queue-seq", "x-queue-id")
    }
    | {"x-delivery-count": _number("I", "i", 0, 2**31 - 1)},
)
tables = st.builds(
    lambda first, then: table(first | then), st.dictionaries(keys, values, max_size=4), marks
)


def _short(text: str) -> bytes:
    return bytes((len(text.encode()),)) + text.encode()


@dataclass(frozen=True)
class Content:
    """Properties as they stand on the wire, and what their columns must say."""

    raw: bytes
    columns: dict[str, Any]


def content(given: dict[str, Any]) -> Content:
    """Encode properties; `headers` is a Typed table, the rest are Python's own values."""
    flags, parts, columns = 0, [], {}
    for number, name in enumerate(ORDER):
        value = given.get(name)
        if value is None:
            continue
        flags |= 0x8000 >> number
        if name == "headers":
            parts.append(value.octets)
            columns.update(_header_columns(value))
        elif name in ("delivery_mode", "priority"):
            parts.append(bytes((value,)))
            columns[name] = value
        elif name == "timestamp":
            parts.append(value.to_bytes(8, "big"))
            columns[name] = datetime.fromtimestamp(value, UTC)
        else:
            parts.append(_short(value))
            columns[name] = value
    columns.pop("cluster_id", None)
    return Content(flags.to_bytes(2, "big") + b"".join(parts), columns)


def _header_columns(headers: Typed) -> dict[str, Any]:
    said = headers.entries
    columns: dict[str, Any] = {"headers": {key: each.text for key, each in said.items()}}
    for header, name in (
        ("x-queue-seq", "offset"),
        ("x-stream-offset", "offset"),
        ("x-queue-id", "queue_id"),
        ("x-delivery-count", "delivery_count"),
    ):
        if header in said:
            columns[name] = said[header].json
    return columns


contents = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(SHORT, texts),
        "headers": tables,
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, LATEST),
    },
).map(content)
