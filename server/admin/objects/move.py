"""`move`, `copy` and `return dead letters`: messages of a queue go to others.

What moves leaves its queue and arrives in the others within one block of the journal, a piece at a
time: a kill at any moment leaves each message in exactly one place. It is moved as if it were
published anew, in its order, without having been handed out. A message that cannot go stays, with
all behind it, and the answer says why. A copy is a publish like any other. Must not know sockets.

Spec: HTTP-37
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import structlog
from msgspec import Meta
from pamqp import commands as amqp

from vouchmq.protocol.constants import BASIC_ACK, BASIC_RETURN
from vouchmq.protocol.contents import (
    BLIND_COPY,
    DEATH,
    notes_of,
    property_block,
    with_notes,
)
from vouchmq.protocol.errors import NotFound, PreconditionFailed
from vouchmq.protocol.fields import as_text, decode_shortstr, encode_shortstr
from vouchmq.protocol.properties import PERSISTENT, Properties, classify
from vouchmq.protocol.reader import PUBLISHES
from vouchmq.protocol.text import decode_text
from vouchmq.server.admin.audit import who
from vouchmq.server.admin.commands import CommandRefused
from vouchmq.server.admin.objects.messages import publish_frame
from vouchmq.server.admin.objects.operator import hear_nothing
from vouchmq.server.admin.objects.queues import QueueArguments
from vouchmq.server.admin.objects.values import short
from vouchmq.server.broker.dead_letter.headers import X_DEATH
from vouchmq.server.broker.dead_letter.publisher import Way
from vouchmq.server.broker.exchanges.exchange import READS_KEYS, Exchange
from vouchmq.server.broker.names import exchange_text, queue_text
from vouchmq.server.channel.publish import as_headers, copies

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.protocol.constants import Ids
    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.admin.objects.operator import Operator, OperatorConnection
    from vouchmq.server.broker.dead_letter.publisher import DeadLetterPublisher
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Queue

log = structlog.get_logger(__name__)

# Messages that move together, in one block of the journal.
PIECE_MESSAGES: Final = 128
# What is chosen by its id must be among so many at the head of the queue.
CHOSEN_FROM: Final = 2048

Chosen = Annotated[list[int], Meta(min_length=1, max_length=CHOSEN_FROM)]


class FromQueue(QueueArguments, frozen=True, kw_only=True):
    """Which messages of a queue are to go.

    Args:
        count: so many from its head at most; None: all that are ready at the beginning
        ids: these, as `peek` tells them
    """

    count: Annotated[int, Meta(ge=1)] | None = None
    ids: Chosen | None = None


class Move(FromQueue, frozen=True, kw_only=True):
    """Messages of a queue, and where they are to go: to a queue, or to an exchange.

    Args:
        routing_key: for an exchange; None: that which each message has
        keep: they stay in their queue as well
    """

    to_queue: str | None = None
    to_exchange: str | None = None
    routing_key: str | None = None
    keep: bool = False


class CannotGo(Exception):  # noqa: N818 - it is said, not handled
    """Why a message stays where it is."""


class MoveCommands:
    """The commands that move messages.

    Args:
        operator: opens connections for commands
        publisher: moves them in one block
    """

    def __init__(self, operator: Operator, publisher: DeadLetterPublisher) -> None:
        self._operator = operator
        self._publisher = publisher

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands."""
        commands.register("move", Move, self._move)
        commands.register("return dead letters", FromQueue, self._return)

    def _move(self, asked: Move, reply: Reply) -> None:
        if (asked.to_queue is None) is (asked.to_exchange is None):
            raise CommandRefused("move: give to_queue or to_exchange")
        if asked.to_queue == asked.name:
            raise CommandRefused("move: a queue cannot be moved to itself")
        if asked.to_queue is not None and asked.routing_key is not None:
            raise CommandRefused("move: a routing_key is for an exchange")
        short(to=asked.to_queue or asked.to_exchange or "", routing_key=asked.routing_key or "")
        if asked.keep:
            Copying(self._operator, asked, reply).begin()
            return
        Moving(self._operator, self._publisher, asked, reply, way_to(asked)).begin()

    def _return(self, asked: FromQueue, reply: Reply) -> None:
        Moving(self._operator, self._publisher, asked, reply, way_back).begin()


