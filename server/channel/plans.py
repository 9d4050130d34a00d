"""Plans: what becomes of contents that go one way, worked out before anything is done.

`publish.py` resolves a publish to a plan, and for most runs that is one kept since the last time. A
plan never changes, so whoever holds one (the publisher for the next run, a transaction until its
commit) holds what was decided when it was made. A message that is to go elsewhere gets another.

    StorePlan        to the queues, as a run                              nearly everything
    ReturnPlan       back to the client, no queue is there                mandatory, PUB-20
    FilterPlan       to those queues that take it                         overflow, de-duplication
    NewKeysPlan      the same, if an exchange has seen none of the keys   DUP-07
    DedupPlan        where it is routed when it is stored                 DUP-09, DUP-11
    ImmediatePlan    to those consumers that are waiting, or back         PUB-31
    ReplyPlan        to a reply consumer, else as another plan says       CONS-62

CC, BCC and delays decide which queues a route has, and so which of these plans it gets; they need
none of their own.

A plan is carried out by `store_run`, which takes contents that are alike, or says that it cannot
take them together; then `store_one` takes each by itself. Both give the LSN that the confirm waits
for. Must not know confirms or transactions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from vouchmq.protocol.codec import basic_return
from vouchmq.protocol.contents import HAS_EXPIRATION, property_block
from vouchmq.protocol.properties import EXAMINE, PERSISTENT
from vouchmq.protocol.runs import content_pieces
from vouchmq.server.broker.features.dedup import ExchangeDedup
from vouchmq.server.broker.queues.api import REFUSES
from vouchmq.server.channel.reply_to import PREFIX

if TYPE_CHECKING:
    from vouchmq.server.broker.counters import ChannelCounters
    from vouchmq.server.broker.enqueue import Target
    from vouchmq.server.broker.features.dedup import KeyWindow
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.channel.route import Route, Way
    from vouchmq.server.connection.outbox import Outbox
    from vouchmq.server.ledger.channel_recorder import ChannelEventRecorder
    from vouchmq.server.runtime.context import BrokerContext

NO_ROUTE: Final = (312, "NO_ROUTE")
NO_CONSUMERS: Final = (313, "NO_CONSUMERS")


class PlanChannel(Protocol):
    """A channel, as a plan sees it that is carried out on it.

    `octets` is its number as frames have it.
    """

    context: BrokerContext
    vhost: VHost[Queue]
    number: int
    octets: bytes
    frame_max: int
    outbox: Outbox
    recorder: ChannelEventRecorder | None
    counters: ChannelCounters


def plan_of(route: Route, way: Way | None = None) -> Plan:
    """The plan of messages that were published this way.

    `way` is there when de-duplicating exchanges have to look at them when they are stored.
    """
    plan = plan_for(route) if way is None else DedupPlan(route, way)
    return ReplyPlan(plan) if is_reply(route) else plan


def is_reply(route: Route) -> bool:
    """Whether a message may be for a reply consumer (CONS-62)."""
    return not route.exchange and route.routing_key.startswith(PREFIX)


def plan_for(route: Route) -> Plan:
    """The plan of messages that go to these queues, and nowhere else first."""
    if route.immediate:
        return ImmediatePlan(route)
    if route.is_gated:
        return FilterPlan(route)
    if route.mandatory and not route.queues:
        return ReturnPlan(route)
    return StorePlan(route)


class Plan(ABC):
    """See the module.

    `takes_runs`: `store_run` takes all that come, whatever they are.
    """

    __slots__ = ("route",)

    takes_runs: ClassVar[bool] = False

    def __init__(self, route: Route) -> None:
        self.route: Final = route

    @property
    def routes_later(self) -> bool:
        """Whether each message is routed when it is stored, and not before."""
        return False

    def store_run(
        self, channel: PlanChannel, raws: list[bytes], mode: int, largest: int
    ) -> int | None:
        """Store contents that are alike.

        Returns:
            the LSN to wait for, 0 for none; None when each must be looked at by itself, and
            nothing has happened
        """
        del channel, raws, mode, largest
        return None

    @abstractmethod
    def store_one(self, channel: PlanChannel, raw: bytes, mode: int) -> int:
        """Store a content, return it or hand it to whoever is to have it.

        Returns:
            the LSN to wait for, 0 for none, REFUSES when some queue refused it (CONF-07)
        """

    def still_there(self) -> Plan:
        """The same without queues that have been deleted meanwhile (TX-04)."""
        queues = self.route.queues
        for queue in queues:
            if queue.is_deleted:
                left = tuple(each for each in queues if not each.is_deleted)
                return plan_for(self.route.to(left))
        return self

    def target_now(self, channel: PlanChannel, raw: bytes) -> Target:
        """Where a content would go, were it stored now (TX-09)."""
        del channel, raw
        return self.route


class StorePlan(Plan):
    """Give it to the queues; where there are none, that is all."""

    __slots__ = ()

    takes_runs = True

    def store_run(
        self, channel: PlanChannel, raws: list[bytes], mode: int, largest: int
    ) -> int | None:
        """See `Plan`."""
        route, recorder = self.route, channel.recorder
        # As `count_published`, which would be a call for each run.
        count, counters = len(raws), route.counters
        counters.published_in += count
        if route.queues:
            counters.published_out += count * len(route.queues)
        elif not route.mandatory:
            channel.counters.unroutable += count
        if mode & EXAMINE:
            expect_expirations(channel, route, raws[0])
        if recorder is not None:
            recorder.route = route
        return channel.context.enqueuer.store(
            route, raws, largest, persistent=bool(mode & PERSISTENT), author=recorder
        )

    def store_one(self, channel: PlanChannel, raw: bytes, mode: int) -> int:
        """See `Plan`."""
        return store(channel, self.route, raw, mode)


class ReturnPlan(StorePlan):
    """Return it, since no queue is there; it counts as stored nowhere."""

    __slots__ = ()

    def store_run(
        self, channel: PlanChannel, raws: list[bytes], mode: int, largest: int
    ) -> int | None:
        """See `Plan`."""
        for raw in raws:
            give_back(channel, self.route, raw, NO_ROUTE)
        return super().store_run(channel, raws, mode, largest)

    def store_one(self, channel: PlanChannel, raw: bytes, mode: int) -> int:
        """See `Plan`."""
        give_back(channel, self.route, raw, NO_ROUTE)
        return super().store_one(channel, raw, mode)


class FilterPlan(StorePlan):
    """Give it to those queues that take it."""

    __slots__ = ()

    takes_runs = False

    def store_run(
        self, channel: PlanChannel, raws: list[bytes], mode: int, largest: int
    ) -> int | None:
        """See `Plan`; queues that surely take all of them need not be asked one by one."""
        if not takes_all(self.route, raws):
            return None
        return super().store_run(channel, raws, mode, largest)

    def store_one(self, channel: PlanChannel, raw: bytes, mode: int) -> int:
        """See `Plan`."""
        route, enqueuer, recorder = self.route, channel.context.enqueuer, channel.recorder
        expect_expirations(channel, route, raw)
        target, verdict = enqueuer.admit(route, raw)
        if recorder is not None:
            recorder.judged(route, is_refused=verdict.is_refused)
        lsn = 0
        if target.queues:
            route.counters.published_in += 1
            route.counters.published_out += len(target.queues)
            persistent = bool(mode & PERSISTENT)
            lsn = enqueuer.store(target, [raw], len(raw), persistent=persistent, author=recorder)
        else:
            # A duplicate is where it is, as far as its publisher is concerned.
            went_nowhere(channel, route, raw, mode, is_owed=verdict.is_refused)
        return REFUSES if verdict.is_refused else max(lsn, verdict.lsn)


class NewKeysPlan:
    """Store a run of which a de-duplicating exchange has seen no key, and have it know them.

    Args:
        route: on which nothing else is read than routing keys and de-duplication's
        window: what the exchange remembers
    """

    __slots__ = ("_route", "_window")

    def __init__(self, route: Route, window: KeyWindow) -> None:
        self._route: Final = route
        self._window: Final = window

    def store_run(
        self, channel: PlanChannel, raws: list[bytes], mode: int, largest: int
    ) -> int | None:
        """See `Plan`; another plan takes what this does not."""
        route, window = self._route, self._window
        keys = window.new_keys(raws)
        if keys is None or not takes_all(route, raws):
            return None
        count_published(channel, route, len(raws))
        if channel.recorder is not None:
            channel.recorder.route = route
        persistent = bool(mode & PERSISTENT)
        lsn = channel.context.enqueuer.store(
            route, raws, largest, persistent=persistent, author=channel.recorder
        )
        seq = (lsn - len(raws) + 1) * 2 + 1 if lsn else 0
        window.record_run(keys, seq, persistent=persistent)
        return lsn


class DedupPlan(Plan):
    """Route it when it is stored, as de-duplicating exchanges on its way let it pass.

    Args:
        route: where it went when it came, for who stores it after its exchange is gone (TX-04)
        way: how to route it
    """

    __slots__ = ("_way",)

    def __init__(self, route: Route, way: Way) -> None:
        super().__init__(route)
        self._way: Final = way

    @property
    def routes_later(self) -> bool:
        """See `Plan`."""
        return True

    def store_one(self, channel: PlanChannel, raw: bytes, mode: int) -> int:
        """See `Plan`."""
        passage = self._passage(channel, raw)
        if passage is None:
            return plan_for(self.route).store_one(channel, raw, mode)
        route = self.route.to(channel.vhost.route(*self._way, passage))
        if not route.queues and passage.is_duplicate:
            went_nowhere(channel, route, raw, mode, is_owed=False)
            return passage.lsn
        lsn = plan_for(route).store_one(channel, raw, mode)
        if route.queues and lsn != REFUSES:
            passage.record(lsn, persistent=bool(mode & PERSISTENT))
        return lsn

    def still_there(self) -> Plan:
        """See `Plan`."""
        return DedupPlan(super().still_there().route, self._way)

    def target_now(self, channel: PlanChannel, raw: bytes) -> Target:
        """See `Plan`."""
        passage = self._passage(channel, raw)
        if passage is None:
            return self.route
        return self.route.to(channel.vhost.route(*self._way, passage))

    def _passage(self, channel: PlanChannel, raw: bytes) -> ExchangeDedup | None:
        """One through the exchanges as they are now; None when the first of them is gone."""
        exchange = self._way.exchange
        if channel.vhost.exchanges.get(exchange.name) is not exchange:
            return None
        return ExchangeDedup(property_block(raw))


class ImmediatePlan(Plan):
    """Store and deliver it where somebody can take it at once, or return it (PUB-31)."""

    __slots__ = ()

    def store_one(self, channel: PlanChannel, raw: bytes, mode: int) -> int:
        """See `Plan`."""
        route, context = self.route, channel.context
        head: Message = (raw, route.tail, 0, context.enqueuer.now_ms())
        takers = tuple(queue for queue in route.queues if queue.can_take_now(head))
        if not takers:
            is_unroutable = route.mandatory and not route.queues
            give_back(channel, route, raw, NO_ROUTE if is_unroutable else NO_CONSUMERS)
            went_nowhere(channel, route, raw, mode)
            return 0
        lsn = store(channel, route.to(takers), raw, mode)
        # A commit is one block: what it stores is delivered behind it, in the turn (TX-08).
        if not context.enqueuer.is_gathering and context.turn.write_through(lsn):
            for queue in takers:
                queue.dispatch()
        return lsn


class ReplyPlan(Plan):
    """Write it to the reply consumer of that name; if there is none, do as another plan says.

    Args:
        other: that plan
    """

    __slots__ = ("_other",)

    def __init__(self, other: Plan) -> None:
        super().__init__(other.route)
        self._other: Final = other

    @property
    def routes_later(self) -> bool:
        """See `Plan`."""
        return self._other.routes_later

    def store_one(self, channel: PlanChannel, raw: bytes, mode: int) -> int:
        """See `Plan`."""
        route = self.route
        consumer = channel.context.replies.find(route.routing_key)
        if consumer is not None and consumer.deliver((raw, route.tail, 2, 0)):
            went_nowhere(channel, route, raw, mode, is_owed=False)
            return 0
        return self._other.store_one(channel, raw, mode)

    def still_there(self) -> Plan:
        """See `Plan`."""
        return ReplyPlan(self._other.still_there())

    def target_now(self, channel: PlanChannel, raw: bytes) -> Target:
        """See `Plan`."""
        return self._other.target_now(channel, raw)


def store(channel: PlanChannel, route: Route, raw: bytes, mode: int) -> int:
    """Give one content to all queues of a route; the LSN to wait for, 0 for none (CONF-06)."""
    expect_expirations(channel, route, raw)
    count_published(channel, route, 1)
    if channel.recorder is not None:
        channel.recorder.route = route
    return channel.context.enqueuer.store(
        route, [raw], len(raw), persistent=bool(mode & PERSISTENT), author=channel.recorder
    )


def count_published(channel: PlanChannel, route: Route, count: int) -> None:
    """Count messages that go to all queues of a route; where there are none, nowhere."""
    counters, queues = route.counters, route.queues
    counters.published_in += count
    if queues:
        counters.published_out += count * len(queues)
    elif not route.mandatory:
        channel.counters.unroutable += count


def takes_all(route: Route, raws: list[bytes]) -> bool:
    """Whether all queues of a route would surely take all of these."""
    return not route.is_gated or all(
        queue.publish_filter.takes_all(raws)
        for queue in route.queues
        if queue.publish_filter is not None
    )


def expect_expirations(channel: PlanChannel, route: Route, raw: bytes) -> None:
    """Have the queues look for expirations, if this has one."""
    if raw[HAS_EXPIRATION[0]] & HAS_EXPIRATION[1]:
        for queue in route.queues:
            queue.expect_expirations()


def give_back(channel: PlanChannel, route: Route, raw: bytes, reason: tuple[int, str]) -> None:
    """basic.return, which precedes the message's confirm (PUB-21)."""
    head = basic_return(channel.number, *reason, route.exchange, route.routing_key)
    content = content_pieces(raw, channel.octets, channel.frame_max)
    channel.outbox.add_content([head, *content])
    channel.counters.returned += 1
    if channel.recorder is not None:
        channel.recorder.returned(reason[0])


def went_nowhere(
    channel: PlanChannel, route: Route, raw: bytes, mode: int, *, is_owed: bool = True
) -> None:
    """Tell the ledger of a publish that no queue got; `is_owed`: a mandatory one came back."""
    route.counters.published_in += 1
    recorder = channel.recorder
    if recorder is not None:
        recorder.nowhere(route, raw, persistent=bool(mode & PERSISTENT), is_owed=is_owed)
