"""The summary of the segment that is being written, and putting it on the disk when that is full.

Written in pieces, one with each block, so that nobody is held up; a disk that refuses one only
costs the next start some time. It must not know what is in blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.store.recovery.summary import Summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from vouchmq.store.disk import Disk
    from vouchmq.store.journal.block_buffer import BlockBuffer
    from vouchmq.store.journal.segment import Segment
    from vouchmq.store.reading.index import SegmentIndex
    from vouchmq.store.recovery.summary import Word


class Summarizer:
    """Keeps the summary of the active segment, and finishes that of the one before it."""

    def __init__(self, disk: Disk, segment_size_bytes: int) -> None:
        self._disk = disk
        self._segment_size_bytes = segment_size_bytes
        self._summary: Summary | None = None
        self._pieces: Iterator[None] | None = None

    @property
    def has_pieces(self) -> bool:
        """Whether there is something left to write: `go_on`."""
        return self._pieces is not None

    def begin(
        self,
        rested: tuple[Segment, SegmentIndex] | None,
        gaps: Iterable[tuple[int, int]],
        retired_early: Iterable[tuple[int, int, int]],
        marks: Mapping[int, int],
    ) -> None:
        """A segment was begun with this in its head; the one before it takes no more blocks."""
        self.finish()
        summary, self._summary = self._summary, Summary(self._segment_size_bytes)
        self._summary.add_head(gaps, retired_early, marks)
        if rested is not None and summary is not None and not summary.is_too_large:
            segment, index = rested
            segment.has_summary = True
            self._pieces = summary.pieces(self._disk, segment, index)
            self.go_on()

    def add(
        self,
        buffer: BlockBuffer,
        routes: Mapping[int, tuple[tuple[int, ...], bytes]],
        words: Iterable[Word],
    ) -> None:
        """Take in a block that was just written."""
        summary = self._summary
        if summary is not None and not summary.is_too_large:
            summary.add_block(buffer, routes)
            if words:
                summary.add_words(words)

    def go_on(self) -> None:
        """Write the next piece of the summary in progress."""
        try:
            if self._pieces is not None:
                next(self._pieces)
        except (OSError, StopIteration):
            self._pieces = None

    def finish(self) -> None:
        """Write all that is left."""
        while self._pieces is not None:
            self.go_on()
