"""Delayed messages: what the x-delay header asks for, and where they are held until they are due.

A delaying exchange has a queue of its own, which is in `VHost.delay_queues` and not among those
that have names. A message with a delay is routed there instead of through the exchange's bindings,
so everything that holds for messages in queues holds for delayed ones: stored with the confirm they
wait for, refused by a full disk, restored. When its time has come a message leaves it as if it were
published to the exchange just then.

The queue has its messages in the order of their due times; nobody consumes from it. What the
journal holds is not kept in memory beyond a budget, but for its due time and its LSN.

Spec: DELAY-10 … DELAY-21
"""

from __future__ import annotations

import math
import re
from heapq import heapify, heappop, heappush
from itertools import islice, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from mypy_extensions import mypyc_attr

from vouchmq.protocol.constants import BASIC_PUBLISH, PERSISTENT_DELIVERY_MODE
from vouchmq.protocol.contents import (
    BLIND_COPY,
    made_alike,
    notes_of,
    property_block,
    remembered,
    with_properties,
)
from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import Table, as_integer, as_text, decode_shortstr, long_int, render
from vouchmq.protocol.properties import Properties, with_headers
from vouchmq.protocol.text import decode_text
from vouchmq.server.broker.counters import QueueCounters
from vouchmq.server.broker.features.effective import PLAIN
from vouchmq.server.broker.features.options import TEN_YEARS_MS
from vouchmq.server.broker.message import lsn_of, lsns_of
from vouchmq.server.broker.queues.api import REFUSES, TAKES, Peeked, Queue
from vouchmq.server.broker.queues.room import RoomWaiters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from vouchmq.protocol.fields import Field
    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.paging.pager import Pager
    from vouchmq.server.broker.queues.api import (
        Dispatcher,
        PublishFilter,
        QueueRecorder,
        SettlementLog,
    )
    from vouchmq.server.broker.queues.priority import PriorityLevels
    from vouchmq.server.broker.queues.ready_list import RunSize
    from vouchmq.server.broker.queues.spec import QueueSpec
    from vouchmq.server.broker.timers import Timers

X_DELAYED_MESSAGE: Final = "x-delayed-message"
X_DELAYED_TYPE: Final = "x-delayed-type"
X_DELAYED_EXCHANGE: Final = "x-delayed-exchange"
X_DELAY: Final = "x-delay"
# The journal has them among the queues. Line feeds are stripped from the names that clients give,
# so no queue of theirs is called that.
DELAY_QUEUE_PREFIX: Final = "\ndelayed\n"
_NUMBER: Final = re.compile(r"([+-]?)0*([0-9]+)(\.[0-9]*)?")
# Texts with more digits than this are too large anyway, and slow to read.
_MOST_DIGITS: Final = 40
# Released in one turn; stored ones that are not in memory are read back so many at a time.
TURN_MESSAGES: Final = 256
# Octets of stored messages that are kept in memory all the same.
MEMORY_OCTETS: Final = 64 * 1024 * 1024
READ_MESSAGES: Final = 1024
# So many of those that are due soonest can be looked at.
PEEKED_MOST: Final = 2048
READ_OCTETS: Final = 4 * 1024 * 1024


def delay_queue_name(exchange: str) -> str:
    """What the journal calls the queue that holds an exchange's delayed messages."""
    return DELAY_QUEUE_PREFIX + exchange


def delaying_exchange(name: str) -> str | None:
    """The exchange whose delayed messages the journal keeps under this name; None: a queue's."""
    return name.removeprefix(DELAY_QUEUE_PREFIX) if name.startswith(DELAY_QUEUE_PREFIX) else None


def delay_ms(headers: Table | None) -> int:
    """How long a message with these headers is held, 0: not at all (DELAY-12)."""
    value = _number(headers.get(X_DELAY)) if headers else 0
    return value if 0 < value <= TEN_YEARS_MS else 0


