"""kombu over py-amqp: the plumbing below Celery."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import amqp.exceptions
import kombu
import kombu.pools
import pytest
from kombu.simple import SimpleQueue

from tests.conftest import Names
from tests.integration.samples import BODY_SIZES, FLOATS, HEADERS, body_of
from tests.waiting import LIMIT_S


@pytest.fixture
def connection(url: str) -> Iterator[kombu.Connection]:
    """A connection that confirms each publish."""
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as opened:
        opened.connect()
        yield opened


def drain_until(
    connection: kombu.Connection, claim: Callable[[], bool], limit_s: float = LIMIT_S
) -> None:
    """Let kombu work until the claim holds."""
    deadline = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < deadline, "waited in vain"
        try:
            connection.drain_events(timeout=0.1)
        except TimeoutError:
            continue


def quiet(connection: kombu.Connection, span_s: float = 0.3) -> None:
    """Let kombu work for a moment in which nothing should come."""
    deadline = time.monotonic() + span_s
    while time.monotonic() < deadline:
        try:
            connection.drain_events(timeout=span_s)
        except TimeoutError:
            return


def declared(connection: kombu.Connection, name: str, **options: Any) -> kombu.Queue:
    """A declared queue bound to a direct exchange of the same name."""
    exchange = kombu.Exchange(name, type="direct")
    queue = kombu.Queue(name, exchange, routing_key=name, **options)(connection.default_channel)
    queue.declare()
    return queue


def test_each_publish_is_confirmed(connection: kombu.Connection, names: Names) -> None:
    queue = declared(connection, names())
    producer = connection.Producer(exchange=queue.exchange, routing_key=queue.name)
    for number in range(50):
        producer.publish({"number": number}, delivery_mode=2)
    assert queue.queue_declare(passive=True).message_count == 50
    seen: list[int] = []

    def take(body: dict[str, int], message: kombu.Message) -> None:
        seen.append(body["number"])
        message.ack()

    with connection.Consumer(queue, callbacks=[take]):
        drain_until(connection, lambda: len(seen) == 50)
    assert seen == list(range(50))


def test_unroutable_mandatory_publish_is_returned(
    connection: kombu.Connection, names: Names
) -> None:
    returned: list[tuple[int, str]] = []
    exchange = kombu.Exchange(names("x"), type="topic")
    producer = connection.Producer(
        exchange=exchange,
        on_return=lambda error, _, __, message: returned.append((error.reply_code, message.body)),
    )
    producer.publish("nobody", routing_key="a.b", mandatory=True, content_type="text/plain")
    drain_until(connection, lambda: bool(returned))
    assert returned == [(312, "nobody")]


def test_simple_queue_puts_and_gets(connection: kombu.Connection, names: Names) -> None:
    name = names()
    with SimpleQueue(connection, name) as queue:
        for number in range(5):
            queue.put({"n": number})
        assert queue.qsize() == 5
        for number in range(5):
            message = queue.get(timeout=LIMIT_S)
            assert message.payload == {"n": number}
            message.ack()
        with pytest.raises(queue.Empty):
            queue.get(block=False)


def test_requeue_and_reject(connection: kombu.Connection, names: Names) -> None:
    queue = declared(connection, names())
    producer = connection.Producer(exchange=queue.exchange, routing_key=queue.name)
    for number in range(4):
        producer.publish(str(number), content_type="text/plain")
    first, second, third = queue.get(), queue.get(), queue.get()
    third.requeue()
    first.requeue()
    second.reject()
    got = [queue.get() for _ in range(3)]
    assert [(m.body, m.delivery_info["redelivered"]) for m in got] == [
        ("0", True),
        ("2", True),
        ("3", False),
    ]
    for message in got:
        message.ack()
    assert queue.get() is None


def test_prefetch_is_kept_and_may_grow(connection: kombu.Connection, names: Names) -> None:
    queue = declared(connection, names())
    producer = connection.Producer(exchange=queue.exchange, routing_key=queue.name)
    for number in range(10):
        producer.publish(number)
    seen: list[kombu.Message] = []
    with connection.Consumer(
        queue, prefetch_count=2, on_message=seen.append, accept=["json"]
    ) as consumer:
        drain_until(connection, lambda: len(seen) >= 2)
        quiet(connection)
        assert [m.payload for m in seen] == [0, 1]
        # Celery's window: every consumer of the channel is under one limit that is resized.
        consumer.qos(prefetch_count=5, apply_global=True)
        for message in seen:
            message.ack()
        drain_until(connection, lambda: len(seen) >= 4)
        quiet(connection)
        assert [m.payload for m in seen][:4] == [0, 1, 2, 3]
        assert len(seen) <= 2 + 5


def test_tx_through_py_amqp(url: str, names: Names) -> None:
    with kombu.Connection(url) as connection:
        queue = declared(connection, names())
        channel = connection.channel()
        channel.tx_select()
        producer = kombu.Producer(channel, exchange=queue.exchange, routing_key=queue.name)
        producer.publish("kept", content_type="text/plain")
        channel.tx_commit()
        producer.publish("gone", content_type="text/plain")
        channel.tx_rollback()
        assert queue.get(no_ack=True).body == "kept"
        assert queue.get() is None


def test_broadcast_reaches_every_subscriber(connection: kombu.Connection, names: Names) -> None:
    exchange = kombu.Exchange(names("x"), type="fanout")
    queues = [
        kombu.Queue(names(), exchange, exclusive=True, auto_delete=True)(connection.channel())
        for _ in range(3)
    ]
    for queue in queues:
        queue.declare()
    connection.Producer(exchange=exchange).publish("all", content_type="text/plain")
    assert [queue.get(no_ack=True).body for queue in queues] == ["all"] * 3


def test_topic_and_headers_bindings(connection: kombu.Connection, names: Names) -> None:
    channel = connection.default_channel
    topic = kombu.Exchange(names("x"), type="topic", channel=channel)
    headers = kombu.Exchange(names("x"), type="headers", channel=channel)
    queue = kombu.Queue(
        names(),
        bindings=[
            kombu.binding(topic, "stock.#"),
            kombu.binding(headers, arguments={"x-match": "all", "unit": "kg", "n": 5}),
        ],
        channel=channel,
    )
    queue.declare()
    producer = connection.Producer(channel)
    for key in ("stock", "stock.us.nyse", "bonds.us"):
        producer.publish(key, exchange=topic, routing_key=key, content_type="text/plain")
    for unit in ("kg", "t"):
        producer.publish(
            unit, exchange=headers, headers={"unit": unit, "n": 5}, content_type="text/plain"
        )
    got = [queue.get(no_ack=True).body for _ in range(3)]
    assert got == ["stock", "stock.us.nyse", "kg"]
    assert queue.get() is None


def test_rpc_over_a_reply_queue(connection: kombu.Connection, names: Names) -> None:
    requests = declared(connection, names("rpc"))
    client, server = connection.channel(), connection.channel()
    replies = kombu.Queue(names("reply"), exclusive=True, auto_delete=True)(client)
    replies.declare()
    answers: dict[str, int] = {}

    def answer(body: int, message: kombu.Message) -> None:
        kombu.Producer(server).publish(
            body * body,
            exchange="",
            routing_key=message.properties["reply_to"],
            correlation_id=message.properties["correlation_id"],
        )
        message.ack()

    def collect(body: int, message: kombu.Message) -> None:
        answers[message.properties["correlation_id"]] = body

    with (
        kombu.Consumer(server, requests, callbacks=[answer]),
        kombu.Consumer(client, replies, callbacks=[collect], no_ack=True),
    ):
        for number in range(5):
            kombu.Producer(client).publish(
                number,
                exchange=requests.exchange,
                routing_key=requests.name,
                reply_to=replies.name,
                correlation_id=str(number),
            )
        drain_until(connection, lambda: len(answers) == 5)
    assert answers == {str(number): number * number for number in range(5)}


def test_direct_reply_to(connection: kombu.Connection, names: Names) -> None:
    requests = declared(connection, names("rpc"))
    client = connection.channel()
    answers: list[str] = []
    client.basic_consume(
        "amq.rabbitmq.reply-to",
        no_ack=True,
        callback=lambda message: answers.append(message.body),
        consumer_tag="replies",
    )
    kombu.Producer(client).publish(
        "ping",
        exchange=requests.exchange,
        routing_key=requests.name,
        reply_to="amq.rabbitmq.reply-to",
        content_type="text/plain",
    )
    request = requests.get(no_ack=True)
    connection.Producer().publish(
        "pong",
        exchange="",
        routing_key=request.properties["reply_to"],
        content_type="text/plain",
    )
    drain_until(connection, lambda: bool(answers))
    assert answers == ["pong"]


def test_consumer_is_cancelled_when_its_queue_is_deleted(
    url: str, connection: kombu.Connection, names: Names
) -> None:
    queue = declared(connection, names())
    cancelled: list[str] = []
    channel = connection.default_channel
    channel.basic_consume(
        queue.name, callback=lambda _: None, consumer_tag="c", on_cancel=cancelled.append
    )
    with kombu.Connection(url) as other:
        other.default_channel.queue_delete(queue.name)
    drain_until(connection, lambda: bool(cancelled))
    assert cancelled == ["c"]


def test_precondition_and_lock_errors_are_told_apart(
    url: str, connection: kombu.Connection, names: Names
) -> None:
    name = names()
    declared(connection, name, exclusive=True)
    with kombu.Connection(url) as other:
        with pytest.raises(amqp.exceptions.ResourceLocked):
            other.channel().queue_declare(name, passive=True)
        with pytest.raises(amqp.exceptions.NotFound):
            other.channel().queue_declare(names(), passive=True)
        with pytest.raises(amqp.exceptions.PreconditionFailed):
            other.channel().exchange_declare(name, "fanout", durable=True, auto_delete=False)


def test_wrong_password_is_access_refused(url: str) -> None:
    wrong = kombu.Connection(url.replace(":guest@", ":wrong@"))
    with wrong, pytest.raises(amqp.exceptions.AccessRefused) as caught:
        wrong.connect()
    assert caught.value.reply_code == 403


@pytest.mark.parametrize("size", BODY_SIZES)
def test_bodies_of_every_size(connection: kombu.Connection, names: Names, size: int) -> None:
    queue = declared(connection, names())
    body = body_of(size)
    connection.Producer(exchange=queue.exchange, routing_key=queue.name).publish(
        body, content_type="application/data", content_encoding="binary"
    )
    # py-amqp gives an empty body as str.
    assert bytes(queue.get(no_ack=True).body or b"") == body


def test_properties_and_headers_come_back(connection: kombu.Connection, names: Names) -> None:
    queue = declared(connection, names())
    properties = {
        "priority": 3,
        "correlation_id": str(uuid.uuid4()),
        "reply_to": "somewhere",
        "message_id": "m-1",
        "type": "kind",
        "user_id": "guest",
        "app_id": "app",
        "cluster_id": "cluster",
    }
    connection.Producer(exchange=queue.exchange, routing_key=queue.name).publish(
        "body", headers={**HEADERS, **FLOATS}, delivery_mode=1, **properties
    )
    got = queue.get(no_ack=True)
    assert got.headers == {**HEADERS, **FLOATS}
    assert (got.content_type, got.content_encoding) == ("text/plain", "utf-8")
    assert got.properties["delivery_mode"] == 1
    assert {name: got.properties[name] for name in properties} == properties


def test_heartbeats_keep_an_idle_connection(url: str, names: Names) -> None:
    with kombu.Connection(url, heartbeat=1) as connection:
        connection.connect()
        assert connection.get_heartbeat_interval() == 1
        queue = declared(connection, names())
        deadline = time.monotonic() + 3.5
        while time.monotonic() < deadline:
            connection.heartbeat_check(rate=2)
            try:
                connection.drain_events(timeout=0.25)
            except TimeoutError:
                continue
        assert queue.queue_declare(passive=True).message_count == 0
