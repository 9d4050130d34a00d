"""Counters of the broker under the names of RabbitMQ's `message_stats`.

Spec: HTTP-07, HTTP-33
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
DEPTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
# Those that `delivered` has beside deliveries to consumers that ack.
OTHERWISE: Final = ("delivered_no_ack", "got", "got_no_ack")


def message_stats(families: Iterable[Family], row: Mapping[str, Any]) -> dict[str, Any]:
    """What has happened so far and how fast; what never has is left out.

    Args:
        families: of the table that fits the view
        row: the view, and among it how fast its columns change
    """
    rates = row["rates"]
    if "delivered" in row:
        others = sum(row[name] for name in OTHERWISE)
        row = {**row, "delivered_to_be_acked": row["delivered"] - others}
        acked_rate = rates.get("delivered", 0.0) - sum(rates.get(name, 0.0) for name in OTHERWISE)
        rates = {**rates, "delivered_to_be_acked": max(0.0, acked_rate)}
    told: dict[str, Any] = {}
    for family in families:
        if any(row[column] for column in family.values()):
            told |= with_details(family, row, rates)
    return told


def depths(row: Mapping[str, Any]) -> dict[str, Any]:
    """How many messages there are now, and how fast that changes: less than 0 when they go."""
    return with_details({name: name for name in DEPTHS}, row, row["rates"])


def with_details(
    names: Mapping[str, str], row: Mapping[str, Any], rates: Mapping[str, float]
) -> dict[str, Any]:
    """Numbers of a view, and beside each `x` an `x_details` with its rate.

    Args:
        names: how they are shown → their columns
        row: the view
        rates: of the columns that change
    """
    found: dict[str, Any] = {}
    for name, column in names.items():
        found[name] = row[column]
        found[f"{name}_details"] = {"rate": rates.get(column, 0.0)}
    return found


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
