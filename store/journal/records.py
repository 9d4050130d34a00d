"""The bytes of the journal: blocks, sections, checksums. Pure; no file is touched here.

A segment is a row of blocks, a block is a header and a payload, a payload is a row of
sections. `docs/internals/journal.md` is the prose; this is its only implementation.

    block header, 80 octets, little-endian
      magic 6s, version u16, crc32 u32             crc over all that follows, payload included
      kind u16, flags u16, length u64              of the payload, in octets
      generation u64, salt u64                     which life of which file; stale blocks differ
      number u64                                   blocks are numbered without gaps
      synced u64                                   highest block number known synced at the time
      oldest u64                                   generation of the oldest segment that counts
      first_lsn u64, next_lsn u64                  LSNs handed out for this block: [first, next)
    section header, 16 octets
      kind u32, count u32, length u64

Three fields carry the guarantees:

- `crc32` covers header and payload, so a block that was torn by a crash is not a block.
- `generation` and `salt` are drawn for each life of a file. A segment file is used again without
  being zeroed; what its earlier life left behind, or a message body made to look like a block,
  does not match.
- `synced` tells a torn tail from damage: a hole at a number that a later block declares synced was
  once durable, any other hole is the unsynced tail of a crash.

Replay takes sections in the order of their kinds, so that a route is known before the run that
names it. A reader may skip an unknown section only if its kind has the bit `SKIPPABLE`: that is how
positions could be added without a new version.

What it costs: 80 octets a block, which is a turn, and nothing per message but a length. Routes are
numbered within a segment, so a run is three numbers. The price is that a damaged block could take
the routes behind it along; therefore they are logged again each MiB (see `journal.py`).
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from vouchmq.store.checksum import crc32
from vouchmq.store.errors import UnsupportedFormat

MAGIC: Final = b"VQJRNL"
FORMAT_VERSION: Final = 1

_LEAD: Final = struct.Struct("<6sHI")
_REST: Final = struct.Struct("<HHQQQQQQQQ")
_SECTION: Final = struct.Struct("<IIQ")
_ROUTE: Final = struct.Struct("<QII")
_ROUTE_OF_ONE: Final = struct.Struct("<QIIQ")
_NOTE: Final = struct.Struct("<QII")
_NUMBER: Final = struct.Struct("<Q")
_WRITTEN: Final = struct.Struct("<IIQQ")
# Whole sections with one entry of 2, 3 numbers; a run and when it was written; a lone content's
# length and what stands in front of it.
_ROW_OF_2: Final = struct.Struct("<IIQQQ")
_ROW_OF_3: Final = struct.Struct("<IIQQQQ")
_RUN_WRITTEN: Final = struct.Struct("<IIQQQQIIQQ")
_LONE_LENGTH: Final = struct.Struct("<IIQIIIQ")
# Generation and salt, and where in a block they stand.
_LIFE: Final = struct.Struct("<QQ")
_LIFE_AT: Final = 24
HEADER_SIZE: Final = _LEAD.size + _REST.size
SECTION_SIZE: Final = _SECTION.size
NOTE_SIZE: Final = _NOTE.size
_SIGNATURE: Final = MAGIC + FORMAT_VERSION.to_bytes(2, "little")

# Kinds of blocks. 4 and up are reserved, see docs/internals/journal.md.
HEAD: Final = 1
BATCH: Final = 2
# A batch with a section that the scan must see.
CHECKPOINT: Final = 3

# Kinds of sections; a batch holds each at most once, and replay takes them in this order.
SEGMENT_INFO: Final = 1
SNAPSHOT: Final = 2
DEFINITIONS: Final = 3
ROUTES: Final = 4
RUNS: Final = 5
MOVES: Final = 6
LENGTHS: Final = 7
CONTENTS: Final = 8
SETTLED_RANGES: Final = 9
SETTLED_LISTS: Final = 10
DROPPED_QUEUES: Final = 11
DELIVERED_MARKS: Final = 12
KNOWN_GAPS: Final = 13
RETIRED: Final = 20
NOTES: Final = 21
FORGOTTEN_NOTES: Final = 22
WRITTEN: Final = 23
MOVES_WRITTEN: Final = 24
# The others up to 31 are reserved by name in docs/internals/journal.md; an unknown kind at or above
# this bit may be skipped by a reader that does not know it, one below may not.
SKIPPABLE: Final = 0x8000_0000
POSITIONS: Final = SKIPPABLE | 25
# Zeros: what follows is to stand at a certain place.
PADDING: Final = SKIPPABLE | 26
_KNOWN: Final = frozenset(
    {*range(SEGMENT_INFO, KNOWN_GAPS + 1), *range(RETIRED, MOVES_WRITTEN + 1), POSITIONS}
)

# (buffer, offset) -> (kind, count of entries, length) of the section there.
read_section_header: Final = _SECTION.unpack_from

_BIG_ENDIAN: Final = sys.byteorder == "big"

# The polynomial of the checksum, lowest power in the highest bit, as all below.
_POLYNOMIAL: Final = 0xEDB8_8320
_ONE: Final = 1 << 31
_ONE_OCTET: Final = 1 << 23


class BlockHeader(NamedTuple):
    """Everything in a block header but magic, version and checksum."""

    kind: int
    flags: int
    length: int
    generation: int
    salt: int
    number: int
    synced: int
    oldest: int
    first_lsn: int
    next_lsn: int


class Section(NamedTuple):
    """Where one section's body lies in the buffer it was found in."""

    item_count: int
    start: int
    end: int


