"""The watermark of a leader: the lowest of what makes a message safe.

Without a log, what `GroupCommit` tells is the watermark. With one, this disk and the log must have
a message before anybody is told that it is safe: the engine may lose what it acknowledged, and then
it is still on a disk of ours; this disk may be lost with its machine, and then the log has it.
Neither is asked to wait for the other, so a confirm takes as long as the slower one.

If confirms wait for a standby as well, there is a third number: what a standby has synced. It
begins with 0, also for what recovery has found: that may be on no other broker's disk.
"""

from collections.abc import Callable


class Watermark:
    """Tells `on_passed` the highest LSN that is safe; it never goes back.

    Args:
        lsn: everything up to there is synced and committed at the beginning
        on_passed: is told it
        needs_standby: whether a standby has to have it as well
    """

    __slots__ = ("_committed", "_needs_standby", "_on_passed", "_standby", "_synced", "lsn")

    def __init__(
        self, lsn: int, on_passed: Callable[[int], None], *, needs_standby: bool = False
    ) -> None:
        self._synced = self._committed = lsn
        self._standby = 0
        self._needs_standby = needs_standby
        self.lsn = 0 if needs_standby else lsn
        self._on_passed = on_passed

    def synced_here(self, lsn: int) -> None:
        """Everything up to this LSN is on this node's disk."""
        self._synced = lsn
        self._tell()

    def committed(self, lsn: int) -> None:
        """Everything up to this LSN is in the log for good."""
        self._committed = lsn
        if not self._needs_standby or self._lowest() > self.lsn:
            # Else it is unsafe as before: nobody has to look.
            self._tell()

    def synced_on_standby(self, lsn: int) -> None:
        """Everything up to this LSN is on a standby's disk."""
        self._standby = lsn
        self._tell()

    def _lowest(self) -> int:
        lsn = min(self._synced, self._committed)
        return min(lsn, self._standby) if self._needs_standby else lsn

    def _tell(self) -> None:
        lsn = self._lowest()
        # Also where it has not grown: a sync may have ended for what has no LSN of its own.
        if lsn >= self.lsn:
            self.lsn = lsn
            self._on_passed(lsn)
