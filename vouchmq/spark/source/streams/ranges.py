"""Offsets of streams as plain numbers: what a batch may hold, how tasks share it, what is missing.

    positions (next to read, per queue) ──▶ admit ──▶ ranges ──▶ split ──▶ one range per task

A range is half-open, `[start, stop)`. Offsets are not dense on every broker, so a range says where
to stop and never how many messages there are: it is done when an offset of `stop - 1` or a later
one was seen. For that to happen, `stop` is one past an offset that was really delivered once, or
lies before one. Must not know brokers, nor Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

VERSION: Final = 1


class OffsetError(Exception):
    """An offset in a checkpoint that is none of ours, or not for these queues."""


class DataLossError(Exception):
    """Messages of a logged range are no longer there, or the stream is another one."""


@dataclass(frozen=True, slots=True)
class Range:
    """What one task reads: the messages of a stream from `start` to before `stop`."""

    queue: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"stream '{self.queue}', offsets {self.start} to {self.stop - 1}"


def offset_of(
    positions: Mapping[str, int],
    ids: Mapping[str, int] | None = None,
    at: Mapping[str, Any] | None = None,
    *,
    begins: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The offset that Spark keeps: it compares their texts, so the order of keys is fixed.

    Args:
        positions: where to read on
        ids: of the streams, as far as the broker tells them
        at: which data directory they are in, as JSON, where the broker tells
        begins: where the batch begins that ends here. Spark asks for the start of its first batch
            again each time that it plans it, so the start that it passes may be a later one
    """
    offset: dict[str, Any] = {"v": VERSION, "next": _sorted(positions)}
    if begins is not None:
        offset["from"] = _sorted(begins)
    if ids:
        offset["ids"] = _sorted(ids)
    return {**offset, "at": dict(at)} if at is not None else offset


def _sorted(numbers: Mapping[str, int]) -> dict[str, int]:
    return {queue: numbers[queue] for queue in sorted(numbers)}


def begins_of(offset: Mapping[str, Any]) -> dict[str, int] | None:
    """Where the batch begins that ends at an offset; None for one of an earlier version."""
    begins = offset.get("from")
    if begins is None:
        return None
    return {str(queue): int(number) for queue, number in begins.items()}


def ids_of(offset: Mapping[str, Any]) -> dict[str, int]:
    """The ids of the streams that an offset knows; of an earlier version: none."""
    return {str(queue): int(number) for queue, number in offset.get("ids", {}).items()}


def positions_of(offset: Mapping[str, Any], queues: Iterable[str]) -> dict[str, int]:
    """The next offset to read of each queue that an offset of ours names.

    A queue that joined the query later is not in it.

    Raises:
        OffsetError: it is of another mode or version, or names a queue that is not read.
    """
    positions = offset.get("next")
    if offset.get("v") != VERSION or not isinstance(positions, dict):
        raise OffsetError(
            f"the checkpoint's offset {dict(offset)} is not one of mode 'stream': a checkpoint "
            "belongs to one mode; start with another checkpointLocation"
        )
    strange = sorted(set(positions) - set(queues))
    if strange:
        raise OffsetError(
            f"the checkpoint has read from {', '.join(map(repr, strange))}, which option 'queue' "
            "does not name: add it again, or start with another checkpointLocation"
        )
    return {str(queue): int(number) for queue, number in positions.items()}


def admit(
    positions: Mapping[str, int], tails: Mapping[str, int], max_messages: int
) -> dict[str, int]:
    """Where a batch ends, per queue: the limit is shared in proportion to what is waiting.

    Every queue in which something waits gets one message at least, as far as the limit goes, so
    that a small one is not forgotten beside a large one.

    Args:
        positions: next to read
        tails: one past the newest message
        max_messages: as many may be in the batch; gaps in the offsets make it fewer
    """
    lags = {queue: max(0, tails[queue] - at) for queue, at in positions.items()}
    shares = _shares(lags, max_messages)
    return {queue: at + shares[queue] for queue, at in positions.items()}


def _shares(lags: Mapping[str, int], total: int) -> dict[str, int]:
    """`total` shared in proportion; whole numbers, none above its lag, their sum exact."""
    waiting = sum(lags.values())
    if waiting <= total:
        return dict(lags)
    by_size = sorted((queue for queue in lags if lags[queue]), key=lambda queue: -lags[queue])
    shares = dict.fromkeys(lags, 0)
    for queue in by_size[:total]:
        shares[queue] = max(1, lags[queue] * total // waiting)
    over = sum(shares.values()) - total
    # Rounding leaves less than one per queue, the ones of small queues may take some too many:
    # the largest have most to give and most to get.
    for queue in by_size:
        change = max(1 - shares[queue], min(-over, lags[queue] - shares[queue]))
        if shares[queue]:
            shares[queue] += change
            over += change
    return shares


def split(ranges: Sequence[Range], min_partitions: int) -> list[Range]:
    """Cut ranges so that there are so many at least, as far as they hold so many offsets.

    The order stays: the pieces of a range follow each other.
    """
    sizes = {index: each.stop - each.start for index, each in enumerate(ranges)}
    # Each has one piece already; the others go where the pieces are largest.
    pieces = dict.fromkeys(sizes, 1)
    for _ in range(min_partitions - len(ranges)):
        largest = max(sizes, key=lambda index: sizes[index] / pieces[index], default=None)
        if largest is None or pieces[largest] >= sizes[largest]:
            break
        pieces[largest] += 1
    return [piece for index, each in enumerate(ranges) for piece in _cut(each, pieces[index])]


def _cut(whole: Range, pieces: int) -> list[Range]:
    size = whole.stop - whole.start
    edges = [whole.start + size * number // pieces for number in range(pieces + 1)]
    return [Range(whole.queue, start, stop) for start, stop in pairwise(edges)]


def ranges_of(start: Mapping[str, int], end: Mapping[str, int]) -> list[Range]:
    """What lies between two positions; a queue that the first does not name begins at 0."""
    return [
        Range(queue, start.get(queue, 0), stop)
        for queue, stop in end.items()
        if start.get(queue, 0) < stop
    ]


def first_gap(offsets: Sequence[int], expected: int) -> tuple[int, int] | None:
    """The first offset that is missing and the one seen in its place; None if all follow.

    Args:
        offsets: in the order delivered, rising
        expected: what the first of them should be
    """
    if not offsets or (offsets[0] == expected and offsets[-1] - expected == len(offsets) - 1):
        return None
    for offset in offsets:
        if offset != expected:
            return expected, offset
        expected += 1
    return None
