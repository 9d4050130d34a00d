"""Messages that come back: how often, how often that may be, and how long they wait then.

A queue with a delivery limit or delayed retries counts the returns and the assignments of each
message that has come back at least once. The counts are notes in the journal, written when a
message comes back and when it is handed out again, so that a restart neither gives a poison
message new lives nor forgets that it was out when the broker stopped.

Spec: REDELIVER-10 … REDELIVER-22
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.protocol.contents import property_block, with_properties
from vouchmq.protocol.fields import long_int
from vouchmq.protocol.properties import with_headers
from vouchmq.server.broker.features.feature import Feature
from vouchmq.server.broker.features.options import QUORUM
from vouchmq.server.broker.message import lsn_of
from vouchmq.server.broker.queues.parked import ParkedMessages
from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome

if TYPE_CHECKING:
    from typing import Self

    from vouchmq.protocol.fields import Table
    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.features.feature import FeatureContext
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.paging.paged_store import JournalClock
    from vouchmq.server.broker.queues.api import HostQueue, NoteLog
    from vouchmq.server.broker.timers import Timers

# The first octet of the keys of these notes; the LSN follows (see `Feature`).
COUNTS: Final = b"r"
X_DELIVERY_COUNT: Final = "x-delivery-count"
X_ACQUIRED_COUNT: Final = "x-acquired-count"
COUNT_HEADERS: Final = frozenset({X_DELIVERY_COUNT, X_ACQUIRED_COUNT})
# Those that count where only failures do (REDELIVER-11).
FAILURES: Final = frozenset({Outcome.REJECTED, Outcome.LOST})
# Those that never do: slow work is not poison, and an operator's look is none of its lives.
HARMLESS: Final = frozenset({Outcome.TIMED_OUT, Outcome.LOOKED_AT})
# Of a quorum-type queue that names none (REDELIVER-14).
QUORUM_LIMIT: Final = 20
MULTIPLIER: Final = 5.0
# Messages that are let in again in one turn.
TURN_RETURNS: Final = 4096
_LSN: Final = Struct(">Q")
_COUNTS: Final = Struct(">QQQ")


class Counts(NamedTuple):
    """What is known of one message.

    `returns` counts those of REDELIVER-11, `acquired` the assignments to consumers; `due_ms` is
    when it is ready again, by the journal's clock, 0 when it does not wait.
    """

    returns: int
    acquired: int
    due_ms: int = 0
    is_out: bool = False


class ReturnRules(NamedTuple):
    """What the options of a queue say of messages that come back.

    `limit` is the delivery limit, None or negative: there is none. `retried` says which returns are
    delayed, by `min_ms` times the count or, if the backoff is exponential, `multiplier` to its
    power; at most by `max_ms`.
    """

    limit: int | None
    retried: str
    min_ms: int
    max_ms: int | None
    is_exponential: bool
    multiplier: float

    @property
    def counts_returns(self) -> bool:
        """True when it matters how often a message has come back."""
        has_limit = self.limit is not None and self.limit >= 0
        return has_limit or bool(self.retried and self.min_ms)


def rules_of(features: Features) -> ReturnRules:
    """The rules that options give (REDELIVER-10, REDELIVER-20, REDELIVER-21)."""
    limit = features.number("delivery-limit")
    if limit is None and features.type == QUORUM:
        limit = QUORUM_LIMIT
    multiplier = features.value("delayed-retry-multiplier")
    return ReturnRules(
        limit,
        features.text("delayed-retry-type") or "",
        features.number("delayed-retry-min") or 0,
        features.number("delayed-retry-max"),
        features.text("delayed-retry-backoff") == "exponential",
        float(multiplier) if isinstance(multiplier, int | float) else MULTIPLIER,
    )


class Redelivery(Feature):
    """The counts of one queue.

    Args:
        queue: whose messages they are
        timers: ring when a delayed message is due
        log: the journal, for notes
        clock: tells the journal's clock from the loop's
        rules: of its options
        only_failures: what counts (REDELIVER-11)
    """

    NOTES = COUNTS

    __slots__ = (
        "_clock",
        "_counts",
        "_gone",
        "_log",
        "_only_failures",
        "_queue",
        "_rules",
        "_timers",
        "parked",
    )

    def __init__(
        self,
        queue: HostQueue,
        timers: Timers,
        log: NoteLog,
        clock: JournalClock,
        rules: ReturnRules,
        *,
        only_failures: bool,
    ) -> None:
        self._queue = queue
        self._timers = timers
        self._log = log
        self._clock = clock
        self._rules = rules
        self._only_failures = only_failures
        self._counts: dict[int, Counts] = {}
        self._gone: dict[int, Counts] = {}  # of what has left since the last write
        self.parked = ParkedMessages(timers, queue.wake)

    @classmethod
    def configured(
        cls, now: Self | None, queue: HostQueue, features: Features, context: FeatureContext
    ) -> Self | None:
        """See `Feature`: what was counted or delayed so far stays so, even if nothing more is."""
        if now is not None:
            now.set(features)
        elif features.type == QUORUM or rules_of(features).counts_returns:
            return cls.started(queue, context)
        return now

    @classmethod
    def started(cls, queue: HostQueue, context: FeatureContext) -> Self:
        around = (context.timers, context.log, context.clock, rules_of(queue.features))
        return cls(queue, *around, only_failures=context.only_failures)

    @classmethod
    def is_noted(cls, notes: dict[bytes, bytes]) -> bool:
        """See `Feature`: who asked for it, e.g. a policy, may be gone; what was counted is not."""
        return any(key[:1] == COUNTS for key in notes)

    def set(self, features: Features) -> None:
        """Another limit, other delays from now on."""
        self._rules = rules_of(features)

    @property
    def may_go(self) -> bool:
        """See `Feature`: no message has come back that is still there."""
        return not self._counts and not len(self.parked)

    def held(self) -> list[Message]:
        """Those that wait for a delayed retry."""
        return self.parked.messages()

    def held_count(self) -> int:
        return len(self.parked)

    def on_deleted(self) -> None:
        self.parked.take_all()

    # Coming back and going out

    def on_requeue(self, messages: list[Message], outcome: Outcome) -> list[Message]:
        """Count some returns; gives those that are ready at once."""
        counted = outcome in FAILURES or not (self._only_failures or outcome in HARMLESS)
        ready: list[Message] = []
        dead: list[Message] = []
        for message in messages:
            before = self._counts.get(message[2], Counts(0, 1))
            counts = Counts(before.returns + counted, before.acquired)
            if self._is_too_often(counts.returns):
                dead.append(message)
                continue
            delay_ms = self._delay_ms(counts.returns, counted=counted)
            if delay_ms:
                due_ms = self._timers.now_ms() + delay_ms
                counts = counts._replace(due_ms=self._clock.now_ms() + delay_ms)
                self.parked.put(message, due_ms)
            else:
                ready.append(message)
            self._count(message, counts)
        if dead:
            self._queue.dead_letter(dead, DeadLetterReason.DELIVERY_LIMIT)
        return ready

    def release_due(self) -> None:
        """Those that have waited long enough are ready again, each at its place."""
        back = self.parked.take_due(TURN_RETURNS)
        for message in back:
            self._count(message, self._counts[message[2]]._replace(due_ms=0))
        if back:
            self._queue.put_back(back)

    def on_take(self, batch: list[Message]) -> list[Message]:
        """Count who is handed out again; gives those that may be (after a restart not all may)."""
        if not self._counts:
            return batch
        dead: list[Message] = []
        for message in batch:
            counts = self._counts.get(message[2])
            if counts is None:
                continue
            if self._is_too_often(counts.returns):
                dead.append(message)
                continue
            acquired = counts.acquired + 1
            self._count(message, counts._replace(acquired=acquired, is_out=True))
        if not dead:
            return batch
        self._queue.dead_letter(dead, DeadLetterReason.DELIVERY_LIMIT)
        gone = {message[2] for message in dead}
        return [message for message in batch if message[2] not in gone]

    def on_head_parked(self, messages: list[Message], mark: int) -> None:
        """Note that these have never been out: the mark is about to pass them (REDELIVER-13)."""
        for message in messages if self._queue.stored else ():
            seq = message[2]
            if seq & 1 and seq > mark and seq not in self._counts:
                self._count(message, Counts(0, 0))

    def on_removed(self, messages: list[Message]) -> None:
        """These have left the queue for good."""
        if not self._counts:
            return
        for message in messages:
            counts = self._counts.pop(message[2], None)
            if counts is None:
                continue
            self._gone[message[2]] = counts
            if message[2] & 1 and self._queue.stored:
                self._log.unnote(self._queue.spec.queue_id, note_key(message[2]))

    def on_removal_undone(self, messages: list[Message]) -> None:
        """These had gone, which was refused: no new lives for that (TX-09, REDELIVER-13)."""
        for message in messages if self._gone else ():
            counts = self._gone.pop(message[2], None)
            if counts is not None:
                self._count(message, counts)

    def on_written(self) -> None:
        """What has gone is on disk, and does not come back."""
        self._gone.clear()

    def on_write_refused(self, first_lsn: int) -> None:
        """The disk took nothing from this LSN on (CONF-12)."""
        gone = [m[2] for m in self.parked.messages() if m[2] & 1 and m[2] >= first_lsn * 2]
        for seq in gone:
            self.parked.forget(seq)
            self._counts.pop(seq, None)
        if self._queue.recorder is not None:
            self._queue.recorder.lost(sorted(map(lsn_of, gone)), "refused")

    def on_purged(self) -> None:
        """Nothing is ready any more: what is not out and not aside is gone."""
        parked = {message[2] for message in self._queue.parked()}
        for seq, counts in list(self._counts.items()):
            if not counts.is_out and seq not in parked:
                del self._counts[seq]
                if seq & 1 and self._queue.stored:
                    self._log.unnote(self._queue.spec.queue_id, note_key(seq))

    def as_delivered(self, batch: list[Message]) -> list[Message] | None:
        """The batch with its counts in the headers, None when there is none to show."""
        if not self._counts or self._rules.limit is None:
            return None
        if not any(shown_counts(self._of(message)) for message in batch):
            return None
        return [self._with_counts(message) for message in batch]

    # Restart

    def recall(self, key: bytes) -> bytes | None:
        """What the note of a message says by now."""
        counts = self._counts.get(_LSN.unpack(key[1:])[0] * 2 + 1)
        return None if counts is None else packed(counts)

    def restore(self, notes: dict[bytes, bytes]) -> None:
        """Counts as they were; who was out when the broker ended has come back by that."""
        was_out = self._queue.delivered_before()  # noted or not
        found = {
            _LSN.unpack(key[1:])[0]: unpacked(value)
            for key, value in notes.items()
            if key[:1] == COUNTS
        }
        for lsn in was_out:
            before = found.get(lsn, Counts(0, 1, is_out=True))
            if before.is_out:
                found[lsn] = Counts(before.returns + 1, before.acquired)
                self._count_lsn(lsn, found[lsn])
        alive = set(was_out)
        self._counts = {lsn * 2 + 1: each for lsn, each in found.items() if lsn in alive}
        waiting = {lsn: each.due_ms for lsn, each in found.items() if each.due_ms and lsn in alive}
        for message in self._queue.extract(waiting) if waiting else ():
            due_ms = self._clock.to_come_ms(waiting[lsn_of(message[2])])
            self.parked.put(message, due_ms)

    # What the rules say

    def _is_too_often(self, returns: int) -> bool:
        limit = self._rules.limit
        return limit is not None and 0 <= limit < returns

    def _delay_ms(self, count: int, *, counted: bool) -> int:
        """Until a message is ready again, 0: at once (REDELIVER-20, REDELIVER-21)."""
        rules = self._rules
        wanted = {"all": True, "failed": counted, "returned": not counted}
        least_ms = rules.min_ms
        if not least_ms or not wanted.get(rules.retried, False):
            return 0
        if rules.is_exponential:
            # Beyond any bound long before it is beyond a float.
            steps = min(max(count, 1) - 1, 64)
            delay_ms = int(min(least_ms * rules.multiplier**steps, 1e15))
        else:
            delay_ms = least_ms * max(1, count)
        most_ms = rules.max_ms
        return delay_ms if most_ms is None else min(delay_ms, most_ms)

    # Counts and their notes

    def _of(self, message: Message) -> Counts:
        return self._counts.get(message[2], Counts(0, 0))

    def _count(self, message: Message, counts: Counts) -> None:
        self._counts[message[2]] = counts
        if message[2] & 1 and self._queue.stored:
            self._count_lsn(lsn_of(message[2]), counts)

    def _count_lsn(self, lsn: int, counts: Counts) -> None:
        self._log.note(self._queue.spec.queue_id, COUNTS + _LSN.pack(lsn), packed(counts))

    def _with_counts(self, message: Message) -> Message:
        table = shown_counts(self._of(message))
        if not table:
            return message
        raw, tail, seq, arrived_ms = message
        block = with_headers(property_block(raw), table, without=COUNT_HEADERS)
        return with_properties(raw, block), tail, seq, arrived_ms


def shown_counts(counts: Counts) -> Table:
    """The headers that show counts, each from 1 on (REDELIVER-12)."""
    table: Table = {}
    if counts.returns >= 1:
        table[X_DELIVERY_COUNT] = long_int(counts.returns)
    # The assignment that is being made is none of the earlier ones.
    if counts.acquired >= 2:
        table[X_ACQUIRED_COUNT] = long_int(counts.acquired - 1)
    return table


def note_key(seq: int) -> bytes:
    """The key under which the counts of a message are noted."""
    return COUNTS + _LSN.pack(lsn_of(seq))


def packed(counts: Counts) -> bytes:
    """The value of a note."""
    return _COUNTS.pack(counts.returns, counts.acquired * 2 + counts.is_out, counts.due_ms)


def unpacked(value: bytes) -> Counts:
    """The counts in the value of a note; see `packed`."""
    returns, acquired, due_ms = _COUNTS.unpack(value)
    return Counts(returns, acquired >> 1, due_ms, is_out=bool(acquired & 1))
