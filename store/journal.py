"""The journal: everything durable, in the order it happened, in one row of segments.

A turn of the broker buffers what it decided (`append_run`, `settle`, `define`, …) and then
calls `write` once, which hands all of it to the disk as one checksummed block: after a
crash the block is there or it is not. Nothing here syncs; group commit does that with the
tickets of `begin_sync`, and what is durable comes back through `end_sync`.

Segments go oldest first: a settle is only ever needed while an older segment lives. One
that holds no live copy is first declared gone (field `oldest` of later blocks) and removed
or recycled once such a block is synced, so that no crash can bring back a part of the past.

It must not know AMQP connections, queues' names, the clock, threads or the loop.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from store import records
from store.disk import Disk, DiskFile, Syncable
from store.errors import WriteFailed
from store.segment import Segment

SPARE_SUFFIX: Final = ".spare"
DAMAGED_SUFFIX: Final = ".damaged"
PREPARED_NAME: Final = "prepared" + SPARE_SUFFIX
# Beyond this many different routes in a segment the table starts anew, so that a routing
# key per message costs disk (a route is logged again), not memory.
_MAX_ROUTES: Final = 4096
# Two recycled files cover a roll while another one waits for its rename to be synced.
_MAX_SPARES: Final = 2
# From this average on the parts go to the kernel one by one instead of being joined:
# the copy costs more than the vector (measured, design study of the hot path).
_JOIN_BELOW_BYTES: Final = 16 * 1024


class Chore(NamedTuple):
    """File work that may take long and that nothing waits for: `prepare` or `unlink`."""

    verb: str
    name: str
    size: int


@dataclass(slots=True, frozen=True)
class SyncTicket:
    """What one sync will make durable: all blocks up to `number`, all LSNs up to `lsn`."""

    lsn: int
    number: int
    size_bytes: int
    targets: tuple[Syncable, ...]
    recycled: tuple[str, ...]


@dataclass(slots=True)
class JournalState:
    """What recovery hands over; the defaults are those of an empty directory."""

    segments: list[Segment] = field(default_factory=list)
    generation: int = 0
    number: int = 1
    next_lsn: int = 1
    marks: dict[int, int] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    moved: dict[int, Segment] = field(default_factory=dict)
    definitions: list[bytes] = field(default_factory=list)


class Journal:
    """The open journal. Made by `recovery.open_journal` only.

    LSNs start at 1 and are handed out in order. `snapshot` returns all current definition
    records; it is called when a new segment begins. Replay may meet a definition both in a
    snapshot and after it, so applying one twice must be harmless.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        segment_size_bytes: int,
        snapshot: Callable[[], list[bytes]],
        state: JournalState,
    ) -> None:
        self.disk = disk
        self.next_lsn = state.next_lsn
        self.written_lsn = state.next_lsn - 1
        self.unsynced_bytes = 0
        self.wants_sync = False
        self._segment_size_bytes = segment_size_bytes
        self._snapshot = snapshot
        self._segments = state.segments
        self._starts = [segment.first_lsn for segment in state.segments]
        self._generation = state.generation
        self._number = state.number
        self._synced_number = state.number - 1
        self._all_marks = state.marks
        self._gaps = state.gaps
        self._moved = state.moved
        # What the current turn has buffered.
        self._routes: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._route_keys: dict[int, tuple[tuple[int, ...], bytes]] = {}
        self._new_routes: list[int] = []
        self._next_route = 0
        self._route_limit = _MAX_ROUTES
        self._runs: list[int] = []
        self._raws: list[bytes] = []
        self._moves: list[int] = []
        self._moved_raws: list[bytes] = []
        self._settles: dict[int, list[int]] = {}
        self._relogs: dict[int, list[int]] = {}
        self._defines: list[bytes] = []
        self._drops: list[int] = []
        self._marks: dict[int, int] = {}
        self._has_barrier = False
        self._needs_scrub = False
        # Files and what became of them.
        self._dirty: list[Segment] = []
        self._full: list[Segment] = []
        self._is_directory_dirty = True
        self._retired: list[tuple[Segment, int]] = []
        self._spares: list[str] = []
        self._recycling: list[str] = []
        self._chores: list[Chore] = []
        self._asked_spare = False
        self._active = self._begin_segment(0, state.definitions)

    # Buffering: no I/O, nothing that can fail.

    def take(self, count: int) -> int:
        """Reserve LSNs for messages that are not stored; return the first.

        They must never be given to `settle`: no segment holds a copy of them.
        """
        lsn = self.next_lsn
        self.next_lsn = lsn + count
        return lsn

    def append_run(self, queue_ids: tuple[int, ...], tail: bytes, raws: list[bytes]) -> int:
        """Buffer contents that all go to the same durable queues; return the first LSN.

        The LSNs of the run are consecutive. `raws` is not kept, its elements are; `tail` is
        opaque and comes back with each message. Cost per message: one pointer.
        """
        lsn = self.next_lsn
        count = len(raws)
        self.next_lsn = lsn + count
        route = self._routes.get((queue_ids, tail))
        if route is None:
            route = self._add_route(queue_ids, tail)
        self._runs += (route, lsn, count)
        self._raws += raws
        return lsn

    def settle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Buffer that this queue's copies of `lsns` are gone: acked, dropped or purged.

        Each copy at most once, and only LSNs that `append_run` returned for this queue.
        """
        pending = self._settles.get(queue_id)
        if pending is None:
            self._settles[queue_id] = list(lsns)
        else:
            pending += lsns

    def delivered(self, queue_id: int, lsn: int) -> None:
        """Buffer that every copy of this queue up to `lsn` was handed out at least once.

        Spec: DURABLE-12
        """
        if lsn > self._all_marks.get(queue_id, 0):
            self._all_marks[queue_id] = self._marks[queue_id] = lsn

    def define(self, record: bytes) -> int:
        """Buffer a change of definitions; return its LSN. Spec: DURABLE-02"""
        self._defines.append(record)
        return self.take(1)

    def drop_queue(self, queue_id: int) -> int:
        """Buffer that a queue is gone with all its copies; return the LSN of that.

        The id must never be used again.
        """
        self._drops.append(queue_id)
        return self.take(1)

    def barrier(self) -> int:
        """Return an LSN that is synced no earlier than all that is buffered now.

        For what must wait although it stores no message: a commit of acks alone.
        """
        self._has_barrier = True
        return self.take(1)

    def move_run(
        self, queue_ids: tuple[int, ...], tail: bytes, first_lsn: int, raws: list[bytes]
    ) -> None:
        """Buffer live copies again, under the LSNs they have, out of an older segment."""
        route = self._routes.get((queue_ids, tail))
        if route is None:
            route = self._add_route(queue_ids, tail)
        self._moves += (route, first_lsn, len(raws))
        self._moved_raws += raws

    def relog(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Buffer settles again whose block is about to go; they are counted already."""
        self._relogs.setdefault(queue_id, []).extend(lsns)

    def _add_route(self, queue_ids: tuple[int, ...], tail: bytes) -> int:
        if len(self._routes) >= self._route_limit:
            # Numbers keep growing, so what is logged stays readable; buffered routes stay.
            self._keep_routes(set())
            self._route_limit = max(_MAX_ROUTES, 2 * len(self._routes))
        number = self._next_route
        self._next_route = number + 1
        key = (queue_ids, tail)
        self._routes[key] = number
        self._route_keys[number] = key
        self._new_routes.append(number)
        return number

    def _keep_routes(self, numbers: set[int]) -> None:
        buffered = {*self._runs[::3], *self._moves[::3]}
        self._route_keys = {n: self._route_keys[n] for n in sorted(numbers | buffered)}
        self._routes = {key: n for n, key in self._route_keys.items()}

    # Writing.

    def write(self) -> int:
        """Hand everything buffered to the disk as one block; return the highest LSN so far.

        Page cache only. Returns at once when nothing is buffered.

        Raises:
            WriteFailed: the disk refused. Runs, definitions and drops of the block are
                forgotten; settles and marks are kept for the next one.
        """
        if not (
            self._runs
            or self._settles
            or self._marks
            or self._defines
            or self._drops
            or self._has_barrier
            or self._moves
            or self._relogs
        ):
            return self.written_lsn
        wants_sync = bool(self._runs or self._defines or self._drops or self._has_barrier)
        try:
            if self._needs_scrub:
                self._scrub()
            self._write_block(self._encode, may_roll=True)
        except OSError as error:
            raise self._forget_block(error) from error
        self._count_block()
        self._clear_block()
        if wants_sync:
            self.wants_sync = True
        self._look_for_dead_segments()
        return self.written_lsn

    def _write_block(self, encode: Callable[[], tuple[list[bytes], int]], may_roll: bool) -> bool:
        """Write what `encode` returns; when a new segment is needed it is asked again,
        because routes are logged once per segment."""
        payload, length = encode()
        size = records.HEADER_SIZE + length
        if not self._active.has_room(size):
            if not may_roll:
                return False
            self._roll(size + self._routes_size())
            payload, length = encode()
            size = records.HEADER_SIZE + length
        block = self._seal(self._active, records.BATCH, payload, length)
        self._needs_scrub = True
        self._active.append(block, size)
        self._needs_scrub = False
        self._written(self._active, size)
        return True

    def _scrub(self) -> None:
        """Wipe the header of a block that failed: it may have reached the disk in full, and
        the number it carries will be used again."""
        self._active.wipe(records.HEADER_SIZE)
        self._needs_scrub = False
        if self._active not in self._dirty:
            self._dirty.append(self._active)

    def _seal(self, segment: Segment, kind: int, payload: list[bytes], length: int) -> list[bytes]:
        header = records.BlockHeader(
            kind=kind,
            flags=0,
            length=length,
            generation=segment.generation,
            salt=segment.salt,
            number=self._number,
            synced=self._synced_number,
            oldest=self._segments[0].generation if self._segments else segment.generation,
            first_lsn=self.written_lsn + 1,
            next_lsn=self.next_lsn,
        )
        if len(payload) > 1 and length < _JOIN_BELOW_BYTES * len(payload):
            payload = [b"".join(payload)]
        return [records.seal(header, payload), *payload]

    def _written(self, segment: Segment, size: int) -> None:
        self._number += 1
        self.written_lsn = self.next_lsn - 1
        self.unsynced_bytes += size
        if segment not in self._dirty:
            self._dirty.append(segment)

    def _encode(self) -> tuple[list[bytes], int]:
        """Return the sections of the buffered turn, in the order replay takes them."""
        parts: list[bytes] = []
        if self._defines:
            parts += records.pack_texts(records.DEFINITIONS, self._defines)
        if self._new_routes:
            keys = self._route_keys
            body = [records.pack_route(n, *keys[n]) for n in self._new_routes]
            parts += records.pack_section(records.ROUTES, len(body), *body)
        if self._runs:
            self._put_numbers(parts, records.RUNS, self._runs, 3)
        if self._moves:
            self._put_numbers(parts, records.MOVES, self._moves, 3)
        self._put_settles(parts)
        if self._drops:
            self._put_numbers(parts, records.DROPPED_QUEUES, self._drops, 1)
        if self._marks:
            marks = [number for pair in self._marks.items() for number in pair]
            self._put_numbers(parts, records.DELIVERED_MARKS, marks, 2)
        length = sum(map(len, parts))
        if self._raws or self._moved_raws:
            raws = self._raws + self._moved_raws if self._moved_raws else self._raws
            lengths, total = records.pack_lengths(raws)
            parts += records.pack_section(records.LENGTHS, len(raws), lengths)
            parts.append(records.open_section(records.CONTENTS, len(raws), total))
            parts += raws
            length += 2 * records.SECTION_SIZE + len(lengths) + total
        return parts, length

    @staticmethod
    def _put_numbers(parts: list[bytes], kind: int, numbers: list[int], width: int) -> None:
        parts += records.pack_section(kind, len(numbers) // width, records.pack_numbers(numbers))

    def _put_settles(self, parts: list[bytes]) -> None:
        ranges: list[int] = []
        lists: list[int] = []
        list_count = 0
        for settles in (self._settles, self._relogs):
            for queue_id, lsns in settles.items():
                if not lsns:
                    continue
                first = min(lsns)
                # Each copy settles once, so distinct LSNs that span their count are a range.
                if max(lsns) - first + 1 == len(lsns):
                    ranges += (queue_id, first, len(lsns))
                else:
                    lists += (queue_id, len(lsns), *lsns)
                    list_count += 1
        if ranges:
            self._put_numbers(parts, records.SETTLED_RANGES, ranges, 3)
        if lists:
            parts += records.pack_section(
                records.SETTLED_LISTS, list_count, records.pack_numbers(lists)
            )

    def _routes_size(self) -> int:
        """Upper bound, in octets, of logging every buffered route again."""
        used = {*self._runs[::3], *self._moves[::3]}
        keys = (self._route_keys[number] for number in used)
        return records.SECTION_SIZE + sum(16 + 8 * len(ids) + len(tail) for ids, tail in keys)

    def _forget_block(self, error: OSError) -> WriteFailed:
        first, last = self.written_lsn + 1, self.next_lsn - 1
        if self._needs_scrub:
            with suppress(OSError):
                self._scrub()
        lost = set(self._new_routes)
        self._new_routes = []
        self._runs = []
        self._moves = []
        self._keep_routes(self._route_keys.keys() - lost)
        self._raws = []
        self._moved_raws = []
        self._defines = []
        self._drops = []
        self._has_barrier = False
        # Copies that came and went within the lost block are settled by its loss.
        kept = {q: [n for n in lsns if n < first] for q, lsns in self._settles.items()}
        self._settles = {queue_id: lsns for queue_id, lsns in kept.items() if lsns}
        return WriteFailed(error, first, last)

    def _clear_block(self) -> None:
        self._new_routes = []
        self._runs = []
        self._raws = []
        self._moves = []
        self._moved_raws = []
        self._settles = {}
        self._relogs = {}
        self._defines = []
        self._drops = []
        self._marks = {}
        self._has_barrier = False

    # Counting live copies, per segment and queue.

    def _count_block(self) -> None:
        active = self._active
        number = self._number - 1
        active.dead_number = number
        keys = self._route_keys
        runs = iter(self._runs)
        for route, _, count in zip(runs, runs, runs, strict=True):
            for queue_id in keys[route][0]:
                active.add_live(queue_id, count)
        if self._moves:
            self._count_moves()
        for queue_id, lsns in self._settles.items():
            self._count_settles(queue_id, lsns, number)
        for queue_id in self._drops:
            self._all_marks.pop(queue_id, None)
            self._marks.pop(queue_id, None)
            for segment in self._segments:
                segment.drop_queue(queue_id)
                segment.dead_number = number

    def _count_moves(self) -> None:
        moves = iter(self._moves)
        for route, first, count in zip(moves, moves, moves, strict=True):
            queue_ids = self._route_keys[route][0]
            for lsn in range(first, first + count):
                source = self._segment_of(lsn)
                for queue_id in queue_ids:
                    source.take_live(queue_id, 1)
                    self._active.add_live(queue_id, 1)
                self._moved[lsn] = self._active

    def _count_settles(self, queue_id: int, lsns: list[int], number: int) -> None:
        if not lsns:
            return
        segment = self._segment_of(min(lsns))
        if not self._moved and segment is self._segment_of(max(lsns)):
            segment.take_live(queue_id, len(lsns))
            segment.dead_number = number
            return
        for lsn in lsns:
            segment = self._segment_of(lsn)
            segment.take_live(queue_id, 1)
            segment.dead_number = number

    def _segment_of(self, lsn: int) -> Segment:
        moved = self._moved.get(lsn) if self._moved else None
        return moved or self._segments[bisect_right(self._starts, lsn) - 1]

    # Segments: begin, roll, retire, remove.

    def _roll(self, need: int) -> None:
        """Begin a segment with room for a block of `need` octets and make it the active one."""
        active = self._begin_segment(need, self._snapshot())
        self._full.append(self._active)
        self._active = active
        self._keep_routes(set())
        self._new_routes = list(self._route_keys)

    def _begin_segment(self, need: int, definitions: list[bytes]) -> Segment:
        self._generation += 1
        segment = Segment(
            self._generation, self.disk.entropy(), self.written_lsn + 1, self._segment_size_bytes
        )
        payload = self._encode_head(definitions)
        length = sum(map(len, payload))
        size = records.HEADER_SIZE + length
        segment.size_bytes = max(self._segment_size_bytes, size + need)
        segment.file = self._open_new(segment)
        # The head hands out no LSN: those that are buffered belong to the block behind it.
        next_lsn, self.next_lsn = self.next_lsn, self.written_lsn + 1
        try:
            segment.append(self._seal(segment, records.HEAD, payload, length), size)
            self._written(segment, size)
        except OSError:
            segment.file.close()
            self.disk.unlink(segment.name)
            raise
        finally:
            self.next_lsn = next_lsn
        segment.dead_number = self._number - 1
        self._segments.append(segment)
        self._starts.append(segment.first_lsn)
        self._asked_spare = False
        return segment

    def _encode_head(self, definitions: list[bytes]) -> list[bytes]:
        info = records.pack_numbers([self._segment_size_bytes])
        parts = records.pack_section(records.SEGMENT_INFO, 1, info)
        parts += records.pack_texts(records.SNAPSHOT, definitions)
        if self._all_marks:
            marks = [number for pair in self._all_marks.items() for number in pair]
            self._put_numbers(parts, records.DELIVERED_MARKS, marks, 2)
        if self._gaps:
            gaps = [number for gap in self._gaps for number in gap]
            self._put_numbers(parts, records.KNOWN_GAPS, gaps, 2)
        return parts

    def _open_new(self, segment: Segment) -> DiskFile:
        self._is_directory_dirty = True
        if segment.size_bytes == self._segment_size_bytes:
            for spare in (*self._spares[-1:], PREPARED_NAME):
                try:
                    self.disk.rename(spare, segment.name)
                except FileNotFoundError:
                    continue
                if spare in self._spares:
                    self._spares.remove(spare)
                return self.disk.open(segment.name)
        return self.disk.create(segment.name, segment.size_bytes)

    def _look_for_dead_segments(self) -> None:
        """Ask for a sync when it would free a segment: settles alone never ask for one, and
        a full disk that only drains must come free. Spec: LIMIT-15"""
        if len(self._segments) > 1 and not self._segments[0].live_count:
            self.wants_sync = True
        if (
            not self._asked_spare
            and not self._spares
            and not self._recycling
            and self._active.offset * 2 > self._segment_size_bytes
        ):
            self._asked_spare = True
            self._chores.append(Chore("prepare", PREPARED_NAME, self._segment_size_bytes))

    def _retire_segments(self) -> None:
        """Declare leading segments gone whose last settle is durable."""
        segments = self._segments
        was = len(segments)
        while (
            len(segments) > 1
            and not segments[0].live_count
            and segments[0].dead_number <= self._synced_number
        ):
            self._retired.append((segments.pop(0), self._number))
            self._starts.pop(0)
        if len(segments) == was:
            return
        if self._moved:
            self._moved = {n: s for n, s in self._moved.items() if s in segments}
        # Nothing else may come to be written for a long time; an empty block tells it.
        # Without room the next roll tells it as well.
        self._write_block(lambda: ([], 0), may_roll=False)
        self.wants_sync = True

    def _remove_retired(self) -> None:
        while self._retired and self._retired[0][1] <= self._synced_number:
            segment, _ = self._retired.pop(0)
            is_standard = segment.size_bytes == self._segment_size_bytes
            if is_standard and len(self._spares) + len(self._recycling) < _MAX_SPARES:
                spare = f"{segment.generation}{SPARE_SUFFIX}"
                self.disk.rename(segment.name, spare)
                self._is_directory_dirty = True
                self._recycling.append(spare)
            else:
                self._chores.append(Chore("unlink", segment.name, 0))

    # What group commit asks.

    def begin_sync(self) -> SyncTicket:
        """Return what a sync started now must cover; later blocks belong to the next one."""
        dirty, self._dirty = self._dirty, []
        targets: list[Syncable] = [s.file for s in dirty if s.file is not None]
        recycled: tuple[str, ...] = ()
        if self._is_directory_dirty:
            # A new file counts only when its name is durable too. Spec: DURABLE-10
            targets.append(self.disk.directory)
            self._is_directory_dirty = False
            # Until its new name is durable a recycled file may come back under its old one.
            recycled = tuple(self._recycling)
        self.wants_sync = False
        return SyncTicket(
            lsn=self.written_lsn,
            number=self._number - 1,
            size_bytes=self.unsynced_bytes,
            targets=tuple(targets),
            recycled=recycled,
        )

    def end_sync(self, ticket: SyncTicket) -> list[DiskFile]:
        """Take note that the sync of `ticket` succeeded; return files to be closed.

        May write one small block and rename a file.

        Raises:
            OSError: the disk refused either; nothing durable is touched by that.
        """
        self._synced_number = ticket.number
        self.unsynced_bytes -= ticket.size_bytes
        for spare in ticket.recycled:
            self._recycling.remove(spare)
            self._spares.append(spare)
        closing = self._close_full_segments()
        self._retire_segments()
        self._remove_retired()
        return closing

    def _close_full_segments(self) -> list[DiskFile]:
        still_dirty = [segment for segment in self._full if segment in self._dirty]
        closing = []
        for segment in self._full:
            if segment not in still_dirty and segment.file is not None:
                closing.append(segment.file)
                segment.file = None
        self._full = still_dirty
        return closing

    def take_chores(self) -> list[Chore]:
        """Return file work for somebody who may block; none of it is needed for safety."""
        chores, self._chores = self._chores, []
        return chores

    def set_aside(self, segment: Segment) -> None:
        """Leave out a damaged segment whose live copies were moved and synced.

        Its file is renamed, not removed. The numbers of its blocks are among the known gaps.
        """
        self._starts.pop(self._segments.index(segment))
        self._segments.remove(segment)
        self.disk.rename(segment.name, segment.name + DAMAGED_SUFFIX)
        self._is_directory_dirty = True

    def close(self) -> None:
        """Close the files. What was not synced is as durable as after a crash."""
        for segment in self._segments:
            if segment.file is not None:
                segment.file.close()
                segment.file = None
