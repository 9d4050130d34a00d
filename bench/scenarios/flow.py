"""Scenarios about messages that pass through: published, delivered, acknowledged, counted.

A publisher without confirms pauses while BACKLOG_COUNT deliveries are due: the figure is a
throughput, not the speed at which a broker can fill its memory. The time includes the
delivery of everything sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bench.shape import Consumer, Mode, Publisher, Queue, Scenario, Shape

QUEUE: Final = "bench-0"
SMALL_SIZE: Final = 16
LARGE_SIZE: Final = 1024
HUGE_SIZE: Final = 65_536
BACKLOG_COUNT: Final = 100_000


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"bench-{index}" for index in range(count))


def _transient(body_size: int, limit_count: int, *, ack_every: int = 0, prefetch: int = 0) -> Shape:
    backlog = BACKLOG_COUNT if body_size < LARGE_SIZE else BACKLOG_COUNT // 4
    return Shape(
        (Queue(QUEUE),),
        (Publisher((QUEUE,), body_size, limit_count, backlog_count=backlog, stamped=True),),
        (Consumer(QUEUE, body_size, ack_every, prefetch, stamped=True),),
    )


def _persistent(*, window: int, ack_every: int, prefetch: int, pair_count: int = 1) -> Shape:
    names = _names(pair_count)
    return Shape(
        tuple(Queue(name, durable=True) for name in names),
        tuple(
            Publisher(
                (name,),
                LARGE_SIZE,
                400_000 // pair_count,
                persistent=True,
                mode=Mode.WINDOW,
                window=window,
                backlog_count=BACKLOG_COUNT,
                stamped=True,
            )
            for name in names
        ),
        tuple(Consumer(name, LARGE_SIZE, ack_every, prefetch, stamped=True) for name in names),
    )


def _stream() -> Shape:
    usual = _persistent(window=500, ack_every=1, prefetch=500)
    return replace(usual, queues=(Queue(QUEUE, durable=True, is_stream=True),))


def _fanout(queue_count: int, body_size: int) -> Shape:
    names = _names(queue_count)
    publisher = Publisher(
        ("",),
        body_size,
        1_000_000,
        exchange="bench-fanout",
        backlog_count=BACKLOG_COUNT,
        fan_count=queue_count,
        stamped=True,
    )
    return Shape(
        tuple(Queue(name) for name in names),
        (publisher,),
        tuple(Consumer(name, body_size, stamped=True) for name in names),
        fanout_exchange="bench-fanout",
    )


def _one_to_many(queue_count: int) -> Shape:
    names = _names(queue_count)
    publisher = Publisher(
        names,
        LARGE_SIZE,
        400_000,
        persistent=True,
        mode=Mode.WINDOW,
        window=500,
        backlog_count=BACKLOG_COUNT,
        stamped=True,
    )
    consumers = tuple(
        Consumer(name, LARGE_SIZE, ack_every=1, prefetch_count=500, stamped=True) for name in names
    )
    return Shape(tuple(Queue(name, durable=True) for name in names), (publisher,), consumers)


def _huge() -> Shape:
    publisher = Publisher(
        (QUEUE,),
        HUGE_SIZE,
        40_000,
        persistent=True,
        mode=Mode.WINDOW,
        window=100,
        backlog_count=BACKLOG_COUNT * LARGE_SIZE // HUGE_SIZE,
        stamped=True,
    )
    consumer = Consumer(QUEUE, HUGE_SIZE, ack_every=1, prefetch_count=100, stamped=True)
    return Shape((Queue(QUEUE, durable=True),), (publisher,), (consumer,))


SCENARIOS: Final = (
    Scenario(
        "transient_16b_autoack",
        "What does a message cost when nothing but passing it on is asked?",
        _transient(SMALL_SIZE, 4_000_000),
    ),
    Scenario(
        "transient_1k_autoack",
        "The same with 1 KiB: what do the copies cost?",
        _transient(LARGE_SIZE, 1_500_000),
    ),
    Scenario(
        "transient_16b_prefetch200_ack_each",
        "What do acknowledgements one by one and credit add?",
        _transient(SMALL_SIZE, 4_000_000, ack_every=1, prefetch=200),
    ),
    Scenario(
        "persistent_1k_window500_ack_each",
        "The usual work queue: durable, confirmed, acknowledged one by one.",
        _persistent(window=500, ack_every=1, prefetch=500),
    ),
    Scenario(
        "persistent_1k_window500_ack50",
        "The same with one multiple ack for fifty deliveries.",
        _persistent(window=500, ack_every=50, prefetch=500),
    ),
    Scenario(
        "persistent_64k",
        "Bodies of 64 KiB, confirmed and acknowledged: what do copies and the disk cost?",
        _huge(),
    ),
    Scenario(
        "stream_1k_window500_ack_each",
        "The work queue as a stream: what do offsets cost?",
        _stream(),
    ),
    Scenario(
        "p8c8q8",
        "Eight work queues side by side: are runs and syncs still shared?",
        _persistent(window=100, ack_every=1, prefetch=100, pair_count=8),
    ),
    Scenario(
        "fanout_10",
        "One message to ten queues: what does each further delivery cost?",
        _fanout(10, 128),
    ),
    Scenario(
        "one_producer_10_queues_persistent",
        "A routing key that changes with every message: do runs of one hurt?",
        _one_to_many(10),
    ),
)
