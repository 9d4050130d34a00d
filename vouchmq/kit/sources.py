"""What a receiver takes its messages from. Knows no channel.

Spec: REDELIVER-35, REDELIVER-50
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vouchmq.kit.message import Message

Callback = Callable[["Message"], Awaitable[object] | object]


@dataclass(slots=True, frozen=True)
class Subscription:
    """A binding by which a topic-like source gets its messages."""

    exchange: str
    routing_key: str


@dataclass(slots=True)
class Source:
    """A queue, and who gets its messages: a callback, or `receive()` when there is none.

    The queue of a subscription belongs to its connection, so after a reconnect it has another
    name.
    """

    queue: str
    callback: Callback | None
    subscription: Subscription | None = None
    tag: str = field(default_factory=lambda: f"kit-{uuid.uuid4().hex}")

    @property
    def is_topic_like(self) -> bool:
        """True for the kit's own exclusive queues."""
        return self.subscription is not None


def fresh_queue_name() -> str:
    """A name for an exclusive queue; brokers keep the names that begin with `amq.`."""
    return f"vouchmq-kit-{uuid.uuid4().hex}"
