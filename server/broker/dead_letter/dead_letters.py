"""The dead letters of one queue: where they go, what is put off, what nobody has taken yet.

Where many messages die at once, or the disk has no room, some wait in memory and are dead letters
in later turns. With the strategy at-least-once a dead letter leaves its queue only when every queue
that its dead letter exchange leads to has taken it, and at least one. Until then it is kept in its
queue, unseen, and tried when a full target has room again, when the topology has changed, and every
now and then; each by itself, so that none holds back another. Who has taken it already is noted
with the copy that it took, so that nobody gets it twice (DLX-10).

Must not know how a dead letter looks, nor where its exchange leads.

Spec: DLX-08 … DLX-12, DLX-23
"""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.fields import decode_shortstr, encode_shortstr
from vouchmq.protocol.runs import body_size
from vouchmq.server.broker.dead_letter.headers import Attempt
from vouchmq.server.broker.features.feature import Feature
from vouchmq.server.broker.message import lsn_of
from vouchmq.server.broker.queues.parked import ParkedMessages
from vouchmq.server.broker.queues.settlement import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.features.feature import DeadLetterSender, FeatureContext
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import HostQueue, NoteLog, Queue
    from vouchmq.server.broker.timers import Timers

# Refused deliveries that become dead letters at once; of more so many at a time, for so long in one
# turn (LIMIT-23).
DEAD_LETTERS_AT_ONCE: Final = 64
TURN_DEAD_LETTERS: Final = 4096
TURN_DEAD_LETTERS_MS: Final = 10
# So many dead messages are kept in memory while the disk has no room for dead letters.
MAX_PARKED: Final = 4096
# The first octet of the keys of these notes; the LSN follows (see `Feature`).
PENDING: Final = b"l"
# Tried in one turn; the others follow in the next ones.
TURN_TRIES: Final = 512
# How often a change of the topology is looked for while something is pending.
LOOK_MS: Final = 200
_LSN: Final = Struct(">Q")
_HEAD: Final = Struct(">BQ")
_REASONS: Final = tuple(DeadLetterReason)
AT_LEAST_ONCE: Final = "at-least-once"


def is_at_least_once(features: Features) -> bool:
    """Whether a dead letter stays until all its targets have it (DLX-09)."""
    return features.text("dead-letter-strategy") == AT_LEAST_ONCE


