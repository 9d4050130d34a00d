"""Scenarios about a backlog: queues are filled first, then consumers alone empty them.

Filling is outside the clocks. How long a message waited says nothing here, so bodies carry
no time of sending.
"""

from __future__ import annotations

from typing import Final

from bench.scenarios.flow import LARGE_SIZE, QUEUE
from bench.shape import Consumer, Mode, Publisher, Queue, Scenario, Shape

PREFETCH_COUNT: Final = 200
ACK_EVERY: Final = 50


def _drain(body_size: int, count: int, *, persistent: bool) -> Shape:
    filler = Publisher(
        (QUEUE,), body_size, count, persistent=persistent, mode=Mode.WINDOW, window=1_000
    )
    return Shape(
        (Queue(QUEUE, durable=persistent),),
        consumers=(Consumer(QUEUE, body_size, ACK_EVERY, PREFETCH_COUNT),),
        fill=(filler,),
    )


SCENARIOS: Final = (
    Scenario(
        "drain_transient_100b",
        "A backlog of 500,000 small messages: how fast does one consumer empty it?",
        _drain(100, 500_000, persistent=False),
    ),
    Scenario(
        "drain_persistent_1k",
        "A backlog of 100,000 persistent messages: how fast does one consumer empty it?",
        _drain(LARGE_SIZE, 100_000, persistent=True),
    ),
)
