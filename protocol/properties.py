"""Content properties over raw octets: judged on arrival, decoded on demand, edited in place.

A *block* is the property part of a content header: 2 octets of flags, then the values of the
properties whose flag is set, in the order of the flags. The broker keeps and relays blocks as it
got them; most messages are never decoded at all.

Must not know what a property makes the broker do. `classify` only says whether a message has any
that needs thought, so that all others can travel in runs.

Spec: FRAME-36, FRAME-40, FRAME-53
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn

from mypy_extensions import i64

from vouchmq.protocol import native
from vouchmq.protocol.constants import BASIC_PUBLISH, DIRECT_REPLY_TO, PERSISTENT_DELIVERY_MODE
from vouchmq.protocol.errors import FrameError, cannot_decode
from vouchmq.protocol.fields import (
    NO_WIDTH,
    PLAIN_WIDTH_OF,
    Table,
    decode_field,
    decode_table,
    encode_shortstr,
    encode_table,
)
from vouchmq.protocol.native import long_at
from vouchmq.protocol.normalized import normalized, value_end
from vouchmq.protocol.property_layout import (
    CONTINUATION_FLAG,
    FLAG_OF,
    FLAGS,
    LENGTH,
    TIMESTAMP_VALUE,
    Spans,
    walk,
)
from vouchmq.protocol.text import decode_text

# Bits of a message's mode, as `classify` gives it.
PERSISTENT: Final = 1
EXAMINE: Final = 2
HEADERS: Final = 4

_CONTENT_TYPE: Final = FLAG_OF["content_type"]
_CONTENT_ENCODING: Final = FLAG_OF["content_encoding"]
_HEADERS: Final = FLAG_OF["headers"]
_DELIVERY_MODE: Final = FLAG_OF["delivery_mode"]
_PRIORITY: Final = FLAG_OF["priority"]
_CORRELATION_ID: Final = FLAG_OF["correlation_id"]
_REPLY_TO: Final = FLAG_OF["reply_to"]
_EXPIRATION: Final = FLAG_OF["expiration"]
_MESSAGE_ID: Final = FLAG_OF["message_id"]
_TIMESTAMP: Final = FLAG_OF["timestamp"]
_TYPE: Final = FLAG_OF["type"]
_USER_ID: Final = FLAG_OF["user_id"]
_APP_ID: Final = FLAG_OF["app_id"]
_CLUSTER_ID: Final = FLAG_OF["cluster_id"]

_EXAMINED_FLAGS: Final = _EXPIRATION | _USER_ID
_TAIL: Final = _MESSAGE_ID | _TIMESTAMP | _TYPE | _USER_ID | _APP_ID | _CLUSTER_ID
# Interpreted, a smaller table is read as fast as it is looked up; a larger one is not kept.
_REMEMBERED: Final = range(100, 1025)
_TEXT: Final = 0x53
_BOOL: Final = 0x74
_ASCII_B: Final = 0x42
_ASCII_C: Final = 0x43
_DIRECT_REPLY_TO: Final = encode_shortstr(DIRECT_REPLY_TO)
_ADDRESS_OCTETS: Final = len(DIRECT_REPLY_TO)


def _refuse(block: bytes) -> NoReturn:
    raise cannot_decode(block, BASIC_PUBLISH)


def classify(block: bytes) -> int:
    """The mode of a message, after every length in its property block has been checked.

    PERSISTENT: delivery-mode is 2. HEADERS: there is a headers table. EXAMINE: there is an
    expiration, a user-id, a CC or BCC header, the direct reply-to address, or a header that is to
    be normalized or refused.

    Raises:
        FrameError: 501, ids 60,40.

    Spec: FRAME-36, FRAME-40
    """
    mode = classify_at(block, 0, len(block), native.IS_NATIVE)
    if mode < 0:
        _refuse(block)
    return mode


def classify_at(  # noqa: C901 - straight-line for speed
    data: bytes, offset: i64, end: i64, is_native: bool
) -> i64:
    """As `classify`, of the block that stands there in `data`; -1 if it is malformed.

    On the hot path where properties differ from message to message; hence no loop, no table of
    properties, no object. A headers table is walked to its last field, so that none which cannot
    be read is ever stored. No step is checked for passing the end: offsets only grow, and the last
    one is compared with it.
    """
    try:
        flags: i64 = data[offset]
        low: i64 = data[offset + 1]
        flags = flags << 8 | low
        offset += 2
        mode: i64 = EXAMINE if flags & _EXAMINED_FLAGS else 0
        if flags & _CONTENT_TYPE:
            offset += 1 + data[offset]
        if flags & _CONTENT_ENCODING:
            offset += 1 + data[offset]
        if flags & _HEADERS:
            start: i64 = offset + LENGTH.size
            if is_native:
                offset = start + long_at(data, offset)
            else:
                offset = start + LENGTH.unpack_from(data, offset)[0]
            if offset > end:
                return -1
            if is_native or offset - start not in _REMEMBERED:
                found = _look_for_copies(data, start, offset, is_native)
            else:
                found = _remembers_copies(data[start:offset])
            if found < 0:
                return -1
            mode |= HEADERS | found
        if flags & _DELIVERY_MODE:
            if data[offset] == PERSISTENT_DELIVERY_MODE:
                mode |= PERSISTENT
            offset += 1
        if flags & _PRIORITY:
            offset += 1
        if flags & _CORRELATION_ID:
            offset += 1 + data[offset]
        if flags & _REPLY_TO:
            octets: i64 = data[offset]
            if octets == _ADDRESS_OCTETS and data.startswith(_DIRECT_REPLY_TO, offset):
                mode |= EXAMINE
            offset += 1 + octets
        if flags & _EXPIRATION:
            offset += 1 + data[offset]
        if flags & _TAIL:
            offset = _skip_tail(data, offset, flags)
    except (IndexError, struct.error):
        return -1
    return -1 if offset != end or flags & CONTINUATION_FLAG else mode


def _skip_tail(data: bytes, offset: i64, flags: i64) -> i64:
    """The offset behind message-id … cluster-id, properties whose values do not matter."""
    if flags & _MESSAGE_ID:
        offset += 1 + data[offset]
    if flags & _TIMESTAMP:
        offset += 8
    if flags & _TYPE:
        offset += 1 + data[offset]
    if flags & _USER_ID:
        offset += 1 + data[offset]
    if flags & _APP_ID:
        offset += 1 + data[offset]
    if flags & _CLUSTER_ID:
        offset += 1 + data[offset]
    return offset


def _look_for_copies(data: bytes, offset: i64, end: i64, is_native: bool) -> i64:
    """EXAMINE if the table without its length that stands there has CC or BCC (PUB-10).

    Also if it has a value that is to be normalized or refused (FRAME-59); else 0. -1 if it is
    malformed: it is judged as `decode_table` does it, but nothing is decoded.

    Raises:
        IndexError, struct.error: a length reaches past all octets
    """
    found: i64 = 0
    while offset < end:
        octets: i64 = data[offset]
        at: i64 = offset + 1 + octets
        if at >= end:
            return -1
        # "CC" or "BCC", as a whole.
        if (
            2 <= octets <= 3
            and data[at - 1] == _ASCII_C
            and data[at - 2] == _ASCII_C
            and (octets == 2 or data[at - 3] == _ASCII_B)
        ):
            found = EXAMINE
        kind: i64 = data[at]
        width: i64 = PLAIN_WIDTH_OF[kind]
        if kind == _TEXT and is_native:
            offset = at + 5 + long_at(data, at + 1)
        elif kind == _TEXT:
            offset = at + 5 + LENGTH.unpack_from(data, at + 1)[0]
        elif width != NO_WIDTH:
            offset = at + 1 + width
        elif kind == _BOOL:
            offset = at + 2
            if data[at + 1] > 1:
                found = EXAMINE
        else:
            after = value_end(data, at, end, 0)
            if after < 0:
                return -1
            if after & 1:
                found = EXAMINE
            offset = after >> 1
        if offset > end:
            return -1
    return found


@lru_cache(maxsize=1024)
def _remembers_copies(table: bytes) -> int:
    """The same of a whole table."""
    return _look_for_copies(table, 0, len(table), is_native=False)


def _spans(block: bytes) -> Spans:
    """Where the octets of each property are, length included: {flag: (start, end)}.

    Raises:
        FrameError: 501, ids 60,40.
    """
    try:
        flags, spans, end = walk(block)
    except (IndexError, struct.error):
        _refuse(block)
    # Bit 1 is reserved and ignored; bit 0 announces more flags, of which there are none (FRAME-40).
    if end != len(block) or flags & CONTINUATION_FLAG:
        _refuse(block)
    return spans


class Properties:
    """The 14 properties of one block; each is decoded when it is asked for.

    A property that is not there is None. Texts are `str` with surrogate escapes.

    Raises:
        FrameError: 501, ids 60,40, on construction as `classify`; the headers table is only
            decoded, and hence only judged, by `headers`.
    """

    __slots__ = ("_block", "_headers", "_spans")

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._spans = _spans(block)
        self._headers: Table | None = None

    def _text(self, flag: int) -> str | None:
        span = self._spans.get(flag)
        return None if span is None else decode_text(self._block[span[0] + 1 : span[1]])

    def _octet(self, flag: int) -> int | None:
        span = self._spans.get(flag)
        return None if span is None else self._block[span[0]]

    @property
    def content_type(self) -> str | None:
        """MIME type of the body; opaque to the broker."""
        return self._text(_CONTENT_TYPE)

    @property
    def content_encoding(self) -> str | None:
        """Encoding of the body; opaque to the broker."""
        return self._text(_CONTENT_ENCODING)

    @property
    def headers(self) -> Table | None:
        """The headers table with its types; the same object every time.

        Raises:
            FrameError: 501, ids 60,40, it is no valid table.
        """
        span = self._spans.get(_HEADERS)
        if self._headers is None and span is not None:
            try:
                self._headers = decode_table(self._block[span[0] + 4 : span[1]])
            except FrameError:
                _refuse(self._block)
        return self._headers

    @property
    def delivery_mode(self) -> int | None:
        """2 is persistent, anything else transient; 0…255."""
        return self._octet(_DELIVERY_MODE)

    @property
    def priority(self) -> int | None:
        """The message's priority, 0 to 255; None when there is none."""
        return self._octet(_PRIORITY)

    @property
    def correlation_id(self) -> str | None:
        """What a reply belongs to; opaque to the broker."""
        return self._text(_CORRELATION_ID)

    @property
    def reply_to(self) -> str | None:
        """The queue, or address, to which the consumer is to reply."""
        return self._text(_REPLY_TO)

    @property
    def expiration(self) -> str | None:
        """Time to live in milliseconds, as text and unchecked."""
        return self._text(_EXPIRATION)

    @property
    def message_id(self) -> str | None:
        """The application's id of the message."""
        return self._text(_MESSAGE_ID)

    @property
    def timestamp(self) -> int | None:
        """Seconds since 1970, unsigned 64 bits, unchecked."""
        span = self._spans.get(_TIMESTAMP)
        return None if span is None else int(TIMESTAMP_VALUE.unpack_from(self._block, span[0])[0])

    @property
    def type(self) -> str | None:
        """The application's type of the message."""
        return self._text(_TYPE)

    @property
    def user_id(self) -> str | None:
        """Who claims to have published it; unchecked."""
        return self._text(_USER_ID)

    @property
    def app_id(self) -> str | None:
        """The name of the application that published the message."""
        return self._text(_APP_ID)

    @property
    def cluster_id(self) -> str | None:
        """Deprecated in AMQP 0-9-1; relayed unchanged."""
        return self._text(_CLUSTER_ID)


