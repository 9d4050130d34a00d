"""Sync workers for tests: one that can be made to wait, and one that does not sync at all.

    GroupCommit ─▶ PausableWorker ─▶ the worker that syncs

While it waits no publish is confirmed. To a client this is a disk that hangs: messages are
accepted, and delivered as far as they may be before they are on disk. Must not know what is synced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.store.sync.worker import ThreadWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vouchmq.store.disk import Disk, Syncable
    from vouchmq.store.sync.worker import Completion, SyncWorker


class PausableWorker:
    """See `SyncWorker`.

    Args:
        worker: syncs while this is not paused
    """

    def __init__(self, worker: SyncWorker) -> None:
        self._worker = worker
        self._submitted: tuple[int, Sequence[Syncable]] | None = None
        self.is_paused = False

    @property
    def fileno(self) -> int:
        """See `SyncWorker`."""
        return self._worker.fileno

    def pause(self) -> None:
        """Begin no sync from now on; one under way ends."""
        self.is_paused = True

    def resume(self) -> None:
        """Sync again, first what was asked for meanwhile."""
        self.is_paused = False
        submitted, self._submitted = self._submitted, None
        if submitted is not None:
            self._worker.submit(*submitted)

    def submit(self, sequence: int, targets: Sequence[Syncable]) -> None:
        """See `SyncWorker`."""
        if self.is_paused:
            # One request at a time: there is none yet.
            self._submitted = (sequence, targets)
        else:
            self._worker.submit(sequence, targets)

    def reap(self) -> Completion | None:
        """See `SyncWorker`."""
        return self._worker.reap()

    def sync(self, targets: Sequence[Syncable]) -> tuple[int, int] | None:
        """See `SyncWorker`."""
        return None if self.is_paused else self._worker.sync(targets)

    def yield_processor(self) -> None:
        """See `SyncWorker`."""
        self._worker.yield_processor()

    def forget(self, target: Syncable) -> None:
        """See `SyncWorker`."""
        self._worker.forget(target)

    def prepare(self, disk: Disk, name: str, size: int) -> None:
        """See `SyncWorker`."""
        self._worker.prepare(disk, name, size)

    def unlink(self, disk: Disk, name: str) -> None:
        """See `SyncWorker`."""
        self._worker.unlink(disk, name)

    def close(self) -> None:
        """See `SyncWorker`."""
        self._worker.close()


class Unsynced(ThreadWorker):
    """Says "synced" without syncing, for tests and benchmarks (DURABLE-11)."""

    def submit(self, sequence: int, targets: Sequence[Syncable]) -> None:
        """Submit a sync of no file: `durability_fsync` is off."""
        del targets
        super().submit(sequence, ())

    def sync(self, targets: Sequence[Syncable]) -> tuple[int, int]:
        """Sync no file."""
        del targets
        return 0, 0