def check_delay(headers: Table | None) -> None:
    """Refuse a delay of more than ten years.

    Raises:
        PreconditionFailed: 406

    Spec: DELAY-12
    """
    field = headers.get(X_DELAY) if headers else None
    value = _number(field)
    if field is not None and value > TEN_YEARS_MS:
        shown = as_text(field) or render(field)
        raise PreconditionFailed(
            f"invalid x-delay '{shown}': {{value_too_large,{value}}}", ids=BASIC_PUBLISH
        )


def _number(field: Field | None) -> int:
    """Integers of any width, texts that are numbers, floats without their fraction."""
    if field is None:
        return 0
    number = as_integer(field)
    if number is not None:
        return number
    if isinstance(field.value, float):
        return int(field.value) if math.isfinite(field.value) else 0
    match = _NUMBER.fullmatch(as_text(field) or "")
    return int(match[1] + match[2][:_MOST_DIGITS]) if match is not None else 0


class Undelayed(NamedTuple):
    """Its content with the delay negated, the keys and headers it is routed by."""

    raw: bytes
    keys: tuple[str, ...]
    headers: Table
    persistent: bool


def all_undelayed(same: list[Message]) -> tuple[Undelayed, list[bytes]]:
    """The first of messages that are the same (`runs_of_same`) as it leaves, and all of them."""
    due = undelayed(same[0])
    raws = [due.raw]
    if len(same) > 1:
        raws += made_alike(same[0][0], due.raw, (message[0] for message in same[1:]))
    return due, raws


