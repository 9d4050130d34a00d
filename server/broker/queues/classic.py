"""A queue: messages in order, consumers by priority, and the count of what is unacked.

Work comes in runs: a publish run is one `enqueue`, a batch for a consumer one slice, an ack a range
(decision 0001). Nothing is delivered from inside a publish: `enqueue` asks for a place in the turn,
and `dispatch` runs there once for whatever has come (CONS-10, LIMIT-23). One dispatch hands out at
most `TURN_MESSAGES`; what is left is for the next turn, so that nobody waits for one long queue.

What holds:

- A message is ready, unacked, parked by a feature, or gone. Ready messages are in the order of
  their LSNs, also after a requeue: what comes back goes to its original place.
- Redelivery is one number for each ready list, the mark: everything up to it has been handed out
  before. The journal is told of it before the client gets the frames.
- A batch is counted as unacked before any part of it is delivered, because a no-ack consumer
  settles from inside `deliver` and the queue must not look empty while the rest is on its way.
- What the disk refused is at the end of the queue and has been handed to nobody (decision 0003), so
  `forget_refused` looks there only.

A plain queue has no `hooks`: expiry, limits, dead letters and the like are behind `FeatureHooks`.

What was learnt: batches dealt to several no-ack consumers were once not settled in the journal, and
putting 20,000 messages back one by one took 13.7 s where a merge takes 0.05 s (commit 050e01b).
Thus returned messages wait in `_returned`; `take_in` merges them, a bounded part per turn.
What it costs: they are not at their place before; who looks at the queue calls `take_in` first.

It must not know channels, sockets or frames, nor where its messages are (`ready_list.py`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from mypy_extensions import mypyc_attr

from vouchmq.protocol.errors import AccessRefused
from vouchmq.protocol.runs import body_size
from vouchmq.server.broker.counters import QueueCounters
from vouchmq.server.broker.features.effective import PLAIN
from vouchmq.server.broker.features.expiry import Expiry
from vouchmq.server.broker.features.hooks import FeatureHooks, are_noted
from vouchmq.server.broker.features.options import QUORUM, levels_of
from vouchmq.server.broker.features.queue_seq import QueueSequence
from vouchmq.server.broker.message import Message, lsn_of, lsns_of
from vouchmq.server.broker.queues.api import TURN_MESSAGES, HostQueue, always
from vouchmq.server.broker.queues.consumers import QueueConsumers, SingleActive, serve_group
from vouchmq.server.broker.queues.priority import PriorityLevels
from vouchmq.server.broker.queues.ready_list import FEW_MESSAGES, ReadyBytes, ReadyList
from vouchmq.server.broker.queues.requeued import forget_refused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Sequence

    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.features.feature import FeatureContext
    from vouchmq.server.broker.paging.pager import Pager
    from vouchmq.server.broker.queues.api import (
        ConsumerPort,
        Dispatcher,
        Numbering,
        PublishFilter,
        QueueFlow,
        QueueRecorder,
        SettlementLog,
    )
    from vouchmq.server.broker.queues.ready_list import RunSize
    from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome
    from vouchmq.server.broker.queues.spec import QueueSpec
    from vouchmq.server.broker.streams.start import Start

F = TypeVar("F")

# What it takes to put messages back at their places, against `pager.TURN_READS`.
RETURN_READS: Final = 1
RETURNS_PER_READ: Final = 8


@mypyc_attr(allow_interpreted_subclasses=True)
class ClassicQueue(HostQueue):
    """One queue of a virtual host.

    Args:
        spec: name, flags and arguments as declared
        turn: asked for a dispatch whenever messages and consumers may have met
        log: told what becomes of stored copies
        pager: keeps the memory of all queues within bounds
        unused: called when the last consumer has gone (QUEUE-08)
        context: what its features need
    """

    __slots__ = (
        *("_context", "flow", "holds_stored", "is_deleted", "largest_octets", "recorder", "spec"),
        *("_log", "_returned", "lines", "publish_filter", "ready", "ready_bytes", "unacked_count"),
        *("_pager", "_turn", "came_count", "counters", "features", "is_dirty", "levels", "stored"),
        *("_unused", "hooks", "keeps_all", "returned_count", "subscribers", "unstored_id"),
        "is_paused",
    )

    def __init__(
        self,
        spec: QueueSpec,
        turn: Dispatcher,
        log: SettlementLog,
        pager: Pager,
        unused: Callable[[ClassicQueue], None],
        context: FeatureContext,
    ) -> None:
        self.spec = spec
        self.stored = spec.stored
        self.keeps_all = False  # transient messages are stored, too
        self.ready = ReadyList(self, pager, spec.queue_id)
        self.lines: list[ReadyList] = [self.ready]
        self.levels: PriorityLevels | None = None
        self.ready_bytes: ReadyBytes | None = None
        self.hooks: FeatureHooks | None = None
        self.features = PLAIN
        self.publish_filter: PublishFilter | None = None
        self.recorder: QueueRecorder | None = None  # while the ledger is on
        self.unstored_id = 0  # its number where it needs one and the journal gives none
        self.unacked_count = 0
        self.came_count = 0  # messages that ever came (SEQ-01)
        self.counters = QueueCounters()
        self.subscribers = QueueConsumers()
        self.flow: QueueFlow | None = None  # while it has enough (LIMIT-29)
        self.largest_octets = 0
        self.holds_stored = False
        self.is_deleted = self.is_dirty = self.is_paused = False
        self._turn = turn
        self._log = log
        self._unused = unused
        self._pager = pager
        self._context = context
        # What came back and is not yet at its place, and how many messages that are.
        self._returned: deque[tuple[list[Message], Outcome]] = deque()
        self.returned_count = 0

    # Features

    def apply_options(self, features: Features) -> None:
        self.features = features
        if features.is_plain and self.hooks is None:
            return
        self.keeps_all = features.type == QUORUM
        highest, default = levels_of(self.spec.arguments)
        if highest and self.levels is None:
            self._level(highest, default)
        if features.is_set("single-active-consumer") and self.subscribers.single_active is None:
            self.subscribers.single_active = SingleActive(displaces=features.type == QUORUM)
        self._hooked().configure(features)
        self._drop_idle_hooks()
        self.wake()

    def _hooked(self) -> FeatureHooks:
        """Its hooks, new ones if it has been a plain queue."""
        if self.hooks is None:
            self.hooks = FeatureHooks(self, self._context)
        return self.hooks

    def _drop_idle_hooks(self) -> None:
        """A queue that has lost its last feature is a plain one again, and pays for nothing."""
        if self.features.is_plain and self.hooks is not None and self.hooks.drop_idle():
            self.hooks = None

    def _level(self, highest: int, default: int) -> None:
        """Only a new queue: its one line becomes one of many, in which nothing is."""
        self.levels = PriorityLevels(
            self,
            self._pager,
            self.spec.queue_id if self.stored else 0,
            highest=highest,
            default=default,
            returns_first=self.features.type == QUORUM,
        )
        self.lines = self.levels.ready_lists()

    def count_octets(self) -> None:
        if self.ready_bytes is None:
            self.ready_bytes = ReadyBytes()
            for line in self.lines:
                line.measure(self.ready_bytes)

    def feature(self, kind: type[F]) -> F | None:
        return None if self.hooks is None else self.hooks.find(kind)

    def expect_expirations(self) -> None:
        self._hooked().start(Expiry).expect_own()

    def numbering(self) -> Numbering:
        return self._hooked().start(QueueSequence)

    def on_publish_refused(self, message: Message) -> None:
        if self.hooks is not None:
            self.hooks.on_publish_refused(message)

    def on_duplicate(self, message: Message) -> None:
        if self.hooks is not None:
            self.hooks.on_duplicate(message)

    def run_features(self) -> None:
        if self.hooks is not None:
            self.hooks.run_outside_dispatch()

    @property
    def is_ordered(self) -> bool:
        return self.levels is None

    @property
    def ready_count(self) -> int:
        """Messages waiting, not counting unacked ones (QUEUE-01)."""
        if self.levels is None:
            return self.ready.count + self.returned_count
        return sum(line.count for line in self.lines) + self.returned_count

    def restore(self, store_id: int, spans: Sequence[Sequence[int]], delivered_lsn: int) -> None:
        """Put recovered copies in place by their LSNs; the mark tells who was delivered."""
        line = self.ready if self.levels is None else self.levels.ready_with(store_id)
        line.restore(spans, delivered_lsn)
        self.came_count += sum(map(len, spans))
        self.holds_stored |= bool(spans)

    def restore_notes(self, notes: dict[bytes, bytes]) -> None:
        if self.hooks is None and not are_noted(notes):
            return
        hooks = self._hooked()
        hooks.start_noted(notes)
        hooks.restore(notes)
        self._drop_idle_hooks()
        self.wake()

    def recall(self, key: bytes) -> bytes | None:
        return None if self.hooks is None else self.hooks.recall(key)

    def extract(self, lsns: Container[int]) -> list[Message]:
        """Take restored messages out that are not to be ready."""
        return [message for line in self.lines for message in line.extract(lsns)]

    def delivered_before(self) -> list[int]:
        """LSNs of restored messages that had been handed out before the restart."""
        return [lsn for line in self.lines for lsn in line.delivered_before()]

    def enqueue(self, messages: Iterable[Message], size: RunSize, *, stored: bool) -> None:
        """Append a run of messages; `stored`: the journal holds them."""
        hooks = self.hooks
        if hooks is not None:
            messages = hooks.on_enqueue(messages)
            line = self.ready if self.levels is None else self.levels.ready_of(messages[0][0])
            line.append(messages, size)
        else:
            self.ready.append(messages, size)
        self.came_count += size[0]
        self.counters.published += size[0]
        if self.flow is not None:
            self.flow.came(size[0])
        if size[2] > self.largest_octets:
            self.largest_octets = size[2]
        if stored and self.stored:
            self.holds_stored = True
        if not self.is_dirty and (self.subscribers.groups or hooks is not None):
            self._ask_for_dispatch()  # `wake` would count what is ready

    def wake(self) -> None:
        """Ask for a dispatch in this turn."""
        if not self.is_dirty and (
            self.hooks is not None or (self.subscribers.groups and self.ready_count)
        ):
            self._ask_for_dispatch()

    def _ask_for_dispatch(self) -> None:
        if not self.is_dirty:
            self.is_dirty = True
            self._turn.wants_dispatch(self)

    def credit_available(self, consumer: ConsumerPort | None) -> None:
        """A consumer may have room which it had not, or something else has changed: see `wake`."""
        self.subscribers.credit_available(consumer)
        self.wake()

    @property
    def may_come_back(self) -> bool:
        """See `Owner`."""
        return self.unacked_count > 0 or (self.hooks is not None and self.hooks.has_held)

    @property
    def held_count(self) -> int:
        """Messages that count toward a length limit: ready ones, and those parked."""
        hooks = self.hooks
        return self.ready_count + (hooks.held_count if hooks is not None else 0)

    @property
    def held_octets(self) -> int:
        """Octets of their bodies; only a queue with such a limit counts them."""
        return self.ready_bytes.octets if self.ready_bytes is not None else 0

    @property
    def consumer_count(self) -> int:
        """All consumers, served or waiting (QUEUE-01)."""
        return self.subscribers.count

    def used(self) -> None:
        """It was declared, or somebody looks at what is in it (TTL-20)."""
        if self.hooks is not None:
            self.take_in(at_once=True)
            self.hooks.on_used()

    # Handing out

    def dispatch(self) -> None:
        """Hand ready messages to consumers: highest priority first, round robin within it.

        Spec: CONS-10, CONS-20
        """
        self.is_dirty = False
        if self.returned_count and not self.take_in():
            self._ask_for_dispatch()
            return
        hooks = self.hooks
        if hooks is not None and not hooks.before_dispatch():
            hooks.dispatch_later()
            return
        if self.subscribers.single_active is not None:
            self.subscribers.look_for_successor()
        left = TURN_MESSAGES
        for group in self.subscribers.groups:
            if left <= 0 or self.next_ready() is None:
                break
            one = group.oldest if len(group) == 1 else None
            left -= self._serve_one(one, left) if one else serve_group(self, group, left)
        if hooks is not None:
            hooks.after_dispatch()
            self._forget_when_empty()
        if left <= 0:
            self.wake()
        if self.flow is not None:
            self.flow = self.flow.served()
        elif self.unacked_count and self.ready_count > self._turn.flow.least:
            self.flow = self._turn.flow.watch(self)

    def mark_ahead(self) -> None:
        line = self.ready
        # The ledger, of which a recorder is, hears of a delivery before the journal does.
        is_plain = self.hooks is None and self.levels is None and self.recorder is None
        is_stored = self.holds_stored and line.store_id
        if is_plain and is_stored and not self.returned_count:
            self._log.delivered(line.store_id, self.subscribers.certain_lsn(line.ready))

    def next_ready(self, *, at_once: bool = False) -> ReadyList | None:
        """The line whose head is next, None when nothing is ready or can be read now."""
        if at_once and self.returned_count:
            self.take_in(at_once=True)
        line = self.ready
        if self.levels is None:
            return line if line.ready or line.refill(at_once=at_once) else None
        for line in self.lines:
            if line.ready or line.refill(at_once=at_once):
                return line
        return None

    def _serve_one(self, consumer: ConsumerPort, limit: int) -> int:
        served = 0
        while served < limit and (line := self.next_ready()) is not None:
            room = min(consumer.capacity(line.ready[0][0]), limit - served, line.batch_limit)
            if room <= 0:
                break
            room = min(room, len(line.ready))
            served += room
            self.deliver(consumer, line, self.take(line, room))
        return served

    def take(self, line: ReadyList, count: int) -> list[Message]:
        """Take from the head of a line what may be handed out, at most so many."""
        # Counted as a whole, before any part of it can be settled by a no-ack consumer: the queue
        # must not look empty while the rest of a batch is still on its way.
        batch = line.take(count)
        if self.hooks is not None:
            batch = self.hooks.on_take(batch)
        self.unacked_count += len(batch)
        self.counters.delivered += len(batch)
        return batch

    def deliver(
        self, consumer: ConsumerPort, line: ReadyList, batch: list[Message], mark: int = -1
    ) -> bool:
        """See `HostQueue`."""
        if not batch:
            return False
        if mark < 0:
            mark = line.mark
            self.on_delivered(line, batch[-1][2], no_ack=consumer.no_ack)
        hooks = self.hooks
        consumer.deliver(batch, mark, None if hooks is None else hooks.as_delivered(batch))
        return True

    def on_delivered(self, line: ReadyList, last_seq: int, *, no_ack: bool) -> None:
        if last_seq > line.mark:
            line.mark = last_seq
        # Not only when the mark grows: a no-ack consumer may have moved it, and its are not logged.
        if not no_ack and self.holds_stored and line.store_id:
            self._log.delivered(line.store_id, lsn_of(last_seq))

    def get(
        self, *, no_ack: bool, may_leave: Callable[[int], bool] = always
    ) -> tuple[Message, Message, bool] | None:
        self.used()
        while (line := self.next_ready(at_once=True)) is not None:
            lsn = line.head_lsn
            if not may_leave(lsn):
                break
            line = self.next_ready(at_once=True)
            if line is None or line.head_lsn != lsn:
                continue  # the disk has refused it
            batch = self.take(line, 1)
            if batch:
                message = batch[0]
                redelivered = message[2] <= line.mark
                self.on_delivered(line, message[2], no_ack=no_ack)
                hooks = self.hooks
                if hooks is not None:
                    # Another message is the head: it may have expired (TTL-03).
                    hooks.run_outside_dispatch()
                    self.wake()
                shown = None if hooks is None else hooks.as_delivered(batch)
                return message, shown[0] if shown else message, redelivered
        return None

    def can_take_now(self, message: Message) -> bool:
        """PUB-30: nothing is ready and a consumer has room for it at this moment."""
        limits = self.publish_filter
        if limits is not None and not limits.has_room(1, body_size(message[0])):
            return False
        return not self.ready_count and self._is_wanted(message[0])

    @property
    def owes(self) -> bool:
        """True when a consumer is to have what came in this turn, and has not got it yet."""
        return self.is_dirty and self.is_head_wanted

    @property
    def is_head_wanted(self) -> bool:
        """True when a consumer has room for the head: it is served in this turn (TTL-06)."""
        line = self.next_ready() if self.has_consumers else None
        return line is not None and self._is_wanted(line.ready[0][0])

    def _is_wanted(self, head: bytes) -> bool:
        return any(group.first_able(head) is not None for group in self.subscribers.groups)

    # What becomes of deliveries

    def settle(self, messages: list[Message]) -> None:
        """These deliveries are done with: acked, or sent without need of an ack."""
        self.unacked_count -= len(messages)
        if not self.is_deleted:
            self.drop(messages)
            self._forget_when_empty()

    def acked(self, messages: list[Message], consumer: ConsumerPort) -> None:
        """A consumer, which has room now, has acked these: count, `settle`, `credit_available`."""
        self.counters.acked += len(messages)
        self.settle(messages)
        self.credit_available(consumer)

    def discard(self, messages: list[Message], reason: DeadLetterReason) -> None:
        """These deliveries are refused: they become dead letters or nothing (ACK-06)."""
        self.unacked_count -= len(messages)
        if self.is_deleted:
            return
        if self.hooks is not None and self.hooks.dead_letters.defer(messages, reason):
            return
        self.dead_letter(messages, reason)
        self._forget_when_empty()

    def requeue(self, messages: list[Message], outcome: Outcome) -> None:
        """Put deliveries back at their original places (ACK-10).

        That is done in the turn, or when somebody looks; a few of a queue with features, whose
        rules may want something else for them, have it at once.
        """
        self.unacked_count -= len(messages)
        if self.is_deleted or not messages:
            return
        self._returned.append((messages, outcome))
        self.returned_count += len(messages)
        if self.hooks is not None and self.returned_count < FEW_MESSAGES:
            self.take_in(at_once=True)
        else:
            self._ask_for_dispatch()

    def take_in(self, *, at_once: bool = False) -> bool:
        """Put what came back at its place; False when that is too much for one turn (LIMIT-23)."""
        pager = self._pager
        hooks = self.hooks
        back: list[Message] = []
        count = 0
        while self._returned and (at_once or pager.reads_left > 0):
            messages, outcome = self._returned.popleft()
            count += len(messages)
            pager.reads_left -= RETURN_READS + len(messages) // (
                RETURNS_PER_READ if hooks is None else 1
            )
            back += messages if hooks is None else hooks.on_requeue(messages, outcome)
        self.returned_count -= count
        if back:
            self.put_back(back)
        elif count:
            # All of it is parked, and counts (REDELIVER-20): what is ready may be too much now.
            self.wake()
        return not self._returned

    def put_back(self, messages: list[Message]) -> None:
        """Messages that had been taken out are ready again, each at its place."""
        if messages and self.levels is None:
            self.ready.return_delivered(messages)
        elif messages and self.levels is not None:
            self.levels.return_delivered(messages)
        self.wake()

    def dead_letter(self, messages: list[Message], reason: DeadLetterReason) -> None:
        """Messages in no line any more and not unacked: dead letters, if the queue has them."""
        self.counters.died(reason, len(messages))
        if self.hooks is not None:
            self.hooks.on_removed(messages)
            messages = self.hooks.on_dead(messages, reason)
            if not messages:
                return
        if self.recorder is not None:
            self.recorder.dropped(messages, reason.value)
        self.log_settled(messages)

    def park_dead(self, messages: list[Message], reason: DeadLetterReason, mark: int) -> None:
        if self.hooks is not None:
            self.hooks.park_dead(messages, reason, mark)

    def drop(self, messages: list[Message]) -> None:
        """Messages in no line any more and not unacked: nothing is left of them."""
        if self.hooks is not None:
            self.hooks.on_removed(messages)
        self.log_settled(messages)

    def log_settled(self, messages: list[Message]) -> None:
        """Their copies are gone, as far as the journal holds them."""
        if self.holds_stored:
            for store_id, lsns in self.stored_copies(messages):
                self._log.settle(store_id, lsns)

    def stored_copies(self, messages: list[Message]) -> list[tuple[int, Sequence[int]]]:
        """Those of some messages that the journal holds: LSNs by the id of their line."""
        if not self.stored:
            return []
        if self.levels is None:
            lsns = lsns_of(messages)
            return [(self.ready.store_id, lsns)] if lsns else []
        found = [(line.store_id, lsns_of(some)) for line, some in self.levels.sorted_out(messages)]
        return [(store_id, lsns) for store_id, lsns in found if lsns]

    def unsettle(self, messages: list[Message]) -> None:
        """Their settlement could not be stored: they are unacked again (TX-09)."""
        self.unacked_count += len(messages)
        if self.is_deleted:
            return
        self.keeps(messages)
        if self.hooks is not None:
            self.hooks.on_removal_undone(messages)

    def keeps(self, messages: list[Message]) -> None:
        """These are in the queue again, somewhere."""
        self.holds_stored |= self.stored and any(message[2] & 1 for message in messages)

    def forget_refused(self, first_lsn: int) -> None:
        """The journal could not store what it was given from this LSN on: no copy stays (CONF-12).

        Such messages are the newest, and none has been handed out (see `turn.py` and `get`): one
        that has come back nevertheless goes as well.
        """
        for line in self.lines:
            gone = line.forget_refused(first_lsn)
            if self.recorder is not None:
                self.recorder.lost(gone, "refused")
        for gone in forget_refused(self._returned, first_lsn) if self.returned_count else ():
            self.returned_count -= len(gone)
            if self.recorder is not None:
                self.recorder.lost(gone, "refused")
        if self.hooks is not None:
            self.hooks.on_write_refused(first_lsn)
        self._forget_when_empty()

    def purge(self) -> int:
        """Drop what is ready; unacked messages stay with their consumers (QUEUE-60)."""
        self.take_in(at_once=True)
        if self.hooks is not None:
            self.hooks.run_outside_dispatch()
        count = self.ready_count
        if self.recorder is not None:
            self.recorder.purged(self)
        for line in self.lines:
            if self.stored and not line.store_id:
                # What came back lies before all levels, and is of any of them.
                self.log_settled(line.take(line.count))
                continue
            for lsns in line.drop_all():
                if self.holds_stored and lsns:
                    self._log.settle(line.store_id, lsns)
        if self.hooks is not None:
            if self.ready_bytes is not None:
                self.ready_bytes.octets = 0
            self.hooks.on_purged()
        self._forget_when_empty()
        return count

    def purge_some(self, most: int) -> int:
        """See `QueueLike`: nothing while the ledger is on, which tells a queue as a whole."""
        if self.recorder is not None or self.ready_count <= most:
            return 0
        hooks, is_seen = self.hooks, self.ready_bytes is not None
        line = next((line for line in self.lines if not line.is_empty), self.ready)
        if hooks is not None:
            self.take_in(at_once=True)
            is_seen |= hooks.looks_at_removed
            if line.ready:
                hooks.run_outside_dispatch()  # it would read back a head that is on disk
        elif self._returned:
            gone, _ = self._returned.popleft()
            self.returned_count -= len(gone)
            self.log_settled(gone)
            return len(gone)
        gone, count, spans = line.drop_some(most, is_seen=is_seen)
        self.drop(gone)
        for lsns in spans if self.holds_stored else ():
            self._log.settle(line.store_id, lsns)
        return count

    def held_spans(self) -> list[list[Collection[int]]]:
        """LSNs of what is ready, each list ascending; nothing is read for it."""
        self.take_in(at_once=True)
        return [line.held_spans() for line in self.lines]

    def held_lsns(self) -> list[int]:
        """LSNs of what is neither ready nor unacked."""
        return [lsn_of(message[2]) for message in self.parked()]

    def parked(self) -> list[Message]:
        return self.hooks.held() if self.hooks is not None else []

    def _forget_when_empty(self) -> None:
        """Never while a batch is on its way: what is in no line then may still be settled."""
        hooks = self.hooks
        if self.unacked_count or self.returned_count or (hooks is not None and hooks.has_held):
            return
        if all(line.is_empty for line in self.lines):
            self.holds_stored = False
            self.largest_octets = 0

    @property
    def store_ids(self) -> list[int]:
        """Under which the journal keeps its copies."""
        return sorted({self.spec.queue_id, *(line.store_id for line in self.lines)} - {0})

    def deleted(self) -> None:
        """The vhost has removed this queue: drop everything, tell the consumers (CONS-40)."""
        if self.recorder is not None:
            self.recorder.deleted(self)
        self.is_deleted = True
        self._returned.clear()
        self.returned_count = 0
        for line in dict.fromkeys((self.ready, *self.lines)):
            line.abandon()
        if self.hooks is not None:
            self.hooks.on_deleted()
            self.hooks = self.levels = self.publish_filter = None
        for consumer in self.subscribers.clear():
            consumer.queue_deleted()

    # Consumers

    def add_consumer(
        self, consumer: ConsumerPort, *, exclusive: bool, start: Start | None = None
    ) -> None:
        del start  # of a stream
        # What keeps every message is of type quorum, which ignores the flag (QUORUM-05).
        if not self.subscribers.add(consumer, exclusive=exclusive and not self.keeps_all):
            raise AccessRefused(f"{self.spec.text} in exclusive use")
        self.wake()

    def remove_consumer(self, consumer: ConsumerPort) -> None:
        """Take a consumer away; the last one's leaving may end an auto-delete queue."""
        if not self.subscribers.remove(consumer):
            return
        if self.subscribers.single_active is not None:
            self.wake()
        if not self.subscribers.count:
            if self.hooks is not None:
                self.hooks.on_unused()
            self._unused(self)

    def pause(self, *, is_paused: bool) -> None:
        self.is_paused = is_paused
        self.subscribers.pause(is_paused=is_paused)
        self.wake()

    def is_waiting(self, consumer: ConsumerPort) -> bool:
        single = self.subscribers.single_active
        return single is not None and consumer in single.everybody()
