"""One sync in flight, then the watermark; a failure is final."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from tests.simulation.sim_disk import SimDisk
from tests.simulation.store_model import LateWorker
from tests.unit.store.journals import open_on
from vouchmq.store.sync.group_commit import (
    LONGEST_YIELD_S,
    REST,
    REST_FROM_YIELDING,
    REST_WITH_CONSUMER,
    SHORT_S,
    SHORT_WITH_CONSUMER_S,
    GroupCommit,
)
from vouchmq.store.sync.worker import sync_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vouchmq.store.disk import Syncable


class Worker(LateWorker):
    """Syncs when it is told to, or within the call; then that takes its time."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.is_late = True
        self.takes_s = 0.0
        self.yields_s = 0.0
        self.yield_count = 0
        self._stage = stage

    def sync(self, targets: Sequence[Syncable]) -> tuple[int, int]:
        self._stage.now += self.takes_s
        return sync_each(targets)

    def yield_processor(self) -> None:
        self.yield_count += 1
        self._stage.now += self.yields_s


class Stage:
    """A journal, a worker that waits to be told, and what group commit reported."""

    def __init__(self, *, has_extra: bool = False) -> None:
        self.disk = SimDisk()
        self.journal, _ = open_on(self.disk)
        self.worker = Worker(self)
        self.watermarks: list[int] = []
        self.failures: list[int] = []
        self.now = 100.0
        self.extra = ExtraFile(self)
        self.commit = GroupCommit(
            self.journal,
            self.worker,
            on_synced=self.watermarks.append,
            on_failed=self.failures.append,
            clock=lambda: self.now,
            extra_targets=self.extra if has_extra else None,
        )

    def publish(self) -> int:
        lsn = self.journal.append_run((1,), b"t", [b"m"])
        self.journal.write()
        self.commit.request()
        return lsn

    def publish_and_wait(self, *, with_consumer: bool = False, has_sent: bool = False) -> int:
        """The same, with nothing else to do than to wait for the sync."""
        lsn = self.journal.append_run((1,), b"t", [b"m"])
        self.journal.write()
        self.commit.sync_now(with_consumer=with_consumer, has_sent=has_sent)
        return lsn

    def finish(self) -> None:
        self.now += self.worker.takes_s
        self.worker.finish()
        self.commit.on_readable()


def test_what_arrives_during_a_sync_is_the_next_batch() -> None:
    stage = Stage()
    first = stage.publish()
    syncs = stage.disk.calls["sync"]
    later = [stage.publish() for _ in range(5)]
    stage.finish()
    assert stage.watermarks == [first]
    stage.finish()
    assert stage.watermarks == [first, later[-1]]
    assert stage.commit.is_idle
    # The first sync covers the new file's directory as well, the second the new end mark's.
    assert stage.disk.calls["sync"] == syncs + 5


def test_watermark_begins_with_what_recovery_found_and_ends_with_what_is_synced() -> None:
    stage = Stage()
    seen = [stage.commit.watermark]
    lsn = stage.publish()
    seen.append(stage.commit.watermark)
    stage.finish()
    seen.append(stage.commit.watermark)
    assert seen == [0, 0, lsn]


def test_a_wakeup_without_a_finished_sync_changes_nothing() -> None:
    stage = Stage()
    stage.commit.on_readable()
    stage.publish()
    stage.commit.on_readable()
    assert stage.watermarks == []
    assert not stage.commit.is_idle


def test_a_failed_sync_is_told_once_and_never_tried_again() -> None:
    stage = Stage()
    stage.publish()
    stage.publish()
    stage.disk.fail_next("sync", errno.EIO)
    stage.finish()
    assert (stage.failures, stage.watermarks) == ([errno.EIO], [])
    syncs = stage.disk.calls["sync"]
    stage.publish()
    stage.finish()
    stage.commit.request()
    stage.finish()
    assert stage.disk.calls["sync"] == syncs
    assert (stage.failures, stage.watermarks) == ([errno.EIO], [])
    assert stage.commit.has_failed


def test_a_batch_over_two_segments_syncs_both_and_the_directory() -> None:
    stage = Stage()
    stage.publish()
    stage.finish()
    syncs = stage.disk.calls["sync"]
    stage.journal.append_run((1,), b"t", [b"a" * 2500])
    stage.journal.write()
    stage.journal.append_run((1,), b"t", [b"b" * 2500])
    stage.journal.write()
    stage.commit.request()
    stage.finish()
    # The end mark that the first segment was begun goes along, its name is new.
    assert stage.disk.calls["sync"] == syncs + 5


def test_counters_tell_number_size_and_duration() -> None:
    stage = Stage()
    for milliseconds in (4, 9, 2):
        stage.publish()
        stage.now += milliseconds / 1000
        stage.finish()
    counters = stage.commit.counters
    assert counters.syncs == 3
    assert round(counters.last_sync_ms) == 2
    assert round(counters.max_sync_ms) == 9
    assert counters.synced_bytes > 300


class ExtraFile:
    """A file of somebody else."""

    may_fail = True

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.error = 0
        self.synced_at: list[int] = []
        self.told: list[int] = []

    def targets(self) -> list[ExtraFile]:
        return [self]

    def fileno(self) -> int:
        return -1

    def sync(self) -> None:
        self.synced_at.append(self.stage.disk.calls["sync"])
        if self.error:
            raise OSError(self.error, "no")

    def synced(self, error: int) -> None:
        self.told.append(error)


