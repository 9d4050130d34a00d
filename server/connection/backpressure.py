"""Back-pressure on one connection, without alarms: when what it publishes is not read for a while.

Either too much is waiting for the disk (LIMIT-20), or the consumers of its queues have enough in
front of them (LIMIT-29). What the connection is told goes on meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.server.connection.wire import FLOODED, FLOW

if TYPE_CHECKING:
    from vouchmq.server.connection.port import ConnectionPort

# A connection is shown as held back for so long after it was.
SHOWN_S: Final = 5.0


class Backpressure:
    """Holds one connection back. It is a `flow.Publisher` and a `context.Waiter`.

    Args:
        connection: whose socket is not read
    """

    __slots__ = ("_connection", "_held_at", "_is_over", "_is_waiting", "is_flooded")

    def __init__(self, connection: ConnectionPort) -> None:
        self._connection = connection
        self._is_over = self._is_waiting = False
        self._held_at = -SHOWN_S
        self.is_flooded = False

    @property
    def is_shown(self) -> bool:
        """True while it is held back, and for some seconds after."""
        is_held = self.is_flooded or self._is_waiting
        return is_held or self._connection.context.clock() - self._held_at < SHOWN_S

    def check_flood(self) -> None:
        """Stop reading while too much waits for the disk; read again when half of it is there."""
        context = self._connection.context
        unsafe = context.journal.unsafe_bytes
        limit = context.limits.unsynced_limit_bytes
        if not self.is_flooded and unsafe > limit:
            self.is_flooded = True
            self._connection.wire.pause(FLOODED)
            context.waits(self)
        elif self.is_flooded and unsafe <= limit // 2:
            self._end_flood()

    def release(self, watermark: int) -> bool:
        """See `context.Waiter`."""
        del watermark
        if self.is_flooded:
            self.check_flood()
        return not self.is_flooded

    def storage_failed(self) -> None:
        """See `context.Waiter`: whatever was published is refused, and nothing waits any more."""

    def _end_flood(self) -> None:
        self.is_flooded = False
        self._held_at = self._connection.context.clock()
        self._connection.wire.resume(FLOODED)

    @property
    def may_wait(self) -> bool:
        """See `flow.Publisher`."""
        return not self._is_over and not self._connection.has_consumers

    def wait(self) -> None:
        """See `flow.Publisher`."""
        self._is_waiting = True
        self._connection.wire.pause(FLOW)

    def go_on(self) -> None:
        """See `flow.Publisher`."""
        self._is_waiting = False
        self._held_at = self._connection.context.clock()
        self._connection.wire.resume(FLOW)

    def leave(self) -> None:
        """The connection is closing, or gone: whatever it still says is read."""
        self._is_over = True
        context = self._connection.context
        context.turn.flow.leave(self)
        context.forget(self)
        if self.is_flooded:
            self._end_flood()
