"""What commands are given, made into what the protocol knows: names, and tables of arguments.

Must not know any command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from vouchmq.protocol.contents import property_block
from vouchmq.protocol.fields import encode_shortstr, encode_table
from vouchmq.protocol.properties import Properties
from vouchmq.protocol.property_layout import (
    FLAG_OF,
    FLAGS,
    OCTET,
    PROPERTIES,
    SHORTSTR,
    TABLE,
    TIMESTAMP_VALUE,
)
from vouchmq.protocol.runs import CONTENT_HEADER, FRAME_HEADER, NOTES_FRAME, SIZE
from vouchmq.protocol.text import encode_text, is_utf8
from vouchmq.server.admin.commands import CommandRefused
from vouchmq.server.definitions.arguments import arguments_of
from vouchmq.server.definitions.export import plain_table
from vouchmq.server.settings.validation import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pamqp import base

    from vouchmq.protocol.fields import Table

M = TypeVar("M", bound="base.Frame")

LONGEST_BYTES: Final = 255
OCTET_MAX: Final = 255
SECONDS_MAX: Final = (1 << 64) - 1
# Bodies are cut into frames as clients do it.
FRAME_BODY_BYTES: Final = 131072 - 8
_BASIC: Final = 60


def short(**texts: str) -> None:
    """Refuse names and keys that no method can carry.

    Raises:
        CommandRefused: one is longer than 255 bytes
    """
    for name, text in texts.items():
        if len(encode_text(text)) > LONGEST_BYTES:
            raise CommandRefused(f"{name}: more than {LONGEST_BYTES} bytes")


def new_name(**texts: str) -> None:
    """Refuse what no client could have in a declaration or a binding (FRAME-57).

    Raises:
        CommandRefused: one is longer than 255 bytes, or no UTF-8
    """
    short(**texts)
    for name, text in texts.items():
        if not is_utf8(text):
            raise CommandRefused(f"{name}: not UTF-8: {text}")


def named(method: M, **names: str) -> M:
    """A method with these names in it; its constructor refuses some that clients may use."""
    for name, value in names.items():
        setattr(method, name, value)
    return method


def table_of(given: Mapping[str, object], name: str = "arguments") -> Table:
    """A field table of plain values, as in a definitions file; integers get 64 bits.

    Raises:
        CommandRefused: a value that no table can hold
    """
    try:
        return arguments_of(dict(given))
    except InvalidValueError as error:
        raise CommandRefused(f"{name}{error.at}: {error}") from None


def block_of(properties: Mapping[str, object]) -> bytes:
    """A property block of plain values by their names.

    Raises:
        CommandRefused: there is no such property, or it cannot have that value
    """
    unknown = sorted(set(properties) - set(FLAG_OF))
    if unknown:
        raise CommandRefused(f"properties: there is no {unknown[0]!r}")
    flags = 0
    values: list[bytes] = []
    for name, kind in PROPERTIES:
        value = properties.get(name)
        if value is None:
            continue
        flags |= FLAG_OF[name]
        if kind == TABLE and isinstance(value, dict):
            values.append(encode_table(table_of(value, name)))
        elif kind == SHORTSTR and isinstance(value, str):
            short(**{name: value})
            values.append(encode_shortstr(value))
        elif kind == OCTET and _is_number(value, OCTET_MAX):
            values.append(bytes((value,)))  # type: ignore[arg-type]
        elif kind not in {TABLE, SHORTSTR, OCTET} and _is_number(value, SECONDS_MAX):
            values.append(TIMESTAMP_VALUE.pack(value))
        else:
            raise CommandRefused(f"properties: {name} cannot be {value!r}")
    return b"".join((FLAGS.pack(flags), *values))


def _is_number(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def content_of(block: bytes, body: bytes, channel: int) -> bytes:
    """A content as it would have been received on a channel: header frame and body frames."""
    size = 12 + len(block)
    parts = [CONTENT_HEADER.pack(2, channel, size, _BASIC, 0, len(body)), block, b"\xce"]
    for at in range(0, len(body), FRAME_BODY_BYTES):
        piece = body[at : at + FRAME_BODY_BYTES]
        parts += (FRAME_HEADER.pack(3, channel, len(piece)), piece, b"\xce")
    return b"".join(parts)


def body_of(raw: bytes, most: int | None = None) -> bytes:
    """The body of a content, or its first bytes."""
    at, left = 8 + SIZE.unpack_from(raw, 3)[0], len(raw) if most is None else most
    pieces: list[bytes] = []
    while left > 0 and at < len(raw) and raw[at] != NOTES_FRAME:
        size = SIZE.unpack_from(raw, at + 3)[0]
        pieces.append(raw[at + 7 : at + 7 + min(size, left)])
        left -= size
        at += 8 + size
    return b"".join(pieces)


def properties_of(raw: bytes) -> dict[str, object]:
    """The properties of a content that are there, as plain values."""
    found = Properties(property_block(raw))
    shown: dict[str, object] = {}
    for name, kind in PROPERTIES:
        value = getattr(found, name)
        if value is not None:
            shown[name] = plain_table(value) if kind == TABLE else value
    return shown
