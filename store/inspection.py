"""What is in a data directory, told without changing an octet of it.

The same scan and the same judgement as recovery's, but nothing is cut, written or set aside.
Segments are looked at newest first, so that what became of a message is known when it is met.
Beside a running broker what is seen may be a little older or newer than what is true.

It must not know what a definition says, nor what a tail or a content is.

Spec: DURABLE-14, DURABLE-18
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.store.journal import records
from vouchmq.store.journal.end_mark import read_end_mark
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.reading.block_contents import (
    Route,
    Run,
    drops_of,
    learn_routes,
    marks_of,
    notes_of,
    runs_of,
    settles_of,
    texts_of,
)
from vouchmq.store.reading.blocks import Window, walk
from vouchmq.store.recovery.scan import Extent, Verdict, judge, list_generations, read_segment, scan
from vouchmq.store.recovery.torn_tail import TORN_SUFFIX, torn_size
from vouchmq.store.settled_lsns import Settled

if TYPE_CHECKING:
    from vouchmq.store.disk import DiskFile, ReadableDisk
    from vouchmq.store.recovery.scan import Hole

_QUARANTINED: Final = (".damaged", ".discarded", TORN_SUFFIX)
# Files of segments that are kept open while messages are read.
_OPEN_FILES: Final = 8


@dataclass(slots=True)
class SegmentView:
    """One segment; sizes in octets, `live_copies` and `live_bytes` of messages."""

    generation: int
    size_bytes: int = 0
    used_bytes: int = 0
    blocks: int = 0
    live_copies: int = 0
    live_bytes: int = 0
    is_damaged: bool = False

    @property
    def name(self) -> str:
        """The segment's file name in the data directory."""
        return segment_name(self.generation)


@dataclass(slots=True)
class QueueView:
    """One queue's live messages; `size_bytes` is that of their contents."""

    count: int = 0
    size_bytes: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    redelivered: int = 0


class Damaged(NamedTuple):
    """Where durable blocks are missing, and what may be lost: LSNs first to last, if any."""

    segment: str
    offset: int
    size_bytes: int
    first_lsn: int
    last_lsn: int
    queue_ids: tuple[int, ...]


class StoredMessage(NamedTuple):
    """One live message, and where its content lies."""

    lsn: int
    queue_ids: tuple[int, ...]
    tail: bytes
    generation: int
    offset: int
    size_bytes: int


@dataclass(slots=True)
class Inspection:
    """What is in a data directory. LSNs are 0 where there are none.

    `notes` says how many there are in each scope.
    """

    version: int = 0
    segments: list[SegmentView] = field(default_factory=list)
    definitions: list[bytes] = field(default_factory=list)
    queues: dict[int, QueueView] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    notes: dict[int, int] = field(default_factory=dict)
    damaged: list[Damaged] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    torn_bytes: int = 0
    is_sealed: bool = False
    next_lsn: int = 1
    unroutable: int = 0
    messages: int = 0


