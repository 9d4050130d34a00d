"""Events as they happen, as server-sent events.

    event: queue.created
    data: {"time_ms": 1790000000000, "vhost": "/", "name": "orders", "durable": true}

Who sees what: as in lists, see `api/listed.py`. A comment is sent when nothing has happened for a
while, so that whoever has gone is noticed, and proxies keep the connection.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from msgspec import json

from vouchmq.management.api.call import Streamed
from vouchmq.management.api.listed import sees_event
from vouchmq.management.broker import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from vouchmq.management.api.call import Call, Visitor
    from vouchmq.management.broker import Row

EVENT_STREAM: Final = "text/event-stream"
COMMENT: Final = b":\n\n"
# Tells the client that the stream is open: what it does now will be in it.
BEGUN: Final = b": listening\n\n"


async def events(call: Call) -> Streamed:
    """What happens from now on; `event=` (any number, with commas) takes those that begin so."""
    vhost = await call.vhost()
    prefixes = [each for each in call.query.get("event", "").split(",") if each]
    rows = call.broker.watch("watch events", vhost=vhost, prefixes=prefixes)
    pieces = _pieces(rows, call.visitor)
    return Streamed(await call.streams.begin(call.visitor.user, pieces, COMMENT), EVENT_STREAM)


async def _pieces(rows: AsyncIterator[Row], visitor: Visitor) -> AsyncGenerator[bytes, None]:
    yield BEGUN
    # The broker has gone, or is stopping: the stream ends, and the client asks again.
    with suppress(BrokerUnavailable):
        async with aclosing(rows) as found:  # type: ignore[type-var]
            async for row in found:
                if sees_event(visitor, row["event"], row["facts"]):
                    yield _piece(row)


def _piece(row: Row) -> bytes:
    data = json.encode({"time_ms": row["time_ms"], **row["facts"]})
    return b"event: %b\ndata: %b\n\n" % (row["event"].encode(), data)
