"""Where each message lies: which stretch of which segment, in a few octets per stretch.

A *stretch* is a row of blocks, small ones together up to about 16 KiB, a larger one alone. Per
stretch only its first LSN and its offset are kept; what exactly a block holds is read from the
block again (`reader.py`). Messages that were moved lie outside this order and are found by the
range of LSNs that each block of moves spans.

It must not know files or octets.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

# Blocks share an entry until they are this large together.
STRETCH_BYTES: Final = 16 * 1024


class SegmentIndex:
    """One segment's entries. Offsets and sizes in octets."""

    __slots__ = (
        "_lsns",
        "_move_highs",
        "_move_lows",
        "_move_offsets",
        "_move_rows",
        "_moved_high",
        "_moved_low",
        "_offsets",
        "_room",
        "_route_numbers",
        "_route_offsets",
        "end",
        "first_lsn",
        "generation",
        "is_unchecked",
        "name",
        "next_lsn",
        "salt",
    )

    def __init__(self, generation: int, name: str, salt: int, first_lsn: int) -> None:
        self.generation = generation
        self.name = name
        self.salt = salt
        self.first_lsn = self.next_lsn = first_lsn
        self.end = 0
        # Nobody has read its blocks since the start: what is read has to be checked.
        self.is_unchecked = False
        self._room = 0
        self._lsns = array("Q")
        self._offsets = array("Q")
        self._route_numbers = array("Q")
        self._route_offsets = array("Q")
        self._move_lows = array("Q")
        self._move_highs = array("Q")
        self._move_offsets = array("Q")
        self._move_rows = array("Q")
        self._moved_low, self._moved_high = 1, 0

    @property
    def entry_bytes(self) -> int:
        """What all entries take in memory."""
        arrays = (self._lsns, self._route_numbers, self._move_lows)
        return 16 * len(arrays[0]) + 16 * len(arrays[1]) + 24 * len(arrays[2])

    def add(
        self,
        offset: int,
        size: int,
        lsns: tuple[int, int],
        *,
        has_runs: bool,
        first_route: int | None,
        moved: tuple[int, int] | None,
    ) -> None:
        """Take in the next block.

        Args:
            offset: where it is
            size: of all of it
            lsns: the first LSN that was handed out for it, and the first that was not
            has_runs: it holds new messages
            first_route: the lowest number of the routes that no block before it logs
            moved: the lowest and the highest LSN of the messages that were moved into it
        """
        is_behind_hole = self.end != offset and self.end > 0
        # A block that does not fit into the stretch as it is begins one of its own.
        if is_behind_hole or (has_runs and size > self._room):
            # What was in the hole is looked for behind it: there it is not, and nothing is broken.
            self._lsns.append(self.next_lsn if is_behind_hole else lsns[0])
            self._offsets.append(offset)
            self._room = STRETCH_BYTES
        self._room = max(0, self._room - size)
        self.next_lsn = lsns[1]
        if first_route is not None:
            # Ascending also where what told the routes before has been lost.
            newest = self._route_numbers[-1] if self._route_numbers else 0
            self._route_numbers.append(max(first_route, newest))
            self._route_offsets.append(offset)
        if moved is not None:
            self._add_moves(*moved, offset)
        self.end = offset + size

    def _add_moves(self, low: int, high: int, offset: int) -> None:
        has_others = bool(self._move_lows)
        if not has_others or low <= self._move_highs[-1]:
            self._move_rows.append(len(self._move_lows))
        self._moved_low = min(self._moved_low, low) if has_others else low
        self._moved_high = max(self._moved_high, high)
        self._move_lows.append(low)
        self._move_highs.append(high)
        self._move_offsets.append(offset)

    def rows(self) -> tuple[array[int], array[int], array[int]]:
        """Everything as numbers, for `restore`: in rows of two, two and three."""
        stretches, routes, moves = array("Q"), array("Q"), array("Q")
        for row in zip(self._lsns, self._offsets, strict=True):
            stretches.extend(row)
        for row in zip(self._route_numbers, self._route_offsets, strict=True):
            routes.extend(row)
        for each in zip(self._move_lows, self._move_highs, self._move_offsets, strict=True):
            moves.extend(each)
        return stretches, routes, moves

    def restore(
        self,
        stretches: array[int],
        routes: array[int],
        moves: array[int],
        end: int,
        next_lsn: int,
    ) -> None:
        """Take in what `rows` gave, of a segment that takes no more blocks."""
        self._lsns, self._offsets = stretches[::2], stretches[1::2]
        self._route_numbers, self._route_offsets = routes[::2], routes[1::2]
        for low, high, offset in zip(moves[::3], moves[1::3], moves[2::3], strict=True):
            self._add_moves(low, high, offset)
        self.end, self.next_lsn = end, next_lsn
        self.is_unchecked = True

    def stretch_of(self, lsn: int) -> Stretch | None:
        """The stretch in which a message lies that was published into this segment."""
        at = bisect_right(self._lsns, lsn) - 1
        if at < 0 or lsn >= self.next_lsn:
            return None
        first_lsn, offset = self._lsns[at], self._offsets[at]
        if at + 1 == len(self._lsns):
            return Stretch(self, offset, self.end, first_lsn, self.next_lsn)
        return Stretch(self, offset, self._offsets[at + 1], first_lsn, self._lsns[at + 1])

    def route_offsets(self, number: int) -> Iterator[int]:
        """Offsets of blocks that may log a route, the likeliest first.

        That is the one to ask, unless damage took it: then a later one logs the route again.
        """
        at = bisect_right(self._route_numbers, number) - 1
        if at >= 0:
            yield self._route_offsets[at]
        yield from self._route_offsets[at + 1 :]
        yield from reversed(self._route_offsets[: max(at, 0)])

    def move_offsets(self, lsn: int) -> Iterator[int]:
        """Offsets of blocks into which this message may have been moved, newest first."""
        if not self._moved_low <= lsn <= self._moved_high:
            return
        lows, highs = self._move_lows, self._move_highs
        # Compaction moves in the order of LSNs, so that these rise but for where a round begins.
        end = len(lows)
        for start in reversed(self._move_rows):
            at = bisect_right(lows, lsn, start, end) - 1
            while at >= start and highs[at] >= lsn:
                yield self._move_offsets[at]
                at -= 1
            end = start


