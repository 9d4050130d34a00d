"""The seam of the hot path: runs of publishes, runs of acks, runs of deliveries.

Bytes go in, lists and bytes come out; no broker object is known here, so that a compiled twin
of these functions could stand in their place and be held against the same test vectors.

A *run* is what stands together on the wire: consecutive publishes whose `basic.publish` frame
is byte for byte the same, consecutive acks, consecutive deliveries to one consumer. What is
paid here is paid once a run wherever that can be done. Publishes with keys that change are taken
together, too; whoever routes them finds out which of them go the same way.

A content is kept as received, *raw*: its header frame and body frames, octet for octet. A
message is a tuple of atoms `(raw, tail, seq, arrived_ms)`, see `server/broker/message.py`.

Nothing here judges a malformed frame. Whatever is not plainly right ends the run, and the
reader's frame-by-frame way finds the exact error.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from mypy_extensions import i64

from vouchmq.protocol import native
from vouchmq.protocol.native import long_at, short_at
from vouchmq.protocol.properties import classify, classify_at

Message = tuple[bytes, bytes, int, int]
Piece = bytes | memoryview

CONTENT_HEADER: Final = Struct(">BHIHHQ")
FRAME_HEADER: Final = Struct(">BHI")
ACK: Final = Struct(">11sQBB")
# The same two with class and method, or class and weight, as one number; a body size above all
# limits may be below zero.
METHOD_HEADER: Final = Struct(">BHII")
HEADER_AND_IDS: Final = Struct(">BHIIq")
TAG: Final = Struct(">Q")
OCTETS: Final = [bytes((octet,)) for octet in range(256)]
SIZE: Final = Struct(">I")

FRAME_END: Final = 0xCE
BASIC_CLASS: Final = 60
HEAD_OCTETS: Final = 7
ACK_FRAME_OCTETS: Final = 21
# Where in it the delivery tag begins.
TAG_AT: Final = 11
PUBLISH_METHOD: Final = b"\x00\x3c\x00\x28"
PUBLISH_IDS: Final = 0x003C_0028
CONTENT_IDS: Final = 0x003C_0000
# Up to class and method, and up to the property block.
LEAST_METHOD_OCTETS: Final = 11
CONTENT_HEADER_OCTETS: Final = 19
# Publishes that are not alike are taken so many at a time: the time they take is looked at behind.
UNLIKE_PUBLISHES: Final = 128
# So many with the same method frame in a row are a run again.
ALIKE_PUBLISHES: Final = 8
# Frame header 7, class and weight 4, body size 8: what stands before the property block.
PROPERTIES_AT: Final = 19
# A frame of this type stands behind a content for the broker alone, see `contents.py`.
NOTES_FRAME: Final = 0xF7
SMALLEST_CONTENT_HEADER: Final = 14
DELIVER_METHOD: Final = b"\x00\x3c\x00\x3c"

# Property blocks repeat: most publishers send the same one for ever. Those with a message-id
# or a timestamp do not, so what is remembered is bounded and simply forgotten when full.
MODES_KEPT: Final = 2048


def parse_publishes(
    data: bytes, begin: int, key: bytes, limits: tuple[int, int], modes: dict[bytes, int]
) -> tuple[int, list[bytes], int, int]:
    """Walk the publishes at `begin` whose method frame is `key`, as far as they are whole.

    Args:
        data: received octets
        begin: where the first method frame of the run is
        key: that whole method frame
        limits: largest frame payload and largest body, in octets
        modes: remembered `classify` answers by property block; filled here, unless numbers are
            read natively, when looking one up costs more than classifying it anew

    Returns:
        where the run ends, the raw contents, their common mode (bits of `properties.classify`)
        and the octets of the largest raw content. No contents: the caller goes frame by frame.
    """
    startswith = data.startswith
    is_native = native.IS_NATIVE
    pos: i64 = begin
    key_octets: i64 = len(key)
    end: i64 = len(data)
    channel = short_at(key, 1)
    raws: list[bytes] = []
    run_mode: i64 = -2  # none yet; -1 is what malformed properties give
    largest: i64 = 0
    while startswith(key, pos):
        at: i64 = pos + key_octets
        body_at, stop = content_end(data, at, channel, limits, is_native)
        if not stop:
            break
        if is_native:
            mode = classify_at(data, at + PROPERTIES_AT, body_at - 1, is_native)
        else:
            mode = mode_of(data[at + PROPERTIES_AT : body_at - 1], modes)
        if mode != run_mode:
            if run_mode >= 0 or mode < 0:
                break
            run_mode = mode
        guess = data[pos : body_at + HEAD_OCTETS if stop > body_at else body_at]
        whole = stop - pos
        if whole > largest:
            largest = whole
        raws.append(data[at:stop])
        pos = stop
        # Up to the body the next message is most often the same as this one, to the octet:
        # then nothing is left to check but its end.
        stop = pos + whole
        while stop <= end and startswith(guess, pos) and data[stop - 1] == FRAME_END:
            raws.append(data[pos + key_octets : stop])
            pos = stop
            stop += whole
    return pos, raws, run_mode, largest - key_octets if raws else 0


def parse_unlike_publishes(
    data: bytes, begin: int, limits: tuple[int, int], modes: dict[bytes, int]
) -> tuple[int, list[bytes], list[bytes], list[int], int]:
    """Walk whole publishes on the channel of the method frame at `begin`, whatever keys they have.

    Args: as of `parse_publishes`

    Returns:
        where they end; of each the whole method frame, the raw content and the mode; the octets of
        the largest raw content. No contents: the caller goes frame by frame.
    """
    is_native = native.IS_NATIVE
    pos: i64 = begin
    end: i64 = len(data)
    channel = short_at(data, pos + 1)
    keys: list[bytes] = []
    raws: list[bytes] = []
    found: list[int] = []
    largest: i64 = 0
    alike: i64 = 0
    last_mode: i64 = -2  # none yet
    while end - pos >= LEAST_METHOD_OCTETS and len(keys) < UNLIKE_PUBLISHES:
        if is_native:
            kind: i64 = data[pos]
            number = short_at(data, pos + 1)
            size = long_at(data, pos + 3)
            ids = long_at(data, pos + HEAD_OCTETS)
        else:
            kind, number, size, ids = METHOD_HEADER.unpack_from(data, pos)
        at: i64 = pos + 8 + size
        if kind != 1 or number != channel or ids != PUBLISH_IDS or at > end:
            break
        body_at, stop = content_end(data, at, channel, limits, is_native)
        if not stop or data[at - 1] != FRAME_END:
            break
        if is_native:
            mode = classify_at(data, at + PROPERTIES_AT, body_at - 1, is_native)
        else:
            mode = mode_of(data[at + PROPERTIES_AT : body_at - 1], modes)
        key = data[pos:at]
        alike = alike + 1 if mode == last_mode and key == keys[-1] else 0
        if mode < 0 or alike == ALIKE_PUBLISHES:
            break
        last_mode = mode
        keys.append(key)
        raws.append(data[at:stop])
        found.append(mode)
        largest = max(largest, stop - at)
        pos = stop
    return pos, keys, raws, found, largest


def content_end(
    data: bytes, at: i64, channel: i64, limits: tuple[int, int], is_native: bool
) -> tuple[i64, i64]:
    """Where the body frame of the content at `at` begins and where the content ends.

    (0, 0) unless it is whole, plain and in one body frame at most, on that channel.
    """
    end: i64 = len(data)
    if end - at < CONTENT_HEADER_OCTETS:
        return 0, 0
    if is_native:
        kind: i64 = data[at]
        number = short_at(data, at + 1)
        size = long_at(data, at + 3)
        ids = long_at(data, at + HEAD_OCTETS)
        octets = long_at(data, at + 11) << 32 | long_at(data, at + 15)
    else:
        kind, number, size, ids, octets = HEADER_AND_IDS.unpack_from(data, at)
    most_payload: i64 = limits[0]
    most_body: i64 = limits[1]
    if (
        kind != 2
        or number != channel
        or ids != CONTENT_IDS
        or not SMALLEST_CONTENT_HEADER <= size <= most_payload
        # Read as a number with a sign.
        or not 0 <= octets <= most_payload
        or octets > most_body
    ):
        return 0, 0
    body_at: i64 = at + 8 + size
    stop: i64 = body_at + 8 + octets if octets else body_at
    if stop > end or data[body_at - 1] != FRAME_END or data[stop - 1] != FRAME_END:
        return 0, 0
    if octets:
        if is_native:
            kind = data[body_at]
            number = short_at(data, body_at + 1)
            size = long_at(data, body_at + 3)
        else:
            kind, number, size = FRAME_HEADER.unpack_from(data, body_at)
        if kind != 3 or number != channel or size != octets:
            return 0, 0
    return body_at, stop


def mode_of(block: bytes, modes: dict[bytes, int]) -> int:
    """Classify a property block, remembered; -1 when it is malformed (FRAME-36)."""
    mode = modes.get(block)
    if mode is None:
        try:
            mode = classify(block)
        except Exception:  # noqa: BLE001 - the reader's slow way raises it again, exactly
            return -1
        if len(modes) >= MODES_KEPT:
            modes.clear()
        modes[block] = mode
    return mode


def parse_acks(data: bytes, pos: int) -> tuple[int, list[tuple[int, int]]]:
    """Walk consecutive single acks (multiple not set) of one channel.

    Returns:
        where they end, and the delivery tags as ranges `(first, last)` in the order received.
    """
    if native.IS_NATIVE and data[pos + TAG_AT] < 0x80:
        return parse_small_acks(data, pos)
    lead = data[pos : pos + TAG_AT]
    count = (len(data) - pos) // ACK_FRAME_OCTETS
    ranges: list[tuple[int, int]] = []
    first = last = -1
    walked = 0
    # A view: a slice would copy the rest of the buffer for every ack that stands alone.
    frames = memoryview(data)[pos : pos + count * ACK_FRAME_OCTETS]
    for head, tag, bits, end in ACK.iter_unpack(frames):
        if head != lead or bits or end != FRAME_END:
            break
        walked += 1
        if tag == last + 1 and first >= 0:
            last = tag
            continue
        if first >= 0:
            ranges.append((first, last))
        first = last = tag
    if first >= 0:
        ranges.append((first, last))
    return pos + walked * ACK_FRAME_OCTETS, ranges


def parse_small_acks(data: bytes, begin: i64) -> tuple[int, list[tuple[int, int]]]:
    """As `parse_acks`, natively, and as far as tags are no larger than 63 bits."""
    pos: i64 = begin
    end: i64 = len(data)
    kind_and_channel = long_at(data, pos)
    size = long_at(data, pos + 3)
    ids = long_at(data, pos + HEAD_OCTETS)
    ranges: list[tuple[int, int]] = []
    first: i64 = -1
    last: i64 = -1
    while pos + ACK_FRAME_OCTETS <= end:
        high = long_at(data, pos + TAG_AT)
        if (
            long_at(data, pos + HEAD_OCTETS) != ids
            or long_at(data, pos) != kind_and_channel
            or long_at(data, pos + 3) != size
            or high >= 0x8000_0000
            or data[pos + 19]
            or data[pos + 20] != FRAME_END
        ):
            break
        tag = high << 32 | long_at(data, pos + TAG_AT + 4)
        pos += ACK_FRAME_OCTETS
        if tag == last + 1 and first >= 0:
            last = tag
            continue
        if first >= 0:
            ranges.append((first, last))
        first = last = tag
    if first >= 0:
        ranges.append((first, last))
    return pos, ranges


def parse_acks_up_to(data: bytes, begin: int) -> tuple[int, list[int]]:
    """Walk consecutive acks with multiple of one channel, as long as their tags grow.

    Returns:
        where they end, and the tags. None: the first is no such ack, or names all deliveries (0).
    """
    pos: i64 = begin
    end: i64 = len(data)
    lead = data[pos : pos + TAG_AT]
    tags: list[int] = []
    last = 0
    while (
        pos + ACK_FRAME_OCTETS <= end
        and data.startswith(lead, pos)
        and data[pos + 19] == 1
        and data[pos + 20] == FRAME_END
    ):
        tag = tag_at(data, pos + TAG_AT)
        if tag <= last:
            break
        tags.append(tag)
        last = tag
        pos += ACK_FRAME_OCTETS
    return pos, tags


def tag_at(data: bytes, at: i64) -> int:
    """The delivery tag that stands there."""
    if native.IS_NATIVE and data[at] < 0x80:
        return long_at(data, at) << 32 | long_at(data, at + 4)
    tag: int = TAG.unpack_from(data, at)[0]
    return tag


def encode_deliveries(
    messages: list[Message], tag: int, channel: bytes, consumer: bytes, limits: tuple[int, int]
) -> list[Piece]:
    """Encode deliveries to one consumer: method, header and body frames, in parts to be joined.

    Args:
        messages: in queue order, that is with growing `seq`
        tag: delivery tag of the first; the others follow it
        channel: the channel number, two octets
        consumer: the consumer tag as a shortstr
        limits: the peer's frame_max in octets (0: none), and the highest `seq` that had been
            handed out before: what is not above it is marked redelivered (ACK-12)
    """
    most: i64 = limits[0]
    mark = limits[1]
    parts: list[Piece] = []
    mine = b"\x02" + channel
    fresh = messages[0][2] > mark
    last_tail: bytes | None = None
    head = after = b""
    # Up to the last octet of the tag, by the length of what is behind it.
    heads: dict[int, bytes] = {}
    number: i64 = tag
    for raw, tail, seq, _ in messages:
        if not number & 0xFF:
            heads.clear()
            last_tail = None
        if tail is not last_tail:
            last_tail = tail
            octets = len(tail)
            head = heads.get(octets, b"")
            if not head:
                size = SIZE.pack(len(DELIVER_METHOD) + len(consumer) + 9 + octets)
                high = TAG.pack(number)[:7]
                head = b"".join((b"\x01", channel, size, DELIVER_METHOD, consumer, high))
                heads[octets] = head
            after = b"\x00" + tail + b"\xce"
        again = not fresh and seq <= mark
        # One by one: compiled, a tuple of them would cost more than all else here.
        parts.append(head)
        parts.append(OCTETS[number & 0xFF])
        parts.append(b"\x01" + after[1:] if again else after)
        if raw.startswith(mine) and len(raw) <= most:
            parts.append(raw)
        else:
            parts += content_pieces(raw, channel, most)
        number += 1
    return parts


def content_pieces(raw: bytes, channel: bytes, frame_max: int) -> list[Piece]:
    """A raw content with its frames numbered for `channel` and no body frame too large, in pieces.

    Those of the body are views, so that nothing is copied. A frame_max of 0 means no limit
    (FRAME-12). A header frame cannot be split (FRAME-19).
    """
    body_at = 8 + SIZE.unpack_from(raw, 3)[0]
    pieces: list[Piece] = [b"\x02", channel, raw[3:body_at]]
    end = len(raw)
    view = memoryview(raw)
    while body_at < end and raw[body_at] != NOTES_FRAME:
        size = SIZE.unpack_from(raw, body_at + 3)[0]
        stop = body_at + 8 + size
        if not frame_max or size + 8 <= frame_max:
            pieces += (b"\x03", channel, view[body_at + 3 : stop])
        else:
            step = frame_max - 8
            for at in range(body_at + 7, stop - 1, step):
                chunk = view[at : min(at + step, stop - 1)]
                pieces += (b"\x03", channel, SIZE.pack(len(chunk)), chunk, b"\xce")
        body_at = stop
    return pieces


def body_size(raw: bytes) -> int:
    """Octets of the body, as its content header says."""
    return int.from_bytes(raw[11:19], "big")
