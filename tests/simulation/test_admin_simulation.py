"""Histories in which users, virtual hosts and policies are changed: no answered change is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import history
from vouchmq.server.admin.accounts import administration
from vouchmq.server.broker import broker, definitions_replay
from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.accounts import Accounts
from vouchmq.server.broker.broker import Broker
from vouchmq.server.broker.queues.api import HostQueue
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.queues.consumers import QueueConsumers
from vouchmq.server.broker.queues.ready_list import ReadyList

if TYPE_CHECKING:
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.spec import QueueLike
    from vouchmq.server.broker.vhost import VHost

# As many histories as a planted bug may survive.
MOST_SEEDS = 80


@pytest.mark.parametrize("seed", range(900, 908))
@pytest.mark.parametrize("is_rough", [False, True], ids=["plain", "rough"])
def test_no_answered_change_is_lost(seed: int, is_rough: bool) -> None:
    outcome = history.run_admin(seed, 250, is_rough=is_rough)
    assert outcome.failure is None, f"--admin --seed {seed} --steps {outcome.steps}"


def test_much_is_answered_and_looked_at() -> None:
    outcomes = [history.run_admin(seed, 300) for seed in range(910, 916)]
    assert sum(outcome.answers for outcome in outcomes) > 100
    assert sum(outcome.states for outcome in outcomes) > 100
    assert sum(outcome.crashes for outcome in outcomes) > 3


def test_the_same_seed_lives_the_same_history() -> None:
    lines: list[list[str]] = [[], []]
    for trace in lines:
        history.run_admin(917, 150, trace=trace.append)
    assert lines[0] == lines[1]
    assert any("administrator asks" in line for line in lines[0])


def caught() -> str:
    """The failure of the first history that finds something."""
    for seed in range(MOST_SEEDS):
        failure = history.run_admin(seed, 300).failure
        if failure is not None:
            cause = failure.__cause__ or failure
            assert not isinstance(cause, TypeError | AttributeError | NameError), failure
            return str(failure)
    raise AssertionError(f"{MOST_SEEDS} histories have not found the bug")


def test_finds_an_answer_that_does_not_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    release = administration._Promise.release
    monkeypatch.setattr(administration._Promise, "release", lambda self, _: release(self, 1 << 62))
    assert "was told before it was written" in caught()


def test_finds_a_change_that_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Accounts.change

    def forgetful(self: Accounts, definition: d.AccountDefinition) -> int:
        if not isinstance(definition, d.PermissionCleared):
            return change(self, definition)
        self.apply(definition)
        self.defined_lsn = self._define(d.encode(d.AccountsKept()))
        return self.defined_lsn

    monkeypatch.setattr(Accounts, "change", forgetful)
    failure = caught()
    assert "answered, and lost" in failure or "definitions" in failure


def test_finds_what_a_segment_does_not_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction would drop it with the segment in which it was changed."""
    definitions = Accounts._definitions

    def without_topics(self: Accounts) -> object:
        return (each for each in definitions(self) if not isinstance(each, d.TopicPermissionSet))

    monkeypatch.setattr(Accounts, "_definitions", without_topics)
    assert "answered, and lost" in caught()


def test_finds_a_vhost_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """VHOST-05: what goes later is written under the name that a new one may have."""
    delete_vhost = Broker.delete_vhost

    def unmarked(self: Broker, name: str) -> object:  # type: ignore[type-arg]
        found = delete_vhost(self, name)
        if found is not None:
            found[0].is_deleted = False
        return found

    monkeypatch.setattr(Broker, "delete_vhost", unmarked)
    failure = caught()
    assert "answered, and lost" in failure or "definitions" in failure


# What operators do


def test_much_is_moved() -> None:
    outcomes = [history.run_admin(seed, 300) for seed in range(912, 919)]
    assert sum(outcome.moved for outcome in outcomes) > 10


def test_finds_a_move_that_has_what_stays_redelivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-37, PRIO-07: it was so once, what a move had not taken went to what had come back."""
    monkeypatch.setattr(HostQueue, "return_taken", lambda self, messages: self.put_back(messages))
    assert "redelivered is True" in caught()


def test_finds_a_move_in_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end in the source is written later: a crash in between leaves two copies."""
    drop = ClassicQueue.drop

    def late(self: ClassicQueue, messages: list[Message]) -> None:
        if self.is_deleted or not self._context.dead_letter_sender.is_sending:
            drop(self, messages)
        else:
            timers = self._context.timers
            timers.at(timers.now_ms() + 5, lambda: drop(self, messages))

    monkeypatch.setattr(ClassicQueue, "drop", late)
    assert "came back" in caught()


def test_finds_a_paused_queue_that_delivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-36."""
    monkeypatch.setattr(QueueConsumers, "pause", lambda self, *, is_paused: None)
    assert "is paused, and hands out" in caught()


def test_finds_a_pause_that_a_restart_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-36."""
    apply_definition = definitions_replay.apply_definition

    def forgetful(vhost: VHost[QueueLike], definition: d.VHostDefinition) -> None:
        if not isinstance(definition, d.QueuePaused):
            apply_definition(vhost, definition)

    monkeypatch.setattr(broker, "apply_definition", forgetful)
    assert "definitions" in caught()


def test_finds_a_look_that_hands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-34: what was peeked at is not redelivered."""
    peek = ReadyList.peek

    def marking(self: ReadyList, at: int, count: int) -> list[Message] | None:
        found = peek(self, at, count)
        if found:
            self.mark = max(self.mark, found[-1][2])
        return found

    monkeypatch.setattr(ReadyList, "peek", marking)
    assert "redelivered is True" in caught()
