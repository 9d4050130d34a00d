"""The row of segments: where blocks go, what is alive where, which files may leave.

Segments go oldest first: a settle is only ever needed while an older segment lives. One
that holds no live copy is first declared gone (field `oldest` of later blocks) and removed
or recycled once such a block is synced, so that no crash can bring back a part of the past.
One in the middle goes the same way when somebody has logged its settles again (`retire`).

It knows blocks by number and size only; what they say is the journal's business.
"""

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from vouchmq.store.disk import DISK_FULL, Disk, DiskFile, Syncable
from vouchmq.store.journal import records
from vouchmq.store.journal.segment import Segment, summary_name
from vouchmq.store.journal.segment_map import SegmentMap
from vouchmq.store.journal.segment_pool import FileTask, SegmentPool
from vouchmq.store.journal.staging import StagedContent, Staging

DAMAGED_SUFFIX: Final = ".damaged"
# From this average on the parts go to the kernel one by one instead of being joined:
# the copy costs more than the longer vector.
_JOIN_BELOW_BYTES: Final = 16 * 1024
# A larger block of small parts is joined, checked and written piece by piece: the memory of a piece
# is used again for the next one, and stays in the processor's cache. Joined as a whole, the block
# would be in memory that is new to the kernel, which took ten times as long as all else about it.
_WHOLE_BYTES: Final = 1024 * 1024
_PIECE_BYTES: Final = 256 * 1024
# A smaller block is one piece: a vector of two costs more than the copy.
_ONE_PIECE_BELOW_BYTES: Final = 4 * 1024


class RetiredSegment(NamedTuple):
    """A segment that was left out of turn: its blocks are missed by nobody."""

    generation: int
    first_number: int
    last_number: int


class LsnSet(Protocol):
    """LSNs of one queue that recovery found settled."""

    def alive(self, first: int, count: int) -> Sequence[int]:
        """Return those of `count` LSNs from `first` on that are not in it, in order."""


class SegmentExtent(NamedTuple):
    """What of a segment's file has been written: `size_bytes`, up to block `last_number`."""

    generation: int
    salt: int
    size_bytes: int
    last_number: int


class BlockTap(Protocol):
    """Who is told of each block when it is in its file, and of each segment that is given up."""

    @property
    def unsafe_bytes(self) -> int:
        """What it was told of, and of which nobody may be told that it is safe."""

    @property
    def last_number(self) -> int:
        """The number of the last block that it has; recovery must find all blocks up to it."""

    def appended(
        self, generation: int, offset: int, number: int, lsn: int, body: Sequence[bytes]
    ) -> None:
        """A block was written at an offset of a segment; `lsn` is the highest up to its end."""

    def request(self) -> None:
        """Somebody waits for what was written until now: it is being synced."""

    def purge(self, generation: int) -> None:
        """A segment's file was removed: a block that is safe declares it gone."""


class SyncScope:
    """What one sync covers: blocks up to `number`."""

    __slots__ = ("number", "targets")

    def __init__(self, number: int, targets: tuple[Syncable, ...]) -> None:
        self.number = number
        self.targets = targets


@dataclass(slots=True)
class ChainState:
    """What recovery hands over; the defaults are those of an empty directory."""

    segments: list[Segment] = field(default_factory=list)
    generation: int = 0
    number: int = 1
    gaps: list[tuple[int, int]] = field(default_factory=list)
    moved: dict[int, Segment] = field(default_factory=dict)
    retired_early: list[RetiredSegment] = field(default_factory=list)
    settled: Mapping[int, LsnSet] = field(default_factory=dict)
    tap: BlockTap | None = None


