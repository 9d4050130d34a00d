"""The journal: everything durable, in the order it happened.

A turn of the broker buffers what it decided (`append_run`, `settle`, `define`, …) and then
calls `write` once, which hands all of it to the disk as one checksummed block: after a
crash the block is there or it is not. Nothing here syncs; group commit does that with the
tickets of `begin_sync`, and what is durable comes back through `end_sync`.

It must not know AMQP connections, queues' names, the clock, threads or the loop.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from store import records
from store.chain import Chain, ChainState, Chore, SyncScope, Vacated
from store.disk import Disk, DiskFile, Syncable
from store.errors import WriteFailed
from store.index import Index, SegmentIndex
from store.reader import NO_LIMIT, FetchedRun, Reader
from store.segment import Segment

# Beyond this many different routes in a segment the table starts anew, so that a routing
# key per message costs disk (a route is logged again), not memory.
_MAX_ROUTES: Final = 4096
# A route is logged again after so much, so that a damaged block does not make a whole
# segment behind it unreadable.
_ROUTES_AGAIN_BYTES: Final = 1024 * 1024


@dataclass(slots=True, frozen=True)
class SyncTicket:
    """What one sync will make durable: all LSNs up to `lsn`."""

    lsn: int
    size_bytes: int
    scope: SyncScope

    @property
    def targets(self) -> tuple[Syncable, ...]:
        """What has to be synced: files, and the directory when a file is new."""
        return self.scope.targets


@dataclass(slots=True)
class JournalState:
    """What recovery hands over; the defaults are those of an empty directory."""

    chain: ChainState = field(default_factory=ChainState)
    next_lsn: int = 1
    marks: dict[int, int] = field(default_factory=dict)
    definitions: list[bytes] = field(default_factory=list)
    index: Index = field(default_factory=Index)


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
        # How many blocks the disk has refused, with the moves in them.
        self.refusals = 0
        self._chain = Chain(disk, segment_size_bytes, state.chain)
        self._index = state.index
        self._reader = Reader(disk, state.index)
        self._snapshot = snapshot
        self._all_marks = state.marks
        # What the current turn has buffered.
        self._routes: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._route_keys: dict[int, tuple[tuple[int, ...], bytes]] = {}
        self._new_routes: list[int] = []
        self._next_route = 0
        self._routes_until = _ROUTES_AGAIN_BYTES
        self._route_limit = _MAX_ROUTES
        self._runs: list[int] = []
        self._raws: list[bytes] = []
        self._moves: list[int] = []
        self._moved_raws: list[bytes] = []
        self._settles: dict[int, list[int]] = {}
        self._relogs: list[tuple[int, Sequence[int]]] = []
        self._vacated: list[Segment] = []
        self._defines: list[bytes] = []
        self._drops: list[int] = []
        self._dropped_again: list[int] = []
        self._marks: dict[int, int] = {}
        self._has_barrier = False
        self._begin_segment(0, state.definitions)

    @property
    def chain(self) -> Chain:
        """The row of segments, for who looks after its length."""
        return self._chain

    @property
    def has_moves(self) -> bool:
        """Whether moves are buffered that are not counted yet."""
        return bool(self._moves)

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

    def unsettle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Take settles back that no block holds yet: what caused them was refused. Spec: TX-09"""
        pending = self._settles.get(queue_id)
        if pending:
            back = set(lsns)
            self._settles[queue_id] = [lsn for lsn in pending if lsn not in back]

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
        self._relogs.append((queue_id, lsns))

    def relog_drop(self, queue_id: int) -> None:
        """Buffer again that a queue is gone; it is counted already."""
        self._dropped_again.append(queue_id)

    def vacate(self, segment: Segment) -> None:
        """Buffer that a segment may go out of turn; it takes effect when that is synced.

        It is not the oldest and not the newest, no live copy is in it, and of what it says
        everything that others need was logged again.
        """
        self._vacated.append(segment)

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
        asking = (self._runs, self._defines, self._drops, self._vacated)
        riding = (self._settles, self._marks, self._moves, self._relogs, self._dropped_again)
        wants_sync = self._has_barrier or any(asking)
        if not wants_sync and not any(riding):
            return self.written_lsn
        try:
            self._chain.scrub()
            self._write_block()
        except OSError as error:
            raise self._forget_block(error) from error
        try:
            self._count_block()
        finally:
            self._clear_block()
        if self._chain.active.offset >= self._routes_until:
            self._routes_until = self._chain.active.offset + _ROUTES_AGAIN_BYTES
            self._keep_routes(set())
        if self._chain.look_after_files() or wants_sync:
            self.wants_sync = True
        return self.written_lsn

    def _write_block(self) -> None:
        payload, length = self._encode()
        if not self._chain.active.has_room(records.HEADER_SIZE + length):
            self._begin_segment(
                records.HEADER_SIZE + length + self._routes_size(), self._snapshot()
            )
            # Routes are logged once per segment: all those in use now need it again.
            self._keep_routes(set())
            self._new_routes = list(self._route_keys)
            self._routes_until = _ROUTES_AGAIN_BYTES
            payload, length = self._encode()
        self._append(payload, length)

    def _append(self, payload: list[bytes], length: int) -> None:
        first_lsn = self.written_lsn + 1
        offset = self._chain.active.offset
        # The scan looks into few kinds of blocks; this one must be among them.
        kind = records.CHECKPOINT if self._vacated else records.BATCH
        size = self._chain.append(payload, length, first_lsn, self.next_lsn, kind)
        self.unsynced_bytes += size
        self.written_lsn = self.next_lsn - 1
        moves = self._moves
        self._index.active.add(
            offset,
            size,
            (first_lsn, self.next_lsn),
            has_runs=bool(self._runs),
            first_route=min(self._new_routes, default=None),
            moved=moved_bounds(moves[1::3], moves[2::3]),
        )

    def _begin_segment(self, need: int, definitions: list[bytes]) -> None:
        head = self._encode_head(definitions)
        self.unsynced_bytes += self._chain.begin(head, need, self.written_lsn + 1)
        begun = self._chain.active
        self._index.begin(SegmentIndex(begun.generation, begun.name, begun.salt, begun.first_lsn))

    # Reading back.

    def fetch(self, lsns: Sequence[int], limit_bytes: int = NO_LIMIT) -> list[tuple[bytes, bytes]]:
        """Return (raw, tail) of messages that were written, synced or not.

        `lsns` ascend and all have live copies. Stops early when `limit_bytes` are reached, at
        the earliest after one message.

        Raises:
            ReadFailed: the disk refused, or a message is not what was written
        """
        return self._reader.fetch(lsns, limit_bytes)

    def fetch_runs(self, lsns: Sequence[int], limit_bytes: int) -> list[FetchedRun]:
        """Return the same as (first LSN, tail, contents) of messages that follow each other."""
        return self._reader.fetch_runs(lsns, limit_bytes)

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
        parts += records.pack_settles((*self._settles.items(), *self._relogs))
        if self._drops or self._dropped_again:
            drops = self._drops + self._dropped_again
            self._put_numbers(parts, records.DROPPED_QUEUES, drops, 1)
        if self._vacated:
            self._put_vacated(parts, self._vacated)
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

    def _encode_head(self, definitions: list[bytes]) -> list[bytes]:
        info = records.pack_numbers([self._chain.segment_size_bytes])
        parts = records.pack_section(records.SEGMENT_INFO, 1, info)
        parts += records.pack_texts(records.SNAPSHOT, definitions)
        if self._all_marks:
            # Not beyond what is written: should the block behind this head be lost, its LSNs are
            # given again, and to messages that nobody has seen.
            last = self.written_lsn
            marks = [n for q, lsn in self._all_marks.items() for n in (q, min(lsn, last))]
            self._put_numbers(parts, records.DELIVERED_MARKS, marks, 2)
        if self._chain.gaps:
            gaps = [number for gap in self._chain.gaps for number in gap]
            self._put_numbers(parts, records.KNOWN_GAPS, gaps, 2)
        if self._chain.vacated:
            self._put_vacated(parts, self._chain.vacated)
        return parts

    def _put_vacated(self, parts: list[bytes], segments: Sequence[Segment | Vacated]) -> None:
        numbers = [n for s in segments for n in (s.generation, s.first_number, s.last_number)]
        self._put_numbers(parts, records.VACATED, numbers, 3)

    def _routes_size(self) -> int:
        """Upper bound, in octets, of logging every buffered route again."""
        used = {*self._runs[::3], *self._moves[::3]}
        keys = (self._route_keys[number] for number in used)
        return records.SECTION_SIZE + sum(16 + 8 * len(ids) + len(tail) for ids, tail in keys)

    def _forget_block(self, error: OSError) -> WriteFailed:
        first, last = self.written_lsn + 1, self.next_lsn - 1
        self.refusals += 1
        with suppress(OSError):
            self._chain.scrub()
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
        self._relogs = []
        self._defines = []
        self._drops = []
        self._dropped_again = []
        self._vacated = []
        self._marks = {}
        self._has_barrier = False

    def _count_block(self) -> None:
        chain = self._chain
        keys = self._route_keys
        runs = iter(self._runs)
        for route, _, count in zip(runs, runs, runs, strict=True):
            chain.add_copies(keys[route][0], count)
        moves = iter(self._moves)
        for route, first_lsn, count in zip(moves, moves, moves, strict=True):
            chain.move_copies(keys[route][0], first_lsn, count)
        for queue_id, lsns in self._settles.items():
            chain.settle_copies(queue_id, lsns)
        for queue_id in self._drops:
            self._all_marks.pop(queue_id, None)
            chain.drop_queue(queue_id)
        for segment in self._vacated:
            chain.vacate(segment)

    # What group commit asks.

    def begin_sync(self) -> SyncTicket:
        """Return what a sync started now must cover; later blocks belong to the next one."""
        self.wants_sync = False
        return SyncTicket(self.written_lsn, self.unsynced_bytes, self._chain.begin_sync())

    def end_sync(self, ticket: SyncTicket) -> list[DiskFile]:
        """Take note that the sync of `ticket` succeeded; return files to be closed.

        May write one small block and rename a file; neither may fail the caller.
        """
        self.unsynced_bytes -= ticket.size_bytes
        closing = self._chain.close_full_segments()
        has_retired = self._chain.end_sync(ticket.scope)
        self._forget_segments()
        if has_retired:
            # Nothing else may come to be written for a long time; an empty block tells it.
            # Without room for that the next segment tells it as well.
            with suppress(OSError):
                self.announce()
            self.wants_sync = True
        return closing

    def announce(self) -> None:
        """Write an empty block, which says what every header says.

        Raises:
            OSError: the disk refused
        """
        if not self._chain.active.has_room(records.HEADER_SIZE):
            return
        self._chain.scrub()
        # What is buffered belongs to a later block, and so do its LSNs.
        lsn = self.written_lsn + 1
        self.unsynced_bytes += self._chain.append((), 0, lsn, lsn)

    def take_chores(self) -> list[Chore]:
        """Return file work for somebody who may block; none of it is needed for safety."""
        return self._chain.take_chores()

    def set_aside(self, segment: Segment) -> None:
        """Leave out a damaged segment whose live copies were moved and synced."""
        self._chain.set_aside(segment)
        self._forget_segments()

    def _forget_segments(self) -> None:
        """Let go of the files that the chain has given up."""
        for generation in self._index.keep(self._chain.generations):
            self._reader.forget(generation)

    def close(self) -> None:
        """Close the files. What was not synced is as durable as after a crash."""
        self._reader.close()
        self._chain.close()


def moved_bounds(firsts: Sequence[int], counts: Sequence[int]) -> tuple[int, int] | None:
    """The lowest and the highest LSN of moved runs, None if there are none."""
    if not firsts:
        return None
    return min(firsts), max(map(int.__add__, firsts, counts)) - 1
