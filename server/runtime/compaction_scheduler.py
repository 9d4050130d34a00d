"""When compaction takes its steps: often enough to keep up, so short that nobody waits.

    a segment is full, or a second has passed ─▶ look ─▶ step … step ─▶ nothing left to do

A step is bounded by the time it takes: some tenths of a millisecond while anybody is served, more
when nobody has been for a while. On a machine that is too busy to be in time steps get rarer. What
publishers bring is owed threefold: for each octet of theirs so many of old segments are passed.
Steps get longer when they fall behind with that, and only then, so that the disk does not fill
faster than it is emptied. What a step moves is written with the next turn. While the disk refuses
blocks there are no steps. Must not know segments or files.

Spec: LIMIT-15
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.runtime.alarms import Alarms

# While somebody is served: a step, and the pause behind it. While nobody is.
BUSY_STEP_S: Final = 0.0002
BUSY_PAUSE_S: Final = 0.002
# A pause is so many times as long as a step was late, if nothing much is owed.
LATE_PAUSES: Final = 8
LONGEST_PAUSE_S: Final = 0.02
IDLE_STEP_S: Final = 0.001
IDLE_PAUSE_S: Final = 0.001
# A step that is far behind takes at most so long.
LONGEST_STEP_S: Final = 0.005
# Nobody is served if nobody was for so long.
CALM_S: Final = 0.1
# What a step may move, however fast it is, and with however little room.
MOST_OCTETS: Final = 256 * 1024
LEAST_OCTETS: Final = 4 * 1024
# So much of a segment must be left where blocks go, for acks that come meanwhile.
ROOM_SHARE: Final = 1 / 64
# Or so much of one on the disk.
FREE_SHARE: Final = 1 / 8
# Octets passed for each one that publishers bring.
OWED_PER_OCTET: Final = 3
# Steps get longer by one for each such part of a segment that is owed.
LAG_SHARE: Final = 1 / 32


class Steps(Protocol):
    """The compactor, as far as it is scheduled and reported."""

    @property
    def passed_bytes(self) -> int:
        """Octets of segments that were looked through since the start."""

    @property
    def moved_bytes(self) -> int:
        """Octets that were moved since the start."""

    def look(self) -> bool:
        """Look whether there is anything to do."""

    def step(self, octets: int, limit_s: float) -> bool:
        """Move about so many octets at most in about so many seconds; whether to go on."""


class Tail(Protocol):
    """The journal's tail, which shows how much work there will be."""

    appended_bytes: int  # since the start

    @property
    def tail_room_bytes(self) -> int:
        """Octets that still fit into it."""

    @property
    def spare_bytes(self) -> int:
        """Octets of the next one that are there already, however full the disk is."""


class Turns(Protocol):
    """What writes the journal, and tells whether anybody is served."""

    count: int  # of turns so far

    def wake(self) -> None:
        """Have the next turn run soon."""


class CompactionScheduler:
    """Calls the compactor.

    Args:
        steps: the compactor
        tail: the row of segments
        alarms: tell whether the disk takes blocks, and how much room there is
        turns: a turn is run behind each step
        clock: monotonic seconds
        later: runs a callable in some time, given in seconds
        is_refused: whether the disk refused the last block, and nothing was written since
        segment_octets: a part of it must be free on the disk before one is begun for this
    """

    def __init__(
        self,
        steps: Steps,
        tail: Tail,
        alarms: Alarms,
        turns: Turns,
        *,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        is_refused: Callable[[], bool],
        segment_octets: int,
    ) -> None:
        self._steps = steps
        self._tail = tail
        self._alarms = alarms
        self._turns = turns
        self._clock = clock
        self._later = later
        self._is_refused = is_refused
        self._segment_octets = segment_octets
        self._is_scheduled = False
        self._appended = tail.appended_bytes
        self._moved = 0
        self._turn_count = 0
        self._served_at = clock()
        self._owed = 0
        self._due = 0.0

    @property
    def is_at_work(self) -> bool:
        """Whether there is more to do, and room to do it."""
        return self._is_scheduled

    @property
    def moved_bytes(self) -> int:
        """Octets that were written again since the start."""
        return self._steps.moved_bytes

    def look(self) -> None:
        """Begin with what there is to do; to be called now and then."""
        if not self._is_scheduled and self._may_write() and self._steps.look():
            # What came before there was anything to do is not owed.
            self._appended, self._moved = self._tail.appended_bytes, self._steps.moved_bytes
            self._turn_count = self._turns.count
            self._schedule(BUSY_PAUSE_S)

    def _schedule(self, pause_s: float) -> None:
        self._is_scheduled = True
        self._due = self._clock() + pause_s
        self._later(pause_s, self._step)

    def _may_write(self) -> bool:
        """What is moved goes into room that is there already, or of which there is enough.

        On a full disk that is the way out: a segment that is moved leaves more than it takes.
        """
        if self._is_refused():
            return False
        if self._tail.tail_room_bytes >= ROOM_SHARE * self._segment_octets:
            return True
        if self._tail.spare_bytes:
            return True
        free_octets = self._alarms.disk_free_octets
        return not self._alarms.is_storage_failing and free_octets >= (
            FREE_SHARE * self._segment_octets
        )

    def _step(self) -> None:
        self._is_scheduled = False
        if not self._may_write():
            return
        late_s = self._clock() - self._due
        steps = self._steps
        is_calm = self._is_calm()
        self._owe()
        passed = steps.passed_bytes
        goes_on = steps.step(self._most_octets(), self._limit_s(is_calm=is_calm))
        self._owed = max(0, self._owed - (steps.passed_bytes - passed)) if goes_on else 0
        if goes_on:
            self._schedule(IDLE_PAUSE_S if is_calm else self._pause_s(late_s))
        self._turns.wake()

    def _most_octets(self) -> int:
        """Less where there is no room behind the tail's."""
        if self._alarms.disk_free_octets >= self._segment_octets:
            return MOST_OCTETS
        return min(MOST_OCTETS, max(LEAST_OCTETS, self._tail.tail_room_bytes // 2))

    def _is_calm(self) -> bool:
        """Whether only turns of our own were run for a while."""
        now, count = self._clock(), self._turns.count
        if count - self._turn_count > 1:
            self._served_at = now
        self._turn_count = count
        return now - self._served_at >= CALM_S

    def _owe(self) -> None:
        """Count what was brought since the last step; our own part of the growth was not."""
        appended, moved = self._tail.appended_bytes, self._steps.moved_bytes
        brought = appended - self._appended - (moved - self._moved)
        self._appended, self._moved = appended, moved
        self._owed += OWED_PER_OCTET * max(0, brought)

    def _pause_s(self, late_s: float) -> float:
        """Longer when the last step came late: there is more to do than the machine can."""
        if self._owed > LAG_SHARE * self._segment_octets:
            return BUSY_PAUSE_S
        return min(LONGEST_PAUSE_S, max(BUSY_PAUSE_S, LATE_PAUSES * late_s))

    def _limit_s(self, *, is_calm: bool) -> float:
        if is_calm:
            return IDLE_STEP_S
        lag = self._owed / (LAG_SHARE * self._segment_octets)
        return min(LONGEST_STEP_S, BUSY_STEP_S * (1 + lag))
