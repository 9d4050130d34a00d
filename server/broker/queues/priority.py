"""A queue with priorities: one line for each level that is in use.

Every level has a store id of its own, next to that of the queue, so that after a restart messages
are in their level without being read. Selection is strict: the highest level first (PRIO-08).

In a quorum-type queue what comes back stands before all levels, in the order of its return; it
finds its level again after a restart only.

Spec: PRIO-01 … PRIO-08
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.contents import HAS_PRIORITY, property_block, remembered
from vouchmq.protocol.properties import Properties
from vouchmq.protocol.runs import PROPERTIES_AT
from vouchmq.server.broker.queues.ready_list import ALWAYS, ReadyList

if TYPE_CHECKING:
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.paging.pager import Pager
    from vouchmq.server.broker.queues.ready_list import Owner

# What a message without the property counts as, where the queue does not say.
ABSENT: Final = -1


@remembered
def priority_in(block: bytes) -> int:
    """The same of a property block."""
    priority = Properties(block).priority
    return ABSENT if priority is None else priority


def priority_of(raw: bytes) -> int:
    """The priority property of a content, ABSENT when it has none."""
    if not raw[HAS_PRIORITY[0]] & HAS_PRIORITY[1]:
        return ABSENT
    return priority_in(property_block(raw))


class PriorityLevels:
    """The lines of one queue, highest level first.

    Args:
        owner: the queue
        pager: keeps the memory of all lines within bounds
        store_id: of level 0; those of the others follow it; 0: the queue is not stored
        highest: the highest level (PRIO-02)
        default: the level of messages that name none
        returns_first: what comes back stands before all levels (PRIO-07)
    """

    __slots__ = ("_by_level", "_default", "_highest", "_owner", "_pager", "_returned", "_store_id")

    def __init__(
        self,
        owner: Owner,
        pager: Pager,
        store_id: int,
        *,
        highest: int,
        default: int = 0,
        returns_first: bool = False,
    ) -> None:
        self._owner = owner
        self._pager = pager
        self._store_id = store_id
        self._highest = highest
        self._default = default
        self._by_level: dict[int, ReadyList] = {}
        self._returned: ReadyList | None = None
        if returns_first:
            self._returned = ReadyList(owner, pager, 0)
            self._returned.mark = ALWAYS

    def level_of(self, priority: int) -> int:
        """Clamped to the levels there are (PRIO-02)."""
        return self._default if priority == ABSENT else min(priority, self._highest)

    def runs_of(self, raws: list[bytes]) -> list[tuple[int, list[bytes]]]:
        """Contents by their level, each level with a priority that leads to it."""
        by_level: dict[int, tuple[int, list[bytes]]] = {}
        block: bytes | None = None
        some: list[bytes] = []
        for raw in raws:
            if block is None or not raw.startswith(block, PROPERTIES_AT):
                block = property_block(raw)
                priority = priority_in(block)
                some = by_level.setdefault(self.level_of(priority), (priority, []))[1]
            some.append(raw)
        return list(by_level.values())

    def store_id_of(self, priority: int) -> int:
        """Under which the journal keeps copies of this priority."""
        return self._store_id + self.level_of(priority) if self._store_id else 0

    def ready_of(self, raw: bytes) -> ReadyList:
        """The line of a content."""
        return self._line(self.level_of(priority_of(raw)))

    def ready_with(self, store_id: int) -> ReadyList:
        """The line that the journal keeps under this id."""
        return self._line(store_id - self._store_id)

    def ready_lists(self) -> list[ReadyList]:
        """All lines, in the order of delivery."""
        levels = sorted(self._by_level.items(), reverse=True)
        first = [] if self._returned is None else [self._returned]
        return first + [line for _, line in levels]

    def return_delivered(self, messages: list[Message]) -> None:
        """Messages return to their places (PRIO-04)."""
        if self._returned is not None:
            self._returned.append_paged(messages)
            return
        for line, some in self.sorted_out(messages):
            line.return_delivered(some)

    def return_taken(self, messages: list[Message]) -> None:
        """Messages that nobody was handed return, from the head of any lines, in their order.

        What had come back before stands before all levels again; so does what a restart has found
        handed out.
        """
        if self._returned is None:
            self.return_delivered(messages)
            return
        new: set[int] = set()
        for line, some in self.sorted_out(messages):
            ahead = [message for message in some if message[2] > line.mark]
            if ahead:
                line.return_delivered(ahead)
                new.update(message[2] for message in ahead)
        self._returned.prepend_paged([message for message in messages if message[2] not in new])

    def sorted_out(self, messages: list[Message]) -> list[tuple[ReadyList, list[Message]]]:
        """Messages by the lines they belong to."""
        by_level: dict[int, list[Message]] = defaultdict(list)
        block: bytes | None = None
        some: list[Message] = []
        for message in messages:
            raw = message[0]
            if block is None or not raw.startswith(block, PROPERTIES_AT):
                block = property_block(raw)
                some = by_level[self.level_of(priority_in(block))]
            some.append(message)
        return [(self._line(level), some) for level, some in by_level.items()]

    def _line(self, level: int) -> ReadyList:
        line = self._by_level.get(level)
        if line is None:
            store_id = self._store_id + level if self._store_id else 0
            line = self._by_level[level] = ReadyList(self._owner, self._pager, store_id)
            line.ready_bytes = self._owner.ready_bytes
            self._owner.lines = self.ready_lists()
        return line
