"""aio-pika: tasks, patterns and robust connections."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aio_pika
import aio_pika.exceptions
import aio_pika.patterns
import aiormq.exceptions
import pamqp.commands
import pytest
import pytest_asyncio
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage

from tests.conftest import Names
from tests.integration.broker_process import BrokerProcess
from tests.integration.samples import BODY_SIZES, FLOATS, HEADERS, body_of
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.asyncio

PERSISTENT = aio_pika.DeliveryMode.PERSISTENT


@pytest_asyncio.fixture
async def connection(url: str) -> AsyncIterator[AbstractConnection]:
    """One plain (not robust) connection."""
    opened = await aio_pika.connect(url, timeout=LIMIT_S)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def channel(connection: AbstractConnection) -> AbstractChannel:
    """A channel with publisher confirms, aio-pika's default."""
    return await connection.channel(on_return_raises=True)


def message(body: bytes, **properties: object) -> aio_pika.Message:
    """A persistent message."""
    return aio_pika.Message(body, delivery_mode=PERSISTENT, **properties)  # type: ignore[arg-type]


async def test_confirms_one_by_one(channel: AbstractChannel, names: Names) -> None:
    queue = await channel.declare_queue(names(), durable=True)
    for number in range(50):
        confirm = await channel.default_exchange.publish(message(b"%d" % number), queue.name)
        assert type(confirm).__name__ == "Ack"
    assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count
    for number in range(50):
        got = await queue.get(no_ack=True)
        assert (got.body, got.redelivered) == (b"%d" % number, False)


async def test_confirms_in_batches(channel: AbstractChannel, names: Names) -> None:
    queue = await channel.declare_queue(names(), durable=True)
    for first in range(0, 500, 100):
        confirms = await asyncio.gather(
            *(
                channel.default_exchange.publish(message(b"%d" % number), queue.name)
                for number in range(first, first + 100)
            )
        )
        assert {type(confirm).__name__ for confirm in confirms} == {"Ack"}
    again = await channel.declare_queue(queue.name, passive=True)
    assert again.declaration_result.message_count == 500


async def test_confirms_asynchronously(channel: AbstractChannel, names: Names) -> None:
    queue = await channel.declare_queue(names(), durable=True)
    room = asyncio.Semaphore(200)
    confirmed: list[int] = []

    async def publish(number: int) -> None:
        async with room:
            await channel.default_exchange.publish(message(b"%d" % number), queue.name)
            confirmed.append(number)

    await asyncio.gather(*(publish(number) for number in range(1000)))
    assert sorted(confirmed) == list(range(1000))
    seen: list[int] = []
    async with queue.iterator(no_ack=True, timeout=LIMIT_S) as deliveries:
        async for delivery in deliveries:
            seen.append(int(delivery.body))
            if len(seen) == 1000:
                break
    assert seen == list(range(1000))


async def test_mandatory_message_is_returned_and_raises(
    channel: AbstractChannel, names: Names
) -> None:
    missing = names("missing")
    with pytest.raises(aio_pika.exceptions.PublishError) as caught:
        await channel.default_exchange.publish(message(b"back"), missing, mandatory=True)
    returned = caught.value.message
    assert returned is not None
    assert isinstance(returned.delivery, pamqp.commands.Basic.Return)
    assert returned.delivery.reply_code == 312
    assert returned.delivery.routing_key == missing
    assert returned.body == b"back"


async def test_returns_reach_a_callback_when_they_do_not_raise(
    connection: AbstractConnection, names: Names
) -> None:
    channel = await connection.channel()
    returned: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    channel.return_callbacks.add(lambda _, back: returned.put_nowait(back))
    for number in range(3):
        await channel.default_exchange.publish(message(b"%d" % number), names(), mandatory=True)
    backs = [await asyncio.wait_for(returned.get(), LIMIT_S) for _ in range(3)]
    assert [back.body for back in backs] == [b"0", b"1", b"2"]