class Moving:
    """One move, in slices.

    Args:
        operator: opens a connection for it
        publisher: moves messages in one block
        asked: which messages
        reply: told how many have gone
        way_of: where one goes
    """

    def __init__(
        self,
        operator: Operator,
        publisher: DeadLetterPublisher,
        asked: FromQueue,
        reply: Reply,
        way_of: Callable[[OperatorConnection, Message], Way],
    ) -> None:
        self._publisher = publisher
        self._asked = asked
        self._way_of = way_of
        self._moved = 0
        self._left = 0
        self._stopped = ""
        self._queue: Queue
        self._connection = operator.open(asked.vhost, asked.user, reply, hear_nothing)

    def begin(self) -> None:
        """Check what is asked, then move the first."""
        self._connection.do(self._begin)

    def _begin(self) -> None:
        asked, connection = self._asked, self._connection
        queue = self._queue = source_of(connection, asked)
        if not queue.consuming_removes:
            raise PreconditionFailed(f"messages of a stream can only be copied: {queue.spec.text}")
        require_way(connection, asked)
        ready = queue.ready_count
        self._left = ready if asked.count is None else min(asked.count, ready)
        if asked.ids is None:
            connection.channel.in_slices(self._step)
            return
        connection.channel.in_slices(self._step_chosen)

    def _step(self) -> bool:
        """Move a piece; whether it was the last."""
        queue = self._queue
        if self._left <= 0 or queue.is_deleted:
            self._end()
            return True
        if is_flooded(self._connection):
            return self._later(self._step)
        taken = queue.take_ready(min(self._left, PIECE_MESSAGES))
        if taken is None:
            return self._later(self._step)
        self._give(taken, taken)
        self._left -= len(taken)
        if not taken or self._stopped:
            self._left = 0
        return False

    def _step_chosen(self) -> bool:
        """Move those that were chosen, all at once; True: it is done, or is to be done later."""
        queue, wanted = self._queue, set(self._asked.ids or ())
        chosen: list[Message] = []
        first: list[Message] = []
        while wanted and len(first) - len(chosen) < CHOSEN_FROM:
            taken = queue.take_ready(PIECE_MESSAGES)
            if taken is None and not first:
                return self._later(self._step_chosen)
            if not taken:
                break
            first += taken
            chosen += [message for message in taken if message[2] in wanted]
            wanted.difference_update(message[2] for message in taken)
        if wanted:
            queue.return_taken(first)
            raise NotFound(
                f"no message with id {min(wanted)} among the first {CHOSEN_FROM} ready ones of "
                f"{queue.spec.text}"
            )
        self._give(chosen, first)
        self._end()
        return True

    def _later(self, step: Callable[[], bool]) -> bool:
        """Go on when the queue has put what came back at its place."""
        connection = self._connection
        connection.go_on_later(1, lambda: connection.channel.in_slices(step))
        return True

    def _give(self, chosen: list[Message], taken: list[Message]) -> None:
        """Move what was chosen of what was taken, as far as it can go; the rest returns."""
        try:
            ways = self._ways(chosen)
        except BaseException:
            self._queue.return_taken(taken)
            raise
        count = self._publisher.move(self._queue, chosen[: len(ways)], ways)
        if count < len(ways):
            self._stopped = "a queue refuses the next message"
        self._moved += count
        gone = {message[2] for message in chosen[:count]}
        stay = [message for message in taken if message[2] not in gone]
        if stay:
            self._queue.return_taken(stay)
        self._queue.settle([])
        self._queue.wake()

    def _ways(self, taken: list[Message]) -> list[Way]:
        """Where messages go, up to the first that cannot."""
        ways: list[Way] = []
        for message in taken:
            try:
                way = self._way_of(self._connection, message)
            except CannotGo as why:
                self._stopped = str(why)
                break
            ways.append(way)
        return ways

    def _end(self) -> None:
        asked, connection = self._asked, self._connection
        if self._moved:
            log.info(
                "admin.messages_moved",
                **who(asked),
                vhost=asked.vhost,
                queue=asked.name,
                count=self._moved,
            )
        lsn = connection.context.journal.barrier() if self._moved else 0
        connection.answer_stored(lsn, moved=self._moved, stopped=self._stopped)


