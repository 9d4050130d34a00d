"""Clients of the simulated broker: what they send, what they hear, and what they do at random.

Replies are read by a small codec of their own. A client tells the model what the broker has
taken (in the order in which it was taken) and what the broker has said (when it was written).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import base, commands
from pamqp import frame as pamqp_frame

from tests.simulation.ledger import Violation
from tests.simulation.model import MChannel, Model, Refused
from vouchmq.protocol import reader
from vouchmq.protocol.codec import method_ids
from vouchmq.protocol.errors import AmqpError
from vouchmq.protocol.states import ConnectionState
from vouchmq.server.connection.channel_table import SETTLES_OR_ENDS

if TYPE_CHECKING:
    from tests.simulation.world import World
    from vouchmq.server.connection.connection import Connection

FRAME_MAX = 4096
PERSISTENT, TRANSIENT = b"\x10\x00\x02", b"\x10\x00\x01"
DELIVER, ACK, NACK, RETURN, GET_OK = 0x3C003C, 0x3C0050, 0x3C0078, 0x3C0032, 0x3C0047
# Events of publishes; of each the contents are the fourth.
PUBLISH_EVENTS = (reader.PUBLISHES, reader.UNLIKE)
CLOSE, CLOSE_OK = b"\x00\x14\x00\x28", b"\x00\x14\x00\x29"
TX_COMMIT = b"\x00\x5a\x00\x14"
QUEUE_DECLARE = b"\x00\x32\x00\x0a"
CONNECTION_CLOSE = b"\x00\x0a\x00\x32"

# Name, durable, auto-delete.
QUEUES = (
    ("d1", True, False),
    ("d2", True, False),
    ("d3", True, False),
    ("a1", True, True),
    ("t1", False, False),
)
EXCHANGES = (("x1", "direct", True), ("y1", "fanout", False))
SOURCES = ("amq.direct", "amq.fanout", "amq.topic", "x1", "y1")
KEYS = ("k1", "k2", "a.b", "a.c")
PATTERNS = ("k1", "k2", "a.*", "#", "*.b")


def method(channel: int, what: base.Frame) -> bytes:
    return pamqp_frame.marshal(what, channel)


@lru_cache(maxsize=4096)
def publish_method(channel: int, exchange: str, key: str, mandatory: bool) -> bytes:
    return method(
        channel, commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
    )


@lru_cache(maxsize=8)
def greeting() -> bytes:
    """Protocol header up to connection.open, in one go."""
    properties: dict[str, Any] = {"capabilities": {"consumer_cancel_notify": True}}
    return b"AMQP\x00\x00\x09\x01" + b"".join(
        method(0, each)
        for each in (
            commands.Connection.StartOk(properties, "PLAIN", "\0guest\0guest", "en_US"),
            commands.Connection.TuneOk(64, FRAME_MAX, 0),
            commands.Connection.Open("/"),
        )
    )


def content(channel: int, body: bytes, properties: bytes) -> bytes:
    head = struct.pack(">HHQ", 60, 0, len(body)) + properties
    parts = [struct.pack(">BHI", 2, channel, len(head)), head, b"\xce"]
    for at in range(0, len(body), FRAME_MAX - 8):
        piece = body[at : at + FRAME_MAX - 8]
        parts += [struct.pack(">BHI", 3, channel, len(piece)), piece, b"\xce"]
    return b"".join(parts)


class Command(NamedTuple):
    """Something sent: which method of the model it is, and its arguments."""

    kind: str
    arguments: tuple[Any, ...]


class ClientChannel:
    """A channel as its client knows it."""

    def __init__(self, number: int, key: tuple[int, int], mode: str) -> None:
        self.number = number
        self.mode = mode
        self.model = MChannel(key)
        self.sent: deque[Command] = deque()  # not yet taken by the broker
        self.tags: list[int] = []  # received and not settled
        self.held_tags: list[int] = []  # settled in the transaction
        self.tag_queue: dict[str, bool] = {}  # consumer tag → no_ack
        self.is_waiting = False  # for commit-ok
        self.is_closing = False  # our close is on its way
        self.is_closed = False  # the broker has closed it, or said close-ok
        self.close_code = 0  # what the broker must close it with

    @property
    def is_usable(self) -> bool:
        return not (self.is_closing or self.is_closed or self.is_waiting)

    @property
    def is_free(self) -> bool:
        return self.is_closed and not self.sent


def done_of(event: Any, connection: Connection) -> Any:
    """What of an event has been done, None: nothing; the rest comes again (LIMIT-23)."""
    inbound = getattr(connection, "_inbound", None)
    kept: Any = inbound._kept if inbound is not None else None
    if kept is None:
        return event
    if event[0] not in PUBLISH_EVENTS or len(kept[3]) == len(event[3]):
        return None
    return (*event[:3], event[3][: len(event[3]) - len(kept[3])], *event[4:])


class Client:
    """One connection."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.out = bytearray(greeting())
        self.channels: dict[int, ClientChannel] = {}
        self.is_over = False  # nothing more may be heard
        self.is_leaving = False  # connection.close was sent
        self.is_open = False
        self.is_refused = False  # the broker has closed it because of a full disk
        self.connection: Connection
        self._counter = 0
        self._heard = b""

    @property
    def model(self) -> Model:
        return self.world.model

    # Sending

    def send(self, ch: ClientChannel, what: base.Frame, kind: str, *arguments: object) -> None:
        self.out += method(ch.number, what)
        ch.sent.append(Command(kind, arguments))

    def open_channel(self, mode: str) -> ClientChannel:
        free = [n for n in range(1, 9) if n not in self.channels or self.channels[n].is_free]
        number = free[0]
        ch = self.channels[number] = ClientChannel(number, (self.number, number), mode)
        self.send(ch, commands.Channel.Open(), "open")
        if mode == "confirm":
            self.send(ch, commands.Confirm.Select(), "select", mode)
        elif mode == "tx":
            self.send(ch, commands.Tx.Select(), "select", mode)
        return ch

    def publish(
        self, ch: ClientChannel, exchange: str, key: str, size: int, flags: tuple[bool, bool]
    ) -> None:
        persistent, mandatory = flags
        number = self.world.next_message()
        body = (b"%010d" % number).ljust(size, b".")
        self.out += publish_method(ch.number, exchange, key, mandatory)
        self.out += content(ch.number, body, PERSISTENT if persistent else TRANSIENT)
        ch.sent.append(Command("publish", (exchange, key, number, persistent, mandatory)))

    def settle(self, ch: ClientChannel, how: str, tag: int, multiple: bool) -> None:
        requeue = how in {"nack", "reject"}
        if how == "ack":
            what: base.Frame = commands.Basic.Ack(tag, multiple)
        elif how in {"nack", "drop"}:
            what = commands.Basic.Nack(tag, multiple, requeue)
        else:
            multiple = False
            what = commands.Basic.Reject(tag, requeue)
        self.send(ch, what, "settle", tag, multiple, requeue)
        gone = {each for each in ch.tags if each == tag or (multiple and (not tag or each <= tag))}
        ch.tags = [each for each in ch.tags if each not in gone]
        if ch.mode == "tx":
            ch.held_tags += sorted(gone)

    def end_transaction(self, ch: ClientChannel, *, is_commit: bool) -> None:
        if is_commit:
            ch.is_waiting = True
            self.send(ch, commands.Tx.Commit(), "commit")
        else:
            ch.tags = sorted({*ch.tags, *ch.held_tags})
            self.send(ch, commands.Tx.Rollback(), "rollback")
        ch.held_tags.clear()

    def close_channel(self, ch: ClientChannel) -> None:
        ch.is_closing = True
        self.send(ch, commands.Channel.Close(200, "bye", 0, 0), "close_by_client")

    def consume(self, ch: ClientChannel, queue: str, no_ack: bool) -> None:
        self._counter += 1
        tag = f"c{self._counter}"
        ch.tag_queue[tag] = no_ack
        what = commands.Basic.Consume(queue=queue, consumer_tag=tag, no_ack=no_ack)
        self.send(ch, what, "consume", queue, tag, no_ack)

    def leave(self) -> None:
        self.is_leaving = True
        self.out += method(0, commands.Connection.Close(200, "bye", 0, 0))

    # What the broker takes

    def watch(
        self, dispatch: Callable[[reader.Event], None], is_blocking: Callable[[], bool]
    ) -> Callable[[reader.Event], None]:
        """Wrap the broker's dispatch of events, so that the model hears of each in order."""

        def watched(event: Any) -> None:
            if event[0] in PUBLISH_EVENTS and is_blocking():
                dispatch(event)  # which will come again
                return
            if self.is_put_off(event):
                dispatch(event)  # this too: the client does not read what it has asked for
                return
            if self.connection.state is ConnectionState.CLOSING:
                dispatch(event)  # which does nothing: the disk has refused what the client wanted
                return
            # A commit, or the end of everything, may be written while it is being done, so the
            # model goes first.
            is_commit = event[0] == reader.METHOD and event[2][:4] in {TX_COMMIT, CONNECTION_CLOSE}
            if is_commit:
                self._taken(event, None)
            try:
                dispatch(event)
            except AmqpError as error:
                if not is_commit:
                    self._taken(event, error)
                raise
            done = done_of(event, self.connection)
            if not is_commit and done is not None:
                self._taken(done, None)

        return watched

    def is_put_off(self, event: Any) -> bool:
        """Whether the broker takes this method only when more of its answers have been read."""
        return (
            event[0] == reader.METHOD
            and event[1] != 0
            and self.connection.state is ConnectionState.RUNNING
            and self.connection.outbox.blocked
            and method_ids(event[2]) not in SETTLES_OR_ENDS
        )

    def _taken(self, event: Any, error: AmqpError | None) -> None:
        kind, number = event[0], event[1]
        if not number:
            if kind == reader.METHOD and event[2][:4] == CONNECTION_CLOSE:
                self._end_channels()
            return
        ch = self.channels[number]
        if ch.model.is_closing and ch.close_code:
            if kind == reader.METHOD and event[2][:4] in {CLOSE, CLOSE_OK}:
                self._taken_on_closed(ch, event[2][:4] == CLOSE)
            return
        count = 0
        if kind in PUBLISH_EVENTS:
            count = len(event[3])
        elif kind == reader.ACKS:
            count = sum(last - first + 1 for first, last in event[2])
        elif kind == reader.ACKS_UP_TO:
            count = len(event[2])
        elif kind == reader.METHOD:
            count = 1
        code = self._apply(ch, count)
        if code != (error.code if error is not None else 0):
            raise Violation(f"channel {ch.model.key}: {error!r}, the model says {code}")
        if code:
            ch.close_code = code
            self.model.close(ch.model)

    def _apply(self, ch: ClientChannel, count: int) -> int:
        """Tell the model of so many commands; gives the reply code of the one it refuses, or 0."""
        for _ in range(count):
            command = ch.sent.popleft()
            if self.world.trace is not None:
                self.world.trace(f"{ch.model.key} → {command.kind}{command.arguments}")
            if command.kind == "get" and ch.model.is_closing:
                continue  # by the block that it had written, which the disk refused
            try:
                getattr(self.model, command.kind)(ch.model, *command.arguments)
            except Refused as refused:
                return refused.code
        return 0

    def _taken_on_closed(self, ch: ClientChannel, is_close: bool) -> None:
        wanted = "close_by_client" if is_close else "close_ok"
        while ch.sent.popleft().kind != wanted:
            pass
        if is_close:
            self.model.close_by_client(ch.model)
        else:
            ch.close_code = 0

    def _end_channels(self) -> None:
        for ch in self.channels.values():
            if not ch.model.is_closing and ch.model.key in self.model.channels:
                self.model.close(ch.model)
            if self.model.channels.get(ch.model.key) is ch.model:
                del self.model.channels[ch.model.key]

    def see_closes(self, connection: Connection) -> None:
        """After a refused block: the broker has closed what it had to (CONF-12, TX-09)."""
        if connection.state is not ConnectionState.RUNNING:
            self.is_refused = True
            for ch in self.channels.values():
                if ch.model.is_committing and not ch.model.is_closing:
                    ch.close_code = 406
            self._end_channels()
            return
        for number, ch in self.channels.items():
            channel = connection.channels.get(number)
            if channel is not None and channel.is_closing and not ch.model.is_closing:
                ch.close_code = 406
                self.model.close(ch.model)

    def see_end(self, connection: Connection) -> None:
        """After a failed sync: the broker has closed whom it owed an answer, with all they had."""
        if connection.state is ConnectionState.CLOSING:
            self._end_channels()

    def lost(self) -> None:
        """The connection is gone, and the broker knows."""
        self.is_over = True
        self._end_channels()

    # What the broker says

    def hear(self, data: bytes) -> None:
        """Octets that the broker has written."""
        if self.is_over:
            raise Violation(f"connection {self.number}: {len(data)} octets after its end")
        data = self._heard + data
        at = 0
        while len(data) - at >= 7:
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            stop = at + size + 8
            if stop > len(data):
                break
            if data[stop - 1] != 0xCE:
                raise Violation("a frame without its end")
            if kind == 1 and channel:
                ids = int.from_bytes(data[at + 7 : at + 11], "big")
                if ids in {DELIVER, RETURN, GET_OK}:
                    found = self._content(data, stop, channel)
                    if found is None:
                        break
                    self._message(channel, ids, data[at + 11 : stop - 1], found[0])
                    at = found[1]
                    continue
                self._method(channel, ids, data[at:stop])
            elif kind == 1:
                self._connection_method(data[at:stop])
            elif kind != 8:
                raise Violation(f"a frame of type {kind} on channel {channel} out of turn")
            at = stop
        self._heard = data[at:]

    @staticmethod
    def _content(data: bytes, at: int, channel: int) -> tuple[bytes, int] | None:
        """The body behind a method, and where it ends; None if it is not all there."""
        if len(data) - at < 7:
            return None
        kind, number, size = struct.unpack_from(">BHI", data, at)
        if (kind, number) != (2, channel):
            raise Violation("content without a header (FRAME-39)")
        missing = int.from_bytes(data[at + 11 : at + 19], "big")
        at += size + 8
        body = b""
        while missing > len(body):
            if len(data) - at < 7:
                return None
            kind, number, size = struct.unpack_from(">BHI", data, at)
            if (kind, number) != (3, channel):
                raise Violation("a content that another frame interrupts (FRAME-39)")
            body += data[at + 7 : at + 7 + size]
            at += size + 8
        return body, at

    def _channel(self, number: int) -> ClientChannel:
        ch = self.channels.get(number)
        if ch is None or ch.is_closed:
            raise Violation(f"a frame on channel {(self.number, number)}, which is closed")
        return ch

    def _message(self, number: int, ids: int, arguments: bytes, body: bytes) -> None:
        ch = self._channel(number)
        message = self.world.message_of(body)
        if self.world.trace is not None:
            self.world.trace(f"{ch.model.key} ← {ids & 0xFFFF} message {message} {arguments!r}")
        if ids == RETURN:
            self.model.returned(ch.model, message)
            return
        if ids == GET_OK:
            tag, is_again = int.from_bytes(arguments[:8], "big"), bool(arguments[8])
            left = int.from_bytes(arguments[-4:], "big")
            self.model.replied(ch.model, "Basic.GetOk", (tag, message, is_again, left))
            if tag in ch.model.outstanding:
                ch.tags.append(tag)
            return
        end = 1 + arguments[0]
        consumer = arguments[1:end].decode()
        tag = int.from_bytes(arguments[end : end + 8], "big")
        self.model.delivered(ch.model, consumer, tag, message, bool(arguments[end + 8]))
        if not ch.tag_queue[consumer] and tag not in ch.tags:
            ch.tags.append(tag)

    def _method(self, number: int, ids: int, octets: bytes) -> None:
        ch = self.channels.get(number)
        if ids in {ACK, NACK}:
            tag, multiple = int.from_bytes(octets[11:19], "big"), bool(octets[19] & 1)
            if self.world.trace is not None:
                kind = "ack" if ids == ACK else "nack"
                self.world.trace(f"{(self.number, number)} ← {kind} {tag} multiple={multiple}")
            self.model.confirmed(self._channel(number).model, tag, multiple, ids == ACK)
            return
        what = pamqp_frame.unmarshal(octets)[2]
        if isinstance(what, commands.Channel.CloseOk) and ch is not None and ch.is_closing:
            self.model.replied(ch.model, "Channel.CloseOk", ())
            ch.is_closed = True
            return
        ch = self._channel(number)
        if isinstance(what, commands.Channel.Close):
            if self.model.has_failed and ch.model.is_committing and not ch.close_code:
                # The commit could not be stored (TX-09).
                ch.close_code = 406
                self.model.close(ch.model)
            if what.reply_code != ch.close_code:
                raise Violation(f"channel {ch.model.key} was closed: {what.reply_text}")
            ch.is_closed = not ch.is_closing
            self.send(ch, commands.Channel.CloseOk(), "close_ok")
        elif isinstance(what, commands.Basic.Cancel):
            if what.consumer_tag not in ch.model.cancelled:
                raise Violation(f"consumer {what.consumer_tag} was cancelled for no reason")
            ch.model.cancelled.discard(what.consumer_tag or "")
        else:
            facts = FACTS.get(type(what))
            values = tuple(getattr(what, name) for name in facts) if facts else ()
            if self.world.trace is not None:
                self.world.trace(f"{ch.model.key} ← {what.name}{values}")
            self.model.replied(ch.model, str(what.name), values)
            if isinstance(what, commands.Tx.CommitOk):
                ch.is_waiting = False

    def _connection_method(self, octets: bytes) -> None:
        ids = octets[7:11]
        if ids == b"\x00\x0a\x00\x29":
            self.is_open = True
        elif ids == b"\x00\x0a\x00\x33" and self.is_leaving:
            self.is_over = True
        elif ids == CONNECTION_CLOSE and self.is_refused:
            self.is_leaving = True
            self.out.clear()
            self.out += method(0, commands.Connection.CloseOk())
        elif ids == CONNECTION_CLOSE and not self.model.has_failed:
            what = pamqp_frame.unmarshal(octets)[2]
            raise Violation(f"connection {self.number} was closed by the broker: {what!r}")


FACTS: dict[type, tuple[str, ...]] = {
    commands.Queue.DeclareOk: ("queue", "message_count", "consumer_count"),
    commands.Queue.DeleteOk: ("message_count",),
    commands.Queue.PurgeOk: ("message_count",),
    commands.Basic.ConsumeOk: ("consumer_tag",),
    commands.Basic.CancelOk: ("consumer_tag",),
}
