"""Where each message lies: which stretch of which segment, in a few octets per stretch.

A *stretch* is a row of blocks, small ones together up to about 16 KiB, a larger one alone. Per
stretch only its first LSN and its offset are kept; what exactly a block holds is read from the
block again (`reader.py`).

Messages that were moved lie outside this order. Each of them has exactly one place here: ranges of
LSNs that do not overlap, each with the block that they were moved to (decision 0011). LSNs that
came into the same block share a range if nothing was moved from between them, so that a round of
compaction, which moves in the order of LSNs, leaves about as many ranges as blocks.

It must not know files or octets.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

# Blocks share an entry until they are this large together.
STRETCH_BYTES: Final = 16 * 1024
_BY_GENERATION: Final = attrgetter("generation")


class SegmentIndex:
    """One segment's entries. Offsets and sizes in octets."""

    __slots__ = (
        "_lsns",
        "_moved_ends",
        "_moved_firsts",
        "_moved_offsets",
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
        # Of messages that were moved here: ascending ranges that do not overlap, and their blocks.
        self._moved_firsts = array("Q")
        self._moved_ends = array("Q")
        self._moved_offsets = array("Q")

    @property
    def entry_bytes(self) -> int:
        """What all entries take in memory."""
        arrays = (self._lsns, self._route_numbers, self._moved_firsts)
        return 16 * len(arrays[0]) + 16 * len(arrays[1]) + 24 * len(arrays[2])

    def add(
        self,
        offset: int,
        size: int,
        lsns: tuple[int, int],
        *,
        has_runs: bool,
        first_route: int | None,
        moved: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Take in the next block.

        Args:
            offset: where it is
            size: of all of it
            lsns: the first LSN that was handed out for it, and the first that was not
            has_runs: it holds new messages
            first_route: the lowest number of the routes that no block before it logs
            moved: first LSN and count of each run of messages that was moved into it
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
        for first, count in moved:
            self._put_moved(first, first + count, offset)
        self.end = offset + size

    def _put_moved(self, first: int, end: int, offset: int) -> None:
        """Note that LSNs from `first` to before `end` are in a block, whatever was said before."""
        firsts, ends, offsets = self._moved_firsts, self._moved_ends, self._moved_offsets
        if not firsts or first >= ends[-1]:
            if firsts and offsets[-1] == offset:
                ends[-1] = end
            else:
                firsts.append(first)
                ends.append(end)
                offsets.append(offset)
            return
        low, high = bisect_right(ends, first), bisect_left(firsts, end)
        if low < high and firsts[low] <= first and ends[low] >= end and offsets[low] == offset:
            return
        # What is left of ranges that this one cuts, and its neighbours if they are of its block.
        before = (firsts[low], first, offsets[low]) if low < high and firsts[low] < first else None
        last = high - 1
        behind = (end, ends[last], offsets[last]) if low < high and ends[last] > end else None
        if before is None and low and offsets[low - 1] == offset:
            low -= 1
            first = firsts[low]
        if behind is None and high < len(firsts) and offsets[high] == offset:
            end = ends[high]
            high += 1
        new = [each for each in (before, (first, end, offset), behind) if each is not None]
        firsts[low:high] = array("Q", [each[0] for each in new])
        ends[low:high] = array("Q", [each[1] for each in new])
        offsets[low:high] = array("Q", [each[2] for each in new])

    def rows(self) -> tuple[array[int], array[int], array[int]]:
        """Everything as numbers, for `restore`: in rows of two, two and three.

        Those of moves are the lowest and the highest LSN of a range, and where their block is.
        """
        stretches, routes, moves = array("Q"), array("Q"), array("Q")
        for row in zip(self._lsns, self._offsets, strict=True):
            stretches.extend(row)
        for row in zip(self._route_numbers, self._route_offsets, strict=True):
            routes.extend(row)
        for first, end, offset in zip(
            self._moved_firsts, self._moved_ends, self._moved_offsets, strict=True
        ):
            moves.extend((first, end - 1, offset))
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
        self._moved_firsts, self._moved_offsets = moves[::3], moves[2::3]
        self._moved_ends = array("Q", [high + 1 for high in moves[1::3]])
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

    def moved_to(self, lsn: int) -> int | None:
        """The offset of the block that a message was moved to; None: it was not moved here.

        A number between two that were moved to one block has its offset as well.
        """
        at = bisect_right(self._moved_firsts, lsn) - 1
        return self._moved_offsets[at] if at >= 0 and lsn < self._moved_ends[at] else None


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

    def of(self, generation: int) -> SegmentIndex | None:
        """A segment by its number; None if it is gone."""
        at = bisect_left(self._segments, generation, key=_BY_GENERATION)
        if at < len(self._segments) and self._segments[at].generation == generation:
            return self._segments[at]
        return None
