"""Clients as witnesses while the broker is killed: an honest one is cleared, a planted bug is seen.

A few rounds here, judged by the plain reference; with `--campaign` many rounds against both
brokers, judged as `vouchmq audit` does.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fault.planted import VARIABLE
from tests.pipeline.witness_campaign import Ours, campaign, endure
from tests.pipeline.witness_reference import judge
from tools import referee

pytestmark = pytest.mark.timeout(240)

BROKEN_PROMISES = {"LOST", "duplicate", "clock", "orphan", "confirm_twice", "confirm_and_nack"}


def kinds(directory: Path) -> tuple[dict[str, str], set[str]]:
    """States, and the kinds of findings."""
    lines = [
        json.loads(line)
        for path in sorted(directory.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    states, found = judge(lines)
    return states, {kind for kind, _ in found}


@pytest.mark.slow
def test_kills_of_an_honest_broker_break_no_promise(tmp_path: Path) -> None:
    left = endure(Ours(tmp_path), tmp_path / "seen", rounds=2, seed=3, settle_s=0.0)
    states, found = kinds(tmp_path / "seen")
    assert not found & BROKEN_PROMISES
    assert left.queues_gone == []
    assert list(states.values()).count("received") > 500, "too little load"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "kind"),
    [
        ("confirm-before-write", "LOST"),
        pytest.param("forget-deliveries", "duplicate", marks=pytest.mark.campaign),
    ],
)
def test_a_planted_bug_is_seen_by_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str, kind: str
) -> None:
    monkeypatch.setenv(VARIABLE, bug)
    found: set[str] = set()
    # A kill shows it only if it comes between a confirm and the delivery: hunted until it does.
    for seed in range(4, 8):
        (tmp_path / f"{seed}").mkdir()
        broker = Ours(tmp_path / f"{seed}", program="tests.fault.planted")
        endure(broker, tmp_path / f"{seed}" / "seen", rounds=5, seed=seed, settle_s=0.0)
        found |= kinds(tmp_path / f"{seed}" / "seen")[1]
        if kind in found:
            return
    pytest.fail(f"only {sorted(found)}")


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_twenty_kills_of_ours(tmp_path: Path) -> None:
    found = campaign("vouchmq", tmp_path, rounds=20, seed=1, settle_s=0.0)
    assert found["exit_code"] == 0, found["worst"]
    assert found["queues_gone"] == []
    assert found["messages"] > 20_000


@pytest.mark.campaign
@pytest.mark.referee
@pytest.mark.timeout(3600)
def test_twenty_kills_of_the_referee(tmp_path: Path) -> None:
    if not Path(referee.SERVER).exists():
        pytest.skip("rabbitmq-server is not installed")
    found = campaign("rabbitmq", tmp_path, rounds=20, seed=1, settle_s=10.0)
    # What it loses or repeats is not ours to promise; that all is judged is.
    assert found["seen"]["broken_count"] == found["seen"]["missing"] == 0
    assert found["messages"] > 5_000
