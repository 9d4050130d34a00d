"""Signs of life in both directions of one connection (CONN-60…62)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.protocol.codec import HEARTBEAT

# A timer that comes later than that was kept waiting by us.
LATE_S: Final = 0.5

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.connection.wire import Timer


class Heartbeat:
    """Sends heartbeats when nothing else was sent, and notices a silent peer.

    Args:
        clock: monotonic seconds
        call_later: runs a callable after a delay in seconds
        write: sends octets at once
        silent: called when nothing has come for twice the interval
        is_deaf: True while we do not read ourselves, so that silence means nothing (CONN-62)
    """

    __slots__ = (
        "_call_later",
        "_clock",
        "_due",
        "_interval_s",
        "_is_deaf",
        "_silent",
        "_timer",
        "_write",
        "heard_at",
        "said_at",
    )

    def __init__(
        self,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
        write: Callable[[bytes], object],
        silent: Callable[[], None],
        is_deaf: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._write = write
        self._silent = silent
        self._is_deaf = is_deaf
        self._interval_s = 0
        self._due = 0.0
        self._timer: Timer | None = None
        self.heard_at = self.said_at = clock()

    def start(self, interval_s: int) -> None:
        """Begin with the negotiated interval; 0 is none."""
        self._interval_s = interval_s
        if interval_s:
            self._wait(interval_s / 2)

    def stop(self) -> None:
        """Cancel the timers of a connection that has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        now = self._clock()
        late_s = now - self._due
        if self._is_deaf():
            self.heard_at = now
        elif late_s > LATE_S:
            # While the loop stood still, on a disk that hung, nobody was listened to: what has
            # come meanwhile is read after this.
            self.heard_at += late_s
        if now - self.heard_at >= 2 * self._interval_s:
            self._silent()
            return
        idle = now - self.said_at
        # A timer may come a little early by another clock.
        if idle >= self._interval_s / 2 - 0.005:
            self._write(HEARTBEAT)
            idle = 0.0
        self._wait(self._interval_s / 2 - idle)

    def beats_at(self, now: float) -> bool:
        """Whether a heartbeat is due, for somebody who sends it while the loop cannot."""
        return bool(self._timer) and now - self.said_at >= self._interval_s / 2

    def _wait(self, delay_s: float) -> None:
        self._due = self._clock() + delay_s
        self._timer = self._call_later(delay_s, self._beat)
