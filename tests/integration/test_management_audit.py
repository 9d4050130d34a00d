"""What an audit has found, told to a broker over HTTP and by the command line (HTTP-44)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.management import Got, ManagedBroker, managed_broker

SUMMARY = {
    "verdict": "1 confirmed message is missing",
    "exit": 1,
    "finished_us": 1_700_000_000_000_000,
    "first_us": 1_600_000_000_000_000,
    "last_us": 1_650_000_000_000_000,
    "brokers": {"b": {"o": 3, "n": 17}},
    "copies": 5,
    "states": {"acked": 4, "LOST": 1},
    "findings": {"LOST": 1},
    "since": None,
    "until": None,
    "vhost": None,
    "queue": "orders.*",
}


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    with managed_broker(module_path) as broker:
        yield broker


def run(managed: ManagedBroker, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "vouchmq", "ledger", *words),
            *("--data-dir", str(managed.process.data_dir)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def put(managed: ManagedBroker, content: object) -> Got:
    return managed.ask("PUT", "/ledger/audit", content)


def test_the_last_audit_is_kept_and_shown(tmp_path: Path) -> None:
    managed = ManagedBroker(tmp_path)
    try:
        assert "last audit  none is known" in run(managed, "status").stdout
        assert "audit" not in managed.get("/ledger")
        # An audit's summary has more than the broker wants to know.
        assert put(managed, {**SUMMARY, "paths": ["/somewhere"], "exit": 0}).status == 204
        assert managed.get("/ledger")["audit"] == {**SUMMARY, "exit": 0}
        file = tmp_path / "summary.json"
        file.write_text(json.dumps({**SUMMARY, "paths": ["/somewhere"]}))
        assert run(managed, "audited", str(file)).stdout == "recorded\n"
        assert managed.get("/ledger")["audit"] == SUMMARY
        managed.process.kill9()
        managed.process.start()
        shown = run(managed, "status").stdout
        assert "last audit  2023-11-14 22:13:20 UTC\n" in shown
        assert "verdict     1 confirmed message is missing\n" in shown
        assert "audited     b, up to epoch 3, line 17\nonly        queue 'orders.*'\n" in shown
        assert "findings    LOST 1\nstates      acked 4, LOST 1\n" in shown
        done = run(managed, "status", "--json")
        assert json.loads(done.stdout)["audit"] == SUMMARY
    finally:
        managed.process.kill9()


@pytest.mark.parametrize(
    "change",
    [{"exit": 4}, {"findings": {"LOST": -1}}, {"brokers": {"b": 7}}, {"finished_us": "now"}],
    ids=str,
)
def test_what_is_no_result_is_refused(managed: ManagedBroker, change: dict[str, object]) -> None:
    assert put(managed, {**SUMMARY, **change}).status == 400
    assert "audit" not in managed.get("/ledger")


def test_a_parameter_that_is_no_result_is_not_shown(managed: ManagedBroker) -> None:
    assert managed.ask("PUT", "/global-parameters/last_audit", {"value": 5}).status == 201
    assert "audit" not in managed.get("/ledger")
    assert managed.ask("DELETE", "/global-parameters/last_audit").status == 204


def test_files_that_are_no_summary(managed: ManagedBroker, tmp_path: Path) -> None:
    file = tmp_path / "f"
    for content, said in (
        (None, "No such file or directory"),
        ("{", "is not JSON"),
        ("[]", "is not the summary of an audit"),
    ):
        if content is not None:
            file.write_text(content)
        done = run(managed, "audited", str(file))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert said in done.stderr
