"""Publishing on one channel: from a run of contents to queues, journal and confirm numbers.

The first publish with a given method frame goes the slow way (`_resolve`): pamqp decodes it, the
permission is checked, the exchange routes. The result is a `Route`, kept under those raw octets
until the topology changes. Every further run costs one dict look-up, one journal entry and one
`extend` per queue. Decoding every frame into objects costs 13 µs a publish before anything else is
done; working on runs costs 0.3 to 1.0 µs (decision 0001).

What holds:

- A route counts only while its `generation` is the virtual host's. A binding, exchange, queue or
  permission that changes moves the generation, so no route can lead to what is gone.
- Both ways mean the same. A message that needs a closer look (expiration, user-id, CC or BCC,
  reply-to, a headers exchange, the immediate flag, a reply name) leaves the run and is examined by
  itself, in the order of PUB-01; property tests hold the two ways against each other.
- Messages before a faulty one are kept. A basic.return precedes the confirm of its message
  (PUB-21).
- What there is no time for in this turn is put off as the rest of the same event, and nothing
  behind it on the connection is done before (LIMIT-23, GEN-08).

    publish ─▶ _resolve (first time) ─▶ store ─▶ Enqueuer.store ─▶ Channel.confirm
           └▶ _publish_checked ─▶ _examined ─▶ …                what needs a closer look

What it costs: two ways for one meaning. A publisher with ever new routing keys gets no use of the
routes; `ROUTES_KEPT` bounds what it can pile up. The octets between name and properties are taken
as they came, so a route's `tail` goes into the deliver frame without being encoded again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vouchmq.protocol.codec import basic_return, decode_method
from vouchmq.protocol.constants import (
    BASIC_PUBLISH,
    DIRECT_REPLY_TO,
)
from vouchmq.protocol.contents import (
    BLIND_COPY,
    HAS_EXPIRATION,
    LONGEST_NOTE_OCTETS,
    property_block,
    runs_of_alike,
    with_notes,
    with_properties,
)
from vouchmq.protocol.errors import (
    AccessRefused,
    NotFound,
    NotImplementedByBroker,
    PreconditionFailed,
)
from vouchmq.protocol.fields import Field, as_text, longstr, type_name
from vouchmq.protocol.properties import (
    CARE,
    HEADERS,
    PERSISTENT,
    Properties,
    with_reply_to,
    without_headers,
)
from vouchmq.protocol.reader import PUBLISHES
from vouchmq.protocol.runs import content_pieces
from vouchmq.protocol.text import encode_text
from vouchmq.server.broker.delays.delay import check_delay, delay_ms
from vouchmq.server.broker.exchanges.consistent_hash import PROPERTY_PREFIX
from vouchmq.server.broker.exchanges.exchange import READS_HEADERS, READS_KEYS, READS_PROPERTIES
from vouchmq.server.broker.features.dedup import ExchangeDedup
from vouchmq.server.broker.features.publish_filter import REFUSES
from vouchmq.server.channel.reply_to import PREFIX
from vouchmq.server.channel.route import Route

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vouchmq.protocol.fields import Table
    from vouchmq.protocol.reader import Event
    from vouchmq.server.auth.users import User
    from vouchmq.server.broker.enqueue import Target
    from vouchmq.server.broker.exchanges.exchange import Exchange
    from vouchmq.server.broker.exchanges.routes import RouteWalk
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.classic import Queue
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.channel.confirms import Confirms
    from vouchmq.server.channel.tx import HeldPublish, Transaction
    from vouchmq.server.connection.outbox import Outbox
    from vouchmq.server.ledger.channel_recorder import ChannelEventRecorder
    from vouchmq.server.runtime.context import BrokerContext

NO_ROUTE: Final = (312, "NO_ROUTE")
NO_CONSUMERS: Final = (313, "NO_CONSUMERS")
MAX_TTL_MS: Final = 315_360_000_000
# Distinct method frames of one channel: a publisher with ever new routing keys must not grow it.
ROUTES_KEPT: Final = 4096
EXPIRATION: Final = re.compile(r"[+-]?[0-9]+")


class OutOfTimeError(Exception):
    """The way of a message is longer than there is time for in this turn."""


class LongWalk(NamedTuple):
    """The way of a message that is not yet gone to its end, and of which topology it is."""

    raw: bytes
    exchange: Exchange
    generation: int
    walk: RouteWalk[Queue]


class PublishingChannel(Protocol):
    """A channel, as publishing sees it.

    `octets` is its number as frames have it; `stored_lsn` that of the last publish that nobody
    waits for.
    """

    context: BrokerContext
    vhost: VHost[Queue]
    user: User
    number: int
    octets: bytes
    frame_max: int
    outbox: Outbox
    confirms: Confirms | None
    transaction: Transaction | None
    recorder: ChannelEventRecorder | None
    stored_lsn: int

    def confirm(self, count: int, lsn: int) -> None:
        """Number publishes; their confirms leave at the end of the turn or with the watermark."""

    def refuse(self) -> None:
        """A queue refuses the last publish: nack it, if somebody listens (CONF-07, LEN-20)."""

    def reply_name(self) -> str:
        """The generated name for a publish with reply-to (CONS-62)."""

    def put_off(self, event: Event) -> None:
        """Publish what is left of a run in a later turn, and do nothing else before (LIMIT-23)."""

    def publish_refused(self, lsn: int) -> None:
        """The disk has refused what was just published under this LSN (CONF-12)."""


class Publisher:
    """The publishing side of one channel."""

    __slots__ = ("_channel", "_onward", "_onward_generation", "_routes", "_walk")

    def __init__(self, channel: PublishingChannel) -> None:
        self._channel = channel
        self._routes: dict[bytes, Route] = {}
        self._onward_generation = -1
        self._onward = 0
        self._walk: LongWalk | None = None

    def publish(self, key: bytes, raws: list[bytes], mode: int, largest: int) -> None:
        """Take a run of contents that share a method frame and a mode.

        What there is no time for in this turn is published in a later one (LIMIT-23).

        Raises:
            SoftError: 403, 404 or 406 by PUB-01; the messages before the faulty one are kept
        """
        route = self._routes.get(key)
        if route is None or route.generation != self._channel.vhost.generation:
            try:
                route = self._resolve(key)
            except OutOfTimeError:
                self._put_off(key, raws, mode, largest)
                return
        channel = self._channel
        if route.is_examined or mode & route.examined_modes or channel.transaction is not None:
            left = self._publish_checked(route, raws, mode)
            if left:
                self._put_off(key, left, mode, largest)
            return
        if not route.queues and route.mandatory:
            for raw in raws:
                self.give_back(route, raw, NO_ROUTE)
        lsn = self.store(route, raws, mode, largest)
        if channel.confirms is not None:
            channel.confirm(len(raws), lsn)
        elif lsn:
            channel.stored_lsn = lsn

    def store(self, route: Route, raws: list[bytes], mode: int, largest: int) -> int:
        """Give a run to the queues of its route; the LSN to wait for, 0 for none (CONF-06)."""
        recorder = self._channel.recorder
        if recorder is not None:
            recorder.route = route
        enqueuer = self._channel.context.enqueuer
        return enqueuer.store(
            route, raws, largest, persistent=bool(mode & PERSISTENT), author=recorder
        )

    def store_now(self, route: Route, raw: bytes, mode: int) -> int:
        """Store and deliver an immediate message where somebody can take it at once (PUB-31).

        Returns:
            the LSN to wait for, 0 for none, -1 when nobody could take it
        """
        head: Message = (raw, route.tail, 0, self._channel.context.enqueuer.now_ms())
        takers = tuple(queue for queue in route.queues if queue.can_take_now(head))
        if not takers:
            return -1
        only = Route(route.exchange, route.routing_key, route.tail)
        only.leads_to(takers)
        self._expect_expirations(only, raw)
        channel = self._channel
        lsn = self.store(only, [raw], mode, len(raw))
        # A commit is one block: what it stores is delivered behind it, in the turn (TX-08).
        if channel.transaction is None and channel.context.turn.write_through(lsn):
            for queue in takers:
                queue.dispatch()
        return lsn

    def give_back(self, route: Route, raw: bytes, reason: tuple[int, str]) -> None:
        """basic.return, which precedes the message's confirm (PUB-21)."""
        channel = self._channel
        head = basic_return(channel.number, *reason, route.exchange, route.routing_key)
        content = content_pieces(raw, channel.octets, channel.frame_max)
        channel.outbox.add_content([head, *content])
        if channel.recorder is not None:
            channel.recorder.returned(reason[0])

    def _resolve(self, key: bytes) -> Route:
        """Decode a `basic.publish` frame, check it and route it (PUB-01)."""
        channel = self._channel
        vhost = channel.vhost
        command = decode_method(key[7:-1])
        method = command.method
        exchange_name, routing_key = method.exchange, method.routing_key  # type: ignore[attr-defined]
        channel.user.require("write", "exchange", exchange_name or "amq.default", vhost.name)
        exchange = vhost.exchanges.get(exchange_name)
        if exchange is None:
            raise NotFound(
                f"no exchange '{exchange_name}' in vhost '{vhost.name}'", ids=BASIC_PUBLISH
            )
        if exchange.internal:
            raise AccessRefused(
                f"cannot publish to internal exchange '{exchange_name}' in vhost '{vhost.name}'",
                ids=BASIC_PUBLISH,
            )
        # Frame header 7, ids 4, ticket 2 before the two names; flags and frame end behind.
        route = Route(exchange_name, routing_key, key[13:-2])
        route.mandatory = bool(method.mandatory)  # type: ignore[attr-defined]
        route.immediate = bool(method.immediate)  # type: ignore[attr-defined]
        if route.immediate and channel.context.limits.reject_immediate:
            raise NotImplementedByBroker("immediate=true", ids=BASIC_PUBLISH)
        is_reply = not exchange_name and routing_key.startswith(PREFIX)
        route.is_examined = route.immediate or is_reply
        reads = exchange.reads | self._read_onward()
        if reads & READS_HEADERS:
            route.examined_modes = CARE | HEADERS
        route.reads_keys = bool(reads & READS_KEYS)
        if not self._onward and not exchange.reads_beyond_keys:
            route.window = vhost.window_of(exchange)
        if reads & READS_PROPERTIES:
            route.reads_properties = route.is_examined = True
        route.leads_to(self._queues_of(key, exchange, (routing_key,), {}))
        route.is_examined |= route.is_gated
        if exchange.type == "topic":
            may = channel.user.may_topic("write", routing_key, exchange_name, vhost.name)
            # Not said at once: faults of a message's properties come before (PUB-01).
            route.is_refused = not may
            route.is_examined |= route.is_refused
        route.generation = vhost.generation
        if len(self._routes) >= ROUTES_KEPT:
            self._routes.clear()
        self._routes[key] = route
        return route

    def _read_onward(self) -> int:
        """What exchanges that others pass messages on to read of a message, see `Exchange.reads`.

        Looked up once per topology: it decides for every route whether that matters to it.
        """
        vhost = self._channel.vhost
        if self._onward_generation != vhost.generation:
            self._onward_generation = vhost.generation
            alternates = {exchange.alternate for exchange in vhost.exchanges.values()}
            self._onward = 0
            for name, exchange in vhost.exchanges.items():
                if exchange.reads and (
                    name in alternates or vhost.bindings.to_destination("exchange", name)
                ):
                    self._onward |= exchange.reads
        return self._onward

    def _put_off(self, key: bytes, raws: list[bytes], mode: int, largest: int) -> None:
        channel = self._channel
        channel.put_off((PUBLISHES, channel.number, key, raws, mode, largest))

    def _queues_of(
        self, raw: bytes, exchange: Exchange, keys: Sequence[str], headers: Table
    ) -> tuple[Queue, ...]:
        """Where a message goes, `raw` or any whose method frame that is.

        Raises:
            OutOfTimeError: try again in a later turn
        """
        vhost, long = self._channel.vhost, self._walk
        self._walk = None
        if long is None or long.raw != raw or long.exchange is not exchange:
            walk = vhost.walk(exchange, keys, headers)
        elif long.generation == vhost.generation:
            walk = long.walk
        else:
            # Who keeps changing bindings must not keep others from publishing.
            return vhost.route(exchange, keys, headers)
        queues = walk.go(self._channel.context.budget.is_over)
        if queues is None:
            self._walk = LongWalk(raw, exchange, vhost.generation, walk)
            raise OutOfTimeError
        return queues

    def _publish_checked(self, route: Route, raws: list[bytes], mode: int) -> list[bytes]:
        """Properties checked, routed anew if they matter; together what is alike.

        Returns:
            those there was no time for
        """
        if not (mode & route.examined_modes or route.reads_properties or route.is_refused):
            self._publish_examined(route, raws, mode)
            return []
        if route.window is not None and not mode & CARE and self._publish_new(route, raws, mode):
            return []
        is_over, done = self._channel.context.budget.is_over, 0
        try:
            for alike in runs_of_alike(raws):
                if done and is_over():
                    return raws[done:]
                target, raw = self._examined(route, alike[0])
                if raw is alike[0] and target.way is None:
                    self._publish_examined(target, alike, mode)
                    done += len(alike)
                    continue
                self._publish_singly(target, raw, mode)
                done += 1
                for other in alike[1:]:
                    if is_over():
                        return raws[done:]
                    self._publish_singly(*self._examined(route, other), mode)
                    done += 1
        except OutOfTimeError:
            return raws[done:]
        return []

    def _publish_examined(self, route: Route, raws: list[bytes], mode: int) -> None:
        """Messages with nothing between them that matters."""
        channel = self._channel
        is_reply = not route.exchange and route.routing_key.startswith(PREFIX)
        has_one_way = not (route.immediate or is_reply or (route.mandatory and not route.queues))
        if channel.transaction is not None or not has_one_way or not self._takes_all(route, raws):
            for raw in raws:
                self._publish_singly(route, raw, mode)
            return
        self._expect_expirations(route, raws[0])
        lsn = self.store(route, raws, mode, max(map(len, raws)))
        channel.confirm(len(raws), lsn)
        if channel.context.was_refused(lsn):
            channel.publish_refused(lsn)

    def _publish_new(self, route: Route, raws: list[bytes], mode: int) -> bool:
        """Messages through a de-duplicating exchange, if all are new there (DUP-07, DUP-08)."""
        window, channel = route.window, self._channel
        has_one_way = bool(route.queues) and not (route.immediate or route.is_leveled)
        if window is None or channel.transaction is not None or not has_one_way:
            return False
        keys = None if route.is_refused else window.new_keys(raws)
        if keys is None or not self._takes_all(route, raws):
            return False
        lsn = self.store(route, raws, mode, max(map(len, raws)))
        seq = (lsn - len(raws) + 1) * 2 + 1 if lsn else 0
        window.record_run(keys, seq, persistent=bool(mode & PERSISTENT))
        channel.confirm(len(raws), lsn)
        if channel.context.was_refused(lsn):
            channel.publish_refused(lsn)
        return True

    def _takes_all(self, route: Route, raws: list[bytes]) -> bool:
        return not route.is_gated or all(
            queue.publish_filter.takes_all(raws)
            for queue in route.queues
            if queue.publish_filter is not None
        )

    def _expect_expirations(self, route: Route, raw: bytes) -> None:
        if raw[HAS_EXPIRATION[0]] & HAS_EXPIRATION[1]:
            for queue in route.queues:
                self._channel.context.feature_builder.expect_expirations(queue)

    def _publish_singly(self, route: Route, raw: bytes, mode: int) -> None:
        """One message by itself, after its properties have been checked."""
        channel = self._channel
        if channel.transaction is not None:
            channel.transaction.publish(route, raw, mode)
            return
        lsn = self.settle_route(route, raw, mode)
        if lsn == REFUSES:
            channel.refuse()
            return
        channel.confirm(1, lsn)
        if channel.context.was_refused(lsn):
            channel.publish_refused(lsn)

    def settle_routes(self, route: Route, raws: list[bytes], mode: int) -> int:
        """The same for a run: as one where nothing has to be looked at singly."""
        needs_a_look = route.is_examined or route.is_gated or route.way is not None
        if needs_a_look or mode & CARE or (route.mandatory and not route.queues):
            return max(self.settle_route(route, raw, mode) for raw in raws)
        return self.store(route, raws, mode, max(map(len, raws)))

    def settle_route(self, route: Route, raw: bytes, mode: int) -> int:
        """Store, return or hand to a reply consumer.

        Returns:
            the LSN to wait for, 0 for none, REFUSES when some queue refused it (CONF-07)
        """
        if not route.exchange and route.routing_key.startswith(PREFIX):
            consumer = self._channel.context.replies.find(route.routing_key)
            if consumer is not None and consumer.deliver((raw, route.tail, 2, 0)):
                self._went_nowhere(route, raw, mode, is_owed=False)
                return 0
        if route.way is not None:
            return self._settle_keyed(route, raw, mode)
        if route.immediate:
            lsn = self.store_now(route, raw, mode) if route.queues else -1
            if lsn >= 0:
                return lsn
            nowhere = route.mandatory and not route.queues
            self.give_back(route, raw, NO_ROUTE if nowhere else NO_CONSUMERS)
            self._went_nowhere(route, raw, mode)
            return 0
        if not route.queues and route.mandatory:
            self.give_back(route, raw, NO_ROUTE)
        self._expect_expirations(route, raw)
        if not route.is_gated:
            return self.store(route, [raw], mode, len(raw))
        enqueuer = self._channel.context.enqueuer
        target, verdict = enqueuer.admit(route, raw)
        recorder = self._channel.recorder
        if recorder is not None:
            recorder.judged(route, is_refused=verdict.is_refused)
        lsn = 0
        if target.queues:
            persistent = bool(mode & PERSISTENT)
            lsn = enqueuer.store(target, [raw], len(raw), persistent=persistent, author=recorder)
        else:
            # A duplicate is where it is, as far as its publisher is concerned.
            self._went_nowhere(route, raw, mode, is_owed=verdict.is_refused or not route.queues)
        return REFUSES if verdict.is_refused else max(lsn, verdict.lsn)

    def _settle_keyed(self, route: Route, raw: bytes, mode: int) -> int:
        """The same for a message that de-duplicating exchanges look at (DUP-07, DUP-11)."""
        passage = self._passage(route, raw)
        route.way = None
        if passage is not None and not route.queues and passage.is_duplicate:
            self._went_nowhere(route, raw, mode, is_owed=False)
            return passage.lsn
        lsn = self.settle_route(route, raw, mode)
        if passage is not None and route.queues and lsn != REFUSES:
            passage.record(lsn, persistent=bool(mode & PERSISTENT))
        return lsn

    def _went_nowhere(self, route: Route, raw: bytes, mode: int, *, is_owed: bool = True) -> None:
        """Tell the ledger of a publish that no queue got; `is_owed`: a mandatory one came back."""
        recorder = self._channel.recorder
        if recorder is not None:
            recorder.nowhere(route, raw, persistent=bool(mode & PERSISTENT), is_owed=is_owed)

    def _passage(self, route: Route, raw: bytes) -> ExchangeDedup | None:
        """Lead a route to where its message would go now; None: as it was routed (TX-04)."""
        way, vhost = route.way, self._channel.vhost
        if way is None or vhost.exchanges.get(way[0].name) is not way[0]:
            return None
        passage = ExchangeDedup(property_block(raw))
        route.leads_to(vhost.route(*way, passage))
        return passage

    def target_of(self, held: HeldPublish) -> tuple[Target, list[bytes]]:
        """Where what a transaction holds would go, were it stored now (TX-09, DUP-09)."""
        self._passage(held.route, held.raws[0])
        return held.route, held.raws

    def _check_topics(self, name: str, keys: Iterable[str]) -> None:
        """Every key of a message to a topic exchange must be allowed (PERM-10)."""
        channel = self._channel
        if channel.vhost.exchanges[name].type == "topic":
            for key in keys:
                channel.user.require_topic("write", key, name, channel.vhost.name)

    def _examined(self, route: Route, raw: bytes) -> tuple[Route, bytes]:
        """Check the properties (CONS-62, PUB-05, PUB-10, PERM-10, PUB-06) and route by them."""
        channel = self._channel
        received = raw
        original = block = property_block(raw)
        properties = Properties(block)
        if properties.reply_to == DIRECT_REPLY_TO:
            block = with_reply_to(block, channel.reply_name())
        if properties.expiration is not None:
            check_expiration(properties.expiration)
        headers = properties.headers or {}
        keys = (route.routing_key, *copies(headers, "CC"), *copies(headers, "BCC"))
        if len(keys) > 1 or route.is_refused:
            self._check_topics(route.exchange, keys)
        if properties.user_id is not None:
            check_user_id(channel.user, properties.user_id)
        if "BCC" in headers:
            block = without_headers(block, {"BCC"})
        if block != original:
            raw = with_properties(raw, block)
        raw = with_blind_copies(raw, copies(headers, "BCC"))
        if len(keys) == 1 and not route.examined_modes & HEADERS and not route.reads_properties:
            return route, raw
        exact = Route(route.exchange, route.routing_key, route.tail)
        exact.mandatory, exact.immediate = route.mandatory, route.immediate
        exchange = channel.vhost.exchanges[route.exchange]
        if exchange.delays:
            check_delay(headers)
            # Held messages are never returned (DELAY-16).
            exact.immediate = exact.immediate and not delay_ms(headers)
        if route.reads_properties:
            headers = {**headers, **as_headers(properties)}
        if route.reads_keys:
            # Whether it is a duplicate is looked at when it is stored (DUP-09).
            exact.reads_keys = True
            exact.way = (exchange, keys, headers)
        if not route.reads_keys or channel.transaction is not None:
            exact.leads_to(self._queues_of(received, exchange, keys, headers))
        return exact, raw


