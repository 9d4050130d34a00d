"""What has been counted since the broker started: plain integers, kept by those who do it.

Whoever hands out, settles or drops a run of messages adds its length once. Nothing is counted per
message, nothing has a lock or a time, and nobody is told: views read the numbers when they are
asked for. Those of queues and channels that have gone are added up where they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final, cast

from vouchmq.server.broker.queues.settlement import DeadLetterReason
from vouchmq.store.histogram import DURATIONS_S, Histogram

# The fields of each kind of counters, and what gets them all at once.
_NAMES: Final[dict[type, tuple[tuple[str, ...], Callable[[object], tuple[int, ...]]]]] = {}


@dataclass(slots=True)
class Counters:
    """Numbers that can be added up."""

    def add(self, others: Counters) -> None:
        """Take in all numbers of others of the same kind."""
        kind = type(others)
        known = _NAMES.get(kind)
        if known is None:
            # Ten thousand queues are added up at a time: looking at their fields takes longest.
            names = tuple(field.name for field in fields(others))
            known = _NAMES[kind] = names, attrgetter(*names)
        names, numbers_of = known
        numbers = numbers_of(others)
        if any(numbers):
            for name, number in zip(names, numbers, strict=True):
                if number:
                    setattr(self, name, getattr(self, name) + number)


@dataclass(slots=True)
class QueueCounters(Counters):
    """What has become of the messages of a queue.

    `published` messages came in, from wherever. `redelivered` deliveries had been handed out
    before, `resent` are those of basic.recover without requeue. `rejected` are all that a client
    gave back, requeued or not. `expired` and `dropped`, by a length limit, may be `dead_lettered`
    as well: sent to the dead letter exchange. `dead_letters_dropped` of those led nowhere.
    `delivered` are all that were handed out. Of those, `delivered_no_ack` went to consumers who do
    not ack, and `got` and `got_no_ack` to basic.get, which found nothing `get_empty` times.
    """

    published: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    get_empty: int = 0
    redelivered: int = 0
    resent: int = 0
    acked: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    dead_letters_dropped: int = 0
    expired: int = 0
    dropped: int = 0

    def died(self, reason: DeadLetterReason, count: int) -> None:
        """Messages have left the queue for this reason, as dead letters or not."""
        if reason is DeadLetterReason.EXPIRED:
            self.expired += count
        elif reason is DeadLetterReason.MAXLEN:
            self.dropped += count


@dataclass(slots=True)
class ExchangeCounters(Counters):
    """Messages that clients published to an exchange, and their copies in queues."""

    published_in: int = 0
    published_out: int = 0


class DeletedCounters:
    """What queues that are gone have counted, by their type, and what exchanges have."""

    __slots__ = ("by_type", "exchanges")

    def __init__(self) -> None:
        self.by_type: dict[str, QueueCounters] = {}
        self.exchanges = ExchangeCounters()

    def add(self, queue_type: str, counters: QueueCounters) -> None:
        """A queue is gone."""
        self.by_type.setdefault(queue_type, QueueCounters()).add(counters)

    def add_all(self, others: DeletedCounters) -> None:
        """Take in what is counted elsewhere."""
        for queue_type, counters in others.by_type.items():
            self.add(queue_type, counters)
        self.exchanges.add(others.exchanges)


@dataclass(slots=True, init=False)
class ChannelCounters(Counters):
    """What a channel has published and got.

    `published_confirm` publishes are to be confirmed. `unroutable` ones reached no queue and were
    not returned. `delivered` deliveries include those of basic.get. The rest is as of
    a queue.
    """

    published: int = 0
    published_confirm: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    unroutable: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    get_empty: int = 0
    redelivered: int = 0
    resent: int = 0
    acked: int = 0
    rejected: int = 0

    def __init__(self) -> None:
        """Written out: what a dataclass is given is interpreted, and costs ten times as much."""
        self.published = 0
        self.published_confirm = 0
        self.confirmed = 0
        self.nacked = 0
        self.returned = 0
        self.unroutable = 0
        self.delivered = 0
        self.delivered_no_ack = 0
        self.got = 0
        self.got_no_ack = 0
        self.get_empty = 0
        self.redelivered = 0
        self.resent = 0
        self.acked = 0
        self.rejected = 0

    def add(self, others: Counters) -> None:
        """See `Counters`; written out, because each channel that ends is counted three times."""
        others = cast("ChannelCounters", others)
        self.published += others.published
        self.published_confirm += others.published_confirm
        self.confirmed += others.confirmed
        self.nacked += others.nacked
        self.returned += others.returned
        self.unroutable += others.unroutable
        self.delivered += others.delivered
        self.delivered_no_ack += others.delivered_no_ack
        self.got += others.got
        self.got_no_ack += others.got_no_ack
        self.get_empty += others.get_empty
        self.redelivered += others.redelivered
        self.resent += others.resent
        self.acked += others.acked
        self.rejected += others.rejected


@dataclass(slots=True, init=False)
class ConnectionCounters(Counters):
    """Bytes of AMQP that a connection has received and sent; of TLS, those inside it."""

    received_bytes: int = 0
    sent_bytes: int = 0

    def __init__(self) -> None:
        """See `ChannelCounters`."""
        self.received_bytes = 0
        self.sent_bytes = 0

    def add(self, others: Counters) -> None:
        """See `Counters`; written out, as for channels."""
        others = cast("ConnectionCounters", others)
        self.received_bytes += others.received_bytes
        self.sent_bytes += others.sent_bytes


class ConfirmTimes:
    """How long publishes wait for the disk, on all channels of a broker.

    `synced_at` is when the watermark has moved last, by the clock that `Confirms.published` has its
    times from.
    """

    __slots__ = ("histogram", "synced_at")

    def __init__(self) -> None:
        self.histogram = Histogram(DURATIONS_S)
        self.synced_at = 0.0


@dataclass(slots=True)
class ChurnCounters(Counters):
    """How often clients declared a queue, and how many queues were made and deleted by anybody."""

    declared: int = 0
    created: int = 0
    deleted: int = 0


@dataclass(slots=True)
class ClosedCounters:
    """What channels and connections that are closed have counted, and how many there ever were."""

    channels: ChannelCounters
    connections: ConnectionCounters
    channels_opened: int = 0
    connections_opened: int = 0
