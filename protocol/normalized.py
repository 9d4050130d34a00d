"""Header values that some clients cannot read: found on arrival, and written anew in place.

A value leaves in the form in which RabbitMQ writes it, where another form means the same: `L` is
the same integer as `l`, and any bool but 0 is 1. A float that is infinite or no number has no
other form, and there are clients that lose their connection over it: nobody may publish one.
All else is relayed as it came (FRAME-53).

Spec: FRAME-59
"""

from __future__ import annotations

import struct
from typing import Final

from mypy_extensions import i64

from vouchmq.protocol.constants import MAX_TABLE_DEPTH, NO_IDS
from vouchmq.protocol.errors import InternalError
from vouchmq.protocol.fields import NO_WIDTH, WIDTH_OF

_LENGTH: Final = struct.Struct(">I")
_BOOL: Final = 0x74
_LONG: Final = 0x6C
_OTHER_LONG: Final = 0x4C
_FLOAT: Final = 0x66
_DOUBLE: Final = 0x64
_TEXT: Final = 0x53
_BYTES: Final = 0x78
_TABLE: Final = 0x46
_ARRAY: Final = 0x41


def value_end(data: bytes, at: i64, end: i64, depth: i64) -> i64:
    """Judge the value whose type octet stands at `at`, as `fields.decode_field` does it.

    Returns:
        twice the offset behind it, and 1 more if there is a value in it that is to be normalized
        or refused; -1 if it is malformed

    Raises:
        IndexError, struct.error: a length reaches past all octets
    """
    if at >= end:
        return -1
    kind: i64 = data[at]
    at += 1
    width: i64 = WIDTH_OF[kind]
    after: i64
    if width != NO_WIDTH:
        after = at + width
        if after > end:
            return -1
        return after << 1 | _is_odd(data, at, kind)
    if kind not in {_TEXT, _BYTES, _TABLE, _ARRAY} or at + 4 > end:
        return -1
    size: i64 = _LENGTH.unpack_from(data, at)[0]
    at += 4
    after = at + size
    if after > end:
        return -1
    if kind in {_TEXT, _BYTES}:
        return after << 1
    depth += 1
    if depth > MAX_TABLE_DEPTH:
        return -1
    is_odd: i64 = 0
    while at < after:
        if kind == _TABLE:
            at += 1 + data[at]
        found = value_end(data, at, after, depth)
        if found < 0:
            return -1
        is_odd |= found & 1
        at = found >> 1
    return after << 1 | is_odd


def _is_odd(data: bytes, at: i64, kind: i64) -> i64:
    """Whether a value of fixed width is one that is not relayed: 1 or 0."""
    if kind == _OTHER_LONG:
        return 1
    if kind == _BOOL:
        return 1 if data[at] > 1 else 0
    # All bits of the exponent are set.
    if kind == _DOUBLE:
        return 1 if data[at] & 0x7F == 0x7F and data[at + 1] >= 0xF0 else 0
    if kind == _FLOAT:
        return 1 if data[at] & 0x7F == 0x7F and data[at + 1] >= 0x80 else 0
    return 0


def normalized(block: bytes, start: int, end: int, *, refuses: bool = True) -> bytes:
    """A property block whose headers stand from `start` to `end`, with all values normalized.

    The headers are known to be well-formed. The same object when nothing changes.

    Raises:
        InternalError: 541, a float is infinite or no number; left as it is unless `refuses`

    Spec: FRAME-59
    """
    made = bytearray(block)
    if _normalize(made, block, start, end, is_table=True) and refuses:
        text = "a float in the headers is infinite or no number"
        raise InternalError(text, NO_IDS)
    return block if made == block else bytes(made)


def _normalize(made: bytearray, block: bytes, at: int, end: int, *, is_table: bool) -> bool:
    """Normalize a table or array; whether it has what nothing can be made of."""
    is_hopeless = False
    while at < end:
        if is_table:
            at += 1 + block[at]
        kind = block[at]
        if kind in {_TABLE, _ARRAY}:
            start = at + 5
            after = start + int(_LENGTH.unpack_from(block, at + 1)[0])
            is_hopeless |= _normalize(made, block, start, after, is_table=kind == _TABLE)
        else:
            after = int(value_end(block, at, end, 0)) >> 1
            if kind == _OTHER_LONG:
                made[at] = _LONG
            elif kind == _BOOL:
                made[at + 1] = 1 if block[at + 1] else 0
            elif _is_odd(block, at + 1, kind):
                is_hopeless = True
        at = after
    return is_hopeless
