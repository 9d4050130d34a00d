"""Queues.

Spec: HTTP-19, POLICY-09
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vouchmq.management.api.listed import in_vhosts, only
from vouchmq.management.api.paging import Page, projected
from vouchmq.management.api.stats import QUEUE, depths, message_stats
from vouchmq.management.resources.connections import CONSUMERS, consumer_item, ends_of, node_of

if TYPE_CHECKING:
    from vouchmq.management.api.call import Call
    from vouchmq.management.broker import Row

QUEUES: Final = "queue-details"


async def queues(call: Call) -> object:
    """All queues, or those of a virtual host."""
    page = Page(call.query)
    rows = await in_vhosts(call, QUEUES, "name")
    node = await node_of(call)
    # Rates are of what is shown: of ten thousand queues nobody sees them all.
    return page.of(rows, lambda shown: [_queue(call, row, node) for row in shown])


async def queue(call: Call) -> object:
    """One queue."""
    row = await only(call, QUEUES, call.names["queue"])
    node = await node_of(call)
    consumers = await call.broker.rows(CONSUMERS, vhost=row["vhost"], name=row["name"])
    details = {
        "consumer_details": [consumer_item(each, node) for each in consumers],
        "deliveries": [],
        "incoming": [],
    }
    return projected({**_queue(call, row, node), **details}, call.query)


def _queue(call: Call, row: Row, node: str) -> Row:
    key = ("queue", row["vhost"], row["name"])
    item: dict[str, Any] = {
        "arguments": row["arguments"],
        "auto_delete": row["auto_delete"],
        "consumers": row["consumers"],
        "durable": row["durable"],
        "effective_policy_definition": row["policy_definition"],
        "exclusive": row["exclusive"],
        "exclusive_consumer_tag": row["exclusive_consumer"] or None,
        **depths(call.rates, key, row),
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
    stats = message_stats(call.rates, key, QUEUE, row)
    return {**item, "message_stats": stats} if stats else item
