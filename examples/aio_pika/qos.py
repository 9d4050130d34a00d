"""Two limits at once: each consumer may hold 3 unacknowledged messages, the channel 5."""

from __future__ import annotations

import argparse
import asyncio

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

PER_CONSUMER = 3
PER_CHANNEL = 5


class Consumers:
    """Two consumers on one channel, which note what they hold."""

    def __init__(self) -> None:
        self.held: dict[str, list[AbstractIncomingMessage]] = {}
        self.most_held = 0
        self.received = 0

    async def consume(self, name: str, queue: AbstractQueue) -> None:
        """Start a consumer that acknowledges nothing by itself."""
        self.held[name] = []

        async def note(message: AbstractIncomingMessage) -> None:
            self.held[name].append(message)
            self.received += 1
            self.most_held = max(self.most_held, sum(map(len, self.held.values())))

        await queue.consume(note)

    async def acknowledge_oldest(self) -> None:
        """Acknowledge one message, which lets the window slide by one."""
        oldest = min(
            (held for held in self.held.values() if held),
            key=lambda held: held[0].delivery_tag or 0,
        )
        await oldest.pop(0).ack()


async def main() -> None:
    """Consume 1 to 10 and 11 to 20 side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    async with await aio_pika.connect(args.url) as connection:
        channel = await connection.channel()
        queues = [await channel.declare_queue("", exclusive=True) for _ in range(2)]
        for number in range(1, 21):
            message = aio_pika.Message(b"%d" % number)
            await channel.default_exchange.publish(message, queues[number > 10].name)
        # In this order: RabbitMQ forgets the channel's limit when the consumers' one comes later.
        await channel.set_qos(prefetch_count=PER_CONSUMER, global_=False)
        await channel.set_qos(prefetch_count=PER_CHANNEL, global_=True)
        consumers = Consumers()
        for name, queue in zip(("first", "second"), queues, strict=True):
            await consumers.consume(name, queue)
            await asyncio.sleep(0.5)
        for name, held in consumers.held.items():
            print(f"{name} consumer holds", *[message.body.decode() for message in held])
        while any(consumers.held.values()):
            await consumers.acknowledge_oldest()
            await asyncio.sleep(0.02)
        print(f"received {consumers.received}, never more than {consumers.most_held} at once")


if __name__ == "__main__":
    asyncio.run(main())
