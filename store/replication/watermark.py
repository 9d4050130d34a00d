"""The watermark of a leader: the lower of what is synced here and what is committed in the log.

Without a log, what `GroupCommit` tells is the watermark. With one, both have to have a message
before anybody is told that it is safe: the engine may lose what it acknowledged, and then it is
still on a disk of ours; this disk may be lost with its machine, and then the log has it. Neither is
asked to wait for the other, so a confirm takes as long as the slower one.
"""

from collections.abc import Callable


class Watermark:
    """Tells `on_passed` the highest LSN that is both; it never goes back.

    Everything up to `lsn` is both at the beginning.
    """

    __slots__ = ("_committed", "_on_passed", "_synced", "lsn")

    def __init__(self, lsn: int, on_passed: Callable[[int], None]) -> None:
        self.lsn = self._synced = self._committed = lsn
        self._on_passed = on_passed

    def synced_here(self, lsn: int) -> None:
        """Everything up to this LSN is on this node's disk."""
        self._synced = lsn
        self._tell()

    def committed(self, lsn: int) -> None:
        """Everything up to this LSN is in the log for good."""
        self._committed = lsn
        self._tell()

    def _tell(self) -> None:
        lsn = min(self._synced, self._committed)
        # Also where it has not grown: a sync may have ended for what has no LSN of its own.
        if lsn >= self.lsn:
            self.lsn = lsn
            self._on_passed(lsn)
