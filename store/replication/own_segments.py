"""The segments that a standby has of the log: which are whole, and which are declared gone.

What is missing among them is judged as in recovery, by the numbers of blocks: they have no gaps but
those of segments that a later block declares gone. A segment that is damaged, or not there, is read
again from the log into a file beside it, which takes its place when it is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.store.journal.segment import segment_name, summary_name
from vouchmq.store.recovery.scan import list_generations, merge_gaps, read_segment, scan_segment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vouchmq.store.disk import Disk, DiskFile
    from vouchmq.store.recovery.scan import Gap, Left
    from vouchmq.store.replication.log_view import Position

HEALING_SUFFIX: Final = ".healing"


class OwnSegments:
    """What a directory has up to a position, and what it should have.

    `spans` are numbers of the first and the last block, by generation, of what is whole; `oldest`
    and `retired` are what blocks declare. `promised` is the highest number of a block that any
    block here, also behind the position, declares safe.
    """

    def __init__(self, disk: Disk, at: Position) -> None:
        self.spans: dict[int, Gap] = {}
        self._ends: dict[int, int] = {}
        self.oldest = 0
        self.retired: dict[int, Gap] = {}
        # Blocks that were lost before, and are missed by nobody any more.
        self.known_gaps: set[Gap] = set()
        self.promised = 0
        # The same of blocks behind the position too, which the log may not have.
        self._said_oldest = 0
        self._said_retired: set[int] = set()
        self._disk = disk
        self._at = at
        for name in disk.listdir():
            if name.endswith(HEALING_SUFFIX):
                disk.unlink(name)
        self.found = list_generations(disk.listdir())
        for generation in self.found:
            self._look(generation, read_segment(disk, segment_name(generation)))

    def _look(self, generation: int, octets: bytes) -> bool:
        """Take in what a segment has; return whether it has all of it that it should."""
        at = self._at
        extents = scan_segment(octets, generation)
        for extent in extents:
            self.promised = max(self.promised, extent.synced)
            self._said_oldest = max(self._said_oldest, extent.oldest)
            self._said_retired.update(each[0] for each in extent.retired_early)
        if generation > at.generation:
            return True
        if generation == at.generation:
            # What is behind the position may be what the log never had.
            octets = octets[: at.offset]
            extents = scan_segment(octets, generation)
        if len(extents) != 1 or extents[0].start:
            return False
        (whole,) = extents
        if generation == at.generation and whole.end < at.offset:
            return False
        self.spans[generation] = (whole.first_number, whole.last_number)
        self._ends[generation] = whole.end
        self.declare(whole.oldest, whole.retired_early, whole.gaps)
        return True

    def declare(self, oldest: int, retired: Iterable[Left], gaps: Iterable[Gap]) -> None:
        """Take in which segments, and which blocks, a block declares gone."""
        self.oldest = max(self.oldest, oldest)
        self.known_gaps.update(gaps)
        for generation, first, last in retired:
            self.retired[generation] = (first, last)

    def is_gone(self, generation: int) -> bool:
        """Return whether a segment was declared gone."""
        return generation < self.oldest or generation in self.retired

    def says_gone(self, generation: int) -> bool:
        """Return whether any block here declares a segment gone.

        If its file is not here either, that was safe: no file is removed before.
        """
        return generation < self._said_oldest or generation in self._said_retired

    def covers(self, first: int, last: int, behind: int) -> bool:
        """Return whether blocks were declared gone, those behind which segment `behind` begins."""
        if self.oldest >= behind:
            return True
        if first == 1 and all(self.is_gone(each) for each in range(self.oldest, behind)):
            return True
        gaps = merge_gaps([*self.retired.values(), *self.known_gaps])
        return any(a <= first and last <= b for a, b in gaps)

    def damaged(self) -> list[int]:
        """Return the generations up to the position of which something is missing.

        Of a row of missing files all are returned; not each of them need have been there.
        """
        missing = {g for g in self.found if g <= self._at.generation and g not in self.spans}
        before: tuple[int, int] | None = None
        for generation in sorted(self.spans):
            first, last = self.spans[generation]
            if before is None:
                # What was before the oldest that counts is missed by nobody.
                start, lost = self.oldest, first > 1 and generation > self.oldest
            else:
                # It may be that one which has lost its end.
                start = before[0]
                lost = first > before[1] + 1 and not self.covers(
                    before[1] + 1, first - 1, generation
                )
            if lost:
                missing.update(range(start, generation))
            before = generation, last
        end = before[0] if before is not None else 0
        missing.update(range(max(end + 1, self.oldest), self._at.generation + 1))
        return sorted(
            g
            for g in missing
            if g > 0 and not self.is_gone(g) and (g in self.found or not self.says_gone(g))
        )

    def heal(self, generation: int) -> Healing:
        """Begin to write a segment again."""
        name = segment_name(generation)
        return Healing(self._disk.create(name + HEALING_SUFFIX, 0), generation, self._at)

    def healed(self, healing: Healing) -> bool:
        """Put a segment in its place if it is whole now; return whether it is.

        Raises:
            OSError: the disk refused
        """
        name = segment_name(healing.generation)
        octets = healing.file.read(0, healing.file.size())
        is_whole = self._look(healing.generation, octets)
        if is_whole:
            # Behind it there may be parts of a block that its leader never finished.
            healing.file.truncate(self._ends[healing.generation])
            healing.file.sync()
        healing.file.close()
        if not is_whole:
            self._disk.unlink(name + HEALING_SUFFIX)
            return False
        self._disk.unlink(summary_name(healing.generation))
        self._disk.rename(name + HEALING_SUFFIX, name)
        self._disk.directory.sync()
        return True


class Healing:
    """A segment that is written again; `found` takes its records in any order."""

    def __init__(self, file: DiskFile, generation: int, at: Position) -> None:
        self.file = file
        self.generation = generation
        self._end = at.offset if generation == at.generation else None

    def put(self, offset: int, body: bytes) -> None:
        """Write a part of it; what is behind the position comes later, as with any other.

        Raises:
            OSError: the disk refused
        """
        if self._end is None or offset < self._end:
            self.file.write([body], offset)
