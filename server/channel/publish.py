"""Publishing on one channel: from a run of contents to queues, journal and confirm numbers.

Every publish is resolved to a plan (`plans.py`), and the plan is carried out. The first one with a
given method frame goes the slow way (`_resolve`): pamqp decodes it, the permission is checked, the
exchange routes. The result is kept under those raw octets until the topology changes. Every further
run costs one dict look-up, one journal entry and one `extend` per queue. Decoding every frame into
objects costs 13 µs a publish before anything else is done; working on runs costs 0.3 to 1.0 µs
(decision 0001).

What holds:

- What was resolved counts only while its `generation` is the virtual host's. A binding, exchange,
  queue or permission that changes moves the generation, so no plan leads to what is gone; and a
  plan never changes, so a transaction may hold one while others use it.
- Both ways mean the same. A message that needs a closer look (expiration, user-id, CC or BCC,
  reply-to, a headers exchange) leaves the run and is examined by itself, in the order of PUB-01;
  property tests hold the two ways against each other.
- Messages before a faulty one are kept. A basic.return precedes the confirm of its message
  (PUB-21).
- What there is no time for in this turn is put off as the rest of the same event, and nothing
  behind it on the connection is done before (LIMIT-23, GEN-08).

    publish ─▶ _resolve (first time) ─▶ Plan.store_run ─▶ Enqueuer.store ─▶ Channel.confirm
           └▶ _publish_examined ─▶ _examine ─▶ Plan.store_run or store_one     a closer look
              publish_unlike ─▶ UnlikeMessages ─▶ Enqueuer.store_unlike        ever other keys
              commit ─▶ store_held ─▶ Plan.store_run or store_one              what was held

What it costs: two ways for one meaning. A publisher with ever new routing keys gets no use of what
was resolved; `ROUTES_KEPT` bounds what it can pile up. The octets between name and properties are
taken as they came, so a route's `tail` goes into the deliver frame without being encoded again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mypy_extensions import i64

from vouchmq.protocol.codec import decode_method
from vouchmq.protocol.constants import (
    BASIC_PUBLISH,
    DIRECT_REPLY_TO,
)
from vouchmq.protocol.contents import (
    BLIND_COPY,
    LONGEST_NOTE_OCTETS,
    made_alike,
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
    EXAMINE,
    HEADERS,
    PERSISTENT,
    Properties,
    with_normalized_headers,
    with_reply_to,
    without_headers,
)
from vouchmq.protocol.reader import PUBLISHES, UNLIKE
from vouchmq.protocol.text import encode_text
from vouchmq.server.broker.delays import check_delay, delay_ms
from vouchmq.server.broker.enqueue import Destination, UnlikeMessages
from vouchmq.server.broker.exchanges.consistent_hash import PROPERTY_PREFIX
from vouchmq.server.broker.exchanges.exchange import (
    READS_HEADERS,
    READS_KEYS,
    READS_PROPERTIES,
    Exchange,
)
from vouchmq.server.broker.exchanges.routes import RouteWalk
from vouchmq.server.broker.features.options import TEN_YEARS_MS
from vouchmq.server.broker.queues.api import REFUSES, Queue
from vouchmq.server.channel.plans import NewKeysPlan, PlanChannel, StorePlan, plan_of
from vouchmq.server.channel.route import Route, Way

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vouchmq.protocol.fields import Table
    from vouchmq.protocol.reader import Event
    from vouchmq.server.auth.users import User
    from vouchmq.server.broker.enqueue import Target
    from vouchmq.server.channel.confirms import Confirms
    from vouchmq.server.channel.plans import Plan
    from vouchmq.server.channel.tx import HeldPublish, Transaction
    from vouchmq.server.runtime.context import StagedContent

# Distinct method frames of one channel: a publisher with ever new routing keys must not grow it.
ROUTES_KEPT: Final = 4096
# From this size on a content is written in pieces, before it is stored.
LARGE_OCTETS: int = 4 * 1024 * 1024
NOWHERE: Final[tuple[Queue, ...]] = ()
EXPIRATION: Final = re.compile(r"[+-]?[0-9]+")


class OutOfTimeError(Exception):
    """The way of a message is longer than there is time for in this turn."""


class LongWalk(NamedTuple):
    """The way of a message that is not yet gone to its end, and of which topology it is."""

    raw: bytes
    exchange: Exchange
    topology: tuple[int, int]
    walk: RouteWalk[Queue]


class Resolved:
    """What a `basic.publish` frame means, as long as the topology stays as it is.

    Args:
        generation: of the topology
        exchange: that it names
        plan: of messages in which nothing matters but their keys
        reads: what of other messages exchanges look at, bits as of `Exchange.reads`
        is_refused: its routing key may not be published with (PERM-10)
        new_keys: the plan of runs whose keys a de-duplicating exchange has not seen
        destination: of messages that need no closer look; None when all need one
    """

    __slots__ = (
        "destination",
        "examined_modes",
        "exchange",
        "generation",
        "is_examined",
        "is_refused",
        "new_keys",
        "plan",
        "reads",
        "tail",
    )

    def __init__(
        self,
        generation: int,
        exchange: Exchange,
        plan: Plan,
        *,
        reads: int,
        is_refused: bool,
        new_keys: NewKeysPlan | None,
        destination: Destination | None,
    ) -> None:
        self.generation: Final = generation
        self.exchange: Final = exchange
        self.plan: Final = plan
        self.reads: Final = reads
        self.is_refused: Final = is_refused
        self.new_keys: Final = new_keys
        self.destination: Final = destination
        self.tail: Final = plan.route.tail
        self.examined_modes: Final = EXAMINE | HEADERS if reads & READS_HEADERS else EXAMINE
        self.is_examined: Final = (
            is_refused or bool(reads & READS_PROPERTIES) or not plan.takes_runs
        )


class PublishingChannel(PlanChannel, Protocol):
    """A channel, as publishing sees it.

    `stored_lsn` is that of the last publish that nobody waits for.
    """

    user: User
    confirms: Confirms | None
    transaction: Transaction | None
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

    __slots__ = (
        *("_channel", "_destinations", "_generation", "_onward", "_onward_generation"),
        *("_resolved", "_staged", "_unlike", "_walk"),
    )

    def __init__(self, channel: PublishingChannel) -> None:
        self._channel = channel
        self._resolved: dict[bytes, Resolved] = {}
        # Where resolved messages go, as of a generation.
        self._destinations: dict[tuple[str, tuple[Queue, ...]], Destination] = {}
        self._generation = -1
        self._unlike = UnlikeMessages(channel.context.enqueuer)
        self._onward_generation = -1
        self._onward = 0
        self._walk: LongWalk | None = None
        self._staged: StagedContent | None = None

    def publish(self, key: bytes, raws: list[bytes], mode: int, largest: int) -> None:
        """Take a run of contents that share a method frame and a mode.

        What there is no time for in this turn is published in a later one (LIMIT-23).

        Raises:
            SoftError: 403, 404 or 406 by PUB-01; the messages before the faulty one are kept
        """
        left = self._publish(key, raws, mode, largest)
        if left:
            channel = self._channel
            channel.put_off((PUBLISHES, channel.number, key, left, mode, largest))

    def _publish(self, key: bytes, raws: list[bytes], mode: int, largest: int) -> list[bytes]:
        """As `publish`; gives those that there was no time for."""
        channel = self._channel
        resolved = self._resolved.get(key)
        if resolved is None or resolved.generation != channel.vhost.generation:
            try:
                resolved = self._resolve(key)
            except OutOfTimeError:
                return raws
        if (
            resolved.is_examined
            or mode & resolved.examined_modes
            or channel.transaction is not None
        ):
            return self._publish_examined(resolved, raws, mode, largest)
        if largest >= LARGE_OCTETS and self._is_staging(resolved.plan.route, raws, mode):
            return raws
        # A plan that `is_examined` does not say takes every run.
        lsn = resolved.plan.store_run(channel, raws, mode, largest) or 0
        if channel.confirms is not None:
            channel.confirm(len(raws), lsn)
            return []
        channel.counters.published += len(raws)
        if lsn:
            channel.stored_lsn = lsn
        return []

    def publish_unlike(
        self, keys: list[bytes], raws: list[bytes], modes: list[int], largest: int
    ) -> None:
        """Take contents with a method frame and a mode each; otherwise as `publish`.

        What needs no closer look is gathered and stored by where it goes. The ledger tells runs of
        one routing key, so while it is on each message is a run.
        """
        channel, known, unlike = self._channel, self._resolved, self._unlike
        generation, is_over = channel.vhost.generation, channel.context.budget.is_over
        may_gather = (
            channel.transaction is None and channel.recorder is None and largest < LARGE_OCTETS
        )
        stored: i64 = 0
        done: i64
        for done, key in enumerate(keys):
            raw, mode = raws[done], modes[done]
            resolved = known.get(key)
            destination = None
            if (
                may_gather
                and resolved is not None
                and resolved.generation == generation
                and not mode & resolved.examined_modes
            ):
                destination = resolved.destination
            if resolved is None or destination is None:
                self._store_unlike(done - stored, largest)
                left = self._publish(key, [raw], mode, len(raw))
                stored = done if left else done + 1
                if left or (stored < len(raws) and is_over()):
                    rest = (keys[stored:], raws[stored:], modes[stored:])
                    channel.put_off((UNLIKE, channel.number, *rest, largest))
                    return
                generation = channel.vhost.generation
                continue
            is_stored = destination.is_durable and mode & PERSISTENT != 0
            if (is_stored is not unlike.is_stored or not destination.raws) and not unlike.takes(
                destination, is_stored=is_stored
            ):
                self._store_unlike(done - stored, largest)
                stored = done
                unlike.takes(destination, is_stored=is_stored)
            destination.raws.append(raw)
            destination.tails.append(resolved.tail)
        self._store_unlike(len(keys) - stored, largest)

    def _store_unlike(self, count: int, largest: int) -> None:
        """Store what was gathered, so many messages."""
        if count:
            channel = self._channel
            lsn = self._unlike.store(largest)
            if channel.confirms is not None:
                channel.confirm(count, lsn)
                return
            channel.counters.published += count
            channel.stored_lsn = lsn or channel.stored_lsn

    def _is_staging(self, route: Route, raws: list[bytes], mode: int) -> bool:
        """Write what there is time for of a large content; whether more of it is to be written."""
        context = self._channel.context
        staged = self._staged
        if staged is None or staged.raw is not raws[0]:
            self.forget_staged()
            if len(raws) == 1 and mode & PERSISTENT and route.queue_ids:
                self._staged = staged = context.journal.stage(raws[0])
            else:
                staged = None
        if staged is None:
            return False
        if not staged.go_on(context.budget.is_over):
            return True
        # In front of its own block there is little room for others.
        context.turn.write_through(context.journal.next_lsn - 1)
        self.forget_staged()
        return False

    def forget_staged(self) -> None:
        """What is staged is stored next, or never."""
        if self._staged is not None:
            self._staged.is_due = True
            self._staged = None

    # Resolving

    def _resolve(self, key: bytes) -> Resolved:
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
        if method.immediate and channel.context.limits.reject_immediate:  # type: ignore[attr-defined]
            raise NotImplementedByBroker("immediate=true", ids=BASIC_PUBLISH)
        onward = self._read_onward()
        route = Route(
            exchange_name,
            routing_key,
            # Frame header 7, ids 4, ticket 2 before the two names; flags and frame end behind.
            key[13:-2],
            self._queues_of(key, exchange, (routing_key,), {}),
            counters=exchange.counters,
            mandatory=bool(method.mandatory),  # type: ignore[attr-defined]
            immediate=bool(method.immediate),  # type: ignore[attr-defined]
        )
        # Not said at once: faults of a message's properties come before (PUB-01).
        is_refused = exchange.type == "topic" and not channel.user.may_topic(
            "write", routing_key, exchange_name, vhost.name
        )
        new_keys = None
        is_plain = bool(route.queues) and not (route.immediate or route.is_leveled or is_refused)
        if is_plain and not onward and not exchange.reads_beyond_keys:
            window = exchange.window
            new_keys = NewKeysPlan(route, window) if window is not None else None
        plan = plan_of(route)
        resolved = Resolved(
            vhost.generation,
            exchange,
            plan,
            reads=exchange.reads | onward,
            is_refused=is_refused,
            new_keys=new_keys,
            destination=self._destination_of(plan),
        )
        if len(self._resolved) >= ROUTES_KEPT:
            self._resolved.clear()
        self._resolved[key] = resolved
        return resolved

    def _destination_of(self, plan: Plan) -> Destination | None:
        """Where all messages of a plan go, one object for each exchange and queues.

        None when some may need a closer look, even if their properties do not ask for it.
        """
        route = plan.route
        if type(plan) is not StorePlan or not route.queues or route.is_leveled:
            return None
        generation = self._channel.vhost.generation
        if self._generation != generation or len(self._destinations) >= ROUTES_KEPT:
            self._generation = generation
            self._destinations.clear()
        key = (route.exchange, route.queues)
        destination = self._destinations.get(key)
        if destination is None:
            destination = self._destinations[key] = Destination(route, route.counters)
        return destination

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
                    name in alternates or vhost.bindings.is_destination("exchange", name)
                ):
                    self._onward |= exchange.reads
        return self._onward

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
        elif long.topology == vhost.topology:
            walk = long.walk
        else:
            # Who keeps changing bindings must not keep others from publishing.
            return vhost.route(exchange, keys, headers)
        queues = walk.go(self._channel.context.budget.is_over)
        if queues is None:
            self._walk = LongWalk(raw, exchange, vhost.topology, walk)
            raise OutOfTimeError
        return queues

    # What needs a closer look

    def _publish_examined(
        self, resolved: Resolved, raws: list[bytes], mode: int, largest: int
    ) -> list[bytes]:
        """Properties checked, planned anew if they matter; together what is alike.

        Returns:
            those there was no time for
        """
        channel = self._channel
        if not (
            mode & resolved.examined_modes
            or resolved.reads & READS_PROPERTIES
            or resolved.is_refused
        ):
            self._publish_run(resolved.plan, raws, mode, largest)
            return []
        if resolved.new_keys is not None and not mode & EXAMINE and channel.transaction is None:
            lsn = resolved.new_keys.store_run(channel, raws, mode, largest)
            if lsn is not None:
                self._stored(len(raws), lsn)
                return []
        is_over, done = channel.context.budget.is_over, 0
        try:
            for alike in runs_of_alike(raws):
                if done and is_over():
                    return raws[done:]
                alike = with_normalized(alike)
                plan, raw = self._examine(resolved, alike[0])
                if raw is alike[0] and not plan.routes_later:
                    self._publish_run(plan, alike, mode, max(map(len, alike)))
                    done += len(alike)
                    continue
                self._publish_one(plan, raw, mode)
                done += 1
                for other in alike[1:]:
                    if is_over():
                        return raws[done:]
                    self._publish_one(*self._examine(resolved, other), mode)
                    done += 1
        except OutOfTimeError:
            return raws[done:]
        return []

    def _examine(self, resolved: Resolved, raw: bytes) -> tuple[Plan, bytes]:
        """Check the properties (CONS-62, PUB-05, PUB-10, PERM-10, PUB-06) and route by them."""
        channel, route, exchange = self._channel, resolved.plan.route, resolved.exchange
        received = raw
        original = block = property_block(raw)
        properties = Properties(block)
        if properties.reply_to == DIRECT_REPLY_TO:
            block = with_reply_to(block, channel.reply_name())
        if properties.expiration is not None:
            check_expiration(properties.expiration)
        headers = properties.headers or {}
        keys = (route.routing_key, *copies(headers, "CC"), *copies(headers, "BCC"))
        if len(keys) > 1 or resolved.is_refused:
            self._check_topics(exchange, keys)
        if properties.user_id is not None:
            check_user_id(channel.user, properties.user_id)
        if "BCC" in headers:
            block = without_headers(block, {"BCC"})
        if block != original:
            raw = with_properties(raw, block)
        raw = with_blind_copies(raw, copies(headers, "BCC"))
        if len(keys) == 1 and not resolved.reads & (READS_HEADERS | READS_PROPERTIES):
            return resolved.plan, raw
        immediate = route.immediate
        if exchange.delays:
            check_delay(headers)
            # Held messages are never returned (DELAY-16).
            immediate = immediate and not delay_ms(headers)
        if resolved.reads & READS_PROPERTIES:
            headers = {**headers, **as_headers(properties)}
        way, queues = None, NOWHERE
        if resolved.reads & READS_KEYS:
            # Whether it is a duplicate is looked at when it is stored (DUP-09).
            way = Way(exchange, keys, headers)
        if way is None or channel.transaction is not None:
            queues = self._queues_of(received, exchange, keys, headers)
        exact = Route(
            route.exchange,
            route.routing_key,
            route.tail,
            queues,
            counters=route.counters,
            mandatory=route.mandatory,
            immediate=immediate,
        )
        return plan_of(exact, way), raw

    def _check_topics(self, exchange: Exchange, keys: Iterable[str]) -> None:
        """Every key of a message to a topic exchange must be allowed (PERM-10)."""
        channel = self._channel
        if exchange.type == "topic":
            for key in keys:
                channel.user.require_topic("write", key, exchange.name, channel.vhost.name)

    # Storing

    def _publish_run(self, plan: Plan, raws: list[bytes], mode: int, largest: int) -> None:
        """Messages with nothing between them that matters."""
        channel = self._channel
        if channel.transaction is None:
            lsn = plan.store_run(channel, raws, mode, largest)
            if lsn is not None:
                self._stored(len(raws), lsn)
                return
        for raw in raws:
            self._publish_one(plan, raw, mode)

    def _publish_one(self, plan: Plan, raw: bytes, mode: int) -> None:
        """One message by itself, after its properties have been checked."""
        channel = self._channel
        if channel.transaction is not None:
            channel.transaction.publish(plan, raw, mode)
            return
        lsn = plan.store_one(channel, raw, mode)
        if lsn == REFUSES:
            channel.refuse()
        else:
            self._stored(1, lsn)

    def _stored(self, count: int, lsn: int) -> None:
        channel = self._channel
        channel.confirm(count, lsn)
        if channel.context.was_refused(lsn):
            channel.publish_refused(lsn)

    def store_held(self, plan: Plan, raws: list[bytes], mode: int) -> int:
        """Store what a transaction holds, as one where nothing has to be looked at singly.

        Returns:
            the LSN to wait for, 0 for none; REFUSES when some queue refused all of them
        """
        channel = self._channel
        channel.counters.published += len(raws)
        if not mode & EXAMINE:
            lsn = plan.store_run(channel, raws, mode, max(map(len, raws)))
            if lsn is not None:
                return lsn
        return max(plan.store_one(channel, raw, mode) for raw in raws)

    def target_of(self, held: HeldPublish) -> tuple[Target, list[bytes]]:
        """Where what a transaction holds would go, were it stored now (TX-09, DUP-09)."""
        return held.plan.target_now(self._channel, held.raws[0]), held.raws


def with_normalized(alike: list[bytes]) -> list[bytes]:
    """Contents of equal properties with headers that every client can read.

    Raises:
        InternalError: 541, they have one that not every client can

    Spec: FRAME-59
    """
    block = property_block(alike[0])
    made = with_normalized_headers(block)
    return alike if made is block else made_alike(alike[0], with_properties(alike[0], made), alike)


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
    """406 for a user-id that is not that of the connection's user (PUB-06)."""
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
    elif int(text) > TEN_YEARS_MS:
        why = f"{{value_too_large,{int(text)}}}"
    else:
        return
    raise PreconditionFailed(f"invalid expiration '{text}': {why}", ids=BASIC_PUBLISH)
