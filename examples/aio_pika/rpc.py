"""Calls over a queue: the reply finds its caller by a queue, and its call by a correlation id."""

from __future__ import annotations

import argparse
import asyncio
import uuid

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

CALLS = "example.rpc"


def fibonacci(n: int) -> int:
    """The n-th Fibonacci number."""
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


async def serve(url: str, calls: int) -> None:
    """Answer calls two by two, the later one first, so that order alone would mislead callers."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=2)
        queue = await channel.get_queue(CALLS)
        pair: list[AbstractIncomingMessage] = []
        async with queue.iterator() as incoming:
            async for call in incoming:
                calls -= 1
                pair.append(call)
                if len(pair) < 2 and calls:
                    continue
                while pair:
                    await answer(channel, pair.pop())
                if not calls:
                    break


async def answer(channel: AbstractChannel, call: AbstractIncomingMessage) -> None:
    """Compute, reply, then acknowledge: a server that dies before is replaced by another."""
    result = b"%d" % fibonacci(int(call.body))
    reply = aio_pika.Message(result, correlation_id=call.correlation_id)
    await channel.default_exchange.publish(reply, call.reply_to or "")
    await call.ack()


class Caller:
    """Sends calls and collects the replies in a queue of its own."""

    def __init__(self, channel: AbstractChannel, replies: AbstractQueue) -> None:
        self._channel = channel
        self._replies = replies
        self._open: dict[str, asyncio.Future[int]] = {}
        self.order: list[str] = []
        self.strangers = 0

    async def listen(self) -> None:
        """Begin to take replies."""
        await self._replies.consume(self._on_reply, no_ack=True)

    async def call(self, number: int) -> int:
        """Send one call; returns its result."""
        correlation_id = str(uuid.uuid4())
        self._open[correlation_id] = asyncio.get_running_loop().create_future()
        message = aio_pika.Message(
            b"%d" % number, reply_to=self._replies.name, correlation_id=correlation_id
        )
        await self._channel.default_exchange.publish(message, CALLS)
        result = await self._open[correlation_id]
        del self._open[correlation_id]
        return result

    async def send_a_stray_reply(self) -> None:
        """A reply to a call of somebody who used this queue before."""
        message = aio_pika.Message(b"0", correlation_id="of another life")
        await self._channel.default_exchange.publish(message, self._replies.name)

    async def _on_reply(self, reply: AbstractIncomingMessage) -> None:
        waiting = self._open.get(reply.correlation_id or "")
        if waiting is None:
            self.strangers += 1
            return
        waiting.set_result(int(reply.body))


async def main() -> None:
    """Have some calls answered by a server with a connection of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    async with await aio_pika.connect(args.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(CALLS, auto_delete=True)
        numbers = range(10, 16)
        server = asyncio.create_task(serve(args.url, len(numbers)))
        caller = Caller(channel, await channel.declare_queue("", exclusive=True))
        await caller.listen()
        await caller.send_a_stray_reply()
        order: list[int] = []

        async def call(number: int) -> int:
            result = await caller.call(number)
            order.append(number)
            return result

        results = await asyncio.gather(*(call(number) for number in numbers))
        print("replies came in this order:", *order)
        for number, result in zip(numbers, results, strict=True):
            print(f"fibonacci({number}) = {result}")
        print(f"{caller.strangers} reply was to no call of ours")
        await server


if __name__ == "__main__":
    asyncio.run(main())
