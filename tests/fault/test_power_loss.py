"""The power is cut under a file system of our own; what was confirmed must be there afterwards.

All threads of the broker and of its sync helper stand still first, the file system is shut down
with and without a last flush of its own journal, then everything is killed and mounted again.
A few rounds here, thirty each by `make fault`. Spec: DURABLE-10, DURABLE-17
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.campaign import hunt, power_campaign, run_rounds
from tests.fault.loop_disk import FileSystem, why_not
from tests.fault.planted import VARIABLE

ROUNDS = 3
PLANTED_ROUNDS = 30
GONE = "promised messages are gone"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def need(kind: FileSystem, referee_url: str | None) -> None:
    """Skip where such a file system cannot be made."""
    if referee_url is not None:
        pytest.skip("cuts the power of VouchMQ's own disk")
    if missing := why_not(kind):
        pytest.skip(missing)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_no_power_cut_breaks_a_promise(
    tmp_path: Path, referee_url: str | None, kind: FileSystem
) -> None:
    need(kind, referee_url)
    with power_campaign(tmp_path, kind, seed=3) as (one, strike):
        for violations in run_rounds(one, strike, ROUNDS):
            assert violations == []
    assert one.outcome.rounds == ROUNDS
    assert one.outcome.confirmed > 500, "too little load"
    assert one.outcome.judged > 200


@pytest.mark.parametrize(
    "bug",
    [
        "no-sync",
        "confirm-before-sync",
        # Its window is less than a millisecond wide.
        pytest.param("confirm-by-wrong-lsn", marks=pytest.mark.campaign),
    ],
)
def test_a_planted_bug_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, referee_url: str | None, bug: str
) -> None:
    need("ext4", referee_url)
    monkeypatch.setenv(VARIABLE, bug)
    with power_campaign(tmp_path, "ext4", seed=3, program="tests.fault.planted") as (one, strike):
        caught = hunt(one, strike, PLANTED_ROUNDS, GONE)
    assert any(GONE in what for what in caught), caught
