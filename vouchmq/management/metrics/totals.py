"""Metrics of the whole broker: a table of names, and the columns of `overview` behind them.

Spec: METRIC-03, METRIC-04, METRIC-05, METRIC-07
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric


class Family(NamedTuple):
    """A metric of one number.

    Args:
        name: without `_total`
        column: of the view that has the number
        text: what it is
    """

    name: str
    column: str
    text: str


GAUGES: Final = (
    Family("rabbitmq_connections", "connections", "Connections currently open"),
    Family("rabbitmq_channels", "channels", "Channels currently open"),
    Family("rabbitmq_consumers", "consumers", "Consumers currently connected"),
    Family("rabbitmq_queues", "queues", "Queues available"),
    Family("rabbitmq_queue_messages_ready", "messages_ready", "Messages ready for consumers"),
    Family(
        "rabbitmq_queue_messages_unacked",
        "messages_unacknowledged",
        "Messages delivered to consumers but not yet acknowledged",
    ),
    Family("rabbitmq_queue_messages", "messages", "Sum of ready and unacknowledged messages"),
    Family("rabbitmq_queue_consumers", "consumers", "Consumers on queues"),
    # RabbitMQ counts sockets of the operating system: a broker has one for each connection.
    Family("rabbitmq_process_open_tcp_sockets", "connections", "Open TCP sockets"),
    Family("vouchmq_virtual_hosts", "vhosts", "Virtual hosts"),
    Family(
        "vouchmq_oldest_unacked_age_seconds",
        "oldest_unacked_s",
        "For how long the oldest unacknowledged delivery has been so, to a second",
    ),
    Family("vouchmq_exchanges", "exchanges", "Exchanges"),
    Family(
        "vouchmq_connections_blocked",
        "connections_blocked",
        "Connections that an alarm keeps from publishing",
    ),
)
COUNTERS: Final = (
    Family("rabbitmq_connections_opened", "connections_opened", "Connections opened"),
    Family("rabbitmq_connections_closed", "connections_closed", "Connections closed"),
    Family("rabbitmq_queues_declared", "queues_declared", "Queues declared"),
    Family("rabbitmq_queues_created", "queues_created", "Queues created"),
    Family("rabbitmq_queues_deleted", "queues_deleted", "Queues deleted"),
    Family("rabbitmq_channels_opened", "channels_opened", "Channels opened"),
    Family("rabbitmq_channels_closed", "channels_closed", "Channels closed"),
    Family("rabbitmq_channel_messages_published", "published", "Messages published"),
    Family("rabbitmq_channel_messages_confirmed", "confirmed", "Messages confirmed"),
    Family(
        "rabbitmq_channel_messages_unroutable_returned",
        "returned",
        "Messages returned to publishers as unroutable",
    ),
    Family(
        "rabbitmq_channel_messages_unroutable_dropped",
        "unroutable",
        "Messages dropped as unroutable",
    ),
    Family("rabbitmq_channel_messages_redelivered", "redelivered", "Messages redelivered"),
    Family("rabbitmq_channel_messages_acked", "acked", "Messages acknowledged"),
    Family("vouchmq_messages_nacked", "nacked", "Publishes refused with basic.nack"),
    Family("vouchmq_messages_delivered", "delivered", "Deliveries, those of basic.get included"),
    Family("vouchmq_messages_rejected", "rejected", "Deliveries rejected by consumers"),
    Family("vouchmq_messages_dead_lettered", "dead_lettered", "Messages dead-lettered"),
    Family(
        "vouchmq_dead_letters_dropped",
        "dead_letters_dropped",
        "Dead letters that led to no queue",
    ),
    Family("vouchmq_messages_expired", "expired", "Messages removed by a time to live"),
    Family("vouchmq_messages_dropped", "dropped", "Messages removed by a length limit"),
    Family("vouchmq_received_bytes", "received_bytes", "Bytes of AMQP received"),
    Family("vouchmq_sent_bytes", "sent_bytes", "Bytes of AMQP sent"),
)
# Counted once for the whole broker, with the labels that rabbitmq_prometheus has.
GLOBAL_COUNTERS: Final = (
    Family("rabbitmq_global_messages_received", "published", "Messages received from publishers"),
    Family(
        "rabbitmq_global_messages_received_confirm",
        "published_confirm",
        "Messages received from publishers that want confirms",
    ),
    Family(
        "rabbitmq_global_messages_routed",
        "routed",
        "Messages routed to queues or streams, once for each",
    ),
    Family("rabbitmq_global_messages_confirmed", "confirmed", "Messages confirmed to publishers"),
    Family(
        "rabbitmq_global_messages_unroutable_dropped",
        "unroutable",
        "Messages published as non-mandatory and dropped as unroutable",
    ),
    Family(
        "rabbitmq_global_messages_unroutable_returned",
        "returned",
        "Messages published as mandatory and returned as unroutable",
    ),
)
GLOBAL_GAUGES: Final = (
    Family("rabbitmq_global_publishers", "publishers", "Channels that have published"),
    Family("rabbitmq_global_consumers", "consumers", "Consumers"),
)
# The same for the queues of each type.
TYPE_COUNTERS: Final = (
    Family("rabbitmq_global_messages_delivered", "delivered", "Messages delivered to consumers"),
    Family(
        "rabbitmq_global_messages_delivered_consume_auto_ack",
        "delivered_no_ack",
        "Messages delivered to consumers that do not acknowledge",
    ),
    Family(
        "rabbitmq_global_messages_delivered_consume_manual_ack",
        "delivered_ack",
        "Messages delivered to consumers that acknowledge",
    ),
    Family(
        "rabbitmq_global_messages_delivered_get_auto_ack",
        "got_no_ack",
        "Messages got with basic.get and no acknowledgement",
    ),
    Family(
        "rabbitmq_global_messages_delivered_get_manual_ack",
        "got",
        "Messages got with basic.get, to be acknowledged",
    ),
    Family("rabbitmq_global_messages_get_empty", "get_empty", "basic.get that found nothing"),
    Family("rabbitmq_global_messages_redelivered", "redelivered", "Messages redelivered"),
    Family("rabbitmq_global_messages_acknowledged", "acked", "Messages acknowledged by consumers"),
)
PROTOCOL: Final = "amqp091"


def total_families(overview: Mapping[str, Any]) -> Iterator[Metric]:
    """The metrics of one row of `overview-details`."""
    row = {
        **overview,
        "connections_closed": overview["connections_opened"] - overview["connections"],
        "channels_closed": overview["channels_opened"] - overview["channels"],
    }
    types = {name: _by_way(counted) for name, counted in overview["by_type"].items()}
    for each in GAUGES:
        yield GaugeMetricFamily(each.name, each.text, value=row[each.column])
    for each in COUNTERS:
        yield CounterMetricFamily(each.name, each.text, value=row[each.column])
    for each in GLOBAL_COUNTERS:
        counter = CounterMetricFamily(each.name, each.text, labels=["protocol"])
        counter.add_metric([PROTOCOL], row[each.column])
        yield counter
    for each in GLOBAL_GAUGES:
        gauge = GaugeMetricFamily(each.name, each.text, labels=["protocol"])
        gauge.add_metric([PROTOCOL], row[each.column])
        yield gauge
    for each in TYPE_COUNTERS:
        counter = CounterMetricFamily(each.name, each.text, labels=["protocol", "queue_type"])
        for queue_type, counted in types.items():
            labels = [PROTOCOL, f"rabbit_{queue_type}_queue"]
            counter.add_metric(labels, counted[each.column])
        yield counter


def _by_way(counted: Mapping[str, int]) -> dict[str, int]:
    """With what is left of all deliveries: those to consumers that acknowledge."""
    others = counted["delivered_no_ack"] + counted["got"] + counted["got_no_ack"]
    return {**counted, "delivered_ack": counted["delivered"] - others}
