"""Lists of what is in virtual hosts, as far as whoever asks may see it.

Spec: HTTP-04, HTTP-06
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.management.api.errors import not_found

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vouchmq.management.api.call import Call, Visitor
    from vouchmq.management.broker import Row

# The event that tells how many others were lost: told to whoever has lost them.
MISSED: Final = "events.missed"
# What events tell of clients, which belong to a user.
CLIENTS: Final = frozenset({"connection", "channel", "consumer"})
# Listings of what is in virtual hosts; those of clients are for whoever monitors.
IN_VHOSTS: Final = frozenset(
    {
        *("queues", "exchanges", "bindings"),
        *("policies", "operator-policies", "parameters"),
    }
)


async def in_vhosts(call: Call, listing: str, *names: str) -> list[Row]:
    """The rows of a listing in the virtual host of the path, or all that the user may enter.

    Args:
        call: the request
        listing: of the broker
        names: columns to order by, behind the virtual host

    Raises:
        ApiError: 404, the virtual host is not to be seen
    """
    vhost = await call.vhost()
    rows = await call.broker.rows(listing, vhost=vhost)
    if vhost is None:
        rows = [row for row in rows if call.visitor.may_enter(row["vhost"])]
    order = ("vhost", *names)
    rows.sort(key=lambda row: [str(row[name]) for name in order])
    return rows


async def only(call: Call, listing: str, name: str) -> Row:
    """The one row of an object of the virtual host in the path.

    Raises:
        ApiError: 404
    """
    vhost = await call.vhost()
    rows = await call.broker.rows(listing, vhost=vhost, name=name)
    if not rows:
        raise not_found()
    return rows[0]


def sees_event(visitor: Visitor, event: str, facts: Mapping[str, object]) -> bool:
    """Whether what has happened is told to somebody: as what it has happened to is listed."""
    kind = event.partition(".")[0]
    if event == MISSED:
        return True
    if kind in CLIENTS:
        return visitor.sees_all or facts.get("user") == visitor.user
    if kind == "vhost":
        return visitor.may_see(facts.get("name"))
    return visitor.may_enter(facts["vhost"]) if "vhost" in facts else visitor.sees_all


def of_visitor(call: Call, rows: list[Row]) -> list[Row]:
    """Connections and what is on them: their own, for users who do not monitor."""
    if call.visitor.sees_all:
        return rows
    return [row for row in rows if row["user"] == call.visitor.user]
