"""Properties as they stand in a content header, changed without touching what stays.

    flags(2) content_type content_encoding headers delivery_mode … app_id cluster_id

What a broker added on delivery is cut out and what a replay adds is put behind the rest; every
other octet is the publisher's. Nothing is decoded, so nothing can come back different: neither a
decimal, nor the order of headers, nor one that stands there twice. Knows octets only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from struct import Struct, error
from typing import Final

from vouchmq.protocol.fields import INTEGER_OCTETS, SIZED, WIDTHS
from vouchmq.protocol.property_layout import FLAG_OF, FLAGS, LENGTH, RESERVED_FLAGS, walk

_OFFSET: Final = Struct(">q")
_STREAM_OFFSET: Final = b"\x0fx-stream-offsetl"

HEADERS: Final = FLAG_OF["headers"]
EXPIRATION: Final = FLAG_OF["expiration"]
USER_ID: Final = FLAG_OF["user_id"]

# Bound here, as imported names are slower where each message looks them up.
_FLAGS: Final = FLAGS
_SIZE: Final = LENGTH
# `U` is a short integer of the specification's that brokers read as none; nothing refused it here.
_WIDTHS: Final = {**WIDTHS, ord("U"): 2}
_WHOLE: Final = INTEGER_OCTETS | {ord("U")}


class RawPropertiesError(ValueError):
    """Octets that are no properties."""


class Parts:
    """Where each property of a content header stands.

    Attributes:
        flags: which properties there are
        spans: from where to where, by flag
    """

    __slots__ = ("flags", "raw", "spans")

    def __init__(self, raw: bytes) -> None:
        """Raises RawPropertiesError when a property ends behind the octets, or before them."""
        self.raw = raw
        try:
            unknown = _FLAGS.unpack_from(raw)[0] & RESERVED_FLAGS
            if unknown:
                raise RawPropertiesError(f"unknown property flags {unknown:#x}")
            self.flags, self.spans, end = walk(raw)
        except (error, IndexError) as cut:
            raise RawPropertiesError("the properties are cut short") from cut
        if end != len(raw):
            raise RawPropertiesError(f"{len(raw)} octets of properties, but they end at {end}")

    def text(self, flag: int) -> bytes | None:
        """A short string; None if the property is not there."""
        span = self.spans.get(flag)
        return None if span is None else self.raw[span[0] + 1 : span[1]]

    def headers(self) -> Iterator[tuple[bytes, int, int]]:
        """Name of each header, and from where to where it stands in `raw`.

        Raises:
            RawPropertiesError: the table holds something that is no header.
        """
        at, stop = self.spans.get(HEADERS, (0, 0))
        at += _SIZE.size
        while at < stop:
            first = at
            value = at + 1 + self.raw[at]
            if value >= stop:
                raise RawPropertiesError("a header's name is cut short")
            name = self.raw[first + 1 : value]
            at = value + 1 + self._value_size(value, stop)
            if at > stop:
                raise RawPropertiesError(f"header {_shown(name)} is cut short")
            yield name, first, at

    def _value_size(self, at: int, stop: int) -> int:
        kind = self.raw[at]
        fixed = _WIDTHS.get(kind)
        if fixed is not None:
            return fixed
        if kind not in SIZED:
            raise RawPropertiesError(f"a header of the unknown kind {chr(kind)!r}")
        if at + 1 + _SIZE.size > stop:
            raise RawPropertiesError("a header's size is cut short")
        return _SIZE.size + int(_SIZE.unpack_from(self.raw, at + 1)[0])


def stream_offset(raw: bytes) -> int | None:
    """The offset that a broker has put among the headers; None if there is none.

    It is the last of them: brokers add behind what the publisher sent.

    Raises:
        RawPropertiesError: these are no properties.
    """
    parts = Parts(raw)
    end = parts.spans.get(HEADERS, (0, 0))[1]
    first = end - len(_STREAM_OFFSET) - _OFFSET.size
    if first > 0 and raw.startswith(_STREAM_OFFSET, first):
        return int(_OFFSET.unpack_from(raw, end - _OFFSET.size)[0])
    for name, first, end in parts.headers():
        if name == _STREAM_OFFSET[1:-1] and raw[first + len(_STREAM_OFFSET) - 1] in b"l":
            return int(_OFFSET.unpack_from(raw, end - _OFFSET.size)[0])
    return None


def without_stream_offset(raw: bytes) -> tuple[bytes, int | None]:
    """Properties as they were published to a stream, and the offset that the broker has added.

    Octets that are no properties, or have no offset, come back as they are.
    """
    found = raw.find(_STREAM_OFFSET)
    if found < 0:
        return raw, None
    try:
        start = _table_start(raw)
        size = _SIZE.unpack_from(raw, start)[0]
        left = found - start - _SIZE.size
        if size != left + len(_STREAM_OFFSET) + _OFFSET.size or not raw[0] << 8 & HEADERS:
            # Not the last header, or the publisher wrote the same: look properly.
            offset = stream_offset(raw)
            names = (_STREAM_OFFSET[1:-1],)
            return (raw if offset is None else edited(raw, drop_numbers=names)), offset
        offset = int(_OFFSET.unpack_from(raw, found + len(_STREAM_OFFSET))[0])
    except (RawPropertiesError, IndexError, error):
        return raw, None
    rest = raw[found + len(_STREAM_OFFSET) + _OFFSET.size :]
    if left:
        return b"".join(
            (raw[:start], _SIZE.pack(left), raw[start + _SIZE.size : found], rest)
        ), offset
    flags = _FLAGS.pack(_FLAGS.unpack_from(raw)[0] & ~HEADERS)
    return b"".join((flags, raw[_FLAGS.size : start], rest)), offset


def _table_start(raw: bytes) -> int:
    """Where the size of the table of headers stands, if there is one."""
    at = _FLAGS.size
    if raw[0] & 0x80:
        at += 1 + raw[at]
    if raw[0] & 0x40:
        at += 1 + raw[at]
    return at


def edited(
    raw: bytes,
    *,
    drop: Collection[bytes] = (),
    drop_numbers: Collection[bytes] = (),
    without: int = 0,
    add: bytes = b"",
) -> bytes:
    """Properties with some headers and properties left out and some headers added.

    Args:
        raw: flags and values as received
        drop: names of headers to leave out, also where they stand twice
        drop_numbers: as `drop`, but only where they hold a whole number
        without: flags of properties to leave out
        add: encoded headers to put behind the others; see `header`

    A table of which nothing is left goes, too.

    Raises:
        RawPropertiesError: these are no properties.
    """
    parts = Parts(raw)
    table = _table(parts, drop, drop_numbers) + add
    flags = parts.flags & ~without & ~HEADERS | (HEADERS if table else 0)
    pieces = [_FLAGS.pack(flags)]
    for flag in FLAG_OF.values():
        if not flags & flag:
            continue
        if flag == HEADERS:
            pieces += (_SIZE.pack(len(table)), table)
        else:
            pieces.append(raw[slice(*parts.spans[flag])])
    return b"".join(pieces)


def _table(parts: Parts, drop: Collection[bytes], drop_numbers: Collection[bytes]) -> bytes:
    """The headers that stay, one behind the other."""
    raw = parts.raw
    start, stop = parts.spans.get(HEADERS, (-_SIZE.size, 0))
    start += _SIZE.size
    # A name that is nowhere in the octets is not among the headers either.
    if not any(name in raw for names in (drop, drop_numbers) for name in names):
        return raw[start:stop]
    kept: list[bytes] = []
    for name, first, end in parts.headers():
        is_number = raw[first + 1 + len(name)] in _WHOLE
        if name not in drop and not (is_number and name in drop_numbers):
            kept.append(raw[first:end])
    return b"".join(kept)


def header(name: str, text: str) -> bytes:
    """A header that holds a text, encoded.

    Raises:
        ValueError: the name is longer than 255 octets.
    """
    key, value = name.encode(), text.encode()
    if len(key) > 255:
        raise ValueError(f"a header's name of {len(key)} octets")
    return b"".join((bytes((len(key),)), key, b"S", _SIZE.pack(len(value)), value))


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))
