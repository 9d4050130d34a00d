"""When compaction takes its steps: often enough to keep up, so short that nobody waits.

    a segment is full, or a second has passed ─▶ look ─▶ step … step ─▶ nothing left to do

A step costs some tenths of a millisecond of the loop, more when publishers bring much: it moves at
most twice as much as they have brought since the last one. What it moves is written with the next
turn. While the disk refuses blocks there are no steps. Must not know segments or files.

Spec: LIMIT-15
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.alarms import Alarms

EVERY_S: Final = 0.002
# What a step may take while others publish or consume, and while nobody does.
LEAST_OCTETS: Final = 32 * 1024
IDLE_OCTETS: Final = 256 * 1024
MOST_OCTETS: Final = 1024 * 1024


class Steps(Protocol):
    """What compacts."""

    @property
    def is_busy(self) -> bool:
        """Whether a segment is on its way out."""

    def look(self) -> bool:
        """Look whether there is anything to do."""

    def step(self, octets: int) -> bool:
        """Move about so many octets at most; whether to go on."""


class Tail(Protocol):
    """Where the journal grows."""

    appended_bytes: int  # since the start

    @property
    def tail_generation(self) -> int:
        """Number of the segment that takes new blocks."""

    @property
    def tail_room_bytes(self) -> int:
        """Octets that still fit into it."""


class Upkeep:
    """Calls the compactor.

    Args:
        steps: the compactor
        tail: the row of segments
        alarms: tell whether the disk takes blocks, and how much room there is
        later: runs a callable in some time, given in seconds
        wake: has a turn run, which writes the journal
        room_octets: so much must be free on the disk before a new segment is begun for this
    """

    def __init__(
        self,
        steps: Steps,
        tail: Tail,
        alarms: Alarms,
        *,
        later: Callable[[float, Callable[[], None]], object],
        wake: Callable[[], None],
        room_octets: int,
    ) -> None:
        self._steps = steps
        self._tail = tail
        self._alarms = alarms
        self._later = later
        self._wake = wake
        self._room_octets = room_octets
        self._is_scheduled = False
        self._generation = tail.tail_generation
        self._appended = tail.appended_bytes
        self._own = 0

    def written(self) -> None:
        """The journal was written: if that began a segment, look at the others."""
        if self._tail.tail_generation != self._generation:
            self._generation = self._tail.tail_generation
            self.look()

    def look(self) -> None:
        """Begin with what there is to do; to be called now and then."""
        if not self._is_scheduled and self._may_write() and self._steps.look():
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._later(EVERY_S, self._step)

    def _may_write(self) -> bool:
        """What is moved goes into room that is there already, or of which there is plenty."""
        if self._alarms.is_storage_failing:
            return False
        has_room = self._tail.tail_room_bytes >= 2 * MOST_OCTETS
        return has_room or self._alarms.disk_free_octets >= self._room_octets

    def _step(self) -> None:
        self._is_scheduled = False
        if not self._may_write():
            return
        appended = self._tail.appended_bytes
        grown, self._appended = appended - self._appended, appended
        # Our own part of the growth is not the publishers'.
        brought = max(0, grown - self._own)
        octets = min(MOST_OCTETS, max(LEAST_OCTETS, 2 * brought)) if brought else IDLE_OCTETS
        self._own = 2 * octets
        if self._steps.step(octets):
            self._schedule()
        self._wake()
