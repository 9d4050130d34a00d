"""Inventories: what every queue holds, ready, unacked or parked, as ranges of LSNs.

Only a list of what is really there tells a message that waits from one that is lost. What a queue
holds is noted in one moment, as references and ranges, without reading a body; where it is much it
is written over several turns, and the lines say of which moment they speak (`at`).
"""

from __future__ import annotations

from collections import deque
from heapq import merge
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vouchmq.server.broker.streams.index import HeldRows
from vouchmq.server.ledger.recorder import LINE_RANGES
from vouchmq.server.ledger.text import pairs_text, ranges_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.channel.channel import Channel
    from vouchmq.server.ledger.publish_numbers import PublishNumbers
    from vouchmq.server.ledger.writer import LedgerWriter
    from vouchmq.server.runtime.context import BrokerContext

# Queues that are noted together; those that hold more than so many ranges or messages singly are
# written in pieces.
BATCH_QUEUES: Final = 32
FEW: Final = 16384
# Ranges between two looks at the clock.
PIECE_RANGES: Final = 1024
# What one turn gives to it.
TURN_S: Final = 0.002
# No more of it waits in memory for its file.
WAITING_OCTETS: Final = 1024 * 1024


class LedgerConnection(Protocol):
    """A connection, as far as the ledger records what its channels do."""

    publish_numbers: PublishNumbers

    @property
    def channels(self) -> Mapping[int, Channel]:
        """Its open channels, by their numbers."""


class Holding(NamedTuple):
    """What one queue held before line `at`: LSNs in any order, and ascending spans."""

    queue: Queue
    at: int
    lsns: list[int]
    spans: list[list[Collection[int]]]

    @property
    def size(self) -> int:
        """About how much work it is."""
        each = (1 if isinstance(span, range) else len(span) for row in self.spans for span in row)
        return len(self.lsns) + sum(each)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """What it held, ascending, neighbours joined."""
        sources = [ranges_of(row) for row in self.spans if row]
        if self.lsns:
            sources.append(ranges_in(self.lsns))
        ordered = sources[0] if len(sources) == 1 else merge(*sources)
        before: tuple[int, int] | None = None
        for pair in ordered:
            if before is None:
                before = pair
            elif pair[0] <= before[1] + 1:
                # Not more than once what is in two places for a moment.
                before = before[0], max(before[1], pair[1])
            else:
                yield before
                before = pair
        if before is not None:
            yield before


def ranges_of(spans: Iterable[Collection[int]]) -> Iterator[tuple[int, int]]:
    """The ranges in ascending spans."""
    return chain.from_iterable(
        ((span[0], span[-1]),)
        if isinstance(span, range)
        else (span.ranges() if isinstance(span, HeldRows) else ranges_in(span))
        for span in spans
        if len(span)
    )


class InventoryJob:
    """Takes inventories, one after the other.

    Args:
        context: whose queues
        connections: all there are
        kept: dead letters of a queue that a full disk has sent back
    """

    def __init__(
        self,
        context: BrokerContext,
        connections: Collection[LedgerConnection],
        kept: Callable[[Queue], list[int]],
    ) -> None:
        self._context = context
        self._connections = connections
        self._kept = kept
        self._jobs: deque[tuple[Iterator[None], Callable[[], None]]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether none is being taken."""
        return not self._jobs

    def begin(
        self,
        writer: LedgerWriter,
        why: str,
        done: Callable[[], None],
        before: Callable[[Queue], None] | None = None,
    ) -> None:
        """Take one of all queues, in this turn and following ones; `done` is called at its end.

        `before` is called with each queue before its lines.
        """
        queues = [
            queue for vhost in self._context.broker.vhosts.values() for queue in vhost.every_queue()
        ]
        self._jobs.append((self._take(writer, queues, why, before), done))
        self._context.turn.later(self.step)

    def begin_at_once(self, writer: LedgerWriter, why: str, done: Callable[[], None]) -> None:
        """The same, of this very moment: nothing that happens from now on is in it."""
        queues = [
            queue for vhost in self._context.broker.vhosts.values() for queue in vhost.every_queue()
        ]
        holdings = self._holdings(queues, writer.number)
        self._jobs.append((self._write_all(writer, holdings, why), done))
        self._context.turn.later(self.step)

    def step(self) -> None:
        """Go on for a while."""
        clock = self._context.clock
        end = clock() + TURN_S
        while self._jobs and clock() < end:
            job, done = self._jobs[0]
            if next(job, self) is self:
                self._jobs.popleft()
                done()
        if self._jobs:
            self._context.turn.later(self.step)

    def finish(self) -> None:
        """Take all that was begun to its end, now."""
        while self._jobs:
            job, done = self._jobs.popleft()
            for _ in job:
                pass
            done()

    def drop(self) -> None:
        """The ledger is switched off: nothing more is written."""
        self._jobs.clear()

    def ready(self, queue: Queue, at: int) -> Holding:
        """What is ready in one queue now."""
        return Holding(queue, at, [], queue.held_spans())

    def holding(self, queue: Queue, at: int) -> Holding:
        """What one queue holds now."""
        return self._holdings([queue], at)[0]

    def _take(
        self,
        writer: LedgerWriter,
        queues: list[Queue],
        why: str,
        before: Callable[[Queue], None] | None,
    ) -> Iterator[None]:
        for first in range(0, len(queues), BATCH_QUEUES):
            some = [queue for queue in queues[first : first + BATCH_QUEUES] if queue.recorder]
            some = [queue for queue in some if not queue.is_deleted]
            for queue in some if before is not None else ():
                before(queue)  # type: ignore[misc]
            yield from self._write_all(writer, self._holdings(some, writer.number), why)
            yield None

    def _write_all(self, writer: LedgerWriter, holdings: list[Holding], why: str) -> Iterator[None]:
        for count, holding in enumerate(holdings, 1):
            yield from self._write(writer, holding, why)
            if count % BATCH_QUEUES == 0:
                yield None

    def _write(self, writer: LedgerWriter, holding: Holding, why: str) -> Iterator[None]:
        is_large = holding.size > FEW
        count = 0
        for count, _ in enumerate(holding.ranges(), 1):
            if is_large and count % PIECE_RANGES == 0:
                yield None
        parts = max(1, -(-count // LINE_RANGES))
        ranges = holding.ranges()
        qid = holding.queue.recorder.qid if holding.queue.recorder is not None else 0
        for part in range(1, parts + 1):
            pairs = list(islice(ranges, LINE_RANGES))
            writer.put(
                f'inv","qid":{qid},"i":{pairs_text(pairs)},"full":1,"w":"{why}","part":{part},'
                f'"parts":{parts},"at":{holding.at}'
            )
            if is_large:
                yield None
            if writer.octets > WAITING_OCTETS:
                writer.flush()

    def _holdings(self, queues: list[Queue], at: int) -> list[Holding]:
        found = [Holding(queue, at, queue.held_lsns(), queue.held_spans()) for queue in queues]
        outstanding = {
            holding.queue: holding.lsns
            for holding in found
            if holding.queue.unacked_count and holding.queue.consuming_removes
        }
        for connection in self._connections if outstanding else ():
            for channel in connection.channels.values():
                for entry in channel.outstanding():
                    lsns = outstanding.get(entry.queue)
                    if lsns is not None:
                        lsns += [message[2] >> 1 for message in entry.messages]
        for holding in found:
            holding.lsns.extend(self._kept(holding.queue))
            holding.lsns.sort()
        return found
