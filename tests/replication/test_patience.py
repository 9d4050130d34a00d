"""Leaders that work are left alone, and others are replaced: fresh schedules, and planted bugs."""

from __future__ import annotations

import time

import pytest

from tests.replication.patience_world import PatienceWorld
from vouchmq.server.replication.roles import Roles

FRESH = 500


class NoSigns(Roles):
    """Beats alone say that a leader is alive."""

    def leader_works(self, now: float, step_age_s: float, work_age_s: float) -> None:
        pass


class EverySign(Roles):
    """A sign counts whether anything was done or not."""

    def leader_works(self, now: float, step_age_s: float, work_age_s: float) -> None:
        del step_age_s, work_age_s
        self._silent_since = max(self._silent_since, now)


class NoLimit(Roles):
    """Work without a record or a step counts for ever."""

    def leader_works(self, now: float, step_age_s: float, work_age_s: float) -> None:
        self._working_since = now
        super().leader_works(now, step_age_s, work_age_s)


class NewsOnArrival(Roles):
    """What a sign tells and was not known counts as done when the sign arrives."""

    _known_at = float("-inf")

    def leader_works(self, now: float, step_age_s: float, work_age_s: float) -> None:
        done_at = now - min(step_age_s, work_age_s)
        # Signs are up to a second on their way.
        if done_at > self._known_at + 1.0:
            self._known_at = done_at
            super().leader_works(now, 0.0, 0.0)
        else:
            super().leader_works(now, step_age_s, work_age_s)


# All signs between a leader's last step and the end of the silence were lost; a standby had begun
# just before. Both took what they heard first for news, and waited nearly twice as long.
HEARD_LATE = (242819, 870302)


def test_fresh_schedules() -> None:
    first = time.time_ns() >> 10
    for seed in range(first, first + FRESH):
        try:
            PatienceWorld(seed).run()
        except AssertionError as error:
            raise AssertionError(f"python -m tests.replication --patience --seed {seed}") from error


@pytest.mark.parametrize("seed", HEARD_LATE)
def test_a_leader_that_hangs_is_replaced_in_time_whichever_signs_are_lost(seed: int) -> None:
    PatienceWorld(seed).run()
    with pytest.raises(AssertionError, match="is not replaced"):
        PatienceWorld(seed, NewsOnArrival).run()


@pytest.mark.parametrize("planted", [NoSigns, EverySign, NoLimit])
def test_a_planted_bug_is_found(planted: type[Roles]) -> None:
    with pytest.raises(AssertionError, match="replaced"):
        for seed in range(1000):
            PatienceWorld(seed, planted).run()
