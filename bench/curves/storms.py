"""Curves of what is done to many at once: CPU time per item, and the longest stall of the loop.

Messages are of ten bytes, in durable queues and persistent, unless a series says something else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench import frames
from bench.client import Client
from bench.curves.curve import Curve
from bench.curves.stage import Stage, until
from bench.features_at_once import CHUNK, count_in, publish_all

BODY: Final = b"0123456789"
QUEUE, DEAD, EXCHANGE = "bench-0", "bench-dead", "bench-fan"
MESSAGES: Final = (1_000, 10_000, 100_000, 1_000_000)
FEW_MESSAGES: Final = (1_000, 10_000)
THINGS: Final = (10, 100, 1_000, 10_000)
FEW_THINGS: Final = (10, 1_000)
QUEUE_COUNT: Final = 100
READ_BYTES: Final = 1024 * 1024
DEAD_LETTERS: Final = frames.text_entry("x-dead-letter-exchange", "") + frames.text_entry(
    "x-dead-letter-routing-key", DEAD
)
KINDS: Final = {
    "plain": b"",
    "length limit": frames.number_entry("x-max-length", 2_000_000),
    "message TTL": frames.number_entry("x-message-ttl", 3_600_000),
    "priorities": frames.number_entry("x-max-priority", 10),
}
"""Queues, by what they have."""


def purge(name: str) -> bytes:
    """Encode queue.purge."""
    return frames.method(1, (50, 30), b"\0\0" + frames.shortstr(name) + b"\0")


def nack(tag: int, *, requeue: bool) -> bytes:
    """Encode basic.nack of everything up to a tag."""
    return frames.method(1, (60, 120), struct.pack(">QB", tag, 1 | requeue << 1))


def ack(tag: int) -> bytes:
    """Encode basic.ack of everything up to a tag."""
    return frames.method(1, (60, 80), struct.pack(">QB", tag, 1))


def declare_nowait(name: str, table: bytes = b"", *, durable: bool = False) -> bytes:
    """Encode queue.declare without waiting for an answer."""
    bits = bytes((durable << 1 | 1 << 4,))
    return frames.method(
        1, (50, 10), b"\0\0" + frames.shortstr(name) + bits + frames.longstr(table)
    )


def delete_nowait(name: str) -> bytes:
    """Encode queue.delete without waiting for an answer."""
    return frames.method(1, (50, 40), b"\0\0" + frames.shortstr(name) + b"\4")


def store(stage: Stage, names: list[str], count: int, *, block: bytes = b"") -> None:
    """Publish so many messages to the queues in turn, all confirmed."""
    keys = (names * (CHUNK // len(names) + 1))[:CHUNK]
    chunk = b"".join(frames.publish("", key, BODY, persistent=True, block=block) for key in keys)
    publish_all(stage.address, lambda _: chunk, count)


def take_all(client: Client, names: list[str], count: int) -> None:
    """Consume so many messages without acknowledging any of them."""
    client.socket.sendall(b"".join(frames.consume(name, name, no_ack=False) for name in names))
    rest, taken = b"", 0
    while taken < count:
        rest += client.socket.recv(READ_BYTES)
        found, rest = frames.split(rest)
        taken += sum(frame.ids == (60, 60) for frame in found)
    assert not rest, "more came than was stored"


def purges(stage: Stage, size: int, quick: bool) -> None:
    """Purge a queue of so many messages."""
    del quick
    for kind, table in KINDS.items():
        with filled(stage, table, size) as client:
            with stage.measured(kind, size):
                client.call(purge(QUEUE))
            assert count_in(client, QUEUE) == 0
            client.call(frames.queue_delete(QUEUE))


def deletes(stage: Stage, size: int, quick: bool) -> None:
    """Delete a queue of so many messages."""
    del quick
    for kind, table in KINDS.items():
        with filled(stage, table, size) as client, stage.measured(kind, size):
            client.call(frames.queue_delete(QUEUE))


@contextmanager
def filled(stage: Stage, table: bytes, size: int) -> Iterator[Client]:
    """Give a client, and a queue with these arguments that holds so many messages."""
    with stage.client() as client:
        client.call(frames.queue_declare(QUEUE, durable=True, arguments=table))
        store(stage, [QUEUE], size)
        yield client


def dead_letters(stage: Stage, size: int, quick: bool) -> None:
    """So many messages become dead letters in one moment."""
    del quick
    with stage.client() as client:
        client.call(frames.queue_declare(DEAD, durable=True))
        client.call(frames.queue_declare(QUEUE, durable=True, arguments=DEAD_LETTERS))
        store(stage, [QUEUE], size)
        with stage.client() as consumer:
            take_all(consumer, [QUEUE], size)
            with stage.measured("rejected", size):
                consumer.call(nack(size, requeue=False) + frames.qos(0))
                until(lambda: count_in(client, DEAD) == size)
        client.call(purge(DEAD))
        # These wait behind one that does not expire, and is taken away then.
        first = frames.properties(expiration="3600000")
        client.call(frames.publish("", QUEUE, BODY, persistent=True, block=first) + frames.qos(0))
        store(stage, [QUEUE], size, block=frames.properties(expiration="1"))
        with stage.client() as taker, stage.measured("expired", size):
            taker.call(frames.get(QUEUE, no_ack=True))
            until(lambda: count_in(client, DEAD) == size)


def commits(stage: Stage, size: int, quick: bool) -> None:
    """A transaction that settles so many deliveries."""
    del quick
    with stage.client() as control:
        control.call(frames.queue_declare(DEAD, durable=True))
        for series, settle, table in (
            ("acked", ack(size), b""),
            ("dead-lettered", nack(size, requeue=False), DEAD_LETTERS),
        ):
            control.call(frames.queue_declare(QUEUE, durable=True, arguments=table))
            store(stage, [QUEUE], size)
            with stage.client() as client:
                client.call(frames.tx_select())
                take_all(client, [QUEUE], size)
                client.call(settle + frames.qos(0))
                if not table:
                    with stage.measured("rolled back", size):
                        client.call(tx_rollback())
                    client.call(settle + frames.qos(0))
                with stage.measured(series, size):
                    client.call(frames.tx_commit())
            assert count_in(control, DEAD) == (size if table else 0)
            control.call(frames.queue_delete(QUEUE))


def published_commits(stage: Stage, size: int, quick: bool) -> None:
    """A transaction that publishes so many messages, none like the one before."""
    del quick
    names = [f"bench-{index}" for index in range(QUEUE_COUNT)]
    with stage.client() as client:
        for name in names:
            client.call(frames.queue_declare(name, durable=True))
        client.call(frames.tx_select())
        octets = b"".join(frames.publish("", name, BODY, persistent=True) for name in names)
        client.call(octets * (size // QUEUE_COUNT) + frames.qos(0))
        with stage.measured("published", size):
            client.call(frames.tx_commit())
        assert sum(count_in(client, name) for name in names) == size


def ends(stage: Stage, size: int, quick: bool) -> None:
    """A channel with so many unacknowledged deliveries of a hundred queues ends."""
    del quick
    names = [f"bench-{index:02}" for index in range(QUEUE_COUNT)]
    with stage.client() as control:
        for name in names:
            control.call(frames.queue_declare(name, durable=True))
        store(stage, names, size)
        with stage.client() as client:
            take_all(client, names, size)
            with stage.measured("channel closed", size):
                client.call(frames.channel_close())
                until(lambda: count_in(control, names[-1]) == size // QUEUE_COUNT)
        lost = Client(stage.address)
        take_all(lost, names, size)
        with stage.measured("connection lost", size):
            lost.drop()
            until(lambda: count_in(control, names[-1]) == size // QUEUE_COUNT)
        with stage.client() as client:
            take_all(client, names, size)
            with stage.measured("requeued", size):
                client.call(nack(size, requeue=True) + frames.channel_close())
                until(lambda: count_in(control, names[-1]) == size // QUEUE_COUNT)


def topology(stage: Stage, size: int, quick: bool) -> None:
    """So many declarations, bindings and deletions, each kind in one write."""
    del quick
    names = [f"bench-{index}" for index in range(size)]
    with stage.client() as client:
        client.call(frames.exchange_declare(EXCHANGE, "topic"))
        steps: tuple[tuple[str, list[bytes]], ...] = (
            ("declared, durable", [declare_nowait(name, durable=True) for name in names]),
            ("declared again", [declare_nowait(name, durable=True) for name in names]),
            ("bound", [bind(name, f"{name}.*.order.#") for name in names]),
            ("deleted", [delete_nowait(name) for name in names]),
            ("declared, transient", [declare_nowait(name) for name in names]),
            ("deleted, transient", [delete_nowait(name) for name in names]),
        )
        for series, methods in steps:
            with stage.measured(series, size):
                client.call(b"".join(methods) + frames.qos(0))


def bind(name: str, key: str) -> bytes:
    """Encode queue.bind without waiting for an answer."""
    names = frames.shortstr(name) + frames.shortstr(EXCHANGE) + frames.shortstr(key)
    return frames.method(1, (50, 20), b"\0\0" + names + b"\1" + frames.longstr(b""))


def tx_rollback() -> bytes:
    """Encode tx.rollback."""
    return frames.method(1, (90, 30))


STORMS: Final = (
    Curve("purge", "Messages of a queue that is purged", "message", MESSAGES, FEW_MESSAGES, purges),
    Curve(
        "delete", "Messages of a queue that is deleted", "message", MESSAGES, FEW_MESSAGES, deletes
    ),
    Curve(
        "dead_letters",
        "Messages that become dead letters at once",
        "message",
        MESSAGES,
        FEW_MESSAGES,
        dead_letters,
    ),
    Curve(
        "commit", "Deliveries that a commit settles", "message", MESSAGES[:3], FEW_MESSAGES, commits
    ),
    Curve(
        "commit_published",
        "Messages that a commit publishes",
        "message",
        MESSAGES[:3],
        FEW_MESSAGES,
        published_commits,
    ),
    Curve(
        "end",
        "Unacknowledged deliveries of a channel that ends",
        "delivery",
        MESSAGES,
        FEW_MESSAGES,
        ends,
    ),
    Curve(
        "topology", "Queues that are declared and deleted", "queue", THINGS, FEW_THINGS, topology
    ),
)
