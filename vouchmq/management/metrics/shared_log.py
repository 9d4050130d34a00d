"""Metrics of a shared log: who leads, and what the log has not committed.

Only a leader has them, as a standby runs no management process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

# A broker that has chosen this has a log.
LOG_SETTING: Final = "ha_log"


def log_families(status: Mapping[str, Any]) -> Iterator[Metric]:
    """The metrics of the log.

    Args:
        status: what the broker answers to `ha status`
    """
    yield GaugeMetricFamily(
        "vouchmq_ha_serving",
        "is 1 while this broker leads and serves clients",
        value=int(status.get("is_serving", False)),
    )
    yield GaugeMetricFamily(
        "vouchmq_ha_epoch", "Number of the claim by which this broker leads", status["epoch"]
    )
    yield CounterMetricFamily(
        "vouchmq_ha_committed_records", "Records of the shared log", status["sequence"]
    )
    yield GaugeMetricFamily(
        "vouchmq_ha_uncommitted_bytes",
        "Bytes of the journal that the shared log has not committed",
        status.get("uncommitted_bytes", 0),
    )
    yield GaugeMetricFamily(
        "vouchmq_ha_connected",
        "is 1 while the servers of the shared log answer",
        int(not status["trouble"]),
    )
