"""Answers that go on: pieces as they come, and something in between when nothing does.

Whoever has gone is noticed when something is sent, and proxies keep a connection on which something
is. Must not know what the pieces are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from vouchmq.management.api.errors import TOO_MANY, UNAVAILABLE, ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

QUIET_S: Final = 15.0
# At one time. Each keeps a connection of the management process, of which others need some.
MOST_STREAMS: Final = 64
# So that no user, whose program opens one after the other, takes those of all.
MOST_STREAMS_OF_USER: Final = 32
# Read ahead of who reads.
MOST_AHEAD: Final = 64


class Streams:
    """Those that are open, by the names of the users who read them."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    async def begin(
        self, user: str, source: AsyncGenerator[bytes, None], filler: bytes
    ) -> AsyncGenerator[bytes, None]:
        """The pieces of a source, see `kept_alive`; it counts until it ends or is closed.

        Raises:
            ApiError: 429, the user has too many; 503, all users together
        """
        if self._open[user] >= MOST_STREAMS_OF_USER:
            reason = f"user {user!r} has {MOST_STREAMS_OF_USER} streams open, and that is the limit"
            raise ApiError(TOO_MANY, "too_many_requests", reason)
        if self._open.total() >= MOST_STREAMS:
            reason = f"{MOST_STREAMS} streams are open, and that is the limit"
            raise ApiError(UNAVAILABLE, "service_unavailable", reason)
        pieces = self._counted(user, source, filler)
        # What has not begun would not be told of its end.
        await anext(pieces)
        return pieces

    async def _counted(
        self, user: str, source: AsyncGenerator[bytes, None], filler: bytes
    ) -> AsyncGenerator[bytes, None]:
        self._open[user] += 1
        try:
            yield b""
            async with aclosing(kept_alive(source, filler)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]


async def kept_alive(
    source: AsyncGenerator[bytes, None], filler: bytes
) -> AsyncGenerator[bytes, None]:
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