class SegmentChain:
    """All segments that count, the last of which takes new blocks.

    `number` is that of the next block. `begin` must be called before the first `append`.

    Blocks up to `synced_number` are on this disk. Those up to `safe_number` nobody can take back:
    with a tap they have to be committed as well, and until then nothing rests on them.
    """

    def __init__(self, disk: Disk, segment_size_bytes: int, state: ChainState) -> None:
        self.disk = disk
        self.segment_size_bytes = segment_size_bytes
        self.number = state.number
        self.synced_number = self.safe_number = state.number - 1
        self._tap = state.tap
        self._committed_number = self.safe_number
        self.appended_bytes = 0
        self.whole_bytes, self.piece_bytes = _WHOLE_BYTES, _PIECE_BYTES
        self.gaps = state.gaps
        # Its messages are being moved in the order of their LSNs: those before one that was moved
        # are moved or gone, and need no range of LSNs of their own any more.
        self.emptying: Segment | None = None
        # While somebody copies files, none is removed or used again.
        self.is_held = False
        self._segments = state.segments
        self._generation = state.generation
        self._segment_map: SegmentMap[Segment] = SegmentMap()
        self._segment_map.restore([(s.first_lsn, s) for s in state.segments], state.moved)
        self._retired_early = state.retired_early
        # Of the segments that recovery found, while there are any: what had been settled.
        self._recovered = {segment.generation for segment in state.segments}
        self._recovered_settled = state.settled
        self._active: Segment | None = None
        self._dirty: list[Segment] = []
        self._full: list[Segment] = []
        self._is_directory_dirty = False
        self._needs_wipe = False
        self._block_offset = 0
        self._retired: list[tuple[Segment, int]] = []
        self._segment_pool = SegmentPool(disk, segment_size_bytes)
        self.staging = Staging(disk, self._segment_pool)

    # Blocks.

    @property
    def active(self) -> Segment:
        """The segment that takes new blocks."""
        if self._active is None:
            raise ValueError("the chain has no segment yet")
        return self._active

    @property
    def generations(self) -> list[int]:
        """Those of the segments that count, oldest first."""
        return [segment.generation for segment in self._segments]

    def missing(self) -> str:
        """Return what of the directory is not where it was, empty if nothing."""
        active = self.active
        if active.file is None:
            return ""
        return self.disk.missing([segment.name for segment in self._segments], active.file)

    def extents(self) -> list[SegmentExtent]:
        """What is in the files of which the blocks up to now speak, oldest first.

        Segments that were left out are among them: the block that says so may not be synced.
        """
        every = [*self._segments, *(segment for segment, _ in self._retired)]
        return sorted(
            SegmentExtent(each.generation, each.salt, each.offset, each.last_number)
            for each in every
        )

    def bytes_behind(self, generation: int, offset: int) -> int:
        """Return how much has been written behind a place, in segments that count."""
        size = 0
        for segment in reversed(self._segments):
            if segment.generation <= generation:
                if segment.generation == generation:
                    size += max(0, segment.offset - offset)
                break
            size += segment.offset
        return size

    @property
    def segment_count(self) -> int:
        """How many segments count."""
        return len(self._segments)

    @property
    def has_retired(self) -> bool:
        """Whether files wait to be removed."""
        return bool(self._retired)

    @property
    def oldest(self) -> Segment:
        """The segment that goes next."""
        return self._segments[0]

    @property
    def resting(self) -> Sequence[Segment]:
        """Segments that take no more blocks, oldest first."""
        return self._segments[:-1]

    @property
    def tail_generation(self) -> int:
        """Number of the segment that takes new blocks."""
        return self.active.generation

    @property
    def tail_room_bytes(self) -> int:
        """Octets that still fit into it."""
        return self.active.size_bytes - self.active.offset

    @property
    def spare_bytes(self) -> int:
        """Octets of the next one that are there already, however full the disk is."""
        return self._segment_pool.ready_bytes

    @property
    def retired_early(self) -> list[RetiredSegment]:
        """Those left out of turn that an older one might make somebody look for."""
        oldest = self._segments[0].generation if self._segments else 0
        return [each for each in self._retired_early if each.generation > oldest]

    def append(
        self,
        payload: Sequence[bytes],
        length: int,
        first_lsn: int,
        next_lsn: int,
        kind: int = records.BATCH,
        staged: StagedContent | None = None,
    ) -> int:
        """Write one block at the end of the active segment; return its size in octets.

        Of what it holds `staged` is there already.

        Raises:
            OSError: nothing was written, or something that `wipe_header` will wipe.
        """
        active = self.active
        size = records.HEADER_SIZE + length
        if self.staging:
            self.staging.keep_out(active.offset + size)
        self._block_offset = active.offset
        rest = self._rest_of_header(active, kind, length, first_lsn, next_lsn)
        self._needs_wipe = True
        if staged is not None:
            known = (staged.raw, staged.crc)
            block: Sequence[bytes] = [records.seal_rest(rest, payload, known), *payload]
            active.append_around(block, size, staged)
        elif length > self.whole_bytes and length < _JOIN_BELOW_BYTES * len(payload):
            block = self._append_in_pieces(active, rest, payload, length)
        else:
            block = _seal(rest, payload, length)
            active.append(block, size)
        self.appended_bytes += size
        self._needs_wipe = False
        self._note_block(active)
        if self._tap is not None:
            number = self.number - 1
            self._tap.appended(active.generation, self._block_offset, number, next_lsn - 1, block)
        return size

    def wipe_header(self) -> int:
        """Wipe the header of a block that failed; return how many LSNs are to be left out for it.

        It may have reached the disk in full, and its number will be used again. A crash may leave
        it instead of the one that takes its number; those behind that one then do not follow it,
        as no two blocks of one number end with the same LSN.
        """
        if not self._needs_wipe:
            return 0
        self.staging.keep_out(self.active.offset + records.HEADER_SIZE)
        self.active.wipe(records.HEADER_SIZE)
        self._needs_wipe = False
        if self.active not in self._dirty:
            self._dirty.append(self.active)
        return 1

    def _append_in_pieces(
        self, segment: Segment, rest: bytes, payload: Sequence[bytes], length: int
    ) -> Sequence[bytes]:
        """Write a block's payload and then its header, without which the rest is nothing."""
        crc = records.checksum(rest)
        written = records.HEADER_SIZE
        step = max(1, self.piece_bytes * len(payload) // length)
        for at in range(0, len(payload), step):
            piece = b"".join(payload[at : at + step])
            crc = records.checksum(piece, crc)
            segment.write_behind(piece, written)
            written += len(piece)
        header = records.seal_checked(crc, rest)
        segment.append([header], written)
        return [header, *payload] if self._tap is not None else ()

    def _rest_of_header(
        self, segment: Segment, kind: int, length: int, first_lsn: int, next_lsn: int
    ) -> bytes:
        # The fields of a `BlockHeader`, in its order.
        return records.pack_rest(
            kind,
            0,
            length,
            segment.generation,
            segment.salt,
            self.number,
            self.safe_number,
            self._segments[0].generation if self._segments else segment.generation,
            first_lsn,
            next_lsn,
        )

    def _note_block(self, segment: Segment) -> None:
        segment.dead_number = segment.last_number = self.number
        segment.synced = self.safe_number
        segment.oldest = self._segments[0].generation if self._segments else segment.generation
        self.number += 1
        if segment not in self._dirty:
            self._dirty.append(segment)

    # Live copies.

    def add_copies(self, queue_ids: Sequence[int], count: int) -> None:
        """Count copies that the block just written has brought."""
        for queue_id in queue_ids:
            self.active.add_live(queue_id, count)

    def move_copies(self, queue_ids: Sequence[int], first_lsn: int, count: int) -> None:
        """Count copies that the block just written has taken over from other segments."""
        active = self.active
        lsns = range(first_lsn, first_lsn + count)
        start = first_lsn
        for source, some in list(self._segment_map.split(lsns)):
            if source is not None and source is self.emptying and some[0] == first_lsn:
                start = self._segment_map.start_of(start)
            for queue_id in queue_ids:
                if source is not None:
                    source.take_live(queue_id, len(some))
                active.add_live(queue_id, len(some))
            if source is not None:
                source.dead_number = self.number - 1
        self._segment_map.assign(start, first_lsn + count, active)
        active.note_moved(first_lsn, count)

    def settle_copies(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Count copies that the block just written has taken away.

        Raises:
            SettledTwice: the queue never had that many.
        """
        if not lsns:
            return
        first, last = records.span(lsns)
        if first < self.active.first_lsn:
            self.note_outer()
        segment = self._segment_map.shared(first, last)
        if segment is not None:
            segment.settle(queue_id, lsns, first, last)
            segment.dead_number = self.number - 1
            return
        for segment, some in self._segment_map.split(
            lsns if isinstance(lsns, range) else sorted(lsns)
        ):
            if segment is not None:
                segment.settle(queue_id, some, some[0], some[-1])
                segment.dead_number = self.number - 1

    def drop_queue(self, queue_id: int) -> None:
        """Count that the block just written took all copies of a queue away."""
        self.note_outer()
        for segment in self._segments:
            if segment.drop_queue(queue_id):
                segment.dead_number = self.number - 1

    def note_outer(self) -> None:
        """Note that older segments may need what the block just written says."""
        self.active.note_outer(self._block_offset)

    def generation_of(self, lsn: int) -> int | None:
        """Return the generation of the segment that holds the live copies of a message, if any."""
        segment = self._segment_map.of(lsn)
        return segment.generation if segment is not None else None

    def alive(self, segment: Segment, queue_id: int, lsns: range) -> Sequence[int]:
        """Return those of `lsns` of which a queue has its live copy in this segment.

        `lsns` are those of a run that goes to this queue and stands in the segment.
        """
        if not segment.live_by_queue.get(queue_id):
            return ()
        alive: Sequence[int] = lsns
        if self._segment_map.shared(lsns[0], lsns[-1]) is not segment:
            alive = [
                n for owner, some in self._segment_map.split(lsns) if owner is segment for n in some
            ]
        alive = segment.without_settled(queue_id, alive)
        before = self._recovered_settled.get(queue_id)
        if before is None or not alive:
            return alive
        kept = before.alive(alive[0], alive[-1] - alive[0] + 1)
        if len(kept) == alive[-1] - alive[0] + 1:
            return alive
        return kept if isinstance(alive, range) else sorted({*kept}.intersection(alive))

    def needed_settle(self, leaving: Segment, queue_id: int, lsns: Sequence[int]) -> Sequence[int]:
        """Return those of settled LSNs whose messages other segments may still have, once each."""
        left: Sequence[int] = lsns if isinstance(lsns, range) else sorted(lsns)
        needed: list[int] = []
        for segment in self._segments:
            if not left:
                break
            if segment is leaving or not segment.may_have(queue_id):
                continue
            if left[0] >= segment.end_lsn:
                # It rested before the first of them came.
                continue
            some = segment.may_hold(left)
            if isinstance(left, range):
                if some:
                    # What it says of others beside them is true as well.
                    return left
            elif some:
                needed += some
                left = sorted({*left}.difference(some)) if len(some) < len(left) else ()
        return needed

    def needs_drop(self, leaving: Segment, queue_id: int) -> bool:
        """Return whether other segments may have messages or notes of a queue that is gone."""
        return any(s.may_have(queue_id) for s in self._segments if s is not leaving)

    def needs_unnote(self, leaving: Segment, scope_id: int) -> bool:
        """Return whether other segments may still have older notes of a scope."""
        return any(s.may_have_notes(scope_id) for s in self._segments if s is not leaving)

    # Segments.

    def has_room(self, size: int, *, brings_new: bool) -> bool:
        """Return whether a block fits; a small segment is for those that bring nothing new."""
        active = self.active
        is_closed = brings_new and active.size_bytes < self._segment_pool.size_bytes
        return active.has_room(size) and not is_closed

    def begin(
        self,
        head: Sequence[bytes],
        need: int,
        first_lsn: int,
        *,
        brings_new: bool = True,
        staged: StagedContent | None = None,
    ) -> int:
        """Begin a segment that takes over, with room for `need` octets behind its head.

        A disk that has no room for a usual one gets a smaller one if nothing new is brought.
        If there is a `staged` content, its file becomes the segment.

        Returns:
            the size of the head block in octets

        Raises:
            OSError: the segment before it stays the active one.
        """
        self._generation += 1
        length = sum(map(len, head))
        size = records.HEADER_SIZE + length
        self._segment_pool.fit(size)
        segment = Segment(
            self._generation,
            self.disk.entropy(),
            first_lsn,
            max(self._segment_pool.size_bytes, size + need),
        )
        self._is_directory_dirty = True
        if staged is None:
            file = self._make_file(segment, size + need, brings_new=brings_new)
        else:
            segment.size_bytes = staged.size_bytes
            file = self.staging.become(staged, segment.name)
        segment.file = file
        try:
            # A head hands out no LSN: those that are buffered belong to the block behind it.
            rest = self._rest_of_header(segment, records.HEAD, length, first_lsn, first_lsn)
            block = _seal(rest, head, length)
            segment.append(block, size)
        except OSError:
            file.close()
            with suppress(OSError):
                self.disk.unlink(segment.name)
            raise
        segment.first_number, segment.head_bytes = self.number, size
        segment.outer = array("I")
        self._note_block(segment)
        self._follow(segment, first_lsn)
        if segment.size_bytes >= self._segment_pool.size_bytes:
            self._segment_pool.hold_back(size)
        self._tell_tap(segment.generation, first_lsn, block)
        return size

    def _follow(self, segment: Segment, first_lsn: int) -> None:
        """Have a segment take new blocks in place of the active one."""
        self._segments.append(segment)
        self._segment_map.begin(first_lsn, segment)
        if self._active is not None:
            self._active.rest(first_lsn)
            self._full.append(self._active)
        self.staging.leave()
        self._active = segment
        self._needs_wipe = False

    def _tell_tap(self, generation: int, first_lsn: int, head: Sequence[bytes]) -> None:
        if self._tap is not None:
            self._tap.appended(generation, 0, self.number - 1, first_lsn - 1, head)

    def _make_file(self, segment: Segment, need: int, *, brings_new: bool) -> DiskFile:
        try:
            return self._segment_pool.take(segment.name, segment.size_bytes)
        except OSError as error:
            if brings_new or error.errno not in DISK_FULL:
                raise
        file, segment.size_bytes = self._segment_pool.take_small(segment.name, need)
        return file

    def look_after_files(self) -> bool:
        """Order a spare in good time; return whether a sync would set a segment free.

        Settles alone never ask for a sync, but a full disk that only drains must come free.
        Spec: LIMIT-15
        """
        self._segment_pool.look_after(self.active.offset)
        return len(self._segments) > 1 and not self._segments[0].is_needed

    def take_file_tasks(self) -> list[FileTask]:
        """Return file work for somebody who may block; none of it is needed for safety."""
        return self._segment_pool.take_file_tasks()

    # Syncs.

    def request_commit(self) -> None:
        """Somebody waits until whoever has tapped the blocks written until now will keep them."""
        if self._tap is not None:
            self._tap.request()

    @property
    def is_tapped(self) -> bool:
        """Whether blocks have to be committed as well, before they are safe."""
        return self._tap is not None

    @property
    def is_synced(self) -> bool:
        """True when a sync covers every block of the chain."""
        return self.synced_number == self.number - 1

    def begin_sync(self) -> SyncScope:
        """Return what a sync started now has to cover."""
        if self._tap is not None:
            # First, so that others work on it while the disk does.
            self._tap.request()
        dirty, self._dirty = self._dirty, []
        targets: list[Syncable] = [s.file for s in dirty if s.file is not None]
        if self._is_directory_dirty:
            # A new file counts only when its name is durable too. Spec: DURABLE-10
            targets.append(self.disk.directory)
            self._is_directory_dirty = False
        return SyncScope(self.number - 1, tuple(targets))

    def end_sync(self, scope: SyncScope) -> bool:
        """Take note that a sync succeeded; return whether segments were declared gone by it.

        That declaration takes effect with the next block that is written and synced.
        """
        self.synced_number = scope.number
        return self._secure(scope.number if self._tap is None else self._committed_number)

    def committed(self, number: int) -> bool:
        """The same of blocks that whoever has tapped them will not lose, up to this number."""
        self._committed_number = number
        return self._secure(number)

    def _secure(self, number: int) -> bool:
        self.safe_number = max(self.safe_number, min(number, self.synced_number))
        has_retired = self._retire_segments()
        self._remove_retired()
        return has_retired

    def close_full_segments(self) -> list[DiskFile]:
        """Return the files of full segments that are synced; the caller closes them."""
        if not self._full:
            return []
        still_dirty = [segment for segment in self._full if segment in self._dirty]
        closing = []
        for segment in self._full:
            if segment not in still_dirty and segment.file is not None:
                closing.append(segment.file)
                segment.file = None
        self._full = still_dirty
        return closing

    def _retire_segments(self) -> bool:
        """Leave out leading segments whose last settle is durable."""
        segments = self._segments
        was = len(segments)
        while (
            len(segments) > 1
            and not segments[0].is_needed
            and segments[0].dead_number <= self.safe_number
        ):
            self._leave(segments[0], self.number)
        if len(segments) == was:
            return False
        self._retired_early = self.retired_early
        return True

    def retire(self, segment: Segment) -> None:
        """Take note that the block just written declares a segment gone that is not the oldest.

        It holds no live copy, and what it says about others was logged again.
        """
        if segment in self._segments:
            self._retired_early.append(
                RetiredSegment(segment.generation, segment.first_number, segment.last_number)
            )
            self._leave(segment, self.number - 1)

    def _leave(self, segment: Segment, number: int) -> None:
        """Leave a segment out; block `number` and those behind it say so."""
        self._retired.append((segment, number))
        self._segments.remove(segment)
        self._forget_ranges_of(segment)
        self._recovered.discard(segment.generation)
        if not self._recovered:
            self._recovered_settled = {}

    def _forget_ranges_of(self, segment: Segment) -> None:
        # Moves go to younger segments: what is older may still hold what was moved to this one.
        self._segment_map.forget(segment, lambda each: each.generation > segment.generation)

    def _remove_retired(self) -> None:
        """Remove files of which a safe block says that they are gone."""
        if self.is_held:
            return
        while self._retired and self._retired[0][1] <= self.safe_number:
            segment, _ = self._retired.pop(0)
            if self._tap is not None:
                self._tap.purge(segment.generation)
            if segment.has_summary:
                self._segment_pool.remove(summary_name(segment.generation))
            if self._segment_pool.keep(segment.name, segment.generation, segment.size_bytes):
                self._is_directory_dirty = True

    def leave_out(self, segment: Segment) -> None:
        """Leave out a damaged segment whose live copies were moved and synced.

        Its file is renamed, not removed. The numbers of its blocks are among `gaps`.
        """
        self._segments.remove(segment)
        self._forget_ranges_of(segment)
        self.disk.rename(segment.name, segment.name + DAMAGED_SUFFIX)
        self._is_directory_dirty = True

    def stage(self, raw: bytes) -> StagedContent | None:
        """Begin to write a large content before its block; None if it is not worth it."""
        active = self.active
        content = None
        if active.file is not None and active.size_bytes >= self._segment_pool.size_bytes:
            content = self.staging.begin_ahead(
                raw, active.file, active.name, active.offset, active.size_bytes
            )
        return content or self.staging.begin(raw, active.head_bytes, self.tail_room_bytes)

    def close(self) -> None:
        """Close all files."""
        self.staging.close()
        for segment in self._segments:
            if segment.file is not None:
                segment.file.close()
                segment.file = None


def _seal(rest: bytes, payload: Sequence[bytes], length: int) -> list[bytes]:
    """Return a block in few parts, given its header from behind the checksum."""
    if length < _ONE_PIECE_BELOW_BYTES:
        return [records.seal_small(rest, payload)]
    if len(payload) > 1 and length < _JOIN_BELOW_BYTES * len(payload):
        body = b"".join(payload)
        return [records.seal_rest(rest, (body,)), body]
    return [records.seal_rest(rest, payload), *payload]
