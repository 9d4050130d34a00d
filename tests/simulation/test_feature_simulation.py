"""The broker with every feature in use on a simulated disk and network: fixed seeds."""

from __future__ import annotations

import pytest

from tests.simulation import history

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
