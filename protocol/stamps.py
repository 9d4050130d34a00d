"""Numbers that a consumer is shown among a content's headers: put in without touching the rest.

A content is kept as received. Who is to see headers that the broker adds (where a message stands
in its stream, say) gets a copy with them behind the publisher's own, which stay bit for bit. Most
contents in a row begin with the same octets up to the end of their headers, so that what has been
worked out for one is a look for the next.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from vouchmq.protocol.contents import property_block
from vouchmq.protocol.fields import encode_shortstr
from vouchmq.protocol.properties import header_spot, without_headers
from vouchmq.protocol.runs import PROPERTIES_AT, SIZE

# What no content begins with.
_NOTHING: Final = b"\xff"


class Stamp:
    """Adds int64 headers of fixed names.

    Args:
        names: of the headers; the publisher's own of these names are left out
    """

    __slots__ = ("_at", "_keys", "_known", "_lead", "_names", "_pack")

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)
        self._keys = tuple(encode_shortstr(name) + b"l" for name in names)
        self._pack = Struct(">" + "".join(f"{len(key)}sq" for key in self._keys)).pack
        self._known = _NOTHING
        self._lead = b""
        self._at = 0

    def on(self, raw: bytes, *values: int) -> bytes:
        """The content with a value for each name among its headers.

        Raises:
            FrameError: 501, its properties are none.
        """
        if not raw.startswith(self._known):
            self._learn(raw)
        keys = self._keys
        if len(keys) == 1:
            entries = self._pack(keys[0], *values)
        else:
            entries = self._pack(
                *(part for pair in zip(keys, values, strict=True) for part in pair)
            )
        return b"".join((self._lead, entries, raw[self._at :]))

    def _learn(self, raw: bytes) -> None:
        """Work out what stands before the added headers, and where the rest goes on."""
        block = property_block(raw)
        spot = header_spot(block)
        if any(key[:-1] in block for key in self._keys):
            # One of them may be there already, perhaps only within a text.
            cleared = without_headers(block, self._names)
        else:
            cleared = block
        flags, before, table = header_spot(cleared).taken_from(cleared)
        more = sum(len(key) + 8 for key in self._keys)
        size = SIZE.unpack_from(raw, 3)[0] + len(cleared) - len(block) + more
        size += 0 if spot.is_there else SIZE.size
        self._lead = b"".join(
            (
                raw[:3],
                SIZE.pack(size),
                raw[7:PROPERTIES_AT],
                flags,
                before,
                SIZE.pack(len(table) + more),
                table,
            )
        )
        self._at = PROPERTIES_AT + spot.end
        self._known = raw[: self._at]
