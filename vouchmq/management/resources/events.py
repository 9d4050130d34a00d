"""Events as they happen, as server-sent events.

    event: queue.created
    data: {"time_ms": 1790000000000, "vhost": "/", "name": "orders", "durable": true}

Who sees what: the events of virtual hosts that the user may enter, and of connections and channels
the user's own; monitors see all. A comment is sent when nothing has happened for a while, so that
whoever has gone is noticed, and proxies keep the connection.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from msgspec import json

from vouchmq.management.api.call import Events
from vouchmq.management.api.errors import UNAVAILABLE, ApiError
from vouchmq.management.broker import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from vouchmq.management.api.call import Call, Visitor
    from vouchmq.management.broker import Row

QUIET_S: Final = 15.0
# At one time. Each keeps a connection of the management process, of which others need some.
MOST_STREAMS: Final = 64
COMMENT: Final = b":\n\n"
# Tells the client that the stream is open: what it does now will be in it.
BEGUN: Final = b": listening\n\n"


async def events(call: Call) -> Events:
    """What happens from now on; `event=` (any number, with commas) takes those that begin so."""
    if call.broker.watchers >= MOST_STREAMS:
        reason = f"{MOST_STREAMS} streams of events are open, and that is the limit"
        raise ApiError(UNAVAILABLE, "service_unavailable", reason)
    vhost = await call.vhost()
    prefixes = [each for each in call.query.get("event", "").split(",") if each]
    rows = call.broker.watch("watch events", vhost=vhost, prefixes=prefixes)
    return Events(_pieces(rows, call.visitor))


async def _pieces(rows: AsyncIterator[Row], visitor: Visitor) -> AsyncIterator[bytes]:
    told: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=64)

    async def follow() -> None:
        # The broker has gone, or is stopping: the stream ends, and the client asks again.
        with suppress(BrokerUnavailable):
            async with aclosing(rows) as found:  # type: ignore[type-var]
                async for row in found:
                    if _sees(visitor, row):
                        await told.put(_piece(row))
        await told.put(None)

    task = asyncio.create_task(follow())
    try:
        yield BEGUN
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    piece = await told.get()
            except TimeoutError:
                yield COMMENT
                continue
            if piece is None:
                return
            yield piece
    finally:
        task.cancel()


def _sees(visitor: Visitor, row: Row) -> bool:
    if visitor.sees_all:
        return True
    facts = row["facts"]
    kind = row["event"].partition(".")[0]
    if kind in {"connection", "channel"} and facts.get("user") != visitor.user:
        return False
    return facts.get("vhost") in visitor.vhosts


def _piece(row: Row) -> bytes:
    data = json.encode({"time_ms": row["time_ms"], **row["facts"]})
    return b"event: %b\ndata: %b\n\n" % (row["event"].encode(), data)