def with_blind_copies(raw: bytes, keys: list[str]) -> bytes:
    """A content with the keys of its BCC header noted, which is gone.

    Dead letters go by all keys the message was published with (DLX-06), but for those that no
    note has room for.
    """
    if not keys:
        return raw
    notes = [(BLIND_COPY, encode_text(key)) for key in keys]
    return with_notes(raw, [note for note in notes if len(note[1]) <= LONGEST_NOTE_OCTETS])


def as_headers(properties: Properties) -> Table:
    """Properties by which an exchange may route, as headers that no client can send."""
    found: Table = {}
    if properties.message_id is not None:
        found[PROPERTY_PREFIX + "message_id"] = longstr(properties.message_id)
    if properties.correlation_id is not None:
        found[PROPERTY_PREFIX + "correlation_id"] = longstr(properties.correlation_id)
    if properties.timestamp is not None:
        found[PROPERTY_PREFIX + "timestamp"] = longstr(str(properties.timestamp))
    return found


def copies(headers: Table, name: str) -> list[str]:
    """The further routing keys in CC or BCC (PUB-10)."""
    field = headers.get(name)
    if field is None:
        return []
    if not isinstance(field.value, tuple) or field.kind != "A":
        raise PreconditionFailed(
            f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(field)}}}',
            ids=BASIC_PUBLISH,
        )
    texts = (as_text(item) for item in field.value if isinstance(item, Field))
    return [text for text in texts if text is not None]


def check_user_id(user: User, claimed: str) -> None:
    """PUB-06."""
    if claimed != user.name and not user.is_impersonator:
        raise PreconditionFailed(
            f"user_id property set to '{claimed}' but authenticated user was '{user.name}'",
            ids=BASIC_PUBLISH,
        )


def check_expiration(text: str) -> None:
    """Refuse an expiration that is none (PUB-05)."""
    match = EXPIRATION.match(text)
    if match is None:
        why = "no_integer"
    elif match.end() < len(text):
        why = f'{{leftover_string,"{text[match.end() :]}"}}'
    elif int(text) < 0:
        why = f"{{value_negative,{int(text)}}}"
    elif int(text) > MAX_TTL_MS:
        why = f"{{value_too_large,{int(text)}}}"
    else:
        return
    raise PreconditionFailed(f"invalid expiration '{text}': {why}", ids=BASIC_PUBLISH)
