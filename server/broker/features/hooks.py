"""What a queue calls when it has more to do than a plain one: the hooks of its features.

A plain queue has none of this and pays one look per run. Each feature overrides the hooks of
`Feature` that it wants; `FeatureHooks` keeps them in tuples of bound methods, built anew when the
features change, so that a queue pays for what it has only. `RANKS` says in which order the features
are called. Must not know how a feature works.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vouchmq.server.broker.dead_letter.publisher import DeadLetterConfig
    from vouchmq.server.broker.dead_letter.retry import PendingDeadLetters
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

# The features by rank. What comes in, is handed out or restored passes them in this order; what
# leaves, or comes back from where it was parked, passes them in reverse. Why each stands where it
# stands:
#   queue_seq      numbers what leaves the head before any feature takes some of it out
#   expiry         before redelivery: an expired message is not counted as handed out (TTL-02)
#   pending        before dedup and redelivery: after a restart a pending dead letter is taken out
#                  of its line before they look at what is there; what waits for a delayed retry is
#                  released before pending ones are tried
#   dead_letters   behind pending when a removal is undone: both give up what became of it
#   redelivery     before limit: what is parked counts when the limit looks (REDELIVER-20)
#   limit          behind expiry: nothing is dropped for the sake of what has expired (TTL-06)
RANKS: Final = (
    "queue_seq",
    "expiry",
    "pending",
    "dead_letters",
    "dedup",
    "redelivery",
    "limit",
    "queue_expiry",
)


class Feature:
    """One feature of one queue: overrides the hooks that it wants, the others cost nothing.

    `NOTES` is the first octet of the keys of its notes in the journal, empty: it has none.
    """

    __slots__ = ()

    NOTES: ClassVar[bytes] = b""

    def wants(self, hook: str) -> bool:
        """Whether it overrides a hook."""
        return getattr(type(self), hook) is not getattr(Feature, hook)

    # By rank

    def on_enqueue(self, messages: list[Message]) -> None:
        """A run is about to be appended."""

    def on_take(self, batch: list[Message]) -> list[Message]:
        """A batch was taken from the head; gives what of it may be handed out (TTL-02)."""
        return batch

    def on_requeue(self, messages: list[Message], outcome: Outcome) -> list[Message]:
        """Deliveries come back; gives those that are ready at once (ACK-10)."""
        del outcome
        return messages

    def on_head_parked(self, messages: list[Message], mark: int) -> None:
        """Dead heads of a line with this mark are kept, and those behind them go out (DLX-23)."""

    def on_write_refused(self, first_lsn: int) -> None:
        """Stored messages from this LSN on have been taken out of its lines (CONF-12)."""

    def as_delivered(self, batch: list[Message]) -> list[Message] | None:
        """The batch as consumers are to see it; None: as it is."""

    def on_used(self) -> None:
        """The queue was declared or looked at, or its last consumer has left (TTL-20)."""

    def on_written(self) -> None:
        """A dispatch begins: what has left before is on disk, and does not come back."""

    def before_dispatch(self) -> bool:
        """Nobody has been served yet; False when there is more to do first."""
        return True

    def after_dispatch(self) -> bool:
        """Everybody has been served; False when there is more to do in another turn."""
        return True

    def end_dispatch(self) -> None:
        """The last step of a dispatch: the head is the one that stays."""

    def on_dispatch_paused(self) -> None:
        """Nobody is served in this turn, nor perhaps in many."""

    def run_outside_dispatch(self) -> bool:
        """Do what a dispatch would do, without serving anybody; False when there is more."""
        return True

    def recall(self, key: bytes) -> bytes | None:
        """The value that a note has by now, None when it is not wanted any more."""

    def restore(self, notes: dict[bytes, bytes]) -> None:
        """What had been noted of the queue before a restart; its messages are in place."""

    # In reverse

    def held(self) -> list[Message]:
        """Messages of the queue that the feature keeps: neither ready nor unacked."""
        return []

    def held_count(self) -> int:
        """How many those are."""
        return 0

    def release_due(self) -> None:
        """A dispatch begins: what has been parked for long enough is ready, or tried again."""

    def on_removed(self, messages: list[Message]) -> None:
        """These have left the queue for good."""

    def on_removal_undone(self, messages: list[Message]) -> None:
        """These had gone, which was refused (TX-09)."""

    def on_purged(self) -> None:
        """Nothing is ready any more."""

    def on_deleted(self) -> None:
        """The queue is deleted: nothing waits for a deadline any more."""


class FeatureHooks:
    """The features of one queue.

    Whoever sets one calls `rebuild`.

    Args:
        queue: whose they are
        now_ms: the loop's clock in whole milliseconds
    """

    __slots__ = (
        *("_deferred", "_queue", "now_ms"),
        *RANKS,
        *("_on_enqueue", "_on_take", "_on_requeue", "_on_write_refused", "_as_delivered"),
        *("_on_used", "_on_written", "_before_dispatch", "_after_dispatch", "_end_dispatch"),
        *("_on_dispatch_paused", "_run_outside_dispatch", "_recall", "_restore"),
        *("_held", "_held_count", "_release_due", "_on_removed", "_on_removal_undone"),
        *("_on_purged", "_on_deleted", "_on_head_parked", "_ranked"),
    )

    def __init__(self, queue: Queue, now_ms: Callable[[], int]) -> None:
        self._queue = queue
        self._deferred: deque[tuple[list[Message], DeadLetterReason]] = deque()
        self.now_ms = now_ms
        self.queue_seq: QueueSequence | None = None
        self.expiry: Expiry | None = None
        self.pending: PendingDeadLetters | None = None
        self.dead_letters: DeadLetterConfig | None = None
        self.dedup: Dedup | None = None
        self.redelivery: Redelivery | None = None
        self.limit: LengthLimit | None = None
        self.queue_expiry: QueueExpiry | None = None
        self.rebuild()

    def rebuild(self) -> None:
        """The features have changed: gather the hooks that they want, in the order of ranks."""
        features: list[Feature | None] = [getattr(self, name) for name in RANKS]
        self._ranked = ranked = tuple(each for each in features if each is not None)

        def by_rank(hook: str) -> Iterable[Feature]:
            return (each for each in ranked if each.wants(hook))

        def in_reverse(hook: str) -> Iterable[Feature]:
            return (each for each in reversed(ranked) if each.wants(hook))

        self._on_enqueue = tuple(each.on_enqueue for each in by_rank("on_enqueue"))
        self._on_take = tuple(each.on_take for each in by_rank("on_take"))
        self._on_requeue = tuple(each.on_requeue for each in by_rank("on_requeue"))
        self._on_head_parked = tuple(each.on_head_parked for each in by_rank("on_head_parked"))
        self._on_write_refused = tuple(
            each.on_write_refused for each in by_rank("on_write_refused")
        )
        self._as_delivered = tuple(each.as_delivered for each in by_rank("as_delivered"))
        self._on_used = tuple(each.on_used for each in by_rank("on_used"))
        self._on_written = tuple(each.on_written for each in by_rank("on_written"))
        self._before_dispatch = tuple(each.before_dispatch for each in by_rank("before_dispatch"))
        self._after_dispatch = tuple(each.after_dispatch for each in by_rank("after_dispatch"))
        self._end_dispatch = tuple(each.end_dispatch for each in by_rank("end_dispatch"))
        self._on_dispatch_paused = tuple(
            each.on_dispatch_paused for each in by_rank("on_dispatch_paused")
        )
        self._run_outside_dispatch = tuple(
            each.run_outside_dispatch for each in by_rank("run_outside_dispatch")
        )
        self._restore = tuple(each.restore for each in by_rank("restore"))
        self._held = tuple(each.held for each in in_reverse("held"))
        self._held_count = tuple(each.held_count for each in in_reverse("held_count"))
        self._release_due = tuple(each.release_due for each in in_reverse("release_due"))
        self._on_removed = tuple(each.on_removed for each in in_reverse("on_removed"))
        self._on_removal_undone = tuple(
            each.on_removal_undone for each in in_reverse("on_removal_undone")
        )
        self._on_purged = tuple(each.on_purged for each in in_reverse("on_purged"))
        self._on_deleted = tuple(each.on_deleted for each in in_reverse("on_deleted"))
        self._recall = {each.NOTES: each.recall for each in by_rank("recall")}

    @property
    def has_held(self) -> bool:
        """True while messages of the queue are neither ready nor unacked."""
        return self.held_count > 0

    @property
    def held_count(self) -> int:
        """Messages neither ready nor unacked, which count toward length limits (REDELIVER-20)."""
        count = 0
        for messages, _ in self._deferred:
            count += len(messages)
        for held_count in self._held_count:
            count += held_count()
        return count

    def held(self) -> list[Message]:
        """Messages neither ready nor unacked."""
        found = [message for messages, _ in self._deferred for message in messages]
        for held in self._held:
            found += held()
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
        """Nobody is served in this turn, whatever kept them from it."""
        for on_dispatch_paused in self._on_dispatch_paused:
            on_dispatch_paused()
        self.continue_later()

    @property
    def is_idle(self) -> bool:
        """True when no feature is left, and nothing to be done."""
        return not self._ranked and not self._deferred

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

    def on_not_taken(self, message: Message, *, is_duplicate: bool) -> None:
        """The queue has refused a message, or dropped a duplicate: that may be a dead letter."""
        if self.dead_letters is None:
            return
        if is_duplicate:
            self.dead_letters.on_duplicate(message)
        else:
            self.dead_letters.on_refused(message)

    # Coming and going

    def on_enqueue(self, messages: Iterable[Message]) -> list[Message]:
        """See `Feature`."""
        run = list(messages)
        for on_enqueue in self._on_enqueue:
            on_enqueue(run)
        return run

    def on_take(self, batch: list[Message]) -> list[Message]:
        """See `Feature`."""
        for on_take in self._on_take:
            batch = on_take(batch)
        return batch

    def on_requeue(self, messages: list[Message], outcome: Outcome) -> list[Message]:
        """See `Feature`."""
        for on_requeue in self._on_requeue:
            messages = on_requeue(messages, outcome)
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

    def park(self, messages: list[Message], reason: DeadLetterReason, mark: int) -> None:
        """Messages from the head of a line with this mark are dead, and dead letters later."""
        for on_head_parked in self._on_head_parked:
            on_head_parked(messages, mark)
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
        """See `Feature`."""
        for on_removed in self._on_removed:
            on_removed(messages)

    def on_removal_undone(self, messages: list[Message]) -> None:
        """See `Feature`."""
        for on_removal_undone in self._on_removal_undone:
            on_removal_undone(messages)

    def on_write_refused(self, first_lsn: int) -> None:
        """See `Feature`."""
        for on_write_refused in self._on_write_refused:
            on_write_refused(first_lsn)

    def on_purged(self) -> None:
        """See `Feature`."""
        if self._queue.ready_bytes is not None:
            self._queue.ready_bytes.octets = 0
        for on_purged in self._on_purged:
            on_purged()

    def as_delivered(self, batch: list[Message]) -> list[Message] | None:
        """See `Feature`."""
        shown = None
        for as_delivered in self._as_delivered:
            shown = as_delivered(shown or batch) or shown
        return shown

    # The turn

    def on_used(self) -> None:
        """Somebody looks at the queue: what they see must be true now (TTL-02, TTL-20)."""
        self.on_unused()
        self.run_outside_dispatch()

    def on_unused(self) -> None:
        """The last consumer has left."""
        for on_used in self._on_used:
            on_used()

    def before_dispatch(self) -> bool:
        """Have dead heads gone before anybody is served; False when there is more to do first."""
        # Deliveries stand behind a write: what went before it has gone for good.
        for on_written in self._on_written:
            on_written()
        if self._deferred:
            self._dead_letter_deferred()
        for release_due in self._release_due:
            release_due()
        for before_dispatch in self._before_dispatch:  # noqa: SIM110 - `all` costs a generator
            if not before_dispatch():
                return False
        return True

    def after_dispatch(self) -> None:
        """What nobody could take now: expired at once, or too much of it (TTL-06, LEN-02)."""
        for after_dispatch in self._after_dispatch:
            if not after_dispatch():
                self.continue_later()
        for end_dispatch in self._end_dispatch:
            end_dispatch()

    def run_outside_dispatch(self) -> None:
        """Do outside the turn what a dispatch would do, without serving anybody."""
        if self.is_nested:
            return
        is_done = True
        for run_outside_dispatch in self._run_outside_dispatch:
            is_done &= run_outside_dispatch()
        if not is_done:
            self.continue_later()

    # Restart

    def recall(self, key: bytes) -> bytes | None:
        """The value that a note of this queue has by now, None when it is not wanted any more."""
        recall = self._recall.get(key[:1])
        return None if recall is None else recall(key)

    def restore(self, notes: dict[bytes, bytes]) -> None:
        """See `Feature`."""
        for restore in self._restore:
            restore(notes)

    def on_deleted(self) -> None:
        """See `Feature`."""
        self._deferred.clear()
        for on_deleted in self._on_deleted:
            on_deleted()
