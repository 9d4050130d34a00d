"""Dead letters that nobody has taken yet: kept in their queue, unseen, and tried again.

With the strategy at-least-once a dead letter leaves its queue only when every queue that its dead
letter exchange leads to has taken it, and at least one. Until then it is tried every now and then,
and when the topology has changed; each by itself, so that none holds back another. Who has taken
it already is noted with the copy that it took, so that nobody gets it twice (DLX-10).

Spec: DLX-09, DLX-10
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.protocol.fields import decode_shortstr, encode_shortstr
from vouchmq.server.broker.features.hooks import Feature
from vouchmq.server.broker.message import lsn_of
from vouchmq.server.broker.queues.parked import ParkedMessages
from vouchmq.server.broker.queues.settlement import DeadLetterReason

if TYPE_CHECKING:
    from vouchmq.server.broker.dead_letter.publisher import DeadLetterPublisher
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.classic import Queue
    from vouchmq.server.broker.queues.ports import NoteLog
    from vouchmq.server.broker.timers import Timers

# The first octet of the keys of these notes; the LSN follows (see `FeatureHooks.recall`).
PENDING: Final = b"l"
# Tried in one turn; the others follow in the next ones.
TURN_TRIES: Final = 512
# How often a change of the topology is looked for while something is pending.
LOOK_MS: Final = 200
_LSN: Final = Struct(">Q")
_HEAD: Final = Struct(">BQ")
_REASONS: Final = tuple(DeadLetterReason)


class Attempt(NamedTuple):
    """A dead letter on its way: why and when it died, and the queues that have taken it."""

    reason: DeadLetterReason
    time_s: int
    taken_by: frozenset[str] = frozenset()


class PendingDeadLetters(Feature):
    """The dead letters that one queue keeps.

    Args:
        queue: whose they are
        dead_letter_publisher: tries them
        timers: ring when it is time to try again
        interval_ms: between two tries
        log: the journal, for notes
    """

    NOTES = PENDING

    __slots__ = (
        "_dead_letter_publisher",
        "_generation",
        "_interval_ms",
        "_is_looking",
        "_log",
        "_parked",
        "_queue",
        "_timers",
        "_tries",
    )

    def __init__(
        self,
        queue: Queue,
        dead_letter_publisher: DeadLetterPublisher,
        timers: Timers,
        interval_ms: int,
        log: NoteLog,
    ) -> None:
        self._queue = queue
        self._dead_letter_publisher = dead_letter_publisher
        self._timers = timers
        self._interval_ms = interval_ms
        self._log = log
        self._tries: dict[int, Attempt] = {}
        self._parked = ParkedMessages(timers, queue.wake)
        self._generation = -1
        self._is_looking = False

    def __len__(self) -> int:
        return len(self._tries)

    def held(self) -> list[Message]:
        """What is kept."""
        return self._parked.messages()

    def held_count(self) -> int:
        """See `Feature`."""
        return len(self._tries)

    def keep(self, message: Message, one: Attempt) -> None:
        """A dead letter could not go everywhere."""
        if not self._tries:
            self._generation = self._dead_letter_publisher.generation(self._queue)
        self._look_later()
        before = self._tries.get(message[2])
        self._tries[message[2]] = one
        self._parked.put(message, self._timers.now_ms() + self._interval_ms)
        if message[2] & 1 and self._queue.stored and before != one:
            self._log.note(self._queue.spec.queue_id, note_key(message[2]), packed(one))

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
        pace, left = self._dead_letter_publisher.pace, TURN_TRIES
        while left > 0 and self._parked.is_due and pace.may_send(self._queue):
            left -= pace.at_a_time
            for message in self._parked.take_due(pace.at_a_time):
                self._dead_letter_publisher.try_again(self._queue, message, self._tries[message[2]])

    def done(self, message: Message) -> None:
        """Everybody has it."""
        if self._tries.pop(message[2], None) is not None and message[2] & 1 and self._queue.stored:
            self._log.unnote(self._queue.spec.queue_id, note_key(message[2]))

    def drop(self) -> list[Message]:
        """Give up all of them; gives what they were."""
        messages = self._parked.take_all()
        for message in messages:
            self.done(message)
        return messages

    def on_deleted(self) -> None:
        """The queue is gone."""
        self._parked.take_all()
        self._tries.clear()

    def _look(self) -> None:
        """Whether the topology has changed: then all are tried now."""
        self._is_looking = False
        if not self._tries or self._queue.is_deleted:
            return
        generation = self._dead_letter_publisher.generation(self._queue)
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
    """What a note says."""
    reason, time_s = _HEAD.unpack_from(value)
    names: list[str] = []
    at = _HEAD.size
    while at < len(value):
        name, at = decode_shortstr(value, at)
        names.append(name)
    return Attempt(_REASONS[reason], time_s, frozenset(names))
