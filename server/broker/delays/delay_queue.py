"""The queue behind a delaying exchange: messages in the order of their due times.

Nobody consumes from it. What the journal holds is not kept in memory beyond a budget, but for its
due time and its LSN.

Spec: DELAY-13 … DELAY-19, DELAY-21
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.contents import property_block, remembered
from vouchmq.protocol.properties import Properties
from vouchmq.server.broker.delays.delay import delay_ms, held_for
from vouchmq.server.broker.features.publish_filter import REFUSES, TAKES
from vouchmq.server.broker.message import lsn_of
from vouchmq.server.broker.queues.classic import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.paging.pager import Pager
    from vouchmq.server.broker.queues.ports import Dispatcher, SettlementLog
    from vouchmq.server.broker.queues.ready_list import RunSize
    from vouchmq.server.broker.queues.spec import QueueSpec
    from vouchmq.server.broker.timers import Timers

# Released in one turn; stored ones that are not in memory are read back so many at a time.
TURN_MESSAGES: Final = 256
# Octets of stored messages that are kept in memory all the same.
MEMORY_OCTETS: Final = 64 * 1024 * 1024
READ_MESSAGES: Final = 1024
READ_OCTETS: Final = 4 * 1024 * 1024


class DelayQueue(Queue):
    """The delayed messages of one exchange.

    Args:
        timers: ring when the next one is due
        release: publishes messages to the exchange of this name, as they leave this queue
        most: messages that it takes, 0: any number (DELAY-21)
    """

    __slots__ = (
        "_armed_ms",
        "_heap",
        "_in_memory",
        "_memory_octets",
        "_most",
        "_pages",
        "_release",
        "_timers",
    )

    def __init__(
        self,
        spec: QueueSpec,
        turn: Dispatcher,
        log: SettlementLog,
        pager: Pager,
        unused: Callable[[Queue], None],
        *,
        timers: Timers,
        release: Callable[[Queue, str, list[Message]], None],
        most: int,
    ) -> None:
        super().__init__(spec, turn, log, pager, unused)
        self._timers = timers
        self._release = release
        self._most = most
        self._pages = pager.store
        self._heap: list[tuple[int, int]] = []  # (due, seq)
        self._in_memory: dict[int, Message] = {}
        self._memory_octets = 0
        self._armed_ms = 0
        if most:
            self.publish_filter = self

    @property
    def ready_count(self) -> int:
        """Messages that wait."""
        return len(self._heap)

    def check(self, raw: bytes) -> int:
        """See `PublishFilter` (DELAY-21)."""
        del raw
        return TAKES if self.has_room(1, 0) else REFUSES

    def takes_all(self, raws: Sequence[bytes]) -> bool:
        """See `PublishFilter`."""
        return self.has_room(len(raws), 0)

    def has_room(self, count: int, octets: int) -> bool:
        """See `PublishFilter`."""
        del octets
        return len(self._heap) + count <= self._most

    def restore(self, store_id: int, spans: Sequence[Sequence[int]], delivered_lsn: int) -> None:
        """Put recovered messages in their order; what fell due meanwhile goes first (DELAY-17)."""
        del store_id, delivered_lsn
        for span in spans:
            at = 0
            while at < len(span):
                for first, _, raws, arrived_ms in self._pages.fetch_runs(
                    span[at : at + READ_MESSAGES], READ_OCTETS
                ):
                    for lsn, raw in enumerate(raws, first):
                        self._heap.append((arrived_ms + delay_of(raw), lsn * 2 + 1))
                    at += len(raws)
        heapify(self._heap)
        self.holds_stored = bool(self._heap)
        self.wake()

    def enqueue(self, messages: Iterable[Message], size: RunSize, *, stored: bool) -> None:
        """Take a run of messages that have a delay."""
        del size
        for message in messages:
            heappush(self._heap, (message[3] + delay_of(message[0]), message[2]))
            is_stored = self.stored and message[2] & 1
            if not is_stored or self._memory_octets < MEMORY_OCTETS:
                self._in_memory[message[2]] = message
                self._memory_octets += len(message[0])
        self.holds_stored |= stored and self.stored
        self._arm()

    def wake(self) -> None:
        """Ask for a dispatch in this turn."""
        if not self.is_dirty:
            self.is_dirty = True
            self._turn.wants_dispatch(self)

    def dispatch(self) -> None:
        """Let go what is due, in the order of due times (DELAY-15)."""
        self.is_dirty = False
        now_ms = self._timers.now_ms()
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < TURN_MESSAGES:
            due.append(heappop(self._heap)[1])
        if due:
            self._release(self, held_for(self.spec.name) or "", self._read(due))
            self._forget_when_empty()
        self._arm()

    def _read(self, seqs: list[int]) -> list[Message]:
        found: dict[int, Message] = {}
        missing: list[int] = []
        for seq in seqs:
            message = self._in_memory.pop(seq, None)
            if message is None:
                missing.append(lsn_of(seq))
            else:
                self._memory_octets -= len(message[0])
                found[seq] = message
        missing.sort()
        at = 0
        while at < len(missing):
            for first, tail, raws, arrived_ms in self._pages.fetch_runs(missing[at:], READ_OCTETS):
                numbers = range(first * 2 + 1, (first + len(raws)) * 2 + 1, 2)
                for message in zip(raws, repeat(tail), numbers, repeat(arrived_ms)):
                    found[message[2]] = message
                at += len(raws)
        return [found[seq] for seq in seqs]

    def forget_refused(self, first_lsn: int) -> None:
        """See `Queue`."""
        refused = {seq for _, seq in self._heap if seq & 1 and seq >= first_lsn * 2}
        if self.recorder is not None:
            self.recorder.lost(sorted(map(lsn_of, refused)), "refused")
        if refused:
            self._heap = [entry for entry in self._heap if entry[1] not in refused]
            heapify(self._heap)
            for seq in refused:
                message = self._in_memory.pop(seq, None)
                self._memory_octets -= len(message[0]) if message is not None else 0

    def held_spans(self) -> list[list[Collection[int]]]:
        """See `Queue`."""
        return [[sorted(lsn_of(seq) for _, seq in self._heap)]]

    def _forget_when_empty(self) -> None:
        self.holds_stored &= bool(self._heap)

    def purge_some(self, most: int) -> int:
        """Nothing: see `purge`."""
        del most
        return 0

    def purge(self) -> int:
        """Nobody can name it, so nobody can purge it."""
        return 0

    def deleted(self) -> None:
        """The exchange is gone, and what it held with it (DELAY-19)."""
        if self.recorder is not None:
            self.recorder.deleted(self)
        self.is_deleted = True
        self._heap.clear()
        self._in_memory.clear()
        self._memory_octets = 0

    def _arm(self) -> None:
        if not self._heap:
            return
        now_ms = self._timers.now_ms()
        due_ms = self._heap[0][0]
        if due_ms <= now_ms:
            self.wake()
        elif not now_ms < self._armed_ms <= due_ms:
            self._armed_ms = self._timers.at(due_ms, self._fire)

    def _fire(self) -> None:
        if not self.is_deleted:
            self.wake()


def delay_of(raw: bytes) -> int:
    """The delay that a stored message asks for."""
    return _delay_in(property_block(raw))


@remembered
def _delay_in(block: bytes) -> int:
    return delay_ms(Properties(block).headers)
