"""An alternate exchange takes what its exchange cannot route; nothing is lost or returned."""

from __future__ import annotations

import argparse
import asyncio

import aio_pika
import aio_pika.exceptions

ORDERS = "example.orders"
UNROUTED = "example.orders.unrouted"


async def main() -> None:
    """Route two countries, and look at what became of the order from a third."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    async with await aio_pika.connect(args.url) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        alternate = await channel.declare_exchange(UNROUTED, aio_pika.ExchangeType.FANOUT)
        orders = await channel.declare_exchange(
            ORDERS, aio_pika.ExchangeType.DIRECT, arguments={"alternate-exchange": UNROUTED}
        )
        routed = await channel.declare_queue("", exclusive=True)
        unrouted = await channel.declare_queue("", exclusive=True)
        await unrouted.bind(alternate)
        for country in ("de", "fr"):
            await routed.bind(orders, country)

        for country in ("de", "fr", "it"):
            # Mandatory, yet none comes back: the alternate exchange found a queue for the third.
            await orders.publish(aio_pika.Message(b"an order"), country, mandatory=True)
        for name, queue in (("routed", routed), ("unrouted", unrouted)):
            while (got := await queue.get(no_ack=True, fail=False)) is not None:
                print(f"{name}: key={got.routing_key} exchange={got.exchange}")

        await unrouted.delete()
        try:
            await orders.publish(aio_pika.Message(b"an order"), "it", mandatory=True)
        except aio_pika.exceptions.PublishError as error:
            print("no queue behind it:", error)
        await orders.delete()
        await alternate.delete()


if __name__ == "__main__":
    asyncio.run(main())
