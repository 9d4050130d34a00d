"""Where the 14 basic properties stand in a content header: their order, flags and widths.

Everything of ours that reads or writes property blocks takes them from here: the broker, the bulk
client, the Spark source and sink. Knows octets only, neither what a property means nor which error
a block that is cut short is: `IndexError` and `struct.error` say so, and the caller puts it in the
words of its own users.

Three walks are not `walk`, because each is on the path of every message and would be slower by it:
`properties.classify`, which keeps nothing; `spark/properties.py`, which writes each value into its
column on the way; and `spark/sink/property_edit.py` where it looks for the last header only.

Spec: FRAME-36, FRAME-40
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

SHORTSTR: Final = 0
TABLE: Final = 1
OCTET: Final = 2
TIMESTAMP: Final = 3

# In the order of their flags, from bit 15 down to bit 2.
PROPERTIES: Final = (
    ("content_type", SHORTSTR),
    ("content_encoding", SHORTSTR),
    ("headers", TABLE),
    ("delivery_mode", OCTET),
    ("priority", OCTET),
    ("correlation_id", SHORTSTR),
    ("reply_to", SHORTSTR),
    ("expiration", SHORTSTR),
    ("message_id", SHORTSTR),
    ("timestamp", TIMESTAMP),
    ("type", SHORTSTR),
    ("user_id", SHORTSTR),
    ("app_id", SHORTSTR),
    ("cluster_id", SHORTSTR),
)
FLAG_OF: Final = {name: 0x8000 >> number for number, (name, _) in enumerate(PROPERTIES)}
# Bit 0 announces a second word of flags; bit 1 is reserved. Neither has a property.
CONTINUATION_FLAG: Final = 0x0001
RESERVED_FLAGS: Final = 0x0003

FLAGS: Final = struct.Struct(">H")
LENGTH: Final = struct.Struct(">I")
TIMESTAMP_VALUE: Final = struct.Struct(">Q")

# The flag of a property and where it stands, the length of a text or table included.
Spans = dict[int, tuple[int, int]]


@lru_cache(maxsize=1024)
def properties_of(flags: int) -> tuple[tuple[int, int], ...]:
    """(flag, kind) of the properties that are there, in their order."""
    return tuple((FLAG_OF[name], kind) for name, kind in PROPERTIES if flags & FLAG_OF[name])


def walk(block: bytes) -> tuple[int, Spans, int]:
    """The flags of a block, where each property stands, and where the last one ends.

    The end may lie behind the block, or before its end: the caller compares them. Values are not
    looked at, nor are flags without a property.

    Raises:
        IndexError, struct.error: the block ends before a length that it must have
    """
    flags: int = FLAGS.unpack_from(block)[0]
    at = FLAGS.size
    spans: Spans = {}
    for flag, kind in properties_of(flags):
        if kind == SHORTSTR:
            end = at + 1 + block[at]
        elif kind == OCTET:
            end = at + 1
        elif kind == TABLE:
            end = at + LENGTH.size + int(LENGTH.unpack_from(block, at)[0])
        else:
            end = at + TIMESTAMP_VALUE.size
        spans[flag] = (at, end)
        at = end
    return flags, spans, at
