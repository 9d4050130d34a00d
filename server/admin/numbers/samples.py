"""What counters were some seconds ago: how fast they grow, and since when nothing has happened.

    every EVERY_S, a few objects in a turn: what has been counted ─▶ the last two samples of each
    a listing ─▶ what is counted now, less the sample of at least WINDOW_S ago ─▶ its rates

So nobody notes the time of a message, and it does not matter who has looked before, or when. What
has come since the last round had counted nothing then. Two samples are kept of each object, which
share what is equal: of one that is idle there is only one.

Must not know how anything is shown.

Spec: HTTP-07, HTTP-14, HTTP-19
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from msgspec import Struct

from vouchmq.server.admin.numbers.vhost_totals import TotalsOfVHosts, VHostTotals
from vouchmq.server.admin.totals import OverviewView, message_count
from vouchmq.server.admin.views import ALL, Views

if TYPE_CHECKING:
    from vouchmq.server.broker.exchanges.exchange import Exchange
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.channel.channel import Channel
    from vouchmq.server.connection.connection import Connection

EVERY_S: Final = 5.0
# A rate is over so many seconds, and up to `EVERY_S` more.
WINDOW_S: Final = 5.0
# Over less it would tell more of the moment than of the rate.
LEAST_S: Final = 1.0
# Objects in one turn.
AT_ONCE: Final = 200
# What may as well become less; a smaller counter is that of a new object.
GAUGES: Final = frozenset(
    {
        *("messages", "messages_ready", "messages_unacknowledged"),
        *("connections", "channels", "memory_bytes", "disk_free_bytes"),
    }
)

T = TypeVar("T")
V = TypeVar("V", bound=Struct)
Values = tuple[float, ...]


class Kind(NamedTuple, Generic[T]):
    """What is sampled of one kind of object.

    Args:
        names: as the columns of its listing
        values_of: their values now, in this order
    """

    names: tuple[str, ...]
    values_of: Callable[[T], Values]


def _values_of_queue(queue: Queue) -> Values:
    counters = queue.counters
    return (
        counters.published,
        counters.delivered + counters.resent,
        counters.delivered_no_ack,
        counters.got,
        counters.got_no_ack,
        counters.get_empty,
        counters.redelivered,
        counters.acked,
        counters.rejected,
        counters.dead_lettered,
        counters.expired,
        counters.dropped,
        message_count(queue),
        queue.ready_count,
        queue.unacked_count,
    )


def _values_of_channel(channel: Channel) -> Values:
    counted = channel.counted
    return (
        counted.published,
        counted.confirmed,
        counted.returned,
        counted.unroutable,
        counted.delivered,
        counted.delivered_no_ack,
        counted.got,
        counted.got_no_ack,
        counted.get_empty,
        counted.redelivered,
        counted.acked,
        counted.rejected,
    )


def _values_of_exchange(exchange: Exchange) -> Values:
    return exchange.counters.published_in, exchange.counters.published_out


def _values_of_connection(connection: Connection) -> Values:
    return connection.counters.received_bytes, connection.counters.sent_bytes


SETTLED: Final = ("get_empty", "redelivered", "acked", "rejected")
HANDED_OUT: Final = ("delivered", "delivered_no_ack", "got", "got_no_ack")
DEPTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
QUEUE: Final[Kind[Queue]] = Kind(
    ("published", *HANDED_OUT, *SETTLED, "dead_lettered", "expired", "dropped", *DEPTHS),
    _values_of_queue,
)
CHANNEL: Final[Kind[Channel]] = Kind(
    ("published", "confirmed", "returned", "unroutable", *HANDED_OUT, *SETTLED),
    _values_of_channel,
)
EXCHANGE: Final[Kind[Exchange]] = Kind(("published_in", "published_out"), _values_of_exchange)
CONNECTION: Final[Kind[Connection]] = Kind(("received_bytes", "sent_bytes"), _values_of_connection)


def kind_of(view: type[V], without: frozenset[str]) -> Kind[V]:
    """A kind whose objects are views: all their columns but these."""
    kept = tuple(name for name in view.__struct_fields__ if name not in without)
    return Kind(kept, lambda row: tuple(getattr(row, name) for name in kept))


OVERVIEW: Final = kind_of(OverviewView, frozenset({"node", "version"}))
VHOST: Final = kind_of(VHostTotals, frozenset({"name"}))
NODE: Final[Kind[Views]] = Kind(
    ("memory_bytes", "disk_free_bytes", "syncs", "synced_bytes"), lambda views: views.node_numbers()
)
# The key of the totals.
BROKER: Final = "broker"


def all_values(views: Views) -> Iterator[tuple[object, Values] | None]:
    """What there is with what it has counted, by the key of its samples; None between them."""
    for vhost in list(views.each_vhost(ALL)):
        for queue in list(vhost.queues.values()):
            yield queue, QUEUE.values_of(queue)
        for exchange in list(vhost.exchanges.values()):
            yield exchange, EXCHANGE.values_of(exchange)
    for connection in list(views.each_connection(ALL)):
        if connection is not None:
            yield connection, CONNECTION.values_of(connection)
            for channel in list(connection.channels.values()):
                yield channel, CHANNEL.values_of(channel)
    totals = views.totals()
    yield from totals.add_up()
    yield BROKER, OVERVIEW.values_of(totals.view())
    yield NODE, NODE.values_of(views)
    for row in TotalsOfVHosts(views).vhosts(ALL):
        yield None if row is None else ((VHOST, row.name), VHOST.values_of(row))


class _Sampled:
    """The last two samples of one object, and since when it has counted what it has now."""

    __slots__ = ("at", "before", "before_at", "since_ms", "values")

    def __init__(
        self, at: float, values: Values, before_at: float, before: Values, since_ms: int
    ) -> None:
        self.at = at
        self.values = values
        self.before_at = before_at
        self.before = before
        self.since_ms = since_ms


class Samples:
    """Of all objects of one broker.

    Args:
        views: of what samples are taken
        clock: monotonic seconds
        wall_ms: the time of day in milliseconds
        later: runs something in another turn of the loop
        call_later: runs something after so many seconds
    """

    def __init__(
        self,
        views: Views,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        later: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._clock = clock
        self._wall_ms = wall_ms
        self._later = later
        self._call_later = call_later
        self._views = views
        self._known: dict[object, _Sampled] = {}
        self._began_at: float | None = None  # the last round that has ended
        self._is_first = True

    def start(self) -> Samples:
        """Take samples now, and every few seconds."""
        self._begin()
        return self

    def rates(self, kind: Kind[T], key: object, one: T) -> dict[str, float]:
        """Change in 1/s of what changes at all."""
        values, now = kind.values_of(one), self._clock()
        known = self._known.get(key)
        base: Values | None
        if known is None:
            began_at = self._began_at
            if began_at is None:
                return {}
            at, base = began_at, None
        elif now - known.at >= WINDOW_S:
            at, base = known.at, known.values
        else:
            at, base = known.before_at, known.before
        passed_s = max(now - at, LEAST_S)
        found: dict[str, float] = {}
        for name, value, before in zip(kind.names, values, base or (0,) * len(values), strict=True):
            if value > before or (value < before and name in GAUGES):
                found[name] = (value - before) / passed_s
        return found

    @property
    def count(self) -> int:
        """Objects of which there are samples."""
        return len(self._known)

    def since_ms(self, kind: Kind[T], key: object, one: T) -> int | None:
        """Since when nothing has happened; None when something has just now."""
        known = self._known.get(key)
        return None if known is None or known.values != kind.values_of(one) else known.since_ms

    def _begin(self) -> None:
        self._go_on(all_values(self._views), {}, self._clock())

    def _go_on(
        self,
        left: Iterator[tuple[object, Values] | None],
        found: dict[object, _Sampled],
        began_at: float,
    ) -> None:
        now, now_ms = self._clock(), self._wall_ms()
        for at, one in enumerate(left, 1):
            if one is not None:
                found[one[0]] = self._sampled(*one, now, now_ms)
            if at == AT_ONCE:
                self._later(lambda: self._go_on(left, found, began_at))
                return
        # Those that have gone are not in it.
        self._known, self._began_at, self._is_first = found, began_at, False
        self._call_later(EVERY_S, self._begin)

    def _sampled(self, key: object, values: Values, now: float, now_ms: int) -> _Sampled:
        known = self._known.get(key)
        if known is None:
            # What was there before the first round has not come within it.
            before = values if self._is_first else (0,) * len(values)
            before_at = now if self._began_at is None else self._began_at
            return _Sampled(now, values, before_at, before, now_ms)
        if values == known.values:
            return _Sampled(now, known.values, known.at, known.values, known.since_ms)
        return _Sampled(now, values, known.at, known.values, now_ms)
