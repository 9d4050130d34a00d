"""What a queue asks for when it has more to do than a plain one: its features.

A plain queue has no hooks and pays one look for them per run. Each feature is None unless the
queue has the feature; here stands only who is asked when, and in which order.
Must not know how a feature works.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from vouchmq.server.broker.dead_letter.retry import PENDING
from vouchmq.server.broker.features.dedup import KEYS
from vouchmq.server.broker.features.queue_seq import SEQUENCE_NOTES
from vouchmq.server.broker.features.redelivery import COUNTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vouchmq.server.broker.dead_letter.publisher import DeadLetterConfig
    from vouchmq.server.broker.features.dedup import Dedup
    from vouchmq.server.broker.features.expiry import Expiry
    from vouchmq.server.broker.features.length import LengthLimit
    from vouchmq.server.broker.features.queue_expiry import QueueExpiry
    from vouchmq.server.broker.features.queue_seq import QueueSequence
    from vouchmq.server.broker.features.redelivery import Redelivery
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.classic import Queue
    from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome


# Refused deliveries that become dead letters at once; of more so many at a time, for so long in one
# turn (LIMIT-23).
DEAD_LETTERS_AT_ONCE: Final = 64
TURN_DEAD_LETTERS: Final = 4096
TURN_DEAD_LETTERS_MS: Final = 10

# So many dead messages are kept in memory while the disk has no room for letters.
MAX_PARKED: Final = 4096

# Whose a note in the journal is: the first octet of its key.
OWN_EXPIRATIONS: Final = b"x"  # the whole key: messages may have a time to live of their own


class FeatureHooks:
    """The features of one queue.

    Args:
        queue: whose they are
        now_ms: the loop's clock in whole milliseconds
    """

    __slots__ = (
        *(
            "_deferred",
            "_queue",
            "dedup",
            "expiry",
            "queue_expiry",
            "dead_letters",
            "limit",
            "now_ms",
            "redelivery",
        ),
        "queue_seq",
    )

    def __init__(self, queue: Queue, now_ms: Callable[[], int]) -> None:
        self._queue = queue
        self._deferred: deque[tuple[list[Message], DeadLetterReason]] = deque()
        self.now_ms = now_ms
        self.dead_letters: DeadLetterConfig | None = None
        self.expiry: Expiry | None = None
        self.limit: LengthLimit | None = None
        self.queue_expiry: QueueExpiry | None = None
        self.redelivery: Redelivery | None = None
        self.dedup: Dedup | None = None
        self.queue_seq: QueueSequence | None = None

    @property
    def has_held(self) -> bool:
        """True while messages of the queue are neither ready nor unacked."""
        return self.held_count > 0

    @property
    def held_count(self) -> int:
        """Messages neither ready nor unacked, which count toward length limits (REDELIVER-20)."""
        delayed = len(self.redelivery.parked) if self.redelivery is not None else 0
        pending = self.dead_letters.pending if self.dead_letters is not None else None
        dying = sum(len(messages) for messages, _ in self._deferred)
        return delayed + dying + (len(pending) if pending is not None else 0)

    def held(self) -> list[Message]:
        """Messages neither ready nor unacked."""
        found = [message for messages, _ in self._deferred for message in messages]
        if self.redelivery is not None:
            found += self.redelivery.parked.messages()
        if self.dead_letters is not None and self.dead_letters.pending is not None:
            found += self.dead_letters.pending.messages()
        return found

    @property
    def may_dead_letter(self) -> bool:
        """Whether some messages may become dead letters now (DLX-23)."""
        return self.dead_letters is None or self.dead_letters.pace.may_send(self._queue)

    def batch_limit(self, most: int) -> int:
        """So many, or fewer where letters come of them, are let go between two looks."""
        return most if self.dead_letters is None else min(most, self.dead_letters.pace.at_a_time)

    @property
    def is_paused(self) -> bool:
        """True while none may, for want of room on the disk."""
        return self.dead_letters is not None and self.dead_letters.pace.is_paused

    def continue_later(self) -> None:
        """There is more to do, in another turn."""
        if self.dead_letters is not None and self.is_paused:
            self.dead_letters.pace.wait(self._queue.wake)
        else:
            self._queue.wake()

    def dispatch_later(self) -> None:
        """Nobody is served in this turn."""
        if self.expiry is not None and self.is_paused:
            self.expiry.turn_ended()  # it may be long until somebody is
        self.continue_later()

    @property
    def is_idle(self) -> bool:
        """True when there is no feature, and nothing left to do."""
        features = (self.dead_letters, self.expiry, self.limit, self.queue_expiry, self.redelivery)
        has_feature = any(each is not None for each in (*features, self.dedup, self.queue_seq))
        return not has_feature and not self._deferred

    @property
    def is_nested(self) -> bool:
        """True when no more may be let go now, or chains of full queues would recurse (DLX-12)."""
        return self.dead_letters is not None and self.dead_letters.is_nested

    @property
    def dead_letters_refused(self) -> bool:
        """True when a message that the queue refuses becomes a dead letter (LEN-24)."""
        return (
            self.dead_letters is not None
            and self.limit is not None
            and self.limit.dead_letters_refused
        )

    # Coming and going

    def on_enqueue(self, messages: Iterable[Message]) -> list[Message]:
        """A run is about to be appended."""
        run = list(messages)
        if self.expiry is not None:
            self.expiry.on_enqueue(run)
        if self.dedup is not None:
            self.dedup.on_enqueue(run)
        return run

    def on_take(self, batch: list[Message]) -> list[Message]:
        """A batch was taken from the head; gives what of it may be handed out (TTL-02)."""
        if self.queue_seq is not None:
            self.queue_seq.on_take(batch)
        if self.expiry is not None:
            batch = self.expiry.fresh(batch)
        if self.redelivery is not None and batch:
            batch = self.redelivery.on_take(batch)
        return batch

    def on_requeue(self, messages: list[Message], outcome: Outcome) -> list[Message]:
        """Deliveries come back; gives those that are ready at once (ACK-10)."""
        if self.expiry is not None:
            messages = self.expiry.unexpired(messages)
        if self.redelivery is not None:
            messages = self.redelivery.on_requeue(messages, outcome)
        if self.limit is not None:
            self.limit.on_requeue()
        return messages

    def defer(self, messages: list[Message], reason: DeadLetterReason) -> bool:
        """Whether it takes too long to make dead letters of these at once: it is done by and by.

        Not of what stands in a transaction, which is one block (TX-08).
        """
        if self.dead_letters is None or self.dead_letters.is_gathering:
            return False
        if len(messages) <= DEAD_LETTERS_AT_ONCE and not self._deferred and not self.can_park:
            return False
        self._deferred.append((messages, reason))
        self.continue_later()
        return True

    @property
    def can_park(self) -> bool:
        """True when the dead are to be kept for now, so that others can be served meanwhile."""
        return self.is_paused and sum(len(some) for some, _ in self._deferred) < MAX_PARKED

    def park(self, messages: list[Message], reason: DeadLetterReason) -> None:
        """Messages from the head are dead, and become dead letters later."""
        self._deferred.append((messages, reason))

    def _dead_letter_deferred(self) -> None:
        """Go on with what was put off."""
        end_ms, left = self.now_ms() + TURN_DEAD_LETTERS_MS, TURN_DEAD_LETTERS
        while self._deferred and left > 0 and self.now_ms() < end_ms and self.may_dead_letter:
            messages, reason = self._deferred.popleft()
            few = self.batch_limit(DEAD_LETTERS_AT_ONCE)
            some, rest = messages[:few], messages[few:]
            if rest:
                self._deferred.appendleft((rest, reason))
            left -= len(some)
            self._queue.dead_letter(some, reason)
        if self._deferred:
            self.continue_later()

    def on_removed(self, messages: list[Message]) -> None:
        """These have left the queue for good."""
        if self.dedup is not None:
            self.dedup.on_removed(messages)
        if self.queue_seq is not None:
            self.queue_seq.on_removed(messages)
        if self.redelivery is not None:
            self.redelivery.on_removed(messages)

    def on_removal_undone(self, messages: list[Message]) -> None:
        """These had gone, which was refused (TX-09)."""
        if self.redelivery is not None:
            self.redelivery.on_removal_undone(messages)
        if self.queue_seq is not None:
            self.queue_seq.on_removal_undone(messages)
        if self.dedup is not None:
            self.dedup.on_removal_undone(messages)
        if self.dead_letters is not None:
            self.dead_letters.withdraw(self._queue, messages)
            if self.dead_letters.pending is not None:
                self.dead_letters.pending.forget(messages)

    def on_write_refused(self, first_lsn: int) -> None:
        """Stored messages from this LSN on have been taken out of its lines (CONF-12)."""
        if self.dedup is not None:
            self.dedup.window.forget_refused(first_lsn)
        if self.dead_letters is not None and self.dead_letters.pending is not None:
            self.dead_letters.pending.forget_refused(first_lsn)
        if self.redelivery is not None:
            self.redelivery.forget_refused(first_lsn)
        if self.queue_seq is not None:
            self.queue_seq.on_write_refused()

    def on_purged(self) -> None:
        """Nothing is ready any more."""
        if self.dedup is not None:
            self.dedup.on_purged()
        if self.redelivery is not None:
            self.redelivery.on_purged()
        if self._queue.ready_bytes is not None:
            self._queue.ready_bytes.octets = 0
        if self.queue_seq is not None:
            self.queue_seq.on_purged()

    def as_delivered(self, batch: list[Message]) -> list[Message] | None:
        """The batch as consumers are to see it; None: as it is."""
        return self.redelivery.as_delivered(batch) if self.redelivery is not None else None

    # The turn

    def on_used(self) -> None:
        """Somebody looks at the queue: what they see must be true now (TTL-02, TTL-20)."""
        if self.queue_expiry is not None:
            self.queue_expiry.used()
        self.run_outside_dispatch()

    def on_unused(self) -> None:
        """The last consumer has left."""
        if self.queue_expiry is not None:
            self.queue_expiry.used()

    def before_dispatch(self) -> bool:
        """Have dead heads gone before anybody is served; False when there is more to do first."""
        # Deliveries stand behind a write: what went before it has gone for good.
        if self.queue_seq is not None:
            self.queue_seq.forget_dead()
        if self.redelivery is not None:
            self.redelivery.forget_gone()
        if self._deferred:
            self._dead_letter_deferred()
        if self.redelivery is not None:
            self.redelivery.release_due()
        if self.dead_letters is not None and self.dead_letters.pending is not None:
            self.dead_letters.pending.run()
        if self.expiry is not None and not self.expiry.run():
            return False
        return self.limit is None or self.limit.run(is_before=True)

    def after_dispatch(self) -> None:
        """What nobody could take now: expired at once, or too much of it (TTL-06, LEN-02)."""
        if self.expiry is not None:
            self.expiry.run(at_once=True)
        if self.limit is not None and not self.limit.run():
            self.continue_later()
        if self.expiry is not None:
            self.expiry.arm()  # behind the limit: the head may be another one (TTL-03)

    def run_outside_dispatch(self) -> None:
        """Do outside the turn what a dispatch would do, without serving anybody."""
        if self.is_nested:
            return
        is_done = True
        if self.expiry is not None:
            is_done = self.expiry.run(at_once=not self._queue.is_head_wanted)
        # Who waits for messages comes before the limit, and is served in the turn.
        if self.limit is not None and not self._queue.has_consumers:
            is_done &= self.limit.run()
            if self.expiry is not None:
                is_done &= self.expiry.run(at_once=True)  # the head may be another one
        if not is_done:
            self.continue_later()

    # Restart

    def recall(self, key: bytes) -> bytes | None:
        """The value that a note of this queue has by now, None when it is not wanted any more."""
        if key == OWN_EXPIRATIONS:
            return b"" if self.expiry is not None and self.expiry.has_own else None
        if self.redelivery is not None and key[:1] == COUNTS:
            return self.redelivery.recall(key)
        if self.dedup is not None and key[:1] == KEYS:
            return self.dedup.window.recall(key)
        pending = self.dead_letters.pending if self.dead_letters is not None else None
        if pending is not None and key[:1] == PENDING:
            return pending.recall(key)
        if self.queue_seq is not None and key[:1] == SEQUENCE_NOTES:
            return self.queue_seq.recall(key)
        return None

    def restore(self, notes: dict[bytes, bytes]) -> None:
        """What had been noted of this queue before a restart; its messages are in place."""
        if self.expiry is not None:
            self.expiry.restored()
        if self.queue_seq is not None:
            self.queue_seq.restore(notes)
        # A pending dead letter is in no ready list any more when it is looked who had been
        # delivered, and what keys there are: it has left as far as they are concerned.
        if self.dead_letters is not None and self.dead_letters.pending is not None:
            self.dead_letters.pending.restore(notes)
        if self.dedup is not None:
            self.dedup.restore(notes)
        if self.redelivery is not None:
            self.redelivery.restore(notes, self._queue.delivered_before())

    def on_deleted(self) -> None:
        """The queue is deleted: nothing waits for a deadline any more."""
        self._deferred.clear()
        if self.dedup is not None:
            self.dedup.window.clear()
        if self.redelivery is not None:
            self.redelivery.parked.take_all()
        if self.dead_letters is not None and self.dead_letters.pending is not None:
            self.dead_letters.pending.clear()
