"""Metrics of single queues, channels and connections, by families that can be asked for.

Spec: METRIC-01, METRIC-05, METRIC-06
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from vouchmq.management.api.stats import sized
from vouchmq.management.metrics.totals import Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

PREFIX: Final = "rabbitmq_"
DETAILED_PREFIX: Final = "rabbitmq_detailed_"


def _queue_labels(row: Mapping[str, Any]) -> Sequence[str]:
    return row["vhost"], row["name"]


def _channel_labels(row: Mapping[str, Any]) -> Sequence[str]:
    return (f"{row['connection']} ({row['number']})",)


def _connection_labels(row: Mapping[str, Any]) -> Sequence[str]:
    return (row["name"],)


class Objects(NamedTuple):
    """The metrics of one kind of object.

    Args:
        listing: of the broker
        labels: their names
        labels_of: the values of one row
        gauges: by the family that they belong to
        counters: the same
    """

    listing: str
    labels: tuple[str, ...]
    labels_of: Callable[[Mapping[str, Any]], Sequence[str]]
    gauges: Mapping[str, tuple[Family, ...]]
    counters: Mapping[str, tuple[Family, ...]]


QUEUES: Final = Objects(
    "queues",
    ("vhost", "queue"),
    _queue_labels,
    {
        "queue_coarse_metrics": (
            Family("queue_messages_ready", "messages_ready", "Messages ready for consumers"),
            Family(
                "queue_messages_unacked",
                "messages_unacknowledged",
                "Messages delivered to consumers but not yet acknowledged",
            ),
            Family("queue_messages", "messages", "Sum of ready and unacknowledged messages"),
        ),
        "queue_metrics": (
            Family("queue_messages_bytes", "message_bytes", "Bytes of bodies, ready and unacked"),
            Family("queue_messages_ready_bytes", "message_bytes_ready", "Bytes of ready messages"),
            Family(
                "queue_messages_unacked_bytes",
                "message_bytes_unacknowledged",
                "Bytes of messages that consumers have",
            ),
            Family(
                "queue_messages_persistent",
                "messages_persistent",
                "Messages that a restart leaves",
            ),
            Family("queue_messages_persistent_bytes", "message_bytes_persistent", "Bytes of these"),
            Family("queue_messages_ram", "messages_ram", "Messages in memory"),
            Family("queue_messages_ram_bytes", "message_bytes_ram", "Bytes of messages in memory"),
            Family("queue_messages_paged_out", "messages_paged_out", "Messages only on disk"),
            Family(
                "queue_messages_paged_out_bytes",
                "message_bytes_paged_out",
                "Bytes of messages only on disk",
            ),
            Family("queue_process_memory_bytes", "memory", "Memory that the messages use"),
            Family(
                "queue_consumer_capacity",
                "consumer_capacity",
                "Whether a consumer could take a message at this moment",
            ),
            Family(
                "queue_consumer_utilisation", "consumer_utilisation", "The same as the capacity"
            ),
            Family(
                "queue_head_message_timestamp",
                "head_message_timestamp",
                "The property timestamp of the next message",
            ),
        ),
        "queue_consumer_count": (Family("queue_consumers", "consumers", "Consumers on a queue"),),
    },
    {
        "queue_metrics": (
            Family("queue_messages_published", "published", "Messages published to queues"),
            Family("queue_messages_delivered", "delivered", "Messages delivered from queues"),
            Family("queue_messages_redelivered", "redelivered", "Messages redelivered"),
            Family("queue_messages_acked", "acked", "Messages acknowledged"),
            Family("queue_messages_dead_lettered", "dead_lettered", "Messages dead-lettered"),
            Family("queue_messages_expired", "expired", "Messages removed by a time to live"),
            Family("queue_messages_dropped", "dropped", "Messages removed by a length limit"),
        )
    },
)
CHANNELS: Final = Objects(
    "channel-details",
    ("channel",),
    _channel_labels,
    {
        "channel_metrics": (
            Family("channel_consumers", "consumers", "Consumers on a channel"),
            Family("channel_prefetch", "prefetch", "Total limit of unacknowledged deliveries"),
            Family(
                "channel_messages_unacked",
                "unacknowledged",
                "Delivered but not yet acknowledged messages",
            ),
            Family(
                "channel_messages_unconfirmed",
                "unconfirmed",
                "Published but not yet confirmed messages",
            ),
            Family("channel_messages_uncommitted", "uncommitted", "Messages in a transaction"),
            Family(
                "channel_acks_uncommitted", "uncommitted_acks", "Acknowledgements in a transaction"
            ),
        )
    },
    {
        "channel_exchange_metrics": (
            Family("channel_messages_published", "published", "Messages published"),
            Family("channel_messages_confirmed", "confirmed", "Messages confirmed"),
            Family(
                "channel_messages_unroutable_returned",
                "returned",
                "Messages returned to publishers as unroutable",
            ),
            Family(
                "channel_messages_unroutable_dropped",
                "unroutable",
                "Messages dropped as unroutable",
            ),
        ),
        "channel_queue_metrics": (
            Family("channel_messages_redelivered", "redelivered", "Messages redelivered"),
            Family("channel_messages_acked", "acked", "Messages acknowledged"),
        ),
    },
)
CONNECTIONS: Final = Objects(
    "connections",
    ("connection",),
    _connection_labels,
    {
        "connection_metrics": (
            Family("connection_channels", "channels", "Channels on a connection"),
        )
    },
    {
        "connection_coarse_metrics": (
            Family("connection_incoming_bytes", "received_bytes", "Bytes received"),
            Family("connection_outgoing_bytes", "sent_bytes", "Bytes sent"),
        )
    },
)
SIZES: Final = "queue-sizes"
# The family whose numbers that listing has.
SIZED: Final = "queue_metrics"
KINDS: Final = (QUEUES, CHANNELS, CONNECTIONS)
FAMILIES: Final = tuple(
    name for kind in KINDS for families in (kind.gauges, kind.counters) for name in families
)


def wanted_kinds(families: Iterable[str]) -> list[Objects]:
    """The kinds of objects that have one of these families."""
    names = set(families)
    return [kind for kind in KINDS if names & (kind.gauges.keys() | kind.counters.keys())]


def with_sizes(
    rows: Iterable[Mapping[str, Any]], sizes: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Queues with what costs a look at their messages; one that has come or gone is left out.

    Args:
        rows: of `queues`
        sizes: of `queue-sizes`
    """
    known = {(size["vhost"], size["name"]): size for size in sizes}
    found = []
    for row in rows:
        size = known.get((row["vhost"], row["name"]))
        if size is not None:
            found.append({**row, **sized(row, size)})
    return found


def object_families(
    kind: Objects, rows: Sequence[Mapping[str, Any]], families: Iterable[str], prefix: str
) -> Iterator[Metric]:
    """The metrics of all objects of a kind, as far as they belong to these families."""
    names = set(families)
    labels = [kind.labels_of(row) for row in rows]
    for make, groups in ((GaugeMetricFamily, kind.gauges), (CounterMetricFamily, kind.counters)):
        for group in names & groups.keys():
            for each in groups[group]:
                metric = make(f"{prefix}{each.name}", each.text, labels=kind.labels)
                for values, row in zip(labels, rows, strict=True):
                    value = row[each.column]
                    metric.add_metric(values, math.nan if value is None else value)
                yield metric
