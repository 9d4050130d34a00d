"""Virtual hosts.

Spec: HTTP-23
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.management.api.errors import not_found, refused
from vouchmq.management.api.paging import Page, projected
from vouchmq.management.resources.connections import node_of
from vouchmq.management.resources.stats import QUEUE, depths, message_stats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vouchmq.management.api.call import Call
    from vouchmq.management.broker import Row

DEFAULT_TYPE: Final = "undefined"
SUMS: Final = ("messages_ready", "messages_unacknowledged", *QUEUE.values())


async def vhosts(call: Call) -> object:
    """Those that the user may enter."""
    page = Page(call.query)
    rows = [row for row in await call.broker.rows("vhosts") if call.may_see(row["name"])]
    rows.sort(key=lambda row: str(row["name"]))
    sums = _sums(await call.broker.rows("queues"))
    node = await node_of(call)
    return page.of([_vhost(call, row, sums.get(row["name"]), node) for row in rows])


async def vhost(call: Call) -> object:
    """One of them."""
    name = call.names["name"]
    rows = await call.broker.rows("vhosts", name=name)
    if not rows:
        raise not_found()
    if not call.may_see(name):
        raise refused("User not authorised to access virtual host")
    sums = _sums(await call.broker.rows("queues", vhost=name))
    return projected(_vhost(call, rows[0], sums.get(name), await node_of(call)), call.query)


def _sums(queues: Iterable[Row]) -> dict[str, Row]:
    """Of all queues of each virtual host."""
    found: dict[str, Row] = {}
    for row in queues:
        total = found.setdefault(row["vhost"], dict.fromkeys(SUMS, 0))
        for name in SUMS:
            total[name] += row[name]
    return found


def _vhost(call: Call, row: Row, total: Row | None, node: str) -> Row:
    total = total or dict.fromkeys(SUMS, 0)
    key = ("vhost", row["name"])
    description, tags = row.get("description", ""), row.get("tags", [])
    item = {
        "cluster_state": {node: "running"},
        "default_queue_type": row["default_queue_type"] or DEFAULT_TYPE,
        "description": description,
        **depths(call.rates, key, total),
        "metadata": {"description": description, "tags": tags},
        "name": row["name"],
        "tags": tags,
        "tracing": False,
    }
    stats = message_stats(call.rates, key, QUEUE, total)
    return {**item, "message_stats": stats} if stats else item
