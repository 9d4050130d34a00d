"""The harness itself: eleven bugs, each planted into the running broker, must be found.

Each test takes seeds from 0 on until a history fails; the bound says how many it may need. A
bug that a history no longer finds makes the harness worthless, so this comes before it is
believed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation import history, world
from vouchmq.server.broker.queues.settlement import Outcome
from vouchmq.server.channel.channel import Channel
from vouchmq.server.channel.tx import Transaction
from vouchmq.server.channel.unacked import UnackedBatch
from vouchmq.server.runtime import flow
from vouchmq.store.disk import Syncable
from vouchmq.store.journal import journal, records, segments
from vouchmq.store.recovery import recover

# As many histories as a planted bug may survive.
MOST_SEEDS = 40


def caught(most: int = MOST_SEEDS) -> BaseException:
    """The failure of the first history that finds something."""
    for seed in range(most):
        failure = history.run(seed).failure
        if failure is not None:
            # A plant that no longer fits into its bed proves nothing.
            cause = failure.__cause__ or failure
            assert not isinstance(cause, TypeError | AttributeError | NameError), failure
            return failure
    raise AssertionError(f"{most} histories have not found the bug")


def test_finds_a_sync_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.SimWorker, "sync_one", lambda self, target: 0)
    caught()


def test_finds_a_sync_before_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is written when what stands before it has been synced, and then called synced."""
    append, begin_sync = segments.SegmentChain.append, journal.Journal.begin_sync

    def sync_then_append(self: segments.SegmentChain, *block: Any) -> int:
        if self.active.file is not None:
            self.active.file.sync()
        self.disk.directory.sync()
        return append(self, *block)

    def nothing_left(self: journal.Journal) -> journal.SyncTicket:
        ticket = begin_sync(self)
        scope = segments.SyncScope(ticket.scope.number, ())
        return journal.SyncTicket(ticket.lsn, ticket.size_bytes, scope)

    monkeypatch.setattr(segments.SegmentChain, "append", sync_then_append)
    monkeypatch.setattr(journal.Journal, "begin_sync", nothing_left)
    assert "recovered is no state" in str(caught())


def test_finds_a_directory_that_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_sync = segments.SegmentChain.begin_sync

    def files_only(self: segments.SegmentChain) -> segments.SyncScope:
        scope = begin_sync(self)
        targets = tuple(t for t in scope.targets if t is not self.disk.directory)
        return segments.SyncScope(scope.number, targets)

    monkeypatch.setattr(segments.SegmentChain, "begin_sync", files_only)
    caught()


def test_finds_a_sync_that_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = world.SimWorker.sync_one

    def twice(self: world.SimWorker, target: Syncable) -> int:
        return sync(self, target) and sync(self, target)

    monkeypatch.setattr(world.SimWorker, "sync_one", twice)
    caught(MOST_SEEDS * 3)


def test_finds_a_missing_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "crc32", lambda data, value=0: 0)
    caught()


def test_finds_a_confirm_by_the_wrong_lsn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confirmed with the message before it."""
    confirm = Channel.confirm

    def too_soon(self: Channel, count: int, lsn: int) -> None:
        confirm(self, count, max(lsn - count, 1) if lsn else 0)

    monkeypatch.setattr(Channel, "confirm", too_soon)
    found = str(caught())
    assert "recovered is no state" in found or "told before it was written" in found


def test_finds_a_settle_that_is_lost_with_its_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments go before the settles that emptied them are durable."""
    end_sync = segments.SegmentChain.end_sync

    def forgetful(self: segments.SegmentChain, scope: segments.SyncScope) -> bool:
        for segment in self._segments:
            segment.dead_number = 0
        return end_sync(self, scope)

    def at_once(self: segments.SegmentChain) -> None:
        for segment, _ in self._retired:
            self.disk.unlink(segment.name)
        self._retired = []

    monkeypatch.setattr(segments.SegmentChain, "end_sync", forgetful)
    monkeypatch.setattr(segments.SegmentChain, "_remove_retired", at_once)
    caught()


def test_finds_a_settle_that_is_lost_in_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment leaves out of turn, and what it says about others is not logged again."""
    monkeypatch.setattr(journal.Journal, "rewrite_settlements", lambda self, queue_id, lsns: None)
    found = str(caught(MOST_SEEDS * 3))
    # What has been gone for long is not known any more as ever published.
    assert "came back" in found or "not published yet" in found


def test_finds_a_transaction_in_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Transaction.commit
    channels: list[Channel] = []
    of_channel = Channel.commit

    def note(self: Channel) -> None:
        channels.append(self)
        of_channel(self)

    def split(
        self: Transaction,
        store: Callable[..., int],
        settle: Callable[[list[UnackedBatch], Outcome], None],
    ) -> bool:
        def store_and_write(*arguments: object) -> int:
            lsn = store(*arguments)
            # By the writer, which survives a full disk as it does elsewhere.
            channels[-1].context.turn.write_through(lsn)
            return lsn

        return commit(self, store_and_write, settle)

    monkeypatch.setattr(Channel, "commit", note)
    monkeypatch.setattr(Transaction, "commit", split)
    assert "recovered is no state" in str(caught())


def test_finds_a_recovery_that_differs_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nothing proves to be synced is served, and left as it is."""
    monkeypatch.setattr(recover, "_write_again", lambda disk, extents, verdict: None)
    caught(MOST_SEEDS * 3)


def test_finds_a_redelivered_flag_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal.Journal, "delivered", lambda self, queue_id, lsn: None)
    assert "not redelivered" in str(caught())


def test_finds_a_publisher_that_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIMIT-29: also that publishers are held back in these histories at all."""
    monkeypatch.setattr(flow.QueueFlow, "_release", lambda self: None)
    monkeypatch.setattr(flow.QueueFlow, "_judge", lambda self: None)
    assert "never comes to rest" in str(caught())


@pytest.mark.slow
def test_finds_nothing_where_nothing_is_planted() -> None:
    assert all(history.run(seed).failure is None for seed in range(6))
