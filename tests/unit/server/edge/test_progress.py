"""A bar is shown on a terminal only, and only to those who have waited."""

from __future__ import annotations

import io

import pytest

from tests.unit.server.cli.terminals import Terminal
from vouchmq.server.edge.progress import RecoveryProgress


@pytest.mark.parametrize(
    ("out", "seconds", "is_shown"),
    [(Terminal(), 2.0, True), (Terminal(), 0.5, False), (io.StringIO(), 2.0, False)],
)
def test_who_sees_a_bar(out: io.StringIO, seconds: float, is_shown: bool) -> None:
    times = iter([0.0, *[seconds] * 8])
    progress = RecoveryProgress(out, lambda: next(times))
    progress(1, 4)
    progress(2, 4)
    progress.close()
    assert ("reading the journal" in out.getvalue()) == is_shown
