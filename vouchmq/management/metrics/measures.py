"""Metrics of what the broker measures: histograms, logins, the journal in bytes.

Spec: METRIC-04, METRIC-08
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

HISTOGRAMS: Final = {
    "sync_seconds": (
        "vouchmq_journal_sync_duration_seconds",
        "How long syncs of the journal take",
    ),
    "confirm_seconds": (
        "vouchmq_confirm_latency_seconds",
        "Time from the receipt of a publish to its confirm, if that waits for the disk",
    ),
    "loop_lag_seconds": (
        "vouchmq_loop_lag_seconds",
        "How late the event loop gets to what is due, looked at ten times a second",
    ),
    "block_bytes": (
        "vouchmq_journal_block_size_bytes",
        "Sizes of the blocks that are written to the journal",
    ),
}
ATTEMPTS: Final = (
    ("rabbitmq_auth_attempts", "Authentication attempts"),
    ("rabbitmq_auth_attempts_succeeded", "Successful authentication attempts"),
    ("rabbitmq_auth_attempts_failed", "Failed authentication attempts"),
)
STORE_GAUGES: Final = {
    "journal_bytes": ("vouchmq_journal_bytes", "Bytes in the segments of the journal"),
    "dead_bytes": ("vouchmq_journal_dead_bytes", "About how many of them nobody needs any more"),
    "live_messages": (
        "vouchmq_journal_live_messages",
        "Messages in the journal, once for each queue that has them",
    ),
    "queued_bytes": ("vouchmq_queued_memory_bytes", "Memory that messages in queues use"),
}
STORE_COUNTERS: Final = {
    "moved_bytes": ("vouchmq_compaction_moved_bytes", "Bytes written again by compaction"),
    "pages_refused": (
        "vouchmq_pages_refused",
        "Pages of messages that the disk refused, so that they stayed in memory",
    ),
}


def histogram_families(rows: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Histograms, from the rows of that listing."""
    for row in rows:
        name, text = HISTOGRAMS[row["name"]]
        bounds = [*map(floatToGoString, row["bounds"]), "+Inf"]
        below, buckets = 0, []
        for bound, count in zip(bounds, row["counts"], strict=True):
            below += count
            buckets.append((bound, below))
        yield HistogramMetricFamily(name, text, buckets=buckets, sum_value=row["total"])


def login_families(rows: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Logins by protocol, from the rows of that listing."""
    numbers = [(row["succeeded"] + row["failed"], row["succeeded"], row["failed"]) for row in rows]
    for at, (name, text) in enumerate(ATTEMPTS):
        family = CounterMetricFamily(name, text, labels=["protocol"])
        for row, counts in zip(rows, numbers, strict=True):
            family.add_metric([row["protocol"]], counts[at])
        yield family


def store_families(store: Mapping[str, Any]) -> Iterator[Metric]:
    """The journal and the memory of queues, from the row of `store-details`."""
    for column, (name, text) in STORE_GAUGES.items():
        yield GaugeMetricFamily(name, text, value=store[column])
    for column, (name, text) in STORE_COUNTERS.items():
        yield CounterMetricFamily(name, text, value=store[column])
