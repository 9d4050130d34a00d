"""Large contents, written in pieces before the block that holds them.

    stage ─▶ go_on, go_on, … ─▶ append_run, write: the block is written around what is there

The checksum and the copy of a large content take longer than others should wait. So both are done
piece by piece, and when the block comes, only what is around the content is written, padded so that
the content is where the block wants it. What is staged counts for nothing until then, because no
block is about it. The format is that of any other block. There are two places:

- ahead, in the active segment, a little behind its end: what others write meanwhile goes between.
  If that is too much, the content is no longer whole and is written with its block. One at a time.
- in a file of its own, which becomes a segment with the block, where the active one has no room.
  It has the name of a spare one, which a start removes. It costs the rest of the segment before it,
  so that rest must be small beside the content.

What was tried: a larger segment alone. The copy into pages that are new to the kernel costs most.

What it costs: a content that comes otherwise than it was staged is written once more. After a crash
what was ahead is cut off like a torn tail.

It must not know segments, nor for whom the content is.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from vouchmq.store.checksum import crc32
from vouchmq.store.disk import Disk, DiskFile
from vouchmq.store.journal.segment_pool import SPARE_SUFFIX, SegmentPool

# So much is written between two looks at the clock.
PIECE_BYTES: Final = 256 * 1024
# What a block may say beside its contents.
ROOM_BYTES: Final = 512 * 1024
# What others may write while a content is staged ahead; of it, what is left over becomes padding.
AHEAD_BYTES: Final = 1024 * 1024
# Of contents that are staged at a time; others are written with their blocks.
MOST: Final = 4
# A content is at least this share of what a segment leaves unused for it.
_WASTE_SHARE: Final = 2


class StagedContent:
    """One content, and how much of it is in its file.

    `raw` begins at `start`; `size_bytes` is that of the file. One that `is_ahead` is in the active
    segment, else it has a file of its own.
    """

    __slots__ = (
        "_piece_bytes",
        "_written",
        "crc",
        "file",
        "has_failed",
        "is_ahead",
        "is_due",
        "name",
        "raw",
        "size_bytes",
        "start",
    )

    def __init__(
        self,
        raw: bytes,
        file: DiskFile,
        name: str,
        start: int,
        size_bytes: int,
        piece_bytes: int,
        *,
        is_ahead: bool = False,
    ) -> None:
        self.raw = raw
        self.is_ahead = is_ahead
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
            if self.has_failed:
                return True  # what is there now may be a block of others
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
        self.ahead_bytes = AHEAD_BYTES

    def __bool__(self) -> bool:
        return bool(self._contents)

    def begin_ahead(
        self, raw: bytes, file: DiskFile, name: str, offset: int, size_bytes: int
    ) -> StagedContent | None:
        """Stage a content in the active segment; None if there is no room, or another one.

        Args:
            raw: the content
            file: that of the segment
            name: of the same
            offset: where the segment ends by now
            size_bytes: how long it may get
        """
        start = offset + self.ahead_bytes
        has_other = any(each.is_ahead and not each.has_failed for each in self._contents)
        if has_other or start + len(raw) + self.room_bytes > size_bytes:
            return None
        content = StagedContent(raw, file, name, start, size_bytes, self.piece_bytes, is_ahead=True)
        self._contents.append(content)
        return content

    def keep_out(self, end: int) -> None:
        """A block is about to be written up to there: what is ahead of it must lie behind."""
        for content in self._contents:
            if content.is_ahead and content.start < end:
                content.has_failed = True

    def leave(self) -> None:
        """Another segment begins: nothing is ahead of the old one's end any more."""
        for content in self._contents:
            content.has_failed |= content.is_ahead

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
        """Return one of these contents if it is whole, and forget it: it is the caller's."""
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
        """Let go of one that was taken, and of its own file."""
        if not content.is_ahead:
            content.file.close()
            self._segment_pool.drop(content.name)

    def close(self) -> None:
        """Close all files, and remove them if the disk lets us."""
        for content in self._contents:
            if content.is_ahead:
                continue
            content.file.close()
            with suppress(OSError):
                self._disk.unlink(content.name)
        self._contents.clear()