def undelayed(message: Message) -> Undelayed:
    """Make of a held message the one that leaves."""
    raw, tail, _, _ = message
    block = property_block(raw)
    properties = Properties(block)
    headers = properties.headers or {}
    done = long_int(-delay_ms(headers))
    _, at = decode_shortstr(tail, 0)
    routing_key, _ = decode_shortstr(tail, at)
    copies = headers.get("CC")
    items = copies.value if copies is not None and isinstance(copies.value, tuple) else ()
    texts = (as_text(item) for item in items if not isinstance(item, int))
    blind = tuple(decode_text(octets) for kind, octets in notes_of(raw) if kind == BLIND_COPY)
    return Undelayed(
        with_properties(raw, with_headers(block, {X_DELAY: done}, without=frozenset())),
        (routing_key, *(text for text in texts if text is not None), *blind),
        {**headers, X_DELAY: done},
        properties.delivery_mode == PERSISTENT_DELIVERY_MODE,
    )


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayQueue(Queue):
    """The delayed messages of one exchange.

    Args:
        timers: ring when the next one is due
        release: publishes messages to the exchange of this name, as they leave this queue
        most: messages that it takes, 0: any number (DELAY-21)
    """

    __slots__ = (
        *("_armed_ms", "_heap", "_in_memory", "_log", "_memory_octets", "_pages", "_release"),
        *(
            "_timers",
            "_turn",
            "_waiters",
            "counters",
            "exchange",
            "features",
            "holds_stored",
            "is_deleted",
        ),
        *(
            "is_dirty",
            "is_paused",
            "keeps_all",
            "largest_octets",
            "levels",
            "most",
            "publish_filter",
            "recorder",
            "spec",
        ),
        *("stored", "unacked_count", "unstored_id"),
    )

    def __init__(
        self,
        spec: QueueSpec,
        turn: Dispatcher,
        log: SettlementLog,
        pager: Pager,
        *,
        timers: Timers,
        release: Callable[[Queue, str, list[Message]], None],
        most: int,
    ) -> None:
        self.spec = spec
        self.exchange = spec.name.removeprefix(DELAY_QUEUE_PREFIX)
        self.stored = spec.stored
        self.keeps_all = False
        self.features = PLAIN
        self.levels: PriorityLevels | None = None
        self.publish_filter: PublishFilter | None = self if most else None
        self.recorder: QueueRecorder | None = None
        self.counters = QueueCounters()
        self.unacked_count = self.unstored_id = self.largest_octets = 0
        self.is_deleted = self.is_dirty = self.is_paused = False
        self.most = most
        self._turn = turn
        self._log = log
        self.holds_stored = False
        self._timers = timers
        self._release = release
        self._pages = pager.store
        self._heap: list[tuple[int, int]] = []  # (due, seq)
        self._in_memory: dict[int, Message] = {}
        self._memory_octets = 0
        self._armed_ms = 0
        self._waiters = RoomWaiters()

    @property
    def ready_count(self) -> int:
        """The number of messages that wait for their time."""
        return len(self._heap)

    @property
    def consumer_count(self) -> int:
        """See `QueueLike`; nobody can name it."""
        return 0

    @property
    def is_ordered(self) -> bool:
        """See `Queue`; who is due first leaves first."""
        return False

    @property
    def store_ids(self) -> list[int]:
        return [self.spec.queue_id] if self.stored else []

    def pause(self, *, is_paused: bool) -> None:
        """See `QueueLike`; nobody can name it."""
        del is_paused

    def used(self) -> None:
        """See `QueueLike`; it ends with its exchange."""

    def apply_options(self, features: Features) -> None:
        """See `Queue`; it has none."""
        self.features = features

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
        return len(self._heap) + count <= self.most

    def call_when_room(self, call: Callable[[], None]) -> None:
        """See `PublishFilter`."""
        self._waiters.add(call)

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

    def peek(self, at: int, count: int) -> Peeked | None:
        """See `Queue`; in the order in which they are due, the first `PEEKED_MOST` of them."""
        entries = list(islice(self._in_order(), at, min(at + count, PEEKED_MOST)))
        seqs = [seq for _, seq in entries]
        missing = sorted(lsn_of(seq) for seq in seqs if seq not in self._in_memory)
        found = self._fetched(missing)
        messages = [self._in_memory.get(seq) or found[seq] for seq in seqs]
        return Peeked(at, messages, due_ms=tuple(due_ms for due_ms, _ in entries))

    def _in_order(self) -> Iterator[tuple[int, int]]:
        """What waits, soonest due first, without sorting all of it."""
        heap = self._heap
        next_ones = [(heap[0], 0)] if heap else []
        while next_ones:
            entry, place = heappop(next_ones)
            yield entry
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heappush(next_ones, (heap[child], child))

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
            self._release(self, self.exchange, self._read(due))
            self._forget_when_empty()
        self._arm()
        if self._waiters and self.has_room(1, 0):
            self._waiters.call_next()

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
        found |= self._fetched(missing)
        return [found[seq] for seq in seqs]

    def _fetched(self, lsns: list[int]) -> dict[int, Message]:
        """Messages that only the journal has, by their seq."""
        found: dict[int, Message] = {}
        at = 0
        while at < len(lsns):
            for first, tail, raws, arrived_ms in self._pages.fetch_runs(lsns[at:], READ_OCTETS):
                numbers = range(first * 2 + 1, (first + len(raws)) * 2 + 1, 2)
                for message in zip(raws, repeat(tail), numbers, repeat(arrived_ms)):
                    found[message[2]] = message
                at += len(raws)
        return found

    def forget_refused(self, first_lsn: int) -> None:
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
        return [[sorted(lsn_of(seq) for _, seq in self._heap)]]

    # What has left it

    def log_settled(self, messages: list[Message]) -> None:
        for store_id, lsns in self.stored_copies(messages) if self.holds_stored else ():
            self._log.settle(store_id, lsns)

    def stored_copies(self, messages: list[Message]) -> list[tuple[int, Sequence[int]]]:
        lsns = lsns_of(messages) if self.stored else []
        return [(self.spec.queue_id, lsns)] if lsns else []

    def keeps(self, messages: list[Message]) -> None:
        self.holds_stored |= self.stored and any(message[2] & 1 for message in messages)

    def drop(self, messages: list[Message]) -> None:
        self.log_settled(messages)

    def _forget_when_empty(self) -> None:
        self.holds_stored &= bool(self._heap)

    def purge_some(self, most: int) -> int:
        """0: nobody can purge what an exchange delays."""
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
        self._waiters.call_all()

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
