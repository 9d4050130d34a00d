"""Which segment holds the live copies with an LSN.

A message lives in the segment that was active when its LSN was handed out, until it is moved. So
ranges of LSNs have a segment, and a segment that was emptied leaves few ranges behind: those of its
messages that live on, whatever died between them.

It must not know what a segment is.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

S = TypeVar("S")


class SegmentMap(Generic[S]):
    """Ranges of LSNs, each with its segment, the last of them open."""

    __slots__ = ("_segments", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._segments: list[S | None] = []

    def __len__(self) -> int:
        """Return how many ranges there are."""
        return len(self._starts)

    def restore(self, natives: Sequence[tuple[int, S]], moved: Mapping[int, S]) -> None:
        """Begin anew: segments from their first LSNs on, but for single LSNs that were moved."""
        self._starts, self._segments = [], []
        floor = natives[0][0] if natives else 0
        lsns = sorted(moved)
        low = bisect_left(lsns, floor)
        # What lies between those was in segments that are gone.
        for lsn in lsns[:low]:
            if not self._segments or self._segments[-1] is not moved[lsn]:
                self._starts.append(lsn)
                self._segments.append(moved[lsn])
        for first, segment in natives:
            self.begin(first, segment)
        for lsn in lsns[low:]:
            self.assign(lsn, lsn + 1, moved[lsn])

    def begin(self, first_lsn: int, segment: S) -> None:
        """LSNs from here on go to a new segment."""
        if self._starts and self._starts[-1] == first_lsn:
            # The one before was never given any.
            self._segments[-1] = segment
            return
        self._starts.append(first_lsn)
        self._segments.append(segment)

    def of(self, lsn: int) -> S | None:
        """Return the segment of an LSN; None if nothing with it can be live."""
        at = bisect_right(self._starts, lsn) - 1
        return self._segments[at] if at >= 0 else None

    def start_of(self, lsn: int) -> int:
        """Return where the range begins that an LSN is in, which has a segment."""
        return self._starts[bisect_right(self._starts, lsn) - 1]

    def shared(self, first: int, last: int) -> S | None:
        """Return the segment of all LSNs from `first` to `last` if they are in one range."""
        at = bisect_right(self._starts, first) - 1
        if at < 0 or (at + 1 < len(self._starts) and self._starts[at + 1] <= last):
            return None
        return self._segments[at]

    def split(self, lsns: Sequence[int]) -> Iterator[tuple[S | None, Sequence[int]]]:
        """Yield ascending LSNs in pieces that share a segment."""
        begin = 0
        while begin < len(lsns):
            at = bisect_right(self._starts, lsns[begin])
            end = len(lsns)
            if at < len(self._starts):
                end = bisect_left(lsns, self._starts[at], begin)
            yield (self._segments[at - 1] if at else None), lsns[begin:end]
            begin = end

    def assign(self, first: int, end: int, segment: S) -> None:
        """Give LSNs from `first` to before `end` another segment; they have one already."""
        starts, segments = self._starts, self._segments
        low = bisect_left(starts, first)
        high = bisect_left(starts, end, low)
        new: list[tuple[int, S | None]] = []
        if not low or segments[low - 1] is not segment:
            new.append((first, segment))
        is_cut = high == len(starts) or starts[high] > end
        if is_cut and high and segments[high - 1] is not segment:
            # What was behind stays where it is.
            new.append((end, segments[high - 1]))
        elif high < len(starts) and starts[high] == end and segments[high] is segment:
            high += 1
        starts[low:high] = [start for start, _ in new]
        segments[low:high] = [each for _, each in new]

    def forget(self, segment: S, may_have: Callable[[S], bool]) -> None:
        """Nothing lives in this segment any more: the ones beside it may have its ranges.

        But only those to whom `may_have` gives leave: where copies still stand that were moved
        from there to this segment, they would be alive again. Then the range is nobody's.
        """
        starts: list[int] = []
        segments: list[S | None] = []
        for start, old in zip(self._starts, self._segments, strict=True):
            before = segments[-1] if segments else None
            each = old
            if old is segment:
                each = before if before is not None and may_have(before) else None
            if each is not before:
                starts.append(start)
                segments.append(each)
        self._starts, self._segments = starts, segments
