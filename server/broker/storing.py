"""Giving messages to their queues: LSNs, the journal where it must be, the ends of the queues.

Whoever has messages for queues comes here: publishers, dead letters, delays that have ended.
Must not know channels, nor why a message goes where it goes.

Spec: CONF-06
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Protocol

from server.broker.pager import MESSAGE_OVERHEAD_OCTETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.broker.queue import Queue


class MessageLog(Protocol):
    """The journal, as far as messages come into it."""

    def take(self, count: int) -> int:
        """Reserve LSNs for messages that are not stored; returns the first."""

    def append_run(self, queue_ids: tuple[int, ...], tail: bytes, raws: list[bytes]) -> int:
        """Store a run for these queues; returns its first LSN."""


class Target:
    """Queues that messages go to, and what a deliver frame says of where they came from.

    `tail` is exchange and routing key, encoded one behind the other.
    """

    __slots__ = ("queue_ids", "queues", "tail")

    def __init__(self, tail: bytes, queues: tuple[Queue, ...] = ()) -> None:
        self.tail = tail
        self.leads_to(queues)

    def leads_to(self, queues: tuple[Queue, ...]) -> None:
        """Set the target queues, and which of them keep persistent messages on disk."""
        self.queues = queues
        self.queue_ids = tuple(queue.spec.queue_id for queue in queues if queue.stored)


class Storing:
    """Stores runs of messages.

    Args:
        journal: returns the journal, which does not exist yet while it is being opened
        now_ms: the loop's clock in whole milliseconds
    """

    __slots__ = ("_journal", "now_ms")

    def __init__(self, journal: Callable[[], MessageLog], now_ms: Callable[[], int]) -> None:
        self._journal = journal
        self.now_ms = now_ms

    def store(self, target: Target, raws: list[bytes], largest: int, *, persistent: bool) -> int:
        """Give a run its LSNs, journal it where it must be, and enqueue it.

        Returns:
            the LSN that has to be synced before the run is safe; 0 for none (CONF-06)
        """
        journal = self._journal()
        count = len(raws)
        lsn = 0
        if persistent and target.queue_ids:
            first = journal.append_run(target.queue_ids, target.tail, raws)
            lsn = first + count - 1
            seq = first * 2 + 1
        else:
            seq = journal.take(count) * 2
        queues = target.queues
        if not queues:
            return lsn
        messages = zip(
            raws,
            repeat(target.tail),
            range(seq, seq + 2 * count, 2),
            repeat(self.now_ms()),
            strict=False,
        )
        size = (count, sum(map(len, raws)) + count * MESSAGE_OVERHEAD_OCTETS, largest)
        if len(queues) == 1:
            queues[0].enqueue(messages, size, stored=lsn > 0)
        else:
            copies = list(messages)
            for queue in queues:
                queue.enqueue(copies, size, stored=lsn > 0)
        return lsn
