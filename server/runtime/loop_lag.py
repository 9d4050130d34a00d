"""How late the event loop is: what anything that comes at any moment has to wait.

A timer is called later than it was due while something else has the loop. It is asked for ten times
a second, which costs the path of a message nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.store.histogram import DURATIONS_S, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S: Final = 0.1


class LoopLag:
    """Measures one loop.

    Args:
        call_later: of the loop
        clock: monotonic seconds, which pass while callbacks run
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float],
    ) -> None:
        self.histogram = Histogram(DURATIONS_S)
        self._call_later = call_later
        self._clock = clock
        self._due_at = 0.0

    def start(self) -> None:
        """Look from now on, for as long as the loop runs."""
        self._due_at = self._clock() + LOOK_S
        self._call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self.histogram.observe(self._clock() - self._due_at)
        self.start()
