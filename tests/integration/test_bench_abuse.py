"""The bench of abuses runs: a broker per case, a bystander beside it, figures of both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.abuse.__main__ import CASES

pytestmark = [pytest.mark.slow, pytest.mark.integration]

ROOT = Path(__file__).resolve().parents[2]


def abuse(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.abuse", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_cases_are_listed() -> None:
    done = abuse("--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [case.name for case in CASES]


def test_an_unknown_case_is_refused() -> None:
    done = abuse("no_such_case")
    assert done.returncode == 2
    assert "no_such_case" in done.stdout


def test_a_small_storm_is_served(tmp_path: Path) -> None:
    out = tmp_path / "abuse.json"
    names = ("storm", "storm_tls", "storm_together", "storm_tls_together")
    done = abuse(*names, "--scale", "0.02", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["cases"]
    assert [rows[name]["storm_served"] for name in names] == [200, 200, 200, 40]
    for row in rows.values():
        assert (row["storm_unserved"], row["storm_failures"]) == (0, {})
        assert row["heartbeat_gap_ms"] > 0


def test_small_cases_give_figures(tmp_path: Path) -> None:
    out = tmp_path / "abuse.json"
    names = ("consumers_leave", "purges", "hash_binds", "disconnects", "http_streams")
    done = abuse(*names, "--scale", "0.01", "--out", str(out), "--management")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["cases"]
    assert tuple(rows) == names
    for row in rows.values():
        assert row["asked"] > 0
        assert 0 < row["wait_p50_ms"] <= row["wait_worst_ms"]
        assert row["rss_peak_mib"] > 0
