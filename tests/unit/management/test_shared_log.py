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
        "vouchmq_ha_resyncs_total 0.0",
        "vouchmq_ha_standbys 0.0",
    ]


def test_a_leader_that_waits_for_a_standby_tells_for_how_much() -> None:
    assert "vouchmq_ha_standby_waiting_bytes 9.0" in text_of({**LEADER, "standby_waiting_bytes": 9})


def test_a_leader_tells_how_far_its_standbys_are() -> None:
    standbys = [
        {"node": name, "lag_bytes": 7, "lag_s": 0.5, "synced_lsn": 9, "can_take_over": is_well}
        for name, is_well in (("b", True), ("c", False))
    ]
    lines = text_of({**LEADER, "standbys": standbys, "resyncs": 3})
    assert "vouchmq_ha_standbys 1.0" in lines
    assert "vouchmq_ha_resyncs_total 3.0" in lines
    assert [line for line in lines if "{" in line] == [
        'vouchmq_ha_standby_lag_bytes{node="b"} 7.0',
        'vouchmq_ha_standby_lag_bytes{node="c"} 7.0',
        'vouchmq_ha_standby_lag_seconds{node="b"} 0.5',
        'vouchmq_ha_standby_lag_seconds{node="c"} 0.5',
        'vouchmq_ha_standby_synced_lsn{node="b"} 9.0',
        'vouchmq_ha_standby_synced_lsn{node="c"} 9.0',
    ]


def test_a_leader_tells_the_size_of_the_log() -> None:
    size = {"bytes": 5, "max_bytes": -1, "records": 2, "replicas": 3, "current_replicas": 2}
    lines = [line for line in text_of({**LEADER, "log": size}) if "ha_log" in line]
    assert lines == [
        "vouchmq_ha_log_bytes 5.0",
        "vouchmq_ha_log_replicas 3.0",
        "vouchmq_ha_log_replicas_current 2.0",
    ]
    limited = text_of({**LEADER, "log": {**size, "max_bytes": 100}})
    assert "vouchmq_ha_log_max_bytes 100.0" in limited


def test_a_leader_that_is_cut_off_says_so() -> None:
    assert "vouchmq_ha_connected 0.0" in text_of({**LEADER, "trouble": "no server answers"})


def test_its_alarm_is_among_those_that_are_shown() -> None:
    assert "replication" in ALARMS
    assert LOG_SETTING in {each.name for each in scalar_fields()}
