"""What an operator does with the objects of a virtual host, done as a client would do it.

    command ─▶ Operator.open ─▶ OperatorConnection.do ─▶ the verbs of `server/channel`
       ▲                                                        │ frames
       └── heard ◀── OperatorConnection ◀── when the disk has it ┘

There is one place for what a method means, and for who may do it: that of clients. So a command
has a connection without a socket, and one channel on it; what a client would read is given to the
command. It is over with the command.

Without a user the owner of the socket asks, who may everything; a queue that is exclusive to a
connection stays so. Must not know which commands there are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.protocol.codec import Command, method_ids
from vouchmq.protocol.constants import BASIC_NACK
from vouchmq.protocol.errors import (
    AccessRefused,
    AmqpError,
    ConnectionForced,
    NotFound,
    ResourceError,
)
from vouchmq.protocol.runs import SIZE
from vouchmq.server.admin.commands import INTERNAL_ERROR, CommandRefused, refuse
from vouchmq.server.auth.users import User
from vouchmq.server.channel.channel import Channel
from vouchmq.server.channel.methods import handle
from vouchmq.server.connection.committed import new_outbox
from vouchmq.server.connection.outbox import nothing
from vouchmq.server.ledger.publish_numbers import PublishNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pamqp import base

    from vouchmq.protocol.constants import Ids
    from vouchmq.protocol.errors import SoftError
    from vouchmq.protocol.fields import Table
    from vouchmq.protocol.reader import Event
    from vouchmq.protocol.runs import Piece
    from vouchmq.server.admin.commands import Reply
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.channel.topology import Permission
    from vouchmq.server.runtime.context import BrokerContext
    from vouchmq.server.runtime.runtime import CommandConnection

log = structlog.get_logger(__name__)

METHOD_FRAME: Final = 1
# Everything that is said goes to the command: there is no socket that could be full.
NO_HIGH_MARK: Final = 1 << 62


def hear_nothing(connection: OperatorConnection, ids: Ids, payload: bytes, content: bytes) -> None:
    """For commands that call no method."""


class Owner(User):
    """Whoever may open the control socket: may everything, also publish for others (PUB-06)."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("", tags=("administrator", "impersonator"))

    def may(self, permission: Permission, name: str, vhost_name: str) -> bool:
        """See `User`."""
        del permission, name, vhost_name
        return True


def frames_in(data: bytes) -> Iterator[tuple[Ids, bytes, bytes]]:
    """What a channel has said: ids and payload of each method, and the content behind it as it is.

    A content is as messages have it: header frame and body frames.
    """
    at = 0
    while at < len(data):
        end = at + 8 + SIZE.unpack_from(data, at + 3)[0]
        payload = data[at + 7 : end - 1]
        behind = end
        while behind < len(data) and data[behind] != METHOD_FRAME:
            behind += 8 + SIZE.unpack_from(data, behind + 3)[0]
        yield method_ids(payload), payload, data[end:behind]
        at = behind


class NoSocket:
    """What the channel of a command writes to: nothing that could be full."""

    name = "control socket"
    is_swamped = False


