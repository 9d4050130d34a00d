"""The whole broker on a simulated disk and network: fixed seeds, and those that once failed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import history, store_model

SEEDS = Path(__file__).with_name("seeds.toml")
FIXED_SEEDS = 15


def known_seeds() -> list[dict[str, Any]]:
    seeds: list[dict[str, Any]] = tomllib.loads(SEEDS.read_text(encoding="utf-8")).get("seed", [])
    return seeds


RUNS = {
    "admin": history.run_admin,
    "broker": history.run,
    "features": history.run_features,
    "ledger": history.run_ledger,
    "pairs": history.run_pairs,
    "surrounded": history.run_surrounded,
}


def live(seed: int, of: str = "broker", *, is_rough: bool = False) -> history.Outcome:
    outcome = RUNS[of](seed, is_rough=is_rough)
    if outcome.failure is not None:
        what = ("" if of == "broker" else f"--{of} ") + ("--rough " if is_rough else "")
        line = f"python -m tests.simulation {what}--seed {seed} --steps {outcome.steps}"
        raise AssertionError(line) from outcome.failure
    return outcome


@pytest.mark.parametrize("first", range(0, FIXED_SEEDS, 5))
def test_random_histories_keep_every_promise(first: int) -> None:
    outcomes = [live(seed) for seed in range(first, first + 5)]
    # The histories must be worth something: much happened in them, and it was looked at.
    assert sum(outcome.states for outcome in outcomes) > 250
    assert sum(outcome.crashes for outcome in outcomes) > 12
    assert sum(outcome.confirms for outcome in outcomes) > 90
    assert sum(outcome.deliveries for outcome in outcomes) > 180


def test_the_same_seed_lives_the_same_history() -> None:
    lines: list[list[str]] = [[], []]
    for trace in lines:
        history.run(5, 120, trace=trace.append)
    assert lines[0] == lines[1]
    assert len(lines[0]) > 100


@pytest.mark.parametrize("known", known_seeds(), ids=lambda known: f"{known['of']}-{known['seed']}")
def test_seeds_that_once_failed(known: dict[str, Any]) -> None:
    if known["of"] == "store":
        store_model.run_random(known["seed"])
    else:
        live(known["seed"], known["of"], is_rough=known.get("rough", False))


def test_seeds_say_what_they_found() -> None:
    for known in known_seeds():
        assert known["of"] in {*RUNS, "store"}
        assert known["cause"]
