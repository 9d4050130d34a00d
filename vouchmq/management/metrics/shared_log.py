"""What a broker tells of a shared log, and the metrics of it: who leads, what is not committed.

Only a leader has them, as a standby runs no management process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from vouchmq.management.broker import Broker, Row

# A broker that has chosen this has a log.
LOG_SETTING: Final = "ha_log"
STANDBY_GAUGES: Final = (
    (
        "vouchmq_ha_standby_lag_bytes",
        "Bytes of the journal that a standby does not have",
        "lag_bytes",
    ),
    ("vouchmq_ha_standby_lag_seconds", "Age of a standby's copy of the shared log", "lag_s"),
    (
        "vouchmq_ha_standby_synced_lsn",
        "Highest LSN up to which a standby has synced its copy",
        "synced_lsn",
    ),
)


async def asked_log(broker: Broker, status: Mapping[str, Any]) -> Row | None:
    """What the broker answers to `ha status`; None if it has no shared log.

    Args:
        broker: is asked
        status: what it answers to `status`

    Raises:
        BrokerUnavailable: it does not answer
    """
    if LOG_SETTING not in status["settings"]:
        return None
    facts = await broker.ask("ha status")
    return {name: value for name, value in facts.items() if name != "ok"}


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
    if "standby_waiting_bytes" in status:
        yield GaugeMetricFamily(
            "vouchmq_ha_standby_waiting_bytes",
            "Bytes that the shared log has committed and no standby has synced",
            status["standby_waiting_bytes"],
        )
    yield GaugeMetricFamily(
        "vouchmq_ha_connected",
        "is 1 while the servers of the shared log answer",
        int(not status["trouble"]),
    )
    yield CounterMetricFamily(
        "vouchmq_ha_resyncs",
        "Times that this leader has read the shared log to know what became of a record",
        status.get("resyncs", 0),
    )
    yield from _size_families(status.get("log", {}))
    yield from _standby_families(status.get("standbys", ()))


def _size_families(size: Mapping[str, int]) -> Iterator[Metric]:
    """The metrics of the stream, once its leader has told them."""
    if not size:
        return
    yield GaugeMetricFamily("vouchmq_ha_log_bytes", "Bytes in the shared log", size["bytes"])
    if size["max_bytes"] >= 0:
        yield GaugeMetricFamily(
            "vouchmq_ha_log_max_bytes", "Most bytes that the shared log takes", size["max_bytes"]
        )
    yield GaugeMetricFamily(
        "vouchmq_ha_log_replicas", "Servers that the shared log should have", size["replicas"]
    )
    yield GaugeMetricFamily(
        "vouchmq_ha_log_replicas_current",
        "Servers that have all of the shared log",
        size["current_replicas"],
    )


def _standby_families(standbys: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """The metrics of the standbys that the leader hears, sixteen at most."""
    yield GaugeMetricFamily(
        "vouchmq_ha_standbys",
        "Standbys that the leader hears and that can take over",
        sum(each["can_take_over"] for each in standbys),
    )
    for name, text, fact in STANDBY_GAUGES:
        family = GaugeMetricFamily(name, text, labels=["node"])
        for each in standbys:
            family.add_metric([each["node"]], each[fact])
        yield family
