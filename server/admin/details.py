"""What the HTTP API tells of objects beyond a listing: the same rows with more columns.

`list connection-details` and the like. They are apart because `vouchmq list` shows a table to
people, and because most of it costs a look at other objects. As in `views.py` the objects count
nothing for it.

Must not know how views are shown, nor change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

from vouchmq.protocol.states import ConnectionState
from vouchmq.server.admin.numbers.samples import (
    BROKER,
    CHANNEL,
    CONNECTION,
    EXCHANGE,
    NODE,
    OVERVIEW,
    QUEUE,
    VHOST,
    Samples,
)
from vouchmq.server.admin.numbers.sizes import QueueSizes, Sizes
from vouchmq.server.admin.numbers.vhost_totals import TotalsOfVHosts, VHostTotals
from vouchmq.server.admin.totals import OverviewView
from vouchmq.server.admin.views import (
    ChannelView,
    ConnectionView,
    ConsumerView,
    ExchangeView,
    QueueView,
    Views,
    view_of_channel,
    view_of_connection,
    view_of_consumer,
    view_of_queue,
)
from vouchmq.server.broker.features.options import queue_type_of
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.streams.stream import Stream
from vouchmq.server.connection.connection import Connection
from vouchmq.server.definitions.export import plain_table

if TYPE_CHECKING:
    from vouchmq.server.admin.views import Selection, View
    from vouchmq.server.broker.counters import ChannelCounters, QueueCounters
    from vouchmq.server.broker.policy.policies import PolicyMatch
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.channel.channel import Channel
    from vouchmq.server.channel.consumer import Consumer

T = TypeVar("T")


class OverviewDetails(OverviewView, frozen=True, array_like=True):
    """The same, and what Prometheus is told besides.

    For `oldest_unacked_s` seconds the oldest unacknowledged delivery has been outstanding, perhaps
    for one more.
    `publishers` are channels that have published, `published_confirm` what came on those with
    confirms. `routed` are the copies of all of them in queues. `by_type` has what queues of each
    type have counted. `rates` are changes in 1/s, also of `memory_bytes`, `disk_free_bytes`,
    `syncs` and `synced_bytes`.
    """

    oldest_unacked_s: float
    publishers: int
    published_confirm: int
    routed: int
    by_type: Mapping[str, Mapping[str, int]]
    rates: Mapping[str, float]


class QueueDetails(QueueView, frozen=True, array_like=True):
    """A queue; `owner` is the connection that it is exclusive to.

    What `delivered` consists of is told by four others, see `counters.py`; the rest of it are
    deliveries to consumers that ack.
    `single_active` and `exclusive_consumer` are consumer tags, empty where there is none. `flow` is
    true when the broker has held its publishers back for a part of the last seconds.
    """

    owner: str
    single_active: str
    exclusive_consumer: str
    flow: bool
    policy_definition: Mapping[str, object]
    delivered_no_ack: int
    got: int
    got_no_ack: int
    get_empty: int
    idle_since_ms: int | None
    rates: Mapping[str, float]


class ExchangeDetails(ExchangeView, frozen=True, array_like=True):
    """An exchange, and how fast its numbers change in 1/s."""

    rates: Mapping[str, float]


class VHostDetails(VHostTotals, frozen=True, array_like=True):
    """The totals of a virtual host, and how fast they change in 1/s."""

    rates: Mapping[str, float]


class ConnectionDetails(ConnectionView, frozen=True, array_like=True):
    """A connection; `opened_at_ms` is the time of day, `pending_bytes` has not been sent yet."""

    mechanism: str
    channel_max: int
    heartbeat_s: int
    opened_at_ms: int
    pending_bytes: int
    client_properties: Mapping[str, object]
    rates: Mapping[str, float]


class ChannelDetails(ChannelView, frozen=True, array_like=True):
    """A channel; `consumer_prefetch` is that of consumers to come, `flow` what the client wants."""

    consumer_prefetch: int
    uncommitted: int
    uncommitted_acks: int
    flow: bool
    delivered_no_ack: int
    got: int
    got_no_ack: int
    get_empty: int
    idle_since_ms: int | None
    rates: Mapping[str, float]


class ConsumerDetails(ConsumerView, frozen=True, array_like=True):
    """A consumer, who it is of, and whether it is exclusive or the single active one.

    `oldest_held_ms` is for how long it has had its oldest unacknowledged message; None without one,
    or where no consumer timeout is set. Of a stream, `offset` is that of its next message, and
    `behind` how many there are from there on.
    """

    user: str
    exclusive: bool
    single_active: bool
    oldest_held_ms: int | None
    offset: int | None
    behind: int | None


KINDS: Final[Mapping[str, type[Struct]]] = {
    "overview-details": OverviewDetails,
    "queue-details": QueueDetails,
    "queue-sizes": QueueSizes,
    "vhost-totals": VHostDetails,
    "exchange-details": ExchangeDetails,
    "connection-details": ConnectionDetails,
    "channel-details": ChannelDetails,
    "consumer-details": ConsumerDetails,
}


class Details:
    """Listings with more columns.

    Args:
        views: the listings
        clock: monotonic seconds, as of the broker
        wall_ms: the time of day in milliseconds
        samples: what has been counted before
    """

    def __init__(
        self,
        views: Views,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        samples: Samples,
    ) -> None:
        self._views = views
        self._sizes = Sizes(views)
        self._vhosts = TotalsOfVHosts(views)
        self._clock = clock
        self._samples = samples
        # Once: a connection has been opened at one time, however often it is asked.
        self._zero_ms = wall_ms() - clock() * 1000
        self.listings: dict[str, Callable[[Selection], Iterator[Struct | None]]] = {
            "overview-details": self.overview,
            "queue-details": self.queues,
            "queue-sizes": self._sizes.queues,
            "vhost-totals": self.vhosts,
            "exchange-details": self.exchanges,
            "connection-details": self.connections,
            "channel-details": self.channels,
            "consumer-details": self.consumers,
        }

    def overview(self, wanted: Selection) -> Iterator[View | None]:
        """See `Views`."""
        del wanted
        totals = self._views.totals()
        for _ in totals.add_up():
            yield None
        view = totals.view()
        rates = self._samples.rates(OVERVIEW, BROKER, view)
        rates |= self._samples.rates(NODE, NODE, self._views)
        yield extended(
            OverviewDetails,
            view,
            oldest_unacked_s=totals.oldest_unacked_ms / 1000,
            publishers=totals.publishers,
            published_confirm=totals.published_confirm,
            routed=totals.routed,
            by_type={name: asdict(counters) for name, counters in totals.by_type.items()},
            rates=rates,
        )

    def vhosts(self, wanted: Selection) -> Iterator[Struct | None]:
        """See `TotalsOfVHosts`."""
        for row in self._vhosts.vhosts(wanted):
            if row is None:
                yield None
            else:
                rates = self._samples.rates(VHOST, (VHOST, row.name), row)
                yield extended(VHostDetails, row, rates=rates)

    def exchanges(self, wanted: Selection) -> Iterator[View | None]:
        """See `Views`."""
        for exchange, view in self._views.each_exchange(wanted):
            rates = self._samples.rates(EXCHANGE, exchange, exchange)
            yield extended(ExchangeDetails, view, rates=rates)

    def queues(self, wanted: Selection) -> Iterator[View | None]:
        """See `Views`."""
        for queue, match in self._views.each_queue(wanted):
            yield _of_queue(queue, match, self._samples)

    def connections(self, wanted: Selection) -> Iterator[View | None]:
        """See `Views`."""
        now = self._clock()
        for connection in self._views.each_connection(wanted):
            if connection is None:
                yield None
            else:
                rates = self._samples.rates(CONNECTION, connection, connection)
                yield _of_connection(connection, now, self._zero_ms, rates)

    def channels(self, wanted: Selection) -> Iterator[View | None]:
        """See `Views`."""
        for found in self._views.each_channel(wanted):
            if found is None:
                yield None
            else:
                yield _of_channel(*found, self._samples)

    def consumers(self, wanted: Selection) -> Iterator[View | None]:
        """See `Views`."""
        now_ms = int(self._clock() * 1000)
        for found in self._views.each_consumer(wanted):
            yield _of_consumer(*found, now_ms) if found is not None else None


def extended(kind: Callable[..., T], view: Struct, **more: object) -> T:
    """A view of another kind: all of this one, and more."""
    return kind(*astuple(view), **more)


def _of_queue(queue: Queue, match: PolicyMatch, samples: Samples) -> QueueDetails:
    spec = queue.spec
    owner = spec.exclusive_owner
    single_active = exclusive = ""
    if isinstance(queue, ClassicQueue):
        subscribers = queue.subscribers
        exclusive = getattr(subscribers.exclusive, "tag", "")
        if subscribers.single_active is not None:
            single_active = getattr(subscribers.single_active.active, "tag", "")
    return extended(
        QueueDetails,
        view_of_queue(queue, match),
        owner=owner.label if isinstance(owner, Connection) else "",
        single_active=single_active,
        exclusive_consumer=exclusive,
        flow=isinstance(queue, ClassicQueue) and queue.flow is not None and queue.flow.is_shown,
        policy_definition=match.effective(queue_type_of(spec.arguments)),
        **_ways_out(queue.counters),
        idle_since_ms=samples.since_ms(QUEUE, queue, queue),
        rates=samples.rates(QUEUE, queue, queue),
    )


def _of_connection(
    connection: Connection, now: float, zero_ms: float, rates: Mapping[str, float]
) -> ConnectionDetails:
    is_open = connection.state == ConnectionState.RUNNING
    handshake = connection.handshake
    return extended(
        ConnectionDetails,
        view_of_connection(connection, now),
        mechanism=handshake.mechanism,
        channel_max=handshake.channel_max,
        heartbeat_s=handshake.heartbeat_s,
        opened_at_ms=int(zero_ms + connection.opened_at * 1000),
        pending_bytes=connection.outbox.size + connection.wire.unsent_octets,
        client_properties=plain_table(handshake.client_properties) if is_open else {},
        rates=rates,
    )


def _of_channel(connection: Connection, channel: Channel, samples: Samples) -> ChannelDetails:
    transaction = channel.transaction
    publishes = transaction.publishes if transaction is not None else ()
    settlements = transaction.settlements if transaction is not None else ()
    return extended(
        ChannelDetails,
        view_of_channel(connection.label, channel),
        consumer_prefetch=channel.consumer_credit[0],
        uncommitted=sum(len(each.raws) for each in publishes),
        uncommitted_acks=sum(len(batch.messages) for each in settlements for batch in each.entries),
        flow=channel.flow_active,
        **_ways_out(channel.counters),
        idle_since_ms=samples.since_ms(CHANNEL, channel, channel),
        rates=samples.rates(CHANNEL, channel, channel),
    )


def _ways_out(counters: ChannelCounters | QueueCounters) -> dict[str, int]:
    """What deliveries consist of."""
    return {
        "delivered_no_ack": counters.delivered_no_ack,
        "got": counters.got,
        "got_no_ack": counters.got_no_ack,
        "get_empty": counters.get_empty,
    }


def _of_consumer(
    connection: Connection, channel: Channel, consumer: Consumer, now_ms: int
) -> ConsumerDetails:
    queue = consumer.queue
    is_exclusive = is_single = False
    if isinstance(queue, ClassicQueue):
        is_exclusive = queue.subscribers.exclusive is consumer
        single = queue.subscribers.single_active
        is_single = single is not None and single.active is consumer
    offset = behind = None
    if isinstance(queue, Stream):
        offset = queue.next_offset_of(consumer)
        behind = queue.index.next_offset - offset if offset is not None else None
    return extended(
        ConsumerDetails,
        view_of_consumer(connection.label, channel.number, consumer),
        user=channel.user.name,
        exclusive=is_exclusive,
        single_active=is_single,
        oldest_held_ms=_oldest_held_ms(channel, consumer, now_ms),
        offset=offset,
        behind=behind,
    )


def _oldest_held_ms(channel: Channel, consumer: Consumer, now_ms: int) -> int | None:
    """For how long a consumer has had its oldest message."""
    # What a rollback has brought back may be older than what stands before it.
    oldest_ms = min(
        (
            channel.held_since(tag, since_ms)
            for each, tag, since_ms in channel.unacked.firsts()
            if each is consumer
        ),
        default=None,
    )
    return max(0, now_ms - oldest_ms) if oldest_ms is not None else None
