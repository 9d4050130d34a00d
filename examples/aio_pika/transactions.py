"""Transactions: publishes and acknowledgements that take effect together, or not at all."""

from __future__ import annotations

import argparse
import asyncio

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractQueue


async def count(channel: AbstractChannel, queue: AbstractQueue) -> int | None:
    """How many messages the queue has ready."""
    declared = await channel.declare_queue(queue.name, passive=True)
    return declared.declaration_result.message_count


async def main() -> None:
    """Commit, roll back, and move a message from one queue to another in one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    async with await aio_pika.connect(args.url) as connection:
        # A channel confirms or is transactional, never both.
        channel = await connection.channel(publisher_confirms=False)
        publish = channel.default_exchange.publish
        source = await channel.declare_queue("", exclusive=True)
        target = await channel.declare_queue("", exclusive=True)
        transaction = channel.transaction()
        await transaction.select()

        for number in range(3):
            await publish(aio_pika.Message(b"%d" % number), source.name)
        print(f"published, not committed: {await count(channel, source)} ready")
        await transaction.commit()
        print(f"committed: {await count(channel, source)} ready")

        await publish(aio_pika.Message(b"never seen"), source.name)
        await transaction.rollback()
        await transaction.commit()
        print(f"rolled back: {await count(channel, source)} ready")

        message = await source.get()
        await message.ack()
        await publish(aio_pika.Message(message.body), target.name)
        await transaction.rollback()
        print(f"move rolled back: {await count(channel, target)} in the target")

        # The acknowledgement is undone as well: the message is ours still and the tag is good.
        # (The message object thinks that it is done, so the channel below it is asked.)
        underlay = await channel.get_underlay_channel()
        await underlay.basic_ack(message.delivery_tag or 0)
        await publish(aio_pika.Message(message.body), target.name)
        await transaction.commit()
        left = await count(channel, source)
        print(f"moved: {left} left, {await count(channel, target)} in the target")


if __name__ == "__main__":
    asyncio.run(main())
