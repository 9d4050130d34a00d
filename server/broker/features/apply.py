"""Builds the features that a queue's options ask for, anew when its options change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.server.broker.dead_letter.publisher import DeadLetterConfig
from vouchmq.server.broker.dead_letter.retry import PendingDeadLetters
from vouchmq.server.broker.features.dedup import Dedup, KeyWindow
from vouchmq.server.broker.features.expiry import OWN_EXPIRATIONS, Expiry
from vouchmq.server.broker.features.hooks import FeatureHooks
from vouchmq.server.broker.features.length import LengthLimit
from vouchmq.server.broker.features.options import QUORUM
from vouchmq.server.broker.features.publish_filter import PublishFilters
from vouchmq.server.broker.features.queue_expiry import QueueExpiry
from vouchmq.server.broker.features.queue_seq import SEQUENCE_NOTES, QueueSequence
from vouchmq.server.broker.features.redelivery import COUNTS, Redelivery
from vouchmq.server.broker.message import lsn_of
from vouchmq.server.broker.queues.priority import PriorityLevels
from vouchmq.server.broker.queues.ready_bytes import ReadyBytes
from vouchmq.server.broker.queues.single_active import SingleActive
from vouchmq.server.broker.streams.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.dead_letter.publisher import DeadLetterPublisher
    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.features.expiry import OwnExpirations
    from vouchmq.server.broker.features.publish_filter import PublishFilter
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.paging.paged_store import JournalClock
    from vouchmq.server.broker.paging.pager import Pager
    from vouchmq.server.broker.queues.classic import Queue
    from vouchmq.server.broker.queues.ports import NoteLog
    from vouchmq.server.broker.timers import Timers


class Settled(Protocol):
    """Deliveries of one queue that were settled."""

    queue: Queue
    messages: list[Message]


# Queue ids that a consumer is shown of queues that are not stored begin here.
UNSTORED_IDS: Final = 1 << 60


# Between two tries of a dead letter that nobody takes (DLX-09).
RETRY_INTERVAL_MS: Final = 10_000


class FeatureBuilder:
    """What the features of all queues need.

    Args:
        timers: for everything that has a deadline
        dead_letter_publisher: sends dead letters
        pager: keeps the memory of all queues within bounds
        log: the journal, where features note what must be known after a restart
        clock: tells the journal's clock from the loop's
        own_expirations: told of queues with messages that have a time to live of their own
        serve: serves waiting consumers at once; see `LengthLimit`
        expire: deletes a queue that nobody has used for so long
        only_failures: which returns count toward a delivery limit (REDELIVER-11)
        retry_interval_ms: between two tries of a dead letter that nobody takes (DLX-09)
    """

    def __init__(
        self,
        timers: Timers,
        dead_letter_publisher: DeadLetterPublisher,
        pager: Pager,
        log: NoteLog,
        clock: JournalClock,
        own_expirations: OwnExpirations,
        *,
        serve: Callable[[Queue], bool],
        expire: Callable[[Queue], None],
        only_failures: bool = False,
        retry_interval_ms: int = RETRY_INTERVAL_MS,
    ) -> None:
        self.timers = timers
        self.pager = pager
        self._log = log
        self._clock = clock
        self._own_expirations = own_expirations
        self._only_failures = only_failures
        self.serve = serve
        self._expire = expire
        self.dead_letter_publisher = dead_letter_publisher
        self._retry_interval_ms = retry_interval_ms
        self._unstored_count = 0  # queues with numbers that are not stored

    def apply_options(self, queue: Queue, features: Features) -> None:
        """Let the queue have these features from now on; what is in it stays."""
        queue.features = features
        if isinstance(queue, Stream):
            queue.keep(features)
            return
        if features.is_plain and queue.hooks is None:
            return
        hooks = self._hooks_of(queue)
        queue.keeps_all = features.type == QUORUM
        if features.highest_level and queue.levels is None:
            self._level(queue, features)
        if features.single_active and queue.subscribers.single_active is None:
            queue.subscribers.single_active = SingleActive(displaces=features.type == QUORUM)
        self._dead_letters(queue, hooks, features)
        self._expiry(queue, hooks, features)
        self._limit(queue, hooks, features)
        self._returns(queue, hooks, features)
        hooks.rebuild()
        if features.is_plain:
            self._clear_out(queue, hooks)
        queue.wake()

    def _hooks_of(self, queue: Queue) -> FeatureHooks:
        """The queue's hooks, new ones if it has been a plain one."""
        queue.hooks = queue.hooks or FeatureHooks(queue, self.timers.now_ms)
        return queue.hooks

    def _clear_out(self, queue: Queue, hooks: FeatureHooks) -> None:
        """A queue that has lost its last feature is a plain one again, and pays for nothing."""
        if hooks.expiry is not None and not hooks.expiry.has_own:
            hooks.expiry = None
        if hooks.redelivery is not None and hooks.redelivery.is_idle:
            hooks.redelivery = None
        hooks.rebuild()
        if hooks.is_idle:
            queue.hooks = None

    def _dead_letters(self, queue: Queue, hooks: FeatureHooks, features: Features) -> None:
        exchange, pending = features.dead_letter_exchange, hooks.pending
        if features.dead_letters_are_safe and pending is None:
            interval_ms = self._retry_interval_ms
            pending = PendingDeadLetters(
                queue, self.dead_letter_publisher, self.timers, interval_ms, self._log
            )
        if exchange is None:
            if pending is not None:
                dropped = pending.drop()
                if queue.recorder is not None:
                    queue.recorder.dropped(dropped, "dropped")
                queue.drop(dropped)
            hooks.dead_letters = hooks.pending = None
            return
        hooks.pending = pending
        hooks.dead_letters = DeadLetterConfig(
            queue,
            self.dead_letter_publisher,
            exchange,
            features.dead_letter_routing_key,
            pending,
            is_safe=features.dead_letters_are_safe,
        )

    def _expiry(self, queue: Queue, hooks: FeatureHooks, features: Features) -> None:
        if features.message_ttl_ms is not None and hooks.expiry is None:
            hooks.expiry = Expiry(queue, self.timers, None)
        if hooks.expiry is not None:
            hooks.expiry.ttl_ms = features.message_ttl_ms
        if features.expires_ms is None:
            hooks.queue_expiry = None
        elif hooks.queue_expiry is None:
            hooks.queue_expiry = QueueExpiry(queue, self.timers, features.expires_ms, self._expire)
        else:
            hooks.queue_expiry.set(features.expires_ms)

    def _returns(self, queue: Queue, hooks: FeatureHooks, features: Features) -> None:
        if hooks.redelivery is not None:
            # What was counted or delayed so far stays so, even if nothing more is.
            hooks.redelivery.set(features)
        elif features.counts_returns:
            self._count_returns(queue, hooks)

    def _count_returns(self, queue: Queue, hooks: FeatureHooks) -> None:
        hooks.redelivery = Redelivery(
            queue,
            self.timers,
            self._log,
            self._clock,
            queue.features,
            only_failures=self._only_failures,
        )

    def _level(self, queue: Queue, features: Features) -> None:
        """Only a new queue: its one line becomes one of many, in which nothing is."""
        queue.levels = PriorityLevels(
            queue,
            self.pager,
            queue.spec.queue_id if queue.stored else 0,
            highest=features.highest_level,
            default=features.default_level,
            returns_first=features.type == QUORUM,
        )
        queue.lines = queue.levels.ready_lists()

    def _limit(self, queue: Queue, hooks: FeatureHooks, features: Features) -> None:
        if features.max_length_octets is not None and queue.ready_bytes is None:
            queue.ready_bytes = ReadyBytes()
            for line in queue.lines:
                line.measure(queue.ready_bytes)
        if not features.is_limited:
            hooks.limit = None
        elif hooks.limit is None:
            hooks.limit = LengthLimit(queue, features, self.serve)
        else:
            hooks.limit.set(features)
        if features.keys is not None and hooks.dedup is None:
            scope_id = queue.spec.queue_id if queue.stored else 0
            window = KeyWindow(scope_id, features.keys, self.timers, self._log, self._clock)
            hooks.dedup = Dedup(queue, window, hooks.run_outside_dispatch)
        filters: list[PublishFilter] = [] if hooks.dedup is None else [hooks.dedup]
        if hooks.limit is not None and hooks.limit.rejects:
            filters.append(hooks.limit)
        queue.publish_filter = (
            filters[0] if len(filters) == 1 else PublishFilters(*filters) if filters else None
        )

    def expect_expirations(self, queue: Queue) -> None:
        """From now on messages in this queue may have a time to live of their own (TTL-01)."""
        self._own_expirations.expect(queue)

    def number(self, queue: Queue) -> QueueSequence | Stream:
        """From now on every copy in this queue has a number (SEQ-01)."""
        if isinstance(queue, Stream):
            return queue
        hooks = self._hooks_of(queue)
        if hooks.queue_seq is None:
            log = self._log if queue.stored else None
            hooks.queue_seq = QueueSequence(
                queue, queue.spec.queue_id or self.unstored_id(queue), log
            )
            hooks.rebuild()
        return hooks.queue_seq

    def unstored_id(self, queue: Queue) -> int:
        """A number for a queue without one: no other has had it, in no life of the broker."""
        if not queue.unstored_id:
            self._unstored_count += 1
            queue.unstored_id = UNSTORED_IDS + (self._clock.now_ms() << 16)
            queue.unstored_id += self._unstored_count & 0xFFFF
        return queue.unstored_id

    def gone_of(self, entry: Settled) -> list[Message]:
        """Those of some settled deliveries that are not kept as dead letters on their way."""
        kept = {*entry.queue.held_lsns(), *self.dead_letter_publisher.kept_of(entry.queue)}
        return [message for message in entry.messages if lsn_of(message[2]) not in kept]

    def restore(self, queue: Queue, notes: dict[bytes, bytes]) -> None:
        """What had been noted of a queue before a restart; its messages are in place."""
        if isinstance(queue, Stream):
            queue.restore_notes(notes)
            return
        if OWN_EXPIRATIONS in notes:
            self.expect_expirations(queue)
        if SEQUENCE_NOTES in notes:
            self.number(queue)
        if any(key[:1] == COUNTS for key in notes):
            # Whoever asked for it, e.g. a policy, may be gone: what was counted or delayed is not.
            hooks = self._hooks_of(queue)
            if hooks.redelivery is None:
                self._count_returns(queue, hooks)
                hooks.rebuild()
        if queue.hooks is not None:
            queue.hooks.restore(notes)
            if queue.features.is_plain:
                self._clear_out(queue, queue.hooks)
            queue.wake()
