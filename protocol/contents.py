"""A stored content: its property block, and the notes that the broker keeps behind its frames.

A content is kept as received: header frame and body frames. What the broker itself must remember
about a message, and never shows to anybody, stands behind them in a frame of a type that no
client can send. Such a content has channel 0 in its header frame, so that whoever writes contents
out takes the slow way, which leaves the notes behind (`runs.content_pieces`).

Notes are a row of entries: kind octet, u16 length, octets.
"""

from __future__ import annotations

from functools import lru_cache, wraps
from struct import Struct
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from vouchmq.protocol.properties import EXAMINE, classify, with_normalized_headers
from vouchmq.protocol.runs import NOTES_FRAME, PROPERTIES_AT, SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# Where in a raw content the high octet of the property flags stands, and which bit says that
# there is an expiration, a priority, a headers table.
HAS_EXPIRATION: Final = (PROPERTIES_AT, 0x01)
HAS_PRIORITY: Final = (PROPERTIES_AT, 0x08)
HAS_HEADERS: Final = (PROPERTIES_AT, 0x20)

# Kinds of notes.
DEATH: Final = 1  # reason and queue of a death, newest first (DLX-21)
BLIND_COPY: Final = 2  # a routing key of the BCC header, which is gone (DLX-06)

LONGEST_NOTE_OCTETS: Final = 0xFFFF

Note = tuple[int, bytes]

_ENTRY: Final = Struct(">BH")
_NO_CHANNEL: Final = b"\x02\x00\x00"


# Of larger property blocks nothing is remembered: some thousand of them are much memory.
REMEMBERED_OCTETS: Final = 1024
REMEMBERED: Final = 4096

P = ParamSpec("P")
R = TypeVar("R")


def remembered(
    function: Callable[Concatenate[bytes, P], R], most: int = REMEMBERED
) -> Callable[Concatenate[bytes, P], R]:
    """Remember what was found in small property blocks, of which many are the same.

    Args:
        function: looks at a property block
        most: so many blocks; fewer where what is found is much, or is seen by the collector
    """
    looked_up = lru_cache(maxsize=most)(function)

    @wraps(function)
    def found(block: bytes, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if len(block) > REMEMBERED_OCTETS:
            return function(block, *args, **kwargs)
        return looked_up(block, *args, **kwargs)  # type: ignore[arg-type]

    return found


def property_block(raw: bytes) -> bytes:
    """The property part of a raw content."""
    return raw[PROPERTIES_AT : 7 + SIZE.unpack_from(raw, 3)[0]]


def runs_of_alike(raws: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Contents that follow each other and have the same properties, together."""
    alike: list[bytes] = []
    block = b""
    for raw in raws:
        # A block says itself where it ends: one that begins like another is the same.
        if alike and raw.startswith(block, PROPERTIES_AT):
            alike.append(raw)
            continue
        if alike:
            yield alike
        alike = [raw]
        block = property_block(raw)
    if alike:
        yield alike


def with_properties(raw: bytes, block: bytes) -> bytes:
    """The same content with another property block."""
    header_end = 7 + SIZE.unpack_from(raw, 3)[0]
    size = SIZE.pack(len(block) + 12)
    return b"".join((raw[:3], size, raw[7:PROPERTIES_AT], block, raw[header_end:]))


def made_alike(old: bytes, new: bytes, raws: Iterable[bytes]) -> list[bytes]:
    """Make of contents what was made of `old`: other properties, and notes.

    All have the properties of `old`, and neither it nor they have notes.
    """
    header_end = 7 + SIZE.unpack_from(old, 3)[0]
    size, block, notes = new[3:7], property_block(new), new[_notes_at(new) :]
    channel = b"" if new[1] or new[2] else _NO_CHANNEL
    # Most have bodies of one size: then they are alike up to the body.
    front = old[:PROPERTIES_AT]
    lead = b"".join((channel or old[:3], size, old[7:PROPERTIES_AT], block))
    return [
        b"".join((lead, raw[header_end:], notes))
        if raw.startswith(front)
        else b"".join(
            (channel or raw[:3], size, raw[7:PROPERTIES_AT], block, raw[header_end:], notes)
        )
        for raw in raws
    ]


def with_readable_headers(raws: Sequence[bytes]) -> Sequence[bytes]:
    """Stored contents as this version stores them; the same object if all are.

    Spec: FRAME-59
    """
    at, bit = HAS_HEADERS
    made: list[bytes] | None = None
    for place, raw in enumerate(raws):
        if raw[at] & bit:
            block = property_block(raw)
            if classify(block) & EXAMINE:
                readable = with_normalized_headers(block, refuses=False)
                if readable is not block:
                    made = list(raws) if made is None else made
                    made[place] = with_properties(raw, readable)
    return raws if made is None else made


def notes_of(raw: bytes) -> list[Note]:
    """What the broker has noted behind a content."""
    at = _notes_at(raw)
    if at == len(raw):
        return []
    notes: list[Note] = []
    at, end = at + 7, len(raw) - 1
    while at < end:
        kind, size = _ENTRY.unpack_from(raw, at)
        at += _ENTRY.size
        notes.append((kind, raw[at : at + size]))
        at += size
    return notes


def with_notes(raw: bytes, notes: list[Note]) -> bytes:
    """The same content with these notes instead of its own."""
    frames = raw[3 : _notes_at(raw)]
    if not notes:
        return _NO_CHANNEL + frames
    payload = b"".join(_ENTRY.pack(kind, len(octets)) + octets for kind, octets in notes)
    head = bytes((NOTES_FRAME, 0, 0)) + SIZE.pack(len(payload))
    return b"".join((_NO_CHANNEL, frames, head, payload, b"\xce"))


def _notes_at(raw: bytes) -> int:
    """Where the notes begin; the end of the content when there are none."""
    if raw[1] or raw[2]:
        return len(raw)
    at, end = 8 + int(SIZE.unpack_from(raw, 3)[0]), len(raw)
    while at < end and raw[at] != NOTES_FRAME:
        at += 8 + int(SIZE.unpack_from(raw, at + 3)[0])
    return at
