"""Read-only snapshots of everything an operator may ask: what is declared, and who is connected.

    broker, connections, alarms, store ─▶ generators of frozen views ─▶ whoever renders them

A view is taken of one object at one moment and never changes. A listing is a generator: it copies
references to the objects once and makes one view a step, so that whoever renders it (`commands.py`)
can stop after any of them and let the loop go on. What has gone meanwhile is left out, what has
come is not in it: a listing is as true as RabbitMQ's, of no single moment. Making views costs the
objects nothing: they count nothing for it, and are asked only what they know.

Must not know how views are shown, nor change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from msgspec import Struct

from vouchmq.protocol.states import ConnectionState
from vouchmq.server.admin.accounts.views import ACCOUNT_KINDS, AccountView, AccountViews
from vouchmq.server.admin.commands import Arguments
from vouchmq.server.admin.totals import OverviewView, Source, Totals, message_count
from vouchmq.server.broker.features.options import queue_type_of
from vouchmq.server.definitions.export import plain_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from vouchmq.server.broker.exchanges.exchange import Exchange
    from vouchmq.server.broker.policy.policies import PolicyMatch
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.channel.channel import Channel
    from vouchmq.server.channel.consumer import Consumer
    from vouchmq.server.connection.connection import Connection
    from vouchmq.store.journal.segments import SegmentChain
    from vouchmq.store.sync.group_commit import GroupCommit


class VHostView(Struct, frozen=True, array_like=True):
    """One virtual host: how many queues and exchanges, its settings; negative limits: none."""

    name: str
    queues: int
    exchanges: int
    default_queue_type: str
    description: str
    tags: list[str]
    protected_from_deletion: bool
    max_connections: int
    max_queues: int
    max_exchanges: int


class QueueView(Struct, frozen=True, array_like=True):
    """A queue; `messages` is ready and unacknowledged together, of a stream all that it has.

    What comes behind `consumers` has been counted since the broker started, see `counters.py`.
    """

    vhost: str
    name: str
    type: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Mapping[str, object]
    policy: str
    operator_policy: str
    paused: bool
    messages: int
    messages_ready: int
    messages_unacknowledged: int
    consumers: int
    published: int
    delivered: int
    redelivered: int
    acked: int
    rejected: int
    dead_lettered: int
    dead_letters_dropped: int
    expired: int
    dropped: int


class ExchangeView(Struct, frozen=True, array_like=True):
    """An exchange, messages that clients published to it, and their copies in queues."""

    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, object]
    policy: str
    published_in: int
    published_out: int


class BindingView(Struct, frozen=True, array_like=True):
    """A binding; `destination_type` is `queue` or `exchange`."""

    vhost: str
    source: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: Mapping[str, object]


class ConnectionView(Struct, frozen=True, array_like=True):
    """A connection; empty names until the client has logged in."""

    name: str
    client_name: str
    user: str
    vhost: str
    state: str
    channels: int
    frame_max: int
    age_s: int
    blocked: bool
    unacknowledged_bytes: int
    received_bytes: int
    sent_bytes: int


class ChannelView(Struct, frozen=True, array_like=True):
    """A channel; `prefetch` is that of `basic.qos` with global, 0 when there is none."""

    connection: str
    number: int
    user: str
    vhost: str
    confirm: bool
    transactional: bool
    consumers: int
    prefetch: int
    unacknowledged: int
    unconfirmed: int
    published: int
    confirmed: int
    nacked: int
    returned: int
    unroutable: int
    delivered: int
    redelivered: int
    acked: int
    rejected: int


class ConsumerView(Struct, frozen=True, array_like=True):
    """A consumer; `active` is false of one that waits behind a single active consumer."""

    vhost: str
    queue: str
    connection: str
    channel: int
    tag: str
    ack_required: bool
    active: bool
    priority: int
    prefetch: int
    unacknowledged: int


class AlarmView(Struct, frozen=True, array_like=True):
    """An alarm and what it looks at; of a disk that refuses writes, what it has left."""

    name: str
    raised: bool
    measured_bytes: int
    limit_bytes: int


class StoreView(Struct, frozen=True, array_like=True):
    """The journal: its last LSN and the last synced one, its segments, and its syncs so far."""

    last_lsn: int
    watermark_lsn: int
    segments: int
    syncs: int
    synced_bytes: int
    last_sync_ms: float
    max_sync_ms: float


View = (
    OverviewView
    | VHostView
    | QueueView
    | ExchangeView
    | BindingView
    | ConnectionView
    | ChannelView
    | ConsumerView
    | AlarmView
    | StoreView
    | AccountView
)


KINDS: Final[Mapping[str, type[View]]] = {
    "overview": OverviewView,
    "vhosts": VHostView,
    "queues": QueueView,
    "exchanges": ExchangeView,
    "bindings": BindingView,
    "connections": ConnectionView,
    "channels": ChannelView,
    "consumers": ConsumerView,
    "alarms": AlarmView,
    "store": StoreView,
    **ACCOUNT_KINDS,
}


class Selection(Arguments, frozen=True):
    """What a listing is to be of; None: of all.

    Args:
        vhost: the virtual host. Not of `overview`, `alarms` and `store`
        name: of the queue, exchange, virtual host, user, policy, parameter or connection; of
            bindings their source, of channels their connection, of consumers their queue, of
            permissions their user
    """

    vhost: str | None = None
    name: str | None = None


Listing = Callable[[Selection], "Iterator[View | None]"]


ALL: Final = Selection()


def columns_of(listing: str) -> list[str]:
    """The names of a listing's columns, in order."""
    return list(KINDS[listing].__struct_fields__)


