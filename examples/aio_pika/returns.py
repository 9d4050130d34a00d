"""Unroutable messages come back to their publisher when they are published as mandatory.

The return comes before the confirm, so that the publisher knows what became of its message when it
is confirmed. A publish ends with an error then, or a listener is called; that is for the channel
to choose. aio-pika tells of returns on channels with confirms only.
"""

from __future__ import annotations

import argparse
import asyncio

import aio_pika
import aio_pika.exceptions
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage


def report(_channel: AbstractChannel | None, message: AbstractIncomingMessage) -> None:
    """What a listener is called with is the message, as it would have been delivered."""
    print(f"listener heard {message.body.decode()}: key={message.routing_key}")


async def with_a_listener(connection: AbstractConnection, queue_name: str) -> None:
    """A listener is called for what comes back, and the publish is no error."""
    channel = await connection.channel(publisher_confirms=True, on_return_raises=False)
    channel.return_callbacks.add(report)
    publish = channel.default_exchange.publish
    await publish(aio_pika.Message(b"first"), queue_name, mandatory=True)
    await publish(aio_pika.Message(b"second"), "nobody.listens", mandatory=True)
    await publish(aio_pika.Message(b"third"), "nobody.listens", mandatory=False)
    queue = await channel.get_queue(queue_name)
    stored = await queue.get(no_ack=True)
    print(f"stored {stored.body.decode()}, the third is nowhere")


async def with_errors(connection: AbstractConnection, queue_name: str) -> None:
    """Each publish ends with a confirm, or raises what came back."""
    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    for key in (queue_name, "nobody.listens"):
        try:
            await channel.default_exchange.publish(aio_pika.Message(b"fourth"), key)
            print("confirmed and stored")
        except aio_pika.exceptions.PublishError as error:
            print("confirmed and returned:", error)


async def main() -> None:
    """Publish to a queue that exists and to one that does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    async with await aio_pika.connect(args.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("", exclusive=True)
        await with_a_listener(connection, queue.name)
        await with_errors(connection, queue.name)


if __name__ == "__main__":
    asyncio.run(main())
