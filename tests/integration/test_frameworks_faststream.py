"""FastStream as it is used: subscribers and publishers, exchanges, requests, acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from faststream import AckPolicy, FastStream
from faststream.exceptions import NackMessage, RejectMessage
from faststream.rabbit import (
    Channel,
    ExchangeType,
    QueueType,
    RabbitBroker,
    RabbitExchange,
    RabbitMessage,
    RabbitQueue,
)
from pydantic import BaseModel

from tests.conftest import Names

LIMIT_S: Final = 60


class User(BaseModel):
    """What the quick-start sends: FastStream makes it from JSON and checks it."""

    name: str
    user_id: int


class Seen:
    """Collects what handlers were called with."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._more = asyncio.Event()

    def add(self, item: Any) -> None:
        """Note one call."""
        self.items.append(item)
        self._more.set()

    async def wait(self, count: int) -> list[Any]:
        """The first `count` calls, as soon as there are as many."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.items) < count:
                self._more.clear()
                await self._more.wait()
        return self.items


@pytest.fixture
async def rabbit(url: str) -> AsyncIterator[RabbitBroker]:
    """FastStream's name for a client; handlers are added before it is started."""
    made = RabbitBroker(url, default_channel=Channel(prefetch_count=10))
    yield made
    await made.stop()


async def test_quick_start(rabbit: RabbitBroker, names: Names) -> None:
    """A handler takes one queue's messages and its result goes to another queue."""
    app = FastStream(rabbit)
    incoming, outgoing = names(), names()
    seen = Seen()

    @rabbit.subscriber(incoming)
    @rabbit.publisher(outgoing)
    async def handle(user: User) -> str:
        return f"{user.user_id}: {user.name} registered"

    @rabbit.subscriber(outgoing)
    async def collect(text: str) -> None:
        seen.add(text)

    @app.after_startup
    async def register() -> None:
        for number in range(20):
            await rabbit.publish(User(name="John", user_id=number), incoming)

    running = asyncio.create_task(app.run())
    items = await seen.wait(20)
    assert sorted(items) == sorted(f"{number}: John registered" for number in range(20))
    app.exit()
    await asyncio.wait_for(running, LIMIT_S)


async def test_request_and_response(rabbit: RabbitBroker, names: Names) -> None:
    """`request` uses direct reply-to; many requests are under way at once."""
    queue = names()

    @rabbit.subscriber(queue)
    async def square(number: int) -> int:
        return number * number

    await rabbit.start()
    answers = await asyncio.gather(
        *(rabbit.request(number, queue, timeout=LIMIT_S) for number in range(30))
    )
    assert [await answer.decode() for answer in answers] == [n * n for n in range(30)]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (ExchangeType.DIRECT, ["info"], ["error"]),
        (ExchangeType.TOPIC, ["logs.info"], ["logs.info", "logs.error"]),
        (ExchangeType.FANOUT, ["info", "error"], ["info", "error"]),
    ],
)
async def test_exchanges(
    rabbit: RabbitBroker, names: Names, kind: ExchangeType, first: list[str], second: list[str]
) -> None:
    exchange = RabbitExchange(names("x"), type=kind, auto_delete=True)
    bound = {
        ExchangeType.DIRECT: ("info", "error"),
        ExchangeType.TOPIC: ("*.info", "logs.#"),
        ExchangeType.FANOUT: ("", ""),
    }[kind]
    seen: list[Seen] = [Seen(), Seen()]
    queues = [RabbitQueue(names(), auto_delete=True, routing_key=key) for key in bound]

    @rabbit.subscriber(queues[0], exchange)
    async def one(body: str) -> None:
        seen[0].add(body)

    @rabbit.subscriber(queues[1], exchange)
    async def two(body: str) -> None:
        seen[1].add(body)

    await rabbit.start()
    prefix = "logs." if kind is ExchangeType.TOPIC else ""
    for level in ("info", "error"):
        await rabbit.publish(f"{prefix}{level}", exchange=exchange, routing_key=f"{prefix}{level}")
    assert sorted(await seen[0].wait(len(first))) == sorted(first)
    assert sorted(await seen[1].wait(len(second))) == sorted(second)


