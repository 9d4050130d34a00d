"""Routes: the numbers by which blocks say where a message goes and what stands in front of it.

A route is the ids of queues and a tail. It has a number within its segment, and the first two
blocks with messages of it tell what the number means: the loss of one block must not take the
messages of others along. The table is bounded. A publisher with ever other routing keys makes it
start anew, which costs disk, since routes in use are told again, and no memory.

It must not know blocks or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.store.journal import records

if TYPE_CHECKING:
    from collections.abc import Sequence

# Beyond this many different routes in a segment the table starts anew.
_MAX_ROUTES: Final = 4096

Route = tuple[tuple[int, ...], bytes]


class RouteTable:
    """The routes of the active segment that blocks may still name.

    `by_number` has them all, `new` the numbers of those that no block tells yet, `told_once` of
    those that a single one of this segment tells: the next one with messages of such a route does.
    """

    __slots__ = ("_again", "_by_ids", "_limit", "_next", "by_number", "new", "told_once")

    def __init__(self) -> None:
        self.by_number: dict[int, Route] = {}
        self.new: list[int] = []
        self._by_ids: dict[tuple[int, ...], dict[bytes, int]] = {}
        self.told_once: set[int] = set()
        self._again: list[int] = []  # those that the block tells which was encoded last
        self._next = 0
        self._limit = _MAX_ROUTES

    def find(self, queue_ids: tuple[int, ...], tail: bytes) -> int | None:
        """Return the number of a route, None if it has none yet."""
        known = self._by_ids.get(queue_ids)
        return known.get(tail) if known is not None else None

    def number_all(self, queue_ids: tuple[int, ...], tails: Sequence[bytes]) -> list[int] | None:
        """Return the numbers of routes to the same queues, new ones for those that have none.

        None, and nothing is done, if there may be no room for them.
        """
        known = self._by_ids.get(queue_ids, {})
        numbers = [*map(known.get, tails)]
        if None in numbers:
            if len(self.by_number) + len(tails) > self._limit:
                return None
            known = self._by_ids.setdefault(queue_ids, known)
            for at, tail in enumerate(tails):
                if numbers[at] is None:
                    # It may have come up just before.
                    number = known.get(tail)
                    numbers[at] = self.add(queue_ids, tail) if number is None else number
        return numbers  # type: ignore[return-value]

    @property
    def is_full(self) -> bool:
        """Whether those that are not in use have to go before another is added."""
        return len(self.by_number) >= self._limit

    def add(self, queue_ids: tuple[int, ...], tail: bytes) -> int:
        """Give a route a number; numbers keep growing."""
        number = self._next
        self._next = number + 1
        self.by_number[number] = (queue_ids, tail)
        known = self._by_ids.get(queue_ids)
        if known is None:
            known = self._by_ids[queue_ids] = {}
        known[tail] = number
        self.new.append(number)
        return number

    def keep(self, numbers: set[int]) -> None:
        """Forget all others."""
        self.by_number = {number: self.by_number[number] for number in sorted(numbers)}
        self._by_ids = {}
        for number, (queue_ids, tail) in self.by_number.items():
            self._by_ids.setdefault(queue_ids, {})[tail] = number
        self.told_once &= numbers

    def make_room(self, numbers: set[int]) -> None:
        """Forget all others, because the table `is_full`."""
        self.keep(numbers)
        self._limit = max(_MAX_ROUTES, 2 * len(self.by_number))

    def begin_segment(self, numbers: set[int]) -> None:
        """Forget all others; these no block of the new segment tells."""
        self.keep(numbers)
        self.told_once.clear()
        self._again = []
        self.new = list(self.by_number)

    def encode(self, numbers: set[int]) -> list[bytes]:
        """Return what a block with messages of these tells: new ones, and those told once."""
        self._again = sorted(self.told_once & numbers)
        packed: list[bytes] = []
        for number in (*self.new, *self._again):
            queue_ids, tail = self.by_number[number]
            packed.append(records.pack_route(number, queue_ids, tail))
        return packed

    def count_block(self) -> None:
        """What was encoded last is in the segment."""
        if self._again:
            self.told_once.difference_update(self._again)
            self._again = []
        if self.new:
            self.told_once.update(self.new)
            self.new = []

    def forget_block(self, numbers: set[int]) -> None:
        """What was encoded last is not; keep those that the next block may name, too."""
        lost = set(self.new)
        self.new, self._again = [], []
        self.keep(numbers | (self.by_number.keys() - lost))

    def size_of(self, numbers: set[int]) -> int:
        """Return an upper bound, in octets, of telling these."""
        keys = (self.by_number[number] for number in numbers)
        return records.SECTION_SIZE + sum(16 + 8 * len(ids) + len(tail) for ids, tail in keys)
