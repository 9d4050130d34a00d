"""Which place messages have in queues that number theirs, for whoever cannot count any more.

    a run is stored or moved ─▶ its block says (queue id, first LSN, count, position) ─▶ Positions

What is left of such a queue after damage cannot be counted, as nobody knows how many of the LSNs
that are gone were its own. Each row is true by itself, whatever becomes of others. It must not know
what a position is good for.

Spec: STREAM-02
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Gives the position of a message by queue id and LSN, None where the queue has none or none is
# known.
PositionOf = Callable[[int, int], int | None]
# Numbers of a row: queue id, first LSN, count, position of the first.
WIDTH = 4


class Rows:
    """Rows of many queues in the order in which they are said; those that go on are one."""

    __slots__ = ("_last", "flat")

    def __init__(self) -> None:
        self.flat = array("Q")
        # Where the last row of each queue stands.
        self._last: dict[int, int] = {}

    def add(self, queue_id: int, lsn: int, count: int, position: int) -> bool:
        """Take in messages whose LSNs follow each other; whether that took a row."""
        flat = self.flat
        at = self._last.get(queue_id)
        if at is not None:
            some = flat[at + 2]
            if flat[at + 1] + some == lsn and flat[at + 3] + some == position:
                flat[at + 2] = some + count
                return False
        self._last[queue_id] = len(flat)
        flat.extend((queue_id, lsn, count, position))
        return True


class Positions:
    """Those of one queue, by LSN."""

    __slots__ = ("_counts", "_firsts", "_is_sorted", "_positions")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._counts = array("Q")
        self._positions = array("Q")
        self._is_sorted = True

    def add(self, lsn: int, count: int, position: int) -> None:
        """Take in messages whose LSNs follow each other."""
        if self._firsts and lsn < self._firsts[-1] + self._counts[-1]:
            self._is_sorted = False
        self._firsts.append(lsn)
        self._counts.append(count)
        self._positions.append(position)

    def of(self, lsn: int) -> int | None:
        """The position of the message with this LSN."""
        for _, _, position in self.split(lsn, 1):
            return position
        return None

    def split(self, lsn: int, count: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield messages whose LSNs follow each other in parts: first LSN, count, position."""
        self._sort()
        firsts, counts = self._firsts, self._counts
        end = lsn + count
        while lsn < end:
            at = bisect_right(firsts, lsn) - 1
            if at >= 0 and lsn < firsts[at] + counts[at]:
                stop = min(end, firsts[at] + counts[at])
                position: int | None = self._positions[at] + lsn - firsts[at]
            else:
                stop = min(end, firsts[at + 1]) if at + 1 < len(firsts) else end
                position = None
            yield lsn, stop - lsn, position
            lsn = stop

    def _sort(self) -> None:
        """Put rows in order: segments are read newest first, and moved messages are old ones.

        The same messages may be said twice, in whole or in part; of rows that begin alike the
        longest is kept, and of one that another covers nothing.
        """
        if self._is_sorted:
            return
        rows = zip(self._firsts, self._counts, self._positions, strict=True)
        kept: list[Sequence[int]] = []
        end = 0
        for first, count, position in sorted(rows, key=lambda row: (row[0], -row[1])):
            if first + count <= end:
                continue
            skipped = max(0, end - first)
            kept.append((first + skipped, count - skipped, position + skipped))
            end = first + count
        self._firsts = array("Q", (row[0] for row in kept))
        self._counts = array("Q", (row[1] for row in kept))
        self._positions = array("Q", (row[2] for row in kept))
        self._is_sorted = True
