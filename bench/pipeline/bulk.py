"""What the bulk client saves: reading and publishing beside plain loops with pika."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.pipeline import loops
from bench.pipeline.row import Demand, Place, Play, Row, RowError, Values
from vouchmq.kit.bulk import BulkConnection, encode_properties

STREAM: Final = "bench.bulk.stream"
QUEUE: Final = "bench.bulk.queue"
MESSAGES: Final = 60_000
PIKA_PUBLISHES: Final = 2_000
RUN: Final = 2_000
PREFETCH: Final = 5_000


@contextmanager
def read_stream(place: Place) -> Iterator[Play]:
    """The same stream again and again, from its beginning."""
    count = place.scaled(MESSAGES)
    loops.fill(place.url, STREAM, count, stream=True)

    def play(arm: str) -> Values:
        cpu_s = time.process_time()
        if arm == "pika":
            rate = loops.pika_consume(place.url, STREAM, count, stream=True)
        else:
            rate = consume(place.url, STREAM, count, stream=True)
        return figures(rate, time.process_time() - cpu_s, count)

    yield play
    loops.delete(place.url, STREAM)


@contextmanager
def read_queue(place: Place) -> Iterator[Play]:
    """A queue that is filled anew for each go; both acknowledge with `multiple`."""
    count = place.scaled(MESSAGES)

    def play(arm: str) -> Values:
        loops.fill(place.url, QUEUE, count)
        cpu_s = time.process_time()
        if arm == "pika":
            rate = loops.pika_consume(place.url, QUEUE, count, ack_every=loops.STREAM_ACK_EVERY)
        else:
            rate = consume(place.url, QUEUE, count)
        spent_s = time.process_time() - cpu_s
        if left := loops.ready_count(place.url, QUEUE):
            raise RowError(f"{left} messages are still there")
        return figures(rate, spent_s, count)

    yield play
    loops.delete(place.url, QUEUE)


@contextmanager
def publish(place: Place) -> Iterator[Play]:
    """Confirmed and mandatory, into a durable queue, properties encoded row by row."""
    few, many = place.scaled(PIKA_PUBLISHES), place.scaled(MESSAGES)

    def play(arm: str) -> Values:
        loops.delete(place.url, QUEUE)
        count = few if arm == "pika" else many
        cpu_s = time.process_time()
        if arm == "pika":
            rate = loops.pika_publish(place.url, QUEUE, count)
        else:
            rate = publish_all(place.url, QUEUE, count)
        spent_s = time.process_time() - cpu_s
        if (found := loops.ready_count(place.url, QUEUE)) != count:
            raise RowError(f"{count} were confirmed, {found} are there")
        return figures(rate, spent_s, count)

    yield play
    loops.delete(place.url, QUEUE)


def figures(rate: float, cpu_s: float, count: int) -> Values:
    """Rows per second, and the client's own processor time for each."""
    return {"rows_per_s": round(rate), "client_cpu_us": round(cpu_s / count * 1e6, 2)}


def consume(url: str, queue: str, count: int, *, stream: bool = False) -> float:
    """Consume so many with the bulk client; messages per second.

    Raises:
        RowError: what comes is not what was published, or does not come
    """
    with BulkConnection.open(url) as connection:
        channel = connection.channel()
        channel.qos(PREFETCH)
        seen = octets = 0
        began = time.perf_counter()
        channel.consume(queue, arguments={"x-stream-offset": "first"} if stream else None)
        while seen < count:
            run = channel.wait(min(RUN, count - seen), loops.PATIENCE_S)
            if not run:
                raise RowError(f"{seen} of {count} messages came")
            seen += len(run)
            octets += sum([len(each[5]) for each in run])
            channel.ack(run[-1][0], multiple=True)
        took = time.perf_counter() - began
        channel.fence()
    if octets != count * loops.BODY_BYTES:
        raise RowError(f"{octets} octets of bodies came")
    return seen / took


def publish_all(url: str, queue: str, count: int) -> float:
    """Publish so many with the bulk client; confirmed messages per second."""
    body = bytes(loops.BODY_BYTES)
    rows = (
        ("", queue, encode_properties(properties(f"m-{number:012d}")), body)
        for number in range(count)
    )
    with BulkConnection.open(url) as connection:
        channel = connection.channel()
        channel.declare(queue)
        channel.confirm_select()
        began = time.perf_counter()
        result = channel.publish_many(rows, mandatory=True)
        took = time.perf_counter() - began
    if result.confirmed != count or result.returned:
        raise RowError(f"{result.confirmed} of {count} were confirmed")
    return count / took


def properties(message_id: str) -> dict[str, object]:
    """As those of the loops with pika."""
    return {
        "content_type": "application/json",
        "delivery_mode": 2,
        "message_id": message_id,
        "headers": {"tenant": "north", "attempt": 1},
    }


ARMS: Final = ("pika", "bulk")
ROWS: Final = (
    Row(
        "bulk_stream",
        "how much faster a stream is read with the bulk client than with pika",
        ARMS,
        read_stream,
        (
            Demand("rows_per_s", "bulk", "pika", at_least=2.0),
            Demand("client_cpu_us", "bulk", "pika"),
        ),
    ),
    Row(
        "bulk_queue",
        "the same for a durable queue, acknowledged by runs",
        ARMS,
        read_queue,
        (
            Demand("rows_per_s", "bulk", "pika"),
            Demand("client_cpu_us", "bulk", "pika"),
        ),
    ),
    Row(
        "bulk_publish",
        "confirmed and mandatory: in a window of 2,000 instead of one by one",
        ARMS,
        publish,
        (
            Demand("rows_per_s", "bulk", "pika", at_least=10.0),
            Demand("client_cpu_us", "bulk", "pika"),
        ),
    ),
)