class Store(Protocol):
    """What is asked of the journal."""

    @property
    def next_lsn(self) -> int:
        """That of the next message."""

    @property
    def chain(self) -> SegmentChain:
        """The segments of the journal."""


class Views:
    """Listings of one broker.

    Args:
        source: the running broker
        connections: all there are
        journal: where it keeps messages
        commit: which syncs that
    """

    def __init__(
        self,
        source: Source,
        connections: Collection[Connection],
        journal: Store,
        commit: GroupCommit,
    ) -> None:
        self._source = source
        self._connections = connections
        self._journal = journal
        self._commit = commit
        self.listings: dict[str, Listing] = {
            "overview": self.overview,
            "vhosts": self.vhosts,
            "queues": self.queues,
            "exchanges": self.exchanges,
            "bindings": self.bindings,
            "connections": self.connections,
            "channels": self.channels,
            "consumers": self.consumers,
            "alarms": self.alarms,
            "store": self.store,
            **AccountViews(source.broker).listings,
        }

    def overview(self, wanted: Selection = ALL) -> Iterator[OverviewView | None]:
        """The whole broker, in one view; before it, None for each object that was added up.

        What closes meanwhile counts once: who is open, and what those that are not have counted,
        is looked up in one go.
        """
        del wanted
        totals = self.totals()
        for _ in totals.add_up():
            yield None
        yield totals.view()

    def totals(self) -> Totals:
        """What adds up the whole broker."""
        return Totals(self._source, self._connections)

    def vhosts(self, wanted: Selection = ALL) -> Iterator[VHostView]:
        """A view for each virtual host."""
        for vhost in self.each_vhost(wanted):
            settings = vhost.settings()
            yield VHostView(
                name=vhost.name,
                queues=len(vhost.queues),
                exchanges=len(vhost.exchanges),
                default_queue_type=settings.default_queue_type,
                description=settings.description,
                tags=settings.tags,
                protected_from_deletion=settings.is_protected,
                max_connections=settings.max_connections,
                max_queues=settings.max_queues,
                max_exchanges=settings.max_exchanges,
            )

    def queues(self, wanted: Selection = ALL) -> Iterator[QueueView]:
        """All queues that clients can see."""
        for queue, match in self.each_queue(wanted):
            yield view_of_queue(queue, match)

    def each_vhost(self, wanted: Selection) -> Iterator[VHost[Queue]]:
        """The virtual hosts that a listing is to be of."""
        yield from named(
            self._source.broker.vhosts, wanted.name if wanted.vhost is None else wanted.vhost
        )

    def each_queue(self, wanted: Selection) -> Iterator[tuple[Queue, PolicyMatch]]:
        """The queues that a listing is to be of, and the policies that apply to them."""
        for vhost in named(self._source.broker.vhosts, wanted.vhost):
            engine = vhost.policy_engine
            for queue in named(vhost.queues, wanted.name):
                if not queue.is_deleted:
                    yield queue, engine.policy_of_queue(queue)

    def node_numbers(self) -> tuple[int, int, int, int]:
        """Memory and free space of the disk, syncs and what they have synced."""
        alarms, counters = self._source.alarms, self._commit.counters
        return (
            alarms.memory_octets,
            alarms.disk_free_octets,
            counters.syncs,
            counters.synced_bytes,
        )

    def exchanges(self, wanted: Selection = ALL) -> Iterator[ExchangeView]:
        """All exchanges, the predeclared ones as well."""
        for _, view in self.each_exchange(wanted):
            yield view

    def each_exchange(self, wanted: Selection) -> Iterator[tuple[Exchange, ExchangeView]]:
        """The exchanges that a listing is to be of, and their views."""
        for vhost in named(self._source.broker.vhosts, wanted.vhost):
            for exchange in named(vhost.exchanges, wanted.name):
                match = vhost.policy_engine.policy_of_exchange(exchange)
                view = ExchangeView(
                    vhost=vhost.name,
                    name=exchange.name,
                    type=exchange.type,
                    durable=exchange.durable,
                    auto_delete=exchange.auto_delete,
                    internal=exchange.internal,
                    arguments=plain_table(exchange.arguments),
                    policy=match.policy.name if match.policy else "",
                    published_in=exchange.counters.published_in,
                    published_out=exchange.counters.published_out,
                )
                yield exchange, view

    def bindings(self, wanted: Selection = ALL) -> Iterator[BindingView]:
        """All bindings, without those of every queue to the default exchange."""
        for vhost in named(self._source.broker.vhosts, wanted.vhost):
            for binding in vhost.bindings.each(wanted.name):
                yield BindingView(
                    vhost=vhost.name,
                    source=binding.source,
                    destination=binding.destination,
                    destination_type=binding.kind,
                    routing_key=binding.routing_key,
                    arguments=plain_table(binding.arguments),
                )

    def connections(self, wanted: Selection = ALL) -> Iterator[ConnectionView | None]:
        """All connections, also those that have not logged in yet."""
        now = self._source.clock()
        for connection in self.each_connection(wanted):
            yield view_of_connection(connection, now) if connection is not None else None

    def each_connection(self, wanted: Selection) -> Iterator[Connection | None]:
        """The connections that a listing is to be of; None for each other one."""
        for connection in list(self._connections):
            is_open = connection.state == ConnectionState.RUNNING
            vhost = connection.vhost.name if is_open else ""
            is_wanted = wanted.vhost in {None, vhost} and wanted.name in {None, connection.label}
            yield connection if is_wanted else None

    def channels(self, wanted: Selection = ALL) -> Iterator[ChannelView | None]:
        """A view for each channel of each connection."""
        for found in self.each_channel(wanted):
            yield view_of_channel(found[0].label, found[1]) if found is not None else None

    def each_channel(self, wanted: Selection) -> Iterator[tuple[Connection, Channel] | None]:
        """The channels that a listing is to be of; None for each connection of others."""
        for connection in list(self._connections):
            if wanted.name not in {None, connection.label}:
                yield None
                continue
            for channel in list(connection.channels.values()):
                if wanted.vhost not in {None, channel.vhost.name}:
                    break
                yield connection, channel

    def consumers(self, wanted: Selection = ALL) -> Iterator[ConsumerView | None]:
        """A view for each consumer, by connection and channel."""
        for found in self.each_consumer(wanted):
            if found is None:
                yield None
            else:
                connection, channel, consumer = found
                yield view_of_consumer(connection.label, channel.number, consumer)

    def each_consumer(
        self, wanted: Selection
    ) -> Iterator[tuple[Connection, Channel, Consumer] | None]:
        """The consumers that a listing is to be of; None for each other one."""
        for connection in list(self._connections):
            for channel in list(connection.channels.values()):
                for consumer in list(channel.consumers.values()):
                    spec = consumer.queue.spec
                    is_wanted = wanted.vhost in {None, spec.vhost}
                    is_wanted &= wanted.name in {None, spec.name}
                    yield (connection, channel, consumer) if is_wanted else None

    def alarms(self, wanted: Selection = ALL) -> Iterator[AlarmView]:
        """The alarms, raised or not."""
        del wanted
        alarms = self._source.alarms
        free = alarms.disk_free_octets
        yield AlarmView(
            "memory", alarms.is_memory_low, alarms.memory_octets, alarms.memory_limit_octets
        )
        yield AlarmView("disk", alarms.is_disk_low, free, alarms.disk_limit_octets)
        yield AlarmView("storage", alarms.is_storage_failing, free, 0)
        if self._journal.chain.is_tapped:
            yield AlarmView("replication", alarms.is_log_stalled, 0, 0)

    def store(self, wanted: Selection = ALL) -> Iterator[StoreView]:
        """The journal, in one view."""
        del wanted
        counters = self._commit.counters
        yield StoreView(
            last_lsn=self._journal.next_lsn - 1,
            watermark_lsn=self._commit.watermark,
            segments=len(self._journal.chain.generations),
            syncs=counters.syncs,
            synced_bytes=counters.synced_bytes,
            last_sync_ms=counters.last_sync_ms,
            max_sync_ms=counters.max_sync_ms,
        )


