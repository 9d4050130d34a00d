"""One connection's side of the alarms: blocking while one is up, blocked once it publishes.

Or at once, if the shared log has stalled and the client waits for it: who waits for each confirm
would never publish again, and would not learn why.

A blocked connection is not read at all, so acks, channel opens and its own close wait too
(LIMIT-11); what is sent to it goes on. Must not know what raises an alarm.

Spec: LIMIT-10 … LIMIT-13, LIMIT-16
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from vouchmq.protocol.codec import connection_blocked, connection_unblocked
from vouchmq.server.connection.wire import BLOCKED

if TYPE_CHECKING:
    from vouchmq.protocol.reader import Event
    from vouchmq.server.connection.inbound import InboundQueue
    from vouchmq.server.connection.port import ConnectionPort
    from vouchmq.server.connection.wire import Timer


log = structlog.get_logger(__name__)


class PublisherBlock:
    """Lets publishes through, or not.

    Args:
        connection: whose publishes
        inbound: stopped while they may not pass
    """

    __slots__ = ("_blocked_at", "_connection", "_inbound", "_timer", "is_blocking")

    def __init__(self, connection: ConnectionPort, inbound: InboundQueue) -> None:
        self._connection = connection
        self._inbound = inbound
        self._timer: Timer | None = None
        self._blocked_at = 0.0
        # Set by the alarms; the only thing that is looked at per run of publishes.
        self.is_blocking = False
        connection.context.alarms.enter(self)

    @property
    def is_blocked(self) -> bool:
        """True from the first publish under an alarm until the alarms clear."""
        return self._timer is not None

    def block(self, event: Event | None = None) -> None:
        """The connection publishes while an alarm is up: it is not read any further.

        Args:
            event: what must not be done before the alarms clear
        """
        connection = self._connection
        context = connection.context
        if event is None:
            self._inbound.pause(BLOCKED)
        else:
            self._inbound.pause_before(event, BLOCKED)
        context.alarms.block(self)
        self._blocked_at = context.clock()
        if connection.has_capability("connection.blocked"):
            connection.outbox.send(connection_blocked(context.alarms.reason))
        self._timer = connection.wire.call_later(context.limits.blocked_log_after_s, self._tell)

    def block_publishing(self, *, is_tight: bool, is_low: bool) -> None:
        """See `alarms.Publishing`: less is kept for the client, nothing more of a content read."""
        connection = self._connection
        connection.limit_unsent(is_tight=is_tight)
        if is_low and self._timer is None and connection.has_unfinished:
            self.block()

    def block_waiting(self) -> None:
        """See `alarms.Publishing`."""
        if self._timer is None and self._connection.awaits_commit:
            self.block()

    def unblock(self) -> None:
        """See `alarms.Publishing`."""
        connection = self._connection
        self._cancel_timer()
        if connection.has_capability("connection.blocked"):
            connection.outbox.send(connection_unblocked())
        self._inbound.resume(BLOCKED)
        connection.context.turn.wake()

    def open(self) -> None:
        """The connection ends by our close: read on, its answer lies behind what it published."""
        self.leave()
        self._inbound.resume(BLOCKED)

    def leave(self) -> None:
        """The connection is gone, or will publish nothing any more."""
        self.is_blocking = False
        self._connection.context.alarms.leave(self)
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        context = self._connection.context
        log.warning(
            "connection.blocked",
            connection=self._connection.wire.name,
            client_name=self._connection.client_name,
            user=self._connection.user.name,
            reason=context.alarms.reason,
            duration_ms=int((context.clock() - self._blocked_at) * 1000),
        )
