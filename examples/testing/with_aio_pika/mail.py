"""Mail with aio-pika: a service that sends what it is asked to, and parks what it cannot send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from pamqp.common import FieldTable

QUEUE = "mail"
FAILED = "mail.failed"
ARGUMENTS: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": FAILED}
Send = Callable[[str], Awaitable[None]]


async def connect(url: str) -> aio_pika.abc.AbstractRobustConnection:
    """A connection that comes back when it breaks."""
    return await aio_pika.connect_robust(url, reconnect_interval=0.05)


async def declare(channel: aio_pika.abc.AbstractChannel) -> aio_pika.abc.AbstractQueue:
    """The queue of mail, and the one for what could not be sent."""
    await channel.declare_queue(FAILED, durable=True)
    return await channel.declare_queue(QUEUE, durable=True, arguments=ARGUMENTS)


async def request_mail(connection: aio_pika.abc.AbstractConnection, address: str) -> None:
    """Ask for a mail; returns when the broker has confirmed it.

    Raises:
        aio_pika.exceptions.DeliveryError: the broker refuses it
    """
    async with connection.channel() as channel:
        await declare(channel)
        message = aio_pika.Message(address.encode(), delivery_mode=2)
        await channel.default_exchange.publish(message, QUEUE)


class MailService:
    """Sends mail until it is stopped.

    Args:
        url: of the broker
        send: sends one
    """

    def __init__(self, url: str, send: Send) -> None:
        self._url = url
        self._send = send
        self._is_stopped = asyncio.Event()

    async def run(self) -> None:
        """Consume, also after the connection has broken."""
        connection = await connect(self._url)
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=5)
            queue = await declare(channel)
            await queue.consume(self._handle)
            await self._is_stopped.wait()

    def stop(self) -> None:
        """Have `run` return."""
        self._is_stopped.set()

    async def _handle(self, message: AbstractIncomingMessage) -> None:
        # An exception rejects it: it becomes a dead letter.
        async with message.process():
            await self._send(message.body.decode())