def seal(
    header: BlockHeader, payload: Sequence[bytes], known: tuple[bytes, int] = (b"", 0)
) -> bytes:
    """Return the 80 octets that go in front of `payload`, checksum included.

    Args:
        header: everything else
        payload: what follows
        known: one of its parts, and the checksum of that
    """
    return seal_rest(_REST.pack(*header), payload, known)


# (the fields of a `BlockHeader`, in its order) -> what `seal_rest` takes. It spares the object.
pack_rest: Final = _REST.pack


def seal_rest(rest: bytes, payload: Sequence[bytes], known: tuple[bytes, int] = (b"", 0)) -> bytes:
    """Return the same, given all of it that follows the checksum."""
    crc = crc32(rest)
    for part in payload:
        crc = join_checksums(crc, known[1], len(part)) if part is known[0] else crc32(part, crc)
    return seal_checked(crc, rest)


# (octets, checksum of what is in front) -> that of both. A block's is of `rest`, then the payload.
checksum: Final = crc32


def seal_checked(crc: int, rest: bytes) -> bytes:
    """Return the same, given the checksum of `rest` and the payload."""
    return _SIGNATURE + crc.to_bytes(4, "little") + rest


def seal_small(rest: bytes, payload: Sequence[bytes]) -> bytes:
    """Return the same with the payload behind it, as one piece."""
    body = payload[0] if len(payload) == 1 else b"".join(payload)
    crc = crc32(body, crc32(rest))
    return b"".join((_SIGNATURE, crc.to_bytes(4, "little"), rest, body))


def join_checksums(first: int, second: int, length: int) -> int:
    """Return the checksum of two rows of octets from theirs; the second has this length.

    To go on with a checksum is to multiply it by x to the power of the bits that follow.
    """
    power, factor = _ONE_OCTET, _ONE
    while length:
        if length & 1:
            factor = _multiply(power, factor)
        power = _multiply(power, power)
        length >>= 1
    return _multiply(factor, first) ^ second


def _multiply(a: int, b: int) -> int:
    """Return the product of two polynomials over two elements, modulo the one above."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFF_FFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def read_block(buffer: bytes, offset: int, generation: int, salt: int | None) -> BlockHeader | None:
    """Return the header of the whole, unbroken block at `offset`, or None.

    A block of another generation or salt is as good as none; without a salt any will do.
    Costs one pass over the payload for its checksum, only if all else fits.
    """
    if not buffer.startswith(_SIGNATURE, offset) or offset + HEADER_SIZE > len(buffer):
        return None
    header = BlockHeader(*_REST.unpack_from(buffer, offset + _LEAD.size))
    stop = offset + HEADER_SIZE + header.length
    if stop > len(buffer) or header.generation != generation:
        return None
    if salt is not None and header.salt != salt:
        return None
    return header if is_intact(buffer, offset, stop) else None


def is_intact(buffer: bytes, offset: int, end: int) -> bool:
    """Return whether the checksum of the block from `offset` to `end` is right."""
    with memoryview(buffer) as view, view[offset + _LEAD.size : end] as checked:
        crc: int = _LEAD.unpack_from(buffer, offset)[2]
        return crc32(checked) == crc


def trusted_header(buffer: bytes, offset: int) -> BlockHeader:
    """Return the header at `offset` of a block that `read_block` has already judged."""
    return BlockHeader(*_REST.unpack_from(buffer, offset + _LEAD.size))


def read_header(buffer: bytes, offset: int, generation: int, salt: int) -> BlockHeader | None:
    """Return the header at `offset`, or None if there is none of this segment.

    No checksum is looked at.
    """
    if not buffer.startswith(_SIGNATURE, offset) or offset + HEADER_SIZE > len(buffer):
        return None
    header = trusted_header(buffer, offset)
    return header if header.generation == generation and header.salt == salt else None


def end_of_last(buffer: bytes, generation: int, salt: int) -> int:
    """Return where that of a segment's blocks ends, whole or not, which reaches farthest; or 0."""
    needle = _LIFE.pack(generation, salt)
    end = 0
    at = buffer.find(needle)
    while at >= 0:
        start = at - _LIFE_AT
        if start >= 0 and buffer.startswith(_SIGNATURE, start):
            header = read_header(buffer, start, generation, salt)
            # What has no room for a header is the rest of one.
            length = header.length if header is not None else 0
            end = max(end, min(start + HEADER_SIZE + length, len(buffer)))
        at = buffer.find(needle, at + 1)
    return end


