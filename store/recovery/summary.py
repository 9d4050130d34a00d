"""Checkpoints: what replay wants to know of a segment, in a small file beside it.

    blocks ─▶ Summary, growing ─▶ the segment rests ─▶ its file ─▶ recovery: an extent, a replay

With it recovery need not read the segment: messages are only read, and checked, when somebody
wants them. Nothing rests on such a file: it is never synced, and one that is missing, torn or of
another version costs time only. It is believed when its checksum is right, when the segment is as
it says and when blocks elsewhere say that everything it speaks of was synced (`summary_check.py`).

It must not know what is alive; that needs the other segments.

Spec: DURABLE-14
"""

from __future__ import annotations

import struct
from array import array
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.store.checksum import crc32
from vouchmq.store.journal import records
from vouchmq.store.journal.block_buffer import put_numbers
from vouchmq.store.journal.positions import WIDTH, Rows
from vouchmq.store.journal.records import Section
from vouchmq.store.journal.segment import segment_name, summary_name
from vouchmq.store.reading.index import SegmentIndex
from vouchmq.store.recovery.scan import Extent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vouchmq.store.disk import Disk, ReadableDisk
    from vouchmq.store.journal.block_buffer import BlockBuffer
    from vouchmq.store.journal.segment import Segment

# A segment whose summary would take a larger share of it has none, and is read as a whole.
_MOST_SHARE: Final = 1 / 16

_MAGIC: Final = b"VQSUMM"
_VERSION: Final = 1
# What is written at once, so that nobody is held up.
_PIECE_BYTES: Final = 64 * 1024
_PIECE_NOTES: Final = 512
_PIECE_NUMBERS: Final = 6 * 1024

_LEAD: Final = struct.Struct("<6sHI")
_FACTS: Final = struct.Struct("<9Q")

# Sections that no block of a journal has: the arrays of a `SegmentIndex`.
STRETCHES: Final = 64
ROUTE_BLOCKS: Final = 65
MOVE_BLOCKS: Final = 66

_COUNTED: Final = (records.DEFINITIONS, records.DROPPED_QUEUES)

Bodies = dict[int, tuple[bytes, Section]]
Word = tuple[int, bytes, bytes | None]


class Facts(NamedTuple):
    """The segment that a summary is of: `end` is where its last block ends."""

    generation: int
    salt: int
    end: int
    first_number: int
    last_number: int
    synced: int
    oldest: int
    first_lsn: int
    next_lsn: int


