"""Segments that take no more blocks, as recovery finds them; and their summaries, one by one.

Whoever writes a segment makes its summary as it grows (`summary_writer.py`). A segment that was
copied has none until `summarize` reads it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from vouchmq.store.journal.segment import Segment, segment_name
from vouchmq.store.recovery.replay import Replay
from vouchmq.store.recovery.scan import read_segment, scan_segment
from vouchmq.store.recovery.summary import Summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vouchmq.store.disk import Disk
    from vouchmq.store.recovery.scan import Extent

# A segment was cut where it ended; its summary may be as large as one of this size may have.
LEAST_SUMMARY_BYTES: Final = 64 * 1024 * 1024


def closed_segment(own: Sequence[Extent], size_bytes: int) -> Segment:
    """Return what a segment's extents say of it; nobody writes to it any more."""
    first, last = own[0], own[-1]
    segment = Segment(first.generation, first.salt, first.first_lsn, size_bytes)
    segment.offset = last.end
    segment.rest(max(extent.next_lsn for extent in own))
    segment.first_number, segment.last_number = first.first_number, last.last_number
    segment.synced, segment.oldest = last.synced, last.oldest
    return segment


def can_have_summary(own: Sequence[Extent]) -> bool:
    """Return whether these are all blocks of a segment, and more than its head."""
    return len(own) == 1 and own[0].start == 0 and own[0].block_count > 1


def summarize(disk: Disk, generation: int) -> bool:
    """Read a full segment and write its summary; return whether it has one now.

    As any summary it is believed only when blocks elsewhere say that the segment was synced.

    Raises:
        OSError: the disk refused
    """
    name = segment_name(generation)
    own = scan_segment(read_segment(disk, name), generation)
    if not can_have_summary(own):
        return False
    file = disk.open(name)
    try:
        segment = closed_segment(own, file.size())
        summary = Summary(max(segment.size_bytes, LEAST_SUMMARY_BYTES))
        index = Replay().segment(file, own, segment, None, summary)
    finally:
        file.close()
    if summary.is_too_large:
        return False
    deque(summary.pieces(disk, segment, index), maxlen=0)
    return True
