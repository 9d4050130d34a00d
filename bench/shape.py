"""What a scenario is made of: a name, a question and a shape; values only, nothing runs here.

The unit of every limit is in its name. A round ends when the time or the messages are used
up, whichever is first, and everything that was sent has arrived and is confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

QUICK: Final = 0.2
"""What a quick round keeps of the time and of the messages of a full one."""

DRAIN_MS: Final = 60_000


class Mode(Enum):
    """How a publisher learns that its messages are safe."""

    NONE = "none"
    """Not at all: it floods."""
    WINDOW = "window"
    """Confirms, with at most `window` of them awaited at a time."""
    BATCH = "batch"
    """Confirms; after `window` messages it waits for all of them."""
    TX = "tx"
    """tx.commit after every message."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue, durable if its messages are to survive, bound to the exchange if there is one.

    A stream is a durable one that keeps what was consumed. `arguments` are the entries of a
    table, encoded.
    """

    name: str
    durable: bool = False
    is_stream: bool = False
    arguments: bytes = b""
    dead_from: str = ""
    """It gets all that another queue lets go as dead."""
    binding_key: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """What is particular about one message of a cycle; `block` are its properties, encoded."""

    routing_key: str
    block: bytes
    body_size: int


@dataclass(frozen=True, slots=True)
class Publisher:
    """One connection that publishes; routing keys are used in turn, one each message.

    With `messages` these are sent in turn, and keys, properties and the one size mean nothing.
    """

    routing_keys: tuple[str, ...]
    body_size: int
    limit_count: int
    exchange: str = ""
    persistent: bool = False
    mode: Mode = Mode.NONE
    window: int = 1
    rate_per_s: int = 0
    """0: as fast as it goes."""
    backlog_count: int = 0
    """It pauses while so many deliveries are due that did not arrive; 0: never."""
    fan_count: int = 1
    """Deliveries each message leads to; 0 when nobody consumes."""
    stamped: bool = False
    """Bodies begin with the time of sending, for the latency end to end."""
    properties: tuple[bytes, ...] = ()
    """Property blocks (`frames.properties`) in turn; none: the delivery mode alone."""
    has_numbers: bool = False
    """Where a block holds `frames.NUMBER` each message gets another number, 16 hex digits."""
    messages: tuple[Message, ...] = ()
    worker: int = 0

    def body_bytes(self, count: int) -> int:
        """Sum the bodies of the first `count` messages."""
        if not self.messages:
            return self.body_size * count
        cycles, more = divmod(count, len(self.messages))
        sizes = [message.body_size for message in self.messages]
        return cycles * sum(sizes) + sum(sizes[:more])


@dataclass(frozen=True, slots=True)
class Consumer:
    """One connection that consumes from one queue, or from several with a consumer for each."""

    queue: str
    body_size: int
    """Of the largest body."""
    ack_every: int = 0
    """0: no_ack; n > 1: one multiple ack for n deliveries."""
    prefetch_count: int = 0
    stamped: bool = False
    rejects: bool = False
    """It refuses what it gets instead of acknowledging it."""
    smallest_size: int | None = None
    """Of the smallest body; None: all have one size."""
    more_queues: tuple[str, ...] = ()
    tag_count: int = 1
    """How many consumers it has on each of its queues."""
    worker: int = 1

    @property
    def queues(self) -> tuple[str, ...]:
        """All queues it consumes from."""
        return (self.queue, *self.more_queues)


@dataclass(frozen=True, slots=True)
class Shape:
    """Who publishes what to whom, and for how long.

    With `fill` these publishers come first, each sends all it has, and the clocks start
    afterwards, with the subscription of the consumers.
    """

    queues: tuple[Queue, ...] = ()
    publishers: tuple[Publisher, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    fill: tuple[Publisher, ...] = ()
    fanout_exchange: str = ""
    """Every queue is bound to it with its key, and gets every message."""
    exchange_kind: str = "fanout"
    exchange_arguments: bytes = b""
    more_methods: bytes = b""
    """Sent when queues and exchange are there: methods without answers, such as more bindings."""
    churn_client_count: int = 0
    churn_limit_count: int = 5_000
    duration_ms: int = 3_000
    is_counted: bool = False
    """It asks how long all messages take; those that the time did not suffice for are an error."""

    def quick(self) -> Shape:
        """Make the same shape shorter; the time of a counted one is only its guard."""
        shorter_ms = max(int(self.duration_ms * QUICK), 600)
        return replace(
            self,
            duration_ms=self.duration_ms if self.is_counted else shorter_ms,
            churn_limit_count=int(self.churn_limit_count * QUICK),
            publishers=_fewer(self.publishers),
            fill=_fewer(self.fill),
        )


def _fewer(publishers: tuple[Publisher, ...]) -> tuple[Publisher, ...]:
    return tuple(
        replace(publisher, limit_count=int(publisher.limit_count * QUICK))
        for publisher in publishers
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named question and the shape that answers it."""

    name: str
    question: str
    shape: Shape
    headline: str = "rate_per_s"
    """The value that stands in the table: a rate, or a latency for which less is better."""
    also: tuple[str, ...] = ()
    """Values to show beneath it, besides those that have a target, latencies and CPU time."""
    ceiling: str = ""
    """The value to hold against the sink's; empty: the headline."""
