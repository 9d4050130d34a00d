"""Deadlines of the broker: one heap, one timer of the loop for the earliest of them.

A job stays until its time has come; whoever asked for it finds out then whether it is still
wanted. Must not know what the jobs do.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# The loop's timers are no finer than this, and a late job is better than a second timer.
GRAIN_MS: Final = 1
# Nobody is waited for longer than this: jobs that are not wanted any more are gone by then.
MOST_MS: Final = 60_000


class MillisecondClock:
    """A clock of seconds in whole milliseconds: each message that is stored asks for them.

    Args:
        clock: monotonic seconds
    """

    __slots__ = ("_clock",)

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        """The present, rounded down."""
        return int(self._clock() * 1000.0)


class Timers:
    """Runs jobs when their time has come.

    Args:
        now_ms: the loop's clock in whole milliseconds
        call_later: runs a callable in so many seconds
    """

    __slots__ = ("_armed_ms", "_call_later", "_count", "_heap", "now_ms")

    def __init__(
        self,
        now_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.now_ms = now_ms
        self._call_later = call_later
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._armed_ms = 0  # when the loop calls next, 0: not at all

    def at(self, due_ms: int, job: Callable[[], None]) -> int:
        """Run `job` once the clock shows `due_ms`, in a call of its own even if that is past.

        Returns:
            when it is run: a minute from now if it is due later, so that it has to look again
        """
        self._count += 1
        due_ms = min(due_ms, self.now_ms() + MOST_MS)
        heappush(self._heap, (due_ms, self._count, job))
        self._arm()
        return due_ms

    def _arm(self) -> None:
        due_ms = self._heap[0][0]
        if self._armed_ms and self._armed_ms <= due_ms:
            return
        now_ms = self.now_ms()
        self._armed_ms = max(due_ms, now_ms + GRAIN_MS)
        self._call_later((self._armed_ms - now_ms) / 1000, self._fire)

    def _fire(self) -> None:
        # A call that was armed for later than a newer one rings as well; it finds nothing due.
        self._armed_ms = 0
        now_ms = self.now_ms()
        due: deque[Callable[[], None]] = deque()
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heappop(self._heap)[2])
        try:
            while due:
                due.popleft()()
        finally:
            # A bug in one job must not stop the others.
            for job in due:
                self.at(now_ms, job)
            if self._heap and not self._armed_ms:
                self._arm()
