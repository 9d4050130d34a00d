"""pika's AsyncioConnection with awaitable replies, and the ledger a careful publisher keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from tests.waiting import LIMIT_S, until

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncioConnection]:
    """An open connection; closed, and waited for, at the end."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[AsyncioConnection] = loop.create_future()
    closed: asyncio.Future[BaseException] = loop.create_future()
    AsyncioConnection(
        pika.URLParameters(url),
        on_open_callback=opened.set_result,
        on_open_error_callback=lambda _, error: opened.set_exception(error),
        on_close_callback=lambda _, reason: closed.set_result(reason),
        custom_ioloop=loop,
    )
    connection = await asyncio.wait_for(opened, LIMIT_S)
    try:
        yield connection
    finally:
        if not closed.done():
            connection.close()
        await asyncio.wait_for(closed, LIMIT_S)
        await asyncio.sleep(0)


async def open_channel(connection: AsyncioConnection) -> Channel:
    """A fresh channel."""
    opened: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
    connection.channel(on_open_callback=opened.set_result)
    return await asyncio.wait_for(opened, LIMIT_S)


async def call(method: Callable[..., object], *arguments: object, **options: object) -> Any:
    """Send a method that has a reply and wait for that reply."""
    replied: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    method(*arguments, callback=replied.set_result, **options)
    return await asyncio.wait_for(replied, LIMIT_S)


class ConfirmLedger:
    """What a publisher keeps: the numbers not settled yet, and every event in its order."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.sent = 0
        self.pending: set[int] = set()
        self.acked: list[int] = []
        self.nacked: list[int] = []
        self.events: list[tuple[str, int | bytes]] = []
        self.widest = 0
        channel.add_on_return_callback(
            lambda _, __, ___, body: self.events.append(("return", body))
        )

    async def select(self) -> None:
        """Switch the channel to confirm mode."""
        replied: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.channel.confirm_delivery(self._on_confirm, callback=replied.set_result)
        await asyncio.wait_for(replied, LIMIT_S)

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes,
        properties: pika.BasicProperties = PERSISTENT,
        *,
        mandatory: bool = False,
    ) -> int:
        """Publish and return the sequence number."""
        self.sent += 1
        self.pending.add(self.sent)
        self.channel.basic_publish(exchange, key, body, properties, mandatory=mandatory)
        return self.sent

    def _on_confirm(self, frame: Any) -> None:
        number, multiple = frame.method.delivery_tag, frame.method.multiple
        settled = sorted(n for n in self.pending if n <= number) if multiple else [number]
        assert settled, f"{number} settles nothing"
        assert set(settled) <= self.pending, f"{number} was settled before"
        self.pending -= set(settled)
        self.widest = max(self.widest, len(settled))
        good = isinstance(frame.method, pika.spec.Basic.Ack)
        (self.acked if good else self.nacked).extend(settled)
        self.events.extend(("confirm", n) for n in settled)

    async def drained(self) -> None:
        """Wait until everything published is settled."""
        await until(lambda: not self.pending)
