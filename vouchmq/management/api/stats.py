"""Counters of the broker under the names of RabbitMQ's `message_stats`.

Spec: HTTP-07, HTTP-33
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vouchmq.management.api.rates import with_details

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from vouchmq.management.api.rates import Rates

# Name in `message_stats` → column of a view. Of a family all are told once one of them has
# happened, as RabbitMQ does it; what is told of none stands alone.
Family = dict[str, str]
STREAM: Final = "stream"
DELIVERIES: Final[Family] = {
    "deliver": "delivered_to_be_acked",
    "deliver_no_ack": "delivered_no_ack",
    "get": "got",
    "get_no_ack": "got_no_ack",
    "get_empty": "get_empty",
    "deliver_get": "delivered",
    "redeliver": "redelivered",
    "ack": "acked",
}
PUBLISHES: Final[Family] = {
    "publish": "published",
    "confirm": "confirmed",
    "return_unroutable": "returned",
    "drop_unroutable": "unroutable",
}
REJECTS: Final[Family] = {"reject": "rejected"}
ENDS: Final[tuple[Family, ...]] = (
    {"dead_letter": "dead_lettered"},
    {"expired": "expired"},
    {"dropped": "dropped"},
)
QUEUE: Final = ({"publish": "published"}, DELIVERIES, REJECTS, *ENDS)
CHANNEL: Final = (PUBLISHES, DELIVERIES, REJECTS)
OVERVIEW: Final = (*CHANNEL, *ENDS)
EXCHANGE: Final = ({"publish_in": "published_in", "publish_out": "published_out"},)
# Those that `delivered` has beside deliveries to consumers that ack.
OTHERWISE: Final = ("delivered_no_ack", "got", "got_no_ack")


def message_stats(
    rates: Rates, key: Hashable, families: Iterable[Family], row: Mapping[str, Any]
) -> dict[str, Any]:
    """What has happened so far and how fast; what never has is left out.

    Args:
        rates: what was before
        key: of the object
        families: of the table that fits the view
        row: the view
    """
    if "delivered" in row:
        others = sum(row[name] for name in OTHERWISE)
        row = {**row, "delivered_to_be_acked": row["delivered"] - others}
    told: dict[str, int] = {}
    counters: dict[str, int] = {}
    for family in families:
        found = {name: row[column] for name, column in family.items()}
        counters |= found
        if any(found.values()):
            told |= found
    return with_details(told, rates.of(key, counters))


def depths(rates: Rates, key: Hashable, row: Mapping[str, Any]) -> dict[str, Any]:
    """How many messages there are now, and how fast that changes: less than 0 when they go."""
    counts = {
        "messages": row["messages"],
        "messages_ready": row["messages_ready"],
        "messages_unacknowledged": row["messages_unacknowledged"],
    }
    return with_details(counts, rates.of(("depth", key), counts, is_gauge=True))


def sized(row: Mapping[str, Any], size: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of the bytes of a queue; what is unacknowledged is in memory.

    Args:
        row: of `queues` or `queue-details`
        size: of the same queue, of `queue-sizes`
    """
    ready, unacked = row["messages_ready"], row["messages_unacknowledged"]
    ready_bytes, unacked_bytes = size["ready_bytes"], size["unacknowledged_bytes"]
    in_memory, bytes_in_memory = size["ready_in_memory"], size["ready_bytes_in_memory"]
    # Of this moment: RabbitMQ tells for which part of some seconds it has been so.
    capacity = float(size["has_room"]) if row["consumers"] else 0
    return {
        "consumer_capacity": capacity,
        "consumer_utilisation": capacity,
        "head_message_timestamp": size["head_timestamp"],
        "memory": size["memory_bytes"],
        # What a reader of a stream holds is in the stream.
        "message_bytes": ready_bytes + (0 if row["type"] == STREAM else unacked_bytes),
        "message_bytes_paged_out": max(0, ready_bytes - bytes_in_memory),
        "message_bytes_persistent": size["persistent_bytes"],
        "message_bytes_ram": bytes_in_memory + unacked_bytes,
        "message_bytes_ready": ready_bytes,
        "message_bytes_unacknowledged": unacked_bytes,
        "messages_paged_out": max(0, ready - in_memory),
        "messages_persistent": size["persistent"],
        "messages_ram": in_memory + unacked,
        "messages_ready_ram": in_memory,
        "messages_unacknowledged_ram": unacked,
    }
