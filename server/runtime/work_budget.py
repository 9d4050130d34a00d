"""How long one connection may keep the loop, and who goes on when it has had its time.

    octets read ─▶ begin ─▶ method, method, … is_over ─▶ put_off ─▶ next turn: begin ─▶ method …

A connection works until its slice of the turn is used up; what is left waits in a queue behind
the others that wait, and sockets are read in between. So whoever asks for little is served before
whoever asks for much, and the order within a connection stays. Must not know what the work is.

Spec: LIMIT-23
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# One connection's share of a turn. A method is not interrupted, so it may take longer.
SLICE_S: Final = 0.004
# What is put off has so much of each turn; one that waits is served in any case.
TURN_S: Final = 0.008


class WorkBudget:
    """Shared by all connections of one broker.

    Args:
        clock: monotonic seconds
        later: runs a callable in the next turn of the loop
    """

    __slots__ = (
        "_clock",
        "_ends_at",
        "_is_scheduled",
        "_later",
        "_soon_until",
        "_waiting",
        "began_at",
        "slice_count",
    )

    def __init__(
        self, clock: Callable[[], float], later: Callable[[Callable[[], None]], None]
    ) -> None:
        self._clock = clock
        self._later = later
        self.began_at = 0.0  # the present slice
        self._ends_at = 0.0
        self.slice_count = 0  # so far: each is something that one connection had to do
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._soon_until = 0.0

    @property
    def is_idle(self) -> bool:
        """True when no job waits for a later turn."""
        return not self._waiting

    def begin(self) -> None:
        """Start measuring a slice of work."""
        self.slice_count += 1
        self.began_at = now = self._clock()
        self._ends_at = now + SLICE_S

    def is_over(self) -> bool:
        """Whether the slice is used up: then `put_off` what is left."""
        return self._clock() >= self._ends_at

    def put_off(self, job: Callable[[], None]) -> None:
        """Have this called in a later turn, after all that waits already."""
        self._waiting.append(job)
        if not self._is_scheduled:
            # The next turn begins before sockets are read again: others must come between.
            self._is_scheduled = True
            self._later(lambda: self._later(self._run))

    def soon(self, job: Callable[[], None]) -> None:
        """Do this now, or in a later turn when a slice of this one has gone to such work."""
        if not self._soon_until:
            self._soon_until = self._clock() + SLICE_S
            self._later(self._end_soon)
        elif self._clock() >= self._soon_until:
            self.put_off(job)
            return
        job()

    def go_through(self, steps: Iterator[None]) -> None:
        """Take steps now until a slice is used up, those that are left in later turns.

        Whoever has others take steps within its own slice keeps it.
        """
        began_at, ends_at = self.began_at, self._ends_at
        self.begin()
        try:
            self._take(steps)
        finally:
            self.began_at, self._ends_at = began_at, ends_at

    def _take(self, steps: Iterator[None]) -> None:
        for _ in steps:
            if self.is_over():
                self.put_off(partial(self._go_on, steps))
                return

    def _go_on(self, steps: Iterator[None]) -> None:
        self.begin()
        self._take(steps)

    def _end_soon(self) -> None:
        self._soon_until = 0.0

    def _run(self) -> None:
        """Those that have waited longest, while the turn has time for them."""
        ends_at = self._clock() + TURN_S
        try:
            # Who has to be put off once more waits for the next turn.
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if self._clock() >= ends_at:
                    break
        finally:
            self._is_scheduled = bool(self._waiting)
            if self._waiting:
                self._later(self._run)