async def test_nack_and_reject_with_requeue_keep_order(
    channel: AbstractChannel, names: Names
) -> None:
    queue = await channel.declare_queue(names())
    for number in range(1, 6):
        await channel.default_exchange.publish(message(b"%d" % number), queue.name)
    first, second, third = [await queue.get() for _ in range(3)]
    await second.nack(requeue=True)
    await third.reject(requeue=True)
    await first.nack(requeue=True)
    got = [await queue.get() for _ in range(5)]
    assert [(one.body, one.redelivered) for one in got] == [
        (b"1", True),
        (b"2", True),
        (b"3", True),
        (b"4", False),
        (b"5", False),
    ]
    await got[-1].ack(multiple=True)
    with pytest.raises(aio_pika.exceptions.QueueEmpty):
        await queue.get(timeout=LIMIT_S)


async def test_process_context_rejects_what_raised(channel: AbstractChannel, names: Names) -> None:
    queue = await channel.declare_queue(names())
    await channel.default_exchange.publish(message(b"bad"), queue.name)
    first = await queue.get()
    with pytest.raises(RuntimeError):
        async with first.process(requeue=True):
            raise RuntimeError("work failed")
    second = await queue.get()
    assert (second.body, second.redelivered) == (b"bad", True)
    async with second.process():
        pass
    assert await queue.get(fail=False) is None


async def test_prefetch_bounds_the_unacked(channel: AbstractChannel, names: Names) -> None:
    queue = await channel.declare_queue(names())
    for number in range(10):
        await channel.default_exchange.publish(message(b"%d" % number), queue.name)
    await channel.set_qos(prefetch_count=4)
    seen: list[AbstractIncomingMessage] = []

    async def keep(delivery: AbstractIncomingMessage) -> None:
        seen.append(delivery)

    await queue.consume(keep)
    await until(lambda: len(seen) >= 4)
    await asyncio.sleep(0.3)
    assert [int(one.body) for one in seen] == [0, 1, 2, 3]
    await seen[1].ack(multiple=True)
    await until(lambda: len(seen) >= 6)
    await asyncio.sleep(0.3)
    assert [int(one.body) for one in seen] == [0, 1, 2, 3, 4, 5]


async def test_two_consumers_share_the_work(channel: AbstractChannel, names: Names) -> None:
    queue = await channel.declare_queue(names())
    await channel.set_qos(prefetch_count=1)
    taken: dict[str, list[int]] = {"a": [], "b": []}
    done = asyncio.Event()

    async def work(who: str, delivery: AbstractIncomingMessage) -> None:
        taken[who].append(int(delivery.body))
        await delivery.ack()
        if sum(map(len, taken.values())) == 40:
            done.set()

    for who in taken:
        await queue.consume(functools.partial(work, who))
    for number in range(40):
        await channel.default_exchange.publish(message(b"%d" % number), queue.name)
    await asyncio.wait_for(done.wait(), LIMIT_S)
    assert sorted(taken["a"] + taken["b"]) == list(range(40))
    assert min(len(work) for work in taken.values()) >= 5


async def test_transactions_commit_and_roll_back(
    connection: AbstractConnection, names: Names
) -> None:
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue(names(), durable=True)
    async with channel.transaction():
        for number in range(3):
            await channel.default_exchange.publish(message(b"%d" % number), queue.name)
        observed = await channel.declare_queue(queue.name, passive=True)
        assert observed.declaration_result.message_count == 0
    with pytest.raises(ZeroDivisionError):
        async with channel.transaction():
            await channel.default_exchange.publish(message(b"never"), queue.name)
            raise ZeroDivisionError
    got = [await queue.get(no_ack=True) for _ in range(3)]
    assert [one.body for one in got] == [b"0", b"1", b"2"]
    assert await queue.get(fail=False) is None


async def test_rpc_pattern_over_a_reply_queue(connection: AbstractConnection, names: Names) -> None:
    method = names("rpc")

    async def multiply(*, left: int, right: int) -> int:
        return left * right

    async with connection.channel() as server_channel, connection.channel() as client_channel:
        server = await aio_pika.patterns.RPC.create(server_channel)
        await server.register(method, multiply, auto_delete=True)
        client = await aio_pika.patterns.RPC.create(client_channel)
        answers = await asyncio.gather(
            *(client.call(method, {"left": n, "right": 3}) for n in range(10))
        )
        assert answers == [n * 3 for n in range(10)]
        await client.close()
        await server.unregister(multiply)
        await server.close()


