"""Syncs that wait until they may begin."""

from __future__ import annotations

from pathlib import Path

from vouchmq.server.faults.sync_worker import PausableWorker, Unsynced
from vouchmq.store.disk import FileDisk
from vouchmq.store.sync.worker import Completion, SyncInline


def test_nothing_is_synced_while_it_is_paused(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "data")
    worker = PausableWorker(SyncInline())
    worker.submit(1, [disk.directory])
    assert worker.reap() == Completion(1, 0)
    worker.pause()
    assert worker.sync([disk.directory]) is None
    worker.submit(2, [disk.directory])
    assert worker.reap() is None
    worker.resume()
    assert worker.reap() == Completion(2, 0)
    worker.resume()
    assert worker.reap() is None
    disk.close()


def test_a_worker_that_syncs_nothing_says_that_it_has() -> None:
    worker = PausableWorker(Unsynced())
    assert worker.sync([]) == (0, 0)
    worker.pause()
    assert worker.sync([]) is None
    worker.close()