class Inspector:
    """Looks at one data directory.

    Raises:
        UnsupportedFormat: a newer program wrote it
        OSError: the disk refused a read, or a file went away
    """

    def __init__(self, disk: ReadableDisk) -> None:
        self._disk = disk
        self._extents: dict[int, list[Extent]] = {}
        self._settled: dict[int, Settled] = {}
        self._dropped: set[int] = set()
        self._moved: dict[int, Settled] = {}
        self._carried: list[StoredMessage] = []
        # Keys by scope, and whether the newest word about each gives it a value.
        self._noted: dict[int, dict[bytes, bool]] = {}
        self.result = Inspection()

    def inspect(self) -> Inspection:
        """Read everything once; what is found stays in `result`."""
        result = self.result
        # First: beside a running broker what it names must not be newer than the segments.
        end = read_end_mark(self._disk)
        names = self._disk.listdir()
        generations = list_generations(names)
        verdict = judge(scan(self._disk, generations), generations, end)
        result.quarantined = sorted(n for n in names if n.endswith(_QUARANTINED))
        result.is_sealed = verdict.is_sealed
        for extent in verdict.accepted:
            self._extents.setdefault(extent.generation, []).append(extent)
        if verdict.accepted:
            result.version = records.FORMAT_VERSION
            result.next_lsn = max(extent.next_lsn for extent in verdict.accepted)
        result.torn_bytes = self._torn(verdict)
        definitions: list[list[bytes]] = []
        early: list[bytes] = []
        has_snapshot = False
        queue_ids: dict[int, set[int]] = {}
        damaged = verdict.damaged_generations()
        for generation in sorted(self._extents, reverse=True):
            segment = SegmentView(generation, is_damaged=generation in damaged)
            changes, is_snapshot, queue_ids[generation] = self._look_at(segment)
            if segment.blocks == 1 and is_snapshot:
                # Replay does not believe it either, if there is another.
                early = early or changes
            elif not has_snapshot:
                definitions.append(changes)
                has_snapshot = is_snapshot
            result.segments.append(segment)
        if not has_snapshot:
            definitions.append(early)
        for scope_id, words in self._noted.items():
            if scope_id not in self._dropped and any(words.values()):
                result.notes[scope_id] = sum(words.values())
        result.segments.reverse()
        result.definitions = [record for some in reversed(definitions) for record in some]
        result.damaged = [_damage(hole, queue_ids.get(hole.generation)) for hole in verdict.holes]
        return result

    def _torn(self, verdict: Verdict) -> int:
        """How much stands behind the last block that counts, which the next start cuts off."""
        size = sum(e.end - e.start for e in verdict.discarded)
        if not verdict.accepted or verdict.is_sealed:
            return size
        last = verdict.accepted[-1]
        if last.generation in verdict.damaged_generations():
            return size
        size -= sum(e.end - e.start for e in verdict.discarded if e.generation == last.generation)
        rest = read_segment(self._disk, segment_name(last.generation))[last.end :]
        return size + torn_size(rest, last.generation, last.salt)

    def _look_at(self, segment: SegmentView) -> tuple[list[bytes], bool, set[int]]:
        """Count what is live in a segment.

        Returns:
            its definitions, whether a snapshot begins them, and the queues of its routes
        """
        extents = self._extents[segment.generation]
        definitions: list[bytes] = []
        is_snapshot = False
        routes: dict[int, Route] = {}
        pieces: list[list[Run]] = []
        noted: dict[int, dict[bytes, bool]] = {}
        file = self._disk.open(segment.name)
        try:
            segment.size_bytes = file.size()
            segment.used_bytes = extents[-1].end
            window = Window(file)
            for extent in extents:
                segment.blocks += extent.block_count
                for block in walk(window, extent):
                    if records.SNAPSHOT in block.sections:
                        definitions = texts_of(block, window, records.SNAPSHOT)
                        is_snapshot = True
                    definitions += texts_of(block, window, records.DEFINITIONS)
                    learn_routes(block, window, routes)
                    self._learn_outcomes(settles_of(block, window), drops_of(block, window))
                    for queue_id, lsn in marks_of(block, window):
                        self.result.marks[queue_id] = max(lsn, self.result.marks.get(queue_id, 0))
                    for scope_id, key, value in notes_of(block, window):
                        noted.setdefault(scope_id, {})[key] = value is not None
                    pieces.append(list(runs_of(block, window, routes, lost=self._count_lost)))
        finally:
            file.close()
        for scope_id, words in noted.items():
            self._noted[scope_id] = words | self._noted.get(scope_id, {})
        for runs in reversed(pieces):
            for run in sorted(runs, key=lambda run: not run.is_moved):
                self._count(segment, run)
        return definitions, is_snapshot, {q for ids, _ in routes.values() for q in ids}

    def _count_lost(self, first_lsn: int, count: int) -> None:
        """Messages that are whole, but nobody knows for which queue."""
        del first_lsn
        self.result.unroutable += count

    def _learn_outcomes(
        self, settles: Iterator[tuple[int, Sequence[int]]], drops: Sequence[int]
    ) -> None:
        for queue_id, lsns in settles:
            settled = self._settled.setdefault(queue_id, Settled())
            if isinstance(lsns, range):
                settled.add_range(lsns.start, len(lsns))
            else:
                settled.add_list(lsns)
        self._dropped.update(drops)

    def _alive(self, queue_id: int, lsns: Sequence[int]) -> Sequence[int]:
        if queue_id in self._dropped:
            return ()
        for gone in (self._settled.get(queue_id), self._moved.get(queue_id)):
            if gone is not None:
                lsns = gone.alive(lsns)
        return lsns

    def _count(self, segment: SegmentView, run: Run) -> None:
        bounds, first = run.bounds, run.first_lsn
        messages: set[int] = set()
        alive_by_queue = [(queue_id, self._alive(queue_id, run.lsns)) for queue_id in run.queue_ids]
        for queue_id, lsns in alive_by_queue:
            if not lsns:
                continue
            messages.update(lsns)
            queue = self.result.queues.setdefault(queue_id, QueueView())
            size = sum(bounds[lsn - first + 1] - bounds[lsn - first] for lsn in lsns)
            queue.count += len(lsns)
            queue.size_bytes += size
            queue.first_lsn = min(queue.first_lsn or lsns[0], lsns[0])
            queue.last_lsn = max(queue.last_lsn, lsns[-1])
            mark = self.result.marks.get(queue_id, 0)
            queue.redelivered += sum(lsn <= mark for lsn in lsns)
            segment.live_copies += len(lsns)
        if run.is_moved and messages:
            self._carried += _stored(run, alive_by_queue, segment.generation)
            for queue_id, lsns in alive_by_queue:
                self._moved.setdefault(queue_id, Settled()).add_list(lsns)
        self.result.messages += len(messages)
        segment.live_bytes += sum(bounds[n - first + 1] - bounds[n - first] for n in messages)

    # Messages.

    def messages(self) -> Iterator[StoredMessage]:
        """Yield every live message in the order of LSNs; to be asked after `inspect`."""
        return merge(self._native(), sorted(self._carried), key=lambda message: message.lsn)

    def _native(self) -> Iterator[StoredMessage]:
        for generation in sorted(self._extents):
            routes: dict[int, Route] = {}
            file = self._disk.open(segment_name(generation))
            try:
                window = Window(file)
                for extent in self._extents[generation]:
                    for block in walk(window, extent):
                        learn_routes(block, window, routes)
                        for run in runs_of(block, window, routes, (records.RUNS,)):
                            alive_by_queue = [(q, self._alive(q, run.lsns)) for q in run.queue_ids]
                            yield from _stored(run, alive_by_queue, generation)
            finally:
                file.close()


