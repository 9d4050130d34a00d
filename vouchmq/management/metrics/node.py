"""Metrics of the node: alarms, limits, the journal, and which broker this is.

Spec: METRIC-02, METRIC-03, METRIC-04, METRIC-08
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from vouchmq.server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

ALARMS: Final = {
    "memory": (
        "rabbitmq_alarms_memory_used_watermark",
        "is 1 if the memory alarm is raised",
    ),
    "disk": (
        "rabbitmq_alarms_free_disk_space_watermark",
        "is 1 if the disk alarm is raised",
    ),
    "storage": ("vouchmq_alarms_storage", "is 1 while the disk refuses writes"),
    "replication": (
        "vouchmq_alarms_replication",
        "is 1 while the shared log commits nothing, or an awaited standby syncs nothing",
    ),
}
MEASURED: Final = {
    "memory": (
        ("rabbitmq_process_resident_memory_bytes", "Memory used in bytes"),
        ("rabbitmq_resident_memory_limit_bytes", "Memory high watermark in bytes"),
    ),
    "disk": (
        ("rabbitmq_disk_space_available_bytes", "Disk space available in bytes"),
        ("rabbitmq_disk_space_available_limit_bytes", "Free disk space low watermark in bytes"),
    ),
}


def node_families(
    overview: Mapping[str, Any],
    alarms: Sequence[Mapping[str, Any]],
    store: Mapping[str, Any],
    status: Mapping[str, Any],
) -> Iterator[Metric]:
    """The metrics of the node.

    Args:
        overview: the row of that listing
        alarms: the rows of that listing
        store: the row of that listing
        status: what the broker says of its process
    """
    yield from _process_families(status)
    build = {
        "rabbitmq_version": VERSION,
        "product_name": "VouchMQ",
        "prometheus_plugin_version": VERSION,
        "prometheus_client_version": version("prometheus-client"),
        # Dashboards show it beside the version.
        "erlang_version": f"Python {status['python']}",
    }
    yield _info("rabbitmq_build_info", build)
    yield _info("vouchmq_build_info", {"version": VERSION})
    node = overview["node"]
    identity = {
        "rabbitmq_node": node,
        "rabbitmq_cluster": node,
        "rabbitmq_cluster_permanent_id": status["data_directory_id"],
    }
    yield _info("rabbitmq_identity_info", identity)
    for alarm in alarms:
        name, text = ALARMS[alarm["name"]]
        yield GaugeMetricFamily(name, text, value=int(alarm["raised"]))
        pairs = MEASURED.get(alarm["name"], ())
        numbers = (alarm["measured_bytes"], alarm["limit_bytes"])
        for (metric, what), number in zip(pairs, numbers, strict=False):
            yield GaugeMetricFamily(metric, what, value=number)
    yield CounterMetricFamily("rabbitmq_io_sync_ops", "Syncs of the journal", store["syncs"])
    yield CounterMetricFamily(
        "vouchmq_journal_synced_bytes", "Bytes of the journal synced", store["synced_bytes"]
    )
    yield GaugeMetricFamily(
        "vouchmq_journal_segments", "Segments of the journal", store["segments"]
    )
    yield GaugeMetricFamily(
        "vouchmq_journal_unsynced_messages",
        "LSNs assigned but not yet synced",
        value=store["last_lsn"] - store["watermark_lsn"],
    )


def _process_families(status: Mapping[str, Any]) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "rabbitmq_process_max_fds", "Open file descriptors limit", status["descriptor_limit"]
    )
    yield GaugeMetricFamily(
        "rabbitmq_process_max_tcp_sockets",
        "Limit of open TCP sockets",
        status["connection_limit"],
    )
    yield GaugeMetricFamily("vouchmq_uptime_seconds", "Time since the start", status["uptime_s"])
    used = open_descriptors(status["pid"])
    if used is not None:
        yield GaugeMetricFamily("rabbitmq_process_open_fds", "Open file descriptors", used)


def open_descriptors(pid: int) -> int | None:
    """File descriptors of a process: counted here, where it costs the broker nothing."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        # Of another machine, or in another container.
        return None


def _info(name: str, labels: Mapping[str, str]) -> Metric:
    """A gauge whose value is 1 and whose labels say something."""
    family = GaugeMetricFamily(name, "which broker this is", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family
