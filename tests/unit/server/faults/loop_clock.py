"""A clock that tests set, with timers as a loop has them."""

from __future__ import annotations

from collections.abc import Callable


class Timer:
    """Something to be called at a time."""

    def __init__(self, due: float, job: Callable[[], None]) -> None:
        self.due = due
        self.job = job
        self.is_cancelled = False

    def cancel(self) -> None:
        """Never call it."""
        self.is_cancelled = True


class LoopClock:
    """A clock that is set, and what is to be called at which time."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[Timer] = []

    @property
    def timers(self) -> list[Timer]:
        """Those that are still to be called, in order."""
        left = [each for each in self._timers if not each.is_cancelled]
        return sorted(left, key=lambda each: each.due)

    def call_later(self, delay_s: float, job: Callable[[], None]) -> Timer:
        """As a loop does."""
        self._timers.append(Timer(self.now + delay_s, job))
        return self._timers[-1]

    def go_to(self, time: float) -> None:
        """Go on to a time, and call what is due until then."""
        while self.timers and self.timers[0].due <= time:
            timer = self.timers[0]
            self._timers.remove(timer)
            self.now = timer.due
            timer.job()
        self.now = time


class Turns:
    """Turns that happen at once, or when a test says so."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.observers: dict[Callable[[], None], None] = {}
        self.is_wanted = False
        self._at_once = at_once

    def wake(self) -> None:
        """Somebody wants a turn."""
        self.is_wanted = True
        if self._at_once:
            self.run()

    def run(self) -> None:
        """A turn is over."""
        self.is_wanted = False
        for observer in list(self.observers):
            observer()