def with_normalized_headers(block: bytes, *, refuses: bool = True) -> bytes:
    """`block` with each header in the form that every client reads, in place.

    Raises:
        FrameError: 501, ids 60,40.
        InternalError: 541, a float is infinite or no number; left as it is unless `refuses`

    Spec: FRAME-59
    """
    span = _spans(block).get(_HEADERS)
    if span is None:
        return block
    return normalized(block, span[0] + 4, span[1], refuses=refuses)


def without_headers(block: bytes, keys: set[str] | frozenset[str]) -> bytes:
    """`block` without the headers named in `keys`, duplicates included; the rest bit for bit.

    A headers table that becomes empty stays, as it does in RabbitMQ.

    Raises:
        FrameError: 501, ids 60,40.

    Spec: FRAME-53
    """
    span = _spans(block).get(_HEADERS)
    if span is None:
        return block
    offset, end = span[0] + 4, span[1]
    kept: list[bytes] = []
    try:
        while offset < end:
            start = offset
            value_at = start + 1 + block[start]
            _, offset = decode_field(block, value_at, end)
            if decode_text(block[start + 1 : value_at]) not in keys:
                kept.append(block[start:offset])
    except FrameError:
        _refuse(block)
    body = b"".join(kept)
    return block[: span[0]] + LENGTH.pack(len(body)) + body + block[end:]


