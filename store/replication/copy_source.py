"""The journal of a stopped broker, piece by piece, as the beginning of a log.

All of a directory's blocks that count for a recovery, in the order of the journal: a standby that
has them at the same offsets of files with the same names recovers to the same state. What is in
files but does not count (a torn tail, a file's earlier life, segments that are declared gone) is in
no piece.

Of a copy that was broken off the log has a beginning. It is compared with the directory, record by
record (`holds`), and then what is not there yet comes (`next_piece`). So nothing that stands in a
log is ever removed for a copy, and a log of other origin is found out.

Each block is checked again when it is read: between the first check and the copy a disk may change
its mind, and nobody would look at these bytes again before a take-over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vouchmq.store.errors import CorruptSegment
from vouchmq.store.journal import records
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.recovery.scan import merge_gaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vouchmq.store.disk import DiskFile, ReadableDisk
    from vouchmq.store.recovery.scan import Extent, Gap, Verdict
    from vouchmq.store.replication.record import Record


class Piece(NamedTuple):
    """One block, or several that stand one behind the other; `number` and `lsn` of the last."""

    generation: int
    offset: int
    number: int
    lsn: int
    body: bytes


def damage_of(verdict: Verdict) -> list[str]:
    """Return a line for each place of which durable blocks are missing, empty if none are."""
    return [
        f"{segment_name(hole.generation)} is damaged at offset {hole.offset}"
        f" (blocks {hole.numbers[0]} to {hole.numbers[1]})"
        for hole in verdict.holes
    ]


def undeclared(extents: Sequence[Extent]) -> Gap | None:
    """Return blocks that are missing and that no block which is left declares gone.

    A standby would wait for them. Recovery believes some for reasons that no longer exist when
    segments have been removed; the next start of the broker writes down what is missing.
    """
    retired = {each for extent in extents for each in extent.retired_early}
    known = [gap for extent in extents for gap in extent.gaps]
    gaps = merge_gaps([*known, *((first, last) for _, first, last in retired)])
    gone = {generation for generation, _, _ in retired}
    oldest = max((extent.oldest for extent in extents), default=0)
    before = 0
    for extent in extents:
        first, last = before + 1, extent.first_number - 1
        # As in `OwnSegments.covers`.
        is_declared = (
            oldest >= extent.generation
            or (first == 1 and gone.issuperset(range(oldest, extent.generation)))
            or any(a <= first and last <= b for a, b in gaps)
        )
        if first <= last and not is_declared:
            return first, last
        before = extent.last_number
    return None


class CopySource:
    """The blocks of a directory that nobody uses, as recovery would accept them.

    Args:
        disk: the directory
        extents: what counts in it (`Verdict.accepted`); nothing is missing between them
    """

    def __init__(self, disk: ReadableDisk, extents: Sequence[Extent]) -> None:
        self.size_bytes = sum(extent.end - extent.start for extent in extents)
        # Of what was given or was found in the log.
        self.copied_bytes = 0
        self._disk = disk
        self._extents = extents
        # Of `_extents`, and where in it; the same behind the last whole block.
        self._index = self._offset = 0
        self._whole = (0, 0, 0)
        self._file: DiskFile | None = None
        self._generation = 0

    def holds(self, found: Record) -> bool:
        """Return whether the log goes on with what comes next here; if so, go on behind it.

        Raises:
            OSError: the disk refused
        """
        header, body = found.header, found.body
        extent = self._next_extent()
        if extent is None or extent.generation != header.generation:
            return False
        end = self._offset + len(body)
        if header.offset != self._offset or end > extent.end:
            return False
        if self._open(extent.generation).read(self._offset, len(body)) != body:
            return False
        self._advance(len(body))
        if header.part == header.parts:
            self._whole = (self._index, self._offset, self.copied_bytes)
        return True

    def rewind(self) -> None:
        """Go back behind the last whole block: the parts of the next one count for nobody."""
        self._index, self._offset, self.copied_bytes = self._whole

    def next_piece(self, limit_bytes: int) -> Piece | None:
        """Return as many blocks of one segment as fit, at least one; None at the end.

        Raises:
            CorruptSegment: a block is not what it was when it was checked
            OSError: the disk refused
        """
        extent = self._next_extent()
        if extent is None:
            return None
        offset, left = self._offset, extent.end - self._offset
        file = self._open(extent.generation)
        octets = file.read(offset, min(limit_bytes, left))
        end, last = _whole_blocks(octets, extent)
        if last is None:
            octets = file.read(offset, min(_size_at(octets, extent), left))
            end, last = _whole_blocks(octets, extent)
        if last is None:
            raise CorruptSegment(
                f"{segment_name(extent.generation)} is damaged at offset {offset}, and was not"
                " when it was checked"
            )
        self._advance(end)
        self._whole = (self._index, self._offset, self.copied_bytes)
        body = octets if end == len(octets) else octets[:end]
        return Piece(extent.generation, offset, last.number, last.next_lsn - 1, body)

    def close(self) -> None:
        """Close the file that is being read."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next_extent(self) -> Extent | None:
        """Return the extent with the next block, None at the end."""
        extents = self._extents
        if self._index < len(extents) and self._offset >= extents[self._index].end:
            self._index += 1
            self._offset = 0
        return extents[self._index] if self._index < len(extents) else None

    def _advance(self, size: int) -> None:
        self._offset += size
        self.copied_bytes += size

    def _open(self, generation: int) -> DiskFile:
        if self._file is None or self._generation != generation:
            self.close()
            self._file = self._disk.open(segment_name(generation))
            self._generation = generation
        return self._file


def _whole_blocks(octets: bytes, extent: Extent) -> tuple[int, records.BlockHeader | None]:
    """Return where the last whole block in these ends, and its header; 0 and None without one."""
    end, last = 0, None
    while True:
        header = records.read_block(octets, end, extent.generation, extent.salt)
        if header is None:
            return end, last
        end += records.HEADER_SIZE + header.length
        last = header


def _size_at(octets: bytes, extent: Extent) -> int:
    """Return the size of the block with which these begin, 0 if that cannot be read."""
    header = records.read_header(octets, 0, extent.generation, extent.salt)
    return records.HEADER_SIZE + header.length if header is not None else 0
