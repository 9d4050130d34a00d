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

    def add(self, outlet: ConsumerPort, *, exclusive: bool) -> bool:
        """Enter a consumer; False when exclusiveness forbids it (CONS-05)."""
        if self.exclusive is not None:
            return False
        if exclusive and (self.count or self.single_active is not None):
            return False
        if exclusive:
            self.exclusive = outlet
        self.count += 1
        single = self.single_active
        if single is None or single.add(outlet):
            self._serve(outlet)
        elif (active := single.yields()) is not None:
            self._serve_no_more(active)
        return True

    def remove(self, outlet: ConsumerPort) -> bool:
        """Take a consumer away; False when it was not there."""
        single = self.single_active
        waits = single is not None and outlet in single.everybody()
        if not self._serve_no_more(outlet) and not waits:
            return False
        if single is not None:
            single.remove(outlet)
        self.count -= 1
        if self.exclusive is outlet:
            self.exclusive = None
        return True

    def clear(self) -> list[ConsumerPort]:
        """Take all away; gives who they were."""
        outlets = self.everybody()
        self.groups, self.count, self.exclusive = [], 0, None
        self._group_of.clear()
        return outlets

    def everybody(self) -> list[ConsumerPort]:
        """All consumers, those who are served first."""
        served = [outlet for group in self.groups for outlet in group]
        return served + (self.single_active.everybody() if self.single_active is not None else [])

    def look_for_successor(self) -> None:
        """Where one is served alone: serve the next one if the place is free."""
        successor = self.single_active.successor() if self.single_active is not None else None
        if successor is not None:
            self._serve(successor)

    def credit_available(self, outlet: ConsumerPort | None) -> None:
        """A consumer, if it is one that is served, may have room which it had not."""
        if outlet is not None and (group := self._group_of.get(outlet)) is not None:
            group.credit_available(outlet)

    def _serve(self, outlet: ConsumerPort) -> None:
        for group in self.groups:
            if group.priority == outlet.priority:
                break
        else:
            group = RoundRobin(outlet.priority)
            self.groups.append(group)
            self.groups.sort(key=lambda each: -each.priority)
        group.add(outlet)
        self._group_of[outlet] = group

    def _serve_no_more(self, outlet: ConsumerPort) -> bool:
        group = self._group_of.pop(outlet, None)
        if group is None:
            return False
        group.remove(outlet)
        if not len(group):
            self.groups.remove(group)
        return True
