"""The clock of queues, which can be set forward: what waits for time then waits no longer.

    JournalClock, Timers, Enqueuer ─▶ ShiftedHost.now_ms ─▶ the host's clock + the shift

Expiry, delays, retries, consumer timeouts and the like look at `Host.now_ms`, and have themselves
called by `Host.call_later`. Heartbeats and other time limits of connections look at `Host.clock`,
which is left alone: no client is thought to be silent. Must not know what waits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

from vouchmq.server.runtime.runtime import Host

if TYPE_CHECKING:
    from collections.abc import Callable

MS_PER_S = 1000


class Timer(Protocol):
    """What `call_later` gives."""

    def cancel(self) -> None:
        """Never call it."""


class ShiftedClock:
    """How far the clock is ahead, and what is to be called at a later time.

    Args:
        call_later: runs a callable after so many seconds
        clock: monotonic seconds
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Timer],
        clock: Callable[[], float],
    ) -> None:
        self._call_later = call_later
        self._clock = clock
        self._pending: dict[_Call, None] = {}
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """The time in whole milliseconds."""
        return int(self._clock() * MS_PER_S) + self.ahead_ms

    def call_later(self, delay_s: float, job: Callable[[], None]) -> _Call:
        """Run a callable after so many seconds of this clock."""
        call = _Call(self.now_ms() + delay_s * MS_PER_S, job, self._pending)
        self._pending[call] = None
        call.timer = self._call_later(delay_s, call.run)
        return call

    def advance(self, by_ms: int) -> None:
        """Set it forward, and run what is due by then."""
        self.ahead_ms += by_ms
        now_ms = self.now_ms()
        for call in sorted(self._pending, key=lambda each: each.due_ms):
            # One that runs may have taken back another.
            if call not in self._pending:
                continue
            call.stop_timer()
            if call.due_ms <= now_ms:
                call.run()
            else:
                call.timer = self._call_later((call.due_ms - now_ms) / MS_PER_S, call.run)


class _Call:
    """Something to be called at a later time; see `Timer`."""

    __slots__ = ("_job", "_pending", "due_ms", "timer")

    def __init__(self, due_ms: float, job: Callable[[], None], pending: dict[_Call, None]) -> None:
        self.due_ms = due_ms
        self._job = job
        self._pending = pending
        self.timer: Timer | None = None

    def run(self) -> None:
        """It is due."""
        del self._pending[self]
        self._job()

    def cancel(self) -> None:
        """See `Timer`."""
        self._pending.pop(self, None)
        self.stop_timer()

    def stop_timer(self) -> None:
        """Its time has changed, or it is not wanted any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedHost(Host):
    """A host with such a clock; see `Host`."""

    shifted: ShiftedClock

    @property
    def now_ms(self) -> Callable[[], int]:
        """See `Host`."""
        return self.shifted.now_ms


def shifted_host(host: Host, shifted: ShiftedClock) -> ShiftedHost:
    """The same host with another clock for queues."""
    kept = {each.name: getattr(host, each.name) for each in fields(Host)}
    wall_ms = host.wall_ms
    return ShiftedHost(
        **{
            **kept,
            "call_later": shifted.call_later,
            "wall_ms": lambda: wall_ms() + shifted.ahead_ms,
        },
        shifted=shifted,
    )