class Copying:
    """One copy, in slices: each message is published, and confirmed.

    Args:
        operator: opens a connection for it
        asked: which messages, and where to
        reply: told how many there are
    """

    def __init__(self, operator: Operator, asked: Move, reply: Reply) -> None:
        self._asked = asked
        self._wanted = set(asked.ids) if asked.ids is not None else None
        self._at = self._end_at = self._copied = self._returned = 0
        self._is_read = False
        self._queue: Queue
        self._connection = operator.open(asked.vhost, asked.user, reply, self._heard)

    def begin(self) -> None:
        """Check what is asked, then copy the first."""
        self._connection.do(self._begin)

    def _begin(self) -> None:
        asked, connection = self._asked, self._connection
        queue = self._queue = source_of(connection, asked)
        require_way(connection, asked)
        first = queue.peek(0, 1)
        self._at = first.first if first is not None else 0
        # What is copied into this very queue is not copied again.
        self._end_at = self._at + queue.ready_count
        if asked.count is not None:
            self._end_at = min(self._end_at, self._at + asked.count)
        connection.handle(amqp.Confirm.Select(nowait=True))
        connection.channel.in_slices(self._step)

    def _step(self) -> bool:
        """Copy a piece; whether it was the last."""
        queue, connection = self._queue, self._connection
        left = self._end_at - self._at
        if left <= 0 or queue.is_deleted or self._wanted == set():
            self._is_read = True
            self._look()
            return True
        peeked = None if is_flooded(connection) else queue.peek(self._at, min(left, PIECE_MESSAGES))
        if peeked is None:
            connection.go_on_later(1, lambda: connection.channel.in_slices(self._step))
            return True
        for message in peeked.messages:
            if self._wanted is None or message[2] in self._wanted:
                self._publish(message)
        self._at = peeked.first + len(peeked.messages)
        if not peeked.messages:
            self._end_at = 0
        return False

    def _publish(self, message: Message) -> None:
        asked, channel = self._asked, self._connection.channel
        if self._wanted is not None:
            self._wanted.discard(message[2])
        raw = message[0]
        if not (raw[1] or raw[2]):
            raw = with_notes(raw, [])
        if asked.to_queue is not None:
            key = publish_frame("", asked.to_queue)
        else:
            routing_key = key_of(message) if asked.routing_key is None else asked.routing_key
            key = publish_frame(asked.to_exchange or "", routing_key)
        self._copied += 1
        channel.publish((PUBLISHES, 1, key, [raw], classify(property_block(raw)), len(raw)))

    def _heard(self, _: OperatorConnection, ids: Ids, _payload: bytes, _raw: bytes) -> None:
        self._returned += ids == BASIC_RETURN
        if ids == BASIC_ACK:
            self._look()

    def _look(self) -> None:
        """Answer when all has been published and confirmed."""
        connection = self._connection
        confirms = connection.channel.confirms
        if not self._is_read or connection.is_over:
            return
        if confirms is None or confirms.last < self._copied or confirms.unconfirmed_count:
            return
        copied = self._copied - self._returned
        if self._wanted:
            connection.fail(NotFound(f"no message with id {min(self._wanted)}; {copied} copied"))
            return
        stopped = f"{self._returned} led nowhere" if self._returned else ""
        connection.answer(moved=copied, stopped=stopped)


def is_flooded(connection: OperatorConnection) -> bool:
    """Whether so much is not on disk yet that publishers would have to wait."""
    context = connection.context
    return context.journal.unsafe_bytes > context.limits.unsynced_limit_bytes


def source_of(connection: OperatorConnection, asked: FromQueue) -> Queue:
    """The queue that messages are to leave.

    Raises:
        AmqpError: there is none, or the user may not read from it
    """
    vhost = connection.vhost
    connection.user.require("read", "queue", asked.name, vhost.name)
    return vhost.find_queue(asked.name, connection)


def require_way(connection: OperatorConnection, asked: FromQueue) -> None:
    """Pass if messages may go where they are to go, whether there are any or not.

    Raises:
        AmqpError: that is not there, or the user may not write to it
        CommandRefused: it takes copies only
    """
    if not isinstance(asked, Move):
        require_write(connection, "")
    elif asked.to_queue is not None:
        require_write(connection, "")
        connection.vhost.find_queue(asked.to_queue, connection)
    else:
        require_write(connection, asked.to_exchange or "", asked.routing_key)
        if not asked.keep:
            target_exchange(connection, asked.to_exchange or "")


def require_write(
    connection: OperatorConnection, name: str, routing_key: str | None = None
) -> None:
    """Pass if the user may publish to an exchange, and with this key if it is a topic exchange.

    Raises:
        AmqpError: there is no such exchange, or the user may not
    """
    vhost, user = connection.vhost, connection.user
    user.require("write", "exchange", name or "amq.default", vhost.name)
    if vhost.find_exchange(name).type == "topic" and routing_key is not None:
        user.require_topic("write", routing_key, name, vhost.name)


