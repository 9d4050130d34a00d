"""Deliveries that are not acknowledged in time: their consumer is cancelled, or their channel ends.

Off unless a consumer, its queue or the broker sets a time. Deliveries are looked at every half of
the shortest time in force on their channel, at least once a minute.

Spec: CONS-70 … CONS-72
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.server.broker.queues.settlement import Outcome

if TYPE_CHECKING:
    from vouchmq.server.broker.queues.classic import Queue
    from vouchmq.server.channel.channel import Channel
    from vouchmq.server.channel.consumer import Consumer
    from vouchmq.server.channel.unacked import UnackedBatch

MOST_MS: Final = 60_000


class Timeouts:
    """The clock of one channel's deliveries.

    It is told the channel each time, for one that held it would keep it from going.
    """

    __slots__ = ("_interval_ms", "_is_armed")

    def __init__(self) -> None:
        self._interval_ms = MOST_MS
        self._is_armed = False

    def watch(self, channel: Channel, consumer: Consumer | None, queue: Queue) -> int:
        """A delivery to this consumer, or a get from this queue, is written now.

        Returns:
            when that is, 0 when no time is set for it
        """
        timeout_ms = effective_ms(channel, consumer, queue)
        if not timeout_ms:
            return 0
        self._interval_ms = min(self._interval_ms, max(1, timeout_ms // 2))
        self._arm(channel)
        return channel.context.timers.now_ms()

    def watch_again(self, channel: Channel, entries: list[UnackedBatch]) -> None:
        """Deliveries are outstanding again, since when they were written."""
        if any(entry.since_ms for entry in entries):
            self._arm(channel)

    def _arm(self, channel: Channel) -> None:
        if not self._is_armed:
            self._is_armed = True
            timers = channel.context.timers
            timers.at(timers.now_ms() + self._interval_ms, partial(self._look, channel))

    def _look(self, channel: Channel) -> None:
        self._is_armed = False
        if channel.is_closing:
            return
        now_ms = channel.context.timers.now_ms()
        is_timed = False
        for consumer, queue, since_ms in channel.unacked.times():
            timeout_ms = effective_ms(channel, consumer, queue)
            is_timed |= bool(since_ms)
            if not since_ms or not timeout_ms or since_ms + timeout_ms > now_ms:
                continue
            if consumer is None or not channel.connection.has_capability("consumer_cancel_notify"):
                end_channel(channel, timeout_ms)
                return
            cancel(channel, consumer)
        if is_timed:
            self._arm(channel)


def effective_ms(channel: Channel, consumer: Consumer | None, queue: Queue) -> int:
    """Within which a delivery is to be settled, 0: any; consumer before queue before broker."""
    if consumer is not None and consumer.timeout_ms is not None:
        return consumer.timeout_ms
    if queue.consumer_timeout_ms is not None:
        return queue.consumer_timeout_ms
    return channel.context.limits.consumer_timeout_ms


def cancel(channel: Channel, consumer: Consumer) -> None:
    """CONS-71. The consumer goes before the requeue, or it would be given them again."""
    if consumer.is_active:
        consumer.is_active = False
        consumer.queue.remove_consumer(consumer)
        channel.consumer_cancelled(consumer)
    channel.settle(channel.unacked.take_of(consumer), Outcome.TIMED_OUT)


def end_channel(channel: Channel, timeout_ms: int) -> None:
    """CONS-72."""
    number = channel.number
    text = (
        f"delivery acknowledgement on channel {number} timed out. Timeout value used: "
        f"{timeout_ms} ms. This timeout value can be configured, see consumers doc guide to "
        "learn more"
    )
    channel.connection.fail_channel(number, PreconditionFailed(text, ids=(0, 0)))