class Summary:
    """One segment's summary. Nothing is kept once it has grown too large.

    Runs of messages that follow each other and go to the same queues become one; routes become
    sets of queues, as nobody delivers from here.
    """

    def __init__(self, segment_size_bytes: int) -> None:
        self._most_bytes = int(segment_size_bytes * _MOST_SHARE)
        self.is_too_large = False
        self._begin()

    def _begin(self) -> None:
        self._size = 0
        self._definitions: list[bytes] = []
        self._sets: dict[tuple[int, ...], int] = {}
        self._runs = array("Q")
        self._moves = array("Q")
        self._ranges = array("Q")
        # Where the last range of each queue stands.
        self._last_range: dict[int, int] = {}
        self._lists = array("Q")
        self._list_count = 0
        self._drops: list[int] = []
        self._marks: dict[int, int] = {}
        self._gaps: list[tuple[int, int]] = []
        self._retired_early: list[tuple[int, int, int]] = []
        self._words: dict[tuple[int, bytes], bytes | None] = {}
        self._positions = Rows()

    # Growing.

    def add_block(
        self, buffer: BlockBuffer, routes: Mapping[int, tuple[tuple[int, ...], bytes]]
    ) -> None:
        """Take in a block that was just written, but for notes."""
        for queue_ids, first, count in buffer.groups:
            self._add_run(self._runs, queue_ids, first, count)
        for queue_id, lsns in buffer.all_settles():
            self.add_settle(queue_id, lsns)
        if buffer.marks:
            self._marks.update(buffer.marks)
        if buffer.moves or buffer.rewritten or buffer.dropped_again or buffer.retired_early:
            moves = iter(buffer.moves)
            for number, first, count in zip(moves, moves, moves, strict=True):
                self._add_run(self._moves, routes[number][0], first, count)
            for queue_id, some in buffer.rewritten:
                self.add_settle(queue_id, some)
            self._drops += buffer.dropped_again
            self._retired_early += (
                (s.generation, s.first_number, s.last_number) for s in buffer.retired_early
            )
        if buffer.positions is not None:
            self._add_positions(buffer.positions.flat)
        if buffer.drops or buffer.defines:
            self._drops += buffer.drops
            self._definitions += buffer.defines
            self._grow(sum(map(len, buffer.defines)) + 8 * len(buffer.drops))

    def _add_positions(self, flat: Sequence[int]) -> None:
        numbers = iter(flat)
        for queue_id, lsn, count, position in zip(*[numbers] * WIDTH, strict=True):
            if self._positions.add(queue_id, lsn, count, position):
                self._grow(8 * WIDTH)

    def add_words(self, words: Iterable[Word]) -> None:
        """Take in what a block says about notes."""
        for scope_id, key, value in words:
            self._words[scope_id, key] = value
            self._grow(records.NOTE_SIZE + len(key) + len(value or b""))

    def add_head(
        self,
        gaps: Iterable[tuple[int, int]],
        retired_early: Iterable[tuple[int, int, int]],
        marks: Mapping[int, int],
    ) -> None:
        """Take in what a head says beside its snapshot, which is read from the head itself."""
        self._gaps += gaps
        self._retired_early += retired_early
        self._marks.update(marks)

    def add_settle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Take in that copies of a queue are gone."""
        if not lsns:
            return
        first, last = records.span(lsns)
        count = len(lsns)
        if last - first + 1 != count:
            self._lists.append(queue_id)
            self._lists.append(count)
            self._lists.extend(lsns)
            self._list_count += 1
            self._grow(16 + 8 * count)
            return
        ranges = self._ranges
        at = self._last_range.get(queue_id)
        if at is not None and ranges[at + 1] + ranges[at + 2] == first:
            ranges[at + 2] += count
            return
        self._last_range[queue_id] = len(ranges)
        ranges.extend((queue_id, first, count))
        self._grow(24)

    def _add_run(
        self, kept: array[int], queue_ids: tuple[int, ...], first: int, count: int
    ) -> None:
        number = self._sets.get(queue_ids)
        if number is None:
            number = self._sets[queue_ids] = len(self._sets)
            self._grow(16 + 8 * len(queue_ids))
        if kept and kept[-3] == number and kept[-2] + kept[-1] == first:
            kept[-1] += count
            return
        kept.extend((number, first, count))
        self._grow(24)

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._most_bytes:
            self.is_too_large = True
            self._begin()

    def add_bodies(
        self, batches: Iterable[Bodies], routes: Mapping[int, tuple[tuple[int, ...], bytes]]
    ) -> None:
        """Take in blocks as they were read, the head included; those without a route are lost."""
        for bodies in batches:
            if self.is_too_large:
                return
            for kind, kept in ((records.RUNS, self._runs), (records.MOVES, self._moves)):
                for number, first, count in _rows(bodies, kind, 3):
                    if number in routes:
                        self._add_run(kept, routes[number][0], first, count)
            for queue_id, first, count in _rows(bodies, records.SETTLED_RANGES, 3):
                self.add_settle(queue_id, range(first, first + count))
            flat = _numbers(bodies, records.SETTLED_LISTS)
            at = 0
            while at < len(flat):
                end = at + 2 + flat[at + 1]
                self.add_settle(flat[at], flat[at + 2 : end])
                at = end
            self._add_positions(_numbers(bodies, records.POSITIONS))
            self._drops += _numbers(bodies, records.DROPPED_QUEUES)
            self._marks.update((q, lsn) for q, lsn in _rows(bodies, records.DELIVERED_MARKS, 2))
            self._gaps += ((a, b) for a, b in _rows(bodies, records.KNOWN_GAPS, 2))
            self._retired_early += ((g, a, b) for g, a, b in _rows(bodies, records.RETIRED, 3))
            if records.DEFINITIONS in bodies:
                self._definitions += records.unpack_texts(*bodies[records.DEFINITIONS])
            for kind in (records.NOTES, records.FORGOTTEN_NOTES):
                if kind in bodies:
                    is_note = kind == records.NOTES
                    notes = records.unpack_notes(*bodies[kind])
                    self.add_words((s, k, v if is_note else None) for s, k, v in notes)
            self._grow(sum(len(bodies[kind][0]) for kind in _COUNTED if kind in bodies))

    # Writing.

    def pieces(self, disk: Disk, segment: Segment, index: SegmentIndex) -> Iterator[None]:
        """Put it beside the segment, which takes no more blocks; a piece with each step.

        It counts when the last piece is written. Nothing may be added meanwhile.

        Raises:
            OSError: the disk refused
        """
        file = disk.create(summary_name(segment.generation), 0)
        try:
            crc, offset = 0, _LEAD.size
            for piece in _in_pieces(self._parts(segment, index)):
                if offset > _LEAD.size:
                    yield
                crc = crc32(piece, crc)
                file.write([piece], offset)
                offset += len(piece)
            file.write([_LEAD.pack(_MAGIC, _VERSION, crc)], 0)
        finally:
            file.close()

    def _parts(self, segment: Segment, index: SegmentIndex) -> Iterator[bytes]:
        """Yield what is in the file, in parts none of which takes long to make."""
        facts = Facts(
            segment.generation,
            segment.salt,
            segment.offset,
            segment.first_number,
            segment.last_number,
            segment.synced,
            segment.oldest,
            segment.first_lsn,
            segment.end_lsn,
        )
        small = [_FACTS.pack(*facts)]
        sets = [records.pack_route(number, ids, b"") for ids, number in self._sets.items()]
        small += records.pack_section(records.ROUTES, len(sets), *sets)
        small += records.pack_texts(records.DEFINITIONS, self._definitions)
        put_numbers(small, records.DROPPED_QUEUES, self._drops, 1)
        for kind, rows, width in (
            (records.DELIVERED_MARKS, self._marks.items(), 2),
            (records.KNOWN_GAPS, self._gaps, 2),
            (records.RETIRED, self._retired_early, 3),
        ):
            put_numbers(small, kind, [number for row in rows for number in row], width)
        yield b"".join(small)
        stretches, routes, moves = index.rows()
        for kind, numbers, width in (
            (records.RUNS, self._runs, 3),
            (records.MOVES, self._moves, 3),
            (records.SETTLED_RANGES, self._ranges, 3),
            (records.POSITIONS, self._positions.flat, WIDTH),
            (STRETCHES, stretches, 2),
            (ROUTE_BLOCKS, routes, 2),
            (MOVE_BLOCKS, moves, 3),
        ):
            for at in range(0, len(numbers), _PIECE_NUMBERS):
                section: list[bytes] = []
                put_numbers(section, kind, numbers[at : at + _PIECE_NUMBERS], width)
                yield b"".join(section)
        count = self._list_count
        for at in range(0, len(self._lists), _PIECE_NUMBERS):
            # All its entries are counted with the first part.
            lists = records.pack_numbers(self._lists[at : at + _PIECE_NUMBERS])
            yield b"".join(records.pack_section(records.SETTLED_LISTS, count, lists))
            count = 0
        yield from self._note_sections()

    def _note_sections(self) -> Iterator[bytes]:
        words = iter(self._words.items())
        while some := list(islice(words, _PIECE_NOTES)):
            for kind, is_gone in ((records.NOTES, False), (records.FORGOTTEN_NOTES, True)):
                notes = [
                    records.pack_note(scope_id, key, value or b"")
                    for (scope_id, key), value in some
                    if (value is None) == is_gone
                ]
                yield b"".join(records.pack_section(kind, len(notes), *notes))


def _in_pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same octets in pieces of one size, the last of them smaller."""
    rest = b""
    for part in parts:
        rest += part
        if len(rest) >= _PIECE_BYTES:
            end = len(rest) - len(rest) % _PIECE_BYTES
            for at in range(0, end, _PIECE_BYTES):
                yield rest[at : at + _PIECE_BYTES]
            rest = rest[end:]
    yield rest


