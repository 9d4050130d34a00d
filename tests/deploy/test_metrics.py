"""Dashboard and alerts name metrics that a broker exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from tests.environments import PROJECT
from tests.integration.management import ManagedBroker

DEPLOY: Final = PROJECT / "deploy"
NAME: Final = re.compile(r"\b(?:rabbitmq|vouchmq)_\w+")
# Of labels, and of `up`.
NOT_METRICS: Final = {"vouchmq_instance"}


def named() -> set[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "vouchmq.json").read_text())
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    queries += [
        each["definition"] for each in dashboard["templating"]["list"] if "definition" in each
    ]
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    queries += re.findall(r"^ +(?:expr: .*|and .*|< .*)$", alerts, re.MULTILINE)
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
    assert names - exported == set()
