"""The journal: everything durable, of all queues, in the order it happened.

It is one write-ahead log for messages, settlements and definitions (`docs/internals/decisions/`,
0002). A turn of the broker buffers what it decided (`append_run`, `settle`, `define`, …), which is
no I/O and cannot fail, and then calls `write` once. That hands all of it to the disk as one
checksummed block in the active segment. Group commit syncs with the tickets of `begin_sync`, and
`end_sync` learns what is durable.

What holds at any moment:

- A block is there after a crash, or it is not. So whatever one turn decided is atomic over all
  queues: a transaction, or a dead letter that leaves one queue and enters another.
- LSNs rise in the order of the decisions. `written_lsn` < `next_lsn`; the watermark, which others
  keep, is never beyond `written_lsn`.
- A message is stored once, however many queues it goes to. Each queue's copy is settled by itself.
- After `WriteFailed` runs, definitions and drops of the refused block are forgotten; settles and
  marks stay for the next block.

What was tried: a file for each queue. Syncing 256 records of 512 bytes took 0.3 ms in one file,
5.6 ms in eight and 27 ms in sixty-four. Writing from a helper process or a thread cost more in
changes of context than the copy into the page cache does (decision 0005), so the loop writes.

What it costs: one live message keeps a whole segment, which is why there is `store/compaction/`;
a failed sync concerns every queue and ends the process; and while the disk hangs in a write, the
loop hangs with it.

It must not know AMQP connections, queues' names, the clock, threads or the loop.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from mypy_extensions import mypyc_attr

from vouchmq.store.disk import Disk, DiskFile
from vouchmq.store.errors import WriteFailed
from vouchmq.store.histogram import SIZES_BYTES, Histogram
from vouchmq.store.journal import records
from vouchmq.store.journal.block_buffer import BlockBuffer, encode_head
from vouchmq.store.journal.end_mark import EndMark, EndMarkFile
from vouchmq.store.journal.notes import Notes
from vouchmq.store.journal.positions import PositionOf
from vouchmq.store.journal.routes import RouteTable
from vouchmq.store.journal.segment import Segment, summary_name
from vouchmq.store.journal.segment_pool import FileTask
from vouchmq.store.journal.segments import ChainState, SegmentChain, SyncScope
from vouchmq.store.journal.snapshot import Snapshot
from vouchmq.store.journal.staging import StagedContent
from vouchmq.store.reading.index import Index, SegmentIndex
from vouchmq.store.reading.reader import NO_LIMIT, FetchedRun, Reader
from vouchmq.store.recovery.summary_writer import Summarizer

# A route is logged again after so much, so that a damaged block does not make a whole
# segment behind it unreadable.
_ROUTES_AGAIN_BYTES: int = 1024 * 1024


class SyncTicket:
    """What one sync will make durable: all LSNs up to `lsn`."""

    __slots__ = ("lsn", "scope", "size_bytes", "targets")

    def __init__(self, lsn: int, size_bytes: int, scope: SyncScope) -> None:
        self.lsn = lsn
        self.size_bytes = size_bytes
        self.scope = scope
        # What has to be synced: files, and the directory when a file is new.
        self.targets = scope.targets


@dataclass(slots=True)
class JournalState:
    """What recovery hands over; the defaults are those of an empty directory."""

    chain: ChainState = field(default_factory=ChainState)
    next_lsn: int = 1
    marks: dict[int, int] = field(default_factory=dict)
    definitions: list[bytes] = field(default_factory=list)
    index: Index = field(default_factory=Index)
    notes: dict[int, dict[bytes, bytes]] = field(default_factory=dict)


class StateOwner(Protocol):
    """Who has the state that the journal writes again when a segment begins or goes."""

    def definitions(self) -> list[bytes]:
        """Return all current definition records; called when a segment begins.

        Replay may meet a definition both there and after it, so applying one twice must be
        harmless.
        """

    def recall(self, scope_id: int, key: bytes) -> bytes | None:
        """Return the value that a note's key has by now, None if it is not wanted any more."""

    def position_of(self, queue_id: int, lsn: int) -> int | None:
        """Return the position of a message in a queue that numbers its messages."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Journal:
    """The open journal. Made by `open_journal` only.

    LSNs start at 1 and are handed out in order. `wall_ms` gives the time of day in milliseconds;
    it is asked once per block with messages.

    What a journal must know of the state of the broker to write it again (definitions, notes,
    positions) it has from recovery, and keeps up to date itself: so it can be written as soon as
    it exists. `ask` gives it an owner of that state, who knows better what still matters.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        segment_size_bytes: int,
        wall_ms: Callable[[], int],
        state: JournalState,
        position_of: PositionOf,
    ) -> None:
        self.disk = disk
        self.next_lsn = state.next_lsn
        self.written_lsn = state.next_lsn - 1
        self.unsynced_bytes = 0
        self.wants_sync = False
        # How many blocks the disk has refused, with the moves in them.
        self.refusals = 0
        self.block_sizes = Histogram(SIZES_BYTES)
        self._tap = state.chain.tap
        self._chain = SegmentChain(disk, segment_size_bytes, state.chain)
        self._index = state.index
        self._reader = Reader(disk, state.index, self._chain.generation_of, self.distrust)
        self._snapshot = Snapshot(state.definitions)
        self._wall_ms = wall_ms
        self._all_marks = state.marks
        # What the current turn has buffered, and the routes of this and earlier ones.
        self._routes = RouteTable()
        self._routes_until = _ROUTES_AGAIN_BYTES
        self._buffer = BlockBuffer()
        # Positions of messages that are moved, in queues that number theirs.
        self._position_of = position_of
        self._notes = Notes(self._chain, state.notes)
        self._summarizer = Summarizer(disk, segment_size_bytes)
        self._end_mark = EndMarkFile(disk)
        self._begin_segment(0, self._snapshot.known)

    @property
    def chain(self) -> SegmentChain:
        """The row of segments, for who looks after its length."""
        return self._chain

    @property
    def notes(self) -> Notes:
        """What is known of notes, for who looks after the length of the row."""
        return self._notes

    @property
    def brings_new(self) -> bool:
        """Whether messages or definitions are buffered, which a full disk refuses."""
        return self._buffer.brings_new

    @property
    def has_moves(self) -> bool:
        """Whether moves are buffered that are not counted yet."""
        return bool(self._buffer.moves)

    def ask(self, owner: StateOwner) -> None:
        """From now on ask `owner`, who has what recovery found; what it left here is let go."""
        self._snapshot.ask(owner.definitions)
        self._notes.ask(owner.recall)
        self._position_of = owner.position_of

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
        buffer = self._buffer
        buffer.runs += (self._route(queue_ids, tail), lsn, count)
        buffer.groups.append((queue_ids, lsn, count))
        buffer.raws += raws
        return lsn

    def append_unlike(
        self, queue_ids: tuple[int, ...], tails: Sequence[bytes], raws: list[bytes]
    ) -> int:
        """Buffer contents that go to the same durable queues, each with a tail of its own.

        Otherwise as `append_run`. Cost per message: three numbers more.
        """
        lsn = self.next_lsn
        count = len(raws)
        self.next_lsn = lsn + count
        buffer = self._buffer
        numbers = self._routes.number_all(queue_ids, tails)
        if numbers is None:
            # One by one: a route that is in the buffer is kept while others are added.
            for at, tail in enumerate(tails, lsn):
                buffer.runs += (self._route(queue_ids, tail), at, 1)
        else:
            rows = [1] * (3 * count)
            rows[::3] = numbers
            rows[1::3] = range(lsn, lsn + count)
            buffer.runs += rows
        buffer.groups.append((queue_ids, lsn, count))
        buffer.raws += raws
        return lsn

    def place(self, queue_id: int, lsn: int, count: int, position: int) -> None:
        """Buffer which position a run just appended has in a queue that numbers its messages.

        It is told again at recovery, whatever became of the messages before it.
        """
        self._buffer.place(queue_id, lsn, count, position)

    def settle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Buffer that this queue's copies of `lsns` are gone: acked, dropped or purged.

        Each copy at most once, and only LSNs that `append_run` returned for this queue. A long
        range stays one: a purge costs the same whatever it takes away.
        """
        self._buffer.settle(queue_id, lsns)

    def unsettle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Take settles back that no block holds yet: what caused them was refused. Spec: TX-09"""
        self._buffer.unsettle(queue_id, lsns)

    def delivered(self, queue_id: int, lsn: int) -> None:
        """Buffer that every copy of this queue up to `lsn` was handed out at least once.

        Spec: DURABLE-12
        """
        before = self._all_marks.get(queue_id, 0)
        if lsn > before:
            self._buffer.marks_before.setdefault(queue_id, before)
            self._all_marks[queue_id] = self._buffer.marks[queue_id] = lsn

    def stage(self, raw: bytes) -> StagedContent | None:
        """Begin to write a large content now, in pieces; None: `append_run` is as good.

        Call `go_on` of it until there is nothing left, set `is_due`, give the very same object to
        `append_run` and call `write`. Who does not want it any more sets `is_due` as well.
        """
        return self._chain.stage(raw)

    def define(self, record: bytes) -> int:
        """Buffer a change of definitions; return its LSN. Spec: DURABLE-02"""
        self._buffer.defines.append(record)
        return self.take(1)

    def drop_queue(self, queue_id: int) -> int:
        """Buffer that a queue is gone with all its copies and notes; return the LSN of that.

        The id must never be used again.
        """
        self._buffer.drops.append(queue_id)
        self._notes.drop(queue_id)
        return self.take(1)

    def note(self, scope_id: int, key: bytes, value: bytes) -> int:
        """Buffer a small fact that is no message; return its LSN. The newest of a key counts.

        It is in the same block as everything else of the turn, and asks for no sync: see
        `barrier`. `scope_id` is one that `drop_queue` takes, and ends all notes of.
        """
        self._notes.note(scope_id, key, value)
        return self.take(1)

    def unnote(self, scope_id: int, key: bytes) -> None:
        """Buffer that a key has no value any more, if it had one; asks for no sync."""
        self._notes.unnote(scope_id, key)

    def barrier(self) -> int:
        """Return an LSN that is synced no earlier than all that is buffered: for acks alone."""
        self._buffer.has_barrier = True
        return self.take(1)

    def move_run(
        self,
        queue_ids: tuple[int, ...],
        tail: bytes,
        first_lsn: int,
        raws: list[bytes],
        arrived_ms: int,
    ) -> None:
        """Buffer live copies again, out of an older segment: their LSNs and time stay theirs."""
        buffer = self._buffer
        buffer.moves += (self._route(queue_ids, tail), first_lsn, len(raws))
        buffer.moved_raws += raws
        for queue_id in queue_ids:
            position = self._position_of(queue_id, first_lsn)
            if position is not None:
                buffer.place(queue_id, first_lsn, len(raws), position)
        buffer.arrivals.append(arrived_ms)

    def rewrite_settlements(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Buffer settles again whose block is about to go; they are counted already."""
        self._buffer.rewritten.append((queue_id, lsns))

    def rewrite_drop(self, queue_id: int) -> None:
        """Buffer again that a queue is gone; it is counted already."""
        self._buffer.dropped_again.append(queue_id)

    def retire(self, segment: Segment) -> None:
        """Buffer that a segment may go out of turn; it takes effect when that is synced.

        It is not the oldest and not the newest, no live copy is in it, and of what it says
        everything that others need was logged again.
        """
        self._buffer.retired_early.append(segment)

    def _route(self, queue_ids: tuple[int, ...], tail: bytes) -> int:
        routes = self._routes
        number = routes.find(queue_ids, tail)
        if number is None:
            if routes.is_full:
                routes.make_room(self._buffer.route_numbers)
            number = routes.add(queue_ids, tail)
        return number

    # Writing.

    def write(self) -> int:
        """Hand everything buffered to the disk as one block; return the highest LSN so far.

        Page cache only. Returns at once when nothing is buffered.

        Raises:
            WriteFailed: the disk refused. Runs, definitions and drops of the block are
                forgotten; settles and marks are kept for the next one.
        """
        buffer, notes = self._buffer, self._notes
        if notes.is_busy:
            notes.prepare()
        staging = self._chain.staging
        wants_sync = buffer.asks_for_sync
        if not (wants_sync or buffer.has_riders or notes.has_buffered):
            if notes.is_busy:
                # Nothing that was decided waits to be written.
                notes.count()
                self._run_maintenance()
            if staging:
                staging.sweep()
            return self.written_lsn
        if buffer.runs:
            buffer.written_ms = self._wall_ms()
        try:
            self.next_lsn += self._chain.wipe_header()
            self._write_block()
        except OSError as error:
            raise self._forget_block(error) from error
        finally:
            if staging:
                staging.sweep()
        try:
            self._count_block()
        finally:
            self._routes.count_block()
            buffer.clear()
        if self._chain.active.offset >= self._routes_until:
            self._routes_until = self._chain.active.offset + _ROUTES_AGAIN_BYTES
            self._routes.keep(self._buffer.route_numbers)
        self._run_maintenance()
        if wants_sync:
            self.wants_sync = True
        return self.written_lsn

    def _run_maintenance(self) -> None:
        if self._summarizer.has_pieces:
            self._summarizer.go_on()
        self._notes.look_at_oldest()
        if self._chain.look_after_files():
            self.wants_sync = True

    def _write_block(self) -> None:
        payload, length = self._encode()
        brings_new = self._buffer.brings_new
        chain = self._chain
        staged = chain.staging.take(self._buffer.raws) if chain.staging else None
        if staged is not None and staged.is_ahead:
            if self._has_room_around(staged, length):
                self._append(*self._encode_around(staged, length), staged)
                return
            staged = None
        fits = chain.has_room(records.HEADER_SIZE + length, brings_new=brings_new)
        if staged is not None or not fits:
            need = records.HEADER_SIZE + length + self._routes.size_of(self._buffer.route_numbers)
            definitions = self._snapshot.records()
            staged = self._begin_segment(need, definitions, brings_new=brings_new, staged=staged)
            self._notes.sweep()
            # Routes are logged once per segment: all those in use now need it again.
            self._routes.begin_segment(self._buffer.route_numbers)
            self._routes_until = _ROUTES_AGAIN_BYTES
            payload, length = self._encode()
            if staged is not None:
                payload, length = self._encode_around(staged, length)
        self._append(payload, length, staged)

    def _encode_around(self, staged: StagedContent, length: int) -> tuple[list[bytes], int]:
        """Return sections of which `staged` comes to stand where it is; they had this length."""
        lead = self._chain.active.offset + records.HEADER_SIZE + length - self._behind(staged)
        zeros = bytes(staged.start - lead - records.SECTION_SIZE)
        return self._encode(records.pack_section(records.PADDING, 0, zeros))

    def _has_room_around(self, staged: StagedContent, length: int) -> bool:
        """Whether sections of this length, with that content among them, fit where it is."""
        behind = self._behind(staged)
        lead = self._chain.active.offset + records.HEADER_SIZE + length - behind
        return staged.has_room(lead + records.SECTION_SIZE, behind)

    def _behind(self, staged: StagedContent) -> int:
        """Octets of contents of the next block from this one on."""
        raws = self._buffer.raws
        at = next(at for at, raw in enumerate(raws) if raw is staged.raw)
        return sum(map(len, raws[at:])) + sum(map(len, self._buffer.moved_raws))

    def _append(
        self, payload: list[bytes], length: int, staged: StagedContent | None = None
    ) -> None:
        first_lsn = self.written_lsn + 1
        offset = self._chain.active.offset
        # The scan looks into few kinds of blocks; this one must be among them.
        kind = records.CHECKPOINT if self._buffer.retired_early else records.BATCH
        size = self._chain.append(payload, length, first_lsn, self.next_lsn, kind, staged)
        self.unsynced_bytes += size
        self.block_sizes.observe(size)
        self.written_lsn = self.next_lsn - 1
        moves, new_routes = self._buffer.moves, self._routes.new
        self._index.active.add(
            offset,
            size,
            (first_lsn, self.next_lsn),
            has_runs=bool(self._buffer.runs),
            first_route=min(new_routes) if new_routes else None,
            moved=list(zip(moves[1::3], moves[2::3], strict=True)),
        )

    def _begin_segment(
        self,
        need: int,
        definitions: list[bytes],
        *,
        brings_new: bool = False,
        staged: StagedContent | None = None,
    ) -> StagedContent | None:
        """Begin a segment, with what is `staged` if there is room around it: then return that."""
        # As they are without the block behind this head: should it be lost, nobody has seen what
        # it hands out, and its LSNs are given again.
        marks = self._all_marks | self._buffer.marks_before
        chain = self._chain
        retired_early = chain.retired_early
        head = encode_head(chain.segment_size_bytes, definitions, marks, chain.gaps, retired_early)
        if staged is not None:
            behind = self._behind(staged)
            lead = 2 * records.SECTION_SIZE + records.HEADER_SIZE + sum(map(len, head)) + need
            if not staged.has_room(lead - behind, behind):
                chain.staging.drop(staged)
                staged = None
        self.unsynced_bytes += chain.begin(
            head, need, self.written_lsn + 1, brings_new=brings_new, staged=staged
        )
        rested = (chain.resting[-1], self._index.active) if chain.resting else None
        self._summarizer.begin(rested, chain.gaps, retired_early, marks)
        begun = self._chain.active
        self._index.begin(SegmentIndex(begun.generation, begun.name, begun.salt, begun.first_lsn))
        return staged

    def learn_definitions(self) -> None:
        """Ask for all definitions now, when who knows them has what recovery found.

        Nobody is served yet, as somebody may be when a segment begins.
        """
        self._snapshot.refresh()

    def distrust(self, generation: int) -> None:
        """Have the next start read this segment as a whole: it is not what was written."""
        with suppress(OSError):
            self.disk.unlink(summary_name(generation))

    def checked(self, segment: Segment) -> None:
        """Take note that every block of a segment was found to be what was written."""
        segment.is_unchecked = False
        self._index.checked(segment.generation)

    # Reading back.

    def fetch(self, lsns: Sequence[int], limit_bytes: int = NO_LIMIT) -> list[tuple[bytes, bytes]]:
        """Return (raw, tail) of messages that were written, synced or not.

        `lsns` ascend and all have live copies. Stops early when `limit_bytes` are reached, at
        the earliest after one message.

        Raises:
            ReadFailed: the disk refused, or a message is not what was written
        """
        return self._reader.fetch(lsns, limit_bytes)

    def fetch_runs(
        self, lsns: Sequence[int], limit_bytes: int, limit_steps: int = NO_LIMIT
    ) -> list[FetchedRun]:
        """Return the same as (first LSN, tail, contents, when they arrived) of rows of messages.

        When: milliseconds, as `wall_ms` gave them; 0: unknown. Stops also after `limit_steps`.
        """
        return self._reader.fetch_runs(lsns, limit_bytes, limit_steps)

    @property
    def read_steps(self) -> int:
        """Steps that all reads have taken so far, each of about a microsecond."""
        return self._reader.steps

    def _encode(self, padding: Sequence[bytes] = ()) -> tuple[list[bytes], int]:
        buffer, table = self._buffer, self._routes
        has_routes = table.told_once and (buffer.runs or buffer.moves)
        numbers: set[int] = buffer.route_numbers if has_routes else set()
        routes = table.encode(numbers) if numbers or table.new else ()
        notes = self._notes.encode() if self._notes.has_buffered else ()
        return buffer.encode(routes, notes, padding)

    def _forget_block(self, error: OSError) -> WriteFailed:
        first, last = self.written_lsn + 1, self.next_lsn - 1
        self.refusals += 1
        with suppress(OSError):
            self.next_lsn += self._chain.wipe_header()
        self._buffer = self._buffer.refused(first)
        self._notes.refuse()
        self._routes.forget_block(self._buffer.route_numbers)
        return WriteFailed(error, first, last)

    def _count_block(self) -> None:
        chain, buffer = self._chain, self._buffer
        keys = self._routes.by_number
        for queue_ids, _, count in buffer.groups:
            chain.add_copies(queue_ids, count)
        moves = buffer.moves
        for at in range(0, len(moves), 3):
            chain.move_copies(keys[moves[at]][0], moves[at + 1], moves[at + 2])
        for queue_id, lsns in buffer.all_settles():
            chain.settle_copies(queue_id, lsns)
        if buffer.defines:
            self._snapshot.add(buffer.defines)
        has_notes = self._notes.is_involved
        self._summarizer.add(buffer, keys, self._notes.words() if has_notes else ())
        if has_notes:
            self._notes.count()
        if has_notes or buffer.rewritten or buffer.dropped_again:
            chain.note_outer()
        for queue_id in buffer.drops:
            self._all_marks.pop(queue_id, None)
            self._notes.count_drop(queue_id)
            chain.drop_queue(queue_id)
        for segment in buffer.retired_early:
            chain.retire(segment)

    # What group commit asks.

    @property
    def unsafe_bytes(self) -> int:
        """Octets handed over of which it is not known that nobody can take them back."""
        # Asked for at each read of a socket: nearly always there is no tap.
        unsafe = self.unsynced_bytes
        return unsafe if self._tap is None else max(unsafe, self._tap.unsafe_bytes)

    def begin_sync(self) -> SyncTicket:
        """Return what a sync started now must cover; later blocks belong to the next one."""
        self.wants_sync = False
        scope = self._chain.begin_sync()
        if self._end_mark.is_written:
            scope = SyncScope(scope.number, (*scope.targets, *self._end_mark.targets()))
        return SyncTicket(self.written_lsn, self.unsynced_bytes, scope)

    def end_sync(self, ticket: SyncTicket) -> list[DiskFile]:
        """Take note that the sync of `ticket` succeeded; return files to be closed.

        May write one small block and the end mark, and rename a file; none may fail the caller.
        """
        self.unsynced_bytes -= ticket.size_bytes
        closing = self._chain.close_full_segments()
        self._tell_retired(self._chain.end_sync(ticket.scope))
        self._mark_end()
        return closing

    def committed(self, number: int) -> None:
        """As `end_sync`: whoever has tapped the journal will not lose blocks up to this number."""
        self._tell_retired(self._chain.committed(number))

    def _tell_retired(self, has_retired: bool) -> None:
        """Tell that segments are gone, if some are."""
        self._forget_segments()
        if has_retired:
            # Nothing else may come to be written for a long time; an empty block tells it.
            # Without room for that the next segment tells it as well.
            with suppress(OSError):
                self.announce()
            self.wants_sync = True

    def _mark_end(self) -> None:
        """Say outside that the newest segment was begun, once its head is synced."""
        self._end_mark.synced()
        segment = self._chain.active
        number = segment.first_number
        if self._end_mark.generation != segment.generation and self._chain.synced_number >= number:
            self._end_mark.put(
                EndMark(segment.generation, number, number, segment.head_bytes, segment.first_lsn)
            )

    def seal(self) -> bool:
        """Say outside that the journal ends here; return whether that is on disk.

        Nothing may be written any more. While it is not, ask for a sync, and then again.
        Spec: DURABLE-22
        """
        if self.wants_sync or not self._chain.is_synced:
            return False
        return self._end_mark.seal(self.end())

    def end(self) -> EndMark:
        """What a seal says if nothing is written any more: of the journal, or of a copy of it."""
        segment = self._chain.active
        return EndMark(
            segment.generation,
            segment.first_number,
            segment.last_number,
            segment.offset,
            self.written_lsn + 1,
            is_sealed=True,
        )

    def announce(self) -> None:
        """Write an empty block, which says what every header says.

        Raises:
            OSError: the disk refused
        """
        if not self._chain.active.has_room(records.HEADER_SIZE):
            return
        self.next_lsn += self._chain.wipe_header()
        # What is buffered belongs to a later block, and so do its LSNs.
        lsn = self.written_lsn + 1
        self.unsynced_bytes += self._chain.append((), 0, lsn, lsn)

    def take_file_tasks(self) -> list[FileTask]:
        """Return file work for somebody who may block; none of it is needed for safety."""
        return self._chain.take_file_tasks()

    def leave_out(self, segment: Segment) -> None:
        """Leave out a damaged segment whose live copies were moved and synced."""
        self._chain.leave_out(segment)
        self._forget_segments()

    def _forget_segments(self) -> None:
        """Let go of the files that the chain has given up."""
        if self._index.segment_count != self._chain.segment_count:
            for generation in self._index.keep(self._chain.generations):
                self._reader.forget(generation)

    def discard(self) -> None:
        """Close the files, and remove the segment begun at the opening if it has only its head.

        The directory is then as recovery has made it: a seal stays valid, and starts that are
        refused pile up no files. A crash in between is one right after the opening.

        Raises:
            OSError: the disk refused; the next start finds an empty segment
        """
        segment = self._chain.active
        is_bare = segment.last_number == segment.first_number
        is_synced = self._chain.synced_number >= segment.first_number
        self._reader.close()
        self._chain.close()
        self._end_mark.close()
        if is_bare and not is_synced:
            self.disk.unlink(segment.name)
            self.disk.directory.sync()

    def close(self) -> None:
        """Close the files. What was not synced is as durable as after a crash."""
        self._summarizer.finish()
        self._reader.close()
        self._chain.close()
        self._end_mark.close()