def _numbers(bodies: Bodies, kind: int) -> list[int]:
    return records.unpack_numbers(*bodies[kind]) if kind in bodies else []


def _rows(bodies: Bodies, kind: int, width: int) -> list[tuple[int, ...]]:
    numbers = iter(_numbers(bodies, kind))
    return list(zip(*[numbers] * width, strict=True))


# Reading.


class Found(NamedTuple):
    """A summary whose checksum is right."""

    facts: Facts
    bodies: Bodies

    @property
    def extent(self) -> Extent:
        """The segment as a scan would have found it."""
        facts = self.facts
        retired_early = iter(self._numbers(records.RETIRED))
        gaps = iter(self._numbers(records.KNOWN_GAPS))
        return Extent(
            generation=facts.generation,
            salt=facts.salt,
            start=0,
            end=facts.end,
            first_number=facts.first_number,
            last_number=facts.last_number,
            first_lsn=facts.first_lsn,
            next_lsn=facts.next_lsn,
            synced=facts.synced,
            oldest=facts.oldest,
            block_count=facts.last_number - facts.first_number + 1,
            gaps=list(zip(gaps, gaps, strict=True)),
            retired_early=list(zip(retired_early, retired_early, retired_early, strict=True)),
        )

    @property
    def places(self) -> SegmentIndex:
        """Where the segment's blocks are, which nobody has looked at."""
        facts = self.facts
        index = SegmentIndex(
            facts.generation, segment_name(facts.generation), facts.salt, facts.first_lsn
        )
        rows = [self._numbers(kind) for kind in (STRETCHES, ROUTE_BLOCKS, MOVE_BLOCKS)]
        index.restore(rows[0], rows[1], rows[2], facts.end, facts.next_lsn)
        return index

    @property
    def has_exact_moves(self) -> bool:
        """Whether each message that was moved there is said to be in one block."""
        moves = self._numbers(MOVE_BLOCKS)
        return all(map(lt, moves[1::3], moves[3::3]))

    def _numbers(self, kind: int) -> array[int]:
        return records.numbers_in(self.bodies[kind][0] if kind in self.bodies else b"")


