"""Enqueueing: LSNs for a run of messages, the journal where it must be, the ends of the queues.

Whoever has messages for queues comes here: publishers, dead letters, delays that have ended. So
there is one place where it is decided whether a message is stored, and under which number.

`Enqueuer.store` gives consecutive LSNs to a run. If the run is persistent and goes to a durable
queue, `Journal.append_run` hands them out and keeps the contents; if not, `Journal.take` only
reserves them, so that transient messages are ordered among the stored ones. Then each queue gets
the run with `Queue.enqueue`. A message's `seq` is twice its LSN, plus one when the journal has it.

What holds:

- The journal's buffer comes before the queue. What a queue has is in the block of this turn, or in
  no journal at all; the turn writes that block before any queue dispatches.
- The result is the LSN that has to be synced before the run is safe, 0 for none (CONF-06): what the
  confirm waits for.
- While `is_gathering` is set, what is stored must stand in one block and nobody is served: that is
  how a commit, and a dead letter with the end of its original, are atomic.
- Queues that may refuse a message have a publish filter. They are asked first (`admit`), message by
  message, and a target without such a queue asks nobody.

What makes a run is where it goes. A run of contents with one routing key has one target; messages
with ever other keys are gathered by their destination (`UnlikeMessages`) and stored as runs in
which each message has a tail of its own.

What it costs: per message a tuple and, if stored, a pointer in the journal's buffer; all else is
per run. Queues with priorities need a run for each level in use, and a run of transient messages
that only some of its queues store (`keeps_all`) is stored for those alone under one LSN.

It must not know channels, nor why a message goes where it goes.

Spec: CONF-06
"""

from __future__ import annotations

from itertools import groupby, repeat
from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.protocol.runs import body_size
from vouchmq.server.broker.paging.pager import MESSAGE_OVERHEAD_OCTETS
from vouchmq.server.broker.queues.api import REFUSES, TAKES, Verdict
from vouchmq.server.broker.queues.priority import priority_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vouchmq.server.broker.counters import ExchangeCounters
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Author, Queue


class MessageLog(Protocol):
    """The journal, as far as messages come into it."""

    def take(self, count: int) -> int:
        """Reserve LSNs for messages that are not stored; returns the first."""

    def append_run(self, queue_ids: tuple[int, ...], tail: bytes, raws: list[bytes]) -> int:
        """Store a run for these queues; returns its first LSN."""

    def append_unlike(
        self, queue_ids: tuple[int, ...], tails: Sequence[bytes], raws: list[bytes]
    ) -> int:
        """Store messages for these queues that have each a tail of its own."""


class Target:
    """Queues that messages go to, and what a deliver frame says of where they came from.

    `tail` is exchange and routing key, encoded one behind the other; `queue_ids` are of those
    queues that keep persistent messages on disk, `keeper_ids` of those that keep all. It never
    changes: what goes to other queues has another target.
    """

    __slots__ = ("is_gated", "is_leveled", "keeper_ids", "queue_ids", "queues", "tail")

    def __init__(self, tail: bytes, queues: tuple[Queue, ...] = ()) -> None:
        self.tail: Final = tail
        self.queues: Final = queues
        self.queue_ids: Final = tuple(queue.spec.queue_id for queue in queues if queue.stored)
        self.keeper_ids: Final = tuple(queue.spec.queue_id for queue in queues if queue.keeps_all)
        self.is_gated: Final = any(queue.publish_filter is not None for queue in queues)
        self.is_leveled: Final = any(queue.levels is not None for queue in queues)

    def ids_of(self, priority: int, *, persistent: bool = True) -> tuple[int, ...]:
        """Under which the journal keeps messages of this priority."""
        return tuple(
            queue.spec.queue_id if queue.levels is None else queue.levels.store_id_of(priority)
            for queue in self.queues
            if (queue.stored if persistent else queue.keeps_all)
        )


class Destination:
    """Queues that messages of one exchange go to without a closer look, whatever their keys are.

    What is for one destination is stored together, see `UnlikeMessages`; until then it waits in
    `raws` and `tails`.

    Args:
        target: any message's that goes there
        counters: of the exchange
    """

    __slots__ = ("counters", "is_durable", "keeps_all", "queue_ids", "queues", "raws", "tails")

    def __init__(self, target: Target, counters: ExchangeCounters) -> None:
        self.queues: Final = target.queues
        self.queue_ids: Final = target.queue_ids
        self.is_durable: Final = bool(target.queue_ids)
        self.keeps_all: Final = bool(target.keeper_ids)
        self.counters: Final = counters
        self.raws: list[bytes] = []
        self.tails: list[bytes] = []