def with_headers(block: bytes, headers: Table, *, without: frozenset[str] | set[str]) -> bytes:
    """`block` with some headers removed and others added behind the rest, which stays bit for bit.

    Raises:
        FrameError: 501, ids 60,40.

    Spec: FRAME-53
    """
    cleared = without_headers(block, without | set(headers))
    return with_entries(cleared, encode_table(headers)[4:])


def with_entries(block: bytes, entries: bytes) -> bytes:
    """`block` with encoded headers added behind those that it has.

    Raises:
        FrameError: 501, ids 60,40.
    """
    span = _spans(block).get(_HEADERS)
    body = block[span[0] + 4 : span[1]] + entries if span is not None else entries
    return _with_value(block, _HEADERS, LENGTH.pack(len(body)) + body)


def without_expiration(block: bytes) -> bytes:
    """`block` without the expiration property; the rest bit for bit.

    Raises:
        FrameError: 501, ids 60,40.

    Spec: DLX-15
    """
    span = _spans(block).get(_EXPIRATION)
    if span is None:
        return block
    flags = FLAGS.unpack_from(block)[0] & ~_EXPIRATION
    return FLAGS.pack(flags) + block[2 : span[0]] + block[span[1] :]


def with_reply_to(block: bytes, reply_to: str) -> bytes:
    """`block` with its reply-to set, whether it had one or not; the rest bit for bit.

    Raises:
        FrameError: 501, ids 60,40.

    Spec: FRAME-53
    """
    return _with_value(block, _REPLY_TO, encode_shortstr(reply_to))


