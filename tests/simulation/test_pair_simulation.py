"""Histories in which any two features and operations meet: fixed seeds, and what they would find.

The planted bugs are of one kind: each rule holds alone and the first time round, and fails beside
another one, or the second time.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation import history
from tests.simulation.pair_deeds import OPERATIONS, SEQUENCE
from tests.simulation.pair_plans import QUEUE_FACTORS, QUEUE_ROWS, rows_of
from tests.simulation.pair_world import STRIDE, PairWorld
from vouchmq.server.broker.features.length import LengthLimit
from vouchmq.server.broker.features.redelivery import Redelivery, note_key
from vouchmq.server.broker.message import Message
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.channel import consume
from vouchmq.server.channel.unacked import Run, Unacked

if TYPE_CHECKING:
    from vouchmq.server.channel.channel import Channel
    from vouchmq.server.channel.consumer import Consumer, Credit


FIXED_SEEDS = 8
MOST_SEEDS = 20


def lived(seed: int, *, is_rough: bool = False) -> PairWorld:
    """One history, which must be without a failure."""
    worlds: list[PairWorld] = []
    outcome = history.run_pairs(seed, is_rough=is_rough, worlds=worlds)
    if outcome.failure is not None:
        line = f"python -m tests.simulation --pairs {'--rough ' * is_rough}--seed {seed}"
        raise AssertionError(f"{line} --steps {outcome.steps}") from outcome.failure
    return worlds[0]


def test_pairs_of_histories_keep_every_rule() -> None:
    worlds = [lived(seed) for seed in range(FIXED_SEEDS)]
    assert sum(world.states for world in worlds) > 100
    assert sum(world.confirms for world in worlds) > 300
    assert sum(world.deliveries for world in worlds) > 250
    # Each history goes on where the last one ends, if both live long enough.
    met = {pair for world in worlds for pair in world.met}
    assert len(met) > 0.85 * len(SEQUENCE)
    used = {each for world in worlds for each in world.used}
    assert len(used) > 0.9 * len(OPERATIONS) * sum(map(len, QUEUE_FACTORS.values()))


@pytest.mark.parametrize("seed", (1, 2, 3, 5))
def test_a_full_disk_beside_every_pair(seed: int) -> None:
    lived(seed, is_rough=True)


def test_consecutive_seeds_have_every_pair_of_features_and_of_operations() -> None:
    wanted = {pair for row in QUEUE_ROWS for pair in combinations(row.items(), 2)}
    found = {
        pair
        for seed in range(4)
        for row in rows_of(seed).values()
        for pair in combinations(row.items(), 2)
    }
    assert found == wanted
    assert len(SEQUENCE) == len(OPERATIONS) ** 2
    assert len(SEQUENCE) <= 3 * STRIDE


# Planted bugs


def caught(first: int = 0, *, is_rough: bool = False) -> str:
    """The failure of the first history that finds something."""
    for seed in range(first, first + MOST_SEEDS):
        failure = history.run_pairs(seed, is_rough=is_rough).failure
        if failure is not None:
            return str(failure)
    raise AssertionError(f"{MOST_SEEDS} histories have not found the bug")


def test_a_commit_heeds_a_limit_that_came_after_its_publishes() -> None:
    """TX-09: history 11 had six messages in a queue of four."""
    assert history.run_pairs(11, is_rough=False).failure is None


def test_a_drop_behind_a_head_that_does_not_fit_is_right() -> None:
    """LEN-04: in history 13 a head was too large for its consumer, and both were too many."""
    assert history.run_pairs(13, is_rough=False).failure is None


def test_finds_deliveries_that_take_over_the_time_of_older_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CONS-70: a consumer that acks in time is cancelled."""
    add = Unacked.add

    def joined(
        self: Unacked, first: int, messages: list[Message], *owner: Any, **more: Any
    ) -> None:
        last: Run | None = self._runs[-1] if self._runs else None
        if last is not None and last.since_ms and len(owner) == 3:
            owner = (*owner[:2], last.since_ms)
        add(self, first, messages, *owner, **more)

    monkeypatch.setattr(Unacked, "add", joined)
    assert "CONS-70" in caught(80)


def test_finds_a_size_limit_that_forgets_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """QOS-20."""
    set_limits = consume.set_limits

    def forgets(
        channel: Channel, credit: Credit, count: int, octets: int, consumer: Consumer | None
    ) -> None:
        transaction, channel.transaction = channel.transaction, None
        set_limits(channel, credit, count, octets, consumer)
        channel.transaction = transaction

    monkeypatch.setattr(consume, "set_limits", forgets)
    # One history in twenty shows it: 35, 47, 58, 64 and 67 of the first hundred.
    assert "QOS-20" in caught(first=35)


@pytest.mark.slow
def test_finds_purged_messages_that_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """QUEUE-60: of a queue whose returned messages lie before all levels."""

    def purge(self: ClassicQueue) -> int:
        self.take_in(at_once=True)
        if self.hooks is not None:
            self.hooks.run_outside_dispatch()
        count = self.ready_count
        for line in self.lines:
            for lsns in line.drop_all():
                if self.holds_stored and lsns and line.store_id:
                    self._log.settle(line.store_id, lsns)
        if self.hooks is not None:
            if self.ready_bytes is not None:
                self.ready_bytes.octets = 0
            self.hooks.on_purged()
        self._forget_when_empty()
        return count

    monkeypatch.setattr(ClassicQueue, "purge", purge)
    # Histories 203, 208, 212, 215 and 219 show it.
    assert "came back" in caught(first=200)


def test_finds_a_limit_that_drops_before_anybody_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LEN-04, after the first message that had come back."""
    run = LengthLimit.run

    def never_reset(self: LengthLimit) -> bool:
        has_returned = self._has_returned
        is_done = run(self)
        self._has_returned = has_returned
        return is_done

    monkeypatch.setattr(LengthLimit, "run", never_reset)
    assert "LEN-04" in caught()


@pytest.mark.slow
def test_finds_a_purge_that_forgets_what_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """REDELIVER-22."""

    def purged(self: Redelivery) -> None:
        for seq, counts in list(self._counts.items()):
            if not counts.is_out:
                del self._counts[seq]
                if seq & 1 and self._queue.stored:
                    self._log.unnote(self._queue.spec.queue_id, note_key(seq))

    monkeypatch.setattr(Redelivery, "on_purged", purged)
    assert caught()
