"""Bodies and properties that every client sends through the broker and wants back unchanged."""

from __future__ import annotations

from typing import Final

FRAME_MAX: Final = 131072
FRAME_OVERHEAD: Final = 8
FULL_FRAME: Final = FRAME_MAX - FRAME_OVERHEAD
MIB: Final = 1024 * 1024

# Nothing, one octet, one octet around one and two full body frames, many frames.
BODY_SIZES: Final = (
    0,
    1,
    FULL_FRAME - 1,
    FULL_FRAME,
    FULL_FRAME + 1,
    2 * FULL_FRAME,
    2 * FULL_FRAME + 1,
    MIB,
    10 * MIB,
)

# Types that every client can send (pika refuses floats); the exotic ones have unit tests.
HEADERS: Final[dict[str, object]] = {
    "text": "grüße",
    "empty": "",
    "yes": True,
    "no": False,
    "int": 42,
    "negative": -7,
    "large": 2**40,
    "nothing": None,
    "list": [1, "two", [3, None]],
    "table": {"inner": {"deep": "value"}, "n": 1},
}

FLOATS: Final[dict[str, object]] = {"float": 2.5, "quarter": -0.25}

PROPERTIES: Final[dict[str, object]] = {
    "content_type": "application/json",
    "content_encoding": "identity",
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "corr-ü-1",
    "reply_to": "some.reply.queue",
    "message_id": "message-1",
    "timestamp": 1_700_000_000,
    "type": "sample.type",
    "user_id": "guest",
    "app_id": "vouchmq-tests",
    "cluster_id": "cluster-1",
}


def body_of(size_bytes: int) -> bytes:
    """A body in which a missing, doubled or shifted piece would show."""
    block = b"".join(index.to_bytes(4, "big") for index in range(1021))
    return (block * (size_bytes // len(block) + 1))[:size_bytes]