def _with_value(block: bytes, flag: int, octets: bytes) -> bytes:
    spans = _spans(block)
    if flag in spans:
        start, end = spans[flag]
    else:
        # Behind the last property that comes before it; a higher flag comes first.
        start = end = max((s[1] for before, s in spans.items() if before > flag), default=2)
    flags = FLAGS.unpack_from(block)[0] | flag
    return FLAGS.pack(flags) + block[2:start] + octets + block[end:]


class HeaderSpot(NamedTuple):
    """Where in a property block the headers table is, or would be: its length octets first."""

    is_there: bool
    start: int
    end: int

    def taken_from(self, block: bytes) -> tuple[bytes, bytes, bytes]:
        """The flags with that of the headers set, what stands before the table, and its entries."""
        flags = FLAGS.pack(FLAGS.unpack_from(block)[0] | _HEADERS)
        entries = block[self.start + 4 : self.end] if self.is_there else b""
        return flags, block[2 : self.start], entries


def header_spot(block: bytes) -> HeaderSpot:
    """Find the headers table of a block.

    Raises:
        FrameError: 501, ids 60,40.
    """
    spans = _spans(block)
    if _HEADERS in spans:
        return HeaderSpot(True, *spans[_HEADERS])
    # Behind the content type and encoding, which have the higher flags.
    at = max((span[1] for flag, span in spans.items() if flag > _HEADERS), default=2)
    return HeaderSpot(False, at, at)
