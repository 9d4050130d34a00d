"""Large contents, written in pieces before the block that holds them.

    stage ─▶ go_on, go_on, … ─▶ append_run, write: the block is written around what is there

The checksum and the copy of a large content take longer than others should wait. So both are done
piece by piece into a file that is no segment yet. When the block comes, a segment begins with that
file, padded so that the content is where the block wants it, and only what is around it is
written. What is staged counts for nothing until then: the file has the name of a spare one, which
a start removes, and no block is about it. The format is that of any other block.

What was tried: a larger segment alone. The copy into pages that are new to the kernel costs most.

What it costs: the rest of the segment before it, so nothing is staged unless that rest is small
beside the content. A content that comes otherwise than it was staged is written once more.

It must not know segments, nor for whom the content is.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from zlib import crc32

from vouchmq.store.disk import Disk, DiskFile
from vouchmq.store.journal.segment_pool import SPARE_SUFFIX, SegmentPool

# So much is written between two looks at the clock.
PIECE_BYTES: Final = 256 * 1024
# What a block may say beside its contents.
ROOM_BYTES: Final = 512 * 1024
# Of contents that are staged at a time; others are written with their blocks.
MOST: Final = 4
# A content is at least this share of what a segment leaves unused for it.
_WASTE_SHARE: Final = 2


class StagedContent:
    """One content, and how much of it is in its file.

    `raw` begins at `start`; `size_bytes` is that of the file.
    """

    __slots__ = (
        "_piece_bytes",
        "_written",
        "crc",
        "file",
        "has_failed",
        "is_due",
        "name",
        "raw",
        "size_bytes",
        "start",
    )

    def __init__(
        self, raw: bytes, file: DiskFile, name: str, start: int, size_bytes: int, piece_bytes: int
    ) -> None:
        self.raw = raw
        self._piece_bytes = piece_bytes
        self.file = file
        self.name = name
        self.start = start
        self.size_bytes = size_bytes
        self.crc = 0
        self.has_failed = False
        # The next block has it, or nothing more will be done with it.
        self.is_due = False
        self._written = 0

    @property
    def end(self) -> int:
        """Where in the file the content ends."""
        return self.start + len(self.raw)

    def has_room(self, lead_bytes: int, behind_bytes: int) -> bool:
        """Whether so much fits in front of the content, and so much from its beginning on."""
        return lead_bytes <= self.start and self.start + behind_bytes <= self.size_bytes

    @property
    def is_whole(self) -> bool:
        """Whether all of it is written."""
        return self._written == len(self.raw) and not self.has_failed

    def go_on(self, is_over: Callable[[], bool]) -> bool:
        """Write pieces until it is over; return whether there is nothing left to write."""
        while self._written < len(self.raw):
            piece = self.raw[self._written : self._written + self._piece_bytes]
            try:
                self.file.write([piece], self.start + self._written)
            except OSError:
                # Whoever writes the block is told by the disk what is wrong.
                self.has_failed = True
                return True
            self.crc = crc32(piece, self.crc)
            self._written += len(piece)
            if is_over():
                break
        return self._written == len(self.raw)


class Staging:
    """The contents that are staged.

    Args:
        disk: where they are written
        segment_pool: gives the files
    """

    def __init__(self, disk: Disk, segment_pool: SegmentPool) -> None:
        self._disk = disk
        self._segment_pool = segment_pool
        self._contents: list[StagedContent] = []
        self._next_number = 1
        self.room_bytes = ROOM_BYTES
        self.piece_bytes = PIECE_BYTES

    def __bool__(self) -> bool:
        return bool(self._contents)

    def begin(self, raw: bytes, head_bytes: int, left_bytes: int) -> StagedContent | None:
        """Make a file for a content; None if it is to be written with its block.

        Args:
            raw: the content
            head_bytes: what a segment begins with, about
            left_bytes: what the active segment has left
        """
        if len(self._contents) >= MOST or left_bytes > _WASTE_SHARE * len(raw):
            return None
        start = 2 * head_bytes + self.room_bytes
        size = max(self._segment_pool.size_bytes, start + len(raw) + self.room_bytes)
        name = f"staged-{self._next_number}{SPARE_SUFFIX}"
        try:
            file = self._segment_pool.take(name, size)
        except OSError:
            return None
        self._next_number += 1
        content = StagedContent(raw, file, name, start, size, self.piece_bytes)
        self._contents.append(content)
        return content

    def take(self, raws: Sequence[bytes]) -> StagedContent | None:
        """Return one of these contents if it is whole, and forget it: its file is the caller's."""
        for content in self._contents:
            if content.is_due and content.is_whole and any(content.raw is raw for raw in raws):
                self._contents.remove(content)
                return content
        return None

    def sweep(self) -> None:
        """Let go of what no block has wanted."""
        unused = [content for content in self._contents if content.is_due]
        if unused:
            self._contents = [content for content in self._contents if not content.is_due]
            for content in unused:
                self.drop(content)

    def become(self, content: StagedContent, name: str) -> DiskFile:
        """Return the file of a content that was taken, under another name.

        Raises:
            OSError: the disk refused; the file is gone
        """
        try:
            self._disk.rename(content.name, name)
        except OSError:
            self.drop(content)
            raise
        return content.file

    def drop(self, content: StagedContent) -> None:
        """Let go of a file that was taken."""
        content.file.close()
        self._segment_pool.drop(content.name)

    def close(self) -> None:
        """Close all files, and remove them if the disk lets us."""
        for content in self._contents:
            content.file.close()
            with suppress(OSError):
                self._disk.unlink(content.name)
        self._contents.clear()
