"""Some schedules in every run, from seeds that no run had before; the others are run by hand."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.replication import __main__ as command
from tests.replication.schedules import run

COUNT = 1000


def test_no_schedule_breaks_a_promise() -> None:
    first = time.time_ns() >> 10
    worlds = [run(seed) for seed in range(first, first + COUNT)]
    # They have been about something.
    assert sum(len(world.take_overs) for world in worlds) > COUNT
    assert sum(len(world.promised) for world in worlds) > COUNT
    assert sum(world.reading_count for world in worlds) > COUNT
    assert any(world.stray_count for world in worlds)


def test_a_seed_brings_its_schedule_back() -> None:
    assert run(7).log.messages == run(7).log.messages
    assert run(7).log.messages != run(8).log.messages


def test_the_command_runs_as_many_schedules_as_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["replication", "--schedules", "50", "--from", "100"])
    assert command.main() == 0
    said = capsys.readouterr().out
    assert said.startswith("from seed 100\n50 schedules in")
    assert said.endswith(" 0 failures\n")


def test_the_command_shows_one_schedule() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.replication", "--seed", "7"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert " blocks promised\n" in done.stdout
