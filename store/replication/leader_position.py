"""Up to where a leader's directory has the log: its position file, while it leads.

What a leader appends is in its own journal first, so here a position follows from two numbers: what
the log has committed, and what is synced here as well. Without this the directory keeps the
position of the claim, and a former leader that starts as a standby reads and compares everything
that has happened in its epoch.

The invariant is that of `position_file.py`: it may speak for less than there is, never for more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vouchmq.store.replication.position_file import PositionFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.store.disk import Disk
    from vouchmq.store.replication.log_view import Position


class LeaderPosition:
    """Writes the position file of a directory that a mirror has left to a leader."""

    def __init__(self, disk: Disk) -> None:
        self._file = PositionFile(disk)

    def next_job(self, whole: Position | None, safe_number: int) -> Callable[[], None] | None:
        """Return what has to be done to write the position, None if nothing new can be said.

        The job waits for the disk, and raises `OSError` when that refuses. One at a time; it may
        run in another thread.

        Args:
            whole: `LogWriter.whole`
            safe_number: up to this block all is synced here and committed in the log
                (`SegmentChain.safe_number`)
        """
        if whole is None or whole == self._file.at or whole.block > safe_number:
            return None
        return partial(self._file.put, self._file.log_id, whole)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
