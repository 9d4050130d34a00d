"""From checked blocks to queues: what was published, minus what was settled.

Segments are replayed newest first. A settle never stands before what it settles, so when a
message is met it is known what became of it. Contents are stepped over: what comes out is LSNs,
and where each block lies, so that whoever wants a message can fetch it.

Spec: DURABLE-12, DURABLE-13
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.store.journal import records
from vouchmq.store.journal.positions import WIDTH, Positions
from vouchmq.store.journal.records import Section
from vouchmq.store.lsns import Lsns, Settled
from vouchmq.store.reading.blocks import Window, walk
from vouchmq.store.reading.index import SegmentIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.store.disk import DiskFile
    from vouchmq.store.journal.segment import Segment
    from vouchmq.store.reading.blocks import Block
    from vouchmq.store.reading.reader import Content
    from vouchmq.store.recovery.scan import Extent
    from vouchmq.store.recovery.summary import Found, Summary

Message = tuple[int, bytes, bytes]
Route = tuple[tuple[int, ...], bytes]

# What `RecoveredQueue.messages` reads at a time.
_READ_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class RecoveredQueue:
    """One queue's live messages: their LSNs, ascending, as few ranges and arrays.

    Messages up to `delivered_lsn` may have been delivered before. Spec: DURABLE-12
    """

    spans: list[Sequence[int]]
    delivered_lsn: int
    # Reads messages back, at most so many octets.
    fetch: Callable[[Sequence[int], int], list[Content]]
    # None where no block says any.
    positions: Positions | None

    @property
    def count(self) -> int:
        """How many messages there are."""
        return sum(map(len, self.spans))

    @property
    def messages(self) -> list[Message]:
        """All of them as (lsn, raw, tail): for tests and tools, as memory must hold them.

        Raises:
            ReadFailed: one cannot be read
        """
        messages: list[Message] = []
        lsns = list(chain.from_iterable(self.spans))
        while len(messages) < len(lsns):
            at = len(messages)
            some = self.fetch(lsns[at:], _READ_BYTES)
            messages += ((lsns[at + n], raw, tail) for n, (raw, tail) in enumerate(some))
        return messages


class RemainingRun(NamedTuple):
    """Messages with the same live copies."""

    lsns: Sequence[int]
    queue_ids: tuple[int, ...]
    tail: bytes


@dataclass(slots=True)
class Remains:
    """What must be carried over before a damaged segment may leave the journal."""

    runs: list[RemainingRun] = field(default_factory=list)
    settles: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    notes: list[tuple[int, bytes]] = field(default_factory=list)
    queue_ids: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Moved:
    """LSNs of one queue whose messages were met where they were moved to, and their bounds."""

    low: int
    high: int
    lsns: set[int] = field(default_factory=set)


class Replay:
    """The state as it grows while segments are replayed, newest first."""

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}
        self.moved: dict[int, Segment] = {}
        self.unroutable_count = 0
        self.unroutable_lsns: tuple[int, int] | None = None  # the first and the last
        self.message_lsn = 0
        self._queues: dict[int, Lsns] = {}
        self.settled: dict[int, Settled] = {}
        self._dropped: set[int] = set()
        self._moved_by_queue: dict[int, _Moved] = {}
        self._positions: dict[int, Positions] = {}
        # The newest word about each key, None for what is forgotten.
        self._notes: dict[int, dict[bytes, bytes | None]] = {}
        self._has_snapshot = False
        self._early_snapshot: list[bytes] | None = None
        # Newest first, and within a segment newest last.
        self._definitions: list[list[bytes]] = []
        self._snapshot: list[bytes] = []

    def segment(
        self,
        file: DiskFile,
        extents: Sequence[Extent],
        segment: Segment,
        remains: Remains | None,
        summary: Summary | None,
    ) -> SegmentIndex:
        """Replay one segment, count what is live in it, and return where its blocks are.

        `remains`, when given, collects what the segment alone holds, `summary` what it says.

        Raises:
            OSError: a block that the scan has read cannot be read any more
        """
        index = SegmentIndex(segment.generation, segment.name, segment.salt, segment.first_lsn)
        batches = _batches(file, extents, index)
        routes = self._take(batches, segment, remains)
        if summary is not None:
            summary.add_bodies(batches, routes)
        return index

    def summarized(self, file: DiskFile, found: Found, segment: Segment) -> SegmentIndex:
        """Replay one segment that is not read, but for the definitions if there are no newer ones.

        Raises:
            OSError: its head cannot be read any more
        """
        batches = [found.bodies]
        if not self._has_snapshot:
            extent = found.extent
            end = (
                records.HEADER_SIZE
                + records.trusted_header(file.read(0, records.HEADER_SIZE), 0).length
            )
            extent.end = end
            batches = [*_batches(file, [extent], found.places), *batches]
        self._take(batches, segment, None)
        return found.places

    def _take(
        self, batches: list[Bodies], segment: Segment, remains: Remains | None
    ) -> dict[int, Route]:
        """Replay what a segment's blocks say; return its routes."""
        self._replay_definitions(batches)
        self._replay_notes(batches, segment, remains)
        routes: dict[int, Route] = {}
        for bodies in batches:
            self._replay_outcomes(bodies, remains)
            self._replay_positions(bodies)
            if records.ROUTES in bodies:
                for number, queue_ids, tail in records.unpack_routes(*bodies[records.ROUTES]):
                    routes[number] = (queue_ids, tail)
        live: dict[int, int] = {}
        for bodies in reversed(batches):
            for kind in (records.MOVES, records.RUNS):
                if kind in bodies:
                    self._replay_runs(kind, bodies[kind], routes, segment, live, remains)
        for queue_id, count in live.items():
            segment.add_live(queue_id, count)
        segment.gone_queues.update(q for queue_ids, _ in routes.values() for q in queue_ids)
        if remains is not None:
            remains.queue_ids.update(q for queue_ids, _ in routes.values() for q in queue_ids)
        return routes

    def _replay_definitions(self, batches: list[Bodies]) -> None:
        if self._has_snapshot:
            return
        if len(batches) == 1 and records.SNAPSHOT in batches[0]:
            # The block is lost for which the segment was begun, and the snapshot knows already
            # what it said. Unless there is no other, an older one and the changes are the truth.
            if self._early_snapshot is None:
                self._early_snapshot = records.unpack_texts(*batches[0][records.SNAPSHOT])
            return
        changes: list[bytes] = []
        for bodies in batches:
            if records.SNAPSHOT in bodies:
                self._snapshot = records.unpack_texts(*bodies[records.SNAPSHOT])
                self._has_snapshot = True
                changes = []
            if records.DEFINITIONS in bodies:
                changes += records.unpack_texts(*bodies[records.DEFINITIONS])
        self._definitions.append(changes)

    def _replay_outcomes(self, bodies: Bodies, remains: Remains | None) -> None:
        settles: list[tuple[int, Sequence[int]]] = []
        if records.SETTLED_RANGES in bodies:
            numbers = iter(_numbers(bodies, records.SETTLED_RANGES))
            for queue_id, first, count in zip(numbers, numbers, numbers, strict=True):
                self._settled_of(queue_id).add_range(first, count)
                settles.append((queue_id, range(first, first + count)))
        if records.SETTLED_LISTS in bodies:
            flat = _numbers(bodies, records.SETTLED_LISTS)
            at = 0
            while at < len(flat):
                queue_id, lsns = flat[at], flat[at + 2 : at + 2 + flat[at + 1]]
                self._settled_of(queue_id).add_list(lsns)
                settles.append((queue_id, lsns))
                at += 2 + len(lsns)
        dropped: list[int] = []
        if records.DROPPED_QUEUES in bodies:
            dropped = _numbers(bodies, records.DROPPED_QUEUES)
            self._dropped.update(dropped)
        if records.DELIVERED_MARKS in bodies:
            numbers = iter(_numbers(bodies, records.DELIVERED_MARKS))
            for queue_id, lsn in zip(numbers, numbers, strict=True):
                if lsn > self.marks.get(queue_id, 0):
                    self.marks[queue_id] = lsn
        if remains is not None:
            remains.settles += settles
            remains.dropped += dropped

    def _replay_positions(self, bodies: Bodies) -> None:
        if records.POSITIONS not in bodies:
            return
        numbers = iter(records.numbers_in(bodies[records.POSITIONS][0]))
        for queue_id, lsn, count, position in zip(*[numbers] * WIDTH, strict=True):
            if queue_id not in self._dropped:
                self._positions.setdefault(queue_id, Positions()).add(lsn, count, position)

    def position_of(self, queue_id: int, lsn: int) -> int | None:
        """The position of a message in a queue that numbers its own, if any block says it."""
        positions = self._positions.get(queue_id)
        return positions.of(lsn) if positions is not None else None

    def _replay_notes(
        self, batches: list[Bodies], segment: Segment, remains: Remains | None
    ) -> None:
        """Learn the last word of this segment about each key of which no newer one says any."""
        words: dict[int, dict[bytes, bytes | None]] = {}
        for bodies in batches:
            for kind in (records.NOTES, records.FORGOTTEN_NOTES):
                if kind in bodies:
                    is_note = kind == records.NOTES
                    for scope_id, key, value in records.unpack_notes(*bodies[kind]):
                        words.setdefault(scope_id, {})[key] = value if is_note else None
        for scope_id, said in words.items():
            # There may be older notes here than what counts.
            segment.gone_queues.add(scope_id)
            if remains is not None:
                remains.notes += ((scope_id, key) for key in said)
            known = self._notes.setdefault(scope_id, {})
            new = {key: value for key, value in said.items() if key not in known}
            known.update(new)
            wanted = {key: value for key, value in new.items() if value is not None}
            if wanted and scope_id not in self._dropped:
                size = sum(records.NOTE_SIZE + len(k) + len(v) for k, v in wanted.items())
                segment.add_notes(scope_id, wanted, size)

    def _settled_of(self, queue_id: int) -> Settled:
        settled = self.settled.get(queue_id)
        if settled is None:
            settled = self.settled[queue_id] = Settled()
        return settled

    def _replay_runs(
        self,
        kind: int,
        body: tuple[bytes, Section],
        routes: dict[int, Route],
        segment: Segment,
        live: dict[int, int],
        remains: Remains | None,
    ) -> None:
        numbers = records.numbers_in(body[0])
        bounds = records.bounds_of_runs(numbers[1::3], numbers[2::3])
        if bounds is not None:
            self.message_lsn = max(self.message_lsn, bounds[1])
        numbers.reverse()
        runs = iter(numbers)
        for count, first, number in zip(runs, runs, runs, strict=True):
            if kind == records.MOVES:
                segment.note_moved(first, count)
            route = routes.get(number)
            if route is None:
                self.unroutable_count += count
                low, high = self.unroutable_lsns or (first, first)
                self.unroutable_lsns = (min(low, first), max(high, first + count - 1))
                continue
            alive = []
            for queue_id in route[0]:
                lsns = self._alive(queue_id, first, count)
                if not lsns:
                    continue
                alive.append((queue_id, lsns))
                queue = self._queues.get(queue_id)
                if queue is None:
                    queue = self._queues[queue_id] = Lsns()
                queue.add(lsns)
                live[queue_id] = live.get(queue_id, 0) + len(lsns)
                if kind == records.MOVES:
                    self._note_moved(queue_id, lsns)
                    self.moved.update(zip(lsns, repeat(segment)))
            if remains is not None and alive:
                remains.runs += _remaining(alive, first, count, route[1])

    def _alive(self, queue_id: int, first: int, count: int) -> Sequence[int]:
        if queue_id in self._dropped:
            return ()
        settled = self.settled.get(queue_id)
        lsns: Sequence[int] = range(first, first + count)
        if settled is not None:
            lsns = settled.alive(first, count)
        moved = self._moved_by_queue.get(queue_id)
        if moved is not None and lsns and lsns[0] <= moved.high and moved.low <= lsns[-1]:
            lsns = [lsn for lsn in lsns if lsn not in moved.lsns]
        return lsns

    def _note_moved(self, queue_id: int, lsns: Sequence[int]) -> None:
        moved = self._moved_by_queue.get(queue_id)
        if moved is None:
            moved = self._moved_by_queue[queue_id] = _Moved(lsns[0], lsns[-1])
        moved.lsns.update(lsns)
        moved.low, moved.high = min(moved.low, lsns[0]), max(moved.high, lsns[-1])

    def definitions(self) -> list[bytes]:
        """Return the newest snapshot and all later changes, in order."""
        later = [record for changes in reversed(self._definitions) for record in changes]
        snapshot = self._snapshot if self._has_snapshot else self._early_snapshot or []
        return [*snapshot, *later]

    def queues(
        self, fetch: Callable[[Sequence[int], int], list[Content]]
    ) -> dict[int, RecoveredQueue]:
        """Return every queue that has live messages or a delivery mark; to be called once.

        `fetch` reads messages back.
        """
        queues: dict[int, RecoveredQueue] = {}
        for queue_id in sorted({*self._queues, *self.live_marks()}):
            # Let go one by one: both forms of all of them need not fit into memory.
            lsns = self._queues.pop(queue_id, None)
            spans = lsns.spans() if lsns is not None else []
            positions = self._positions.get(queue_id)
            queues[queue_id] = RecoveredQueue(spans, self.marks.get(queue_id, 0), fetch, positions)
        return queues

    def notes(self) -> dict[int, dict[bytes, bytes]]:
        """Return the newest value of each key that has one, by scope."""
        notes = {}
        for scope_id, words in self._notes.items():
            wanted = {key: value for key, value in words.items() if value is not None}
            if wanted and scope_id not in self._dropped:
                notes[scope_id] = wanted
        return notes

    def live_marks(self) -> dict[int, int]:
        """Return the delivery marks of queues that were not dropped."""
        return {q: lsn for q, lsn in self.marks.items() if q not in self._dropped}


