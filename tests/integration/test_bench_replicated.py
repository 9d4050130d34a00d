"""The bench of brokers with a shared log runs: rows, take-overs and hand-overs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.replicated.floor import append, stream_on
from bench.replicated.nodes import log_servers
from tests.engine.servers import MISSING, program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(program() is None, reason=MISSING),
]

ROOT = Path(__file__).resolve().parents[2]


def test_rows_and_pauses_have_figures(tmp_path: Path) -> None:
    out = tmp_path / "replicated.json"
    command = [sys.executable, "-m", "bench.replicated", "--quick", "--no-rabbitmq"]
    command += ["--rows", "confirm_each", "--rounds", "1", "--pauses", "--messages", "200"]
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row, take_over, hand_over = json.loads(out.read_text())["rows"]
    assert row["vouchmq"]["rate_per_s"]["median"] > 0
    assert row["vouchmq_log"]["rate_per_s"]["median"] > 0
    assert take_over["vouchmq_log"]["pause_s"]["median"] > 0
    assert hand_over["vouchmq_log"]["pause_s"]["median"] > 0


def test_a_bare_client_appends_to_the_leader_of_a_stream(tmp_path: Path) -> None:
    found = program()
    assert found is not None
    with log_servers(found, tmp_path) as logs:
        assert append(stream_on(logs), 100, 0.2) > 0
