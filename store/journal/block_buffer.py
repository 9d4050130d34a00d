"""What a turn has decided and no block holds yet, and how a block says it.

The journal fills a `BlockBuffer` and clears it when the block is written. It must not know segments
or files.

Most blocks of a broker with little to do hold one record: a message, its settlement, or the mark of
its delivery. Each of these is packed at once (`pack_run_written` and the like); what a block of one
record costs is what a message costs that comes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.store.journal import records
from vouchmq.store.journal.positions import WIDTH, Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vouchmq.store.journal.segment import Segment
    from vouchmq.store.journal.segments import RetiredSegment

# Numbers of a run: its route, its first LSN, how many messages.
WIDTH_OF_RUN: Final = 3
# Settled ranges of more LSNs are never expanded: they take less than their LSNs.
_LONG_RANGE: Final = 3


class BlockBuffer:
    """One block to be.

    `runs` and `moves` are flat: route number, first LSN, count of each. `groups` has the messages
    of runs once more, those together that go to the same queues: queue ids, first LSN, count.
    `written_ms` is when the block was written first, wall clock, 0 if nobody knows; `arrivals` has
    the same of each move's original block.
    """

    __slots__ = (
        "arrivals",
        "defines",
        "dropped_again",
        "drops",
        "groups",
        "has_barrier",
        "marks",
        "marks_before",
        "moved_raws",
        "moves",
        "positions",
        "raws",
        "retired_early",
        "rewritten",
        "runs",
        "settled_ranges",
        "settles",
        "written_ms",
    )

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.groups: list[tuple[tuple[int, ...], int, int]] = []
        self.raws: list[bytes] = []
        self.written_ms = 0
        self.moves: list[int] = []
        self.moved_raws: list[bytes] = []
        self.arrivals: list[int] = []
        self.settles: dict[int, list[int]] = {}
        self.settled_ranges: list[tuple[int, range]] = []
        self.rewritten: list[tuple[int, Sequence[int]]] = []
        self.retired_early: list[Segment] = []
        self.defines: list[bytes] = []
        self.drops: list[int] = []
        self.dropped_again: list[int] = []
        self.marks: dict[int, int] = {}
        self.marks_before: dict[int, int] = {}  # of the same queues, as the disk knows them
        self.has_barrier = False
        # Of the messages of runs and moves, in queues that number theirs.
        self.positions: Rows | None = None

    def clear(self) -> None:
        """Begin the next block. Whoever was given a list or a dictionary of this one keeps it."""
        if self.runs:
            self.runs, self.groups, self.raws = [], [], []
            self.written_ms = 0
            self.positions = None
        if self.settles:
            self.settles = {}
        if self.marks_before:
            self.marks, self.marks_before = {}, {}
        if self.settled_ranges:
            self.settled_ranges = []
        if self.is_unusual:
            self.moves, self.moved_raws, self.arrivals = [], [], []
            self.rewritten, self.retired_early, self.dropped_again = [], [], []
            self.defines, self.drops = [], []
            self.positions = None
        self.has_barrier = False

    @property
    def is_unusual(self) -> bool:
        """Whether there is more than messages, settlements, marks and a barrier."""
        return bool(
            self.defines
            or self.drops
            or self.moves
            or self.rewritten
            or self.dropped_again
            or self.retired_early
            or self.positions is not None
        )

    @property
    def asks_for_sync(self) -> bool:
        """Whether somebody waits for this to be durable."""
        return bool(
            self.runs or self.defines or self.drops or self.retired_early or self.has_barrier
        )

    @property
    def brings_new(self) -> bool:
        """Whether there is anything that a disk nearly without room need not take."""
        return bool(self.runs or self.defines)

    @property
    def has_riders(self) -> bool:
        """Whether there is anything that is written without asking for a sync."""
        settles = self.settles or self.settled_ranges or self.rewritten
        return bool(settles or self.marks or self.moves or self.dropped_again)

    @property
    def route_numbers(self) -> set[int]:
        """Routes that runs and moves refer to."""
        return {*self.runs[::3], *self.moves[::3]}

    def place(self, queue_id: int, lsn: int, count: int, position: int) -> None:
        """Take in which position messages have that are in this block."""
        if self.positions is None:
            self.positions = Rows()
        self.positions.add(queue_id, lsn, count, position)

    def all_settles(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Return queue id and LSNs of what is settled in this block for the first time."""
        if not self.settled_ranges:
            return self.settles.items() if self.settles else ()
        return [*self.settles.items(), *self.settled_ranges]

    def settle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Take in that copies of a queue are gone."""
        if isinstance(lsns, range) and len(lsns) > _LONG_RANGE:
            self.settled_ranges.append((queue_id, lsns))
            return
        pending = self.settles.get(queue_id)
        if pending is None:
            self.settles[queue_id] = list(lsns)
        else:
            pending += lsns

    def unsettle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Forget that copies of a queue are gone. Spec: TX-09"""
        for at, (queue, some) in reversed([*enumerate(self.settled_ranges)]):
            if queue == queue_id:
                self.settles.setdefault(queue_id, []).extend(some)
                del self.settled_ranges[at]
        pending = self.settles.get(queue_id)
        if pending:
            back = set(lsns)
            self.settles[queue_id] = [lsn for lsn in pending if lsn not in back]

    def refused(self, first_lsn: int) -> BlockBuffer:
        """Return what is left for the next block when the disk refused this one.

        Spec: CONF-12, TX-09
        """
        left = BlockBuffer()
        # Copies that came and went within the lost block are settled by its loss.
        kept = {q: [n for n in lsns if n < first_lsn] for q, lsns in self.settles.items()}
        left.settles = {queue_id: lsns for queue_id, lsns in kept.items() if lsns}
        left.settled_ranges = [
            (queue_id, range(lsns.start, min(lsns.stop, first_lsn)))
            for queue_id, lsns in self.settled_ranges
            if lsns.start < first_lsn
        ]
        left.rewritten = self.rewritten
        left.retired_early = self.retired_early
        left.dropped_again = self.dropped_again
        left.marks, left.marks_before = self.marks, self.marks_before
        return left

    def encode(
        self, routes: Sequence[bytes], notes: Sequence[bytes], padding: Sequence[bytes] = ()
    ) -> tuple[list[bytes], int]:
        """Return the sections in the order replay takes them, and their octets.

        Args:
            routes: entries of the routes that are logged with it
            notes: whole sections about notes
            padding: a section in front of the contents
        """
        parts: list[bytes] = []
        is_unusual = self.is_unusual
        if self.defines:
            parts += records.pack_texts(records.DEFINITIONS, self.defines)
        if routes:
            parts += records.pack_section(records.ROUTES, len(routes), *routes)
        if self.runs:
            self._put_runs(parts)
        if is_unusual and self.moves:
            put_numbers(parts, records.MOVES, self.moves, WIDTH_OF_RUN)
            put_numbers(parts, records.MOVES_WRITTEN, self.arrivals, 1)
        if self.settles or self.settled_ranges or self.rewritten:
            self._put_settles(parts)
        if is_unusual:
            self._put_unusual(parts)
        if self.marks:
            put_marks(parts, self.marks)
        if notes:
            parts += notes
        if padding:
            parts += padding
        length = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if self.raws or self.moved_raws:
            length += self._put_contents(parts)
        return parts, length

    def _put_contents(self, parts: list[bytes]) -> int:
        """Append contents and their lengths; return the octets of that."""
        raws = self.raws + self.moved_raws if self.moved_raws else self.raws
        if len(raws) == 1:
            lone = len(raws[0])
            parts.append(records.pack_lone_length(lone))
            parts.append(raws[0])
            return records.LONE_LENGTH_SIZE + lone
        lengths, total = records.pack_lengths(raws)
        parts += records.pack_section(records.LENGTHS, len(raws), lengths)
        parts.append(records.open_section(records.CONTENTS, len(raws), total))
        parts += raws
        return 2 * records.SECTION_SIZE + len(lengths) + total

    def _put_unusual(self, parts: list[bytes]) -> None:
        """Append what stands between settlements and marks."""
        if self.drops or self.dropped_again:
            put_numbers(parts, records.DROPPED_QUEUES, self.drops + self.dropped_again, 1)
        if self.retired_early:
            put_retired(parts, self.retired_early)
        if self.positions is not None:
            put_numbers(parts, records.POSITIONS, self.positions.flat, WIDTH)

    def _put_runs(self, parts: list[bytes]) -> None:
        runs, written_ms = self.runs, self.written_ms
        if len(runs) == WIDTH_OF_RUN and written_ms:
            parts.append(records.pack_run_written(runs[0], runs[1], runs[2], written_ms))
            return
        put_numbers(parts, records.RUNS, runs, WIDTH_OF_RUN)
        if written_ms:
            parts.append(records.pack_written(written_ms))

    def _put_settles(self, parts: list[bytes]) -> None:
        if len(self.settles) == 1 and not (self.settled_ranges or self.rewritten):
            for queue_id, lsns in self.settles.items():
                if len(lsns) == 1:
                    one = records.pack_row_of_3(records.SETTLED_RANGES, queue_id, lsns[0], 1)
                    parts.append(one)
                    return
        parts += records.pack_settles((*self.all_settles(), *self.rewritten))


