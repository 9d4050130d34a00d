"""Single active consumer: of all consumers of a queue one is served, the others wait.

The successor is the one of the highest priority, the oldest among equals. In a quorum-type queue
a consumer of higher priority takes over from a lower one as soon as that has settled everything;
until then nobody is served.

Spec: CONS-30 … CONS-32
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vouchmq.server.broker.queues.ports import ConsumerPort


class SingleActive:
    """Who is active and who waits.

    Args:
        displaces: a higher priority takes over (quorum-type queues)
    """

    __slots__ = ("_displaces", "_leaving", "active", "waiting")

    def __init__(self, *, displaces: bool) -> None:
        self._displaces = displaces
        self._leaving: ConsumerPort | None = None
        self.active: ConsumerPort | None = None
        self.waiting: list[ConsumerPort] = []

    def add(self, consumer: ConsumerPort) -> bool:
        """Enter a consumer; True when it is the active one now."""
        if self.active is None and self._leaving is None:
            self.active = consumer
            return True
        self.waiting.append(consumer)
        return False

    def yields(self) -> ConsumerPort | None:
        """The active consumer, if one of higher priority waits: it is served no more (CONS-32)."""
        active = self.active
        if not self._displaces or active is None:
            return None
        if all(consumer.priority <= active.priority for consumer in self.waiting):
            return None
        self.active, self._leaving = None, active
        return active

    def remove(self, consumer: ConsumerPort) -> None:
        """A consumer is gone."""
        if consumer is self.active:
            self.active = None
        elif consumer is self._leaving:
            self._leaving = None
        elif consumer in self.waiting:
            self.waiting.remove(consumer)

    def successor(self) -> ConsumerPort | None:
        """Who becomes active now, if the place is free."""
        leaving = self._leaving
        if leaving is not None and not leaving.has_outstanding:
            # First again among its equals: it has been here longest.
            self._leaving = None
            self.waiting.insert(0, leaving)
        if self.active is not None or self._leaving is not None or not self.waiting:
            return None
        self.active = max(self.waiting, key=lambda consumer: consumer.priority)
        self.waiting.remove(self.active)
        return self.active

    def everybody(self) -> list[ConsumerPort]:
        """Those who are not being served."""
        return self.waiting + ([] if self._leaving is None else [self._leaving])