async def test_headers_exchange(rabbit: RabbitBroker, names: Names) -> None:
    exchange = RabbitExchange(names("x"), type=ExchangeType.HEADERS, auto_delete=True)
    queue = RabbitQueue(
        names(), auto_delete=True, bind_arguments={"key": 1, "level": "high", "x-match": "all"}
    )
    seen = Seen()

    @rabbit.subscriber(queue, exchange)
    async def handle(body: str) -> None:
        seen.add(body)

    await rabbit.start()
    await rabbit.publish("no", exchange=exchange, headers={"key": 1}, mandatory=False)
    await rabbit.publish("yes", exchange=exchange, headers={"key": 1, "level": "high"})
    assert await seen.wait(1) == ["yes"]


async def test_what_handlers_raise(rabbit: RabbitBroker, names: Names) -> None:
    """A nack brings the message back as redelivered; a reject and an error discard it."""
    queue = names()
    seen = Seen()

    @rabbit.subscriber(queue, ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, message: RabbitMessage) -> None:
        again = bool(message.raw_message.redelivered)
        seen.add((body, again))
        if body == "nack" and not again:
            raise NackMessage
        if body == "reject":
            raise RejectMessage
        if body == "error":
            raise ValueError(body)

    await rabbit.start()
    for body in ("nack", "reject", "error"):
        await rabbit.publish(body, queue)
    await seen.wait(4)
    await rabbit.publish("last", queue)
    assert sorted(await seen.wait(5)) == [
        *(("error", False), ("last", False), ("nack", False), ("nack", True), ("reject", False)),
    ]


async def test_dead_letters_of_failed_messages(rabbit: RabbitBroker, names: Names) -> None:
    """Retries with a pause: a queue whose dead letters wait in another and then come back."""
    work, pause = names(), names()
    seen = Seen()
    await rabbit.connect()
    await rabbit.declare_queue(
        RabbitQueue(
            pause,
            durable=True,
            arguments={
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": work,
                "x-message-ttl": 200,
            },
        )
    )

    @rabbit.subscriber(
        RabbitQueue(
            work,
            durable=True,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": pause},
        ),
        ack_policy=AckPolicy.REJECT_ON_ERROR,
    )
    async def handle(body: str, message: RabbitMessage) -> None:
        deaths = {each["queue"]: each for each in message.headers.get("x-death", [])}
        failures = deaths[work]["count"] if deaths else 0
        seen.add(failures)
        if failures < 3:
            raise ValueError(body)

    await rabbit.start()
    began = asyncio.get_running_loop().time()
    await rabbit.publish("work", work, persist=True)
    assert await seen.wait(4) == [0, 1, 2, 3]
    assert asyncio.get_running_loop().time() - began >= 0.6


async def test_quorum_queue(rabbit: RabbitBroker, names: Names) -> None:
    queue = RabbitQueue(names(), queue_type=QueueType.QUORUM, durable=True)
    seen = Seen()

    @rabbit.subscriber(queue)
    async def handle(body: str) -> None:
        seen.add(body)

    await rabbit.start()
    await rabbit.publish("kept", queue, persist=True)
    assert await seen.wait(1) == ["kept"]


async def test_stream(rabbit: RabbitBroker, names: Names) -> None:
    """Every subscriber of a stream reads all of it from where it wants to begin."""
    stream = RabbitQueue(names(), queue_type=QueueType.STREAM, durable=True)
    seen = Seen()
    await rabbit.connect()
    await rabbit.declare_queue(stream)
    for number in range(5):
        await rabbit.publish(number, stream, persist=True)

    @rabbit.subscriber(stream, consume_args={"x-stream-offset": "first"})
    async def handle(number: int, message: RabbitMessage) -> None:
        seen.add((number, message.headers["x-stream-offset"]))

    await rabbit.start()
    # FastStream runs handlers side by side, so they may end in any order.
    assert sorted(await seen.wait(5)) == [(number, number) for number in range(5)]
