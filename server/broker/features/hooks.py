"""What a queue asks for when it has more to do than a plain one: the rooms of its features.

A plain queue has no such page and pays one look for it per run. Each room is None unless the
queue has the feature; here stands only who is asked when, and in which order.
Must not know how a feature works.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from vouchmq.server.broker.dead_letter.retry import STUCK
from vouchmq.server.broker.features.dedup import KEYS
from vouchmq.server.broker.features.queue_seq import SEQUENCE_NOTES
from vouchmq.server.broker.features.redelivery import COUNTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vouchmq.server.broker.dead_letter.publisher import Letters
    from vouchmq.server.broker.features.dedup import Dedup
    from vouchmq.server.broker.features.expiry import Expiry
    from vouchmq.server.broker.features.length import Limit
    from vouchmq.server.broker.features.queue_expiry import Lease
    from vouchmq.server.broker.features.queue_seq import Sequence
    from vouchmq.server.broker.features.redelivery import Returns
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.classic import Queue
    from vouchmq.server.broker.queues.settlement import Fate, Reason


# Refused deliveries that become dead letters at once; of more so many at a time, for so long in one
# turn (LIMIT-23).
FEW_DEATHS: Final = 64
TURN_DEATHS: Final = 4096
TURN_DEATHS_MS: Final = 10

# So many dead messages are kept in memory while the disk has no room for letters.
MOST_LAID_ASIDE: Final = 4096

# Whose a note in the journal is: the first octet of its key.
OWN_EXPIRATIONS: Final = b"x"  # the whole key: messages may have a time to live of their own


class Care:
    """The features of one queue.

    Args:
        queue: whose they are
        now_ms: the loop's clock in whole milliseconds
    """

    __slots__ = (
        *("_dying", "_queue", "dedup", "expiry", "lease", "letters", "limit", "now_ms", "returns"),
        "sequence",
    )

    def __init__(self, queue: Queue, now_ms: Callable[[], int]) -> None:
        self._queue = queue
        self._dying: deque[tuple[list[Message], Reason]] = deque()
        self.now_ms = now_ms
        self.letters: Letters | None = None
        self.expiry: Expiry | None = None
        self.limit: Limit | None = None
        self.lease: Lease | None = None
        self.returns: Returns | None = None
        self.dedup: Dedup | None = None
        self.sequence: Sequence | None = None

    @property
    def holds(self) -> bool:
        """True while messages of the queue are neither ready nor unacked."""
        return self.held_count > 0

    @property
    def held_count(self) -> int:
        """Messages neither ready nor unacked, which count toward length limits (REDELIVER-20)."""
        delayed = len(self.returns.aside) if self.returns is not None else 0
        stuck = self.letters.stuck if self.letters is not None else None
        dying = sum(len(messages) for messages, _ in self._dying)
        return delayed + dying + (len(stuck) if stuck is not None else 0)

    def held(self) -> list[Message]:
        """Messages neither ready nor unacked."""
        found = [message for messages, _ in self._dying for message in messages]
        if self.returns is not None:
            found += self.returns.aside.messages()
        if self.letters is not None and self.letters.stuck is not None:
            found += self.letters.stuck.messages()
        return found

    @property
    def may_let_die(self) -> bool:
        """Whether some messages may become dead letters now (DLX-23)."""
        return self.letters is None or self.letters.pace.may_send(self._queue)

    def few(self, most: int) -> int:
        """So many, or fewer where letters come of them, are let go between two looks."""
        return most if self.letters is None else min(most, self.letters.pace.at_a_time)

    @property
    def is_held(self) -> bool:
        """True while none may, for want of room on the disk."""
        return self.letters is not None and self.letters.pace.is_held

    def go_on_later(self) -> None:
        """There is more to do, in another turn."""
        if self.letters is not None and self.is_held:
            self.letters.pace.wait(self._queue.wake)
        else:
            self._queue.wake()

    def dispatch_later(self) -> None:
        """Nobody is served in this turn."""
        if self.expiry is not None and self.is_held:
            self.expiry.turn_ended()  # it may be long until somebody is
        self.go_on_later()

    @property
    def is_idle(self) -> bool:
        """True when there is nothing to be cared for."""
        rooms = (self.letters, self.expiry, self.limit, self.lease, self.returns)
        has_room = any(room is not None for room in (*rooms, self.dedup, self.sequence))
        return not has_room and not self._dying

    @property
    def is_deep(self) -> bool:
        """True when no more may be let go now, or chains of full queues would recurse (DLX-12)."""
        return self.letters is not None and self.letters.is_deep

    @property
    def sends_refused(self) -> bool:
        """True when a message that the queue refuses becomes a dead letter (LEN-24)."""
        return self.letters is not None and self.limit is not None and self.limit.sends_letters

    # Coming and going

    def entering(self, messages: Iterable[Message]) -> list[Message]:
        """A run is about to be appended."""
        run = list(messages)
        if self.expiry is not None:
            self.expiry.came(run)
        if self.dedup is not None:
            self.dedup.entering(run)
        return run

    def leaving(self, batch: list[Message]) -> list[Message]:
        """A batch was taken from the head; gives what of it may be handed out (TTL-02)."""
        if self.sequence is not None:
            self.sequence.leaving(batch)
        if self.expiry is not None:
            batch = self.expiry.fresh(batch)
        if self.returns is not None and batch:
            batch = self.returns.leaving(batch)
        return batch

    def returning(self, messages: list[Message], fate: Fate) -> list[Message]:
        """Deliveries come back; gives those that are ready at once (ACK-10)."""
        if self.expiry is not None:
            messages = self.expiry.unexpired(messages)
        if self.returns is not None:
            messages = self.returns.returning(messages, fate)
        if self.limit is not None:
            self.limit.returned()
        return messages

    def put_off(self, messages: list[Message], reason: Reason) -> bool:
        """Whether it takes too long to make dead letters of these at once: it is done by and by.

        Not of what stands in a transaction, which is one block (TX-08).
        """
        if self.letters is None or self.letters.is_gathering:
            return False
        if len(messages) <= FEW_DEATHS and not self._dying and not self.lays_aside:
            return False
        self._dying.append((messages, reason))
        self.go_on_later()
        return True

    @property
    def lays_aside(self) -> bool:
        """True when the dead are to be kept for now, so that others can be served meanwhile."""
        return self.is_held and sum(len(some) for some, _ in self._dying) < MOST_LAID_ASIDE

    def lay_aside(self, messages: list[Message], reason: Reason) -> None:
        """Messages from the head are dead, and become dead letters later."""
        self._dying.append((messages, reason))

    def _let_die(self) -> None:
        """Go on with what was put off."""
        end_ms, left = self.now_ms() + TURN_DEATHS_MS, TURN_DEATHS
        while self._dying and left > 0 and self.now_ms() < end_ms and self.may_let_die:
            messages, reason = self._dying.popleft()
            few = self.few(FEW_DEATHS)
            some, rest = messages[:few], messages[few:]
            if rest:
                self._dying.appendleft((rest, reason))
            left -= len(some)
            self._queue.bury(some, reason)
        if self._dying:
            self.go_on_later()

    def gone(self, messages: list[Message]) -> None:
        """These have left the queue for good."""
        if self.dedup is not None:
            self.dedup.gone(messages)
        if self.sequence is not None:
            self.sequence.gone(messages)
        if self.returns is not None:
            self.returns.gone(messages)

    def back(self, messages: list[Message]) -> None:
        """These had gone, which was refused (TX-09)."""
        if self.returns is not None:
            self.returns.back(messages)
        if self.sequence is not None:
            self.sequence.back(messages)
        if self.dedup is not None:
            self.dedup.back(messages)
        if self.letters is not None:
            self.letters.withdraw(self._queue, messages)
            if self.letters.stuck is not None:
                self.letters.stuck.forget(messages)

    def recount(self, first_lsn: int) -> None:
        """Stored messages from this LSN on have been taken out of its lines (CONF-12)."""
        if self.dedup is not None:
            self.dedup.window.forget_refused(first_lsn)
        if self.letters is not None and self.letters.stuck is not None:
            self.letters.stuck.forget_refused(first_lsn)
        if self.returns is not None:
            self.returns.forget_refused(first_lsn)
        if self.sequence is not None:
            self.sequence.recount()

    def purged(self) -> None:
        """Nothing is ready any more."""
        if self.dedup is not None:
            self.dedup.purged()
        if self.returns is not None:
            self.returns.purged()
        if self._queue.tally is not None:
            self._queue.tally.octets = 0
        if self.sequence is not None:
            self.sequence.purged()

    def shown(self, batch: list[Message]) -> list[Message] | None:
        """The batch as consumers are to see it; None: as it is."""
        return self.returns.shown(batch) if self.returns is not None else None

    # The turn

    def used(self) -> None:
        """Somebody looks at the queue: what they see must be true now (TTL-02, TTL-20)."""
        if self.lease is not None:
            self.lease.used()
        self.tidy()

    def unused(self) -> None:
        """The last consumer has left."""
        if self.lease is not None:
            self.lease.used()

    def before_dispatch(self) -> bool:
        """Have dead heads gone before anybody is served; False when there is more to do first."""
        # Deliveries stand behind a write: what went before it has gone for good.
        if self.sequence is not None:
            self.sequence.forget_dead()
        if self.returns is not None:
            self.returns.forget_gone()
        if self._dying:
            self._let_die()
        if self.returns is not None:
            self.returns.let_in()
        if self.letters is not None and self.letters.stuck is not None:
            self.letters.stuck.run()
        if self.expiry is not None and not self.expiry.run():
            return False
        return self.limit is None or self.limit.run(is_before=True)

    def after_dispatch(self) -> None:
        """What nobody could take now: expired at once, or too much of it (TTL-06, LEN-02)."""
        if self.expiry is not None:
            self.expiry.run(at_once=True)
        if self.limit is not None and not self.limit.run():
            self.go_on_later()
        if self.expiry is not None:
            self.expiry.arm()  # behind the limit: the head may be another one (TTL-03)

    def tidy(self) -> None:
        """Do outside the turn what a dispatch would do, without serving anybody."""
        if self.is_deep:
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
            self.go_on_later()

    # Restart

    def recall(self, key: bytes) -> bytes | None:
        """The value that a note of this queue has by now, None when it is not wanted any more."""
        if key == OWN_EXPIRATIONS:
            return b"" if self.expiry is not None and self.expiry.has_own else None
        if self.returns is not None and key[:1] == COUNTS:
            return self.returns.recall(key)
        if self.dedup is not None and key[:1] == KEYS:
            return self.dedup.window.recall(key)
        stuck = self.letters.stuck if self.letters is not None else None
        if stuck is not None and key[:1] == STUCK:
            return stuck.recall(key)
        if self.sequence is not None and key[:1] == SEQUENCE_NOTES:
            return self.sequence.recall(key)
        return None

    def restore(self, notes: dict[bytes, bytes]) -> None:
        """What had been noted of this queue before a restart; its messages are in place."""
        if self.expiry is not None:
            self.expiry.restored()
        if self.sequence is not None:
            self.sequence.restore(notes)
        # What is stuck is in no line any more when it is looked who had been handed out, and what
        # keys there are: it has left as far as they are concerned.
        if self.letters is not None and self.letters.stuck is not None:
            self.letters.stuck.restore(notes)
        if self.dedup is not None:
            self.dedup.restore(notes)
        if self.returns is not None:
            self.returns.restore(notes, self._queue.handed_before())

    def closed(self) -> None:
        """The queue is deleted: nothing waits for a deadline any more."""
        self._dying.clear()
        if self.dedup is not None:
            self.dedup.window.clear()
        if self.returns is not None:
            self.returns.aside.take_all()
        if self.letters is not None and self.letters.stuck is not None:
            self.letters.stuck.clear()
