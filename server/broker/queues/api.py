"""What a queue is to those around it, and what they are to a queue.

Queues of three kinds stand side by side, none of which inherits from another: the classic queue
(`classic.py`, also of type quorum), the stream (`streams/stream.py`) and the queue of delayed
messages (`delays.py`). Who publishes, consumes, settles, dead-letters, lists or restores knows
`Queue` and asks nobody of which kind one is. The parts of a classic queue (its features, and who
deals its messages out) know `HostQueue`, which says what they may ask of the queue they are in.

A queue knows its consumers and those it reports to only through this page: it never sees a channel
or a socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from vouchmq.server.broker.queues.spec import QueueLike

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Sequence

    from vouchmq.server.broker.counters import QueueCounters
    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.priority import PriorityLevels
    from vouchmq.server.broker.queues.ready_list import ReadyList, RunSize
    from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome
    from vouchmq.server.broker.streams.index import Split
    from vouchmq.server.broker.streams.start import Start

F = TypeVar("F")

# What a queue says to a message; 0 and more: it is a duplicate, of one whose LSN this is
# (0: that one waits for nothing).
TAKES: Final = -1
REFUSES: Final = -2
# Messages that a queue hands out in one turn (LIMIT-23).
TURN_MESSAGES: int = 4096


def always(lsn: int) -> bool:
    """The default of `may_leave`: a get may take any message."""
    del lsn
    return True


class Queue(QueueLike, Protocol):
    """A queue, seen from outside.

    What a kind of queue does not say itself is what holds for one without consumers, features and
    priorities.
    """

    if not TYPE_CHECKING:
        __slots__ = ()  # or whoever implements it had a `__dict__` for nothing

    stored: bool  # the journal keeps its persistent messages
    keeps_all: bool  # … and transient ones, too
    features: Features  # the options in effect
    levels: PriorityLevels | None  # its priorities
    publish_filter: PublishFilter | None  # asked whether it takes a message; None: it takes all
    recorder: QueueRecorder | None  # while the ledger is on
    unacked_count: int
    unstored_id: int  # its number where it needs one and the journal gives none
    holds_stored: bool  # the journal may hold some of its messages
    is_deleted: bool
    is_dirty: bool  # it has asked for a dispatch
    largest_octets: int  # of the messages that are handed out; an estimate

    @property
    def has_consumers(self) -> bool:
        """Whether anybody may be served."""
        return self.consumer_count > 0

    @property
    def is_ordered(self) -> bool:
        """Whether messages leave it in the order in which they came, as the ledger says it."""
        return True

    @property
    def consuming_removes(self) -> bool:
        """Whether a delivery that is settled leaves the queue: not so of a stream (STREAM-15)."""
        return True

    @property
    def owes(self) -> bool:
        """True when a consumer is to have what came in this turn, and has not got it yet."""
        return False

    def feature(self, kind: type[F]) -> F | None:
        """Its feature of this class, None when it has none."""
        del kind
        return None

    def apply_options(self, features: Features) -> None:
        """Let the queue have these features from now on; what is in it stays."""

    # Coming in

    def enqueue(self, messages: Iterable[Message], size: RunSize, *, stored: bool) -> None:
        """Append a run of messages; `stored`: the journal holds them."""

    def can_take_now(self, message: Message) -> bool:
        """PUB-30: nothing is ready and a consumer has room for it at this moment."""
        del message
        return False

    def expect_expirations(self) -> None:
        """From now on messages in it may have a time to live of their own (TTL-01)."""
        return

    def on_publish_refused(self, message: Message) -> None:
        """Its filter has refused a message, which may make that a dead letter (LEN-24)."""
        del message

    def on_duplicate(self, message: Message) -> None:
        """Its filter has dropped a duplicate, which may make that a dead letter (DUP-16)."""
        del message

    def forget_refused(self, first_lsn: int) -> None:
        """The journal could not store what it was given from this LSN on: no copy stays (CONF-12).

        Such messages are the newest, and none has been handed out.
        """

    # Going out

    def wake(self) -> None:
        """Ask for a dispatch in this turn."""

    def dispatch(self) -> None:
        """Hand ready messages to consumers, as far as fits in one turn."""

    def mark_ahead(self) -> None:
        """Log a delivery that is certain, in the block that is about to be written.

        This queue is the next to be dispatched, behind that block. A message that comes alone is
        then in one block with the mark of its delivery, as is the ack of a consumer that takes one
        at a time with the mark of its next message. Nothing may come between that takes the head
        away, or the consumer's room: writing the journal does neither, unless the disk refuses the
        message. Then the mark stays and speaks of nobody, as what comes later has a higher LSN.
        """
        return

    def credit_available(self, consumer: ConsumerPort | None) -> None:
        """A consumer may have room which it had not, or something else has changed: see `wake`."""
        del consumer

    def add_consumer(
        self, consumer: ConsumerPort, *, exclusive: bool, start: Start | None = None
    ) -> None:
        """Register a consumer; `start`: where in a stream it begins.

        Raises:
            AccessRefused: an exclusive consumer is there, or one is asked for beside others
                (CONS-05)
        """
        raise TypeError(self.spec.text)

    def remove_consumer(self, consumer: ConsumerPort) -> None:
        """Take a consumer away; the last one's leaving may end an auto-delete queue."""
        del consumer

    def is_waiting(self, consumer: ConsumerPort) -> bool:
        """Whether a consumer is not served, because another one is alone (CONS-30)."""
        del consumer
        return False

    def numbering(self) -> Numbering:
        """Who knows the places of its messages, from now on (SEQ-01)."""
        raise TypeError(self.spec.text)

    def get(
        self, *, no_ack: bool, may_leave: Callable[[int], bool] = always
    ) -> tuple[Message, Message, bool] | None:
        """Take the head as a consumer would (CONS-51).

        Args:
            no_ack: whether it is settled by that
            may_leave: asked before a message is taken, with its LSN, 0 if it has none; may take
                messages out of the queue, and ends the search with False

        Returns:
            the message, the same as it is to be shown, and whether it is a redelivery
        """
        raise TypeError(self.spec.text)

    def peek(self, at: int, count: int) -> Peeked | None:
        """Messages from a place on, in the order in which they leave; nothing changes by it.

        Not all that are asked for, but at least one, if there is one. None: in a later turn.
        """
        del at, count
        raise TypeError(self.spec.text)

    def take_ready(self, most: int) -> list[Message] | None:
        """Take messages from the head, which count as handed out to nobody.

        Who has taken them gives them to `return_taken`, or sees to their end. None: in a later
        turn.
        """
        del most
        raise TypeError(self.spec.text)

    def return_taken(self, messages: list[Message]) -> None:
        """Messages that `take_ready` gave are ready again, as if nobody had touched them."""
        raise TypeError(self.spec.text)

    def put_back(self, messages: list[Message]) -> None:
        """Messages that had been taken out are ready again, each at its place."""
        raise TypeError(self.spec.text)

    def parked(self) -> list[Message]:
        """Messages neither ready nor unacked."""
        return []

    # What becomes of deliveries

    def settle(self, messages: list[Message]) -> None:
        """These deliveries are done with: acked, or sent without need of an ack."""
        del messages

    def discard(self, messages: list[Message], reason: DeadLetterReason) -> None:
        """These deliveries are refused: they become dead letters or nothing (ACK-06)."""
        del messages, reason

    def requeue(self, messages: list[Message], outcome: Outcome) -> None:
        """Put deliveries back at their original places (ACK-10)."""
        del messages, outcome

    def unsettle(self, messages: list[Message]) -> None:
        """Their settlement could not be stored: they are unacked again (TX-09)."""
        del messages

    def log_settled(self, messages: list[Message]) -> None:
        """Their copies are gone, as far as the journal holds them."""

    def stored_copies(self, messages: list[Message]) -> list[tuple[int, Sequence[int]]]:
        """Those of some messages that the journal holds: LSNs by the id they are kept under."""
        del messages
        return []

    def keeps(self, messages: list[Message]) -> None:
        """These are in the queue again, somewhere."""
        del messages

    def drop(self, messages: list[Message]) -> None:
        """Messages neither ready nor unacked any more: nothing is left of them."""

    # What is in it

    def held_spans(self) -> list[list[Collection[int]]]:
        """LSNs of what is ready, each list ascending; nothing is read for it."""

    def held_lsns(self) -> list[int]:
        """LSNs of what is neither ready nor unacked."""
        return []

    # Restart

    def restore(self, store_id: int, spans: Sequence[Sequence[int]], delivered_lsn: int) -> None:
        """Put recovered copies in place by their LSNs; the mark tells who was delivered."""

    def restore_offsets(self, split: Split) -> None:
        """What blocks say of the positions of recovered messages; before `restore_notes`."""
        del split

    def restore_notes(self, notes: dict[bytes, bytes]) -> None:
        """What had been noted of the queue before a restart; its messages are in place."""
        del notes

    def recall(self, key: bytes) -> bytes | None:
        """The value that a note has by now, None when it is not wanted any more."""
        del key
        return None

    def position_of(self, lsn: int) -> int | None:
        """The offset of a stored message, None where there are none."""
        del lsn
        return None


