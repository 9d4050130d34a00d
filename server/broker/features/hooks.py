"""The features of one queue, and what the queue calls of them.

A plain queue has none of this and pays one look per run. `FeatureHooks` keeps the hooks that its
features override in tuples of bound methods, built anew when the features change, so that a queue
pays for what it has only. `FEATURES` says which features there are, and in which order they are
called. Must not know how a feature works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from vouchmq.server.broker.dead_letter.dead_letters import DeadLetters, PendingDeadLetters
from vouchmq.server.broker.features.dedup import Dedup
from vouchmq.server.broker.features.expiry import Expiry, QueueExpiry
from vouchmq.server.broker.features.length import LengthLimit
from vouchmq.server.broker.features.queue_seq import QueueSequence
from vouchmq.server.broker.features.redelivery import Redelivery
from vouchmq.server.broker.queues.api import TAKES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.features.feature import Feature, FeatureContext
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import HostQueue, PublishFilter
    from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome

F = TypeVar("F")
T = TypeVar("T", bound="Feature")

# The features by rank. What comes in, is handed out or restored passes them in this order; what
# leaves, or comes back from where it was parked, passes them in reverse. Why each stands where it
# stands:
#   QueueSequence       numbers what leaves the head before any feature takes some of it out
#   Expiry              before Redelivery: an expired message is not counted as handed out (TTL-02)
#   PendingDeadLetters  before Dedup and Redelivery: after a restart a pending dead letter is taken
#                       out of its line before they look at what is there; what waits for a delayed
#                       retry is released before pending ones are tried
#   DeadLetters         behind the pending ones when a removal is undone: both give up what became
#                       of it; every queue with features has it, to say who takes over the dead
#   Redelivery          before LengthLimit: what is parked counts when that looks (REDELIVER-20)
#   LengthLimit         behind Expiry: nothing is dropped for the sake of what has expired (TTL-06)
FEATURES: Final[tuple[type[Feature], ...]] = (
    QueueSequence,
    Expiry,
    PendingDeadLetters,
    DeadLetters,
    Dedup,
    Redelivery,
    LengthLimit,
    QueueExpiry,
)


def are_noted(notes: dict[bytes, bytes]) -> bool:
    """Whether a queue with these notes has features, whatever its options say."""
    return any(kind.is_noted(notes) for kind in FEATURES)


class FeatureHooks:
    """The features of one queue.

    Args:
        queue: whose they are
        context: what the features of all queues need
    """

    __slots__ = (
        *("_context", "_features", "_queue", "dead_letters"),
        *("_on_enqueue", "_on_take", "_on_requeue", "_on_write_refused", "_as_delivered"),
        *("_on_used", "_on_written", "_before_dispatch", "_after_dispatch", "_end_dispatch"),
        *("_on_dispatch_paused", "_run_outside_dispatch", "_recall", "_restore", "_on_dead"),
        *("_on_publish_refused", "_on_duplicate"),
        *("_held", "_held_count", "_release_due", "_on_removed", "_on_removal_undone"),
        *("_on_purged", "_on_deleted", "_on_head_parked"),
    )

    def __init__(self, queue: HostQueue, context: FeatureContext) -> None:
        self._queue = queue
        self._context = context
        self._features: dict[type, Feature] = {}
        self.dead_letters = DeadLetters.started(queue, context)
        self.put(self.dead_letters)

    def find(self, kind: type[F]) -> F | None:
        """The feature of this class, None when the queue has none."""
        return self._features.get(kind)  # type: ignore[return-value]

    def put(self, feature: Feature) -> None:
        """The queue has this feature from now on."""
        self._features[type(feature)] = feature
        self.rebuild()

    def configure(self, features: Features) -> None:
        """Make of the features what the options ask for."""
        for kind in FEATURES:
            now = self._features.get(kind)
            feature = kind.configured(now, self._queue, features, self._context)
            if feature is not None:
                self._features[kind] = feature
            elif now is not None:
                del self._features[kind]
        self.rebuild()

    def start(self, kind: type[T]) -> T:
        """The feature of this class, a new one if the queue has none."""
        feature = self.find(kind)
        if feature is None:
            feature = kind.started(self._queue, self._context)
            self.put(feature)
        return feature

    def start_noted(self, notes: dict[bytes, bytes]) -> None:
        """Have those features that these notes are of."""
        for kind in FEATURES:
            if kind.is_noted(notes):
                self.start(kind)

    def drop_idle(self) -> bool:
        """Let go what a queue without options does not need; whether nothing is left."""
        for kind, feature in list(self._features.items()):
            if feature.may_go and feature is not self.dead_letters:
                del self._features[kind]
        self.rebuild()
        return len(self._features) == 1 and self.dead_letters.may_go

    def rebuild(self) -> None:
        """The features have changed: gather the hooks that they want, in the order of ranks."""
        found = self._features
        ranked = tuple(found[kind] for kind in FEATURES if kind in found)

        def by_rank(hook: str) -> Iterable[Feature]:
            return (each for each in ranked if each.wants(hook))

        def in_reverse(hook: str) -> Iterable[Feature]:
            return (each for each in reversed(ranked) if each.wants(hook))

        self._on_enqueue = tuple(each.on_enqueue for each in by_rank("on_enqueue"))
        self._on_take = tuple(each.on_take for each in by_rank("on_take"))
        self._on_requeue = tuple(each.on_requeue for each in by_rank("on_requeue"))
        self._on_dead = tuple(each.on_dead for each in by_rank("on_dead"))
        self._on_publish_refused = tuple(
            each.on_publish_refused for each in by_rank("on_publish_refused")
        )
        self._on_duplicate = tuple(each.on_duplicate for each in by_rank("on_duplicate"))
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
        filters = [each for each in (one.publish_filter for one in ranked) if each is not None]
        self._queue.publish_filter = (
            filters[0] if len(filters) == 1 else PublishFilters(*filters) if filters else None
        )

    @property
    def looks_at_removed(self) -> bool:
        """True when a feature has to see each message that leaves the queue for good."""
        return bool(self._on_removed)

    @property
    def has_held(self) -> bool:
        """True while messages of the queue are neither ready nor unacked."""
        return self.held_count > 0

    @property
    def held_count(self) -> int:
        """Messages neither ready nor unacked, which count toward length limits (REDELIVER-20)."""
        count = 0
        for held_count in self._held_count:
            count += held_count()
        return count

    def held(self) -> list[Message]:
        """Messages neither ready nor unacked."""
        found: list[Message] = []
        for held in self._held:
            found += held()
        return found

    def dispatch_later(self) -> None:
        """Nobody is served in this turn, whatever kept them from it."""
        for on_dispatch_paused in self._on_dispatch_paused:
            on_dispatch_paused()
        self.dead_letters.continue_later()

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

    def on_dead(self, messages: list[Message], reason: DeadLetterReason) -> list[Message]:
        """See `Feature`."""
        for on_dead in self._on_dead:
            messages = on_dead(messages, reason)
        return messages

    def park_dead(self, messages: list[Message], reason: DeadLetterReason, mark: int) -> None:
        """Messages from the head of a line with this mark are dead, and dead letters later."""
        for on_head_parked in self._on_head_parked:
            on_head_parked(messages, mark)
        self.dead_letters.put_off(messages, reason)

    def on_publish_refused(self, message: Message) -> None:
        """See `Feature`."""
        for on_publish_refused in self._on_publish_refused:
            on_publish_refused(message)

    def on_duplicate(self, message: Message) -> None:
        """See `Feature`."""
        for on_duplicate in self._on_duplicate:
            on_duplicate(message)

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
                self.dead_letters.continue_later()
        for end_dispatch in self._end_dispatch:
            end_dispatch()

    def run_outside_dispatch(self) -> None:
        """Do outside the turn what a dispatch would do, without serving anybody."""
        if self.dead_letters.is_nested:
            return
        is_done = True
        for run_outside_dispatch in self._run_outside_dispatch:
            is_done &= run_outside_dispatch()
        if not is_done:
            self.dead_letters.continue_later()

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
        for on_deleted in self._on_deleted:
            on_deleted()


class PublishFilters:
    """Several filters as one: a message must pass all, in their order."""

    __slots__ = ("_filters",)

    def __init__(self, *filters: PublishFilter) -> None:
        self._filters = filters

    def check(self, raw: bytes) -> int:
        """See `PublishFilter`."""
        for each in self._filters:
            word = each.check(raw)
            if word != TAKES:
                return word
        return TAKES

    def takes_all(self, raws: Sequence[bytes]) -> bool:
        """See `PublishFilter`."""
        return all(each.takes_all(raws) for each in self._filters)

    def has_room(self, count: int, octets: int) -> bool:
        """See `PublishFilter`."""
        return all(each.has_room(count, octets) for each in self._filters)

    def call_when_room(self, call: Callable[[], None]) -> None:
        """See `PublishFilter`."""
        for each in self._filters:
            each.call_when_room(call)