async def test_rpc_over_an_exclusive_reply_queue(
    connection: AbstractConnection, names: Names
) -> None:
    client, server = await connection.channel(), await connection.channel()
    requests = await server.declare_queue(names("rpc"))
    replies = await client.declare_queue(exclusive=True)

    async def answer(request: AbstractIncomingMessage) -> None:
        async with request.process():
            assert request.reply_to is not None
            reply = aio_pika.Message(request.body * 2, correlation_id=request.correlation_id)
            await server.default_exchange.publish(reply, request.reply_to)

    await requests.consume(answer)
    for number in range(5):
        request = aio_pika.Message(
            b"%d" % number, reply_to=replies.name, correlation_id=str(number)
        )
        await client.default_exchange.publish(request, requests.name)
    async with replies.iterator(no_ack=True, timeout=LIMIT_S) as deliveries:
        got = [await anext(deliveries) for _ in range(5)]
    assert [(one.correlation_id, one.body) for one in got] == [
        (str(number), b"%d%d" % (number, number)) for number in range(5)
    ]


async def test_rpc_over_direct_reply_to(connection: AbstractConnection, names: Names) -> None:
    client, server = await connection.channel(), await connection.channel()
    requests = await server.declare_queue(names("rpc"))

    async def answer(request: AbstractIncomingMessage) -> None:
        async with request.process():
            assert request.reply_to is not None
            reply = aio_pika.Message(request.body * 2, correlation_id=request.correlation_id)
            await server.default_exchange.publish(reply, request.reply_to)

    await requests.consume(answer)
    replies: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    pseudo_queue = await client.get_queue("amq.rabbitmq.reply-to", ensure=False)
    await pseudo_queue.consume(replies.put, no_ack=True)
    for number in range(5):
        request = aio_pika.Message(
            b"%d" % number, reply_to="amq.rabbitmq.reply-to", correlation_id=str(number)
        )
        await client.default_exchange.publish(request, requests.name)
    got = [await asyncio.wait_for(replies.get(), LIMIT_S) for _ in range(5)]
    assert [(one.correlation_id, one.body) for one in got] == [
        (str(number), b"%d%d" % (number, number)) for number in range(5)
    ]


async def test_consumer_is_told_when_its_queue_is_deleted(
    connection: AbstractConnection, channel: AbstractChannel, names: Names
) -> None:
    queue = await channel.declare_queue(names())
    cancelled: asyncio.Queue[str | None] = asyncio.Queue()
    underlay = await channel.get_underlay_channel()
    underlay.on_consumer_cancel_callbacks.add(
        lambda frame: cancelled.put_nowait(frame.consumer_tag)
    )

    async def refuse(delivery: AbstractIncomingMessage) -> None:
        raise AssertionError(f"nothing was published, but {delivery} came")

    tag = await queue.consume(refuse)
    await (await connection.channel()).queue_delete(queue.name)
    assert await asyncio.wait_for(cancelled.get(), LIMIT_S) == tag


async def test_exclusive_queue_is_locked_for_others(
    url: str, channel: AbstractChannel, names: Names
) -> None:
    queue = await channel.declare_queue(names(), exclusive=True)
    other = await aio_pika.connect(url)
    async with other:
        foreign = await other.channel()
        with pytest.raises(aiormq.exceptions.ChannelLockedResource):
            await foreign.declare_queue(queue.name, passive=True)
    assert (await queue.get(fail=False)) is None


async def test_passive_declare_of_a_missing_queue_is_404(
    connection: AbstractConnection, names: Names
) -> None:
    channel = await connection.channel()
    with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
        await channel.declare_queue(names(), passive=True)
    with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
        await (await connection.channel()).get_exchange(names("x"))


async def test_redeclare_with_other_arguments_is_406(
    connection: AbstractConnection, names: Names
) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue(names(), durable=True)
    with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed):
        await channel.declare_queue(queue.name, durable=False)


