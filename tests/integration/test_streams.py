"""Streams through pika and aio-pika, over `kill -9` and restarts (STREAM)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal

import aio_pika
import pytest

from tests.integration.moving import blocking
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pamqp.common import FieldTable
    from pika import BasicProperties
    from pika.adapters.blocking_connection import BlockingChannel
    from pika.spec import Basic

    from tests.integration.broker_process import BrokerProcess


STREAM: FieldTable = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 20_000}
COUNT = 150


def append(channel: BlockingChannel, first: int, count: int) -> None:
    """Publish transient messages, each confirmed."""
    for number in range(first, first + count):
        channel.basic_publish("", "log", b"%d" % number)


def read(broker: BrokerProcess, start: object, count: int) -> list[tuple[int, bytes]]:
    """Offsets and bodies from there on."""
    seen: list[tuple[int, bytes]] = []
    with blocking(broker) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=50)

        def on_message(
            on: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
        ) -> None:
            assert not method.redelivered
            seen.append((properties.headers["x-stream-offset"], body))
            on.basic_ack(method.delivery_tag)

        channel.basic_consume("log", on_message, arguments={"x-stream-offset": start})
        deadline = time.monotonic() + LIMIT_S
        while len(seen) < count:
            assert time.monotonic() < deadline, f"{len(seen)} of {count} came"
            connection.process_data_events(time_limit=1)
    return seen[:count]


@pytest.mark.parametrize("how", ["kill9", "stop"])
def test_offsets_go_on_over_restarts(
    own_broker: BrokerProcess, how: Literal["kill9", "stop"]
) -> None:
    """STREAM-02, STREAM-03: what was confirmed has its offset for good."""
    published = 0
    for life in range(3):
        with blocking(own_broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            answer = channel.queue_declare("log", durable=True, arguments=STREAM)
            assert answer.method.message_count == published
            append(channel, published, COUNT)
            published += COUNT
            if how == "kill9":
                own_broker.kill9()
        if how == "stop":
            assert own_broker.stop() == 0, own_broker.output()
        own_broker.start()
        expected = [(number, b"%d" % number) for number in range(published)]
        assert read(own_broker, "first", published) == expected
        assert read(own_broker, COUNT * life + 7, 20) == expected[COUNT * life + 7 :][:20]
        assert read(own_broker, -5, 5) == expected[-5:]


def test_retention_over_a_kill(own_broker: BrokerProcess) -> None:
    """STREAM-21: what is left after a restart is what was left before, or a little more."""
    arguments = {**STREAM, "x-max-length": 100}
    with blocking(own_broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("log", durable=True, arguments=arguments)
        for number in range(COUNT):
            channel.basic_publish("", "log", b"%d".ljust(1000) % number)
        before = channel.queue_declare("log", passive=True).method.message_count
        own_broker.kill9()
    own_broker.start()
    first = read(own_broker, "first", 1)[0]
    assert COUNT - 130 <= first[0] <= COUNT - before
    assert first == (first[0], b"%d".ljust(1000) % first[0])
    assert read(own_broker, "last", 1)[0][0] >= first[0]


async def test_two_readers_and_a_publisher_at_once(own_broker: BrokerProcess) -> None:
    """aio-pika: each reader gets all of it in order, one from memory, one from disk."""
    connection = await aio_pika.connect(own_broker.url)
    async with connection:
        publisher = await connection.channel()
        queue = await publisher.declare_queue("log", durable=True, arguments=STREAM)
        seen: dict[str, list[int]] = {"early": [], "late": []}

        async def follow(who: str) -> None:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=20)
            source = await channel.get_queue("log")
            started.set()
            async with source.iterator(arguments={"x-stream-offset": "first"}) as messages:
                async for message in messages:
                    seen[who].append(int(message.body))
                    await message.ack()
                    if len(seen[who]) == COUNT:
                        return

        started = asyncio.Event()
        early = asyncio.create_task(follow("early"))
        await started.wait()
        for number in range(COUNT):
            await publisher.default_exchange.publish(
                aio_pika.Message(b"%d" % number), routing_key=queue.name
            )
        await asyncio.wait_for(asyncio.gather(early, follow("late")), 30)
    assert seen == {"early": list(range(COUNT)), "late": list(range(COUNT))}
