"""Scenarios about publishers that want to know: confirms one by one, in batches, in windows.

Persistent messages of 1 KiB to a durable queue that nobody consumes. The counted ones send
50,000, the number by which confirm strategies are usually compared.
"""

from __future__ import annotations

from typing import Final

from bench.shape import Mode, Publisher, Queue, Scenario, Shape

QUEUE: Final = "bench-0"
BODY_SIZE: Final = 1024
SMALL_SIZE: Final = 10
MESSAGE_COUNT: Final = 50_000
COUNTED_GUARD_MS: Final = 120_000
GUARD_MS: Final = 30_000
"""A counted scenario ends by its count; the time is there for a broker that does not move."""


def _counted(mode: Mode, count: int) -> Shape:
    publisher = Publisher(
        (QUEUE,), SMALL_SIZE, count, persistent=True, mode=mode, window=1, fan_count=0
    )
    return Shape(
        (Queue(QUEUE, durable=True),),
        (publisher,),
        duration_ms=COUNTED_GUARD_MS,
        is_counted=True,
    )


def _shape(mode: Mode, window: int, *, publisher_count: int = 1, duration_ms: int = 4_000) -> Shape:
    publisher = Publisher(
        (QUEUE,),
        BODY_SIZE,
        MESSAGE_COUNT if publisher_count == 1 else MESSAGE_COUNT * 4 // publisher_count,
        persistent=True,
        mode=mode,
        window=window,
        fan_count=0,
    )
    return Shape(
        (Queue(QUEUE, durable=True),), (publisher,) * publisher_count, duration_ms=duration_ms
    )


SCENARIOS: Final = (
    Scenario(
        "confirm_each",
        "How many messages a second if each waits for its own confirm?",
        _shape(Mode.WINDOW, 1),
        also=("ms_per_50k",),
    ),
    Scenario(
        "confirm_each_50k",
        "50,000 persistent messages of 10 B, each confirmed before the next: how long?",
        _counted(Mode.WINDOW, MESSAGE_COUNT),
        headline="total_ms",
    ),
    Scenario(
        "tx_commit_2k",
        "2,000 transactions of one message: how long?",
        _counted(Mode.TX, 2_000),
        headline="total_ms",
    ),
    Scenario(
        "confirm_batch_100",
        "50,000 persistent messages, all confirms awaited after every 100: how fast?",
        _shape(Mode.BATCH, 100, duration_ms=GUARD_MS),
        also=("ms_per_50k",),
    ),
    Scenario(
        "confirm_window_1000",
        "50,000 persistent messages, at most 1,000 unconfirmed: how fast?",
        _shape(Mode.WINDOW, 1_000, duration_ms=GUARD_MS),
        also=("ms_per_50k",),
    ),
    Scenario(
        "confirm_async_50k",
        "50,000 persistent messages at once, confirms as they come: how fast?",
        _shape(Mode.WINDOW, MESSAGE_COUNT, duration_ms=GUARD_MS),
        also=("ms_per_50k",),
    ),
    Scenario(
        "tx_commit_each",
        "How many messages a second if each is a transaction?",
        _shape(Mode.TX, 1),
    ),
    Scenario(
        "producers_50_window1",
        "Do fifty clients that each wait for every confirm share the syncs?",
        _shape(Mode.WINDOW, 1, publisher_count=50),
    ),
)
