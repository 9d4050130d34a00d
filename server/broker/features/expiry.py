"""Expiry: messages whose time has run out leave at the head of their queue, unused queues end.

A deadline is never stored. A message knows when it arrived; how long it may stay is the smaller
of what the queue gives and what the message itself asks for, worked out when it is at the head.
So a changed queue TTL holds for what is there already (TTL-08), and what is paged costs nothing.

Spec: TTL-01 … TTL-09, TTL-20 … TTL-23
"""

from __future__ import annotations

from itertools import compress, islice, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.contents import HAS_EXPIRATION, property_block, remembered
from vouchmq.protocol.properties import Properties
from vouchmq.protocol.runs import PROPERTIES_AT
from vouchmq.server.broker.dead_letter.dead_letters import dead_letters_of
from vouchmq.server.broker.features.feature import Feature
from vouchmq.server.broker.queues.settlement import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.features.feature import FeatureContext
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import HostQueue, NoteLog, Queue
    from vouchmq.server.broker.queues.ready_list import ReadyList
    from vouchmq.server.broker.queues.settlement import Outcome
    from vouchmq.server.broker.timers import Timers

# Messages that one queue lets go in one turn (DLX-12, LIMIT-23).
TURN_EXPIRIES: Final = 512
# Those that are looked at in one go.
BATCH_MESSAGES: Final = 256
_arrived_ms: Final = itemgetter(3)
# The whole key of the note that messages may have a time to live of their own.
OWN_EXPIRATIONS: Final = b"x"


@remembered
def own_ttl_ms(block: bytes) -> int:
    """What the expiration property of a property block says; it was checked at publish."""
    expiration = Properties(block).expiration
    try:
        return int(expiration) if expiration is not None else -1
    except ValueError:
        # Not published through us: a stored message of an older version.
        return -1