T = TypeVar("T")


def named(objects: Mapping[str, T], name: str | None) -> Iterable[T]:
    """The one of this name, if it is there; all of them, when no name is given."""
    if name is None:
        return list(objects.values())
    return (objects[name],) if name in objects else ()


def view_of_consumer(connection: str, channel: int, consumer: Consumer) -> ConsumerView:
    """A consumer of this channel of the connection of this name."""
    queue, credit = consumer.queue, consumer.credit
    return ConsumerView(
        vhost=queue.spec.vhost,
        queue=queue.spec.name,
        connection=connection,
        channel=channel,
        tag=consumer.tag,
        ack_required=not consumer.no_ack,
        active=not queue.is_waiting(consumer),
        priority=consumer.priority,
        prefetch=credit.limit,
        unacknowledged=credit.outstanding,
    )


def view_of_queue(queue: Queue, match: PolicyMatch) -> QueueView:
    """A queue and the policies that apply to it."""
    spec = queue.spec
    counters = queue.counters
    return QueueView(
        vhost=spec.vhost,
        name=spec.name,
        type=queue_type_of(spec.arguments),
        durable=spec.durable,
        exclusive=spec.exclusive_owner is not None,
        auto_delete=spec.auto_delete,
        arguments=plain_table(spec.arguments),
        policy=match.policy.name if match.policy else "",
        operator_policy=match.operator.name if match.operator else "",
        paused=queue.is_paused,
        messages=message_count(queue),
        messages_ready=queue.ready_count,
        messages_unacknowledged=queue.unacked_count,
        consumers=queue.consumer_count,
        published=counters.published,
        delivered=counters.delivered + counters.resent,
        redelivered=counters.redelivered,
        acked=counters.acked,
        rejected=counters.rejected,
        dead_lettered=counters.dead_lettered,
        dead_letters_dropped=counters.dead_letters_dropped,
        expired=counters.expired,
        dropped=counters.dropped,
    )


