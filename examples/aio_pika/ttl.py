"""Messages that expire, by their queue or by themselves, and queues that expire."""

from __future__ import annotations

import argparse
import asyncio
import time

import aio_pika
import aio_pika.exceptions
from aio_pika.abc import AbstractChannel, AbstractQueue

LONG_MS = 60_000


class Expiry:
    """One channel, and one time to live for what is tried."""

    def __init__(self, channel: AbstractChannel, ttl_ms: int) -> None:
        self._channel = channel
        self._ttl_ms = ttl_ms

    async def _publish(self, queue: AbstractQueue, body: bytes, ttl_ms: int | None) -> None:
        # aio-pika takes seconds, or anything that is a point or a span of time.
        expiration = None if ttl_ms is None else ttl_ms / 1000
        message = aio_pika.Message(body, expiration=expiration)
        await self._channel.default_exchange.publish(message, queue.name)

    async def _count(self, queue: AbstractQueue) -> int:
        declared = await self._channel.declare_queue(queue.name, passive=True)
        return declared.declaration_result.message_count or 0

    async def tell(self, name: str, queue_ttl_ms: int | None, message_ttl_ms: int | None) -> None:
        """Publish one message and measure how long the queue holds it."""
        queue = await self._channel.declare_queue(
            "",
            exclusive=True,
            arguments=None if queue_ttl_ms is None else {"x-message-ttl": queue_ttl_ms},
        )
        began = time.perf_counter()
        await self._publish(queue, b"a message", message_ttl_ms)
        while await self._count(queue):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        print(f"{name}: gone after {1000 * (time.perf_counter() - began):.0f} ms")

    async def behind_a_head(self) -> None:
        """Messages expire at the head of their queue: one that lives on hides those behind it."""
        queue = await self._channel.declare_queue("", exclusive=True)
        await self._publish(queue, b"lives long", LONG_MS)
        await self._publish(queue, b"lives shortly", self._ttl_ms)
        await asyncio.sleep(2 * self._ttl_ms / 1000)
        print(f"behind a head that lives: {await self._count(queue)} still counted")
        head = await queue.get(no_ack=True)
        behind = await queue.get(no_ack=True, fail=False)
        print(f"got {head.body!r}, then {behind}")

    async def queue_expires(self) -> None:
        """A queue that nobody uses goes with all its messages; publishing is no use of it."""
        queue = await self._channel.declare_queue("", arguments={"x-expires": self._ttl_ms})
        await self._publish(queue, b"goes with the queue", None)
        await asyncio.sleep(2 * self._ttl_ms / 1000 + 0.3)
        try:
            await self._count(queue)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            print("an unused queue is gone: 404")


async def main() -> None:
    """Let messages and a queue expire."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--ttl-ms", type=int, default=1000, help="the short time to live")
    args = parser.parse_args()
    async with await aio_pika.connect(args.url) as connection:
        expiry = Expiry(await connection.channel(), args.ttl_ms)
        await expiry.tell("by the queue", args.ttl_ms, None)
        await expiry.tell("by the message", None, args.ttl_ms)
        await expiry.tell("the queue's is smaller", args.ttl_ms, LONG_MS)
        await expiry.tell("the message's is smaller", LONG_MS, args.ttl_ms)
        await expiry.tell("nobody waits and it is 0", None, 0)
        await expiry.behind_a_head()
        await expiry.queue_expires()


if __name__ == "__main__":
    asyncio.run(main())
