"""Since when deliveries are outstanding; a consumer is cancelled, or a channel ends, for old ones.

Time limits are off unless a consumer, its queue or the broker sets one. Deliveries are looked at
every half of the shortest time in force on their channel, at least once a minute (`Timeouts`).

Where none is in force no delivery costs a look at the clock:

    once a second ─▶ look: (the next delivery tag, the time) ─▶ since: the first look behind a tag

So a time is up to a second later than the delivery. One very old delivery on a busy channel would
leave very many looks: of more than `MOST_LOOKS` those go that tell an age better than to an eighth.

Spec: CONS-70 … CONS-72, HTTP-34
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.timers import Timers
    from vouchmq.server.channel.consumer import Consumer
    from vouchmq.server.channel.unacked import Unacked, UnackedBatch

MOST_MS: Final = 60_000
MOST_LOOKS: Final = 256
AGE_PART: Final = 8


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
        """Within which a delivery is to be settled, 0: any; consumer before queue before broker.

        An operator policy of the queue bounds what the consumer says.
        """
        features = queue.features
        if consumer is not None and consumer.timeout_ms is not None:
            own_ms, most_ms = consumer.timeout_ms, features.most_timeout_ms
            return most_ms if most_ms and not 0 < own_ms <= most_ms else own_ms
        if features.consumer_timeout_ms is not None:
            return features.consumer_timeout_ms
        return self._default_ms


class DeliveryTimes:
    """The looks at one channel that has deliveries outstanding."""

    __slots__ = ("_tags", "_times_ms")

    def __init__(self) -> None:
        # The tag that the next delivery would have got, ascending, and when that was.
        self._tags: list[int] = []
        self._times_ms: list[int] = []

    def look(self, next_tag: int, oldest_tag: int, now_ms: int) -> None:
        """Take down the time, if something was delivered since the last look.

        Args:
            next_tag: that of the next delivery
            oldest_tag: the lowest outstanding one; nobody asks for those before it
            now_ms: the clock of queues
        """
        tags, times_ms = self._tags, self._times_ms
        if not tags or tags[-1] != next_tag:
            tags.append(next_tag)
            times_ms.append(now_ms)
        past = bisect_right(tags, oldest_tag)
        if past:
            del tags[:past], times_ms[:past]
        if len(tags) > MOST_LOOKS:
            self._thin_out()

    def since(self, tag: int) -> int:
        """When a delivery had been made, 0: after the last look."""
        at = bisect_right(self._tags, tag)
        return self._times_ms[at] if at < len(self._times_ms) else 0

    def _thin_out(self) -> None:
        """Let go of looks without which those beside them are not too far apart for their age."""
        times_ms = self._times_ms
        kept = [len(times_ms) - 1]
        for at in range(len(times_ms) - 2, -1, -1):
            last_ms = times_ms[kept[-1]]
            gap_ms = last_ms - times_ms[max(at - 1, 0)]
            if not at or gap_ms * AGE_PART > times_ms[-1] - last_ms:
                kept.append(at)
        kept.reverse()
        self._tags = [self._tags[at] for at in kept]
        self._times_ms = [times_ms[at] for at in kept]
