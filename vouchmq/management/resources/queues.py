"""Queues.

Spec: HTTP-19, POLICY-09
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vouchmq.management.api.listed import in_vhosts, only
from vouchmq.management.api.paging import Page, projected
from vouchmq.management.api.stats import QUEUE, depths, message_stats, sized
from vouchmq.management.resources.connections import (
    CONSUMERS,
    consumer_item,
    ends_of,
    node_of,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vouchmq.management.api.call import Call
    from vouchmq.management.broker import Row

QUEUES: Final = "queue-details"
SIZES: Final = "queue-sizes"
# Told by `SIZES`, which costs a look at messages: only for those who ask for them, or for all.
SIZED: Final = frozenset(
    {
        *("consumer_capacity", "consumer_utilisation", "head_message_timestamp", "memory"),
        *("message_bytes", "message_bytes_paged_out", "message_bytes_persistent"),
        *("message_bytes_ram", "message_bytes_ready", "message_bytes_unacknowledged"),
        *("messages_paged_out", "messages_persistent", "messages_ram", "messages_ready_ram"),
        "messages_unacknowledged_ram",
    }
)
CLASSIC: Final = "classic"


async def queues(call: Call) -> object:
    """All queues, or those of a virtual host."""
    page = Page(call.query)
    rows = await in_vhosts(call, QUEUES, "name")
    node = await node_of(call)
    sizes = await _sizes(call) if _asks_for_sizes(call.query) else {}
    # Of ten thousand queues nobody sees them all.
    return page.of(rows, lambda shown: [_queue(row, sizes, node) for row in shown])


async def queue(call: Call) -> object:
    """One queue."""
    row = await only(call, QUEUES, call.names["queue"])
    node = await node_of(call)
    consumers = await call.broker.rows(CONSUMERS, vhost=row["vhost"], name=row["name"])
    sizes = await _sizes(call, row["name"]) if _asks_for_sizes(call.query) else {}
    details = {
        "consumer_details": [consumer_item(each, node) for each in consumers],
        "deliveries": [],
        "incoming": [],
    }
    return projected({**_queue(row, sizes, node), **details}, call.query)


def _asks_for_sizes(query: Mapping[str, str]) -> bool:
    columns = query.get("columns", "")
    if not columns:
        return query.get("disable_stats") != "true"
    asked = {*columns.split(","), query.get("sort", "")}
    return not SIZED.isdisjoint(asked)


async def _sizes(call: Call, name: str | None = None) -> Mapping[tuple[str, str], Row]:
    """The bytes of queues, by virtual host and name."""
    rows = await call.broker.rows(SIZES, vhost=call.names.get("vhost"), name=name)
    return {(row["vhost"], row["name"]): row for row in rows}


def _queue(row: Row, sizes: Mapping[tuple[str, str], Row], node: str) -> Row:
    item: dict[str, Any] = {
        "arguments": row["arguments"],
        "auto_delete": row["auto_delete"],
        "consumers": row["consumers"],
        "durable": row["durable"],
        "effective_policy_definition": row["policy_definition"],
        "exclusive": row["exclusive"],
        "exclusive_consumer_tag": row["exclusive_consumer"] or None,
        **depths(row),
        "name": row["name"],
        "node": node,
        "operator_policy": row["operator_policy"] or None,
        "policy": row["policy"] or None,
        "single_active_consumer_tag": row["single_active"] or None,
        "state": "paused" if row["paused"] else "flow" if row["flow"] else "running",
        "type": row["type"],
        "vhost": row["vhost"],
    }
    if row["owner"]:
        peer_host, peer_port, _, _ = ends_of(row["owner"])
        item["owner_pid_details"] = {
            "name": row["owner"],
            "peer_host": peer_host,
            "peer_port": peer_port,
        }
    size = sizes.get((row["vhost"], row["name"]))
    if size is not None:
        item |= sized(row, size)
    if row["idle_since_ms"] is not None:
        item["idle_since"] = time_of(row["idle_since_ms"])
    if row["type"] != CLASSIC:
        item |= {"leader": node, "members": [node], "online": [node]}
    stats = message_stats(QUEUE, row)
    return {**item, "message_stats": stats} if stats else item
