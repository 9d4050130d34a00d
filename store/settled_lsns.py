"""Which LSNs of a queue are gone, in a few octets each: what compaction asks before it moves.

Adding costs an append and never sorts, as it stands on the way of every settle. In-order
consumption of a queue that has its segment to itself is one range, however long; an interleaved
or random one costs eight octets per copy until its segment is dead or compacted.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence


class Settled:
    """LSNs that are gone; sorted when somebody asks, not before."""

    __slots__ = ("_ends", "_is_sorted", "_singles", "_starts")

    def __init__(self) -> None:
        self._starts = array("Q")
        self._ends = array("Q")
        self._singles = array("Q")
        self._is_sorted = True

    def add_range(self, first: int, count: int) -> None:
        """Note that `count` LSNs from `first` on are gone."""
        if self._ends and self._ends[-1] == first:
            self._ends[-1] = first + count
            return
        self._starts.append(first)
        self._ends.append(first + count)
        self._is_sorted = False

    def add_list(self, lsns: Iterable[int]) -> None:
        """Note that each of these LSNs is gone."""
        self._singles.extend(lsns)
        self._is_sorted = False

    def fill(self, first: int, end: int) -> None:
        """Forget what is known: everything from `first` to before `end` is gone."""
        if len(self._starts) == 1 and self._starts[0] == first and not self._singles:
            # Again, of a queue whose messages come and go one by one.
            self._ends[0] = end
            return
        self._starts = array("Q", (first,))
        self._ends = array("Q", (end,))
        self._singles = array("Q")
        self._is_sorted = True

    @property
    def octets(self) -> int:
        """What it takes in memory, about."""
        return 16 * len(self._starts) + 8 * len(self._singles)

    def alive(self, lsns: Sequence[int]) -> Sequence[int]:
        """Return those of `lsns`, which are in order, that are not gone."""
        if not lsns:
            return lsns
        if not self._is_sorted:
            self._sort()
        singles = self._singles
        low, high = bisect_left(singles, lsns[0]), bisect_right(singles, lsns[-1])
        if low < high:
            gone = set(singles[low:high])
            lsns = [lsn for lsn in lsns if lsn not in gone]
        return self._outside_ranges(lsns)

    def _outside_ranges(self, lsns: Sequence[int]) -> Sequence[int]:
        if not lsns:
            return lsns
        starts, ends = self._starts, self._ends
        at = bisect_right(ends, lsns[0])
        if at == len(starts) or starts[at] > lsns[-1]:
            return lsns
        alive: list[int] = []
        begin = 0
        while begin < len(lsns) and at < len(starts):
            stop = bisect_left(lsns, starts[at], begin)
            alive += lsns[begin:stop]
            begin = bisect_left(lsns, ends[at], stop)
            at += 1
        return [*alive, *lsns[begin:]]

    def _sort(self) -> None:
        self._is_sorted = True
        self._singles = array("Q", sorted(self._singles))
        starts, ends = array("Q"), array("Q")
        for first, end in sorted(zip(self._starts, self._ends, strict=True)):
            if ends and first <= ends[-1]:
                ends[-1] = max(end, ends[-1])
            else:
                starts.append(first)
                ends.append(end)
        self._starts, self._ends = starts, ends
