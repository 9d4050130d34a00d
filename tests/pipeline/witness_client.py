"""One client of the witness campaign: publishes or consumes until told to stop, and writes it down.

    python -m tests.pipeline.witness_client publish-bulk --url U --queue Q --witness DIR --name p1

It ends when its standard input does. A broker that goes away is waited for; what was on its way
then is left as it is: nobody knows, and the witness says no more than it knows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable

import aio_pika

from vouchmq.kit.bulk import BulkChannel, BulkConnection, BulkError, encode_properties
from vouchmq.kit.witness import Witness

RUN = 300
PAUSE_S = 0.05
RETRY_S = 0.1
PREFETCH = 400
ACK_RUN = 150
AT_ONCE = 20
GIVES_BACK = 0.02
TIMEOUT_S = 5.0
IDLE_S = 3.0

is_over = threading.Event()


def publish_bulk(url: str, queue: str, witness: Witness, name: str) -> None:
    """Runs of mandatory, persistent messages in a window."""
    number = 0
    while not is_over.is_set():
        try:
            with BulkConnection.open(url, read_timeout_s=TIMEOUT_S, name=name) as connection:
                channel = connection.channel()
                channel.confirm_select()
                while not is_over.wait(PAUSE_S):
                    ids = [f"{name}:{each}" for each in range(number, number + RUN)]
                    number += RUN
                    rows = [("", queue, _properties(each), each.encode() * 9) for each in ids]
                    channel.publish_many(
                        rows, mandatory=True, timeout_s=TIMEOUT_S, watch=witness.watch()
                    )
        except BulkError:
            is_over.wait(RETRY_S)


def consume_bulk(url: str, queue: str, witness: Witness, name: str) -> None:
    """Acks by runs, and now and then gives a run back."""
    chance = random.Random(name)
    while not is_over.is_set():
        try:
            with BulkConnection.open(url, read_timeout_s=TIMEOUT_S, name=name) as connection:
                channel = connection.channel()
                channel.qos(PREFETCH)
                channel.consume(queue)
                while not is_over.is_set():
                    settle(channel, queue, witness, gives_back=chance.random() < GIVES_BACK)
        except BulkError:
            is_over.wait(RETRY_S)


def settle(channel: BulkChannel, queue: str, witness: Witness, *, gives_back: bool) -> None:
    """Take a run, write it down, and then settle it."""
    taken = channel.wait(ACK_RUN, 0.1)
    if not taken:
        return
    ids = witness.took(taken, queue)
    if gives_back:
        channel.nack(taken[-1][0], multiple=True, requeue=True)
        witness.rejected(ids, queue)
        return
    channel.ack(taken[-1][0], multiple=True)
    witness.acked(ids, queue)


def publish_aio(url: str, queue: str, witness: Witness, name: str) -> None:
    """Every message waits for its own confirm, some at once, with aio-pika."""
    asyncio.run(_publish_aio(url, queue, witness, name))


async def _publish_aio(url: str, queue: str, witness: Witness, name: str) -> None:
    number = 0
    while not is_over.is_set():
        try:
            async with connected(url) as connection:
                # Else aio-pika takes a message that came back for one that was confirmed.
                channel = await connection.channel(on_return_raises=True)
                while not is_over.is_set():
                    one_by_one = [
                        _publish_one(channel, queue, witness, f"{name}:{each}")
                        for each in range(number, number + AT_ONCE)
                    ]
                    number += AT_ONCE
                    ended = await asyncio.wait_for(
                        asyncio.gather(*one_by_one, return_exceptions=True), TIMEOUT_S
                    )
                    failed = [each for each in ended if is_loss(each)]
                    if failed:
                        raise ConnectionError(failed)
                    await asyncio.sleep(PAUSE_S)
        except (OSError, aio_pika.exceptions.AMQPError, RuntimeError, asyncio.CancelledError):
            await asyncio.sleep(RETRY_S)


def is_loss(ended: BaseException | None) -> bool:
    """Whether a publish ended by more than a word of the broker's about this message."""
    return ended is not None and not isinstance(ended, aio_pika.exceptions.DeliveryError)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[aio_pika.abc.AbstractConnection]:
    """A connection that is given up when it does not even close in time."""
    connection = await aio_pika.connect(url, timeout=TIMEOUT_S)
    try:
        yield connection
    finally:
        await asyncio.wait_for(connection.close(), TIMEOUT_S)


async def _publish_one(
    channel: aio_pika.abc.AbstractChannel, queue: str, witness: Witness, message_id: str
) -> None:
    message = aio_pika.Message(
        message_id.encode() * 9,
        message_id=message_id,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
    with witness.publishing(message_id, queue):
        await channel.default_exchange.publish(message, queue, mandatory=True)


def consume_aio(url: str, queue: str, witness: Witness, name: str) -> None:
    """An ack for each message, with aio-pika."""
    asyncio.run(_consume_aio(url, queue, witness))


async def _consume_aio(url: str, queue: str, witness: Witness) -> None:
    while not is_over.is_set():
        try:
            async with connected(url) as connection:
                channel = await connection.channel()
                await channel.set_qos(prefetch_count=50)
                source = await channel.get_queue(queue, ensure=False)
                await _take(source, queue, witness)
        except (OSError, aio_pika.exceptions.AMQPError, RuntimeError, asyncio.CancelledError):
            await asyncio.sleep(RETRY_S)


async def _take(source: aio_pika.abc.AbstractQueue, queue: str, witness: Witness) -> None:
    last = time.monotonic()

    async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        nonlocal last
        last = time.monotonic()
        witness.seen(message, queue)
        await message.ack()
        witness.acked([message.message_id or ""], queue)

    tag = await source.consume(on_message)
    # Nothing tells a consumer of aio-pika that its connection is gone: after a while without any
    # message it begins again.
    while not is_over.is_set() and time.monotonic() - last < IDLE_S:  # noqa: ASYNC110 - a thread's
        await asyncio.sleep(0.05)
    if is_over.is_set():
        await source.cancel(tag)
        await asyncio.sleep(0.1)


def _properties(message_id: str) -> bytes:
    return encode_properties({"delivery_mode": 2, "message_id": message_id})


ROLES: dict[str, Callable[[str, str, Witness, str], None]] = {
    "publish-bulk": publish_bulk,
    "publish-aio": publish_aio,
    "consume-bulk": consume_bulk,
    "consume-aio": consume_aio,
}


def _watch_input() -> None:
    sys.stdin.read()
    is_over.set()
    # A client that hangs on a dead connection has said all it knows.
    time.sleep(3 * TIMEOUT_S)
    sys.stderr.write("still busy long after the end\n")


def main() -> int:
    """Run one client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=ROLES)
    for name in ("--url", "--queue", "--witness", "--name"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    # aiormq reports every attempt to reach a broker that is down.
    logging.disable()
    threading.Thread(target=_watch_input, daemon=True).start()
    with Witness(given.witness, given.name) as witness:
        ROLES[given.role](given.url, given.queue, witness, given.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