def test_extra_files_are_synced_before_the_journal() -> None:
    stage = Stage(has_extra=True)
    extra = stage.extra
    before = stage.disk.calls["sync"]
    lsn = stage.publish()
    stage.finish()
    assert extra.synced_at == [before]
    assert stage.disk.calls["sync"] > before
    assert extra.told == [0]
    assert stage.watermarks == [lsn]


def test_an_extra_file_that_cannot_be_synced_fails_for_itself_alone() -> None:
    stage = Stage(has_extra=True)
    extra = stage.extra
    extra.error = errno.EIO
    lsn = stage.publish()
    stage.finish()
    assert stage.watermarks == [lsn]
    assert stage.failures == []
    assert not stage.commit.has_failed


def settled() -> Stage:
    """The first syncs are over: of a new file and its directory, and of the mark of its end."""
    stage = Stage()
    for _ in range(2):
        stage.publish()
        stage.finish()
    stage.watermarks.clear()
    return stage


def test_who_has_nothing_else_to_do_waits_for_a_sync() -> None:
    stage = settled()
    syncs = stage.disk.calls["sync"]
    first = stage.publish_and_wait()
    assert (stage.watermarks, stage.commit.watermark) == ([first], first)
    second = stage.publish_and_wait()
    assert stage.watermarks == [first, second]
    assert stage.disk.calls["sync"] == syncs + 2
    assert stage.commit.is_idle
    assert stage.commit.counters.own_syncs == 2


def test_nobody_waits_for_a_sync_of_more_than_one_file() -> None:
    stage = Stage()
    lsn = stage.publish_and_wait()
    assert stage.watermarks == []
    stage.finish()
    assert stage.watermarks == [lsn]
    assert stage.commit.counters.own_syncs == 0


def test_nobody_waits_while_a_sync_is_under_way() -> None:
    stage = settled()
    first = stage.publish()
    second = stage.publish_and_wait()
    assert stage.watermarks == []
    stage.finish()
    assert stage.watermarks == [first]
    stage.finish()
    assert stage.watermarks == [first, second]


def test_after_a_long_sync_nobody_waits_for_a_time() -> None:
    stage = settled()
    stage.worker.takes_s = 2 * SHORT_S
    stage.publish_and_wait()
    stage.now += REST * 2 * SHORT_S * 0.99
    stage.publish_and_wait()
    assert (stage.commit.counters.own_syncs, len(stage.watermarks)) == (1, 1)
    # That one was long as well, wherever it was made.
    stage.finish()
    stage.now += REST * 2 * SHORT_S * 0.99
    stage.publish_and_wait()
    assert (stage.commit.counters.own_syncs, len(stage.watermarks)) == (1, 2)
    stage.worker.takes_s = SHORT_S / 2
    stage.finish()
    stage.now += REST * SHORT_S
    stage.publish_and_wait()
    assert (stage.commit.counters.own_syncs, len(stage.watermarks)) == (2, 4)


def test_with_a_consumer_nobody_waits_for_a_longer_time_after_a_shorter_sync() -> None:
    stage = settled()
    stage.worker.takes_s = 2 * SHORT_WITH_CONSUMER_S
    stage.publish_and_wait(with_consumer=True)
    stage.worker.takes_s = SHORT_WITH_CONSUMER_S / 2
    stage.now += REST_WITH_CONSUMER * 2 * SHORT_WITH_CONSUMER_S * 0.99
    stage.publish_and_wait(with_consumer=True)
    stage.finish()
    assert stage.commit.counters.own_syncs == 1
    # It is not long for a publisher that is by itself.
    stage.publish_and_wait()
    assert stage.commit.counters.own_syncs == 2
    stage.now += REST_WITH_CONSUMER * SHORT_WITH_CONSUMER_S
    stage.publish_and_wait(with_consumer=True)
    assert stage.commit.counters.own_syncs == 3


def test_who_has_been_sent_something_may_run_before_the_sync() -> None:
    stage = settled()
    stage.publish_and_wait()
    assert stage.worker.yield_count == 0
    stage.publish_and_wait(has_sent=True)
    assert stage.worker.yield_count == 1
    # Nor is the helper, where it is to sync, in their way.
    stage.worker.takes_s = 2 * SHORT_S
    stage.publish_and_wait()
    stage.publish_and_wait(has_sent=True)
    assert stage.worker.yield_count == 2
    # It has been asked, and goes on by itself.
    stage.publish_and_wait(has_sent=True)
    assert stage.worker.yield_count == 2


def test_the_processor_is_not_yielded_for_a_time_if_that_has_taken_long() -> None:
    stage = settled()
    stage.worker.yields_s = 2 * LONGEST_YIELD_S
    stage.publish_and_wait(has_sent=True)
    stage.now += REST_FROM_YIELDING * 2 * LONGEST_YIELD_S * 0.99
    stage.publish_and_wait(has_sent=True)
    assert stage.worker.yield_count == 1
    stage.now += REST_FROM_YIELDING * LONGEST_YIELD_S
    stage.worker.yields_s = LONGEST_YIELD_S / 2
    stage.publish_and_wait(has_sent=True)
    stage.publish_and_wait(has_sent=True)
    assert stage.worker.yield_count == 3


def test_a_sync_that_fails_within_the_call_is_final() -> None:
    stage = settled()
    stage.disk.fail_next("sync", errno.EIO)
    stage.publish_and_wait()
    assert (stage.failures, stage.watermarks) == ([errno.EIO], [])
    stage.publish_and_wait()
    stage.publish()
    stage.finish()
    assert (stage.failures, stage.watermarks) == ([errno.EIO], [])