def read_summary(disk: ReadableDisk, generation: int) -> Found | None:
    """Return the summary of a segment; None if there is none, or none that can be used.

    Of a segment with moves that is one of an earlier program, which wrote a range for each block:
    where they overlap, it takes the blocks to know what is where.
    """
    try:
        file = disk.open(summary_name(generation))
    except OSError:
        return None
    try:
        octets = file.read(0, file.size())
    except OSError:
        return None
    finally:
        file.close()
    start = _LEAD.size + _FACTS.size
    if len(octets) < start:
        return None
    magic, version, crc = _LEAD.unpack_from(octets)
    if (magic, version) != (_MAGIC, _VERSION) or crc32(octets[_LEAD.size :]) != crc:
        return None
    facts = Facts(*_FACTS.unpack_from(octets, _LEAD.size))
    found = Found(facts, _bodies(octets, start))
    return found if facts.generation == generation and found.has_exact_moves else None


def _bodies(octets: bytes, offset: int) -> Bodies:
    parts: dict[int, list[bytes]] = {}
    counts: dict[int, int] = {}
    while offset < len(octets):
        kind, count, length = records.read_section_header(octets, offset)
        offset += records.SECTION_SIZE
        parts.setdefault(kind, []).append(octets[offset : offset + length])
        counts[kind] = counts.get(kind, 0) + count
        offset += length
    bodies = {kind: b"".join(some) for kind, some in parts.items()}
    return {kind: (body, Section(counts[kind], 0, len(body))) for kind, body in bodies.items()}
