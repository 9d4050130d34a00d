"""Waiting for something to become true in a broker: looked at when a turn is over.

Whatever clients cause ends in a turn, so nobody who waits has to ask again and again. What comes
about without one, by a timer say, is found once in a while, also after a turn: then the journal has
been written, and what is seen survives if the broker is killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.faults.clock import Timer

LOOK_S: Final = 0.02


class Waits:
    """Everything that is waited for.

    Args:
        call_later: runs a callable after so many seconds
        clock: monotonic seconds
        observers: what is called after each turn
        wake: sees to it that there is a turn
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Timer],
        clock: Callable[[], float],
        observers: dict[Callable[[], None], None],
        wake: Callable[[], None],
    ) -> None:
        self._call_later = call_later
        self._clock = clock
        self._observers = observers
        self._wake = wake
        self._waits: dict[Wait, None] = {}
        self._timer: Timer | None = None

    def begin(
        self, is_so: Callable[[], bool], tell: Callable[[bool], None], limit_s: float
    ) -> Wait:
        """Call `tell` as soon as `is_so`, or with False when `limit_s` is over."""
        wait = Wait(is_so, tell, self._clock() + limit_s)
        self._waits[wait] = None
        self._observers[self.look] = None
        self._wake()
        return wait

    def forget(self, wait: Wait) -> None:
        """Nobody waits for it any more."""
        self._waits.pop(wait, None)

    def look(self) -> None:
        """Tell those whose wait is over; a turn is."""
        now = self._clock()
        for wait in list(self._waits):
            is_so = wait.is_so()
            if is_so or now >= wait.ends_at:
                del self._waits[wait]
                wait.tell(is_so)
        if not self._waits:
            self._observers.pop(self.look, None)
        elif self._timer is None:
            self._timer = self._call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._wake()


class Wait:
    """One thing that is waited for; see `Waits.begin`."""

    __slots__ = ("ends_at", "is_so", "tell")

    def __init__(
        self, is_so: Callable[[], bool], tell: Callable[[bool], None], ends_at: float
    ) -> None:
        self.is_so = is_so
        self.tell = tell
        self.ends_at = ends_at