class DeadLetters(Feature):
    """The dead letter settings of one queue, and the dead that are to be dead letters later.

    Every queue with features has it. Unless `is_set` nothing becomes a dead letter.

    Args:
        queue: whose they are
        sender: sends them
        now_ms: the loop's clock in whole milliseconds
    """

    __slots__ = (
        *("_deferred", "_is_safe", "_now_ms", "_queue", "_sender"),
        *("exchange", "is_set", "pending", "routing_key", "told"),
    )

    def __init__(
        self, queue: HostQueue, sender: DeadLetterSender, now_ms: Callable[[], int]
    ) -> None:
        self._queue = queue
        self._sender = sender
        self._now_ms = now_ms
        self._deferred: deque[tuple[list[Message], DeadLetterReason]] = deque()
        # What dies from now on is kept until it is taken, and not only what had been before.
        self._is_safe = False
        self.pending: PendingDeadLetters | None = None  # keeps what nobody takes (DLX-09)
        self.is_set = False
        self.exchange = ""  # it need not exist
        self.routing_key: str | None = None  # None: as they were published
        self.told: set[tuple[str, DeadLetterReason]] = set()  # what has been logged, once each

    @classmethod
    def started(cls, queue: HostQueue, context: FeatureContext) -> Self:
        return cls(queue, context.dead_letter_sender, context.timers.now_ms)

    @classmethod
    def configured(
        cls, now: Self | None, queue: HostQueue, features: Features, context: FeatureContext
    ) -> Self:
        now = now or cls.started(queue, context)
        exchange = features.text("dead-letter-exchange")
        now.is_set = exchange is not None
        now.exchange = exchange or ""
        now.routing_key = features.text("dead-letter-routing-key")
        now._is_safe = is_at_least_once(features)
        now.pending = queue.feature(PendingDeadLetters)
        now.told = set()
        return now

    def wants(self, hook: str) -> bool:
        """Nothing while there is no exchange, and nothing left from when there was one."""
        return (self.is_set or bool(self._deferred)) and super().wants(hook)

    @property
    def may_go(self) -> bool:
        return not self.is_set and not self._deferred

    # How many may go, and when

    @property
    def may_send(self) -> bool:
        """Whether some messages may become dead letters now (DLX-23)."""
        return not self.is_set or self._sender.pace.may_send(self._queue)

    def batch_limit(self, most: int) -> int:
        """So many, or fewer where dead letters come of them, are let go between two looks."""
        return most if not self.is_set else min(most, self._sender.pace.at_a_time)

    @property
    def is_paused(self) -> bool:
        """True while none may, for want of room on the disk."""
        return self.is_set and self._sender.pace.is_paused

    @property
    def is_nested(self) -> bool:
        """True when no more may be let go now, or chains of full queues would recurse (DLX-12)."""
        return self.is_set and self._sender.is_nested

    def continue_later(self) -> None:
        """There is more to do, in another turn."""
        if self.is_paused:
            self._sender.pace.wait(self._queue.wake)
        else:
            self._queue.wake()

    # What dies

    def on_dead(self, messages: list[Message], reason: DeadLetterReason) -> list[Message]:
        """Send them; they are in no ready list of their queue any more and not unacked."""
        if not self.is_set:
            return messages
        if self._is_safe:
            self._sender.send_safely(self._queue, messages, reason)
        else:
            self._sender.send(self._queue, messages, reason)
        return []

    def send_refused(self, message: Message) -> None:
        """The queue has refused a message, which becomes a dead letter (LEN-24)."""
        if self.is_set:
            self._sender.send_refused(self._queue, message)

    def send_duplicate(self, message: Message) -> None:
        """The queue has dropped a duplicate, which becomes a dead letter (DUP-16)."""
        if self.is_set and not self._sender.is_sending:
            self._sender.send(self._queue, [message], DeadLetterReason.REJECTED)

    def on_removal_undone(self, messages: list[Message]) -> None:
        """What made them dead letters could not be stored: they are none (TX-09)."""
        if self.is_set:
            self._sender.withdraw(self._queue, messages)

    # What is put off

    def defer(self, messages: list[Message], reason: DeadLetterReason) -> bool:
        """Whether it takes too long to make dead letters of these at once: it is done by and by.

        Not of what stands in a transaction, which is one block (TX-08).
        """
        if not self.is_set or self._sender.is_gathering:
            return False
        if len(messages) <= DEAD_LETTERS_AT_ONCE and not self._deferred and not self.can_park:
            return False
        self.put_off(messages, reason)
        self.continue_later()
        return True

    @property
    def can_park(self) -> bool:
        """True when the dead are to be kept for now, so that others can be served meanwhile."""
        return self.is_paused and sum(len(some) for some, _ in self._deferred) < MAX_PARKED

    def put_off(self, messages: list[Message], reason: DeadLetterReason) -> None:
        """These are dead letters later."""
        self._deferred.append((messages, reason))

    def release_due(self) -> None:
        """Go on with what was put off."""
        if not self._deferred:
            return
        end_ms, left = self._now_ms() + TURN_DEAD_LETTERS_MS, TURN_DEAD_LETTERS
        while self._deferred and left > 0 and self._now_ms() < end_ms and self.may_send:
            messages, reason = self._deferred.popleft()
            few = self.batch_limit(DEAD_LETTERS_AT_ONCE)
            some, rest = messages[:few], messages[few:]
            if rest:
                self._deferred.appendleft((rest, reason))
            left -= len(some)
            self._queue.dead_letter(some, reason)
        if self._deferred:
            self.continue_later()

    def held(self) -> list[Message]:
        """The messages that the feature keeps out of the ready list."""
        return [message for messages, _ in self._deferred for message in messages]

    def held_count(self) -> int:
        return sum(len(messages) for messages, _ in self._deferred)

    def on_deleted(self) -> None:
        self._deferred.clear()


def dead_letters_of(queue: Queue) -> DeadLetters:
    """What becomes of the dead of a queue, which has features."""
    found = queue.feature(DeadLetters)
    if found is None:
        raise LookupError(queue.spec.text)
    return found


