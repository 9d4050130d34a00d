"""The kit when a channel or the connection ends: what is dropped, what comes back, who is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aio_pika
import pytest
import pytest_asyncio

from tests.conftest import Names
from tests.integration.broker_process import BrokerProcess
from tests.integration.kit_tap import Tap, until
from tests.waiting import LIMIT_S, wait_until
from vouchmq.kit import (
    Connection,
    IllegalStateError,
    KitError,
    Message,
    TransactionRolledBackError,
    connect,
)

pytestmark = [pytest.mark.asyncio]


def acked(broker: BrokerProcess, queue: str) -> object:
    """How many messages of a queue have been acked."""
    [row] = [row for row in broker.listed("queues") if row["name"] == queue]
    return row["acked"]


@pytest_asyncio.fixture
async def tap(url: str) -> AsyncIterator[Tap]:
    """What the kit's connection goes through, and can be cut."""
    made = await Tap.start(url)
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def kit(tap: Tap) -> AsyncIterator[Connection]:
    """A connection that comes back soon."""
    async with await connect(
        tap.url, prefetch=10, redelivery=None, reconnect_interval=0.1
    ) as connection:
        yield connection


@pytest_asyncio.fixture
async def direct(url: str) -> AsyncIterator[Connection]:
    """Another connection, which is not cut."""
    async with await connect(url, redelivery=None) as connection:
        yield connection


async def test_a_listener_goes_on_after_a_cut(
    kit: Connection, direct: Connection, tap: Tap, names: Names
) -> None:
    """REDELIVER-51: the ack of a message of the old channel is dropped, and it comes again."""
    queue = await direct.declare(names())
    await direct.publish(b"first", queue)
    seen: list[tuple[str, bool]] = []
    second = asyncio.Event()

    async def listener(message: Message) -> None:
        seen.append((message.body.decode(), message.redelivered))
        if len(seen) == 1:
            tap.cut()
            tap.clear()
            await asyncio.sleep(0.5)
        if message.body == b"second":
            second.set()

    receiver = await kit.receiver("auto")
    await receiver.listen(queue, listener)
    await until(lambda: len(seen) == 2)
    await direct.publish(b"second", queue)
    async with asyncio.timeout(LIMIT_S):
        await second.wait()
    await until(lambda: len(tap.settlements()) == 3)
    assert seen == [("first", False), ("first", True), ("second", False)]
    assert tap.settlements() == ["qos 10", "ack 1", "ack 2"]
    assert tap.connection_count == 2


@pytest.mark.parametrize("mode", ["individual", "client"])
async def test_old_messages_cannot_be_settled(
    kit: Connection, direct: Connection, tap: Tap, names: Names, mode: str
) -> None:
    """REDELIVER-51: nor do their tags hit messages of the new channel."""
    queue = await direct.declare(names())
    for number in range(3):
        await direct.publish(str(number), queue)
    receiver = await kit.receiver(mode)
    old = [await receiver.receive(LIMIT_S, queue=queue) for _ in range(3)]
    tap.cut()
    tap.clear()
    again = await receiver.receive(LIMIT_S)
    assert again is not None
    assert (again.body, again.tag, again.redelivered) == (b"0", 1, True)
    for message in old:
        assert message is not None
        await message.acknowledge()
        await message.reject()
    await asyncio.sleep(0.1)
    assert [text for text in tap.settlements() if not text.startswith("qos")] == []
    await again.acknowledge()
    await receiver.close()
    puller = await direct.receiver("auto", prefetch=0)
    left = [await puller.receive(LIMIT_S, queue=queue) for _ in range(2)]
    assert [message.body for message in left if message] == [b"1", b"2"]


async def test_a_lost_transaction_is_told(
    kit: Connection, direct: Connection, tap: Tap, names: Names
) -> None:
    """TX-12: a commit may not look as if it had held what was before the cut."""
    queue, answers = await direct.declare(names()), await direct.declare(names("answers"))
    await direct.publish(b"work", queue)
    receiver = await kit.receiver("transacted")
    assert await receiver.receive(LIMIT_S, queue=queue) is not None
    await receiver.publish(b"answer", answers)
    tap.cut()
    again = await receiver.receive(LIMIT_S)
    assert again is not None
    with pytest.raises(TransactionRolledBackError, match="the channel was lost"):
        await receiver.commit()
    await receiver.rollback()
    again = await receiver.receive(LIMIT_S)
    assert again is not None
    await receiver.publish(b"answer", answers)
    await receiver.commit()
    puller = await direct.receiver("auto", prefetch=0)
    assert await puller.receive(LIMIT_S, queue=answers) is not None
    assert await puller.receive(0.1) is None


