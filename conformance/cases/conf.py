"""Section CONF: publisher confirms."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import aio_pika
import pika

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage

BATCH: Final = 100
TOTAL: Final = 1000


@case("CONF-01", says="confirm.select is answered, also when repeated")
def select(stage: Stage) -> None:
    channel = stage.confirming()
    channel.publish("", "nowhere", "x")
    channel.call("confirm.select")
    channel.publish("", "nowhere", "x")
    equal(channel.confirms(2), {1: "ack", 2: "ack"}, "confirms")


@case("CONF-02", says="confirm.select on a transactional channel is soft 406")
def select_after_tx(stage: Stage) -> None:
    channel = stage.transactional()
    text = "PRECONDITION_FAILED - cannot switch from tx to confirm mode"
    with channel.soft(406, text, "confirm.select"):
        channel.call("confirm.select")


@case("CONF-03", says="publishes before select are never confirmed, the first after it is 1")
def numbers_start_at_select(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.publish("", queue, "before")
    channel.call("confirm.select")
    channel.publish("", queue, "after")
    equal(channel.confirms(1), {1: "ack"}, "confirms")
    channel.quiet("basic.ack", "basic.nack")


@case("CONF-03", says="unroutable publishes count, too")
def unroutable_counts(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel)
    for key in (queue, "nowhere", queue, "nowhere"):
        channel.publish("", key, "x")
    equal(channel.confirms(4), dict.fromkeys(range(1, 5), "ack"), "confirms")


def _all_confirmed(kind: str, stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, durable="durable queue" in kind)
    for number in range(TOTAL):
        mode = 2 if "persistent" in kind else 1
        if "alternating" in kind:
            mode = 1 + number % 2
        channel.publish("", queue, str(number), delivery_mode=mode)
    equal(channel.confirms(TOTAL), dict.fromkeys(range(1, TOTAL + 1), "ack"), "confirms")
    channel.quiet("basic.ack", "basic.nack", seconds=0.1)
    channel.holds(queue, TOTAL)


for _kind in (
    "persistent to a durable queue",
    "persistent to a transient queue",
    "transient to a durable queue",
    "transient to a transient queue",
    "alternating to a durable queue",
):
    case("CONF-04", says=f"a thousand messages {_kind} are each confirmed exactly once")(
        partial(_all_confirmed, _kind)
    )


@case("CONF-05", says="unroutable: acked at once, although earlier ones wait for the disk")
def unroutable_is_acked(stage: Stage) -> None:
    channel = stage.confirming()
    for number in range(1, 20):
        channel.publish("", "nowhere", "x", delivery_mode=2)
        equal(channel.wait("basic.ack").tag, number, "confirm")


@case("CONF-06", says="a confirmed message is in the queue: another connection finds it")
def confirmed_is_there(stage: Stage) -> None:
    channel, reader = stage.confirming(), stage.channel()
    queue = stage.queue(channel, durable=True)
    for number in range(20):
        mode = 1 + number % 2
        channel.publish("", queue, str(number), delivery_mode=mode)
        channel.wait("basic.ack")
        equal(reader.get(queue).body, str(number).encode(), "what get finds after the confirm")


@case("CONF-06", says="confirmed when it was delivered and acked before it reached the disk")
def confirmed_after_ack(stage: Stage) -> None:
    channel, reader = stage.confirming(), stage.channel()
    queue = stage.queue(channel, durable=True)
    reader.consume(queue)
    for _ in range(50):
        channel.publish("", queue, "x", delivery_mode=2)
        reader.ack(reader.deliver().tag)
    equal(set(channel.confirms(50).values()), {"ack"}, "confirms")


@case("CONF-06", says="fan-out: one confirm when every queue has taken it")
def fan_out(stage: Stage) -> None:
    channel, reader = stage.confirming(), stage.channel()
    exchange = stage.exchange(channel, "fanout")
    queues = []
    for number in range(6):
        queue = stage.queue(channel, durable=number % 2 == 0)
        channel.call("queue.bind", queue=queue, exchange=exchange)
        queues.append(queue)
    channel.publish(exchange, "", "x", delivery_mode=2)
    equal(channel.confirms(1), {1: "ack"}, "confirm")
    for queue in queues:
        equal(reader.get(queue).body, b"x", "what get finds after the confirm")
    channel.quiet("basic.ack", "basic.nack", seconds=0.1)


@case("CONF-08", says="a multiple confirm never covers a number twice")
def multiple_is_sound(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, durable=True)
    for number in range(300):
        key = queue if number % 3 else "nowhere"
        channel.publish("", key, "x", delivery_mode=1 + number % 2)
    settled: set[int] = set()
    while len(settled) < 300:
        event = channel.wait("basic.ack")
        covered = {event.tag}
        if event.arguments["multiple"]:
            covered = set(range(1, event.tag + 1)) - settled
        check(bool(covered - settled), f"ack of {event.tag} settles nothing new")
        check(bool(event.arguments["multiple"]) or event.tag not in settled, f"{event.tag} twice")
        settled |= covered
    channel.quiet("basic.ack", "basic.nack", seconds=0.1)


@case("CONF-10", says="messages of one kind to one queue are confirmed in order")
def order(stage: Stage) -> None:
    for mode in (1, 2):
        channel = stage.confirming()
        queue = stage.queue(channel, durable=True)
        for _ in range(200):
            channel.publish("", queue, "x", delivery_mode=mode)
        last = 0
        while last < 200:
            event = channel.wait("basic.ack")
            check(event.tag > last, f"{event.tag} confirmed after {last}")
            last = event.tag


@case("CONF-11", says="no confirm after close-ok")
def none_after_close(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, durable=True)
    for _ in range(100):
        channel.publish("", queue, b"x" * 1000, delivery_mode=2)
    channel.send("channel.close")
    channel.wait("channel.close_ok")
    channel.connection.inbox(1).clear()
    channel.quiet("basic.ack", "basic.nack")


@case("CONF-13", says="a lone publisher is confirmed at once, fifty times in a row")
def lone_publisher(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, durable=True)
    for number in range(1, 51):
        channel.publish("", queue, "x", delivery_mode=2)
        equal(channel.wait("basic.ack", timeout_s=2.0).tag, number, "confirm")


def _batches(channel: Channel, queue: str) -> None:
    for start in range(1, TOTAL + 1, BATCH):
        for _ in range(BATCH):
            channel.publish("", queue, "x", delivery_mode=2)
        last = 0
        while last < start + BATCH - 1:
            last = max(last, channel.wait("basic.ack").tag)


@case("CONF-14", says="strategy batches: a thousand messages, a hundred at a time")
def in_batches(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, durable=True)
    _batches(channel, queue)
    channel.holds(queue, TOTAL)


@case("CONF-14", says="strategy one by one, with pika: fifty messages")
def one_by_one(stage: Stage) -> None:
    watcher = stage.channel()
    queue = stage.queue(watcher, durable=True)
    target = stage.target
    parameters = pika.ConnectionParameters(
        target.host,
        target.port,
        target.vhost,
        pika.PlainCredentials(target.user, target.password),
    )
    connection = pika.BlockingConnection(parameters)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(50):
            channel.basic_publish(
                "", queue, b"x", pika.BasicProperties(delivery_mode=2), mandatory=True
            )
    finally:
        connection.close()
    watcher.holds(queue, 50)


async def _asynchronously(stage: Stage, queue: str) -> None:
    target = stage.target
    connection = await aio_pika.connect(
        host=target.host,
        port=target.port,
        login=target.user,
        password=target.password,
        virtualhost=target.vhost,
    )
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        message = partial(aio_pika.Message, b"x", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await asyncio.gather(
            *(channel.default_exchange.publish(message(), queue) for _ in range(TOTAL))
        )


@case("CONF-14", says="strategy asynchronous, with aio-pika: a thousand messages")
def asynchronous(stage: Stage) -> None:
    watcher = stage.channel()
    queue = stage.queue(watcher, durable=True)
    asyncio.run(asyncio.wait_for(_asynchronously(stage, queue), 30))
    watcher.holds(queue, TOTAL)
