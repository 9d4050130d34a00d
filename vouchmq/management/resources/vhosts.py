"""Virtual hosts.

Spec: HTTP-23
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from vouchmq.management.api.call import NO_CONTENT, changed
from vouchmq.management.api.errors import not_found
from vouchmq.management.api.paging import Page, projected
from vouchmq.management.api.stats import OVERVIEW, depths, message_stats, with_details
from vouchmq.management.resources.accounts import tags_of
from vouchmq.management.resources.connections import BYTES, node_of

if TYPE_CHECKING:
    from vouchmq.management.api.call import Call
    from vouchmq.management.broker import Row

DEFAULT_TYPE: Final = "undefined"
TOTALS: Final = "vhost-totals"


async def vhosts(call: Call) -> object:
    """Those that the user may enter."""
    page = Page(call.query)
    rows = [row for row in await call.broker.rows("vhosts") if call.visitor.may_see(row["name"])]
    rows.sort(key=lambda row: str(row["name"]))
    totals = {row["name"]: row for row in await call.broker.rows(TOTALS)}
    node = await node_of(call)
    # One that has come meanwhile has no totals yet.
    return page.of(
        [_vhost(row, totals[row["name"]], node) for row in rows if row["name"] in totals]
    )


async def vhost(call: Call) -> object:
    """One of them."""
    name = call.names["name"]
    rows = await call.broker.rows("vhosts", name=name)
    totals = await call.broker.rows(TOTALS, name=name)
    if not rows or not totals or not call.visitor.may_see(name):
        raise not_found()
    return projected(_vhost(rows[0], totals[0], await node_of(call)), call.query)


def _vhost(row: Row, total: Row, node: str) -> Row:
    description, tags = row.get("description", ""), row.get("tags", [])
    item = {
        "cluster_state": {node: "running"},
        "default_queue_type": row["default_queue_type"] or DEFAULT_TYPE,
        "description": description,
        **depths(total),
        "metadata": {"description": description, "tags": tags},
        "name": row["name"],
        "protected_from_deletion": row.get("protected_from_deletion", False),
        **with_details(BYTES, total, total["rates"]),
        "tags": tags,
        "tracing": False,
    }
    stats = message_stats(OVERVIEW, total)
    return {**item, "message_stats": stats} if stats else item


class VHostBody(Struct):
    """A virtual host; what is not given stays as it is."""

    description: str | None = None
    tags: str | list[str] | None = None
    default_queue_type: str | None = None


async def put_vhost(call: Call) -> object:
    """Make or change a virtual host."""
    body = call.content(VHostBody)
    kind = body.default_queue_type
    answer = await call.do(
        "put vhost",
        name=call.names["name"],
        description=body.description,
        tags=None if body.tags is None else tags_of(body.tags),
        default_queue_type="" if kind == DEFAULT_TYPE else kind,
    )
    return changed(answer)


async def delete_vhost(call: Call) -> object:
    """Delete a virtual host and everything in it."""
    await call.do("delete vhost", name=call.names["name"])
    return NO_CONTENT


async def protect_vhost(call: Call) -> object:
    """Keep a virtual host from being deleted."""
    return await _protect(call, is_protected=True)


async def unprotect_vhost(call: Call) -> object:
    """Let a virtual host be deleted again."""
    return await _protect(call, is_protected=False)


async def _protect(call: Call, *, is_protected: bool) -> object:
    name = call.names["name"]
    if not await call.broker.rows("vhosts", name=name):
        raise not_found()
    await call.do("put vhost", name=name, protected_from_deletion=is_protected)
    return NO_CONTENT
