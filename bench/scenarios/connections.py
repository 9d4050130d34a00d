"""Scenarios about connections themselves, and about many queues and consumers."""

from __future__ import annotations

from typing import Final

from bench.scenarios.flow import LARGE_SIZE
from bench.shape import Consumer, Mode, Publisher, Queue, Scenario, Shape

QUEUE_COUNT: Final = 500
CONSUMER_COUNT: Final = 50
PREFETCH_COUNT: Final = 200


def _many_queues() -> Shape:
    names = tuple(f"bench-{index}" for index in range(QUEUE_COUNT))
    publisher = Publisher(
        names, LARGE_SIZE, 400_000, persistent=True, mode=Mode.WINDOW, window=500, stamped=True
    )
    consumers = tuple(
        Consumer(
            names[first],
            LARGE_SIZE,
            ack_every=1,
            prefetch_count=PREFETCH_COUNT,
            stamped=True,
            more_queues=names[first + CONSUMER_COUNT :: CONSUMER_COUNT],
        )
        for first in range(CONSUMER_COUNT)
    )
    return Shape(tuple(Queue(name, durable=True) for name in names), (publisher,), consumers)


SCENARIOS: Final = (
    Scenario(
        "connection_churn",
        "Connect, open a channel, close, four clients at once: how often a second?",
        Shape(churn_client_count=4),
    ),
    Scenario(
        "connect_500",
        "The same 500 times, one client after the other.",
        Shape(churn_client_count=1, churn_limit_count=500, duration_ms=30_000),
    ),
    Scenario(
        "queues_500_consumers_50",
        "500 queues in turn, fifty connections that consume from ten each.",
        _many_queues(),
    ),
)
