"""Metrics of a broker with a shared log."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from vouchmq.management.metrics.node import ALARMS
from vouchmq.management.metrics.shared_log import LOG_SETTING, log_families
from vouchmq.server.settings.settings import scalar_fields

LEADER = {"epoch": 3, "sequence": 70, "is_serving": True, "uncommitted_bytes": 12, "trouble": ""}


class Families:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def text_of(status: dict[str, object]) -> list[str]:
    registry = CollectorRegistry()
    registry.register(Families(list(log_families(status))))
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_a_leader_tells_its_epoch_and_what_is_not_committed() -> None:
    assert text_of(LEADER) == [
        "vouchmq_ha_serving 1.0",
        "vouchmq_ha_epoch 3.0",
        "vouchmq_ha_committed_records_total 70.0",
        "vouchmq_ha_uncommitted_bytes 12.0",
        "vouchmq_ha_connected 1.0",
    ]


def test_a_leader_that_is_cut_off_says_so() -> None:
    assert "vouchmq_ha_connected 0.0" in text_of({**LEADER, "trouble": "no server answers"})


def test_its_alarm_is_among_those_that_are_shown() -> None:
    assert "replication" in ALARMS
    assert LOG_SETTING in {each.name for each in scalar_fields()}
