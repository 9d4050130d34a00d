"""How far a query has come, as Spark keeps it in its checkpoint: of mode queue and of mode spool.

    queue   {"v":1,"epoch":"<12 hex>","n":<handed out>[,"done":{"<queue id>":[[first,last],…]}]}
    spool   {"v":1,"spool":"<12 hex>","file":<number>}

Both with `at` where the broker tells which data directory it has; see `data_directory.py`.

Spark compares offsets by their text: keys have a fixed order, numbers are whole, and an offset
changes only when there is something new. `done` is what was handed out, as ranges of the broker's
queue sequence. Must not know connections, files, nor Spark.

Spec: SEQ-01, SEQ-02
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vouchmq.spark.source.data_directory import Seen

VERSION: Final = 1

Place = tuple[int, int]


class OffsetError(Exception):
    """An offset in a checkpoint that is none of this mode's."""


class Ranges:
    """A set of whole numbers, kept as ranges that neither overlap nor touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, rows: Iterable[Iterable[int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in rows:
            self.add(first, last)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, both ends inside, rising."""
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def range_count(self) -> int:
        """How many ranges it takes."""
        return len(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Put in all numbers from `first` to `last`."""
        firsts, lasts = self._firsts, self._lasts
        if lasts and first > lasts[-1]:
            # What comes in order is behind all others.
            if first == lasts[-1] + 1:
                lasts[-1] = last
            else:
                firsts.append(first)
                lasts.append(last)
            return
        low = bisect_left(lasts, first - 1)
        high = bisect_right(firsts, last + 1)
        if low < high:
            first, last = min(first, firsts[low]), max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def minus(self, other: Ranges) -> Ranges:
        """What is here and not there."""
        left = Ranges()
        for first, last in self:
            at = bisect_left(other._lasts, first)
            while at < len(other._firsts) and other._firsts[at] <= last:
                if other._firsts[at] > first:
                    left.add(first, other._firsts[at] - 1)
                first = other._lasts[at] + 1
                at += 1
            if first <= last:
                left.add(first, last)
        return left


class Places:
    """Places of copies in their queues: (queue id, sequence), as ranges for each queue."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[int, Ranges] = {}

    def __contains__(self, place: Place) -> bool:
        ranges = self._queues.get(place[0])
        return ranges is not None and place[1] in ranges

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places) and self.as_json() == other.as_json()

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def range_count(self) -> int:
        """How many ranges it takes."""
        return sum(ranges.range_count for ranges in self._queues.values())

    def per_queue(self) -> dict[int, int]:
        """How many places there are, by queue id."""
        return {queue_id: len(ranges) for queue_id, ranges in self._queues.items()}

    def add(self, queue_id: int, first: int, last: int) -> None:
        """Put in a range, both ends inside."""
        ranges = self._queues.get(queue_id)
        if ranges is None:
            ranges = self._queues[queue_id] = Ranges()
        ranges.add(first, last)

    def add_all(self, places: Iterable[Place | None]) -> None:
        """Put in each; quickly when they follow each other. None is passed over."""
        queue_id, first, last = 0, 0, -1
        for place in places:
            if place is None:
                continue
            if place[1] == last + 1 and place[0] == queue_id:
                last += 1
                continue
            if last >= first:
                self.add(queue_id, first, last)
            queue_id, first = place
            last = first
        if last >= first:
            self.add(queue_id, first, last)

    def update(self, other: Places) -> None:
        """Put in what is there."""
        for queue_id, ranges in other._queues.items():
            for first, last in ranges:
                self.add(queue_id, first, last)

    def minus(self, other: Places) -> Places:
        """What is here and not there."""
        left = Places()
        for queue_id, ranges in self._queues.items():
            theirs = other._queues.get(queue_id)
            rest = ranges if theirs is None else ranges.minus(theirs)
            for first, last in rest:
                left.add(queue_id, first, last)
        return left

    def copy(self) -> Places:
        """One that changes by itself."""
        return self.minus(Places())

    def as_json(self) -> dict[str, list[list[int]]]:
        """The JSON form, in a fixed order, because Spark compares texts."""
        return {
            str(queue_id): [list(each) for each in self._queues[queue_id]]
            for queue_id in sorted(self._queues)
            if self._queues[queue_id].range_count
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Iterable[Iterable[int]]]) -> Places:
        """What `as_json` gave.

        Raises:
            ValueError, TypeError, AttributeError: it did not
        """
        places = cls()
        for queue_id, rows in value.items():
            for first, last in rows:
                places.add(int(queue_id), first, last)
        return places


@dataclass(frozen=True)
class QueueOffset:
    """How far a query of mode queue has come.

    Args:
        epoch: of the process that handed out; a process knows only its own deliveries
        handed_out: messages since that process began
        done: what was handed out as far as it may come again; None without a sequence
        at: where it was read, None where the broker does not tell
    """

    epoch: str
    handed_out: int
    done: Places | None = None
    at: Seen | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON form, in a fixed order, because Spark compares texts."""
        offset: dict[str, Any] = {"v": VERSION, "epoch": self.epoch, "n": self.handed_out}
        if self.done is not None:
            offset["done"] = self.done.as_json()
        return offset if self.at is None else {**offset, "at": self.at.as_json()}

    @classmethod
    def of_json(cls, offset: Mapping[str, Any]) -> QueueOffset:
        """What `as_json` gave.

        Raises:
            OffsetError: it is of another mode or version
        """
        try:
            if offset["v"] != VERSION:
                raise ValueError
            done = Places.of_json(offset["done"]) if "done" in offset else None
            at = Seen.of_json(offset.get("at"))
            return cls(str(offset["epoch"]), int(offset["n"]), done, at)
        except (KeyError, ValueError, TypeError, AttributeError):
            raise _of_another_mode(offset, "queue") from None


@dataclass(frozen=True)
class SpoolOffset:
    """How far a query of mode spool has come: the last file that was handed out, 0 for none.

    `spool` is the identity of the directory, empty before there is a file; `at` as in mode queue.
    """

    spool: str
    file: int
    at: Seen | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON form, in a fixed order, because Spark compares texts."""
        offset: dict[str, Any] = {"v": VERSION, "spool": self.spool, "file": self.file}
        return offset if self.at is None else {**offset, "at": self.at.as_json()}

    @classmethod
    def of_json(cls, offset: Mapping[str, Any]) -> SpoolOffset:
        """What `as_json` gave.

        Raises:
            OffsetError: it is of another mode or version
        """
        try:
            if offset["v"] != VERSION:
                raise ValueError
            at = Seen.of_json(offset.get("at"))
            return cls(str(offset["spool"]), int(offset["file"]), at)
        except (KeyError, ValueError, TypeError, AttributeError):
            raise _of_another_mode(offset, "spool") from None


def _of_another_mode(offset: Mapping[str, Any], mode: str) -> OffsetError:
    return OffsetError(
        f"the checkpoint's offset {dict(offset)} is not one of mode '{mode}': a checkpoint belongs "
        "to one mode; start with another checkpointLocation"
    )
