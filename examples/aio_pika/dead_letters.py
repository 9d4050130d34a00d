"""What a queue drops goes to its dead-letter exchange, with a note of where and why it died."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, cast

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

EXCHANGE = "example.dead"


def show(message: AbstractIncomingMessage) -> None:
    """Print the newest entry of a message's history."""
    death = cast("list[dict[str, Any]]", message.headers["x-death"])[0]
    original = death.get("original-expiration")
    print(
        f"{message.body.decode()}: {death['reason']} in {death['queue']}, count {death['count']},"
        f" published with key {death['routing-keys'][0]}"
        + (f", had expiration {original}, has {message.expiration}" if original else "")
    )


async def main() -> None:
    """Let messages die by the queue's length, by a consumer's reject and by age."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    async with await aio_pika.connect(args.url) as connection:
        channel = await connection.channel()
        publish = channel.default_exchange.publish
        exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.DIRECT)
        work = await channel.declare_queue(
            "example.work",
            exclusive=True,
            arguments={
                "x-dead-letter-exchange": EXCHANGE,
                "x-dead-letter-routing-key": "dead",  # without it the message keeps its own key
                "x-max-length": 2,
            },
        )
        dead = await channel.declare_queue("", exclusive=True)
        await dead.bind(exchange, "dead")

        for body in (b"one", b"two", b"three"):
            # The queue has room for two: "one" must go.
            await publish(aio_pika.Message(body), work.name)
        rejected = await work.get()
        await rejected.reject(requeue=False)
        done = await work.get()
        await done.ack()
        print(f"rejected {rejected.body.decode()}, acknowledged {done.body.decode()}")
        await publish(aio_pika.Message(b"four", expiration=0.05), work.name)

        shown = 0
        async with dead.iterator(no_ack=True, timeout=5) as dead_letters:
            async for dead_letter in dead_letters:
                show(dead_letter)
                shown += 1
                if shown == 3:
                    break
        await exchange.delete()


if __name__ == "__main__":
    asyncio.run(main())
