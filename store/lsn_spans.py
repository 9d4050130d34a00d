"""About which LSNs were moved to a segment, in little memory.

What compaction carries on is what lives here and there among much that is gone. So LSNs that are
near each other count as one span: a few that never were there only cost a settle too many.

It must not know segments.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

# Spans with so many LSNs or fewer between them are one.
NEAR: Final = 64


class Spans:
    """A set of LSNs as ascending, disjoint spans."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts = array("Q")
        self._ends = array("Q")

    def __len__(self) -> int:
        """Return how many spans there are."""
        return len(self._starts)

    def add(self, first: int, count: int) -> None:
        """Add `count` LSNs from `first` on; cheap in ascending order."""
        starts, ends, end = self._starts, self._ends, first + count
        if not starts or first > ends[-1] + NEAR:
            starts.append(first)
            ends.append(end)
            return
        # All that this touches becomes one.
        low = bisect_left(ends, max(0, first - NEAR))
        high = bisect_right(starts, end + NEAR)
        if low < high:
            first, end = min(first, starts[low]), max(end, ends[high - 1])
        starts[low:high] = array("Q", (first,))
        ends[low:high] = array("Q", (end,))

    def overlaps(self, first: int, end: int) -> bool:
        """Return whether any LSN from `first` to before `end` may be among them."""
        at = bisect_right(self._ends, first)
        return at < len(self._starts) and self._starts[at] < end

    def among(self, lsns: Sequence[int]) -> list[int]:
        """Return those of ascending LSNs that may be among them."""
        if not lsns:
            return []
        found: list[int] = []
        at = bisect_right(self._ends, lsns[0])
        begin = 0
        while at < len(self._starts) and begin < len(lsns):
            begin = bisect_left(lsns, self._starts[at], begin)
            stop = bisect_left(lsns, self._ends[at], begin)
            found += lsns[begin:stop]
            begin = stop
            at += 1
        return found
