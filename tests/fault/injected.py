"""System calls that strace makes fail: which, and what must be there afterwards."""

from __future__ import annotations

from typing import Final

import pytest

WRITES: Final = "pwritev,pwritev2,pwrite64"


START_LIMIT_S: Final = 60.0


def some_or_all(few: list[int], many: range) -> list[object]:
    """A few places to strike at in every run, all of them in a campaign."""
    rest = [pytest.param(n, marks=pytest.mark.campaign) for n in many if n not in few]
    return [*few, *rest]
