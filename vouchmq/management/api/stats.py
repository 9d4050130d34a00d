"""Counters of the broker under the names of RabbitMQ's `message_stats`.

Spec: HTTP-07, HTTP-33
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vouchmq.management.api.rates import with_details

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from vouchmq.management.api.rates import Rates

# Name in `message_stats` → column of a view.
QUEUE: Final = {
    "publish": "published",
    "deliver_get": "delivered",
    "redeliver": "redelivered",
    "ack": "acked",
    "reject": "rejected",
    "dead_letter": "dead_lettered",
    "expired": "expired",
    "dropped": "dropped",
}
CHANNEL: Final = {
    "publish": "published",
    "confirm": "confirmed",
    "return_unroutable": "returned",
    "drop_unroutable": "unroutable",
    "deliver_get": "delivered",
    "redeliver": "redelivered",
    "ack": "acked",
    "reject": "rejected",
}
OVERVIEW: Final = {**QUEUE, **CHANNEL}
EXCHANGE: Final = {"publish_in": "published_in", "publish_out": "published_out"}


def message_stats(
    rates: Rates, key: Hashable, names: Mapping[str, str], row: Mapping[str, Any]
) -> dict[str, Any]:
    """What has happened so far and how fast; what never has is left out.

    Args:
        rates: what was before
        key: of the object
        names: of the table that fits the view
        row: the view
    """
    counters = {name: row[column] for name, column in names.items()}
    found = rates.of(key, counters)
    return with_details({name: count for name, count in counters.items() if count}, found)


def depths(rates: Rates, key: Hashable, row: Mapping[str, Any]) -> dict[str, Any]:
    """How many messages there are now, and how fast that changes: less than 0 when they go."""
    counts = {
        "messages": row["messages_ready"] + row["messages_unacknowledged"],
        "messages_ready": row["messages_ready"],
        "messages_unacknowledged": row["messages_unacknowledged"],
    }
    return with_details(counts, rates.of(("depth", key), counts, is_gauge=True))