class UnlikeMessages:
    """Messages that one channel publishes with ever other routing keys, on their way to be stored.

    Those with the same destination are stored together and get LSNs in a row. So they overtake
    messages for other destinations, which nobody can tell: no two of the destinations share a
    queue, and one confirm speaks for all, when the highest of their LSNs is safe.

    `is_stored`: whether the journal keeps those that wait.
    """

    __slots__ = ("_destinations", "_enqueuer", "_queues", "is_stored")

    def __init__(self, enqueuer: Enqueuer) -> None:
        self._enqueuer = enqueuer
        self._destinations: list[Destination] = []
        self._queues: set[Queue] = set()
        self.is_stored = False

    def takes(self, destination: Destination, *, is_stored: bool) -> bool:
        """Whether messages for it may wait beside the others; if not, `store` first.

        To be asked when none wait for it, or when these are stored and those were not.
        """
        if not self._destinations:
            self.is_stored = is_stored
        elif is_stored is not self.is_stored or not self._queues.isdisjoint(destination.queues):
            return False
        self._destinations.append(destination)
        self._queues.update(destination.queues)
        return True

    def store(self, largest: int) -> int:
        """Store all that wait.

        Args:
            largest: octets of the largest content

        Returns:
            the LSN that has to be synced before they are safe; 0 for none (CONF-06)
        """
        lsn = 0
        for destination in self._destinations:
            raws, tails = destination.raws, destination.tails
            destination.raws, destination.tails = [], []
            counters = destination.counters
            counters.published_in += len(raws)
            counters.published_out += len(raws) * len(destination.queues)
            stored_lsn = self._enqueuer.store_unlike(
                destination, raws, tails, largest, is_stored=self.is_stored
            )
            lsn = max(lsn, stored_lsn)
        self._destinations.clear()
        self._queues.clear()
        return lsn


