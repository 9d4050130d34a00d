"""Scenarios like real traffic: no two messages alike, workers that take one at a time.

Nothing pauses a publisher that waits for confirms but its window, so the end-to-end latency
shows what a broker lets pile up in front of consumers that keep up.
"""

from __future__ import annotations

from random import Random
from typing import Final

from bench import frames
from bench.scenarios.flow import BACKLOG_COUNT, LARGE_SIZE, QUEUE
from bench.shape import Consumer, Message, Mode, Publisher, Queue, Scenario, Shape

EXCHANGE: Final = "bench-events"
KEY_COUNT: Final = 1_000
MESSAGE_COUNT: Final = 2_000
"""Of the cycle; the message id and the time of sending are new each time round."""
SMALLEST_SIZE: Final = 16
PREFETCH_COUNT: Final = 200
WORKER_COUNT: Final = 50
REGIONS: Final = ("eu", "us", "apac", "latam")
EVENTS: Final = ("order.created", "order.paid", "parcel.sent", "refund.asked", "cart.left")
CONTENT_TYPES: Final = ("application/json", "application/octet-stream", "text/plain")
FIRST_TIMESTAMP_S: Final = 1_750_000_000


def routing_keys() -> list[str]:
    """A thousand keys of three to four words: region, shop, event."""
    shops = KEY_COUNT // len(REGIONS) // len(EVENTS)
    return [
        f"{region}.shop-{shop}.{event}"
        for region in REGIONS
        for shop in range(shops)
        for event in EVENTS
    ]


def unlike_messages(*, persistent: bool) -> tuple[Message, ...]:
    """Make the messages of a cycle: seven properties, a key of a thousand, 16 B to 1 KiB.

    Small bodies are more frequent than large ones: each doubling of the size is as likely.
    """
    random, keys = Random(12), routing_keys()
    return tuple(
        Message(
            random.choice(keys),
            _properties(random, index, persistent=persistent),
            int(SMALLEST_SIZE * (LARGE_SIZE / SMALLEST_SIZE) ** random.random()),
        )
        for index in range(MESSAGE_COUNT)
    )


def _properties(random: Random, index: int, *, persistent: bool) -> bytes:
    trace, tenant = f"{random.getrandbits(128):032x}", f"tenant-{random.randrange(300)}"
    headers = (
        frames.text_entry("trace-id", trace)
        + frames.text_entry("tenant", tenant)
        + frames.number_entry("attempt", random.randrange(4))
    )
    return frames.properties(
        content_type=random.choice(CONTENT_TYPES),
        headers=headers,
        persistent=persistent,
        correlation_id=f"{random.getrandbits(64):016x}",
        message_id=frames.NUMBER.decode(),
        timestamp_s=FIRST_TIMESTAMP_S + index * random.randrange(1, 9),
        kind=random.choice(EVENTS),
    )


def _unlike(*, persistent: bool) -> Shape:
    publisher = Publisher(
        (),
        LARGE_SIZE,
        400_000 if persistent else 1_000_000,
        exchange=EXCHANGE,
        persistent=persistent,
        mode=Mode.WINDOW if persistent else Mode.NONE,
        window=500,
        backlog_count=0 if persistent else BACKLOG_COUNT,
        stamped=True,
        has_numbers=True,
        messages=unlike_messages(persistent=persistent),
    )
    consumer = Consumer(
        QUEUE,
        LARGE_SIZE,
        ack_every=1 if persistent else 0,
        prefetch_count=PREFETCH_COUNT if persistent else 0,
        stamped=True,
        smallest_size=SMALLEST_SIZE,
    )
    return Shape(
        (Queue(QUEUE, durable=persistent, binding_key="*.*.#"),),
        (publisher,),
        (consumer,),
        fanout_exchange=EXCHANGE,
        exchange_kind="topic",
    )


def _work_queue() -> Shape:
    publisher = Publisher(
        (QUEUE,), 256, 100_000, persistent=True, mode=Mode.WINDOW, window=100, stamped=True
    )
    worker = Consumer(QUEUE, 256, ack_every=1, prefetch_count=1, stamped=True)
    return Shape((Queue(QUEUE, durable=True),), (publisher,) * 4, (worker,) * WORKER_COUNT)


def _saturated() -> Shape:
    publisher = Publisher(
        (QUEUE,), LARGE_SIZE, 400_000, persistent=True, mode=Mode.WINDOW, window=500, stamped=True
    )
    consumer = Consumer(QUEUE, LARGE_SIZE, ack_every=1, prefetch_count=PREFETCH_COUNT, stamped=True)
    return Shape((Queue(QUEUE, durable=True),), (publisher,), (consumer,))


SCENARIOS: Final = (
    Scenario(
        "unlike_persistent",
        "No two messages alike, confirmed and acknowledged: what does a run of one cost?",
        _unlike(persistent=True),
    ),
    Scenario(
        "unlike_transient_autoack",
        "No two messages alike, without confirms and acks.",
        _unlike(persistent=False),
    ),
    Scenario(
        "work_queue_prefetch1",
        "Four publishers, fifty workers on one queue that take one message at a time.",
        _work_queue(),
    ),
    Scenario(
        "saturation_e2e",
        "How late is a message while one publisher and one consumer run at full speed?",
        _saturated(),
        headline="delivery_p50_ms",
        ceiling="rate_per_s",
    ),
)