class Expiry(Feature):
    """The clock of one queue.

    Args:
        queue: whose messages they are
        timers: wake the queue when its head expires
        log: the journal, for the note that messages may have a time to live of their own
    """

    NOTES = OWN_EXPIRATIONS

    __slots__ = (
        *("_armed_ms", "_came_seq", "_log", "_old_seq", "_queue", "_since_ms", "_timers"),
        *("has_own", "ttl_ms"),
    )

    def __init__(self, queue: HostQueue, timers: Timers, log: NoteLog) -> None:
        self._queue = queue
        self._timers = timers
        self._log = log
        self.ttl_ms: int | None = None  # of the queue, None when it has none
        self.has_own = False  # messages may have a time to live of their own
        self._armed_ms = 0
        self._came_seq = 0  # the newest that came
        self._old_seq = 0  # what came in earlier turns
        self._since_ms = timers.now_ms()  # what came before that was restored

    @classmethod
    def configured(
        cls, now: Self | None, queue: HostQueue, features: Features, context: FeatureContext
    ) -> Self | None:
        ttl_ms = features.number("message-ttl")
        if now is None and ttl_ms is None:
            return None
        now = now or cls.started(queue, context)
        now.ttl_ms = ttl_ms
        return now

    @classmethod
    def started(cls, queue: HostQueue, context: FeatureContext) -> Self:
        return cls(queue, context.timers, context.log)

    @classmethod
    def is_noted(cls, notes: dict[bytes, bytes]) -> bool:
        return OWN_EXPIRATIONS in notes

    @property
    def may_go(self) -> bool:
        return not self.has_own

    def expect_own(self) -> None:
        """From now on messages may have a time to live of their own (TTL-01)."""
        if not self.has_own:
            self.has_own = True
            if self._queue.stored:
                self._log.note(self._queue.spec.queue_id, OWN_EXPIRATIONS, b"")

    def deadline_ms(self, message: Message) -> int | None:
        """When this message expires, by the loop's clock; None: never (TTL-01)."""
        ttl_ms = self._ttl_ms(message[0])
        return None if ttl_ms is None else message[3] + ttl_ms

    def _ttl_ms(self, raw: bytes) -> int | None:
        """How long a content may stay."""
        ttl_ms = self.ttl_ms
        if raw[HAS_EXPIRATION[0]] & HAS_EXPIRATION[1]:
            own_ms = own_ttl_ms(property_block(raw))
            if own_ms >= 0 and (ttl_ms is None or own_ms < ttl_ms):
                return own_ms
        return ttl_ms

    def is_expired(self, message: Message, now_ms: int, *, at_once: bool) -> bool:
        """True when it may not be handed out any more.

        What came with no time at all may still be taken in the turn in which it came (TTL-06),
        however long that turn is: it goes only `at_once`, and every turn ends with that.
        """
        deadline_ms = self.deadline_ms(message)
        if deadline_ms is None or deadline_ms > now_ms:
            return False
        # One that stood behind others when its turn ended is as late as any.
        return at_once or deadline_ms > message[3] or self._is_old(message[2], message[3])

    def on_enqueue(self, messages: list[Message]) -> None:
        """A run is about to be appended."""
        self._came_seq = messages[-1][2]

    def recall(self, key: bytes) -> bytes | None:
        return b"" if key == OWN_EXPIRATIONS and self.has_own else None

    def restore(self, notes: dict[bytes, bytes]) -> None:
        """What is there came before the present turn, however short the restart was."""
        if OWN_EXPIRATIONS in notes:
            self.expect_own()
        backlogs = [line.backlog for line in self._queue.lines if line.backlog is not None]
        self._came_seq = self._old_seq = max(
            (each.newest_lsn * 2 + 1 for each in backlogs), default=0
        )

    def _is_old(self, seq: int, arrived_ms: int) -> bool:
        """True when it came before the present turn."""
        return seq <= self._old_seq or arrived_ms < self._since_ms

    def is_late(self, message: Message) -> bool:
        """True when its time is over."""
        return self.is_expired(message, self._timers.now_ms(), at_once=True)

    def on_take(self, batch: list[Message]) -> list[Message]:
        """Those of a batch from the head that may be handed out; the others go (TTL-02)."""
        return self._sorted_out(batch, at_once=False)

    def on_requeue(self, messages: list[Message], outcome: Outcome) -> list[Message]:
        """Those of some returned messages that are still in time (TTL-05)."""
        del outcome
        return self._sorted_out(messages, at_once=True)

    def before_dispatch(self) -> bool:
        return self.run(reads_at_once=False)

    def after_dispatch(self) -> bool:
        """See `Feature`; the timer sees to what does not fit."""
        self.run(at_once=True, reads_at_once=False)
        return True

    def run_outside_dispatch(self) -> bool:
        return self.run(at_once=not self._queue.is_head_wanted)

    def run(self, *, at_once: bool = False, reads_at_once: bool = True) -> bool:
        """Let expired heads go; False when there are more than fit in one turn.

        Those without any time go only `at_once`: a consumer comes first (TTL-06). Heads on disk
        may wait for the next turn, which is asked for (LIMIT-23), except the first one if it
        `reads_at_once`.
        """
        now_ms = self._timers.now_ms()
        left = TURN_EXPIRIES
        dead_letters = dead_letters_of(self._queue)
        # Every level of a queue with priorities has a head of its own (TTL-03).
        for line in self._queue.lines:
            while left > 0:
                most = min(left, dead_letters.batch_limit(BATCH_MESSAGES))
                if not (line.ready or line.refill(at_once=reads_at_once)):
                    break
                reads_at_once = False
                count = self._expired_at_head(line, now_ms, most, at_once=at_once)
                if not count:
                    break
                left -= count
                if dead_letters.may_send:
                    self._queue.dead_letter(line.take(count), DeadLetterReason.EXPIRED)
                elif dead_letters.can_park and self._queue.has_consumers:
                    self._queue.park_dead(line.take(count), DeadLetterReason.EXPIRED, line.mark)
                else:
                    return False
        return left > 0

    def on_dispatch_paused(self) -> None:
        """What came with no time at all, and is still here, is late (TTL-06)."""
        self._old_seq = self._came_seq

    def end_dispatch(self) -> None:
        """Have the queue woken when its head expires (TTL-04).

        Behind the limit: the head may be another one by then (TTL-03).
        """
        self._old_seq = self._came_seq
        heads = [self._head_deadline_ms(line) for line in self._queue.lines]
        due_ms = min((head for head in heads if head is not None), default=None)
        if due_ms is None:
            return
        now_ms = self._timers.now_ms()
        dead_letters = dead_letters_of(self._queue)
        if due_ms <= now_ms and dead_letters.is_paused:
            dead_letters.continue_later()
            return
        if self._armed_ms <= now_ms or due_ms < self._armed_ms:
            self._armed_ms = self._timers.at(max(due_ms, now_ms + 1), self._fire)

    def _head_deadline_ms(self, line: ReadyList) -> int | None:
        # One that is read in the next turn only is looked at again then.
        if not (line.ready or line.refill()):
            return None
        return self.deadline_ms(line.ready[0])

    def _fire(self) -> None:
        if not self._queue.is_deleted:
            self._queue.wake()

    def _expired_at_head(self, line: ReadyList, now_ms: int, most: int, *, at_once: bool) -> int:
        heads = islice(line.ready, most)
        return sum(1 for _ in takewhile(bool, self._judged(heads, now_ms, at_once=at_once)))

    def _judged(self, messages: Iterable[Message], now_ms: int, *, at_once: bool) -> Iterator[bool]:
        """As `is_expired`, for each of them; properties are looked at where they change."""
        block: bytes | None = None
        ttl_ms: int | None = None
        for raw, _, seq, arrived_ms in messages:
            if block is None or not raw.startswith(block, PROPERTIES_AT):
                block = property_block(raw)
                ttl_ms = self._ttl_ms(raw)
            is_over = ttl_ms is not None and arrived_ms + ttl_ms <= now_ms
            yield is_over and (at_once or bool(ttl_ms) or self._is_old(seq, arrived_ms))

    def _sorted_out(self, messages: list[Message], *, at_once: bool) -> list[Message]:
        now_ms = self._timers.now_ms()
        if (
            self.ttl_ms
            and not self.has_own
            and min(map(_arrived_ms, messages), default=0) + self.ttl_ms > now_ms
        ):
            return messages
        dead = list(compress(messages, self._judged(messages, now_ms, at_once=at_once)))
        if not dead:
            return messages
        self._queue.dead_letter(dead, DeadLetterReason.EXPIRED)
        seqs = {message[2] for message in dead}
        return [message for message in messages if message[2] not in seqs]


