"""Alarms of memory, disk and shared log: when they are up, and who is held back by them.

    readings ──▶ thresholds with hysteresis ──▶ raised / cleared ──▶ connections

Readings come in as numbers; who takes them, and how often, is up to `server/edge/`. While an
alarm is up every connection is *blocking*; one becomes *blocked* by itself when it publishes.
When the last alarm clears, the blocked ones are let go a few per turn, because each has up to a
buffer of publishes to catch up with (LIMIT-23). Must not know frames or sockets.

Spec: LIMIT-01, LIMIT-10, LIMIT-12, LIMIT-13, LIMIT-15
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.events import EventBus

# Cleared this far on the good side of the threshold, so that it does not flutter.
MEMORY_CLEARS_AT: Final = 0.95
# From this share of the watermark on less is kept ready for clients, up to that share again.
MEMORY_TIGHT_AT: Final = 0.80
MEMORY_AMPLE_AT: Final = 0.75
DISK_CLEARS_AT: Final = 1.10
RELEASED_PER_TURN: Final = 8
NO_LIMIT: Final = 1 << 62

log = structlog.get_logger(__name__)


class Publishing(Protocol):
    """A connection, as far as alarms concern it."""

    is_blocking: bool

    def block_publishing(self, *, is_tight: bool, is_low: bool) -> None:
        """Memory has become tight or low, or is so no longer (LIMIT-27)."""

    def block_waiting(self) -> None:
        """The shared log has stalled: who waits for it is told now (LIMIT-13)."""

    def unblock(self) -> None:
        """The last alarm has cleared: go on where reading stopped (LIMIT-12)."""


class Alarms:
    """The alarms of one broker.

    Args:
        memory_limit_octets: more than this in use raises the memory alarm
        disk_limit_octets: less than this free raises the disk alarm; 0: never
        later: runs a callable in a turn
    """

    def __init__(
        self,
        memory_limit_octets: int,
        disk_limit_octets: int,
        later: Callable[[Callable[[], None]], None],
        events: EventBus,
    ) -> None:
        self._events = events
        self.memory_limit_octets = memory_limit_octets
        self.disk_limit_octets = disk_limit_octets
        self.memory_octets = 0
        self.disk_free_octets = NO_LIMIT
        self.is_raised = False
        self.is_memory_low = False
        self.is_memory_tight = False
        self.is_disk_low = False
        self.is_storage_failing = False
        self.is_log_stalled = False
        self._was_low = False
        self._later = later
        self._connections: dict[Publishing, None] = {}
        self._blocked: dict[Publishing, None] = {}

    @property
    def reason(self) -> str:
        """What `connection.blocked` says now; empty without an alarm (LIMIT-13)."""
        resources = ["memory"] if self.is_memory_low else []
        if self.is_disk_low or self.is_storage_failing:
            resources.append("disk")
        reasons = ["low on " + " & ".join(resources)] if resources else []
        if self.is_log_stalled:
            reasons.append("replication")
        return ", ".join(reasons)

    @property
    def blocked_count(self) -> int:
        """Connections that are not read because they published."""
        return len(self._blocked)

    # What is measured

    def read(self, memory_octets: int, disk_free_octets: int) -> None:
        """Take readings and raise or clear by them (LIMIT-01)."""
        self.memory_octets = memory_octets
        self.disk_free_octets = disk_free_octets
        limit = self.memory_limit_octets
        if self.is_memory_low:
            is_memory_low = memory_octets >= limit * MEMORY_CLEARS_AT
        else:
            is_memory_low = memory_octets > limit
        if is_memory_low != self.is_memory_low:
            self.is_memory_low = is_memory_low
            self._tell("memory", is_memory_low, used_bytes=memory_octets, limit_bytes=limit)
        share = MEMORY_AMPLE_AT if self.is_memory_tight else MEMORY_TIGHT_AT
        is_tight = self.is_memory_low or memory_octets >= limit * share
        has_changed = is_tight != self.is_memory_tight or self._was_low != self.is_memory_low
        self.is_memory_tight, self._was_low = is_tight, self.is_memory_low
        limit = self.disk_limit_octets
        if self.is_disk_low:
            is_disk_low = disk_free_octets <= limit * DISK_CLEARS_AT
        else:
            is_disk_low = disk_free_octets < limit
        if is_disk_low != self.is_disk_low:
            self.is_disk_low = is_disk_low
            self._tell("disk", is_disk_low, free_bytes=disk_free_octets, limit_bytes=limit)
        self._update()
        if has_changed:
            for connection in list(self._connections):
                connection.block_publishing(is_tight=is_tight, is_low=self.is_memory_low)

    def storage_failed(self, free_octets: int) -> None:
        """The disk took no block: an alarm until it is shown to take one (LIMIT-15)."""
        if not self.is_storage_failing:
            self.is_storage_failing = True
            self.disk_free_octets = free_octets
            self._tell("storage", True, free_bytes=free_octets)
            self._update()

    def storage_recovered(self) -> None:
        """A block was written and synced again."""
        if self.is_storage_failing:
            self.is_storage_failing = False
            self._tell("storage", False, free_bytes=self.disk_free_octets)
            self._update()

    def log_stalled(self, *, is_stalled: bool) -> None:
        """What is awaited of the shared log or a standby has not come for a while, or comes."""
        if is_stalled != self.is_log_stalled:
            self.is_log_stalled = is_stalled
            self._tell("replication", is_stalled)
            self._update()
            if is_stalled:
                for connection in list(self._connections):
                    connection.block_waiting()

    def _tell(self, resource: str, is_raised: bool, **values: int) -> None:
        event = "alarm.set" if is_raised else "alarm.cleared"
        self._events.tell(event, resource=resource, **values)
        if is_raised:
            log.warning(
                "alarm.raised", resource=resource, **values, meaning="publishers are blocked"
            )
        else:
            log.warning("alarm.cleared", resource=resource, **values)

    def _update(self) -> None:
        is_low = self.is_memory_low or self.is_disk_low or self.is_storage_failing
        is_raised = is_low or self.is_log_stalled
        if is_raised == self.is_raised:
            return
        self.is_raised = is_raised
        for connection in self._connections:
            connection.is_blocking = is_raised
        if not is_raised:
            self._release()

    # Who is held back

    def enter(self, connection: Publishing) -> None:
        """A connection begins; it may do so during an alarm (LIMIT-10)."""
        self._connections[connection] = None
        connection.is_blocking = self.is_raised
        if self.is_memory_tight:
            connection.block_publishing(is_tight=True, is_low=self.is_memory_low)

    def leave(self, connection: Publishing) -> None:
        """The connection is closed: no alarm blocks it any more."""
        self._connections.pop(connection, None)
        self._blocked.pop(connection, None)

    def block(self, connection: Publishing) -> None:
        """It has published: it is not read until the last alarm clears."""
        self._blocked[connection] = None

    def _release(self) -> None:
        if self.is_raised:
            return
        for connection in list(islice(self._blocked, RELEASED_PER_TURN)):
            del self._blocked[connection]
            connection.unblock()
        if self._blocked:
            self._later(self._release)