def generation_at(buffer: bytes, offset: int) -> int:
    """Return the generation in the header at `offset`, of which only the lead was looked at."""
    return int.from_bytes(buffer[offset + _LIFE_AT : offset + _LIFE_AT + 8], "little")


def split_checksum(octets: bytes) -> tuple[int, bytes]:
    """Return the checksum in a block's header, and those of its first octets that it covers."""
    return _LEAD.unpack_from(octets)[2], octets[_LEAD.size :]


def find_signature(buffer: bytes, start: int) -> int:
    """Return the offset of the next possible block at or after `start`, or -1."""
    return buffer.find(_SIGNATURE, start)


def refuse_newer_versions(buffer: bytes, name: str) -> None:
    """Look at the first octets of a segment.

    Raises:
        UnsupportedFormat: they are ours, but of a newer format version.
    """
    version = int.from_bytes(buffer[len(MAGIC) : len(_SIGNATURE)], "little")
    if buffer.startswith(MAGIC) and version > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{name} has journal format {version}, this program reads {FORMAT_VERSION};"
            " start the version that wrote it"
        )


def pack_section(kind: int, count: int, *parts: bytes) -> list[bytes]:
    """Return a section as the parts of a later join."""
    return [_SECTION.pack(kind, count, sum(map(len, parts))), *parts]


def open_section(kind: int, count: int, length: int) -> bytes:
    """Return only the header of a section whose body follows in parts of `length` octets."""
    return _SECTION.pack(kind, count, length)


def read_sections(buffer: bytes, start: int, end: int) -> dict[int, Section]:
    """Return the sections of a checked payload by kind.

    Raises:
        UnsupportedFormat: a section that this program does not know and may not skip.
    """
    sections = {}
    offset = start
    while offset < end:
        kind, count, length = _SECTION.unpack_from(buffer, offset)
        offset += SECTION_SIZE
        if is_known(kind):
            sections[kind] = Section(count, offset, offset + length)
        offset += length
    return sections


def is_known(kind: int) -> bool:
    """Return whether sections of this kind are to be read; False: to be skipped.

    Raises:
        UnsupportedFormat: this program does not know them and may not skip them.
    """
    if kind in _KNOWN:
        return True
    if kind & SKIPPABLE:
        return False
    raise UnsupportedFormat(
        f"the journal holds a section of kind {kind}; start the version that wrote it"
    )


def pack_numbers(numbers: Sequence[int]) -> bytes:
    """Return unsigned 64-bit integers as octets."""
    if isinstance(numbers, array) and not _BIG_ENDIAN:
        return numbers.tobytes()
    packed = array("Q", numbers)
    if _BIG_ENDIAN:  # pragma: no cover - no such machine in reach
        packed.byteswap()
    return packed.tobytes()


def span(lsns: Sequence[int]) -> tuple[int, int]:
    """Return the lowest and the highest of some LSNs, of a range without looking at each."""
    if len(lsns) == 1 or isinstance(lsns, range):
        return lsns[0], lsns[-1]
    return min(lsns), max(lsns)


def bounds_of_runs(firsts: Sequence[int], counts: Sequence[int]) -> tuple[int, int] | None:
    """The lowest and the highest LSN of some runs, None if there are none."""
    if not firsts:
        return None
    return min(firsts), max(map(int.__add__, firsts, counts)) - 1