class Stretch(NamedTuple):
    """Blocks with LSNs from `first_lsn` up to before `next_lsn`, from `offset` to before `end`."""

    segment: SegmentIndex
    offset: int
    end: int
    first_lsn: int
    next_lsn: int


class Index:
    """The segments that count, oldest first, the last of which grows."""

    __slots__ = ("_segments", "_starts")

    def __init__(self, segments: Sequence[SegmentIndex] = ()) -> None:
        self._segments = list(segments)
        self._starts = [segment.first_lsn for segment in self._segments]

    @property
    def entry_bytes(self) -> int:
        """What all entries take in memory."""
        return sum(segment.entry_bytes for segment in self._segments)

    @property
    def segment_count(self) -> int:
        """How many segments it knows."""
        return len(self._segments)

    @property
    def active(self) -> SegmentIndex:
        """The segment that takes new blocks."""
        return self._segments[-1]

    def begin(self, segment: SegmentIndex) -> None:
        """A segment has taken over."""
        self._segments.append(segment)
        self._starts.append(segment.first_lsn)

    def keep(self, generations: Collection[int]) -> list[int]:
        """Forget all segments but these; gives the generations of the others."""
        gone = [s.generation for s in self._segments if s.generation not in generations]
        self._segments = [s for s in self._segments if s.generation in generations]
        self._starts = [segment.first_lsn for segment in self._segments]
        return gone

    def checked(self, generation: int) -> None:
        """Every block of a segment was read and is what was written."""
        for segment in self._segments:
            if segment.generation == generation:
                segment.is_unchecked = False

    def stretch_of(self, lsn: int) -> Stretch | None:
        """The stretch into which a message was published; None if that segment is gone."""
        at = bisect_right(self._starts, lsn) - 1
        # A segment without any LSN of its own begins where the next one does.
        return self._segments[at].stretch_of(lsn) if at >= 0 else None

    def moved(self, lsn: int) -> Iterator[tuple[SegmentIndex, int]]:
        """Segments and offsets of blocks into which this message may have been moved."""
        for segment in reversed(self._segments):
            for offset in segment.move_offsets(lsn):
                yield segment, offset
