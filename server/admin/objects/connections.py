"""`close connection` and `close channel` by force; `set prefetch` of a consumer.

Must not know sockets.

Spec: HTTP-13, HTTP-38, CONN-56
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import structlog
from msgspec import Meta

from vouchmq.protocol.errors import AccessRefused, NotFound, PreconditionFailed
from vouchmq.server.admin.audit import Changing, who
from vouchmq.server.channel.consume import set_limits

if TYPE_CHECKING:
    from collections.abc import Collection

    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.admin.objects.operator import Operator
    from vouchmq.server.channel.channel import Channel
    from vouchmq.server.connection.connection import Connection

log = structlog.get_logger(__name__)

ADMINISTRATOR: Final = "administrator"


class CloseConnection(Changing, frozen=True, kw_only=True):
    """A connection to be closed, by the name that listings show; the client is told the reason."""

    name: str
    reason: str = "Closed via management plugin"


class CloseChannel(CloseConnection, frozen=True, kw_only=True):
    """A channel to be closed, by its connection and number."""

    number: int
    reason: str = "closed by an operator"


class SetPrefetch(Changing, frozen=True, kw_only=True):
    """The prefetch limit of a consumer, by connection, channel and tag; 0 is none."""

    name: str
    number: int
    tag: str
    prefetch: Annotated[int, Meta(ge=0, le=65535)]


class ConnectionCommands:
    """The commands that end connections and channels, or change what they may take.

    Args:
        operator: knows who asks
        connections: all there are
    """

    def __init__(self, operator: Operator, connections: Collection[Connection]) -> None:
        self._operator = operator
        self._connections = connections

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands."""
        commands.register("close connection", CloseConnection, self._close)
        commands.register("close channel", CloseChannel, self._close_channel)
        commands.register("set prefetch", SetPrefetch, self._set_prefetch)

    def _close(self, asked: CloseConnection, reply: Reply) -> None:
        connection = self._found(asked)
        log.info(
            "admin.connection_closed", **who(asked), connection=asked.name, reason=asked.reason
        )
        connection.shut_down(asked.reason)
        reply({"ok": True})

    def _close_channel(self, asked: CloseChannel, reply: Reply) -> None:
        connection = self._found(asked)
        self._channel(connection, asked.name, asked.number)
        log.info(
            "admin.channel_closed",
            **who(asked),
            connection=asked.name,
            channel=asked.number,
            reason=asked.reason,
        )
        connection.fail_channel(asked.number, PreconditionFailed(asked.reason, ids=(0, 0)))
        reply({"ok": True})

    def _set_prefetch(self, asked: SetPrefetch, reply: Reply) -> None:
        channel = self._channel(self._found(asked), asked.name, asked.number)
        consumer = channel.consumers.get(asked.tag)
        if consumer is None:
            raise NotFound(f"no consumer '{asked.tag}' on channel {asked.number} of '{asked.name}'")
        if consumer.no_ack:
            raise PreconditionFailed("a consumer without acknowledgements has no prefetch")
        before = consumer.credit.limit
        set_limits(channel, consumer.credit, asked.prefetch, consumer.credit.limit_octets, consumer)
        consumer.queue.credit_available(consumer)
        log.info(
            "admin.prefetch_set",
            **who(asked),
            connection=asked.name,
            channel=asked.number,
            consumer=asked.tag,
            prefetch=asked.prefetch,
        )
        reply({"ok": True, "before": before})

    def _channel(self, connection: Connection, name: str, number: int) -> Channel:
        """An open channel of a connection.

        Raises:
            NotFound: there is none of that number
        """
        channel = connection.channels.get(number)
        if channel is None or channel.is_closing:
            raise NotFound(f"no channel {number} on connection '{name}'")
        return channel

    def _found(self, asked: CloseConnection | SetPrefetch) -> Connection:
        """The connection that is meant; a user may close their own, an administrator any.

        Raises:
            NotFound: there is none
            AccessRefused: it is somebody else's
        """
        user = self._operator.user(asked.user)
        for connection in self._connections:
            if connection.label == asked.name:
                owner = getattr(connection, "user", None)
                if ADMINISTRATOR not in user.tags and owner is not user:
                    raise AccessRefused(
                        f"connection '{asked.name}' is not of user '{user.name}', who is no "
                        "administrator"
                    )
                return connection
        raise NotFound(f"no connection '{asked.name}'")
