"""`drain`: accept nobody else, wait until the last connection has closed, then stop.

Connections are not closed: clients that have been told by other means go by themselves. A signal
ends the wait, as it ends a broker at any time. Must not know sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.admin.audit import Changing, who

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.connection.connection import Connection

log = structlog.get_logger(__name__)

# Between two looks at whether somebody is left.
LOOK_S: Final = 0.1
STOPPED_BY: Final = "drain"


class DrainCommand:
    """Ends a broker when its clients have gone.

    Args:
        connections: all there are
        stop_listening: have nobody else connect; may be called again
        stop: end the broker; told why
        call_later: runs something after some seconds
    """

    def __init__(
        self,
        connections: Collection[Connection],
        stop_listening: Callable[[], object],
        stop: Callable[[str], object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._connections = connections
        self._stop_listening = stop_listening
        self._stop = stop
        self._call_later = call_later
        self._is_draining = False

    def register(self, commands: ControlCommands) -> None:
        """Enter the command."""
        commands.register("drain", Changing, self._drain)

    def _drain(self, asked: Changing, reply: Reply) -> None:
        count = len(self._connections)
        if not self._is_draining:
            self._is_draining = True
            log.info("broker.draining", **who(asked), connections=count)
            self._stop_listening()
            # The answer is on its way before the broker ends.
            self._call_later(LOOK_S, self._look)
        reply({"ok": True, "connections": count})

    def _look(self) -> None:
        if self._connections:
            self._call_later(LOOK_S, self._look)
        else:
            self._stop(STOPPED_BY)
