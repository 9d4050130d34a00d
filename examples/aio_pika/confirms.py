"""Three ways to publish reliably, with the time each takes.

A confirm says that the broker has the message; VouchMQ has it on disk then. Who waits for every
confirm waits for the disk every time. Messages that are under way together share one sync.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

import aio_pika
from aio_pika.abc import AbstractChannel

QUEUE = "example.confirms"
BATCH = 100
WINDOW = 1000


async def publish_one(channel: AbstractChannel, number: int) -> None:
    """Publish a message and return when it is confirmed; raises DeliveryError if refused."""
    message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(message, QUEUE)


async def one_by_one(channel: AbstractChannel, count: int) -> None:
    """Publish, wait, publish: simple and slow, and an error stands beside its message."""
    for number in range(count):
        await publish_one(channel, number)


async def in_batches(channel: AbstractChannel, count: int) -> None:
    """Publish a hundred, wait for all of them: one sync for a batch, but pauses between."""
    for first in range(0, count, BATCH):
        batch = range(first, min(first + BATCH, count))
        await asyncio.gather(*(publish_one(channel, number) for number in batch))


async def asynchronously(channel: AbstractChannel, count: int) -> None:
    """Publish on while confirms come in; the window bounds what is uncertain at any time."""
    window = asyncio.Semaphore(WINDOW)
    async with asyncio.TaskGroup() as under_way:
        for number in range(count):
            await window.acquire()
            task = under_way.create_task(publish_one(channel, number))
            task.add_done_callback(lambda _task: window.release())


async def measure(
    name: str,
    publish: Callable[[AbstractChannel, int], Awaitable[None]],
    url: str,
    count: int,
) -> None:
    """Tell how long a strategy takes for `count` messages."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        began = time.perf_counter()
        await publish(channel, count)
        seconds = time.perf_counter() - began
    print(f"{name}: {count} confirmed in {seconds:.3f} s, {count / seconds:.0f} per second")


async def main() -> None:
    """Run the three, each with its own connection, into one durable queue."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--count", type=int, default=1000, help="messages for each strategy")
    args = parser.parse_args()
    async with await aio_pika.connect(args.url) as connection:
        channel = await connection.channel()
        await channel.queue_delete(QUEUE)
        await channel.declare_queue(QUEUE, durable=True)
        await measure("one by one", one_by_one, args.url, args.count)
        await measure("in batches", in_batches, args.url, args.count)
        await measure("asynchronously", asynchronously, args.url, args.count)
        queue = await channel.declare_queue(QUEUE, passive=True)
        print(f"the queue holds {queue.declaration_result.message_count} messages")
        await queue.delete(if_unused=False, if_empty=False)


if __name__ == "__main__":
    asyncio.run(main())
