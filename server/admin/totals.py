"""The whole broker in numbers: what is there, and what everybody has counted so far."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from vouchmq.server.broker.counters import (
    ChannelCounters,
    ConnectionCounters,
    ExchangeCounters,
    QueueCounters,
)
from vouchmq.server.broker.features.options import CLASSIC, QUORUM, STREAM, queue_type_of
from vouchmq.server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from vouchmq.server.broker.broker import Broker
    from vouchmq.server.broker.counters import ClosedCounters
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.connection.connection import Connection
    from vouchmq.server.runtime.alarms import Alarms


class OverviewView(Struct, frozen=True, array_like=True):
    """The whole broker: what there is, and what has been counted since it started.

    Closed channels and connections and deleted queues are in the numbers. `connections_blocked`
    are those that an alarm keeps from publishing; `dead_letters_dropped` led nowhere.
    """

    node: str
    version: str
    vhosts: int
    exchanges: int
    queues: int
    connections: int
    connections_blocked: int
    connections_opened: int
    channels: int
    channels_opened: int
    consumers: int
    messages: int
    messages_ready: int
    messages_unacknowledged: int
    published: int
    confirmed: int
    nacked: int
    returned: int
    unroutable: int
    delivered: int
    delivered_no_ack: int
    got: int
    got_no_ack: int
    get_empty: int
    redelivered: int
    acked: int
    rejected: int
    dead_lettered: int
    dead_letters_dropped: int
    expired: int
    dropped: int
    received_bytes: int
    sent_bytes: int
    queues_declared: int
    queues_created: int
    queues_deleted: int


class Source(Protocol):
    """What the totals of a broker are added up from."""

    name: str
    broker: Broker[Queue]
    alarms: Alarms
    closed_counters: ClosedCounters
    clock: Callable[[], float]


class Totals:
    """Adds up one broker, as it is when this is made.

    Args:
        source: the running broker
        connections: all there are
    """

    def __init__(self, source: Source, connections: Collection[Connection]) -> None:
        self._source = source
        closed = source.closed_counters
        self._channel_totals, self._bytes = ChannelCounters(), ConnectionCounters()
        self._channel_totals.add(closed.channels)
        self._bytes.add(closed.connections)
        self._opened = (closed.connections_opened, closed.channels_opened)
        vhosts = source.broker.vhosts.values()
        self.by_type = {each: QueueCounters() for each in (CLASSIC, QUORUM, STREAM)}
        self._exchange_totals = ExchangeCounters()
        for gone in (source.broker.deleted_counters, *(vhost.deleted_counters for vhost in vhosts)):
            self._exchange_totals.add(gone.exchanges)
            for queue_type, counters in gone.by_type.items():
                self.by_type[queue_type].add(counters)
        self._churn = replace(source.broker.churn)
        for vhost in vhosts:
            self._churn.add(vhost.churn)
        self._queues = [queue for vhost in vhosts for queue in vhost.every_queue()]
        self._exchanges = [each for vhost in vhosts for each in vhost.exchanges.values()]
        self._queue_count = sum(len(vhost.queues) for vhost in vhosts)
        # A connection leaves its own counters when it closes; these stay as they are then.
        self._bytes_of = [connection.counters for connection in connections]
        self._channels = [
            channel
            for connection in connections
            for channel in connection.channels.values()
            if not channel.is_closing
        ]
        self._consumers = self._messages = self._ready = self._unacked = 0
        self.publishers = 0
        # For how long the oldest delivery of any channel is outstanding.
        self.oldest_unacked_ms = 0

    def add_up(self) -> Iterator[None]:
        """Add one object at each step."""
        for counters in self._bytes_of:
            self._bytes.add(counters)
            yield
        for channel in self._channels:
            counted = channel.counted
            self._channel_totals.add(counted)
            self._consumers += len(channel.consumers)
            self.publishers += counted.published > 0
            self.oldest_unacked_ms = max(self.oldest_unacked_ms, channel.oldest_unacked_ms)
            yield
        for queue in self._queues:
            self.by_type[queue_type_of(queue.spec.arguments)].add(queue.counters)
            self._messages += message_count(queue)
            self._ready += queue.ready_count
            self._unacked += queue.unacked_count
            yield

        for exchange in self._exchanges:
            self._exchange_totals.add(exchange.counters)
            yield

    @property
    def routed(self) -> int:
        """Copies of what clients have published, in queues."""
        return self._exchange_totals.published_out

    @property
    def published_confirm(self) -> int:
        """Publishes on channels with confirms."""
        return self._channel_totals.published_confirm

    def view(self) -> OverviewView:
        """The totals, which are complete when `add_up` has ended."""
        source, queues = self._source, QueueCounters()
        for each in self.by_type.values():
            queues.add(each)
        vhosts = source.broker.vhosts.values()
        channels = asdict(self._channel_totals)
        for name in ("resent", "published_confirm"):
            del channels[name]
        return OverviewView(
            node=source.name,
            version=VERSION,
            vhosts=len(vhosts),
            exchanges=sum(len(vhost.exchanges) for vhost in vhosts),
            queues=self._queue_count,
            connections=len(self._bytes_of),
            connections_blocked=source.alarms.blocked_count,
            connections_opened=self._opened[0],
            channels=len(self._channels),
            channels_opened=self._opened[1],
            consumers=self._consumers,
            messages=self._messages,
            messages_ready=self._ready,
            messages_unacknowledged=self._unacked,
            dead_lettered=queues.dead_lettered,
            dead_letters_dropped=queues.dead_letters_dropped,
            expired=queues.expired,
            dropped=queues.dropped,
            **channels,
            **asdict(self._bytes),
            queues_declared=self._churn.declared,
            queues_created=self._churn.created,
            queues_deleted=self._churn.deleted,
        )


def message_count(queue: Queue) -> int:
    """How many messages a queue has, ready or not: what a reader of a stream holds is in it."""
    if queue_type_of(queue.spec.arguments) == STREAM:
        return queue.ready_count
    return queue.ready_count + queue.unacked_count
