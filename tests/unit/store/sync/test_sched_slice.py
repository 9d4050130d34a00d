"""Asking the scheduler for short turns."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable

import pytest

from vouchmq.store.sync.sched_slice import ask_for_slice

KNOWN = platform.system() == "Linux" and platform.machine() in {"x86_64", "aarch64"}


def in_thread(work: Callable[[], object]) -> list[object]:
    """Run where it changes the scheduling of nobody else."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results


@pytest.mark.skipif(not KNOWN, reason="another system")
def test_nothing_but_the_slice_changes() -> None:
    def ask() -> tuple[bool, int, int]:
        niceness = os.nice(3)
        done = ask_for_slice(200_000)
        return done, os.sched_getscheduler(0), os.nice(0) - niceness

    assert in_thread(ask) == [(True, os.SCHED_OTHER, 0)]


@pytest.mark.skipif(not KNOWN, reason="another system")
def test_a_policy_that_somebody_has_chosen_is_left_alone() -> None:
    def ask() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return ask_for_slice(200_000), os.sched_getscheduler(0)

    assert in_thread(ask) == [(False, os.SCHED_BATCH)]


def test_where_it_is_unknown_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert ask_for_slice(200_000) is False
