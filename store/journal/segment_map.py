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
    """Ranges of LSNs, each with its home, the last of them open."""

    __slots__ = ("_segment_map", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._segment_map: list[S | None] = []

    def __len__(self) -> int:
        """Return how many ranges there are."""
        return len(self._starts)

    def restore(self, natives: Sequence[tuple[int, S]], moved: Mapping[int, S]) -> None:
        """Begin anew: homes from their first LSNs on, but for single LSNs that were moved."""
        self._starts, self._segment_map = [], []
        floor = natives[0][0] if natives else 0
        lsns = sorted(moved)
        low = bisect_left(lsns, floor)
        # What lies between those was in homes that are gone.
        for lsn in lsns[:low]:
            if not self._segment_map or self._segment_map[-1] is not moved[lsn]:
                self._starts.append(lsn)
                self._segment_map.append(moved[lsn])
        for first, home in natives:
            self.begin(first, home)
        for lsn in lsns[low:]:
            self.assign(lsn, lsn + 1, moved[lsn])

    def begin(self, first_lsn: int, home: S) -> None:
        """LSNs from here on go to a new home."""
        if self._starts and self._starts[-1] == first_lsn:
            # The one before was never given any.
            self._segment_map[-1] = home
            return
        self._starts.append(first_lsn)
        self._segment_map.append(home)

    def of(self, lsn: int) -> S | None:
        """Return the home of an LSN; None if nothing with it can be live."""
        at = bisect_right(self._starts, lsn) - 1
        return self._segment_map[at] if at >= 0 else None

    def start_of(self, lsn: int) -> int:
        """Return where the range begins that an LSN is in, which has a home."""
        return self._starts[bisect_right(self._starts, lsn) - 1]

    def shared(self, first: int, last: int) -> S | None:
        """Return the home of all LSNs from `first` to `last` if they are in one range."""
        at = bisect_right(self._starts, first) - 1
        if at < 0 or (at + 1 < len(self._starts) and self._starts[at + 1] <= last):
            return None
        return self._segment_map[at]

    def split(self, lsns: Sequence[int]) -> Iterator[tuple[S | None, Sequence[int]]]:
        """Yield ascending LSNs in pieces that share a home."""
        begin = 0
        while begin < len(lsns):
            at = bisect_right(self._starts, lsns[begin])
            end = len(lsns)
            if at < len(self._starts):
                end = bisect_left(lsns, self._starts[at], begin)
            yield (self._segment_map[at - 1] if at else None), lsns[begin:end]
            begin = end

    def assign(self, first: int, end: int, home: S) -> None:
        """Give LSNs from `first` to before `end` another home; they have one already."""
        starts, segment_map = self._starts, self._segment_map
        low = bisect_left(starts, first)
        high = bisect_left(starts, end, low)
        new: list[tuple[int, S | None]] = []
        if not low or segment_map[low - 1] is not home:
            new.append((first, home))
        is_cut = high == len(starts) or starts[high] > end
        if is_cut and high and segment_map[high - 1] is not home:
            # What was behind stays where it is.
            new.append((end, segment_map[high - 1]))
        elif high < len(starts) and starts[high] == end and segment_map[high] is home:
            high += 1
        starts[low:high] = [start for start, _ in new]
        segment_map[low:high] = [each for _, each in new]

    def forget(self, home: S, may_have: Callable[[S], bool]) -> None:
        """Nothing lives in this home any more: its neighbours may have its ranges.

        But only those to whom `may_have` gives leave: where copies still stand that were moved
        from there to this home, they would be alive again. Then the range is nobody's.
        """
        starts: list[int] = []
        segment_map: list[S | None] = []
        for start, old in zip(self._starts, self._segment_map, strict=True):
            before = segment_map[-1] if segment_map else None
            each = old
            if old is home:
                each = before if before is not None and may_have(before) else None
            if each is not before:
                starts.append(start)
                segment_map.append(each)
        self._starts, self._segment_map = starts, segment_map
