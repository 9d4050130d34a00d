"""A priority queue hands out what is most important first, and equals in the order they came."""

from __future__ import annotations

import argparse
import asyncio

import aio_pika


async def main() -> None:
    """Publish with priorities in disorder and get them in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    async with await aio_pika.connect(args.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("", exclusive=True, arguments={"x-max-priority": 5})
        # None counts as 0, and 9 as the queue's highest, 5.
        for number, priority in enumerate((None, 1, 5, 9, 0, 3, 5)):
            message = aio_pika.Message(b"message %d" % number, priority=priority)
            await channel.default_exchange.publish(message, queue.name)
        while (got := await queue.get(no_ack=True, fail=False)) is not None:
            print(f"{got.body.decode()} with priority {got.priority}")


if __name__ == "__main__":
    asyncio.run(main())