# The sections of a block that replay looks at: what they say, and their bounds in it.
Bodies = dict[int, tuple[bytes, Section]]

_SKIPPED: Final = frozenset({records.LENGTHS, records.CONTENTS})


def _batches(file: DiskFile, extents: Sequence[Extent], index: SegmentIndex) -> list[Bodies]:
    """Return the sections of every block, in order, and note where the blocks are."""
    batches = []
    seen: set[int] = set()  # numbers of routes
    window = Window(file)
    for extent in extents:
        for block in walk(window, extent):
            bodies: Bodies = {}
            for kind, section in block.sections.items():
                if kind not in _SKIPPED:
                    octets = window.read(section.start, section.end)
                    bodies[kind] = (octets, Section(section.item_count, 0, len(octets)))
            batches.append(bodies)
            _note(index, block, bodies, seen)
    return batches


def _note(index: SegmentIndex, block: Block, bodies: Bodies, seen: set[int]) -> None:
    moves = records.numbers_in(bodies[records.MOVES][0] if records.MOVES in bodies else b"")
    routes = records.unpack_routes(*bodies[records.ROUTES]) if records.ROUTES in bodies else ()
    new = {number for number, _, _ in routes} - seen
    seen |= new
    index.add(
        block.offset,
        block.end - block.offset,
        (block.header.first_lsn, block.header.next_lsn),
        has_runs=records.RUNS in bodies,
        first_route=min(new, default=None),
        moved=zip(moves[1::3], moves[2::3], strict=True),
    )


def _numbers(bodies: Bodies, kind: int) -> list[int]:
    return records.unpack_numbers(*bodies[kind])


def _remaining(
    live: list[tuple[int, Sequence[int]]], first: int, count: int, tail: bytes
) -> list[RemainingRun]:
    """Return a run's live copies as runs that go to the same queues."""
    if all(len(lsns) == count for _, lsns in live):
        return [RemainingRun(range(first, first + count), tuple(q for q, _ in live), tail)]
    runs = []
    for lsn in range(first, first + count):
        queue_ids = tuple(queue_id for queue_id, lsns in live if lsn in lsns)
        if queue_ids:
            runs.append(RemainingRun((lsn,), queue_ids, tail))
    return runs