def view_of_connection(connection: Connection, now: float) -> ConnectionView:
    """A connection, at this time of the monotonic clock."""
    is_open = connection.state == ConnectionState.RUNNING
    return ConnectionView(
        name=connection.label,
        client_name=connection.client_name if is_open else "",
        user=connection.user.name if is_open else "",
        vhost=connection.vhost.name if is_open else "",
        state=connection.shown_state,
        channels=len(connection.channels),
        frame_max=connection.frame_max,
        age_s=int(now - connection.opened_at),
        blocked=connection.is_blocked,
        unacknowledged_bytes=connection.unacked_octets,
        received_bytes=connection.counters.received_bytes,
        sent_bytes=connection.counters.sent_bytes,
    )


def view_of_channel(connection: str, channel: Channel) -> ChannelView:
    """A channel of the connection of this name."""
    confirms, counted = channel.confirms, channel.counted
    return ChannelView(
        connection=connection,
        number=channel.number,
        user=channel.user.name,
        vhost=channel.vhost.name,
        confirm=confirms is not None,
        transactional=channel.transaction is not None,
        consumers=len(channel.consumers),
        prefetch=channel.credit.limit,
        unacknowledged=channel.unacked.count,
        unconfirmed=confirms.unconfirmed_count if confirms is not None else 0,
        published=counted.published,
        confirmed=counted.confirmed,
        nacked=counted.nacked,
        returned=counted.returned,
        unroutable=counted.unroutable,
        delivered=counted.delivered,
        redelivered=counted.redelivered,
        acked=counted.acked,
        rejected=counted.rejected,
    )
