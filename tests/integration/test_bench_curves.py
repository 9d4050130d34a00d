"""The bench of curves runs: a broker for each point, every message accounted for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.curves.__main__ import CURVES

pytestmark = [pytest.mark.slow, pytest.mark.integration]

ROOT = Path(__file__).resolve().parents[2]


def curves(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.curves", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_curves_are_listed() -> None:
    done = curves("--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [one.name for one in CURVES]


def test_an_unknown_curve_is_refused() -> None:
    done = curves("no_such_curve")
    assert done.returncode == 2
    assert "no_such_curve" in done.stdout


def test_small_points_give_figures_and_replace_earlier_ones(tmp_path: Path) -> None:
    out = tmp_path / "curves.json"
    names = ("bindings", "purge", "dead_letters", "commit", "commit_published", "end", "topology")
    for _ in range(2):
        done = curves(*names, "--quick", "--sizes", "500", "--out", str(out))
        assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())["curves"]
    assert tuple(found) == names
    for curve in found.values():
        (point,) = curve["points"]
        assert point["size"] == 500
        assert all(cpu_us > 0 for cpu_us in point["cpu_us"].values())
        assert set(point["cpu_us"]) <= set(point["stall_cpu_ms"])
