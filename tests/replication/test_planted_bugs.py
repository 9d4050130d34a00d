"""The schedules find what they are for: each planted bug, from fresh seeds, in every run."""

from __future__ import annotations

import time

import pytest

from tests.replication.planted import PLANTED
from tests.replication.schedules import first_failure

# The rarest is found in one schedule of sixty.
MOST_SCHEDULES = 3000


@pytest.mark.parametrize("name", PLANTED)
def test_finds(name: str) -> None:
    first = time.time_ns() >> 10
    seeds = range(first, first + MOST_SCHEDULES)
    assert first_failure(seeds, PLANTED[name]) is not None, f"{name} lived through {seeds}"
