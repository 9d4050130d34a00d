"""Answers that go on: pieces as they come, and something in between when nothing does.

Whoever has gone is noticed when something is sent, and proxies keep a connection on which something
is. Must not know what the pieces are.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from vouchmq.management.api.errors import UNAVAILABLE, ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from vouchmq.management.broker import Broker

QUIET_S: Final = 15.0
# At one time. Each keeps a connection of the management process, of which others need some.
MOST_STREAMS: Final = 64
# Read ahead of who reads.
MOST_AHEAD: Final = 64


def require_another(broker: Broker) -> None:
    """Pass when one more may be open.

    Raises:
        ApiError: 503
    """
    if broker.watchers >= MOST_STREAMS:
        reason = f"{MOST_STREAMS} streams are open, and that is the limit"
        raise ApiError(UNAVAILABLE, "service_unavailable", reason)


async def kept_alive(source: AsyncGenerator[bytes, None], filler: bytes) -> AsyncIterator[bytes]:
    """The pieces of a source, and the filler whenever there was none for a while."""
    told: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=MOST_AHEAD)

    async def follow() -> None:
        try:
            async with aclosing(source) as pieces:
                async for piece in pieces:
                    await told.put(piece)
        finally:
            await told.put(None)

    task = asyncio.create_task(follow())
    try:
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    piece = await told.get()
            except TimeoutError:
                yield filler
                continue
            if piece is None:
                return
            yield piece
    finally:
        task.cancel()
