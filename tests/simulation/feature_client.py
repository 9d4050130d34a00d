"""Clients that use every feature: what they send is told to the books, what they hear is judged.

Replies are not predicted here (`model.py` does that for plain queues). What a client has asked
for is what the broker may do to its messages, and nothing else: see `feature_books.py`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from pamqp import base, commands
from pamqp import frame as pamqp_frame
from pamqp import header as pamqp_header

from tests.simulation.clients import (
    ACK,
    CONNECTION_CLOSE,
    GET_OK,
    NACK,
    QUEUE_DECLARE,
    RETURN,
    Client,
    ClientChannel,
    content,
    method,
)
from tests.simulation.feature_topology import (
    EXCHANGES,
    KEYS,
    NOWHERE,
    PATTERNS,
    QUEUES,
    ExchangePlan,
    QueuePlan,
)
from tests.simulation.ledger import Violation
from vouchmq.protocol import reader

if TYPE_CHECKING:
    from tests.simulation.feature_world import FeatureWorld
    from vouchmq.server.connection.connection import Connection

# What a broker may refuse one of these clients: see `_close_is_due`.
REFUSALS = frozenset({403, 404, 405, 406})
MANY_MESSAGES = 70
SIZES = (10, 10, 10, 40, 40, 300, 600, 5000)
EXPIRATIONS = (0, 2, 15, 60, 200)
DELAYS = (0, 1, 10, 40, 120)


@dataclass(slots=True)
class Message:
    """What a client has published."""

    number: int
    exchange: str
    key: str
    persistent: bool
    expiration_ms: int | None = None
    delay_ms: int = 0
    priority: int | None = None
    header: str = ""
    dedup_key: str = ""


@dataclass(slots=True)
class Talk:
    """What one channel waits for."""

    unconfirmed: dict[int, Message] = field(default_factory=dict)
    published: int = 0
    transaction: list[int] = field(default_factory=list)
    committing: list[int] = field(default_factory=list)
    gets: deque[tuple[str, bool]] = field(default_factory=deque)
    # A queue, its record, and what a passive one must count.
    declared: deque[tuple[str, int, int | None]] = field(default_factory=deque)
    queue_of: dict[str, str] = field(default_factory=dict)  # consumer tag → queue
    held: dict[int, tuple[str, int]] = field(default_factory=dict)  # tag → queue, message
    recovers: int = 0


class FeatureClient(Client):
    """One connection of a history with features."""

    world: FeatureWorld

    def __init__(self, world: FeatureWorld, number: int) -> None:
        super().__init__(world, number)
        self.talks: dict[int, Talk] = {}

    # Sending

    def ask(self, ch: ClientChannel, what: base.Frame) -> None:
        if self.world.trace is not None:
            self.world.trace(f"{(self.number, ch.number)} sends {what.name} {dict(what)}")
        self.out += method(ch.number, what)

    def send(self, ch: ClientChannel, what: base.Frame, kind: str, *arguments: object) -> None:
        """Nothing is told to a model here."""
        del kind, arguments
        self.ask(ch, what)

    def open_channel(self, mode: str) -> ClientChannel:
        ch = super().open_channel(mode)
        self.talks[ch.number] = Talk()
        return ch

    def publish_message(self, ch: ClientChannel, message: Message, size: int, flags: int) -> None:
        """Bits of `flags`: 1 mandatory, 2 immediate."""
        headers: dict[str, Any] = {}
        if message.delay_ms:
            headers["x-delay"] = message.delay_ms
        if message.header:
            headers["h"] = message.header
        if message.dedup_key:
            headers["x-deduplication-header"] = message.dedup_key
        properties = commands.Basic.Properties(
            delivery_mode=2 if message.persistent else 1,
            headers=headers or None,
            priority=message.priority,
            expiration=None if message.expiration_ms is None else str(message.expiration_ms),
        )
        body = (b"%010d" % message.number).ljust(size, b".")
        marshalled = pamqp_header.ContentHeader(0, len(body), properties).marshal()
        what = commands.Basic.Publish(
            exchange=message.exchange,
            routing_key=message.key,
            mandatory=bool(flags & 1),
            immediate=bool(flags & 2),
        )
        self.ask(ch, what)
        self.out += content(ch.number, body, marshalled[12:])
        talk = self.talks[ch.number]
        # One whose key is known is confirmed as well, and comes nowhere.
        is_aimed = ch.mode == "confirm" and not flags & 2 and not message.dedup_key
        self.world.books.published(message, is_aimed=is_aimed)
        if ch.mode == "confirm":
            talk.published += 1
            talk.unconfirmed[talk.published] = message
        elif ch.mode == "tx":
            talk.transaction.append(message.number)

    def settle(self, ch: ClientChannel, how: str, tag: int, multiple: bool) -> None:
        talk = self.talks[ch.number]
        multiple = multiple and how != "reject"
        which = [each for each in ch.tags if each == tag or (multiple and each <= tag)]
        for each in which:
            if how == "ack":
                self.world.books.acks.add(talk.held[each])
            elif how == "drop":
                self.world.books.rejections.add(talk.held[each])
        super().settle(ch, how, tag, multiple)

    def end_transaction(self, ch: ClientChannel, *, is_commit: bool) -> None:
        talk = self.talks[ch.number]
        if is_commit:
            talk.committing = talk.transaction
        talk.transaction = []
        super().end_transaction(ch, is_commit=is_commit)

    def consume_from(self, ch: ClientChannel, queue: str, no_ack: bool, priority: int) -> None:
        self._counter += 1
        tag = f"c{self._counter}"
        ch.tag_queue[tag] = no_ack
        self.talks[ch.number].queue_of[tag] = queue
        if no_ack:
            self.world.books.no_ack.add(queue)
        arguments: dict[str, Any] = {"x-priority": priority} if priority else {}
        what = commands.Basic.Consume(
            queue=queue, consumer_tag=tag, no_ack=no_ack, arguments=arguments
        )
        self.ask(ch, what)

    def get(self, ch: ClientChannel, queue: str, no_ack: bool) -> None:
        self.talks[ch.number].gets.append((queue, no_ack))
        if no_ack:
            self.world.books.no_ack.add(queue)
        self.ask(ch, commands.Basic.Get(queue=queue, no_ack=no_ack))

    # What the broker takes

    def watch(
        self, dispatch: Callable[[reader.Event], None], is_blocking: Callable[[], bool]
    ) -> Callable[[reader.Event], None]:
        """Note which queue a declare is about: by the answer another may have its name."""
        del is_blocking

        def watched(event: Any) -> None:
            is_declare = event[0] == reader.METHOD and event[2][:4] == QUEUE_DECLARE
            channel = self.connection.channels.get(event[1]) if is_declare else None
            is_taken = channel is not None and not channel.is_closing and not self.is_put_off(event)
            dispatch(event)
            if is_taken:
                end = 7 + event[2][6]
                name, is_passive = event[2][7:end].decode(), bool(event[2][end] & 1)
                # A passive one promises nothing.
                record = 0 if is_passive else self.world.books.born.get(name, 0)
                ready = self.world.ready_in(name) if is_passive else None
                self.talks[event[1]].declared.append((name, record, ready))

        return watched

    def see_closes(self, connection: Connection) -> None:
        """Channels may be closed because of a full disk."""
        del connection
        self.is_refused = True

    def lost(self) -> None:
        self.is_over = True

    # What the broker says

    def _message(self, number: int, ids: int, arguments: bytes, body: bytes) -> None:
        ch, talk = self._channel(number), self.talks[number]
        message = self.world.message_of(body)
        if self.world.trace is not None:
            self.world.trace(f"{(self.number, number)} ← {ids & 0xFFFF} message {message}")
        if ids == RETURN:
            return
        self.world.deliveries += 1
        if ids == GET_OK:
            tag = int.from_bytes(arguments[:8], "big")
            queue, no_ack = talk.gets.popleft()
            is_held = not no_ack
        else:
            end = 1 + arguments[0]
            consumer = arguments[1:end].decode()
            tag = int.from_bytes(arguments[end : end + 8], "big")
            if consumer not in talk.queue_of:
                raise Violation(f"a delivery to {consumer}, which is not there")
            queue = talk.queue_of[consumer]
            is_held = not ch.tag_queue.get(consumer, False)
        self.world.books.heard(queue, message)
        # What comes while a recover is under way goes back with it.
        if is_held and tag not in ch.tags and not talk.recovers:
            ch.tags.append(tag)
            talk.held[tag] = (queue, message)

    def _method(self, number: int, ids: int, octets: bytes) -> None:
        ch = self.channels.get(number)
        if ids in {ACK, NACK}:
            tag, multiple = int.from_bytes(octets[11:19], "big"), bool(octets[19] & 1)
            self._confirmed(self._channel(number), tag, multiple, ids == ACK)
            return
        what = cast("base.Frame", pamqp_frame.unmarshal(octets)[2])
        if self.world.trace is not None:
            self.world.trace(f"{(self.number, number)} ← {what.name} {dict(what)}")
        if isinstance(what, commands.Channel.CloseOk) and ch is not None and ch.is_closing:
            ch.is_closed = True
            return
        ch, talk = self._channel(number), self.talks[number]
        if isinstance(what, commands.Channel.Close):
            self._close_is_due(what, ch)
            ch.is_closed = not ch.is_closing
            self.out += method(number, commands.Channel.CloseOk())
        elif isinstance(what, commands.Tx.CommitOk):
            ch.is_waiting = False
            self.world.books.committed(talk.committing)
            talk.committing = []
        elif isinstance(what, commands.Basic.RecoverOk):
            talk.recovers -= 1
            ch.is_waiting = False
        elif isinstance(what, commands.Basic.GetEmpty):
            talk.gets.popleft()
        elif isinstance(what, commands.Queue.DeclareOk):
            name, record, ready = talk.declared.popleft()
            if what.queue != name:
                raise Violation(f"declare-ok of {what.queue}, not of {name}")
            if ready is not None and what.message_count != ready:
                raise Violation(f"{name} says {what.message_count} ready, not {ready} (QUEUE-14)")
            self.world.states_of.promise(record, f"declare-ok of {name}")

    def _close_is_due(self, what: commands.Channel.Close, ch: ClientChannel) -> None:
        text = what.reply_text or ""
        if what.reply_code not in REFUSALS:
            raise Violation(f"channel closed: {what.reply_code} {text}")
        if "partial tx" in text and not ch.is_waiting:
            raise Violation(f"no commit was asked for: {text}")
        if "unknown delivery tag" in text and not self.world.books.has_timeouts:
            raise Violation(f"the tag had been delivered: {text}")

    def _confirmed(self, ch: ClientChannel, tag: int, multiple: bool, is_ack: bool) -> None:
        talk = self.talks[ch.number]
        if multiple:
            numbers = [number for number in talk.unconfirmed if number <= tag]
        else:
            numbers = [tag] if tag in talk.unconfirmed else []
        if not numbers or tag != numbers[-1]:
            raise Violation(f"confirm of {tag} (multiple={multiple}) twice, or of nothing")
        for number in numbers:
            message = talk.unconfirmed.pop(number)
            if is_ack:
                self.world.confirms += 1
                self.world.books.confirmed(message)

    def _connection_method(self, octets: bytes) -> None:
        if octets[7:11] == CONNECTION_CLOSE and (
            self.is_refused or self.world.runtime.context.has_failed
        ):
            self.is_leaving = True
            self.out.clear()
            self.out += method(0, commands.Connection.CloseOk())
            return
        if octets[7:11] == CONNECTION_CLOSE:
            what = cast("commands.Connection.Close", pamqp_frame.unmarshal(octets)[2])
            raise Violation(f"closed by the broker: {what.reply_code} {what.reply_text}")
        super()._connection_method(octets)


# What they do

Action = Callable[[FeatureClient, ClientChannel, random.Random], None]


def act(client: FeatureClient, draw: random.Random) -> None:
    """One random deed."""
    usable = [ch for ch in client.channels.values() if ch.is_usable]
    if not usable or (len(usable) < 3 and draw.random() < 0.03):
        if len([ch for ch in client.channels.values() if not ch.is_free]) < 6:
            client.open_channel(draw.choice(("", "confirm", "confirm", "tx")))
        return
    draw.choice(ACTIONS)(client, draw.choice(usable), draw)


def set_up(client: FeatureClient, draw: random.Random) -> None:
    """What a client does first: much of the topology."""
    ch = client.open_channel(draw.choice(("", "confirm", "tx")))
    share = draw.choice((0.3, 1.0))
    for plan in client.world.topology.exchanges.values():
        if draw.random() < share:
            declare_exchange(client, ch, plan)
    for queue in client.world.topology.queues.values():
        if draw.random() < share:
            declare_queue(client, ch, queue)
    for _ in range(draw.randint(2, 8)):
        bind(client, ch, draw)


def declare_queue(client: FeatureClient, ch: ClientChannel, plan: QueuePlan) -> None:
    what = commands.Queue.Declare(
        queue=plan.name,
        durable=plan.durable,
        exclusive=plan.exclusive,
        auto_delete=plan.auto_delete,
        arguments=plan.arguments,
    )
    client.ask(ch, what)


def declare_exchange(client: FeatureClient, ch: ClientChannel, plan: ExchangePlan) -> None:
    what = commands.Exchange.Declare(
        exchange=plan.name,
        exchange_type=plan.type,
        durable=plan.durable,
        arguments=plan.arguments,
    )
    client.ask(ch, what)


def declare(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    if draw.random() < 0.3:
        declare_exchange(client, ch, client.world.topology.exchanges[draw.choice(EXCHANGES)])
    else:
        declare_queue(client, ch, client.world.topology.queues[draw.choice(QUEUES)])


def delete(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    if draw.random() < 0.15:
        if draw.random() < 0.3:
            client.ask(ch, commands.Exchange.Delete(exchange=draw.choice(EXCHANGES)))
        else:
            client.ask(ch, commands.Queue.Delete(queue=draw.choice(QUEUES)))


def existing(client: FeatureClient, draw: random.Random) -> str:
    """A queue that is there, mostly."""
    names = sorted(n for n in client.world.vhost.queues if n in client.world.topology.queues)
    return draw.choice(names) if names and draw.random() < 0.98 else draw.choice(QUEUES)


def an_exchange(client: FeatureClient, draw: random.Random) -> str:
    names = sorted(n for n in client.world.vhost.exchanges if n in client.world.topology.exchanges)
    if not names or draw.random() < 0.1:
        return draw.choice(("amq.fanout", "amq.topic", "amq.headers"))
    return draw.choice(names) if draw.random() < 0.99 else NOWHERE


def bind(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    source, key = an_exchange(client, draw), draw.choice(PATTERNS)
    arguments: dict[str, Any] = {}
    if draw.random() < 0.4:
        arguments = {"x-match": draw.choice(("all", "any")), "h": draw.choice(("1", "2"))}
    if draw.random() < 0.15:
        target = an_exchange(client, draw)
        what: base.Frame = commands.Exchange.Bind(
            destination=target, source=source, routing_key=key, arguments=arguments
        )
    else:
        name = existing(client, draw)
        what = commands.Queue.Bind(
            queue=name, exchange=source, routing_key=key, arguments=arguments
        )
    client.ask(ch, what)


def purge(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    if draw.random() < 0.2:
        client.ask(ch, commands.Queue.Purge(queue=existing(client, draw)))


def publish(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    """One message, or a run of the same kind."""
    if len(client.world.books.copies) > MANY_MESSAGES:
        return
    exchange, key = "", existing(client, draw)
    if draw.random() < 0.5:
        exchange, key = an_exchange(client, draw), draw.choice(KEYS)
    kind = Message(0, exchange, key, draw.random() < 0.85)
    if draw.random() < 0.25:
        kind.expiration_ms = draw.choice(EXPIRATIONS)
    if draw.random() < 0.3:
        kind.delay_ms = draw.choice(DELAYS)
    if draw.random() < 0.4:
        kind.priority = draw.choice((0, 1, 2, 5, 12))
    if draw.random() < 0.4:
        kind.header = draw.choice(("1", "2"))
    flags = draw.choice((0, 0, 0, 0, 0, 1, 2, 3))
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        kind.number = client.world.next_message()
        message = Message(*(getattr(kind, name) for name in Message.__slots__))
        client.publish_message(ch, message, draw.choice(SIZES), flags)


def consume(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    if len(ch.tag_queue) < 6:
        priority = draw.choice((0, 0, 0, 1, 5))
        client.consume_from(ch, existing(client, draw), draw.random() < 0.2, priority)


def cancel(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    if ch.tag_queue and draw.random() < 0.5:
        client.ask(ch, commands.Basic.Cancel(draw.choice(sorted(ch.tag_queue))))


def get(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    client.get(ch, existing(client, draw), draw.random() < 0.3)


def publish_and_get(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    publish(client, ch, draw)
    for _ in range(draw.randint(1, 3)):
        get(client, ch, draw)


def settle(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    """A few deliveries, this way or that."""
    if not ch.tags:
        return
    how = draw.choice(("ack", "ack", "ack", "nack", "reject", "reject", "drop", "drop"))
    if draw.random() < 0.3:
        client.settle(ch, how, draw.choice(ch.tags), multiple=True)
        return
    tags = sorted(ch.tags) if draw.random() < 0.6 else draw.sample(ch.tags, len(ch.tags))
    for tag in tags[: draw.choice((1, 2, 5))]:
        client.settle(ch, how, tag, multiple=False)


def qos(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    count, is_shared = draw.choice((0, 1, 2, 5)), draw.random() < 0.3
    client.ask(ch, commands.Basic.Qos(prefetch_count=count, global_=is_shared))


def recover(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    if draw.random() < 0.3:
        client.ask(ch, commands.Basic.Recover(True))
        ch.is_waiting = True
        client.talks[ch.number].recovers += 1
        ch.tags.clear()


def end_transaction(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    if ch.mode == "tx":
        client.end_transaction(ch, is_commit=draw.random() < 0.75)


def close_channel(client: FeatureClient, ch: ClientChannel, draw: random.Random) -> None:
    if draw.random() < 0.15:
        client.close_channel(ch)


ACTIONS: list[Action] = [
    *[publish] * 12,
    *[settle] * 12,
    *[end_transaction] * 8,
    *[declare] * 3,
    *[consume] * 4,
    *[get] * 3,
    *[publish_and_get] * 3,
    *[bind] * 2,
    delete,
    purge,
    cancel,
    qos,
    recover,
    close_channel,
]