class Peeked(NamedTuple):
    """Messages as they are in a queue; none: the place is behind the last one.

    `first` is the place of the first; those with a seq up to `mark` have been handed out before.
    `due_ms` is when each is ready, by the clock of the loop; empty where they are ready.
    """

    first: int
    messages: list[Message]
    mark: int = 0
    due_ms: tuple[int, ...] = ()


class HostQueue(Queue, Protocol):
    """A classic queue, seen from its own parts."""

    if not TYPE_CHECKING:
        __slots__ = ()  # or whoever implements it had a `__dict__` for nothing

    ready: ReadyList
    lines: list[ReadyList]
    came_count: int  # messages that ever came (SEQ-01)
    returned_count: int  # messages that came back, and are not at their places yet

    @property
    def held_count(self) -> int:
        """Messages that count toward a length limit: ready ones, and those parked."""

    @property
    def held_octets(self) -> int:
        """Octets of their bodies; only a queue with such a limit counts them."""

    @property
    def is_head_wanted(self) -> bool:
        """True when a consumer has room for the head: it is served in this turn (TTL-06)."""

    def peek(self, at: int, count: int) -> Peeked | None:
        """See `Queue`."""
        if self.returned_count:
            return None
        before = 0
        for line in self.lines:
            if at < before + line.count:
                messages = line.peek(at - before, count)
                return None if messages is None else Peeked(at, messages, line.mark)
            before += line.count
        return Peeked(at, [])

    def count_octets(self) -> None:
        """Count the octets of what is ready from now on."""

    def next_ready(self, *, at_once: bool = False) -> ReadyList | None:
        """The line whose head is next, None when nothing is ready or can be read now."""

    def take(self, line: ReadyList, count: int) -> list[Message]:
        """Take from the head of a line what may be handed out, at most so many."""

    def deliver(
        self, consumer: ConsumerPort, line: ReadyList, batch: list[Message], mark: int = -1
    ) -> bool:
        """Give a batch to a consumer; False when there was nothing in it.

        `mark`: that of the line before it, if `on_delivered` has been told already; -1: tell it.
        """

    def on_delivered(self, line: ReadyList, last_seq: int, *, no_ack: bool) -> None:
        """Up to this one messages are handed out, to somebody who owes acks or not."""

    def dead_letter(self, messages: list[Message], reason: DeadLetterReason) -> None:
        """Messages in no line any more and not unacked: dead letters, if the queue has them."""

    def park_dead(self, messages: list[Message], reason: DeadLetterReason, mark: int) -> None:
        """Messages from the head of a line with this mark are dead, and dead letters later."""

    def take_ready(self, most: int) -> list[Message] | None:
        """See `Queue`; those of one line."""
        if self.returned_count:
            return None
        self.run_features()
        for line in self.lines:
            if not line.is_empty:
                return line.take_head(most)
        return []

    def return_taken(self, messages: list[Message]) -> None:
        """See `Queue`."""
        if messages and self.levels is not None:
            self.levels.return_taken(messages)
            self.wake()
        else:
            self.put_back(messages)

    def run_features(self) -> None:
        """Have features do what a dispatch would have them do, without serving anybody."""

    def extract(self, lsns: Container[int]) -> list[Message]:
        """Take restored messages out that are not to be ready."""

    def delivered_before(self) -> list[int]:
        """LSNs of restored messages that had been handed out before the restart."""


