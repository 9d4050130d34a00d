"""Orders that are not paid within half an hour are cancelled, by a delay queue.

Nobody consumes the delay queue. Its messages expire after the delay and are dead-lettered to the
queue of the checker, who looks then whether the order has been paid.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import aio_pika

CHECKS = "example.order-checks"
HALF_AN_HOUR_MS = 30 * 60 * 1000


async def main() -> None:
    """Place three orders, pay one, and wait until the others are due."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--delay-ms", type=int, default=HALF_AN_HOUR_MS, help="time to pay")
    args = parser.parse_args()
    async with await aio_pika.connect(args.url) as connection:
        channel = await connection.channel()
        checks = await channel.declare_exchange(CHECKS, aio_pika.ExchangeType.DIRECT)
        due = await channel.declare_queue("", exclusive=True)
        await due.bind(checks, "due")
        delay = await channel.declare_queue(
            "",
            exclusive=True,
            arguments={
                "x-message-ttl": args.delay_ms,
                "x-dead-letter-exchange": CHECKS,
                "x-dead-letter-routing-key": "due",
            },
        )

        placed: dict[str | None, float] = {}
        for order in ("order-1", "order-2", "order-3"):
            placed[order] = time.monotonic()
            message = aio_pika.Message(
                b"pay me", message_id=order, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
            )
            await channel.default_exchange.publish(message, delay.name, mandatory=True)
        paid = {"order-2"}
        print(f"placed {len(placed)} orders, paid {', '.join(paid)}")

        async with due.iterator() as checked:
            async for message_due in checked:
                async with message_due.process():
                    waited_ms = 1000 * (time.monotonic() - placed.pop(message_due.message_id))
                    verdict = "was paid" if message_due.message_id in paid else "is cancelled"
                    print(f"{message_due.message_id} {verdict} after {waited_ms:.0f} ms")
                if not placed:
                    break
        await checks.delete()


if __name__ == "__main__":
    asyncio.run(main())
