"""Clients that use queues in every way a ledger has to tell of, until their broker is killed."""

from __future__ import annotations

import gc
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pika
import pika.exceptions

TO_GRAVE: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
QUEUES: dict[str, dict[str, object]] = {
    "grave": {},
    "work": TO_GRAVE,
    "plain": {},
    "short": {"x-max-length": 50, **TO_GRAVE},
    "ranked": {"x-max-priority": 5},
    "limited": {"x-queue-type": "quorum", "x-delivery-limit": 3, **TO_GRAVE},
    "brief": {"x-message-ttl": 100, **TO_GRAVE},
}
CONSUMED = ("work", "work", "plain", "short", "ranked", "limited", "grave")
EXPECTED = (pika.exceptions.AMQPError, OSError)


def connect(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(url))


@contextmanager
def doomed(url: str) -> Iterator[pika.BlockingConnection]:
    """A connection whose broker is killed before the end."""
    connection = connect(url)
    try:
        yield connection
    finally:
        with suppress(*EXPECTED):
            connection.close()


def declare_all(url: str) -> None:
    with connect(url) as connection:
        channel = connection.channel()
        channel.exchange_declare("fan", "fanout", durable=True)
        for name, arguments in QUEUES.items():
            channel.queue_declare(name, durable=True, arguments=arguments)
        for name in ("plain", "limited", "work"):
            channel.queue_bind(name, "fan", "k")


def publish(url: str, draw: random.Random, stop: threading.Event) -> None:
    """One message after the other, each confirmed, to all sorts of queues."""
    channel = connect(url).channel()
    channel.confirm_delivery()
    while not stop.is_set():
        queue = draw.choice(("work", "plain", "short", "ranked", "limited", "brief", "", "none"))
        properties = pika.BasicProperties(
            delivery_mode=draw.choice((1, 2, 2, 2)),
            priority=draw.choice((None, 1, 5)) if queue == "ranked" else None,
            expiration="50" if draw.random() < 0.1 else None,
            message_id=f"{draw.random()}",
        )
        exchange, key = ("", queue) if queue else ("fan", "k")
        with suppress(pika.exceptions.UnroutableError, pika.exceptions.NackError):
            channel.basic_publish(exchange, key, b"x" * draw.randrange(300), properties, True)


def flood(url: str, draw: random.Random, stop: threading.Event) -> None:
    """Runs of messages, confirmed as it comes."""
    del draw
    connection = connect(url)
    channel = connection.channel()
    channel._impl.confirm_delivery(lambda frame: None)
    while not stop.wait(0.02):
        for _ in range(100):
            channel._impl.basic_publish(
                "", "work", b"z" * 200, pika.BasicProperties(delivery_mode=2)
            )
        connection.process_data_events(0.01)


def settle(url: str, draw: random.Random, stop: threading.Event, queue: str) -> None:
    """Take messages and do everything with them that one can do."""
    connection = connect(url)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=draw.choice((1, 20, 100)))
    for method, _, _ in channel.consume(queue, inactivity_timeout=0.2):
        if stop.is_set():
            return
        if method is None:
            continue
        chance, tag = draw.random(), method.delivery_tag
        if chance < 0.03:
            channel.basic_nack(tag, requeue=True)
        elif chance < 0.08:
            channel.basic_reject(tag, requeue=False)
        elif chance < 0.082:
            connection.close()
            settle(url, draw, stop, queue)
            return
        else:
            channel.basic_ack(tag, multiple=chance < 0.1)


@contextmanager
def load(url: str, seed: int) -> Iterator[None]:
    """All of them, until the body is left."""
    stop = threading.Event()
    jobs: list[tuple[Callable[..., None], tuple[str, ...]]] = [(publish, ())] * 2
    jobs += [(flood, ()), *((settle, (queue,)) for queue in CONSUMED)]

    def run(job: Callable[..., None], number: int, more: tuple[str, ...]) -> None:
        with suppress(*EXPECTED):
            job(url, random.Random(f"{seed} {number}"), stop, *more)

    threads = [
        threading.Thread(target=run, args=(job, number, more), daemon=True)
        for number, (job, more) in enumerate(jobs)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        # pika leaves the sockets of a broker that was killed to the garbage collector.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
