"""At least once from end to end, and an effect that happens exactly once.

The publisher persists its messages, publishes them as mandatory and sends again what is not
confirmed. The consumer acknowledges when its work is stored. So every message arrives, some twice;
the consumer notes the ids of what it has done in the same transaction as the work itself.

Mishaps are staged: some confirms get lost, and the consumer dies between its work and its ack.
A broker that is killed and started again meanwhile changes nothing in the sum.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from collections.abc import Awaitable, Callable

import aio_pika
import aio_pika.exceptions
from aio_pika.abc import AbstractChannel, AbstractConnection

QUEUE = "example.payments"
RETRY_S = 0.2
MISHAPS = 100
WINDOW = 20


class StagedError(Exception):
    """The staged end of a consumer."""


# What a lost connection looks like, depending on who notices it first.
BROKEN = (
    aio_pika.exceptions.AMQPError,
    aio_pika.exceptions.ChannelInvalidStateError,
    ConnectionError,
    StagedError,
)


async def until_done(work: Callable[[AbstractConnection], Awaitable[None]], url: str) -> int:
    """Do the work, over a new connection whenever one breaks; returns how often one broke."""
    for broken in range(MISHAPS):
        try:
            async with await aio_pika.connect(url) as connection:
                await work(connection)
                return broken
        except aio_pika.exceptions.PublishError:
            raise  # unroutable: no mishap but a mistake
        except BROKEN:
            await asyncio.sleep(RETRY_S)
    raise ConnectionError(f"{MISHAPS} connections broke or were refused")


class Publisher:
    """Keeps a payment in its outbox until it is confirmed."""

    def __init__(self, payments: dict[str, int]) -> None:
        self._outbox = dict(payments)
        self._confirms_to_lose = {"payment-10", "payment-20"} & payments.keys()
        self.published = 0

    async def publish(self, connection: AbstractConnection) -> None:
        """Publish what is not confirmed yet, some at a time."""
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        await channel.declare_queue(QUEUE, durable=True)
        while self._outbox:
            some = list(self._outbox)[:WINDOW]
            await asyncio.gather(*(self._publish_one(channel, each) for each in some))

    async def _publish_one(self, channel: AbstractChannel, message_id: str) -> None:
        message = aio_pika.Message(
            b"%d" % self._outbox[message_id],
            message_id=message_id,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        await channel.default_exchange.publish(message, QUEUE, mandatory=True)
        self.published += 1
        if self.published % 50 == 0:
            print(f"published {self.published}", flush=True)
        if message_id in self._confirms_to_lose:
            self._confirms_to_lose.discard(message_id)
            return  # staged: this confirm never came, so the payment stays in the outbox
        del self._outbox[message_id]


class Consumer:
    """Books payments; its database knows which it has booked."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._crash_at = {expected // 3, expected // 2}
        self.deliveries = 0
        self.duplicates = 0
        self._database = sqlite3.connect(":memory:")  # a file, in real life
        self._database.execute("CREATE TABLE booked (message_id TEXT PRIMARY KEY, amount INTEGER)")

    async def consume(self, connection: AbstractConnection) -> None:
        """Book until all payments are booked and the queue is empty."""
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=WINDOW)
        queue = await channel.declare_queue(QUEUE, durable=True)
        while self.booked < self._expected or queue.declaration_result.message_count:
            try:
                await self._consume_some(queue)
            except TimeoutError:
                queue = await channel.declare_queue(QUEUE, durable=True)

    async def _consume_some(self, queue: aio_pika.abc.AbstractQueue) -> None:
        async with queue.iterator(timeout=0.3) as messages:
            async for message in messages:
                self.deliveries += 1
                self._book(message.message_id or "", int(message.body))
                if self.booked in self._crash_at:
                    self._crash_at.discard(self.booked)
                    raise StagedError  # staged: booked, but not acknowledged
                await message.ack()
                if self.deliveries % 50 == 0:
                    print(f"consumed {self.deliveries}", flush=True)

    def _book(self, message_id: str, amount: int) -> None:
        with self._database:  # one transaction for the work and the note that it is done
            row = (message_id, amount)
            done = self._database.execute("INSERT OR IGNORE INTO booked VALUES (?, ?)", row)
        self.duplicates += not done.rowcount

    @property
    def booked(self) -> int:
        """How many payments are booked."""
        return int(self._database.execute("SELECT count(*) FROM booked").fetchone()[0])

    @property
    def total(self) -> int:
        """The sum of what is booked."""
        return int(self._database.execute("SELECT sum(amount) FROM booked").fetchone()[0])


async def tidy(connection: AbstractConnection) -> None:
    """Leave nothing behind."""
    await (await connection.channel()).queue_delete(QUEUE)


async def main() -> None:
    """Publish payments, consume them, and compare the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--count", type=int, default=200, help="how many payments")
    args = parser.parse_args()
    payments = {f"payment-{number}": number for number in range(1, args.count + 1)}
    publisher = Publisher(payments)
    broken = await until_done(publisher.publish, args.url)
    print(f"all confirmed after {publisher.published} publishes, {broken} connections broke")

    consumer = Consumer(len(payments))
    broken = await until_done(consumer.consume, args.url)
    print(f"{consumer.deliveries} deliveries, {broken} connections broke")
    print(f"{consumer.duplicates} were known already, {consumer.booked} were booked")
    print(f"the sum is {consumer.total} of {sum(payments.values())}")
    await until_done(tidy, args.url)


if __name__ == "__main__":
    asyncio.run(main())
