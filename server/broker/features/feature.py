"""What a feature of a queue is, and what it may ask of those around the queue.

A feature is a file with a subclass of `Feature`, a row in `hooks.FEATURES` and the rows of its
options in `options.py`. It says itself what options make of it (`configured`), overrides the hooks
that it wants, and knows its queue as `HostQueue`. Must not know any feature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from vouchmq.server.broker.dead_letter.headers import Attempt
    from vouchmq.server.broker.dead_letter.pace import DeadLetterPace
    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.paging.paged_store import JournalClock
    from vouchmq.server.broker.queues.api import HostQueue, NoteLog, PublishFilter, Queue
    from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome
    from vouchmq.server.broker.timers import Timers

# Queue ids that a consumer is shown of queues that are not stored begin here.
UNSTORED_IDS: Final = 1 << 60
# Between two tries of a dead letter that nobody takes (DLX-09).
RETRY_INTERVAL_MS: Final = 10_000


class DeadLetterSender(Protocol):
    """Who sends the dead letters of all queues."""

    pace: DeadLetterPace

    @property
    def is_gathering(self) -> bool:
        """True while what is done must stand in one block."""

    @property
    def is_nested(self) -> bool:
        """True while dead letters are sent that make dead letters, many levels deep."""

    @property
    def is_sending(self) -> bool:
        """True while any are sent."""

    def send(self, queue: Queue, messages: list[Message], reason: DeadLetterReason) -> None:
        """Give messages to the queues that their dead letter exchange leads to (DLX-08)."""

    def send_safely(self, queue: Queue, messages: list[Message], reason: DeadLetterReason) -> None:
        """The same for a queue that keeps what is not taken everywhere (DLX-09)."""

    def send_refused(self, queue: Queue, message: Message) -> None:
        """Send what a full queue has refused, which no queue has (LEN-24)."""

    def try_again(self, queue: Queue, message: Message, one: Attempt) -> None:
        """Offer a dead letter to those who have not taken it; keep it until all have."""

    def generation(self, queue: Queue) -> int:
        """Grows with every change of the topology around a queue."""

    def gone_of(self, queue: Queue, messages: list[Message]) -> list[Message]:
        """Those of some settled deliveries that are not kept as dead letters on their way."""

    def withdraw(self, queue: Queue, messages: list[Message]) -> None:
        """These are unacked again, after a commit that was refused (TX-09)."""


class FeatureContext:
    """What the features of all queues need.

    Args:
        timers: for everything that has a deadline
        dead_letter_sender: sends dead letters
        log: the journal, where features note what must be known after a restart
        clock: tells the journal's clock from the loop's
        serve: serves waiting consumers at once; see `LengthLimit`
        expire: deletes a queue that nobody has used for so long
        only_failures: which returns count toward a delivery limit (REDELIVER-11)
        retry_interval_ms: between two tries of a dead letter that nobody takes (DLX-09)
    """

    def __init__(
        self,
        timers: Timers,
        dead_letter_sender: DeadLetterSender,
        log: NoteLog,
        clock: JournalClock,
        *,
        serve: Callable[[Queue], bool],
        expire: Callable[[Queue], None],
        only_failures: bool = False,
        retry_interval_ms: int = RETRY_INTERVAL_MS,
    ) -> None:
        self.timers = timers
        self.dead_letter_sender = dead_letter_sender
        self.log = log
        self.clock = clock
        self.only_failures = only_failures
        self.serve = serve
        self.expire = expire
        self.retry_interval_ms = retry_interval_ms
        self._unstored_count = 0  # queues with numbers that are not stored

    def unstored_id(self, queue: Queue) -> int:
        """A number for a queue without one: no other has had it, in no life of the broker."""
        if not queue.unstored_id:
            self._unstored_count += 1
            queue.unstored_id = UNSTORED_IDS + (self.clock.now_ms() << 16)
            queue.unstored_id += self._unstored_count & 0xFFFF
        return queue.unstored_id


class Feature:
    """One feature of one queue: overrides the hooks that it wants, the others cost nothing.

    `NOTES` is the first octet of the keys of its notes in the journal, empty: it has none. `recall`
    is asked what a note says by now, before the segment that it stands in goes.
    """

    __slots__ = ()

    NOTES: ClassVar[bytes] = b""

    @classmethod
    def configured(
        cls, now: Self | None, queue: HostQueue, features: Features, context: FeatureContext
    ) -> Self | None:
        """The feature as options want it, None when they do not; `now` is the one there is.

        One that options do not make stays as it is.
        """
        del queue, features, context
        return now

    @classmethod
    def started(cls, queue: HostQueue, context: FeatureContext) -> Self:
        """A new one for a queue whose options do not ask for it, but something in it does."""
        raise NotImplementedError(cls.__name__)

    @classmethod
    def is_noted(cls, notes: dict[bytes, bytes]) -> bool:
        """Whether a queue with these notes has it, whatever its options say."""
        del notes
        return False

    @property
    def may_go(self) -> bool:
        """True when a queue whose options ask for no feature loses nothing without it."""
        return False

    @property
    def publish_filter(self) -> PublishFilter | None:
        """What the queue is to ask whether it takes a message, None when it need not ask."""
        return None

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

    def on_dead(self, messages: list[Message], reason: DeadLetterReason) -> list[Message]:
        """Messages have left the queue for good; gives those that nobody takes over (DLX-08)."""
        del reason
        return messages

    def on_publish_refused(self, message: Message) -> None:
        """The filter of the queue has refused a message (LEN-24)."""

    def on_duplicate(self, message: Message) -> None:
        """The filter of the queue has dropped a duplicate (DUP-16)."""

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
        """The number of messages that `held` would give."""
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
