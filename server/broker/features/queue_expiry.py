"""The expiry of a queue: it is deleted when nobody has used it for so long.

Used means: it has a consumer, it was declared, also passively, or somebody got from it.
Publishing is no use (TTL-20).

Spec: TTL-20 … TTL-23
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.server.broker.features.hooks import Feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.queues.classic import Queue
    from vouchmq.server.broker.timers import Timers


class QueueExpiry(Feature):
    """The expiry of one queue, which begins now.

    Args:
        queue: what ends with it
        timers: tell when it may have run out
        expires_ms: how long it runs
        expire: deletes the queue
    """

    __slots__ = ("_armed_ms", "_expire", "_queue", "_timers", "_used_ms", "expires_ms")

    def __init__(
        self, queue: Queue, timers: Timers, expires_ms: int, expire: Callable[[Queue], None]
    ) -> None:
        self._queue = queue
        self._timers = timers
        self._expire = expire
        self.expires_ms = expires_ms
        self._armed_ms = 0
        self._used_ms = timers.now_ms()
        self._arm()

    def set(self, expires_ms: int) -> None:
        """Another time from now on; what has passed of it counts."""
        self.expires_ms = expires_ms
        self._arm()

    def on_used(self) -> None:
        """It begins anew."""
        self._used_ms = self._timers.now_ms()
        self._arm()

    def _arm(self) -> None:
        due_ms = self._used_ms + self.expires_ms
        now_ms = self._timers.now_ms()
        # One that rings too early looks and waits on, so that using a queue costs nothing.
        if not now_ms < self._armed_ms <= due_ms:
            self._armed_ms = self._timers.at(max(due_ms, now_ms + 1), self._fire)

    def _fire(self) -> None:
        queue = self._queue
        if queue.is_deleted or queue.hooks is None or queue.hooks.queue_expiry is not self:
            return
        if queue.has_consumers:
            self._used_ms = self._timers.now_ms()
        if self._used_ms + self.expires_ms <= self._timers.now_ms():
            self._expire(queue)
        else:
            self._arm()
