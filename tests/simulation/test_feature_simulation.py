"""The broker with every feature in use on a simulated disk and network: fixed seeds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import history
from tests.simulation.feature_queues import WatchedHold, WatchedQueue
from tests.simulation.feature_world import FeatureWorld
from tests.simulation.ledger import Violation
from vouchmq.server.broker.queues.classic import ClassicQueue

FIXED_SEEDS = 12


@pytest.mark.parametrize("first", range(0, FIXED_SEEDS, 4))
def test_random_histories_keep_every_rule(first: int) -> None:
    outcomes = [history.run_features(100 + seed) for seed in range(first, first + 4)]
    for outcome in outcomes:
        if outcome.failure is not None:
            line = f"python -m tests.simulation --features --seed {outcome.seed}"
            raise AssertionError(f"{line} --steps {outcome.steps}") from outcome.failure
    # The histories must be worth something: much happened in them, and it was looked at.
    assert sum(outcome.states for outcome in outcomes) > 200
    assert sum(outcome.crashes for outcome in outcomes) > 8
    assert sum(outcome.confirms for outcome in outcomes) > 60
    assert sum(outcome.deliveries for outcome in outcomes) > 100


def test_the_same_seed_lives_the_same_history() -> None:
    lines: list[list[str]] = [[], []]
    for trace in lines:
        history.run_features(105, 120, trace=trace.append)
    assert lines[0] == lines[1]
    assert len(lines[0]) > 100


@pytest.mark.parametrize(
    ("owner", "name"),
    [(FeatureWorld, "snapshot"), (ClassicQueue, "dispatch"), (ClassicQueue, "enqueue")],
    ids=["journal", "turn", "connection"],
)
def test_an_error_is_heard_wherever_the_broker_survives_it(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is raised in a write of the journal was once taken for a disk that fails."""

    def complain(*_what: object, **_more: object) -> None:
        raise Violation("planted")

    monkeypatch.setattr(owner, name, complain)
    failure = history.run_features(100, 100, crash_rate=0).failure
    assert isinstance(failure, Violation)
    assert str(failure) == "planted"


def test_the_broker_calls_every_method_that_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """An override whose method has got another name watches nothing, and nothing else tells."""
    uncalled = set()
    for watched in (WatchedQueue, WatchedHold):
        for name, method in list(vars(watched).items()):
            # `typing` gives one to every class below a protocol.
            if not callable(method) or name == "__subclasshook__":
                continue
            key = f"{watched.__name__}.{name}"
            uncalled.add(key)

            def called(*what: Any, _key: str = key, _method: Any = method, **more: Any) -> Any:
                uncalled.discard(_key)
                return _method(*what, **more)

            monkeypatch.setattr(watched, name, called)
    assert len(uncalled) > 10
    # Some that happen to call all of them, and more for when a change makes other histories.
    for seed in (25, 102, 112, 410, 429, *range(120, 150)):
        history.run_features(seed, is_rough=True)
        if not uncalled:
            break
    assert not uncalled
