"""Leaders that work are left alone, and others are replaced: fresh schedules, and planted bugs."""

from __future__ import annotations

import time

import pytest

from tests.replication.patience_world import PatienceWorld
from vouchmq.server.replication.roles import Roles

FRESH = 500


class NoSigns(Roles):
    """Beats alone say that a leader is alive."""

    def leader_works(self, now: float, epoch: int, steps: int, work: int) -> None:
        pass


class EverySign(Roles):
    """A sign counts whether anything was done or not."""

    def leader_works(self, now: float, epoch: int, steps: int, work: int) -> None:
        del epoch, steps, work
        self._silent_since = max(self._silent_since, now)


class NoLimit(Roles):
    """Work without a record or a step counts for ever."""

    def leader_works(self, now: float, epoch: int, steps: int, work: int) -> None:
        self._working_since = now
        super().leader_works(now, epoch, steps, work)


def test_fresh_schedules() -> None:
    first = time.time_ns() >> 10
    for seed in range(first, first + FRESH):
        try:
            PatienceWorld(seed).run()
        except AssertionError as error:
            raise AssertionError(f"python -m tests.replication --patience --seed {seed}") from error


@pytest.mark.parametrize("planted", [NoSigns, EverySign, NoLimit])
def test_a_planted_bug_is_found(planted: type[Roles]) -> None:
    with pytest.raises(AssertionError, match="replaced"):
        for seed in range(1000):
            PatienceWorld(seed, planted).run()