class PublishFilter(Protocol):
    """Whether a queue takes a message.

    A queue without such a say has no filter, and a target without such a queue asks nobody.
    """

    def check(self, raw: bytes) -> int:
        """TAKES, REFUSES, or the LSN that the confirm of a duplicate waits for."""

    def takes_all(self, raws: Sequence[bytes]) -> bool:
        """Whether it would surely take every one of these, asked one by one as they are stored."""

    def has_room(self, count: int, octets: int) -> bool:
        """Whether so many more messages with so many octets of bodies would all be taken."""

    def call_when_room(self, call: Callable[[], None]) -> None:
        """Call this once, when it may take messages again that it has refused (DLX-09)."""


class Verdict(NamedTuple):
    """What the filters of a target said to one message.

    `is_refused`: some queue refused it (CONF-07). `lsn`: what a duplicate waits for, 0 for nothing.
    """

    is_refused: bool
    lsn: int


class Numbering(Protocol):
    """Who knows the places of a queue's messages."""

    @property
    def queue_id(self) -> int:
        """Of this incarnation of the queue."""

    def numbers_of(self, messages: list[Message]) -> list[int]:
        """The places of messages that were handed out, from 1 on."""


class Destination(Protocol):
    """Where a run of messages goes, see `Target`."""

    @property
    def queues(self) -> tuple[Queue, ...]:
        """Each queue that gets them."""

    @property
    def tail(self) -> bytes:
        """Exchange and routing key, as a deliver frame has them."""


class Author(Protocol):
    """Who has messages stored, and writes that down while the ledger is on."""

    def stored(
        self,
        target: Destination,
        raws: list[bytes],
        first_lsn: int,
        octets: int,
        *,
        persistent: bool,
    ) -> None:
        """A run has got its LSNs, one after the other, whether the journal holds it or not.

        `octets` are those of the contents as received.
        """


