"""Everything that can be made to fail in one broker, put together.

`server/edge/app.py` makes one `Faults` if `test_commands` is on, builds the broker with its disk,
worker and host, and registers `FaultCommands`. A broker without that setting is built with
none of it, and pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.server.admin.objects.waiting import Waits
from vouchmq.server.faults.clock import ShiftedClock, ShiftedHost, shifted_host
from vouchmq.server.faults.disk import FaultyDisk
from vouchmq.server.faults.refusals import Refusals
from vouchmq.server.faults.sync_worker import PausableWorker

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from vouchmq.server.faults.clock import Timer
    from vouchmq.server.runtime.runtime import Host
    from vouchmq.server.runtime.turn import Turn
    from vouchmq.store.disk import Calls
    from vouchmq.store.sync.worker import SyncWorker


class Faults:
    """The faults of one broker.

    Args:
        worker: does its syncs
        call_later: runs a callable after so many seconds
        clock: monotonic seconds
    """

    def __init__(
        self,
        worker: SyncWorker,
        call_later: Callable[[float, Callable[[], None]], Timer],
        clock: Callable[[], float],
    ) -> None:
        self.clock = ShiftedClock(call_later, clock)
        self.worker = PausableWorker(worker)
        self._call_later, self._clock = call_later, clock
        self.refusals = Refusals()
        self.disk: FaultyDisk | None = None

    def open_disk(self, directory: str | os.PathLike[str], calls: Calls) -> FaultyDisk:
        """The data directory; see `FileDisk`."""
        self.disk = FaultyDisk(directory, calls)
        return self.disk

    def host(self, host: Host) -> ShiftedHost:
        """The process, as the broker sees it."""
        return shifted_host(host, self.clock)

    def waits(self, turn: Turn) -> Waits:
        """What is waited for in a broker with these turns."""
        return Waits.after(turn, self._call_later, self._clock)

    def set_disk(self, *, is_full: bool, free_bytes: int | None) -> None:
        """What the data directory's file system does and says from now on."""
        if self.disk is not None:
            self.disk.is_full = is_full
            self.disk.claimed_free_bytes = free_bytes

    def heal(self) -> None:
        """Nothing fails any more."""
        self.set_disk(is_full=False, free_bytes=None)
        self.refusals.stop_all()
        self.worker.resume()
