"""Where the messages of a stream are: offsets, the LSNs behind them, times and sizes, in chunks.

    segment            what retention drops as a whole
    └─ chunk           up to 1 MiB: first offset, rows of LSNs, octets, first and last arrival
       └─ row          messages whose LSNs follow each other

A message costs nothing here but its part of a row, and messages published in one go are one row.
Every chunk is noted in the journal when it begins and when it is full, so that a start knows
offsets, times and sizes without reading a message, whatever retention has taken before. Each block
says the offsets of what it brings, so that damage in the midst moves none of those behind it. Must
not know consumers, the journal or the clock.

Spec: STREAM-02, STREAM-21
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, islice
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

# A chunk is full when it has so many octets, messages or rows.
CHUNK_OCTETS: Final = 1024 * 1024
CHUNK_MESSAGES: Final = 65536
CHUNK_ROWS: Final = 8192
# A segment whose size nobody has chosen.
SEGMENT_OCTETS: Final = 64 * 1024 * 1024

# A note: the key is a letter and the first offset, the value the rest of a chunk.
CHUNK_NOTE: Final = b"c"
_KEY: Final = Struct(">cQ")
_VALUE: Final = Struct(">QQQQqqB")


class Rows:
    """LSNs in order, as rows of such as follow each other."""

    __slots__ = ("_firsts", "_starts", "count")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._starts = array("Q")
        self.count = 0

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._firsts)

    @property
    def first(self) -> int:
        """The lowest LSN; there is at least one."""
        return self._firsts[0]

    @property
    def last(self) -> int:
        """The highest LSN; there is at least one."""
        return self._firsts[-1] + self.count - 1 - self._starts[-1]

    def add(self, first: int, count: int) -> None:
        """Append `count` consecutive LSNs from `first` on, which is above all others."""
        if not self.count or self.last + 1 != first:
            self._firsts.append(first)
            self._starts.append(self.count)
        self.count += count

    def take(self, at: int, count: int) -> list[int]:
        """At most so many LSNs, from the one at index `at` on."""
        lsns: list[int] = []
        row = bisect_right(self._starts, at) - 1
        end = min(self.count, at + count)
        while at < end:
            stop = self._starts[row + 1] if row + 1 < len(self._starts) else self.count
            first = self._firsts[row] + at - self._starts[row]
            some = min(stop, end) - at
            lsns += range(first, first + some)
            at += some
            row += 1
        return lsns

    def ranges(self, lsn: int = 0) -> Iterator[tuple[int, int]]:
        """First and last of each row, of what is not lower than this LSN."""
        ends = chain(islice(self._starts, 1, None), (self.count,))
        for first, start, end in zip(self._firsts, self._starts, ends, strict=True):
            last = first + end - start - 1
            if last >= lsn:
                yield max(first, lsn), last

    def below(self, lsn: int) -> int:
        """How many LSNs are lower than this one."""
        row = bisect_right(self._firsts, lsn) - 1
        if row < 0:
            return 0
        stop = self._starts[row + 1] if row + 1 < len(self._starts) else self.count
        return min(stop, self._starts[row] + lsn - self._firsts[row])

    def cut(self, count: int) -> None:
        """Forget all but the first so many."""
        while self._starts and self._starts[-1] >= count:
            self._starts.pop()
            self._firsts.pop()
        self.count = count


class HeldRows:
    """The LSNs in some rows as they are at one moment, whatever is appended to them later."""

    __slots__ = ("_count", "_rows")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._count = rows.count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(first, last + 1) for first, last in self.ranges())

    def __contains__(self, lsn: object) -> bool:
        return any(lsn == each for each in self)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """First and last of each row."""
        left = self._count
        for first, last in self._rows.ranges():
            if left <= 0:
                return
            yield first, min(last, first + left - 1)
            left -= last - first + 1


class Chunk:
    """Messages of a stream that came one after the other.

    `octets` and times count once `is_measured`; times are of the loop's clock, in milliseconds.
    """

    __slots__ = (
        "first_ms",
        "first_offset",
        "is_full",
        "is_measured",
        "last_ms",
        "octets",
        "opens_segment",
        "rows",
    )

    def __init__(self, first_offset: int, *, opens_segment: bool) -> None:
        self.first_offset = first_offset
        self.opens_segment = opens_segment
        self.rows = Rows()
        self.octets = 0
        self.first_ms = 0
        self.last_ms = 0
        self.is_full = False
        self.is_measured = True

    @property
    def next_offset(self) -> int:
        """The offset behind its last message."""
        return self.first_offset + self.rows.count

    @property
    def key(self) -> bytes:
        """The key of its note: the first offset."""
        return _KEY.pack(CHUNK_NOTE, self.first_offset)

    def value(self, journal_ms: Callable[[int], int]) -> bytes:
        """Of its note; `journal_ms` turns a time of the loop into one that outlives it."""
        rows = self.rows
        last = rows.last if self.is_full else 0
        times = (journal_ms(self.first_ms), journal_ms(self.last_ms))
        return _VALUE.pack(
            rows.first, last, rows.count, self.octets, *times, bool(self.opens_segment)
        )


class ChunkNote(NamedTuple):
    """What a note says of a chunk; `last_lsn` is 0 when it was not full."""

    first_offset: int
    first_lsn: int
    last_lsn: int
    messages: int
    octets: int
    first_ms: int
    last_ms: int
    opens_segment: int


def is_chunk_key(key: bytes) -> bool:
    """Whether a note of this key is one of a chunk."""
    return len(key) == _KEY.size and key.startswith(CHUNK_NOTE)


def offset_of_key(key: bytes) -> int:
    """The first offset of the chunk that a note is of."""
    return int(_KEY.unpack(key)[1])


def chunk_notes(notes: dict[bytes, bytes]) -> list[ChunkNote]:
    """The chunks that notes tell of, in order."""
    return sorted(
        ChunkNote(offset_of_key(key), *_VALUE.unpack(value))
        for key, value in notes.items()
        if is_chunk_key(key) and len(value) == _VALUE.size
    )


class StreamIndex:
    """All chunks of one stream.

    Args:
        segment_octets: a segment is full with so many

    `count` is the number of messages; where damage has left gaps, offsets from the oldest to the
    newest are more.
    """

    __slots__ = ("chunks", "count", "next_offset", "octets", "segment_count", "segment_octets")

    def __init__(self, segment_octets: int = SEGMENT_OCTETS) -> None:
        self.segment_octets = segment_octets
        self.chunks: list[Chunk] = []
        self.count = 0
        self.next_offset = 0
        self.octets = 0
        self.segment_count = 0

    @property
    def first_offset(self) -> int:
        """The oldest offset there is; the next one to come when there is none."""
        return self.chunks[0].first_offset if self.chunks else self.next_offset

    def append(self, first_lsn: int, count: int, octets: int, now_ms: int) -> Chunk | None:
        """Add messages behind all others; gives their chunk if it was begun or filled by them."""
        chunk = self.chunks[-1] if self.chunks else None
        tells = False
        if chunk is None or chunk.is_full:
            chunk = self._begin()
            chunk.first_ms = now_ms
            tells = True
        chunk.rows.add(first_lsn, count)
        chunk.octets += octets
        chunk.last_ms = now_ms
        self.octets += octets
        self.count += count
        self.next_offset += count
        if (
            chunk.octets >= CHUNK_OCTETS
            or chunk.octets >= self.segment_octets
            or chunk.rows.count >= CHUNK_MESSAGES
            or len(chunk.rows) >= CHUNK_ROWS
        ):
            chunk.is_full = tells = True
        return chunk if tells else None

    def _begin(self) -> Chunk:
        opens = self.newest_segment_octets() >= self.segment_octets or not self.chunks
        chunk = Chunk(self.next_offset, opens_segment=opens)
        self.chunks.append(chunk)
        self.segment_count += opens
        return chunk

    def newest_segment_octets(self) -> int:
        """The size of the segment that is being written."""
        octets = 0
        for chunk in reversed(self.chunks):
            octets += chunk.octets
            if chunk.opens_segment:
                break
        return octets

    def chunk_at(self, offset: int) -> Chunk | None:
        """The chunk that has this offset, or None."""
        at = bisect_right(self.chunks, offset, key=first_offset_of) - 1
        if at < 0 or offset >= self.chunks[at].next_offset:
            return None
        return self.chunks[at]

    def chunk_from(self, offset: int) -> Chunk | None:
        """The first chunk with an offset not below this one: offsets may have a gap."""
        at = bisect_right(self.chunks, offset, key=first_offset_of) - 1
        if at >= 0 and offset < self.chunks[at].next_offset:
            return self.chunks[at]
        return self.chunks[at + 1] if at + 1 < len(self.chunks) else None

    def offset_of(self, lsn: int) -> int:
        """The offset of the message with this LSN, which is here."""
        at = max(0, bisect_right(self.chunks, lsn, key=lambda chunk: chunk.rows.first) - 1)
        chunk = self.chunks[at]
        return chunk.first_offset + chunk.rows.below(lsn)

    def position_of(self, lsn: int) -> int | None:
        """The offset of the message with this LSN, None if it is not here."""
        return position_in(self.chunks, lsn)

    def end_at(self, lsn: int) -> int:
        """The offset behind that of the last message whose LSN is not higher than this one."""
        if not self.chunks or self.chunks[-1].rows.last <= lsn:
            return self.next_offset
        at = bisect_right(self.chunks, lsn, key=lambda chunk: chunk.rows.first) - 1
        if at < 0:
            return self.first_offset
        chunk = self.chunks[at]
        return chunk.first_offset + chunk.rows.below(lsn + 1)

    def ranges(self, lsn: int = 0) -> Iterator[tuple[int, int]]:
        """First and last LSN of each row, of what is not lower than this LSN."""
        return chain.from_iterable(chunk.rows.ranges(lsn) for chunk in self.chunks)

    def held_spans(self) -> list[Collection[int]]:
        """All LSNs, as they are at this moment."""
        return [HeldRows(chunk.rows) for chunk in self.chunks]

    # Segments

    def oldest_segment(self) -> list[Chunk]:
        """The chunks of the oldest segment."""
        for at, chunk in enumerate(self.chunks):
            if at and chunk.opens_segment:
                return self.chunks[:at]
        return list(self.chunks)

    def drop(self, segment: list[Chunk]) -> None:
        """The oldest segment is gone."""
        del self.chunks[: len(segment)]
        self.segment_count -= 1
        self.count -= sum(chunk.rows.count for chunk in segment)
        self.octets -= sum(chunk.octets for chunk in segment)

    # Ends

    def forget_from(self, lsn: int) -> None:
        """Messages with this LSN or a higher one never were."""
        while self.chunks:
            chunk = self.chunks[-1]
            left = chunk.rows.below(lsn)
            if left == chunk.rows.count:
                break
            self.next_offset = chunk.first_offset + left
            self.count -= chunk.rows.count - left
            # Of what size they were nobody knows any more.
            octets = chunk.octets * left // chunk.rows.count
            self.octets -= chunk.octets - octets
            if left:
                chunk.octets = octets
                chunk.rows.cut(left)
                chunk.is_full = False
                break
            self.chunks.pop()
            self.segment_count -= chunk.opens_segment

    def restore(
        self,
        spans: Iterable[Sequence[int]],
        notes: list[ChunkNote],
        loop_ms: Callable[[int], int],
        split: Split | None = None,
    ) -> None:
        """Put recovered messages in place: their LSNs, and what had been noted.

        `split` tells the offsets that blocks say of rows of LSNs. Where none does, a chunk that
        retention was about to drop has lost its first messages, and what no note tells of goes on
        where the chunk before it ends. Damage leaves gaps, and what has to be measured.
        """
        rows = deque(rows_of(spans))
        for at, note in enumerate(notes):
            end = note.last_lsn or (notes[at + 1].first_lsn - 1 if at + 1 < len(notes) else None)
            before = take_rows(rows, note.first_lsn - 1)
            self._untold(before, note.first_offset - sum(count for _, count in before), split)
            self._told(take_rows(rows, end), note, loop_ms, split)
        self._untold(take_rows(rows, None), self.next_offset, split)

    def _untold(self, rows: list[tuple[int, int]], first_offset: int, split: Split | None) -> None:
        for piece in pieces_of(rows, first_offset, split):
            self._put(piece, opens_segment=not self.chunks)

    def _told(
        self,
        rows: list[tuple[int, int]],
        note: ChunkNote,
        loop_ms: Callable[[int], int],
        split: Split | None,
    ) -> None:
        count = sum(count for _, count in rows)
        is_whole = bool(note.last_lsn)
        end = note.first_offset + note.messages * is_whole
        first_offset = max(note.first_offset, end - count) if is_whole else note.first_offset
        pieces = pieces_of(rows, first_offset, split)
        for piece in pieces:
            opens = not self.chunks or (piece is pieces[0] and bool(note.opens_segment))
            chunk = self._put(piece, opens_segment=opens)
            if is_whole and len(pieces) == 1 and chunk.next_offset == end:
                chunk.is_measured = True
                chunk.octets = note.octets * count // note.messages
                chunk.first_ms, chunk.last_ms = loop_ms(note.first_ms), loop_ms(note.last_ms)
                self.octets += chunk.octets
        # What was lost leaves a gap.
        self.next_offset = max(self.next_offset, end)

    def _put(self, piece: Piece, *, opens_segment: bool) -> Chunk:
        chunk = Chunk(max(self.next_offset, piece.first_offset), opens_segment=opens_segment)
        chunk.is_full, chunk.is_measured = True, False
        for first, count in piece.rows:
            chunk.rows.add(first, count)
        self.chunks.append(chunk)
        self.segment_count += chunk.opens_segment
        self.count += chunk.rows.count
        self.next_offset = chunk.next_offset
        return chunk


# Cuts LSNs that follow each other into parts: first LSN, count, and the offset of the first where
# it is known.
Split = Callable[[int, int], Iterable[tuple[int, int, int | None]]]


class Piece(NamedTuple):
    """Rows of messages whose offsets follow each other."""

    first_offset: int
    rows: list[tuple[int, int]]


def pieces_of(rows: list[tuple[int, int]], first_offset: int, split: Split | None) -> list[Piece]:
    """Rows of LSNs, cut where offsets have a gap.

    What no block tells of ends where that begins which one does; `first_offset` is that of the
    first if none does.
    """
    parts = [
        part
        for first, count in rows
        for part in (split(first, count) if split is not None else ((first, count, None),))
    ]
    pieces: list[Piece] = []
    next_offset = first_offset
    untold = 0
    for _, count, offset in parts:
        if offset is not None:
            next_offset = max(0, offset - untold)
            break
        untold += count
    for first, count, offset in parts:
        if not pieces or (offset is not None and offset != next_offset):
            next_offset = offset if offset is not None else next_offset
            pieces.append(Piece(next_offset, []))
        pieces[-1].rows.append((first, count))
        next_offset += count
    return pieces


def position_in(chunks: Sequence[Chunk], lsn: int) -> int | None:
    """The offset of the message with this LSN in some chunks in order, None if it is not there."""
    at = bisect_right(chunks, lsn, key=lambda chunk: chunk.rows.first) - 1
    if at < 0:
        return None
    below = chunks[at].rows.below(lsn)
    is_there = chunks[at].rows.below(lsn + 1) > below
    return chunks[at].first_offset + below if is_there else None


def first_offset_of(chunk: Chunk) -> int:
    """The first offset of a chunk, to search chunks by."""
    return chunk.first_offset


def rows_of(spans: Iterable[Sequence[int]]) -> Iterable[tuple[int, int]]:
    """Rows (first, count) of ascending LSNs."""
    first = count = 0
    for span in spans:
        if isinstance(span, range):
            if count and span.start == first + count:
                count += len(span)
                continue
            if count:
                yield first, count
            first, count = span.start, len(span)
            continue
        for lsn in span:
            if count and lsn == first + count:
                count += 1
                continue
            if count:
                yield first, count
            first, count = lsn, 1
    if count:
        yield first, count


def take_rows(rows: deque[tuple[int, int]], last: int | None) -> list[tuple[int, int]]:
    """Take from the front what has LSNs up to `last`; None: everything."""
    taken: list[tuple[int, int]] = []
    while rows and (last is None or rows[0][0] <= last):
        first, count = rows.popleft()
        some = count if last is None else min(count, last - first + 1)
        taken.append((first, some))
        if some < count:
            rows.appendleft((first + some, count - some))
            break
    return taken
