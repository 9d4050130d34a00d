"""Deliveries that are not acknowledged in time: their consumer is cancelled, or their channel ends.

Off unless a consumer, its queue or the broker sets a time. Deliveries are looked at every half of
the shortest time in force on their channel, at least once a minute.

Spec: CONS-70 … CONS-72
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.timers import Timers
    from vouchmq.server.channel.consumer import Consumer
    from vouchmq.server.channel.unacked import Unacked, UnackedBatch

MOST_MS: Final = 60_000


@mypyc_attr(allow_interpreted_subclasses=True)
class Timeouts:
    """The clock of one channel's deliveries.

    Args:
        unacked: the deliveries
        timers: of the broker
        default_ms: within which a delivery is to be settled where nobody else says, 0: any
        expired: told of a consumer, None: basic.get, that has one too old, and of its time;
            returns whether to look on
    """

    __slots__ = ("_default_ms", "_due_ms", "_expired", "_interval_ms", "_timers", "_unacked")

    def __init__(
        self,
        unacked: Unacked,
        timers: Timers,
        default_ms: int,
        expired: Callable[[Consumer | None, int], bool],
    ) -> None:
        self._unacked = unacked
        self._timers = timers
        self._default_ms = default_ms
        self._expired: Callable[[Consumer | None, int], bool] | None = expired
        self._interval_ms = MOST_MS
        self._due_ms = 0  # when the deliveries are looked at next, 0: not at all

    def watch(self, consumer: Consumer | None, queue: Queue) -> int:
        """A delivery to this consumer, or a get from this queue, is written now.

        Returns:
            when that is, 0 when no time is set for it
        """
        timeout_ms = self.effective_ms(consumer, queue)
        if not timeout_ms:
            return 0
        self._interval_ms = min(self._interval_ms, max(1, timeout_ms // 2))
        self._arm()
        return self._timers.now_ms()

    def watch_again(self, entries: list[UnackedBatch]) -> None:
        """Deliveries are outstanding again, since when they were written."""
        if any(entry.since_ms for entry in entries):
            self._arm()

    def end(self) -> None:
        """The channel ends, and is not held any longer."""
        self._expired = None

    def _arm(self) -> None:
        due_ms = self._timers.now_ms() + self._interval_ms
        if not self._due_ms or due_ms < self._due_ms:
            self._due_ms = due_ms
            self._timers.at(due_ms, self._look)

    def _look(self) -> None:
        now_ms = self._timers.now_ms()
        if not self._due_ms or now_ms < self._due_ms:
            return  # Armed for later, before a shorter time brought the look forward.
        self._due_ms = 0
        is_timed = False
        for consumer, queue, since_ms in self._unacked.times():
            timeout_ms = self.effective_ms(consumer, queue)
            is_timed |= bool(since_ms)
            if not since_ms or not timeout_ms or since_ms + timeout_ms > now_ms:
                continue
            if self._expired is None or not self._expired(consumer, timeout_ms):
                return
        if is_timed and self._expired is not None:
            self._arm()

    def effective_ms(self, consumer: Consumer | None, queue: Queue) -> int:
        """Within which a delivery is to be settled, 0: any; consumer before queue before broker."""
        if consumer is not None and consumer.timeout_ms is not None:
            return consumer.timeout_ms
        if queue.features.consumer_timeout_ms is not None:
            return queue.features.consumer_timeout_ms
        return self._default_ms