def target_exchange(connection: OperatorConnection, name: str) -> Exchange:
    """The exchange that messages are moved to.

    Raises:
        NotFound: there is none
        CommandRefused: it takes copies only
    """
    exchange = connection.vhost.find_exchange(name)
    if exchange.reads & READS_KEYS:
        text = exchange_text(name, connection.vhost.name)
        raise CommandRefused(f"move: {text} drops duplicates; copy to it, or move to a queue")
    return exchange


def way_to(asked: Move) -> Callable[[OperatorConnection, Message], Way]:
    """Where each message goes that an operator moves."""

    def way_of(connection: OperatorConnection, message: Message) -> Way:
        if asked.to_queue is not None:
            tail = encode_shortstr("") + encode_shortstr(asked.to_queue)
            return direct_way(connection, message, asked.to_queue, tail)
        return routed_way(connection, message, asked.to_exchange or "", asked.routing_key)

    return way_of


def direct_way(connection: OperatorConnection, message: Message, name: str, tail: bytes) -> Way:
    """To one queue.

    Raises:
        AmqpError: there is none, or the user may not write to it
    """
    vhost = connection.vhost
    connection.user.require("write", "exchange", "amq.default", vhost.name)
    queue = vhost.find_queue(name, connection)
    raw = anew(message[0])
    return Way(raw, tail, (queue,), persistent=is_persistent(raw))


def routed_way(
    connection: OperatorConnection, message: Message, name: str, routing_key: str | None
) -> Way:
    """Where an exchange leads; None: with the message's own routing key.

    Raises:
        AmqpError: there is no such exchange, or the user may not publish to it
        CannotGo: it leads nowhere
    """
    vhost, user = connection.vhost, connection.user
    user.require("write", "exchange", name or "amq.default", vhost.name)
    exchange = target_exchange(connection, name)
    raw = anew(message[0])
    key = key_of(message) if routing_key is None else routing_key
    properties = Properties(property_block(raw))
    headers = {**(properties.headers or {}), **as_headers(properties)}
    blind = [decode_text(octets) for kind, octets in notes_of(raw) if kind == BLIND_COPY]
    keys = (key, *copies(headers, "CC"), *blind)
    if exchange.type == "topic":
        for each in keys:
            user.require_topic("write", each, name, vhost.name)
    queues = vhost.route(exchange, keys, headers)
    if not queues:
        raise CannotGo(f"the next message leads nowhere, with routing key '{key}'")
    tail = encode_shortstr(name) + encode_shortstr(key)
    return Way(raw, tail, queues, persistent=is_persistent(raw))


def way_back(connection: OperatorConnection, message: Message) -> Way:
    """To the queue where a dead letter died last, as it had come there.

    Raises:
        AmqpError: the user may not write to it
        CannotGo: it is no dead letter, or that queue is gone
    """
    headers = Properties(property_block(message[0])).headers or {}
    field = headers.get(X_DEATH)
    deaths = field.value if field is not None and isinstance(field.value, tuple) else ()
    death = getattr(deaths[0], "value", None) if deaths else None
    name = as_text(death.get("queue")) if isinstance(death, dict) else None
    if not isinstance(death, dict) or name is None:
        raise CannotGo("the next message is no dead letter: it has no x-death")
    if name not in connection.vhost.queues:
        raise CannotGo(
            f"the next message died in {queue_text(name, connection.vhost.name)}, which is gone"
        )
    keys = death["routing-keys"].value if "routing-keys" in death else ()
    key = as_text(keys[0]) if isinstance(keys, tuple) and keys else None
    tail = encode_shortstr(as_text(death.get("exchange")) or "") + encode_shortstr(key or "")
    return direct_way(connection, message, name, tail)


def key_of(message: Message) -> str:
    """The routing key of a message."""
    _, at = decode_shortstr(message[1], 0)
    return decode_shortstr(message[1], at)[0]


def anew(raw: bytes) -> bytes:
    """A content as if it had just been published: where it has died before ends no way any more."""
    notes = notes_of(raw)
    if not any(kind == DEATH for kind, _ in notes):
        return raw
    return with_notes(raw, [note for note in notes if note[0] != DEATH])


def is_persistent(raw: bytes) -> bool:
    """Whether a durable queue keeps it."""
    return classify(property_block(raw)) & PERSISTENT != 0