class Enqueuer:
    """Stores runs of messages.

    Args:
        journal: keeps what must be kept
        now_ms: the loop's clock in whole milliseconds
    """

    __slots__ = ("_journal", "is_gathering", "now_ms")

    def __init__(self, journal: MessageLog, now_ms: Callable[[], int]) -> None:
        self._journal = journal
        self.now_ms = now_ms
        # True while what is stored must stand in one block: nobody is served meanwhile (TX-08).
        self.is_gathering = False

    def admit(self, target: Target, raw: bytes) -> tuple[Target, Verdict]:
        """Ask the publish filters of a target about one message.

        Returns:
            the target without those queues that do not take it, and what they said
        """
        open_to: list[Queue] = []
        is_refused, lsn = False, 0
        for queue in target.queues:
            word = TAKES if queue.publish_filter is None else queue.publish_filter.check(raw)
            if word == TAKES:
                open_to.append(queue)
            elif word == REFUSES:
                is_refused = True
                queue.on_publish_refused((raw, target.tail, 0, self.now_ms()))
            else:
                lsn = max(lsn, word)
                queue.on_duplicate((raw, target.tail, 0, self.now_ms()))
        if len(open_to) != len(target.queues):
            target = Target(target.tail, tuple(open_to))
        return target, Verdict(is_refused, lsn)

    def refuses_any(self, runs: Iterable[tuple[Target, list[bytes]]]) -> bool:
        """Whether some queue would refuse a message, were all of these stored (TX-09)."""
        wanted: dict[Queue, tuple[int, int]] = {}
        for target, raws in runs:
            # Not `is_gated`, which is of when it was routed: a policy may have come since.
            for queue in target.queues:
                if queue.publish_filter is not None:
                    count, octets = wanted.get(queue, (0, 0))
                    wanted[queue] = (count + len(raws), octets + sum(map(body_size, raws)))
        return bool(wanted) and any(
            queue.publish_filter is not None and not queue.publish_filter.has_room(*size)
            for queue, size in wanted.items()
        )

    def store(
        self,
        target: Target,
        raws: list[bytes],
        largest: int,
        *,
        persistent: bool,
        author: Author | None = None,
    ) -> int:
        """Give a run its LSNs, journal it where it must be, and enqueue it.

        Returns:
            the LSN that has to be synced before the run is safe; 0 for none (CONF-06)
        """
        if not target.is_leveled:
            ids = target.queue_ids
            return self._store(target, ids, raws, largest, author, persistent=persistent)
        lsn = 0
        for priority, some in self._by_priority(target, raws):
            ids = target.ids_of(priority)
            lsn = self._store(target, ids, some, largest, author, persistent=persistent) or lsn
        return lsn

    def store_unlike(
        self,
        destination: Destination,
        raws: list[bytes],
        tails: list[bytes],
        largest: int,
        *,
        is_stored: bool,
    ) -> int:
        """As `store`, of messages that have each a tail of its own, and all the same queues."""
        queues = destination.queues
        if destination.keeps_all and not is_stored:
            return max(
                self.store(Target(tail, queues), [raw], len(raw), persistent=False)
                for raw, tail in zip(raws, tails, strict=True)
            )
        count = len(raws)
        lsn = 0
        if is_stored:
            first = self._journal.append_unlike(destination.queue_ids, tails, raws)
            lsn = first + count - 1
            seq = first * 2 + 1
        else:
            seq = self._journal.take(count) * 2
        seqs = range(seq, seq + 2 * count, 2)
        messages = zip(raws, tails, seqs, repeat(self.now_ms()), strict=False)
        size = (count, sum(map(len, raws)) + count * MESSAGE_OVERHEAD_OCTETS, largest)
        enqueue_all(queues, messages, size, stored=is_stored)
        return lsn

    def _by_priority(self, target: Target, raws: list[bytes]) -> Iterable[tuple[int, list[bytes]]]:
        levels = target.queues[0].levels
        if len(target.queues) == 1 and levels is not None:
            # Nobody can tell in which order messages of different levels came.
            return levels.runs_of(raws)
        return ((priority, list(run)) for priority, run in groupby(raws, priority_of))

    def _store(
        self,
        target: Target,
        queue_ids: tuple[int, ...],
        raws: list[bytes],
        largest: int,
        author: Author | None,
        *,
        persistent: bool,
    ) -> int:
        journal = self._journal
        count = len(raws)
        lsn = 0
        if persistent and queue_ids:
            first = journal.append_run(queue_ids, target.tail, raws)
            lsn = first + count - 1
            seq = first * 2 + 1
        elif target.keeper_ids:
            return self._store_for_keepers(target, raws, largest, author)
        else:
            seq = journal.take(count) * 2
        octets = len(raws[0]) if count == 1 else sum(map(len, raws))
        if author is not None:
            author.stored(target, raws, seq >> 1, octets, persistent=persistent)
        queues = target.queues
        if not queues:
            return lsn
        now_ms = self.now_ms()
        messages: Iterable[Message]
        if count == 1:
            # Alone, as many are: five iterators cost more than the tuple.
            messages = [(raws[0], target.tail, seq, now_ms)]
        else:
            seqs = range(seq, seq + 2 * count, 2)
            messages = zip(raws, repeat(target.tail), seqs, repeat(now_ms), strict=False)
        size = (count, octets + count * MESSAGE_OVERHEAD_OCTETS, largest)
        enqueue_all(queues, messages, size, stored=lsn > 0)
        return lsn

    def _store_for_keepers(
        self, target: Target, raws: list[bytes], largest: int, author: Author | None
    ) -> int:
        """Store a run of transient messages for those queues alone that keep everything.

        The copies of the others have the same LSNs and are not stored; one that is in no journal
        does not know that another was refused (CONF-12).
        """
        queue_ids = target.keeper_ids
        if target.is_leveled:
            queue_ids = target.ids_of(priority_of(raws[0]), persistent=False)
        first = self._journal.append_run(queue_ids, target.tail, raws)
        octets = sum(map(len, raws))
        if author is not None:
            author.stored(target, raws, first, octets, persistent=False)
        count, now_ms = len(raws), self.now_ms()
        size = (count, octets + count * MESSAGE_OVERHEAD_OCTETS, largest)
        for queue in target.queues:
            seq = first * 2 + queue.keeps_all
            seqs = range(seq, seq + 2 * count, 2)
            copies = zip(raws, repeat(target.tail), seqs, repeat(now_ms), strict=False)
            queue.enqueue(copies, size, stored=queue.keeps_all)
        return first + count - 1


def enqueue_all(
    queues: tuple[Queue, ...],
    messages: Iterable[Message],
    size: tuple[int, int, int],
    *,
    stored: bool,
) -> None:
    """Append a run to each of its queues; `size` as `Queue.enqueue` has it."""
    if len(queues) == 1:
        queues[0].enqueue(messages, size, stored=stored)
        return
    copies = list(messages)
    for queue in queues:
        queue.enqueue(copies, size, stored=stored)