class ConsumerPort(Protocol):
    """A consumer, seen from its queue."""

    priority: int
    no_ack: bool

    @property
    def shares_room(self) -> bool:
        """True when its room depends on other consumers' deliveries or on message sizes."""

    @property
    def judges_size(self) -> bool:
        """True when a smaller head may find room where another found none."""

    @property
    def has_outstanding(self) -> bool:
        """True while deliveries to it are unsettled."""

    def capacity(self, head: bytes) -> int:
        """How many messages it can take now, the first with content `head`; 0 when it must wait.

        Its queue hears of it when that has changed, see `Queue.credit_available`.
        """

    def deliver(
        self, messages: list[Message], mark: int, shown: list[Message] | None = None
    ) -> None:
        """Take these messages; those with a seq up to `mark` had been handed out before.

        `shown` are the same as the client is to see them, if that is something else.
        """

    def queue_deleted(self) -> None:
        """The queue is gone, and this consumer with it (CONS-40)."""


class BusyQueue(Protocol):
    """A queue that has more than its consumers can take at once."""

    counters: QueueCounters
    unacked_count: int
    is_dirty: bool

    @property
    def ready_count(self) -> int:
        """Messages waiting, not counting unacked ones (QUEUE-01)."""

    @property
    def has_consumers(self) -> bool:
        """Whether anybody may be served."""


class QueueFlow(Protocol):
    """Who holds publishers back while a queue has enough, see `runtime/flow.py`."""

    @property
    def is_shown(self) -> bool:
        """True when publishers have waited for it for a part of the last seconds that counts."""

    def came(self, count: int) -> None:
        """So many messages have been published to the queue."""

    def served(self) -> QueueFlow | None:
        """The queue has been dispatched; None when it needs no bound any more."""


class FlowControl(Protocol):
    """Who bounds what stands in front of consumers that keep up (LIMIT-29)."""

    least: int  # so many messages may always be ready

    def watch(self, queue: BusyQueue) -> QueueFlow | None:
        """Bound a queue whose consumers could not take everything, if it has enough by now."""


class Dispatcher(Protocol):
    """Who calls `Queue.dispatch` once per loop turn; `watermark` is the highest LSN on disk."""

    watermark: int

    @property
    def flow(self) -> FlowControl:
        """See `FlowControl`."""

    def wants_dispatch(self, queue: Queue) -> None:
        """Put the queue on this turn's list; the queue sees to it that it stands there once."""

    def waits_for_sync(self, queue: Queue) -> None:
        """Wake this queue when the watermark moves, once: what came to it is not on disk yet."""


class SettlementLog(Protocol):
    """Where it is written down what became of stored copies: the journal."""

    def settle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Note in the journal that these copies are gone."""

    def delivered(self, queue_id: int, lsn: int) -> None:
        """Every copy up to `lsn` has been handed out at least once (DURABLE-12)."""


class NoteLog(Protocol):
    """Where features of a queue write down what must be known after a restart: the journal."""

    def note(self, scope_id: int, key: bytes, value: bytes) -> int:
        """Something about a queue to be known after a restart; the newest value counts.

        The first octet of the key says whose it is, see `Feature`.
        """

    def unnote(self, scope_id: int, key: bytes) -> None:
        """It need not be known any more."""


class QueueRecorder(Protocol):
    """Where a queue writes what becomes of its copies while the ledger is on.

    `docs/operate/ledger.md` says what the lines mean.
    """

    @property
    def qid(self) -> int:
        """The number of the queue in the ledger."""

    def dropped(self, messages: Sequence[Message], why: str) -> None:
        """These copies are gone, and nothing is left of them."""

    def died(self, messages: Sequence[Message], why: str, exchange: str) -> None:
        """These copies are gone as dead letters."""

    def back(self, messages: Sequence[Message]) -> None:
        """Their end was refused by the disk: they are in the queue again."""

    def lost(self, lsns: Iterable[int], why: str) -> None:
        """Copies are gone, by their LSNs."""

    def lost_ranges(self, ranges: Iterable[tuple[int, int]], why: str) -> None:
        """Copies are gone, by ranges of their LSNs."""

    def moves(self, messages: Sequence[Message], raws: Sequence[bytes], why: str) -> Author:
        """Copies that leave for other queues; `raws` is what of each of them arrives there."""

    def purged(self, queue: Queue) -> None:
        """What was ready is gone, and has been told of."""

    def deleted(self, queue: Queue) -> None:
        """The queue is about to go, with all that it holds, unacked or not."""

    def dealing(self) -> None:
        """A batch is dealt to several consumers from here on …"""

    def dealt(self) -> None:
        """… to here: what they get is one step in the order of the queue."""
