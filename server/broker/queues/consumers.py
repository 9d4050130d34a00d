"""The consumers of one queue: who is served, in which order of priority, and who waits.

Spec: CONS-05, CONS-10, CONS-20, CONS-30
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.server.broker.queues.dispatch import RoundRobin

if TYPE_CHECKING:
    from vouchmq.server.broker.queues.ports import ConsumerPort
    from vouchmq.server.broker.queues.single_active import SingleActive


class QueueConsumers:
    """Consumers by priority, highest first."""

    __slots__ = ("_group_of", "count", "exclusive", "groups", "single_active")

    def __init__(self) -> None:
        self.count = 0
        self.exclusive: ConsumerPort | None = None
        self.groups: list[RoundRobin] = []
        self._group_of: dict[ConsumerPort, RoundRobin] = {}
        self.single_active: SingleActive | None = None

    def add(self, consumer: ConsumerPort, *, exclusive: bool) -> bool:
        """Enter a consumer; False when exclusiveness forbids it (CONS-05)."""
        if self.exclusive is not None:
            return False
        if exclusive and (self.count or self.single_active is not None):
            return False
        if exclusive:
            self.exclusive = consumer
        self.count += 1
        single = self.single_active
        if single is None or single.add(consumer):
            self._serve(consumer)
        elif (active := single.yields()) is not None:
            self._serve_no_more(active)
        return True

    def remove(self, consumer: ConsumerPort) -> bool:
        """Take a consumer away; False when it was not there."""
        single = self.single_active
        waits = single is not None and consumer in single.everybody()
        if not self._serve_no_more(consumer) and not waits:
            return False
        if single is not None:
            single.remove(consumer)
        self.count -= 1
        if self.exclusive is consumer:
            self.exclusive = None
        return True

    def clear(self) -> list[ConsumerPort]:
        """Take all away; gives who they were."""
        consumers = self.everybody()
        self.groups, self.count, self.exclusive = [], 0, None
        self._group_of.clear()
        return consumers

    def everybody(self) -> list[ConsumerPort]:
        """All consumers, those who are served first."""
        served = [consumer for group in self.groups for consumer in group]
        return served + (self.single_active.everybody() if self.single_active is not None else [])

    def look_for_successor(self) -> None:
        """Where one is served alone: serve the next one if the place is free."""
        successor = self.single_active.successor() if self.single_active is not None else None
        if successor is not None:
            self._serve(successor)

    def credit_available(self, consumer: ConsumerPort | None) -> None:
        """A consumer, if it is one that is served, may have room which it had not."""
        if consumer is not None and (group := self._group_of.get(consumer)) is not None:
            group.credit_available(consumer)

    def _serve(self, consumer: ConsumerPort) -> None:
        for group in self.groups:
            if group.priority == consumer.priority:
                break
        else:
            group = RoundRobin(consumer.priority)
            self.groups.append(group)
            self.groups.sort(key=lambda each: -each.priority)
        group.add(consumer)
        self._group_of[consumer] = group

    def _serve_no_more(self, consumer: ConsumerPort) -> bool:
        group = self._group_of.pop(consumer, None)
        if group is None:
            return False
        group.remove(consumer)
        if not len(group):
            self.groups.remove(group)
        return True