async def test_a_subscription_is_made_again(kit: Connection, direct: Connection, tap: Tap) -> None:
    receiver = await kit.receiver("dups_ok")
    first = await receiver.subscribe("amq.topic", "kit.again")
    tap.cut()
    message: Message | None = None
    async with asyncio.timeout(LIMIT_S):
        while message is None:
            try:
                await direct.publish(b"news", "kit.again", exchange="amq.topic")
            except aio_pika.exceptions.DeliveryError:
                await asyncio.sleep(0.05)
            message = await receiver.receive(0.1)
    assert message.queue != first


async def test_pulling_goes_on_after_a_cut(
    kit: Connection, direct: Connection, tap: Tap, names: Names
) -> None:
    queue = await direct.declare(names())
    receiver = await kit.receiver("individual", prefetch=0)
    assert await receiver.receive(0, queue=queue) is None
    waiting = asyncio.create_task(receiver.receive(LIMIT_S))
    await asyncio.sleep(0.1)
    tap.cut()
    await direct.publish(b"late", queue)
    message = await waiting
    assert message is not None
    assert message.body == b"late"
    await message.acknowledge()


async def test_publishing_goes_on_after_a_cut(
    kit: Connection, direct: Connection, tap: Tap, names: Names
) -> None:
    queue = await direct.declare(names())
    await kit.publish(b"before", queue)
    tap.cut()
    await asyncio.sleep(0.05)
    async with asyncio.timeout(LIMIT_S):
        await kit.publish(b"after", queue)


async def test_a_channel_that_the_broker_closes_is_replaced(
    kit: Connection, direct: Connection, names: Names
) -> None:
    """By a mistake on the same channel, here a publish to an exchange that there is not."""
    queue = await direct.declare(names())
    receiver = await kit.receiver("transacted")
    assert await receiver.receive(0, queue=queue) is None
    await receiver.publish(b"lost", "key", exchange="no such exchange")
    await asyncio.sleep(0.5)
    with pytest.raises(TransactionRolledBackError):
        await receiver.commit()
    await direct.publish(b"work", queue)
    assert await receiver.receive(LIMIT_S) is not None
    await receiver.commit()


async def test_a_deleted_queue_ends_its_receiver(
    kit: Connection, direct: Connection, names: Names, url: str
) -> None:
    """CONS-40."""
    queue = await direct.declare(names())
    receiver = await kit.receiver("auto")
    await receiver.listen(queue, print)
    async with await aio_pika.connect(url) as other:
        await (await other.channel()).queue_delete(queue)
    with pytest.raises(KitError, match="the broker ended the consumption of queue"):
        async with asyncio.timeout(LIMIT_S):
            await receiver.wait_closed()
    with pytest.raises(KitError, match="ended the consumption"):
        await receiver.listen(queue, print)


async def test_whoever_waits_is_told_of_the_end(
    kit: Connection, direct: Connection, names: Names
) -> None:
    queue = await direct.declare(names())
    receiver = await kit.receiver("auto")
    waiting = asyncio.create_task(receiver.receive(queue=queue))
    await asyncio.sleep(0.2)
    await kit.close()
    assert await waiting is None
    with pytest.raises(IllegalStateError, match="closed"):
        await kit.receiver("auto")


async def test_nobody_there_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError):
        await connect("amqp://guest:guest@127.0.0.1:1/")


async def test_a_restarted_broker_is_found_again(own_broker: BrokerProcess) -> None:
    seen: list[str] = []
    complete = asyncio.Event()
    async with await connect(own_broker.url, redelivery=None, reconnect_interval=0.1) as kit:
        queue = await kit.declare("survivor")
        receiver = await kit.receiver("auto", optimize_ack=True)

        async def listener(message: Message) -> None:
            seen.append(message.body.decode())
            if message.body == b"after":
                complete.set()

        await receiver.listen(queue, listener)
        await kit.publish(b"before", queue)
        await until(lambda: seen == ["before"])
        # The ack goes within 0.3 seconds; once the broker counts it, it is in the journal.
        await asyncio.to_thread(wait_until, lambda: acked(own_broker, "survivor") == 1)
        await asyncio.to_thread(own_broker.restart)
        async with asyncio.timeout(LIMIT_S):
            await kit.publish(b"after", queue)
            await complete.wait()
    assert seen == ["before", "after"]