def encode_head(
    segment_size_bytes: int,
    definitions: list[bytes],
    marks: Mapping[int, int],
    gaps: Sequence[tuple[int, int]],
    retired_early: Sequence[RetiredSegment],
) -> list[bytes]:
    """Return the sections of a segment's first block."""
    info = records.pack_numbers([segment_size_bytes])
    parts = records.pack_section(records.SEGMENT_INFO, 1, info)
    parts += records.pack_texts(records.SNAPSHOT, definitions)
    if marks:
        put_marks(parts, marks)
    if gaps:
        put_numbers(parts, records.KNOWN_GAPS, [number for gap in gaps for number in gap], 2)
    if retired_early:
        put_retired(parts, retired_early)
    return parts


def put_numbers(parts: list[bytes], kind: int, numbers: Sequence[int], width: int) -> None:
    """Append a section of entries of so many numbers each."""
    parts += records.pack_section(kind, len(numbers) // width, records.pack_numbers(numbers))


def put_marks(parts: list[bytes], marks: Mapping[int, int]) -> None:
    """Append the section that says up to where each queue's messages were handed out."""
    if len(marks) == 1:
        for queue_id, lsn in marks.items():
            parts.append(records.pack_row_of_2(records.DELIVERED_MARKS, queue_id, lsn))
        return
    pairs = [number for pair in marks.items() for number in pair]
    put_numbers(parts, records.DELIVERED_MARKS, pairs, 2)


def put_retired(parts: list[bytes], segments: Sequence[Segment | RetiredSegment]) -> None:
    """Append the section that names segments which left out of turn."""
    numbers = [n for s in segments for n in (s.generation, s.first_number, s.last_number)]
    put_numbers(parts, records.RETIRED, numbers, 3)