class PendingDeadLetters(Feature):
    """The dead letters that one queue keeps.

    Args:
        queue: whose they are
        sender: tries them
        timers: ring when it is time to try again
        interval_ms: between two tries
        log: the journal, for notes
    """

    NOTES = PENDING

    __slots__ = (
        "_generation",
        "_interval_ms",
        "_is_looking",
        "_log",
        "_open",
        "_parked",
        "_queue",
        "_sender",
        "_timers",
        "_tries",
        "_waiting",
    )

    def __init__(
        self,
        queue: HostQueue,
        sender: DeadLetterSender,
        timers: Timers,
        interval_ms: int,
        log: NoteLog,
    ) -> None:
        self._queue = queue
        self._sender = sender
        self._timers = timers
        self._interval_ms = interval_ms
        self._log = log
        self._tries: dict[int, Attempt] = {}
        self._parked = ParkedMessages(timers, queue.wake)
        # What waits for room in which queue, by seq; what was tried meanwhile may still be named.
        # Of each queue we are told of room, once, or we have been: those are open.
        self._waiting: dict[Queue, OrderedDict[int, None]] = {}
        self._open: dict[Queue, None] = {}
        self._generation = -1
        self._is_looking = False

    @classmethod
    def configured(
        cls, now: Self | None, queue: HostQueue, features: Features, context: FeatureContext
    ) -> Self | None:
        """See `Feature`: what is pending stays so as long as there is an exchange."""
        if features.text("dead-letter-exchange") is None:
            if now is not None:
                dropped = now.drop()
                if queue.recorder is not None:
                    queue.recorder.dropped(dropped, "dropped")
                queue.drop(dropped)
            return None
        if now is None and is_at_least_once(features):
            sender, interval_ms = context.dead_letter_sender, context.retry_interval_ms
            return cls(queue, sender, context.timers, interval_ms, context.log)
        return now

    def __len__(self) -> int:
        return len(self._tries)

    def held(self) -> list[Message]:
        """The messages that the feature keeps out of the ready list."""
        return self._parked.messages()

    def held_count(self) -> int:
        return len(self._tries)

    def keep(self, message: Message, one: Attempt, full: tuple[Queue, ...] = ()) -> None:
        """A dead letter could not go everywhere; `full`: the queues that have refused it."""
        if not self._tries:
            self._generation = self._sender.generation(self._queue)
        self._look_later()
        before = self._tries.get(message[2])
        self._tries[message[2]] = one
        self._parked.put(message, self._timers.now_ms() + self._interval_ms)
        if message[2] & 1 and self._queue.stored and before != one:
            self._log.note(self._queue.spec.queue_id, note_key(message[2]), packed(one))
        for each in full:
            waiting = self._waiting.get(each)
            if waiting is None:
                waiting = self._waiting[each] = OrderedDict()
                self._ask_for_room(each)
            waiting[message[2]] = None

    def knows(self, message: Message) -> bool:
        """Whether it has been tried before."""
        return message[2] in self._tries

    def keep_again(self, message: Message, one: Attempt) -> None:
        """The disk has refused what became of a try: it is as before, and tried again later."""
        self._tries.pop(message[2], None)
        self.keep(message, one)

    def on_removal_undone(self, messages: list[Message]) -> None:
        """These are unacked again, after a commit that was refused (TX-09)."""
        for message in messages:
            self._parked.forget(message[2])
            self.done(message)

    def on_write_refused(self, first_lsn: int) -> None:
        """The disk took nothing from this LSN on (CONF-12)."""
        gone = [seq for seq in self._tries if seq & 1 and seq >= first_lsn * 2]
        for seq in gone:
            self._parked.forget(seq)
            del self._tries[seq]
        if self._queue.recorder is not None:
            self._queue.recorder.lost(sorted(map(lsn_of, gone)), "refused")

    def release_due(self) -> None:
        """Try again what is due."""
        pace, left = self._sender.pace, TURN_TRIES
        while left > 0 and self._parked.is_due and pace.may_send(self._queue):
            left -= pace.at_a_time
            for message in self._parked.take_due(pace.at_a_time):
                self._sender.try_again(self._queue, message, self._tries[message[2]])
        for full in list(self._open):
            if left > 0:
                left = self._fill(full, left)
        if self._open:
            dead_letters_of(self._queue).continue_later()

    # Room in full queues

    def _ask_for_room(self, full: Queue) -> None:
        if full.publish_filter is not None:
            full.publish_filter.call_when_room(partial(self._has_room, full))

    def _has_room(self, full: Queue) -> None:
        if full in self._waiting:
            self._open[full] = None
            self._queue.wake()
        else:
            full.wake()  # somebody else may wait

    def _fill(self, full: Queue, left: int) -> int:
        """Try what waits for a queue while that has room; gives how many may still be tried."""
        waiting, pace = self._waiting[full], self._sender.pace
        while waiting:
            seq = next(iter(waiting))
            message = self._parked.find(seq)
            if message is None:
                del waiting[seq]
                continue
            takes = full.publish_filter
            if takes is not None and not takes.has_room(1, body_size(message[0])):
                break
            if left <= 0 or not pace.may_send(self._queue):
                return left  # it stays open
            del waiting[seq]
            self._parked.forget(seq)
            left -= 1
            self._sender.try_again(self._queue, message, self._tries[seq])
            if seq in waiting:
                break
        del self._open[full]
        if waiting:
            self._ask_for_room(full)
        else:
            del self._waiting[full]
            full.wake()
        return left

    def done(self, message: Message) -> None:
        """End the attempts for a message that all its targets have."""
        if self._tries.pop(message[2], None) is not None and message[2] & 1 and self._queue.stored:
            self._log.unnote(self._queue.spec.queue_id, note_key(message[2]))

    def drop(self) -> list[Message]:
        """Give up all of them; gives what they were."""
        self._wait_no_more()
        messages = self._parked.take_all()
        for message in messages:
            self.done(message)
        return messages

    def on_deleted(self) -> None:
        """What was to be tried again is gone with the queue."""
        self._wait_no_more()
        self._parked.take_all()
        self._tries.clear()

    def _wait_no_more(self) -> None:
        self._waiting.clear()
        for full in self._open:
            full.wake()
        self._open.clear()

    def _look(self) -> None:
        """Whether the topology has changed: then all are tried now."""
        self._is_looking = False
        if not self._tries or self._queue.is_deleted:
            return
        generation = self._sender.generation(self._queue)
        if generation != self._generation:
            self._generation = generation
            now_ms = self._timers.now_ms()
            for message in self._parked.take_all():
                self._parked.put(message, now_ms)
            self._queue.wake()
        self._look_later()

    def _look_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._timers.at(self._timers.now_ms() + LOOK_MS, self._look)

    # Restart

    def recall(self, key: bytes) -> bytes | None:
        """What the note of a message says by now."""
        one = self._tries.get(_LSN.unpack(key[1:])[0] * 2 + 1)
        return None if one is None else packed(one)

    def restore(self, notes: dict[bytes, bytes]) -> None:
        """Take out of the ready list what had been kept before a restart, and try it."""
        kept = {
            _LSN.unpack(key[1:])[0]: unpacked(value)
            for key, value in notes.items()
            if key[:1] == PENDING
        }
        for message in self._queue.extract(kept) if kept else ():
            self.keep(message, kept[lsn_of(message[2])])
            self._generation = -1


def note_key(seq: int) -> bytes:
    """The key under which a kept dead letter is noted."""
    return PENDING + _LSN.pack(lsn_of(seq))


def packed(one: Attempt) -> bytes:
    """The value of a note."""
    names = b"".join(encode_shortstr(name) for name in sorted(one.taken_by))
    return _HEAD.pack(_REASONS.index(one.reason), one.time_s) + names


def unpacked(value: bytes) -> Attempt:
    """The note of a pending dead letter: its reason, its time, and the targets that have it."""
    reason, time_s = _HEAD.unpack_from(value)
    names: list[str] = []
    at = _HEAD.size
    while at < len(value):
        name, at = decode_shortstr(value, at)
        names.append(name)
    return Attempt(_REASONS[reason], time_s, frozenset(names))
