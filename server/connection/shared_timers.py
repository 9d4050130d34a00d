"""Timers of a delay that many ask for: those of equal delay share one of the loop's.

A connection asks for several, such as the end of patience with its handshake, and nearly all are
cancelled long before they are due. One of the loop's costs a handle of its own, which is also
closed by the loop; here it is an entry in a dictionary. Timers of one delay are due in the order in
which they were set, so the loop has to know of the first only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.connection.wire import Timer

# A loop's clock has milliseconds.
RESOLUTION_S: Final = 0.001
# Clients choose intervals of heartbeats, and could choose very many.
MOST_DELAYS: Final = 64


class Loop(Protocol):
    """The event loop, as far as time goes."""

    def time(self) -> float:
        """Monotonic seconds."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        """Run a callable after a delay in seconds."""


class SharedTimer:
    """One of them."""

    __slots__ = ("_among", "callback", "due_at")

    def __init__(
        self, among: dict[SharedTimer, None], due_at: float, callback: Callable[[], None]
    ) -> None:
        self._among = among
        self.due_at = due_at
        self.callback = callback

    def cancel(self) -> None:
        """Cancel the timer; its callback is never called."""
        self._among.pop(self, None)


class _Timers:
    """All shared ones of one delay, in the order in which they are due."""

    __slots__ = ("_delay_s", "_is_armed", "_loop", "_timers")

    def __init__(self, loop: Loop, delay_s: float) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._timers: dict[SharedTimer, None] = {}
        self._is_armed = False

    def set(self, callback: Callable[[], None]) -> SharedTimer:
        timer = SharedTimer(self._timers, self._loop.time() + self._delay_s, callback)
        self._timers[timer] = None
        if not self._is_armed:
            self._arm(self._delay_s)
        return timer

    def _arm(self, delay_s: float) -> None:
        self._is_armed = True
        self._loop.call_later(delay_s, self._look)

    def _due(self, now: float) -> list[SharedTimer]:
        due: list[SharedTimer] = []
        for timer in self._timers:
            if timer.due_at > now:
                break
            due.append(timer)
        return due

    def _look(self) -> None:
        """Run those that are due, and wait for the first of the others."""
        self._is_armed = False
        try:
            # All at once: each look for the first would pass the places of those before it.
            for timer in self._due(self._loop.time() + RESOLUTION_S):
                if timer in self._timers:
                    del self._timers[timer]
                    timer.callback()
        finally:
            if self._timers and not self._is_armed:
                first = next(iter(self._timers))
                self._arm(max(0.0, first.due_at - self._loop.time()))


class SharedTimers:
    """The timers of a listener's connections.

    Args:
        loop: tells the time, and calls back
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._by_delay: dict[float, _Timers] = {}

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run a callable after a delay; whole and half seconds are what many ask for."""
        timers = self._by_delay.get(delay_s)
        if timers is None:
            is_usual = (delay_s * 2).is_integer() and len(self._by_delay) < MOST_DELAYS
            if not is_usual:
                return self._loop.call_later(delay_s, callback)
            timers = self._by_delay[delay_s] = _Timers(self._loop, delay_s)
        return timers.set(callback)
