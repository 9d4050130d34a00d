"""What the blocks of a segment say about copies: which came, were moved, are gone.

For whoever looks at a segment at rest: compaction and the offline tools. Nothing is kept here,
and no checksum is looked at.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from store import records
from store.records import Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from store.blocks import Block, Window

Route = tuple[tuple[int, ...], bytes]


class Run(NamedTuple):
    """Messages with consecutive LSNs; `bounds` are offsets in the file, one more than messages."""

    first_lsn: int
    queue_ids: tuple[int, ...]
    tail: bytes
    bounds: Sequence[int]
    is_moved: bool

    @property
    def lsns(self) -> range:
        """Their LSNs."""
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
) -> Iterator[Run]:
    """Yield what came and what was moved; those whose route is lost are left out."""
    contents = block.sections.get(records.CONTENTS)
    if contents is None:
        return
    lengths = records.lengths_in(block.body(window, records.LENGTHS))
    bounds = list(accumulate(lengths, initial=contents.start))
    at = 0
    for kind in (records.RUNS, records.MOVES):
        numbers = iter(_numbers(block, window, kind))
        for number, first, count in zip(numbers, numbers, numbers, strict=True):
            route = routes.get(number)
            if route is not None and kind in kinds:
                yield Run(first, *route, bounds[at : at + count + 1], kind == records.MOVES)
            at += count


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
