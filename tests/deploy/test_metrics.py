"""Dashboard and alerts name metrics that a broker exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest

from tests.environments import PROJECT
from tests.integration.broker_process import KeptPort
from tests.integration.management import ManagedBroker
from tests.waiting import wait_until
from vouchmq.management.metrics.node import ALARMS

DEPLOY: Final = PROJECT / "deploy"
NAME: Final = re.compile(r"\b(?:rabbitmq|vouchmq)_\w+")
# Of labels, and of `up`.
NOT_METRICS: Final = {"vouchmq_instance"}
# Exported by a broker with a shared log only.
OF_A_LOG: Final = {
    *(ALARMS["replication"][0], "vouchmq_ha_serving", "vouchmq_ha_standbys"),
    *("vouchmq_ha_standby_lag_seconds", "vouchmq_ha_log_bytes", "vouchmq_ha_log_max_bytes"),
}


def named() -> set[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "vouchmq.json").read_text())
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    queries += [
        each["definition"] for each in dashboard["templating"]["list"] if "definition" in each
    ]
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    queries += re.findall(r"^ +(?:expr: .*|and .*|unless .*|[<>] .*)$", alerts, re.MULTILINE)
    queries += re.findall(r"expr: >-\n((?: {10}.*\n)+)", alerts)
    return {name for query in queries for name in NAME.findall(query)} - NOT_METRICS


def test_metrics_that_are_named_are_exported(tmp_path: Path) -> None:
    broker = ManagedBroker(tmp_path)
    try:
        exported = set(re.findall(r"^([a-z_]+)[{ ]", broker.metrics(), re.MULTILINE))
    finally:
        broker.process.kill9()
    names = named()
    assert len(names) > 30
    assert names - exported == OF_A_LOG


def answer_of(port: int, path: str) -> Any:
    """What Prometheus' HTTP API tells; None until it does."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/{path}") as got:
            return json.load(got)["data"]
    except OSError:
        return None


@pytest.mark.slow
def test_prometheus_scrapes_a_broker_and_evaluates_the_alerts(tmp_path: Path) -> None:
    """With the files of deploy/, but for the address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    broker = ManagedBroker(tmp_path)
    kept = KeptPort()
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("vouchmq:15692", f"127.0.0.1:{broker.metrics_port}")
    (tmp_path / "prometheus.yml").write_text(config.replace("15s", "1s"))
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", tmp_path)
    kept.give()
    with (tmp_path / "prometheus.log").open("w") as log:
        prometheus = subprocess.Popen(
            [
                *(program, "--config.file=prometheus.yml", "--storage.tsdb.path=metrics"),
                f"--web.listen-address=127.0.0.1:{kept.port}",
            ],
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def rules() -> list[Any]:
        found = answer_of(kept.port, "rules")
        return found["groups"][0]["rules"] if found and found["groups"] else []

    def told() -> str:
        return (tmp_path / "prometheus.log").read_text()[-2000:]

    try:
        for claim in (
            lambda: (answer_of(kept.port, "query?query=rabbitmq_queues") or {}).get("result"),
            lambda: rules() and all(rule["health"] == "ok" for rule in rules()),
        ):
            wait_until(claim, told)
        [target] = answer_of(kept.port, "targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        assert [rule["name"] for rule in rules() if rule["state"] != "inactive"] == []
    finally:
        prometheus.terminate()
        prometheus.wait()
        broker.process.kill9()


def test_promtool_finds_nothing_wrong_with_the_metrics(tmp_path: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed")
    broker = ManagedBroker(tmp_path)
    try:
        text = broker.metrics()
    finally:
        broker.process.kill9()
    done = subprocess.run(
        [program, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    # It would have RabbitMQ's names otherwise (3), but has to be able to parse the text (1).
    assert done.returncode in {0, 3}, done.stderr
    assert "error while linting" not in done.stderr
