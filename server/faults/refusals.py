"""Queues that refuse publishes: whoever publishes with confirms gets `basic.nack`.

A queue is asked through its publish filter, as a full one with `reject-publish` is; this one stands
in front of what the queue has, and is gone when the queue gets other options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.server.broker.queues.api import REFUSES, TAKES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.server.broker.queues.api import PublishFilter, Queue
    from vouchmq.server.broker.vhost import VHost


class RefusingFilter:
    """See `PublishFilter`.

    Args:
        filter_behind: what the queue has been asked before
        count: messages to refuse; None: all
    """

    def __init__(self, filter_behind: PublishFilter | None, count: int | None) -> None:
        self.filter_behind = filter_behind
        self.left = count

    def check(self, raw: bytes) -> int:
        """See `PublishFilter`."""
        if self.left is None:
            return REFUSES
        if self.left:
            self.left -= 1
            return REFUSES
        return TAKES if self.filter_behind is None else self.filter_behind.check(raw)

    def takes_all(self, raws: Sequence[bytes]) -> bool:
        """See `PublishFilter`."""
        behind = self.filter_behind
        return self.left == 0 and (behind is None or behind.takes_all(raws))

    def has_room(self, count: int, octets: int) -> bool:
        """See `PublishFilter`."""
        behind = self.filter_behind
        return self.left == 0 and (behind is None or behind.has_room(count, octets))

    def call_when_room(self, call: Callable[[], None]) -> None:
        """See `PublishFilter`; the end of refusals is a change of the topology."""
        if self.filter_behind is not None:
            self.filter_behind.call_when_room(call)


class Refusals:
    """The queues that refuse publishes now."""

    def __init__(self) -> None:
        self._filters: dict[Queue, tuple[VHost[Queue], RefusingFilter]] = {}

    def start(self, vhost: VHost[Queue], queue: Queue, count: int | None) -> None:
        """Have a queue refuse the next `count` publishes; None: all."""
        self.stop(queue)
        refusing = RefusingFilter(queue.publish_filter, count)
        self._filters[queue] = (vhost, refusing)
        queue.publish_filter = refusing
        # Publishers know by heart which queues they need not ask.
        vhost.generation += 1

    def stop(self, queue: Queue) -> None:
        """Have a queue take what it would take by itself."""
        vhost, refusing = self._filters.pop(queue, (None, None))
        if vhost is None or refusing is None:
            return
        if queue.publish_filter is refusing:
            queue.publish_filter = refusing.filter_behind
        vhost.generation += 1

    def stop_all(self) -> None:
        """The same for all queues."""
        for queue in list(self._filters):
            self.stop(queue)
