"""Scenarios about waiting: how long one message takes, alone and beside a flood."""

from __future__ import annotations

from typing import Final

from bench.scenarios.flow import BACKLOG_COUNT, LARGE_SIZE, SMALL_SIZE
from bench.shape import Consumer, Mode, Publisher, Queue, Scenario, Shape

FLOODED, SMALL = "bench-0", "bench-1"
RATE_PER_S: Final = 2_000

SCENARIOS: Final = (
    Scenario(
        "flood_confirm_p50",
        "How long does a small client wait for a confirm while another floods?",
        Shape(
            (Queue(FLOODED), Queue(SMALL, durable=True)),
            (
                Publisher(
                    (FLOODED,), SMALL_SIZE, 4_000_000, backlog_count=BACKLOG_COUNT, stamped=True
                ),
                Publisher(
                    (SMALL,),
                    LARGE_SIZE,
                    100_000,
                    persistent=True,
                    mode=Mode.WINDOW,
                    fan_count=0,
                    worker=2,
                ),
            ),
            (Consumer(FLOODED, SMALL_SIZE, stamped=True),),
        ),
        headline="confirm_p50_ms",
        also=("rate_per_s",),
    ),
    Scenario(
        "latency_2000",
        "2,000 persistent messages a second, confirmed and acknowledged: how late are they?",
        Shape(
            (Queue(FLOODED, durable=True),),
            (
                Publisher(
                    (FLOODED,),
                    LARGE_SIZE,
                    100_000,
                    persistent=True,
                    mode=Mode.WINDOW,
                    window=2_000,
                    rate_per_s=RATE_PER_S,
                    stamped=True,
                ),
            ),
            (Consumer(FLOODED, LARGE_SIZE, ack_every=1, prefetch_count=500, stamped=True),),
        ),
        headline="delivery_p50_ms",
    ),
)
