"""Time in which an event loop could hear what others say.

A loop that is busy for five seconds hears nothing meanwhile, and when it is back its timers are due
before the sockets are read. By the clock of the machine everybody has been silent for five seconds
then, and every request is too old, although the answers are waiting. So whoever judges others by
their silence counts by this clock: it goes on with the machine's, but from one look to the next by
`most_s` at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class LivedClock:
    """Seconds that only go forward, without those that the loop has missed.

    Args:
        time: the loop's clock
        most_s: so far it goes on without a look
    """

    def __init__(self, time: Callable[[], float], most_s: float) -> None:
        # What was left out at the last look.
        self.missed_s = 0.0
        self._time = time
        self._most_s = most_s
        self._looked_at = time()
        self._lived_s = 0.0

    def now(self) -> float:
        """The time."""
        return self._lived_s + min(self._time() - self._looked_at, self._most_s)

    def look(self) -> float:
        """Take in that the loop is alive; gives the time. To be called regularly by a timer."""
        now = self._time()
        passed_s = now - self._looked_at
        self.missed_s = max(0.0, passed_s - self._most_s)
        self._lived_s += passed_s - self.missed_s
        self._looked_at = now
        return self._lived_s
