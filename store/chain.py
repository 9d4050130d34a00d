"""The row of segments: where blocks go, what is alive where, which files may leave.

Segments go oldest first: a settle is only ever needed while an older segment lives. One
that holds no live copy is first declared gone (field `oldest` of later blocks) and removed
or recycled once such a block is synced, so that no crash can bring back a part of the past.

It knows blocks by number and size only; what they say is the journal's business.
"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from store import records
from store.disk import Disk, DiskFile, Syncable
from store.segment import Segment

SPARE_SUFFIX: Final = ".spare"
DAMAGED_SUFFIX: Final = ".damaged"
PREPARED_NAME: Final = "prepared" + SPARE_SUFFIX
# One to begin the next segment with, one in reserve; what is beyond goes back to the disk.
_MAX_SPARES: Final = 2
# From this average on the parts go to the kernel one by one instead of being joined:
# the copy costs more than the longer vector.
_JOIN_BELOW_BYTES: Final = 16 * 1024


class Chore(NamedTuple):
    """File work that may take long and that nothing waits for: `prepare` or `unlink`."""

    verb: str
    name: str
    size: int


class SyncScope(NamedTuple):
    """What one sync covers: blocks up to `number`."""

    number: int
    targets: tuple[Syncable, ...]


@dataclass(slots=True)
class ChainState:
    """What recovery hands over; the defaults are those of an empty directory."""

    segments: list[Segment] = field(default_factory=list)
    generation: int = 0
    number: int = 1
    gaps: list[tuple[int, int]] = field(default_factory=list)
    moved: dict[int, Segment] = field(default_factory=dict)


class Chain:
    """All segments that count, the last of which takes new blocks.

    `number` is that of the next block. `begin` must be called before the first `append`.
    """

    def __init__(self, disk: Disk, segment_size_bytes: int, state: ChainState) -> None:
        self.disk = disk
        self.segment_size_bytes = segment_size_bytes
        self.number = state.number
        self.synced_number = state.number - 1
        self.gaps = state.gaps
        self._segments = state.segments
        self._starts = [segment.first_lsn for segment in state.segments]
        self._generation = state.generation
        # Where copies are that no longer lie in the segment their LSN tells.
        self._moved = state.moved
        self._active: Segment | None = None
        self._dirty: list[Segment] = []
        self._full: list[Segment] = []
        self._is_directory_dirty = False
        self._needs_scrub = False
        self._retired: list[tuple[Segment, int]] = []
        self._spares: list[str] = []
        self._chores: list[Chore] = []
        self._has_asked_for_spare = False

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

    def append(self, payload: Sequence[bytes], length: int, first_lsn: int, next_lsn: int) -> int:
        """Write one block at the end of the active segment; return its size in octets.

        Raises:
            OSError: nothing was written, or something that `scrub` will wipe.
        """
        active = self.active
        block = self._seal(active, records.BATCH, payload, length, first_lsn, next_lsn)
        size = records.HEADER_SIZE + length
        self._needs_scrub = True
        active.append(block, size)
        self._needs_scrub = False
        self._note_block(active)
        return size

    def scrub(self) -> None:
        """Wipe the header of a block that failed.

        It may have reached the disk in full, and its number will be used again.
        """
        if not self._needs_scrub:
            return
        self.active.wipe(records.HEADER_SIZE)
        self._needs_scrub = False
        if self.active not in self._dirty:
            self._dirty.append(self.active)

    def _seal(
        self,
        segment: Segment,
        kind: int,
        payload: Sequence[bytes],
        length: int,
        first_lsn: int,
        next_lsn: int,
    ) -> list[bytes]:
        header = records.BlockHeader(
            kind=kind,
            flags=0,
            length=length,
            generation=segment.generation,
            salt=segment.salt,
            number=self.number,
            synced=self.synced_number,
            oldest=self._segments[0].generation if self._segments else segment.generation,
            first_lsn=first_lsn,
            next_lsn=next_lsn,
        )
        if len(payload) > 1 and length < _JOIN_BELOW_BYTES * len(payload):
            payload = [b"".join(payload)]
        return [records.seal(header, payload), *payload]

    def _note_block(self, segment: Segment) -> None:
        segment.dead_number = self.number
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
        for lsn in range(first_lsn, first_lsn + count):
            source = self._segment_of(lsn)
            for queue_id in queue_ids:
                source.take_live(queue_id, 1)
                self.active.add_live(queue_id, 1)
            source.dead_number = self.number - 1
            self._moved[lsn] = self.active

    def settle_copies(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Count copies that the block just written has taken away.

        Raises:
            SettledTwice: the queue never had that many.
        """
        if not lsns:
            return
        number = self.number - 1
        segment = self._segment_of(min(lsns))
        if not self._moved and segment is self._segment_of(max(lsns)):
            segment.take_live(queue_id, len(lsns))
            segment.dead_number = number
            return
        for lsn in lsns:
            segment = self._segment_of(lsn)
            segment.take_live(queue_id, 1)
            segment.dead_number = number

    def drop_queue(self, queue_id: int) -> None:
        """Count that the block just written took all copies of a queue away."""
        for segment in self._segments:
            if segment.drop_queue(queue_id):
                segment.dead_number = self.number - 1

    def _segment_of(self, lsn: int) -> Segment:
        moved = self._moved.get(lsn) if self._moved else None
        return moved or self._segments[bisect_right(self._starts, lsn) - 1]

    # Segments.

    def begin(self, head: Sequence[bytes], need: int, first_lsn: int) -> int:
        """Begin a segment that takes over, with room for `need` octets behind its head.

        Returns:
            the size of the head block in octets

        Raises:
            OSError: the segment before it stays the active one.
        """
        self._generation += 1
        length = sum(map(len, head))
        size = records.HEADER_SIZE + length
        segment = Segment(
            self._generation,
            self.disk.entropy(),
            first_lsn,
            max(self.segment_size_bytes, size + need),
        )
        file = segment.file = self._open_new(segment)
        try:
            # A head hands out no LSN: those that are buffered belong to the block behind it.
            block = self._seal(segment, records.HEAD, head, length, first_lsn, first_lsn)
            segment.append(block, size)
        except OSError:
            file.close()
            with suppress(OSError):
                self.disk.unlink(segment.name)
            raise
        self._note_block(segment)
        self._segments.append(segment)
        self._starts.append(first_lsn)
        if self._active is not None:
            self._full.append(self._active)
        self._active = segment
        self._needs_scrub = False
        self._has_asked_for_spare = False
        return size

    def _open_new(self, segment: Segment) -> DiskFile:
        self._is_directory_dirty = True
        if segment.size_bytes == self.segment_size_bytes:
            for spare in (*self._spares[-1:], PREPARED_NAME):
                try:
                    self.disk.rename(spare, segment.name)
                except FileNotFoundError:
                    continue
                if spare in self._spares:
                    self._spares.remove(spare)
                return self.disk.open(segment.name)
        return self.disk.create(segment.name, segment.size_bytes)

    def look_after_files(self) -> bool:
        """Order a spare in good time; return whether a sync would set a segment free.

        Settles alone never ask for a sync, but a full disk that only drains must come free.
        Spec: LIMIT-15
        """
        is_half_full = self.active.offset * 2 > self.segment_size_bytes
        if is_half_full and not (self._has_asked_for_spare or self._spares):
            self._has_asked_for_spare = True
            self._chores.append(Chore("prepare", PREPARED_NAME, self.segment_size_bytes))
        return len(self._segments) > 1 and not self._segments[0].live_count

    def take_chores(self) -> list[Chore]:
        """Return file work for somebody who may block; none of it is needed for safety."""
        chores, self._chores = self._chores, []
        return chores

    # Syncs.

    def begin_sync(self) -> SyncScope:
        """Return what a sync started now has to cover."""
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
        has_retired = self._retire_segments()
        self._remove_retired()
        return has_retired

    def close_full_segments(self) -> list[DiskFile]:
        """Return the files of full segments that are synced; the caller closes them."""
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
            and not segments[0].live_count
            and segments[0].dead_number <= self.synced_number
        ):
            self._retired.append((segments.pop(0), self.number))
            self._starts.pop(0)
        if len(segments) == was:
            return False
        if self._moved:
            self._moved = {lsn: s for lsn, s in self._moved.items() if s in segments}
        return True

    def _remove_retired(self) -> None:
        """Remove files of which a synced block says that they are gone."""
        while self._retired and self._retired[0][1] <= self.synced_number:
            segment, _ = self._retired.pop(0)
            is_standard = segment.size_bytes == self.segment_size_bytes
            is_enough = len(self._spares) >= _MAX_SPARES
            if is_enough or not is_standard or not self._recycle(segment):
                self._chores.append(Chore("unlink", segment.name, 0))

    def _recycle(self, segment: Segment) -> bool:
        """Keep the file for another life; one that comes back under its old name after a
        crash is below `oldest`, whatever was written into it since."""
        spare = f"{segment.generation}{SPARE_SUFFIX}"
        try:
            self.disk.rename(segment.name, spare)
        except OSError:
            return False
        self._is_directory_dirty = True
        self._spares.append(spare)
        return True

    def set_aside(self, segment: Segment) -> None:
        """Leave out a damaged segment whose live copies were moved and synced.

        Its file is renamed, not removed. The numbers of its blocks are among `gaps`.
        """
        self._starts.pop(self._segments.index(segment))
        self._segments.remove(segment)
        self.disk.rename(segment.name, segment.name + DAMAGED_SUFFIX)
        self._is_directory_dirty = True

    def close(self) -> None:
        """Close all files."""
        for segment in self._segments:
            if segment.file is not None:
                segment.file.close()
                segment.file = None