async def test_headers_and_topic_exchanges(channel: AbstractChannel, names: Names) -> None:
    topic = await channel.declare_exchange(names("x"), aio_pika.ExchangeType.TOPIC)
    headers = await channel.declare_exchange(names("x"), aio_pika.ExchangeType.HEADERS)
    queue = await channel.declare_queue(names())
    await queue.bind(topic, "a.#")
    await queue.bind(headers, arguments={"x-match": "any", "colour": "red", "size": 3})
    for key in ("a", "a.b.c", "b.a"):
        await topic.publish(message(key.encode()), key, mandatory=False)
    await headers.publish(message(b"red", headers={"colour": "red"}), "")
    await headers.publish(message(b"three", headers={"size": 3, "colour": "blue"}), "")
    await headers.publish(message(b"neither", headers={"size": 4}), "", mandatory=False)
    await headers.bind(topic, "to.headers")
    await topic.publish(message(b"both", headers={"size": 3}), "to.headers")
    got = [(await queue.get(no_ack=True)).body for _ in range(5)]
    assert got == [b"a", b"a.b.c", b"red", b"three", b"both"]
    assert await queue.get(fail=False) is None


@pytest.mark.parametrize("size", BODY_SIZES)
async def test_bodies_of_every_size(channel: AbstractChannel, names: Names, size: int) -> None:
    queue = await channel.declare_queue(names(), durable=True)
    body = body_of(size)
    await channel.default_exchange.publish(message(body), queue.name)
    got = await queue.get(no_ack=True)
    assert got.body == body
    assert got.body_size == size


async def test_properties_and_headers_come_back(channel: AbstractChannel, names: Names) -> None:
    queue = await channel.declare_queue(names())
    sent = aio_pika.Message(
        b"all of them",
        headers={**HEADERS, **FLOATS},  # type: ignore[dict-item]
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=PERSISTENT,
        priority=5,
        correlation_id="corr",
        reply_to="reply.here",
        expiration=None,
        message_id="id-1",
        timestamp=datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        type="kind",
        user_id="guest",
        app_id="app",
    )
    await channel.default_exchange.publish(sent, queue.name)
    got = await queue.get(no_ack=True)
    assert got.info()["headers"] == {**HEADERS, **FLOATS}
    for name in (
        *("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id"),
        *("reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id"),
    ):
        assert getattr(got, name) == getattr(sent, name), name


async def test_master_worker_pattern(connection: AbstractConnection, names: Names) -> None:
    task_name = names("task")
    done: list[int] = []

    async def work(*, number: int) -> None:
        done.append(number)

    async with connection.channel() as channel:
        await channel.set_qos(prefetch_count=1)
        master = aio_pika.patterns.Master(channel)
        worker = await master.create_worker(task_name, work, auto_delete=True)
        for number in range(20):
            await master.create_task(task_name, {"number": number})
        async with asyncio.timeout(LIMIT_S):
            while len(done) < 20:  # noqa: ASYNC110 - the worker has no event to wait for
                await asyncio.sleep(0.01)
        assert done == list(range(20))
        await worker.close()


async def test_robust_connection_resumes_after_a_kill(
    own_broker: BrokerProcess,
) -> None:
    connection = await aio_pika.connect_robust(own_broker.url, reconnect_interval=0.2)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("robust", durable=True)
        seen: list[tuple[bytes, bool | None]] = []

        async def take(delivery: AbstractIncomingMessage) -> None:
            seen.append((delivery.body, delivery.redelivered))
            if delivery.body != b"held" or delivery.redelivered:
                await delivery.ack()

        await queue.consume(take)
        await channel.default_exchange.publish(message(b"held"), "robust")
        async with asyncio.timeout(LIMIT_S):
            while not seen:  # noqa: ASYNC110 - nothing else to wait for
                await asyncio.sleep(0.01)
        await asyncio.to_thread(own_broker.kill9)
        await asyncio.to_thread(own_broker.restart)
        async with asyncio.timeout(LIMIT_S):
            while len(seen) < 2:  # noqa: ASYNC110 - nothing else to wait for
                await asyncio.sleep(0.05)
            await channel.default_exchange.publish(message(b"after"), "robust")
            while len(seen) < 3:  # noqa: ASYNC110 - nothing else to wait for
                await asyncio.sleep(0.05)
        assert seen == [(b"held", False), (b"held", True), (b"after", False)]