class Contents:
    """Reads contents, keeping some files open; `close` them in the end."""

    def __init__(self, disk: ReadableDisk) -> None:
        self._disk = disk
        self._files: dict[int, DiskFile] = {}

    def read(self, message: StoredMessage, limit_bytes: int) -> bytes:
        """Return the first octets of a message's content: frames as they were received.

        Raises:
            OSError: the disk refused
        """
        file = self._files.get(message.generation)
        if file is None:
            if len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            file = self._disk.open(segment_name(message.generation))
            self._files[message.generation] = file
        return file.read(message.offset, min(limit_bytes, message.size_bytes))

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _stored(
    run: Run, alive_by_queue: Sequence[tuple[int, Sequence[int]]], generation: int
) -> Iterator[StoredMessage]:
    """Yield the live messages of a run, each with the queues that it is live in."""
    queue_ids: dict[int, tuple[int, ...]] = {}
    for queue_id, lsns in alive_by_queue:
        for lsn in lsns:
            queue_ids[lsn] = (*queue_ids.get(lsn, ()), queue_id)
    for lsn in sorted(queue_ids):
        at = lsn - run.first_lsn
        start, end = run.bounds[at], run.bounds[at + 1]
        yield StoredMessage(lsn, queue_ids[lsn], run.tail, generation, start, end - start)


def _damage(hole: Hole, queue_ids: set[int] | None) -> Damaged:
    return Damaged(
        segment_name(hole.generation),
        hole.offset,
        hole.size_bytes,
        hole.first_lsn,
        hole.last_lsn,
        tuple(sorted(queue_ids or ())),
    )
