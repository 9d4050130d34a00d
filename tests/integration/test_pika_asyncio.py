"""pika's AsyncioConnection: callbacks, pipelining, and confirms counted by hand.

This is the client whose confirm handling is closest to the wire, so the bookkeeping rules of
confirms are checked here: every number settled once, `multiple` never covering a pending one,
a return before the confirm of its message.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.channel import Channel

from tests.conftest import Names
from tests.integration.pika_async import (
    PERSISTENT,
    ConfirmLedger,
    call,
    connected,
    open_channel,
)
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.asyncio


async def test_one_publish_at_a_time_confirmed_before_the_next(url: str, names: Names) -> None:
    queue = names()
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, queue, durable=True)
        ledger = ConfirmLedger(channel)
        await ledger.select()
        for number in range(1, 31):
            ledger.publish("", queue, b"%d" % number)
            await ledger.drained()
        assert ledger.acked == list(range(1, 31))
        reply = await call(channel.queue_declare, queue, passive=True)
        assert reply.method.message_count == 30


async def test_batches_of_a_hundred_confirmed_together(url: str, names: Names) -> None:
    queue = names()
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, queue, durable=True)
        ledger = ConfirmLedger(channel)
        await ledger.select()
        for _ in range(5):
            for _ in range(100):
                ledger.publish("", queue, b"x" * 100)
            await ledger.drained()
        assert ledger.acked == list(range(1, 501))
        assert not ledger.nacked
        assert ledger.widest > 1, "a batch should not need an ack for each message"


async def test_thousands_confirmed_asynchronously(url: str, names: Names) -> None:
    queue = names()
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, queue, durable=True)
        ledger = ConfirmLedger(channel)
        await ledger.select()
        for number in range(2000):
            ledger.publish("", queue, b"%d" % number)
            if len(ledger.pending) >= 500:
                await until(lambda: len(ledger.pending) < 250)
        await ledger.drained()
        assert sorted(ledger.acked) == list(range(1, 2001))
        got: list[bytes] = []
        await call(channel.basic_qos, prefetch_count=0)
        channel.basic_consume(queue, lambda _, __, ___, body: got.append(body), auto_ack=True)
        await until(lambda: len(got) == 2000)
        assert got == [b"%d" % number for number in range(2000)]


async def test_persistent_and_transient_mixed_are_each_confirmed_once(
    url: str, names: Names
) -> None:
    durable, passing = names(), names()
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, durable, durable=True)
        await call(channel.queue_declare, passing)
        ledger = ConfirmLedger(channel)
        await ledger.select()
        kinds = (
            (durable, PERSISTENT),
            (durable, pika.BasicProperties()),
            (passing, PERSISTENT),
            ("nobody", PERSISTENT),
        )
        for number in range(200):
            key, properties = kinds[number % 4]
            ledger.publish("", key, b"%d" % number, properties)
        await ledger.drained()
        assert sorted(ledger.acked) == list(range(1, 201))
        for queue, count in ((durable, 100), (passing, 50)):
            reply = await call(channel.queue_declare, queue, passive=True)
            assert reply.method.message_count == count


async def test_return_comes_before_the_confirm_of_its_message(url: str, names: Names) -> None:
    queue, missing = names(), names("missing")
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, queue)
        ledger = ConfirmLedger(channel)
        await ledger.select()
        for number in range(1, 31):
            key = queue if number % 3 else missing
            ledger.publish("", key, b"%d" % number, mandatory=True)
        await ledger.drained()
        assert sorted(ledger.acked) == list(range(1, 31))
        for number in range(3, 31, 3):
            back = ledger.events.index(("return", b"%d" % number))
            assert back < ledger.events.index(("confirm", number))
        assert sum(kind == "return" for kind, _ in ledger.events) == 10


async def test_publishes_before_select_are_not_counted(url: str, names: Names) -> None:
    queue = names()
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, queue)
        channel.basic_publish("", queue, b"unconfirmed")
        ledger = ConfirmLedger(channel)
        await ledger.select()
        assert ledger.publish("", queue, b"first") == 1
        await ledger.drained()
        assert ledger.acked == [1]


async def test_a_failed_publish_closes_the_channel_and_keeps_the_connection(
    url: str, names: Names
) -> None:
    queue, missing = names(), names("x")
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, queue, durable=True)
        reasons: list[BaseException] = []
        channel.add_on_close_callback(lambda _, reason: reasons.append(reason))
        ledger = ConfirmLedger(channel)
        await ledger.select()
        ledger.publish("", queue, b"stored")
        ledger.publish(missing, "", b"refused")
        ledger.publish("", queue, b"ignored")
        await until(lambda: bool(reasons))
        [reason] = reasons
        assert isinstance(reason, pika.exceptions.ChannelClosedByBroker)
        assert reason.reply_code == 404
        assert reason.reply_text == f"NOT_FOUND - no exchange '{missing}' in vhost '/'"
        assert 2 in ledger.pending
        assert 3 in ledger.pending
        again = await open_channel(connection)
        reply = await call(again.queue_declare, queue, passive=True)
        assert reply.method.message_count == 1


async def test_hard_error_closes_the_connection_with_its_reason(url: str, names: Names) -> None:
    queue = names()
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[BaseException] = loop.create_future()
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, queue)
        connection.add_on_close_callback(lambda _, reason: closed.set_result(reason))
        await call(channel.basic_consume, queue, lambda *_: None, consumer_tag="twice")
        pika.channel.Channel._send_method(
            channel, pika.spec.Basic.Consume(queue=queue, consumer_tag="twice")
        )
        reason = await asyncio.wait_for(closed, LIMIT_S)
        assert isinstance(reason, pika.exceptions.ConnectionClosedByBroker)
        assert reason.reply_code == 530
        assert reason.reply_text == "NOT_ALLOWED - attempt to reuse consumer tag 'twice'"


async def test_prefetch_one_spreads_work_by_who_is_free(url: str, names: Names) -> None:
    queue = names()
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, queue)
        for number in range(10):
            channel.basic_publish("", queue, b"%d" % number)
        busy = await open_channel(connection)
        free = await open_channel(connection)
        held: list[bytes] = []
        done: list[bytes] = []
        for worker in (busy, free):
            await call(worker.basic_qos, prefetch_count=1)
        await call(busy.basic_consume, queue, lambda _, __, ___, body: held.append(body))
        await until(lambda: len(held) == 1)

        def work(channel: Channel, method: Any, _: object, body: bytes) -> None:
            done.append(body)
            channel.basic_ack(method.delivery_tag)

        await call(free.basic_consume, queue, work)
        await until(lambda: len(done) == 9)
        assert held == [b"0"]
        assert done == [b"%d" % number for number in range(1, 10)]
        busy.close()
        await until(lambda: len(done) == 10)
        assert done[-1] == b"0"


async def test_requeue_by_a_consumer_comes_back_redelivered(url: str, names: Names) -> None:
    queue = names()
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, queue)
        await call(channel.basic_qos, prefetch_count=3)
        for number in range(1, 7):
            channel.basic_publish("", queue, b"%d" % number)
        seen: list[tuple[bytes, bool]] = []
        requeued: set[bytes] = set()

        def work(channel: Channel, method: Any, _: object, body: bytes) -> None:
            seen.append((body, method.redelivered))
            if body not in requeued and int(body) % 2:
                requeued.add(body)
                channel.basic_nack(method.delivery_tag, requeue=True)
            else:
                channel.basic_ack(method.delivery_tag)

        await call(channel.basic_consume, queue, work)
        await until(lambda: len(seen) == 9)
        first_sight = [body for body, again in seen if not again]
        assert first_sight == [b"%d" % number for number in range(1, 7)]
        assert sorted(body for body, again in seen if again) == [b"1", b"3", b"5"]


async def test_no_delivery_after_cancel_ok(url: str, names: Names) -> None:
    queue = names()
    async with connected(url) as connection:
        channel = await open_channel(connection)
        await call(channel.queue_declare, queue)
        seen: list[bytes] = []
        tag = channel.basic_consume(queue, lambda _, __, ___, body: seen.append(body))
        channel.basic_publish("", queue, b"1")
        await until(lambda: len(seen) == 1)
        await call(channel.basic_cancel, tag)
        channel.basic_publish("", queue, b"2")
        await asyncio.sleep(0.2)
        assert seen == [b"1"]
        channel.basic_ack(1)
        reply = await call(channel.queue_declare, queue, passive=True)
        assert (reply.method.message_count, reply.method.consumer_count) == (1, 0)


async def test_consumer_learns_that_its_queue_was_deleted(url: str, names: Names) -> None:
    queue = names()
    async with connected(url) as connection:
        channel, other = await open_channel(connection), await open_channel(connection)
        await call(channel.queue_declare, queue)
        cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        tag = channel.basic_consume(queue, lambda *_: None)
        await call(other.queue_delete, queue)
        await until(lambda: bool(cancelled))
        assert cancelled == [tag]


async def test_direct_reply_to_pipelined_calls(url: str, names: Names) -> None:
    requests = names("rpc")
    async with connected(url) as client_side, connected(url) as server_side:
        client, server = await open_channel(client_side), await open_channel(server_side)
        await call(server.queue_declare, requests)

        def answer(channel: Channel, method: Any, properties: Any, body: bytes) -> None:
            echo = pika.BasicProperties(correlation_id=properties.correlation_id)
            channel.basic_publish("", properties.reply_to, body[::-1], echo)
            channel.basic_ack(method.delivery_tag)

        await call(server.basic_consume, requests, answer)
        answers: dict[str, bytes] = {}

        def collect(_: Channel, __: object, properties: Any, body: bytes) -> None:
            answers[properties.correlation_id] = body

        await call(client.basic_consume, "amq.rabbitmq.reply-to", collect, auto_ack=True)
        for number in range(200):
            properties = pika.BasicProperties(
                reply_to="amq.rabbitmq.reply-to", correlation_id=str(number)
            )
            client.basic_publish("", requests, b"%06d" % number, properties)
        await until(lambda: len(answers) == 200)
        assert all(answers[str(n)] == (b"%06d" % n)[::-1] for n in range(200))


async def test_tx_commit_answers_after_all_its_publishes(url: str, names: Names) -> None:
    queue = names()
    async with connected(url) as connection:
        channel, observer = await open_channel(connection), await open_channel(connection)
        await call(channel.queue_declare, queue, durable=True)
        await call(channel.tx_select)
        for number in range(50):
            channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
        await call(channel.tx_commit)
        channel.basic_publish("", queue, b"gone", PERSISTENT)
        await call(channel.tx_rollback)
        reply = await call(observer.queue_declare, queue, passive=True)
        assert reply.method.message_count == 50


async def test_confirms_on_many_channels_do_not_mix(url: str, names: Names) -> None:
    queue = names()
    async with connected(url) as connection:
        setup = await open_channel(connection)
        await call(setup.queue_declare, queue, durable=True)
        ledgers = [ConfirmLedger(await open_channel(connection)) for _ in range(10)]
        for ledger in ledgers:
            await ledger.select()
        for _ in range(50):
            for ledger in ledgers:
                ledger.publish("", queue, b"x")
        for ledger in ledgers:
            await ledger.drained()
            assert sorted(ledger.acked) == list(range(1, 51))
