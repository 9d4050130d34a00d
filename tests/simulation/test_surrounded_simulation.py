"""Pairs of features in each of their surroundings: fixed seeds.

Planted bugs of de-duplication with a disk that refuses, and of delays with pages, once passed all
that was near: each needs a feature of a queue and something around it.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.simulation import history
from tests.simulation.pair_plans import (
    QUEUE_FACTORS,
    SURROUNDINGS,
    rows_of,
    surroundings_of,
)
from tests.simulation.pair_world import PairWorld

FIXED_SEEDS = 8


def lived(seed: int) -> PairWorld:
    """One history, which must be without a failure."""
    worlds: list[PairWorld] = []
    outcome = history.run_surrounded(seed, worlds=worlds)
    if outcome.failure is not None:
        line = f"python -m tests.simulation --surrounded --seed {seed} --steps {outcome.steps}"
        raise AssertionError(line) from outcome.failure
    return worlds[0]


@pytest.mark.parametrize("first", range(0, FIXED_SEEDS, 4))
def test_histories_in_all_surroundings_keep_every_rule(first: int) -> None:
    worlds = [lived(seed) for seed in range(first, first + 4)]
    assert sum(world.states for world in worlds) > 40
    assert sum(world.confirms for world in worlds) > 80
    assert sum(world.deliveries for world in worlds) > 80


def test_fixed_seeds_have_every_pair_of_surroundings_and_features() -> None:
    wanted = {
        frozenset(((one, level), (other, value)))
        for one, levels in SURROUNDINGS.items()
        for level in levels
        for other, values in {**QUEUE_FACTORS, **SURROUNDINGS}.items()
        for value in values
        if one != other
    }
    found = {
        frozenset(pair)
        for seed in range(FIXED_SEEDS)
        for row in rows_of(seed).values()
        for pair in combinations({**row, **surroundings_of(seed)}.items(), 2)
    }
    assert wanted <= found