def pack_settles(settles: Iterable[tuple[int, Sequence[int]]]) -> list[bytes]:
    """Return sections of (queue id, LSNs), each of which is a range or a list of distinct LSNs."""
    ranges: list[int] = []
    lists: list[int] = []
    list_count = 0
    for queue_id, lsns in settles:
        if not lsns:
            continue
        first, last = span(lsns)
        # Distinct LSNs that span their count are a range.
        if last - first + 1 == len(lsns):
            ranges += (queue_id, first, len(lsns))
        else:
            lists += (queue_id, len(lsns), *lsns)
            list_count += 1
    parts: list[bytes] = []
    if ranges:
        parts += pack_section(SETTLED_RANGES, len(ranges) // 3, pack_numbers(ranges))
    if lists:
        parts += pack_section(SETTLED_LISTS, list_count, pack_numbers(lists))
    return parts


def numbers_in(octets: bytes) -> "array[int]":
    """Return octets as unsigned 64-bit integers."""
    numbers = array("Q")
    numbers.frombytes(octets)
    if _BIG_ENDIAN:  # pragma: no cover - no such machine in reach
        numbers.byteswap()
    return numbers


def unpack_numbers(buffer: bytes, section: Section) -> list[int]:
    """Return the unsigned 64-bit integers of a section."""
    return numbers_in(buffer[section.start : section.end]).tolist()


def pack_lengths(parts: Sequence[bytes]) -> tuple[bytes, int]:
    """Return the lengths of `parts` as 32-bit octets, and their sum."""
    # From a list: it is made once, in its size.
    lengths = array("I", [len(part) for part in parts])
    total = sum(lengths)
    if _BIG_ENDIAN:  # pragma: no cover - no such machine in reach
        lengths.byteswap()
    return lengths.tobytes(), total


def lengths_in(octets: bytes) -> "array[int]":
    """Return octets as 32-bit lengths."""
    lengths = array("I")
    lengths.frombytes(octets)
    if _BIG_ENDIAN:  # pragma: no cover - no such machine in reach
        lengths.byteswap()
    return lengths


def unpack_lengths(buffer: bytes, section: Section) -> list[int]:
    """Return the 32-bit lengths of a section."""
    return lengths_in(buffer[section.start : section.end]).tolist()


def pack_texts(kind: int, texts: Sequence[bytes]) -> list[bytes]:
    """Return a section of opaque byte strings: their lengths, then the strings."""
    lengths, _ = pack_lengths(texts)
    return pack_section(kind, len(texts), lengths, *texts)


def unpack_texts(buffer: bytes, section: Section) -> list[bytes]:
    """Return the byte strings of a section made by `pack_texts`."""
    table = section.start + 4 * section.item_count
    lengths = unpack_lengths(buffer, Section(section.item_count, section.start, table))
    return [buffer[a:b] for a, b in pairwise(accumulate(lengths, initial=table))]


def pack_route(number: int, queue_ids: Sequence[int], tail: bytes) -> bytes:
    """Return one entry of a routes section."""
    if len(queue_ids) == 1:
        return _ROUTE_OF_ONE.pack(number, 1, len(tail), queue_ids[0]) + tail
    return _ROUTE.pack(number, len(queue_ids), len(tail)) + pack_numbers(queue_ids) + tail


def unpack_routes(buffer: bytes, section: Section) -> Iterator[tuple[int, tuple[int, ...], bytes]]:
    """Yield (number, queue ids, tail) of each entry of a routes section."""
    offset = section.start
    for _ in range(section.item_count):
        number, queue_count, tail_size = _ROUTE.unpack_from(buffer, offset)
        offset += _ROUTE.size
        stop = offset + 8 * queue_count
        if queue_count == 1:
            queue_ids: tuple[int, ...] = _NUMBER.unpack_from(buffer, offset)
        else:
            queue_ids = tuple(unpack_numbers(buffer, Section(queue_count, offset, stop)))
        yield number, queue_ids, buffer[stop : stop + tail_size]
        offset = stop + tail_size


def pack_written(written_ms: int) -> bytes:
    """Return the section that says when a block was written."""
    return _WRITTEN.pack(WRITTEN, 1, 8, written_ms)


# What a block of one message, one settlement or one mark consists of, each packed at once: such
# blocks are most of those that somebody waits for.


def pack_run_written(route: int, first_lsn: int, count: int, written_ms: int) -> bytes:
    """Return the sections of one run, and of when the block was written."""
    return _RUN_WRITTEN.pack(RUNS, 1, 24, route, first_lsn, count, WRITTEN, 1, 8, written_ms)


def pack_row_of_2(kind: int, first: int, second: int) -> bytes:
    """Return a section with one entry of two numbers."""
    return _ROW_OF_2.pack(kind, 1, 16, first, second)


def pack_row_of_3(kind: int, first: int, second: int, third: int) -> bytes:
    """Return a section with one entry of three numbers."""
    return _ROW_OF_3.pack(kind, 1, 24, first, second, third)


def pack_lone_length(length: int) -> bytes:
    """Return the lengths of one content, and the header of the section of that content."""
    return _LONE_LENGTH.pack(LENGTHS, 1, 4, length, CONTENTS, 1, length)


LONE_LENGTH_SIZE: Final = _LONE_LENGTH.size


def pack_note(scope_id: int, key: bytes, value: bytes) -> bytes:
    """Return one entry of a notes section; of forgotten notes with an empty value."""
    return _NOTE.pack(scope_id, len(key), len(value)) + key + value


def unpack_notes(buffer: bytes, section: Section) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (scope id, key, value) of each entry of a section made with `pack_note`."""
    offset = section.start
    for _ in range(section.item_count):
        scope_id, key_size, value_size = _NOTE.unpack_from(buffer, offset)
        offset += _NOTE.size
        stop = offset + key_size
        yield scope_id, buffer[offset:stop], buffer[stop : stop + value_size]
        offset = stop + value_size
