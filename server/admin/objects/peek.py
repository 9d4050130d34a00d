"""`peek`: the messages of a queue as they are, without consuming any; nothing changes by it.

Ready ones from a place of the queue's order, those that were handed out with who holds them, those
that wait, delayed ones of an exchange, any offset of a stream. What is on disk is read from there a
piece at a time, and left there. Rows come in slices, so what consumers take meanwhile may be
missing. Must not know sockets.

Spec: HTTP-34
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct

from vouchmq.protocol.errors import NotFound
from vouchmq.protocol.fields import decode_shortstr
from vouchmq.protocol.runs import body_size
from vouchmq.server.admin.audit import Changing
from vouchmq.server.admin.commands import CommandRefused
from vouchmq.server.admin.listing import SLICE_S
from vouchmq.server.admin.objects.values import body_of, properties_of
from vouchmq.server.broker.features.redelivery import Redelivery
from vouchmq.server.broker.names import exchange_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.admin.objects.operator import Operator
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.channel.consumer import Consumer
    from vouchmq.server.runtime.context import BrokerContext
    from vouchmq.server.runtime.runtime import AllConnections

State = Literal["ready", "unacknowledged", "waiting"]
# Messages between two looks at the clock.
PIECE_MESSAGES: Final = 64
# Rows go when they have so many bytes of bodies together.
ROWS_BYTES: Final = 1024 * 1024
MOST: Final = 10_000


class Peek(Changing, frozen=True, kw_only=True):
    """Which messages are to be shown.

    Args:
        name: of a queue; or else
        exchange: whose delayed messages are to be shown
        state: `waiting` are those of a queue that wait for a retry, or as dead letters that
            nobody has taken
        first: the place of the first, from 0; an offset of a stream
        count: at most
        body_bytes: of each body, more is cut off; None: all
    """

    vhost: str = "/"
    name: str | None = None
    exchange: str | None = None
    state: State = "ready"
    first: Annotated[int, Meta(ge=0)] = 0
    count: Annotated[int, Meta(ge=1, le=MOST)] = 100
    body_bytes: Annotated[int, Meta(ge=0)] | None = 65536


class PeekedMessage(Struct, frozen=True, array_like=True):
    """A message as it is in its queue.

    Times are in milliseconds since 1970. `id` is the message's own in its queue. `size` is that of
    the body, of which `body` may be a part. Who holds it is empty of one that nobody has got; of
    one got by basic.get there is no consumer. Since when is up to a second later than the delivery,
    unless a consumer timeout is in force.
    """

    id: int
    place: int
    state: str
    exchange: str
    routing_key: str
    redelivered: bool
    properties: Mapping[str, object]
    size: int
    body: bytes
    arrived_ms: int
    due_ms: int | None = None
    connection: str = ""
    channel: int = 0
    consumer: str = ""
    delivery_tag: int = 0
    held_since_ms: int | None = None


class PeekCommands:
    """The command that shows messages.

    Args:
        operator: finds what it names
        connections: who may hold messages
    """

    def __init__(self, operator: Operator, connections: AllConnections) -> None:
        self._operator = operator
        self._connections = connections

    def register(self, commands: ControlCommands) -> None:
        """Enter the command."""
        commands.register("peek", Peek, self._peek)

    def _peek(self, asked: Peek, reply: Reply) -> None:
        queue = self._queue(asked)
        shown = Shown(self._operator.context, asked)
        if asked.state == "unacknowledged":
            rows = RowsIn(shown.held(holders(self._connections, queue)), self._operator.context)
            next_piece: Callable[[int, int], list[PeekedMessage] | None] = rows.take
        elif asked.state == "waiting":
            next_piece = partial(shown.waiting, queue, queue.parked())
        else:
            next_piece = partial(shown.in_queue, queue)
        reply.send({"columns": PeekedMessage.__struct_fields__})
        context = self._operator.context
        # Of one moment: whoever follows the queue knows from it what comes afterwards.
        moment = {
            "published": queue.counters.published,
            "newest_id": 2 * context.journal.next_lsn - 1,
        }
        Pieces(context, reply, next_piece, asked, moment).go_on()

    def _queue(self, asked: Peek) -> Queue:
        """The queue that is meant, which the user may read.

        Raises:
            AmqpError: there is none, or the user may not
        """
        vhost, user = self._operator.vhost(asked.vhost), self._operator.user(asked.user)
        if (asked.name is None) is (asked.exchange is None):
            raise CommandRefused("peek: give the name of a queue, or an exchange")
        if asked.exchange is not None:
            user.require("read", "exchange", asked.exchange, vhost.name)
            delayed = vhost.delay_queues.get(asked.exchange)
            if delayed is None:
                text = exchange_text(asked.exchange, vhost.name)
                raise NotFound(f"no {text} that delays messages")
            return delayed
        name = asked.name or ""
        user.require("read", "queue", name, vhost.name)
        if asked.user is not None or name not in vhost.queues:
            return vhost.find_queue(name, self)
        # Whoever may open the socket may look into what is another's alone.
        return vhost.queues[name]


class Holder(Struct, frozen=True):
    """A delivery that is not settled: who has it, under which tag, since when."""

    message: Message
    connection: str
    channel: int
    consumer: Consumer | None
    tag: int
    since_ms: int


def holders(connections: AllConnections, queue: Queue) -> Iterator[Holder | None]:
    """Who holds messages of a queue, by connection and channel, in the order of delivery.

    None for what is passed over: of other queues there may be very much.
    """
    for connection in list(connections):
        for number, channel in list(connection.channels.items()):
            yield None
            name = channel.connection.wire.name
            for run in channel.unacked.runs():
                if run.queue is not queue:
                    yield None
                    continue
                first, consumer, since_ms = run.first, run.consumer, run.since_ms
                for tag, message in enumerate(list(run.messages), first):
                    if message is not None:
                        held_since = channel.held_since(tag, since_ms)
                        yield Holder(message, name, number, consumer, tag, held_since)
            held = channel.transaction.settlements if channel.transaction is not None else ()
            for entry in [each for settlement in held for each in settlement.entries]:
                if entry.queue is not queue:
                    yield None
                    continue
                for tag, message in zip(entry.tags, entry.messages, strict=True):
                    held_since = channel.held_since(tag, entry.since_ms)
                    yield Holder(message, name, number, entry.consumer, tag, held_since)


class Shown:
    """Makes rows of messages.

    Args:
        context: knows the time
        asked: how much of them is wanted
    """

    def __init__(self, context: BrokerContext, asked: Peek) -> None:
        self._clock = context.feature_context.clock
        self._asked = asked

    def in_queue(self, queue: Queue, at: int, count: int) -> list[PeekedMessage] | None:
        """Messages from a place on; None: in a later turn."""
        peeked = queue.peek(at, count)
        if peeked is None:
            return None
        rows: list[PeekedMessage] = []
        octets = 0
        for place, message in enumerate(peeked.messages):
            if octets > ROWS_BYTES:
                break
            due_ms = self._clock.journal_ms(peeked.due_ms[place]) if peeked.due_ms else None
            state = "ready" if due_ms is None else "delayed"
            is_again = message[2] <= peeked.mark
            rows.append(
                self._row(message, peeked.first + place, state, is_again=is_again, due_ms=due_ms)
            )
            octets += len(rows[-1].body)
        return rows

    def waiting(
        self, queue: Queue, parked: list[Message], at: int, count: int
    ) -> list[PeekedMessage]:
        """Messages that were neither ready nor with anybody when they were looked up."""
        redelivery = queue.feature(Redelivery)
        rows: list[PeekedMessage] = []
        octets = 0
        for place, message in enumerate(parked[at : at + count], at):
            if octets > ROWS_BYTES:
                break
            due_ms = redelivery.parked.due_ms(message[2]) if redelivery is not None else 0
            shown_ms = self._clock.journal_ms(due_ms) if due_ms else None
            rows.append(self._row(message, place, "waiting", is_again=True, due_ms=shown_ms))
            octets += len(rows[-1].body)
        return rows

    def held(self, found: Iterator[Holder | None]) -> Iterator[PeekedMessage | None]:
        """Messages that somebody holds, from the first that is asked for; None for others."""
        place = 0
        for each in found:
            if each is None or place < self._asked.first:
                yield None
            else:
                yield self._of_holder(place, each)
            place += each is not None

    def _of_holder(self, place: int, holder: Holder) -> PeekedMessage:
        """A message that somebody holds."""
        return self._row(
            holder.message,
            place,
            "unacknowledged",
            is_again=True,
            connection=holder.connection,
            channel=holder.channel,
            consumer=holder.consumer.tag if holder.consumer is not None else "",
            delivery_tag=holder.tag,
            held_since_ms=self._clock.journal_ms(holder.since_ms),
        )

    def _row(
        self,
        message: Message,
        place: int,
        state: str,
        *,
        is_again: bool,
        due_ms: int | None = None,
        connection: str = "",
        channel: int = 0,
        consumer: str = "",
        delivery_tag: int = 0,
        held_since_ms: int | None = None,
    ) -> PeekedMessage:
        raw, tail, seq, arrived_ms = message
        exchange, at = decode_shortstr(tail, 0)
        routing_key, _ = decode_shortstr(tail, at)
        return PeekedMessage(
            id=seq,
            place=place,
            state=state,
            exchange=exchange,
            routing_key=routing_key,
            redelivered=is_again,
            properties=properties_of(raw),
            size=body_size(raw),
            body=body_of(raw, self._asked.body_bytes),
            arrived_ms=self._clock.journal_ms(arrived_ms),
            due_ms=due_ms,
            connection=connection,
            channel=channel,
            consumer=consumer,
            delivery_tag=delivery_tag,
            held_since_ms=held_since_ms,
        )


class RowsIn:
    """Pieces of rows that come one by one, None between them for steps without a row.

    Args:
        rows: where they come from
        context: knows the time
    """

    def __init__(self, rows: Iterator[PeekedMessage | None], context: BrokerContext) -> None:
        self._rows = rows
        self._clock = context.clock

    def take(self, at: int, count: int) -> list[PeekedMessage] | None:
        """The next ones; None: in a later turn."""
        del at
        found: list[PeekedMessage] = []
        octets = 0
        ends_at = self._clock() + SLICE_S
        for steps, row in enumerate(self._rows, 1):
            if row is not None:
                found.append(row)
                octets += len(row.body)
                if len(found) >= count or octets > ROWS_BYTES:
                    break
            elif steps % PIECE_MESSAGES == 0 and self._clock() >= ends_at:
                return found or None
        return found


class Pieces:
    """Sends rows in slices, a piece at a time.

    Args:
        context: knows the time, and later turns
        reply: where they go
        next_piece: rows from a place on, at most so many; none: that is the end; None: later
        asked: how many are wanted
        moment: what else is told in the end
    """

    def __init__(
        self,
        context: BrokerContext,
        reply: Reply,
        next_piece: Callable[[int, int], list[PeekedMessage] | None],
        asked: Peek,
        moment: Mapping[str, int],
    ) -> None:
        self._context = context
        self._reply = reply
        self._next_piece = next_piece
        self._at = asked.first
        self._left = asked.count
        self._count = 0
        self._moment = moment

    def go_on(self) -> None:
        """Send rows until this slice is over."""
        reply, context = self._reply, self._context
        if not reply.is_open:
            return
        if reply.is_full:
            reply.when_writable(self.go_on)
            return
        ends_at = context.clock() + SLICE_S
        rows: list[PeekedMessage] = []
        is_over = False
        while not is_over and self._left > 0:
            piece = self._next_piece(self._at, min(self._left, PIECE_MESSAGES))
            if piece is None:
                break
            if not piece:
                self._left = 0
                break
            rows += piece
            self._left -= len(piece)
            self._at = piece[-1].place + 1
            is_full = sum(len(row.body) for row in rows) > ROWS_BYTES
            is_over = is_full or context.clock() >= ends_at
        if rows:
            self._count += len(rows)
            reply.send({"rows": rows})
        if self._left > 0:
            context.budget.put_off(self.go_on)
        else:
            reply({"ok": True, "count": self._count, **self._moment})
