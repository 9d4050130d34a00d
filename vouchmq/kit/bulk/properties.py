"""Message properties to bytes and back: flags and values as they stand in a content header.

Hand-written in one direction, because it is done for every message that is published from
columns; pamqp decodes, and encodes the values inside of header tables.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Mapping
from typing import Final, TypeAlias

from pamqp import base, encode
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from vouchmq.kit.bulk.errors import PropertiesError
from vouchmq.protocol.constants import CLASS_BASIC
from vouchmq.protocol.fields import FIXED
from vouchmq.protocol.property_layout import (
    FLAG_OF,
    FLAGS,
    LENGTH,
    OCTET,
    PROPERTIES,
    TIMESTAMP_VALUE,
)

# By the names of `NAMES`; `type` is another word for `message_type`. None: not there.
Properties: TypeAlias = Mapping[str, object]

# In the order of their flags. `cluster_id` is none that this client writes.
NAMES: Final = tuple(
    "message_type" if name == "type" else name for name, _ in PROPERTIES if name != "cluster_id"
)
_KNOWN: Final = frozenset((*NAMES, "type"))
_FLAGS: Final = {**FLAG_OF, "message_type": FLAG_OF["type"]}
_OCTETS: Final = frozenset(name for name, kind in PROPERTIES if kind == OCTET)
_HEADER: Final = struct.Struct(">HHQ")
# Bound here, as imported names are slower where each message looks them up.
_FLAG_WORD: Final = FLAGS
_TIME: Final = TIMESTAMP_VALUE
_SIZE: Final = LENGTH
_INT: Final = FIXED["I"]
_LONG: Final = FIXED["l"]
_DOUBLE: Final = FIXED["d"]


def encode_properties(properties: Properties | base.BasicProperties | None) -> bytes:
    """Flags and values of properties, as publishes take them.

    `timestamp` may be a datetime (without zone: UTC) or seconds since 1970; an empty string is a
    property that is there and empty.

    Raises:
        PropertiesError: an unknown name, or a value of the wrong type; the text names it
    """
    if properties is None:
        return b"\x00\x00"
    if isinstance(properties, base.BasicProperties):
        # pamqp's own class says "" for a property that is not there.
        given = dict(properties)
        properties = {name: given[name] for name in NAMES if given[name] not in (None, "")}
    if not isinstance(properties, Mapping):
        raise PropertiesError(f"properties must be a mapping, not {type(properties).__name__}")
    if not _KNOWN.issuperset(properties):
        raise PropertiesError(f"no property {min(map(str, properties.keys() - _KNOWN))!r}")
    values = properties
    if "type" in values:
        kind = values["type"]
        values = {**values, "message_type": values.get("message_type") if kind is None else kind}
    flags = 0
    parts: list[bytes] = []
    for name in NAMES:
        value = values.get(name)
        if value is None:
            continue
        flags |= _FLAGS[name]
        try:
            parts.append(_value(name, value))
        except (TypeError, ValueError, OverflowError, struct.error) as error:
            raise PropertiesError(f"{name}: {error}") from error
    return _FLAG_WORD.pack(flags) + b"".join(parts)


def decode_properties(raw: bytes) -> Basic.Properties:
    """The properties of a delivery.

    Raises:
        PropertiesError: they cannot be read
    """
    header = ContentHeader()
    try:
        header.unmarshal(_HEADER.pack(CLASS_BASIC, 0, 0) + raw)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, OSError) as error:
        raise PropertiesError(f"properties that cannot be read: {error}") from error
    except (struct.error, RecursionError) as error:
        raise PropertiesError(f"properties that cannot be read: {error}") from error
    return header.properties


def _value(name: str, value: object) -> bytes:
    if name == "headers":
        return _table(value)
    if name == "timestamp":
        return _time(value)
    if name in _OCTETS:
        if not isinstance(value, int) or not 0 <= value <= 255:
            raise ValueError(f"must be a number from 0 to 255, not {value!r}")
        return bytes((value,))
    return _short(value)


def _short(value: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"must be a string, not {value!r}")
    encoded = value.encode("utf-8", "surrogateescape")
    if len(encoded) > 255:
        raise ValueError("is longer than 255 bytes")
    return bytes((len(encoded),)) + encoded


def _time(value: object) -> bytes:
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        value = int(moment.timestamp())
    if not isinstance(value, int):
        raise TypeError(f"must be a datetime or seconds, not {value!r}")
    return _TIME.pack(value)


def _table(value: object) -> bytes:
    """A field table. pamqp's own cuts long names and sorts; here they are refused, and kept."""
    if not isinstance(value, Mapping):
        raise TypeError(f"must be a mapping, not {value!r}")
    parts: list[bytes] = []
    for name, item in value.items():
        parts.append(_short(name))
        parts.append(_item(item))
    output = b"".join(parts)
    return _SIZE.pack(len(output)) + output


def _item(item: object) -> bytes:
    if isinstance(item, Mapping):
        return b"F" + _table(item)
    if isinstance(item, list | tuple):
        inner = b"".join(_item(each) for each in item)
        return b"A" + _SIZE.pack(len(inner)) + inner
    # The types every client reads, at full width: pamqp would halve the digits of a float.
    if isinstance(item, str):
        encoded = item.encode()
        return b"S" + _SIZE.pack(len(encoded)) + encoded
    if isinstance(item, float):
        return b"d" + _DOUBLE.pack(item)
    if isinstance(item, int) and not isinstance(item, bool):
        is_short = -0x80000000 <= item <= 0x7FFFFFFF
        return b"I" + _INT.pack(item) if is_short else b"l" + _LONG.pack(item)
    if isinstance(item, bytes):
        item = bytearray(item)
    return encode.encode_table_value(item)  # type: ignore[arg-type]  # it refuses what it cannot
