"""A publisher and a consumer that go on when another broker takes over.

The connection has the addresses of all brokers and tries one after the other: standbys refuse
connections. It opens channels and consumers again by itself.

What was not confirmed when the connection broke may be stored or not. The publisher publishes it
again with the same key, and the queue drops what it has had before: nothing is lost, and nothing is
there twice. The consumer acknowledges when its work is done. What comes again says so, and the
consumer looks whether it has done it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
from collections.abc import Iterator

import aio_pika
import aio_pika.exceptions
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from yarl import URL

QUEUE = "example.take_over"
# The queue knows the last keys, also those of messages that have been consumed.
CHECKED = {"x-message-deduplication": True, "x-cache-size": 100_000}
RETRY_S = 0.2
CONNECT_LIMIT_S = 5
WINDOW = 50
PROGRESS = 100
# What a lost connection looks like, depending on who notices it first.
BROKEN = (
    aio_pika.exceptions.AMQPError,
    aio_pika.exceptions.ChannelInvalidStateError,
    ConnectionError,
)


async def connect(urls: list[str]) -> aio_pika.RobustConnection:
    """A connection to the broker that leads, now and after each loss."""
    addresses = itertools.cycle(URL(url) for url in urls)
    connection = aio_pika.RobustConnection(
        next(addresses), reconnect_interval=RETRY_S, fail_fast=False, heartbeat=10
    )

    def take_the_next(*_: object) -> None:
        connection.url = next(addresses)

    # They are called after each loss, and after each attempt that failed.
    connection.close_callbacks.add(take_the_next)
    await connection.connect(timeout=CONNECT_LIMIT_S)
    return connection


class Publisher:
    """Keeps an order until it is confirmed; some are under way at a time."""

    def __init__(self, channel: AbstractChannel, count: int) -> None:
        self._channel = channel
        self._orders: Iterator[int] = iter(range(count))
        self.confirmed = 0
        self.published = 0

    async def publish(self) -> None:
        """Publish all."""
        await asyncio.gather(*(self._publish_some() for _ in range(WINDOW)))

    async def _publish_some(self) -> None:
        for order in self._orders:
            await self._publish_one(order)
            self.confirmed += 1
            if self.confirmed % PROGRESS == 0:
                print(f"confirmed {self.confirmed}", flush=True)

    async def _publish_one(self, order: int) -> None:
        message = aio_pika.Message(
            b"%d" % order,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            headers={"x-deduplication-header": f"order-{order}"},
        )
        while True:
            self.published += 1
            try:
                await self._channel.default_exchange.publish(message, QUEUE, mandatory=True)
            except aio_pika.exceptions.PublishError:
                raise  # unroutable: no mishap but a mistake
            except BROKEN:
                await asyncio.sleep(RETRY_S)
            else:
                return


class Consumer:
    """Works on orders, each of them once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._is_done = asyncio.Event()
        self.done: set[int] = set()
        self.again = 0
        self.copies = 0

    async def consume(self, queue: AbstractQueue) -> None:
        """Work until all orders are done."""
        # The connection consumes again after a loss.
        await queue.consume(self._work)
        await self._is_done.wait()

    async def _work(self, message: AbstractIncomingMessage) -> None:
        order = int(message.body)
        if order not in self.done:
            self.done.add(order)  # the work, and in the same transaction the note that it is done
        elif message.redelivered:
            self.again += 1
        else:
            self.copies += 1
        try:
            await message.ack()
        except BROKEN:
            return  # it comes again
        if len(self.done) == self._count:
            self._is_done.set()


async def main() -> None:
    """Publish and consume orders at the same time, and count them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", action="append", help="of a broker; give it once for each")
    parser.add_argument("--count", type=int, default=1000, help="how many orders")
    args = parser.parse_args()
    # They tell of each loss, and of each attempt that failed.
    for name in ("aio_pika", "aiormq"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    async with await connect(args.url or ["amqp://guest:guest@127.0.0.1:5672/%2F"]) as connection:
        opened = 1

        def count_again(*_: object) -> None:
            nonlocal opened
            opened += 1

        connection.reconnect_callbacks.add(count_again)
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        queue = await channel.declare_queue(QUEUE, durable=True, arguments=CHECKED)
        own_channel = await connection.channel()
        await own_channel.set_qos(prefetch_count=20)
        own_queue = await own_channel.declare_queue(QUEUE, durable=True, arguments=CHECKED)
        publisher = Publisher(channel, args.count)
        consumer = Consumer(args.count)
        worker = asyncio.create_task(consumer.consume(own_queue))
        await publisher.publish()
        print(f"all confirmed after {publisher.published} publishes over {opened} connections")
        await worker
        await own_channel.close()
        print(
            f"{len(consumer.done)} of {args.count} were done, {consumer.copies} copies were found"
        )
        print(f"{consumer.again} came again after they were done")
        left = await queue.delete(if_unused=False, if_empty=False)
        print(f"{left.message_count} were left")


if __name__ == "__main__":
    asyncio.run(main())
