"""The programs of examples/spark/ do what they say, on our broker and on the referee.

By default they run in this process, in the session of the tests, against our broker, and are
judged by what they print; with `--campaign` against the referee too, and also as a reader would
run them, each with a Spark of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.broker_process import PROJECT, BrokerProcess, RefereeBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = PROJECT / "examples" / "spark"
LIMIT_S = 300
Run = Callable[..., list[str]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


@pytest.fixture
def run(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Run:
    """Runs a program here; its session is the one that there is. Returns its lines."""

    def run_program(name: str, *flags: str) -> list[str]:
        program = str(EXAMPLES / f"{name}.py")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr(sys, "argv", [program, *flags])
        with contextlib.redirect_stdout(io.StringIO()) as said:
            runpy.run_path(program, run_name="__main__")
        return said.getvalue().splitlines()

    return run_program


@pytest.fixture
def run_alone(tmp_path: Path) -> Run:
    """Runs a program in a process of its own, somewhere else."""

    def run_program(name: str, *flags: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / f"{name}.py"), *flags],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(PROJECT), "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run_program


def check_queue_to_parquet(run: Run, url: str) -> None:
    assert run("queue_to_parquet", "--url", url, "--count", "1000") == [
        "published 1000, confirmed",
        "1000 rows in Parquet, 1000 different orders",
        "published 1000, confirmed",
        "2000 rows in Parquet, 2000 different orders",
        f"the sum of all is {sum(number % 7 for number in range(2000))}",
        "0 messages and 0 consumers are left",
    ]


def check_stream_to_table(run: Run, url: str) -> None:
    lines = run("stream_to_table", "--url", url, "--count", "900")
    assert lines[:5] == [
        "published 900, confirmed",
        "batch 0 is written",
        "batch 1 is written",
        "the query crashed",
        "batch 1 is written",
    ]
    rest = [line for line in lines[5:] if not re.fullmatch(r"batch \d is written", line)]
    assert rest == [
        "the query ended",
        "900 rows, 900 different readings",
        *("sensor-0: 300", "sensor-1: 300", "sensor-2: 300"),
    ]


def check_parquet_to_exchange(run: Run, url: str) -> None:
    north, south, one, refused = run("parquet_to_exchange", "--url", url, "--count", "500")
    assert north == "example.north holds 250"
    assert south == "example.south holds 250"
    shown = re.fullmatch(
        r'one of them, by order\.north: \{"id":"order-(\d+)","amount":(\d+)\}', one
    )
    assert shown is not None, one
    assert int(shown[1]) % 2 == 0
    assert int(shown[1]) % 100 == int(shown[2])
    assert refused.startswith("refused: unroutable: 312 NO_ROUTE")
    assert refused.endswith("exchange=example.events key=order.west")


def check_audit_a_crash(lines: list[str], out: Path) -> None:
    killed = re.fullmatch(r"killed after (\d+) payments of 1500 were booked", lines[0])
    assert killed is not None, lines
    assert 500 <= int(killed[1]) < 1500
    assert lines[1:5] == [
        "1500 are booked",
        "acked: 1500",
        "the ledger is complete",
        "each payment is accounted for",
    ]
    again = re.fullmatch(r"(\d+) payments were delivered more than once", lines[5])
    assert again is not None, lines
    assert int(again[1]) > 0
    assert lines[6] == f"report: {out / 'report.html'}"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h1>Clean</h1>" in page
    assert "example.payments" in page


CHECKS = (check_queue_to_parquet, check_stream_to_table, check_parquet_to_exchange)


@pytest.mark.parametrize(
    "either", ["vouch", pytest.param("rabbit", marks=pytest.mark.campaign)], indirect=True
)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_an_example_does_what_it_says(
    check: Callable[[Run, str], None], run: Run, either: BrokerProcess | RefereeBroker
) -> None:
    check(run, either.url)


@pytest.mark.campaign
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_an_example_stands_alone(
    check: Callable[[Run, str], None], run_alone: Run, either: BrokerProcess | RefereeBroker
) -> None:
    check(run_alone, either.url)


@pytest.mark.campaign
@pytest.mark.timeout(2 * LIMIT_S)
def test_the_audit_of_a_crash(run: Run, tmp_path: Path) -> None:
    """The broker is the example's own; it and its ledger outlive `kill -9`."""
    check_audit_a_crash(run("audit_a_crash", "--count", "1500", "--out", str(tmp_path)), tmp_path)


@pytest.mark.campaign
@pytest.mark.timeout(2 * LIMIT_S)
def test_the_audit_of_a_crash_stands_alone(run_alone: Run, tmp_path: Path) -> None:
    lines = run_alone("audit_a_crash", "--count", "1500", "--out", str(tmp_path))
    check_audit_a_crash(lines, tmp_path)
