"""Which segments recovery need not read, because their summaries tell it all.

A summary is believed when what it speaks of is the file beside it, and was durable for sure:
  - the file is there, is long enough, and begins with the head that the summary knows
  - some block elsewhere says that its last block was synced, so that nothing in it can be torn
  - no later block has a number of its own blocks
  - and nothing is odd: no hole next to it, nothing discarded or abandoned
Else the segment is read as a whole, and so are the newest ones, in which a crash or a failing disk
does harm most often.

Spec: DURABLE-14
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.store.journal import records
from vouchmq.store.journal.end_mark import read_end_mark
from vouchmq.store.journal.segment import segment_name, summary_name
from vouchmq.store.recovery.scan import Extent, Verdict, judge, scan
from vouchmq.store.recovery.summary import read_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from vouchmq.store.disk import DiskFile, ReadableDisk

# A head up to this size is checked in any case; one with many definitions only when it is needed.
_SMALL_HEAD_BYTES: Final = 64 * 1024


class SummaryCheck:
    """Extents and verdict, with as few segments read as can be.

    Args:
        disk: the data directory
        generations: of all segments there are
        names: of all files there are
        whole_bytes: segments are read up to so many octets, newest first
        tell: called once per segment

    Raises:
        UnsupportedFormat: a newer program wrote it
        OSError: the disk refused more than reads of what is damaged
    """

    def __init__(
        self,
        disk: ReadableDisk,
        generations: list[int],
        names: Collection[str],
        whole_bytes: int,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._extents: dict[int, list[Extent]] = {}
        self._end = read_end_mark(disk)
        # Those that are believed without having been read.
        self.trusted: set[int] = set()
        for generation in sorted(generations, reverse=True):
            if whole_bytes > 0:
                whole_bytes -= self._size_of(generation)
            elif summary_name(generation) in names:
                found = read_summary(disk, generation)
                if found is not None and self._fits(found.extent):
                    self._extents[generation] = [found.extent]
                    self.trusted.add(generation)
                    tell()
        self._scan(set(generations) - self.trusted, tell)
        self.verdict = self._judge(generations)

    def _judge(self, generations: list[int]) -> Verdict:
        while True:
            doubtful = self._unproven() | self._overlapping()
            if not doubtful:
                extents = [e for g in sorted(self._extents) for e in self._extents[g]]
                verdict = judge(extents, generations, self._end)
                doubtful = self._odd(verdict) or self._with_bad_snapshot(verdict)
                if not doubtful:
                    return verdict
            self.trusted -= doubtful
            self._scan(doubtful)

    def _scan(self, generations: set[int], tell: Callable[[], None] = lambda: None) -> None:
        for generation in sorted(generations):
            self._extents[generation] = scan(self._disk, [generation], tell)

    def _size_of(self, generation: int) -> int:
        file = self._disk.open(segment_name(generation))
        try:
            return file.size()
        finally:
            file.close()

    def _fits(self, extent: Extent) -> bool:
        """Whether the segment's file is the one that the summary is of."""
        try:
            file = self._disk.open(segment_name(extent.generation))
        except OSError:
            return False
        try:
            return file.size() >= extent.end and _has_head(file, extent, _SMALL_HEAD_BYTES)
        except OSError:
            return False
        finally:
            file.close()

    def _unproven(self) -> set[int]:
        synced = max((e.synced for each in self._extents.values() for e in each), default=0)
        synced = max(synced, self._end.number if self._end is not None else 0)
        return {g for g in self.trusted if self._extents[g][0].last_number > synced}

    def _overlapping(self) -> set[int]:
        """Return those that know blocks whose numbers were given again behind them."""
        overlapping = set()
        first_number = 1 << 64
        for generation in sorted(self._extents, reverse=True):
            extents = self._extents[generation]
            if generation in self.trusted and extents[0].last_number >= first_number:
                overlapping.add(generation)
            first_number = min([first_number, *(e.first_number for e in extents)])
        return overlapping

    def _odd(self, verdict: Verdict) -> set[int]:
        strange = {*verdict.damaged_generations(), *verdict.doomed, *verdict.abandoned}
        strange |= {extent.generation for extent in verdict.discarded}
        return strange & self.trusted

    def _with_bad_snapshot(self, verdict: Verdict) -> set[int]:
        """Return the segment whose snapshot is the truth, if it is believed and cannot be read."""
        blocks: dict[int, int] = {}
        for extent in verdict.accepted:
            blocks[extent.generation] = blocks.get(extent.generation, 0) + extent.block_count
        newest = max((g for g, count in blocks.items() if count > 1), default=0)
        if newest not in self.trusted:
            return set()
        file = self._disk.open(segment_name(newest))
        try:
            return set() if _has_head(file, self._extents[newest][0], 1 << 62) else {newest}
        except OSError:
            return {newest}
        finally:
            file.close()


def _has_head(file: DiskFile, extent: Extent, most_bytes: int) -> bool:
    """Whether a file begins with this extent's head, checked whole up to so many octets."""
    lead = file.read(0, records.HEADER_SIZE)
    header = records.read_header(lead, 0, extent.generation, extent.salt)
    if header is None or (header.kind, header.number) != (records.HEAD, extent.first_number):
        return False
    end = records.HEADER_SIZE + header.length
    if end > extent.end:
        return False
    return end > most_bytes or records.is_intact(file.read(0, end), 0, end)
