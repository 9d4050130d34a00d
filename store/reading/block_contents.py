"""What the blocks of a segment say about copies: which came, were moved, are gone.

For whoever looks at a segment at rest: compaction and the offline tools. Nothing is kept here,
and no checksum is looked at.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from vouchmq.store.journal import records
from vouchmq.store.journal.records import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vouchmq.store.reading.blocks import Block, Window

Route = tuple[tuple[int, ...], bytes]


class Run(NamedTuple):
    """Messages with consecutive LSNs; `bounds` are offsets in the file, one more than messages.

    `arrived_ms` is when their first block was written, wall clock, 0 if that is not known.
    """

    first_lsn: int
    queue_ids: tuple[int, ...]
    tail: bytes
    bounds: Sequence[int]
    is_moved: bool
    arrived_ms: int

    @property
    def lsns(self) -> range:
        """The consecutive LSNs of the run's messages."""
        return range(self.first_lsn, self.first_lsn + len(self.bounds) - 1)


def learn_routes(block: Block, window: Window, routes: dict[int, Route]) -> None:
    """Add the routes that a block logs, by their numbers."""
    body = block.body(window, records.ROUTES)
    if body:
        section = Section(block.sections[records.ROUTES].item_count, 0, len(body))
        for number, queue_ids, tail in records.unpack_routes(body, section):
            routes[number] = (queue_ids, tail)


def runs_of(
    block: Block,
    window: Window,
    routes: dict[int, Route],
    kinds: Sequence[int] = (records.RUNS, records.MOVES),
    is_wanted: Callable[[tuple[int, ...]], bool] | None = None,
    lost: Callable[[int, int], None] | None = None,
) -> Iterator[Run]:
    """Yield what came and what was moved; those whose route is lost are left out.

    `is_wanted` is asked with the ids of the queues that a run went to, `lost` called with the first
    LSN and the count of what is left out.
    """
    contents = block.sections.get(records.CONTENTS)
    if contents is None:
        return
    lengths = records.lengths_in(block.body(window, records.LENGTHS))
    bounds = list(accumulate(lengths, initial=contents.start))
    at = 0
    for kind in (records.RUNS, records.MOVES):
        is_moved = kind == records.MOVES
        arrivals = moves_arrived(block, window) if is_moved else [arrived_ms(block, window)]
        numbers = iter(_numbers(block, window, kind))
        for index, (number, first, count) in enumerate(zip(numbers, numbers, numbers, strict=True)):
            route = routes.get(number)
            if route is None and lost is not None:
                lost(first, count)
            if route is not None and kind in kinds and (is_wanted is None or is_wanted(route[0])):
                arrived = arrivals[index if is_moved else 0]
                yield Run(first, *route, bounds[at : at + count + 1], is_moved, arrived)
            at += count


def arrived_ms(block: Block, window: Window) -> int:
    """Return when the runs of a block came: wall clock; 0 if the block does not say."""
    written = _numbers(block, window, records.WRITTEN)
    return written[0] if written else 0


def moves_arrived(block: Block, window: Window) -> Sequence[int]:
    """Return the same of each run that was moved into a block."""
    if records.MOVES_WRITTEN in block.sections:
        return _numbers(block, window, records.MOVES_WRITTEN)
    moves = block.sections.get(records.MOVES)
    return [0] * moves.item_count if moves is not None else ()


def settles_of(block: Block, window: Window) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield queue id and LSNs of copies that are gone."""
    numbers = iter(_numbers(block, window, records.SETTLED_RANGES))
    for queue_id, first, count in zip(numbers, numbers, numbers, strict=True):
        yield queue_id, range(first, first + count)
    flat = _numbers(block, window, records.SETTLED_LISTS)
    at = 0
    while at < len(flat):
        count = flat[at + 1]
        yield flat[at], flat[at + 2 : at + 2 + count]
        at += 2 + count


def drops_of(block: Block, window: Window) -> Sequence[int]:
    """Return the ids of queues that are gone."""
    return _numbers(block, window, records.DROPPED_QUEUES)


def notes_of(block: Block, window: Window) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield scope id, key and value of notes; None: it has none any more."""
    for kind in (records.NOTES, records.FORGOTTEN_NOTES):
        section = block.sections.get(kind)
        if section is not None:
            body = block.body(window, kind)
            whole = Section(section.item_count, 0, len(body))
            for scope_id, key, value in records.unpack_notes(body, whole):
                yield scope_id, key, value if kind == records.NOTES else None


def marks_of(block: Block, window: Window) -> Iterator[tuple[int, int]]:
    """Yield queue id and LSN of delivery marks."""
    numbers = iter(_numbers(block, window, records.DELIVERED_MARKS))
    return zip(numbers, numbers, strict=True)


def texts_of(block: Block, window: Window, kind: int) -> list[bytes]:
    """Return the records of a section of definitions."""
    section = block.sections.get(kind)
    if section is None:
        return []
    body = block.body(window, kind)
    return records.unpack_texts(body, Section(section.item_count, 0, len(body)))


def _numbers(block: Block, window: Window, kind: int) -> list[int]:
    return records.numbers_in(block.body(window, kind)).tolist()