class OperatorConnection:
    """The connection of one command, with its one channel.

    Args:
        context: what all connections share
        connections: all of commands; it stands among them until it is over
        vhost: where it works
        user: who is at work
        reply: where the answer goes
        heard: told of each method that comes back: its ids, its payload and its content; it gives
            the answer when it has heard enough
    """

    def __init__(
        self,
        context: BrokerContext,
        connections: dict[CommandConnection, None],
        vhost: VHost[Queue],
        user: User,
        reply: Reply,
        heard: Callable[[OperatorConnection, Ids, bytes, bytes], None],
    ) -> None:
        self.context = context
        self.vhost = vhost
        self.user = user
        self.frame_max = 0
        self.uncommitted_bytes = 0
        self.publish_numbers = PublishNumbers()
        self.outbox = new_outbox(context.commits, context.turn, self._write, NO_HIGH_MARK, nothing)
        self.wire = NoSocket()
        self.is_over = False
        self._reply = reply
        self._heard = heard
        self._held: list[bytes] = []
        self._held_until = 0
        self._facts: dict[str, object] = {}
        self._connections = connections
        context.channel_opened(user)
        connections[self] = None
        self.channel = Channel(self, 1)
        self.channels: dict[int, Channel] = {1: self.channel}

    # What the command does

    def do(self, job: Callable[[], object]) -> None:
        """Do a slice of the command; what is wrong with it is answered."""
        if self.is_over:
            return
        self.context.budget.begin()
        try:
            job()
        except Exception as error:  # noqa: BLE001 - it is answered, and logged there
            self.fail(error)
        self.context.turn.wake()

    def call(self, method: base.Frame, arguments: Table | None = None) -> None:
        """Have a method done on the channel; what is wrong with it is answered."""
        self.do(partial(self.handle, method, arguments))

    def handle(self, method: base.Frame, arguments: Table | None = None) -> None:
        """The same within a slice.

        Raises:
            AmqpError: the rule it breaks
        """
        ids = divmod(method.index, 0x10000)
        handle(self.channel, Command(method, ids, arguments or {}))

    def answer(self, **facts: object) -> None:
        """Answer the command, which ends it."""
        if not self.is_over:
            self._end()
            self._reply({"ok": True, **facts})

    def answer_stored(self, lsn: int, **facts: object) -> None:
        """Answer the command when everything up to `lsn` is on disk."""
        context = self.context
        if lsn <= context.watermark:
            self.answer(**facts)
            return
        self._facts = facts
        self._held_until = self.channel.barrier_lsn = lsn
        context.waits(self)

    def fail(self, error: BaseException) -> None:
        """Answer why it is not done, which ends it."""
        if self.is_over:
            return
        self._end()
        if isinstance(error, CommandRefused):
            refuse(self._reply, error.text, error.code)
        elif isinstance(error, AmqpError):
            refuse(self._reply, error.reply_text, error.code)
        else:
            log.error("control.command_failed", exc_info=error)
            refuse(self._reply, f"INTERNAL_ERROR - {type(error).__name__}", INTERNAL_ERROR)

    def _end(self) -> None:
        self.is_over = True
        self._connections.pop(self, None)
        self.context.forget(self)
        self.channel.close()
        self.channels = {}
        self.outbox.close()

    # What comes back

    def _write(self, data: Piece, *more: Piece) -> bool:
        for ids, payload, content in frames_in(b"".join((data, *more))):
            if self.is_over:
                break
            if ids == BASIC_NACK:
                self.fail(ResourceError("a queue or the disk has refused the message"))
                break
            self._heard(self, ids, payload, content)
        return True

    def hold_reply(self, frame: bytes, lsn: int) -> None:
        """See `ChannelHost`."""
        self._held.append(frame)
        self._held_until = max(self._held_until, lsn)
        self.context.turn.wake()
        self.context.waits(self)

    def send_behind_replies(self, *pieces: Piece) -> None:
        """See `ChannelHost`; only consumers have something to say there."""

    def release(self, watermark: int) -> bool:
        """See `context.Waiter`."""
        if self._held_until <= watermark:
            held, self._held = self._held, []
            for frame in held:
                self.outbox.send(frame)
            if self._facts:
                self.answer(**self._facts)
        return self.is_over or not (self._held or self._facts)

    def storage_failed(self) -> None:
        """See `context.Waiter`."""
        self.fail(ConnectionForced("storage has failed"))

    def storage_refused(self, first_lsn: int) -> None:
        """See `ChannelHost`."""
        is_lost = self.channel.storage_refused(first_lsn)
        if is_lost or self.channel.barrier_lsn >= first_lsn:
            self.fail(ResourceError("the disk is full"))

    # What the channel asks for

    def has_capability(self, name: str) -> bool:
        """See `ChannelHost`."""
        del name
        return False

    def put_off(self, event: Event) -> None:
        """See `ChannelHost`."""
        self.go_on_later(1, partial(self.channel.publish, event))  # type: ignore[arg-type]

    def go_on_later(self, number: int, job: Callable[[], None]) -> None:
        """See `ChannelHost`."""
        del number
        self.context.budget.put_off(partial(self.do, job))

    def fail_channel(self, number: int, error: SoftError) -> None:
        """See `ChannelHost`."""
        del number
        self.fail(error)


class Operator:
    """Finds what commands name, and opens connections for them.

    Args:
        context: what all connections share
        connections: all of commands
        find_user: the user of a name, None if there is none
    """

    def __init__(
        self,
        context: BrokerContext,
        connections: dict[CommandConnection, None],
        find_user: Callable[[str], User | None],
    ) -> None:
        self.context = context
        self._connections = connections
        self._find_user = find_user
        self._owner = Owner()

    def user(self, name: str | None) -> User:
        """Who asks; None: the owner of the socket.

        Raises:
            AccessRefused: 403, there is no such user
        """
        if name is None:
            return self._owner
        user = self._find_user(name)
        if user is None:
            raise AccessRefused(f"there is no user '{name}'")
        return user

    def vhost(self, name: str) -> VHost[Queue]:
        """The virtual host of that name.

        Raises:
            NotFound: 404, there is none
        """
        vhost = self.context.broker.vhosts.get(name)
        if vhost is None:
            raise NotFound(f"no virtual host '{name}'")
        return vhost

    def open(
        self,
        vhost: str,
        user: str | None,
        reply: Reply,
        heard: Callable[[OperatorConnection, Ids, bytes, bytes], None],
    ) -> OperatorConnection:
        """A connection for one command, see `OperatorConnection`.

        Raises:
            NotFound: 404, there is no such virtual host
            AccessRefused: 403, there is no such user
            NotAllowed: 530, the user has too many channels
        """
        asker = self.user(user)
        place = self.vhost(vhost)
        return OperatorConnection(self.context, self._connections, place, asker, reply, heard)
