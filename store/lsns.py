"""LSNs of one queue as replay meets them: what lives, and what is gone.

Both are met newest first, and asked for as few ranges and arrays. It must not know segments.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# So many LSNs in a row are kept as a range; fewer go into an array, up to so many.
_RANGE_LEAST: Final = 32
_ARRAY_MOST: Final = 8192


class Lsns:
    """LSNs of one queue, mostly met in falling runs."""

    __slots__ = ("_counts", "_firsts", "_is_falling", "count")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._counts = array("Q")
        self._is_falling = True
        self.count = 0

    def add(self, lsns: Sequence[int]) -> None:
        """Take in ascending LSNs, none of which is there already."""
        if isinstance(lsns, range):
            self._add_run(lsns[0], len(lsns))
            return
        end = len(lsns)
        for at in range(end - 1, -1, -1):
            if not at or lsns[at - 1] + 1 != lsns[at]:
                self._add_run(lsns[at], end - at)
                end = at

    def _add_run(self, first: int, count: int) -> None:
        self.count += count
        if self._firsts:
            lowest = self._firsts[-1]
            if first + count == lowest:
                self._firsts[-1] = first
                self._counts[-1] += count
                return
            if first > lowest:
                self._is_falling = False
        self._firsts.append(first)
        self._counts.append(count)

    def spans(self) -> list[Sequence[int]]:
        """Return all of them, ascending."""
        runs: Iterable[tuple[int, int]] = zip(
            reversed(self._firsts), reversed(self._counts), strict=True
        )
        if not self._is_falling:
            runs = sorted(runs)
        spans: list[Sequence[int]] = []
        few = array("Q")
        for first, count in runs:
            if count < _RANGE_LEAST:
                few.extend(range(first, first + count))
                if len(few) < _ARRAY_MOST:
                    continue
            if few:
                spans.append(few)
                few = array("Q")
            if count >= _RANGE_LEAST:
                spans.append(range(first, first + count))
        if few:
            spans.append(few)
        return spans


class Settled:
    """The LSNs of one queue that are gone: ranges, and a set for what is no range."""

    __slots__ = ("_ends", "_fresh", "_singles", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._fresh: list[tuple[int, int]] = []
        self._singles: set[int] = set()

    def add_range(self, first: int, count: int) -> None:
        """Note that `count` LSNs from `first` on are gone."""
        if count == 1:
            # What a queue that shares a segment with others mostly has: spare it the sorting.
            self._singles.add(first)
        else:
            self._fresh.append((first, first + count))

    def add_list(self, lsns: Sequence[int]) -> None:
        """Note that each of these LSNs is gone."""
        self._singles.update(lsns)

    def alive(self, first: int, count: int) -> Sequence[int]:
        """Return those of `count` LSNs from `first` on that are not gone, in order."""
        if self._fresh:
            self._merge()
        singles = self._singles
        if count == 1 and first in singles:
            return ()
        if not self._starts:
            alive: Sequence[int] = range(first, first + count)
        else:
            alive = self._outside_ranges(first, first + count)
        if count > 1 and alive and singles:
            alive = [lsn for lsn in alive if lsn not in singles]
        return alive

    def _outside_ranges(self, first: int, end: int) -> Sequence[int]:
        index = bisect_right(self._starts, first) - 1
        if index >= 0:
            first = max(first, self._ends[index])
        index += 1
        if index == len(self._starts) or self._starts[index] >= end:
            return range(first, end)
        alive: list[int] = []
        while first < end:
            stop = min(end, self._starts[index]) if index < len(self._starts) else end
            alive += range(first, stop)
            first = max(stop, self._ends[index]) if index < len(self._starts) else end
            index += 1
        return alive

    def _merge(self) -> None:
        spans = sorted([*self._fresh, *zip(self._starts, self._ends, strict=True)])
        self._fresh = []
        self._starts = []
        self._ends = []
        for first, end in spans:
            if self._ends and first <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(first)
                self._ends.append(end)
