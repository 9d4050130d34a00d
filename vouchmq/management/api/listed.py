"""Lists of what is in virtual hosts, as far as whoever asks may see it.

Spec: HTTP-04, HTTP-06
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.management.api.errors import not_found

if TYPE_CHECKING:
    from vouchmq.management.api.call import Call
    from vouchmq.management.broker import Row


async def in_vhosts(call: Call, listing: str, *names: str) -> list[Row]:
    """The rows of a listing in the virtual host of the path, or all that the user may enter.

    Args:
        call: the request
        listing: of the broker
        names: columns to order by, behind the virtual host

    Raises:
        ApiError: 401, 404, the virtual host is not to be seen
    """
    vhost = await call.vhost()
    rows = await call.broker.rows(listing, vhost=vhost)
    if vhost is None:
        rows = [row for row in rows if call.may_see(row["vhost"])]
    order = ("vhost", *names)
    rows.sort(key=lambda row: [str(row[name]) for name in order])
    return rows


async def only(call: Call, listing: str, name: str) -> Row:
    """The one row of an object of the virtual host in the path.

    Raises:
        ApiError: 401, 404
    """
    vhost = await call.vhost()
    rows = await call.broker.rows(listing, vhost=vhost, name=name)
    if not rows:
        raise not_found()
    return rows[0]


def of_visitor(call: Call, rows: list[Row]) -> list[Row]:
    """Connections and what is on them: their own, for users who do not monitor."""
    if call.visitor.sees_all:
        return rows
    return [row for row in rows if row["user"] == call.visitor.user]
