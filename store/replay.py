"""From checked blocks to queues: what was published, minus what was settled.

Segments are replayed newest first. A settle never stands before what it settles, so when a
message is met its fate is known and settled ones are not even cut out of the buffer.

Spec: DURABLE-12, DURABLE-13
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, repeat

from store import records
from store.records import Section
from store.scan import Extent
from store.segment import Segment

Message = tuple[int, bytes, bytes]
Route = tuple[tuple[int, ...], bytes]


@dataclass(slots=True)
class RecoveredQueue:
    """One queue's live messages as (lsn, raw, tail), in the order of their LSNs.

    Messages up to `delivered_lsn` may have been delivered before. Spec: DURABLE-12
    """

    messages: list[Message] = field(default_factory=list)
    delivered_lsn: int = 0


@dataclass(slots=True)
class Remains:
    """What must be carried over before a damaged segment may leave the journal."""

    messages: list[tuple[int, bytes, Route]] = field(default_factory=list)
    settles: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    queue_ids: set[int] = field(default_factory=set)


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
        self._fresh.append((first, first + count))

    def add_list(self, lsns: Sequence[int]) -> None:
        """Note that each of these LSNs is gone."""
        self._singles.update(lsns)

    def alive(self, first: int, count: int) -> Sequence[int]:
        """Return those of `count` LSNs from `first` on that are not gone, in order."""
        if self._fresh:
            self._merge()
        alive: Sequence[int] = self._outside_ranges(first, first + count)
        if self._singles and alive:
            alive = [lsn for lsn in alive if lsn not in self._singles]
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


class Replay:
    """The state as it grows while segments are replayed, newest first."""

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}
        self.moved: dict[int, Segment] = {}
        self.unroutable_count = 0
        self._queues: dict[int, list[Message]] = {}
        self._settled: dict[int, Settled] = {}
        self._dropped: set[int] = set()
        self._moved_by_queue: dict[int, set[int]] = {}
        self._has_snapshot = False
        # Newest first, and within a segment newest last.
        self._definitions: list[list[bytes]] = []
        self._snapshot: list[bytes] = []

    def segment(
        self, buffer: bytes, extents: Sequence[Extent], segment: Segment, remains: Remains | None
    ) -> None:
        """Replay one segment and count what is live in it.

        `remains`, when given, collects what the segment alone holds.
        """
        batches = list(_batches(buffer, extents))
        self._replay_definitions(buffer, batches)
        routes: dict[int, Route] = {}
        for sections in batches:
            self._replay_fates(buffer, sections, remains)
            if records.ROUTES in sections:
                for number, queue_ids, tail in records.unpack_routes(
                    buffer, sections[records.ROUTES]
                ):
                    routes[number] = (queue_ids, tail)
        for sections in reversed(batches):
            if records.CONTENTS in sections:
                self._replay_contents(buffer, sections, routes, segment, remains)
        if remains is not None:
            remains.queue_ids.update(q for queue_ids, _ in routes.values() for q in queue_ids)

    def _replay_definitions(self, buffer: bytes, batches: list[dict[int, Section]]) -> None:
        if self._has_snapshot:
            return
        changes: list[bytes] = []
        for sections in batches:
            if records.SNAPSHOT in sections:
                self._snapshot = records.unpack_texts(buffer, sections[records.SNAPSHOT])
                self._has_snapshot = True
                changes = []
            if records.DEFINITIONS in sections:
                changes += records.unpack_texts(buffer, sections[records.DEFINITIONS])
        self._definitions.append(changes)

    def _replay_fates(
        self, buffer: bytes, sections: dict[int, Section], remains: Remains | None
    ) -> None:
        settles: list[tuple[int, Sequence[int]]] = []
        if records.SETTLED_RANGES in sections:
            numbers = iter(records.unpack_numbers(buffer, sections[records.SETTLED_RANGES]))
            for queue_id, first, count in zip(numbers, numbers, numbers, strict=True):
                self._settled_of(queue_id).add_range(first, count)
                settles.append((queue_id, range(first, first + count)))
        if records.SETTLED_LISTS in sections:
            flat = records.unpack_numbers(buffer, sections[records.SETTLED_LISTS])
            at = 0
            while at < len(flat):
                queue_id, lsns = flat[at], flat[at + 2 : at + 2 + flat[at + 1]]
                self._settled_of(queue_id).add_list(lsns)
                settles.append((queue_id, lsns))
                at += 2 + len(lsns)
        dropped: list[int] = []
        if records.DROPPED_QUEUES in sections:
            dropped = records.unpack_numbers(buffer, sections[records.DROPPED_QUEUES])
            self._dropped.update(dropped)
        if records.DELIVERED_MARKS in sections:
            numbers = iter(records.unpack_numbers(buffer, sections[records.DELIVERED_MARKS]))
            for queue_id, lsn in zip(numbers, numbers, strict=True):
                if lsn > self.marks.get(queue_id, 0):
                    self.marks[queue_id] = lsn
        if remains is not None:
            remains.settles += settles
            remains.dropped += dropped

    def _settled_of(self, queue_id: int) -> Settled:
        settled = self._settled.get(queue_id)
        if settled is None:
            settled = self._settled[queue_id] = Settled()
        return settled

    def _replay_contents(
        self,
        buffer: bytes,
        sections: dict[int, Section],
        routes: dict[int, Route],
        segment: Segment,
        remains: Remains | None,
    ) -> None:
        lengths = records.unpack_lengths(buffer, sections[records.LENGTHS])
        offsets = list(accumulate(lengths, initial=sections[records.CONTENTS].start))
        at = 0
        for kind in (records.RUNS, records.MOVES):
            if kind not in sections:
                continue
            numbers = iter(records.unpack_numbers(buffer, sections[kind]))
            for number, first, count in zip(numbers, numbers, numbers, strict=True):
                route = routes.get(number)
                if route is None:
                    self.unroutable_count += count
                else:
                    bounds = offsets[at : at + count + 1]
                    is_moved = kind == records.MOVES
                    self._replay_run(buffer, bounds, first, route, segment, remains, is_moved)
                at += count

    def _replay_run(
        self,
        buffer: bytes,
        bounds: list[int],
        first: int,
        route: Route,
        segment: Segment,
        remains: Remains | None,
        is_moved: bool,
    ) -> None:
        queue_ids, tail = route
        count = len(bounds) - 1
        fates = [(q, self._alive(q, first, count)) for q in queue_ids]
        if not any(lsns for _, lsns in fates):
            return
        raws = [buffer[a:b] for a, b in pairwise(bounds)]
        run = list(zip(range(first, first + count), raws, repeat(tail)))
        for queue_id, lsns in fates:
            if not lsns:
                continue
            queue = self._queues.setdefault(queue_id, [])
            queue += run if len(lsns) == count else [run[lsn - first] for lsn in lsns]
            segment.add_live(queue_id, len(lsns))
            if is_moved:
                self._moved_by_queue.setdefault(queue_id, set()).update(lsns)
                self.moved.update(zip(lsns, repeat(segment)))
        if remains is not None:
            self._keep_remains(remains, run, fates, tail)

    def _alive(self, queue_id: int, first: int, count: int) -> Sequence[int]:
        if queue_id in self._dropped:
            return ()
        settled = self._settled.get(queue_id)
        lsns: Sequence[int] = range(first, first + count)
        if settled is not None:
            lsns = settled.alive(first, count)
        moved = self._moved_by_queue.get(queue_id)
        if moved:
            lsns = [lsn for lsn in lsns if lsn not in moved]
        return lsns

    @staticmethod
    def _keep_remains(
        remains: Remains,
        run: list[Message],
        fates: list[tuple[int, Sequence[int]]],
        tail: bytes,
    ) -> None:
        for lsn, raw, _ in run:
            queue_ids = tuple(queue_id for queue_id, lsns in fates if lsn in lsns)
            if queue_ids:
                remains.messages.append((lsn, raw, (queue_ids, tail)))

    def definitions(self) -> list[bytes]:
        """Return the newest snapshot and all later changes, in order."""
        later = [record for changes in reversed(self._definitions) for record in changes]
        return [*self._snapshot, *later]

    def queues(self) -> dict[int, RecoveredQueue]:
        """Return every queue that has live messages or a delivery mark."""
        queues: dict[int, RecoveredQueue] = {}
        for queue_id in sorted({*self._queues, *self.live_marks()}):
            messages = self._queues.get(queue_id, [])
            messages.sort()
            queues[queue_id] = RecoveredQueue(messages, self.marks.get(queue_id, 0))
        return queues

    def live_marks(self) -> dict[int, int]:
        """Return the delivery marks of queues that were not dropped."""
        return {q: lsn for q, lsn in self.marks.items() if q not in self._dropped}

    @property
    def message_count(self) -> int:
        """Copies in all queues."""
        return sum(map(len, self._queues.values()))


def _batches(buffer: bytes, extents: Sequence[Extent]) -> list[dict[int, Section]]:
    """Return the sections of every block, in order."""
    batches = []
    for extent in extents:
        offset = extent.start
        while offset < extent.end:
            header = records.trusted_header(buffer, offset)
            start = offset + records.HEADER_SIZE
            offset = start + header.length
            batches.append(records.read_sections(buffer, start, offset))
    return batches
