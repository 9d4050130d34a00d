"""The feature harness itself: bugs planted into the rooms of the features must be found.

As in `test_planted_bugs.py`: each test takes seeds from 0 on until a history fails.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import history
from vouchmq.server.broker import delays
from vouchmq.server.broker.dead_letter import publisher
from vouchmq.server.broker.dead_letter.dead_letters import PendingDeadLetters
from vouchmq.server.broker.features import redelivery
from vouchmq.server.broker.features.expiry import Expiry
from vouchmq.server.broker.features.length import LengthLimit
from vouchmq.server.broker.message import Message
from vouchmq.server.broker.queues import priority
from vouchmq.server.broker.queues.api import Queue
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.queues.consumers import SingleActive
from vouchmq.server.broker.queues.ready_list import ReadyBytes, ReadyList
from vouchmq.server.broker.queues.settlement import DeadLetterReason
from vouchmq.server.channel import topology
from vouchmq.server.connection.connection import Connection

# As many histories as a planted bug may survive.
MOST_SEEDS = 40


def caught(most: int = MOST_SEEDS) -> str:
    """The failure of the first history that finds something."""
    for seed in range(200, 200 + most):
        failure = history.run_features(seed, 300).failure
        if failure is not None:
            # A plant that no longer fits into its bed proves nothing.
            cause = failure.__cause__ or failure
            assert not isinstance(cause, TypeError | AttributeError | NameError), failure
            return str(failure)
    raise AssertionError(f"{most} histories have not found the bug")


def test_finds_a_settle_in_another_block_than_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """DLX-08: the source lets go, a block is written, and only then the targets get it."""
    send = publisher.DeadLetterPublisher.send

    def split(
        self: publisher.DeadLetterPublisher,
        queue: ClassicQueue,
        messages: list[Message],
        reason: DeadLetterReason,
    ) -> None:
        queue.log_settled(messages)
        self._journal.write()  # type: ignore[attr-defined]
        log_settled = ClassicQueue.log_settled
        monkeypatch.setattr(ClassicQueue, "log_settled", lambda self, messages: None)
        send(self, queue, messages, reason)
        monkeypatch.setattr(ClassicQueue, "log_settled", log_settled)

    monkeypatch.setattr(publisher.DeadLetterPublisher, "send", split)
    assert "while messages are being moved" in caught()


def test_finds_a_dead_letter_that_leaves_no_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """DLX-08: it is in its source and in its targets."""
    monkeypatch.setattr(ClassicQueue, "log_settled", lambda self, messages: None)
    assert "came back" in caught()


def test_finds_a_dead_letter_that_misses_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = publisher.DeadLetterPublisher._targets

    def first_only(
        self: publisher.DeadLetterPublisher, *what: Any, **more: Any
    ) -> tuple[tuple[Queue, ...], Any]:
        queues, passage = targets(self, *what, **more)
        return queues[:1], passage

    monkeypatch.setattr(publisher.DeadLetterPublisher, "_targets", first_only)
    assert "DLX-0" in caught()


def test_finds_counts_that_are_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """REDELIVER-13."""
    monkeypatch.setattr(redelivery.Redelivery, "_count_lsn", lambda self, lsn, counts: None)
    failure = caught()
    # One that had been returned too often is there again.
    assert "known differently" in failure or "came back" in failure


def test_finds_a_mark_that_is_that_of_another_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """PRIO-05: each level has a mark of its own."""
    handed = ClassicQueue.on_delivered

    def confused(self: ClassicQueue, line: ReadyList, last_seq: int, *, no_ack: bool) -> None:
        handed(self, self.lines[-1], last_seq, no_ack=no_ack)

    monkeypatch.setattr(ClassicQueue, "on_delivered", confused)
    assert "redelivered" in caught()


def test_finds_levels_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = priority.PriorityLevels.ready_lists
    monkeypatch.setattr(priority.PriorityLevels, "ready_lists", lambda self: lines(self)[::-1])
    assert "PRIO-08" in caught()


def test_finds_a_hold_that_does_not_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """DELAY-17: delayed messages come once."""
    monkeypatch.setattr(delays.DelayQueue, "log_settled", lambda self, messages: None)
    assert "came back" in caught()


def test_finds_a_hold_that_lets_go_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    delay_of = delays.delay_of
    monkeypatch.setattr(delays, "delay_of", lambda raw: delay_of(raw) * 9 // 10)
    assert "DELAY-14" in caught()


def test_finds_a_count_that_misses_what_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    put_back, came = ReadyList.return_delivered, ReadyBytes.add

    def uncounted(self: ReadyList, messages: list[Message]) -> None:
        monkeypatch.setattr(ReadyBytes, "add", lambda self, messages: None)
        put_back(self, messages)
        monkeypatch.setattr(ReadyBytes, "add", came)

    monkeypatch.setattr(ReadyList, "return_delivered", uncounted)
    assert "LEN-01" in caught()


def test_finds_a_limit_that_is_one_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    excess = LengthLimit._excess
    monkeypatch.setattr(
        LengthLimit, "_excess", lambda self, line, most: max(0, excess(self, line, most) - 1)
    )
    assert "more than" in caught()


def test_finds_a_pending_dead_letter_that_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """DLX-09: after a restart it would be ready again."""
    run = PendingDeadLetters.keep

    def unnoted(self: PendingDeadLetters, message: Message, one: Any, *full: Any) -> None:
        self._tries[message[2]] = one
        run(self, message, one, *full)

    monkeypatch.setattr(PendingDeadLetters, "keep", unnoted)
    assert "known differently" in caught(MOST_SEEDS * 2)


def test_finds_two_active_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SingleActive, "add", lambda self, outlet: True)
    assert "CONS-30" in caught(MOST_SEEDS * 2)


def test_finds_an_expired_one_that_is_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Expiry, "on_take", lambda self, batch: batch)
    monkeypatch.setattr(Expiry, "run", lambda self, **how: True)
    found = caught()
    assert "TTL-0" in found


def test_finds_settles_forgotten_while_a_batch_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the simulation found first: an empty-looking queue stopped logging."""
    log_settled = ClassicQueue.log_settled

    def forgets(self: ClassicQueue, messages: list[Message]) -> None:
        log_settled(self, messages)
        self._forget_when_empty()

    monkeypatch.setattr(ClassicQueue, "log_settled", forgets)
    # Marks of deliveries are left out as well; which states come nearest depends on the history.
    assert "recovered is no state" in caught(MOST_SEEDS * 2)


def test_finds_a_declare_ok_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """DURABLE-02: the queue is on the disk before its client hears of it."""
    declared = topology._declared

    def hasty(scope: Any, method: Any, name: str, counts: tuple[int, int], lsn: int) -> None:
        del lsn
        declared(scope, method, name, counts, 0)

    monkeypatch.setattr(topology, "_declared", hasty)
    assert "declare-ok" in caught()


@pytest.mark.slow
def test_finds_nothing_where_nothing_is_planted() -> None:
    assert all(history.run_features(seed).failure is None for seed in range(100, 104))


def test_finds_a_lost_connection_that_is_never_cleaned_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONN-55: what it holds unacked would wait for ever."""
    monkeypatch.setattr(Connection, "_tear_down", lambda self, reason: None)
    assert "never cleaned up" in caught()
