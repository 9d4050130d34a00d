"""`close connection` and `close channel`: by force, as of an operator.

Must not know sockets.

Spec: HTTP-13, CONN-56
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.protocol.errors import AccessRefused, NotFound, PreconditionFailed
from vouchmq.server.admin.audit import Changing, who

if TYPE_CHECKING:
    from collections.abc import Collection

    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.admin.objects.operator import Operator
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


class ConnectionCommands:
    """The commands that end connections and channels.

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

    def _close(self, asked: CloseConnection, reply: Reply) -> None:
        connection = self._found(asked)
        log.info(
            "admin.connection_closed", **who(asked), connection=asked.name, reason=asked.reason
        )
        connection.shut_down(asked.reason)
        reply({"ok": True})

    def _close_channel(self, asked: CloseChannel, reply: Reply) -> None:
        connection = self._found(asked)
        if asked.number not in connection.channels:
            raise NotFound(f"no channel {asked.number} on connection '{asked.name}'")
        log.info(
            "admin.channel_closed",
            **who(asked),
            connection=asked.name,
            channel=asked.number,
            reason=asked.reason,
        )
        connection.fail_channel(asked.number, PreconditionFailed(asked.reason, ids=(0, 0)))
        reply({"ok": True})

    def _found(self, asked: CloseConnection) -> Connection:
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