class QueueExpiry(Feature):
    """The expiry of one queue, which begins now: it is deleted when nobody has used it for so long.

    Used means: it has a consumer, it was declared, also passively, or somebody got from it.
    Publishing is no use (TTL-20).

    Args:
        queue: what ends with it
        timers: tell when it may have run out
        expires_ms: how long it runs
        expire: deletes the queue
    """

    __slots__ = ("_armed_ms", "_expire", "_queue", "_timers", "_used_ms", "expires_ms")

    def __init__(
        self, queue: HostQueue, timers: Timers, expires_ms: int, expire: Callable[[Queue], None]
    ) -> None:
        self._queue = queue
        self._timers = timers
        self._expire = expire
        self.expires_ms = expires_ms
        self._armed_ms = 0
        self._used_ms = timers.now_ms()
        self._arm()

    @classmethod
    def configured(
        cls, now: Self | None, queue: HostQueue, features: Features, context: FeatureContext
    ) -> Self | None:
        expires_ms = features.number("expires")
        if expires_ms is None:
            return None
        if now is None:
            return cls(queue, context.timers, expires_ms, context.expire)
        now.set(expires_ms)
        return now

    def set(self, expires_ms: int) -> None:
        """Another time from now on; what has passed of it counts."""
        self.expires_ms = expires_ms
        self._arm()

    def on_used(self) -> None:
        """The time without use begins again (TTL-20)."""
        self._used_ms = self._timers.now_ms()
        self._arm()

    def _arm(self) -> None:
        due_ms = self._used_ms + self.expires_ms
        now_ms = self._timers.now_ms()
        # One that rings too early looks and waits on, so that using a queue costs nothing.
        if not now_ms < self._armed_ms <= due_ms:
            self._armed_ms = self._timers.at(max(due_ms, now_ms + 1), self._fire)

    def _fire(self) -> None:
        queue = self._queue
        if queue.is_deleted or queue.feature(QueueExpiry) is not self:
            return
        if queue.has_consumers:
            self._used_ms = self._timers.now_ms()
        if self._used_ms + self.expires_ms <= self._timers.now_ms():
            self._expire(queue)
        else:
            self._arm()
