"""Length limits: what a full queue drops at its head, or does not take at all.

    drop-head        what is too much leaves at the head after the consumers had their turn
    drop-lowest      the same at the head of the lowest level, in a queue with priorities
    reject-publish   the publisher is refused; with -dlx the refused message becomes a dead letter

Limits count what is ready: messages, and the octets of their bodies.

Spec: LEN-01 … LEN-26
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.runs import body_size
from vouchmq.server.broker.dead_letter.dead_letters import DeadLetters, dead_letters_of
from vouchmq.server.broker.features.expiry import Expiry
from vouchmq.server.broker.features.feature import Feature
from vouchmq.server.broker.queues.api import REFUSES, TAKES
from vouchmq.server.broker.queues.room import RoomWaiters
from vouchmq.server.broker.queues.settlement import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.features.feature import FeatureContext
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import HostQueue, PublishFilter, Queue
    from vouchmq.server.broker.queues.ready_list import ReadyList
    from vouchmq.server.broker.queues.settlement import Outcome

# Messages that one queue drops in one turn (LIMIT-23).
TURN_DROPS: Final = 4096
BATCH_MESSAGES: Final = 512

DROP_HEAD: Final = "drop-head"
DROP_LOWEST: Final = "drop-lowest"
REJECT: Final = "reject-publish"
REJECT_DEAD_LETTER: Final = "reject-publish-dlx"


class LengthLimit(Feature):
    """The limits of one queue.

    Args:
        queue: whose they are
        features: with at least one limit
        serve: has the journal written up to an LSN and the queue dispatched, so that waiting
            consumers get what is theirs before a publish is refused; False when that is no time
    """

    __slots__ = (
        *("_has_returned", "_queue", "_serve", "_waiters"),
        *("max_length", "max_octets", "overflow", "rejects"),
    )

    def __init__(
        self, queue: HostQueue, features: Features, serve: Callable[[Queue], bool]
    ) -> None:
        self._queue = queue
        self._serve = serve
        self._has_returned = False
        self._waiters = RoomWaiters()
        self.set(features)

    @classmethod
    def configured(
        cls, now: Self | None, queue: HostQueue, features: Features, context: FeatureContext
    ) -> Self | None:
        if features.number("max-length-bytes") is not None:
            queue.count_octets()
        elif features.number("max-length") is None:
            if now is not None:
                now._waiters.call_all()
            return None
        if now is None:
            return cls(queue, features, context.serve)
        now.set(features)
        return now

    @property
    def publish_filter(self) -> PublishFilter | None:
        return self if self.rejects else None

    def set(self, features: Features) -> None:
        """Other limits from now on."""
        self.max_length = features.number("max-length")
        self.max_octets = features.number("max-length-bytes")
        self.overflow = features.text("overflow") or DROP_HEAD
        if features.type == "quorum" and self.overflow == REJECT_DEAD_LETTER:
            self.overflow = REJECT  # LEN-24
        # Whether publishers are refused instead of messages dropped.
        self.rejects = self.overflow in {REJECT, REJECT_DEAD_LETTER}

    @property
    def dead_letters_refused(self) -> bool:
        """True when what is refused becomes a dead letter (LEN-24)."""
        return self.overflow == REJECT_DEAD_LETTER

    # Refusing

    def check(self, raw: bytes) -> int:
        """Whether the queue takes one more message (LEN-20 … LEN-22)."""
        octets = body_size(raw)
        if self.has_room(1, octets) or (self._drop_expired() and self.has_room(1, octets)):
            return TAKES
        if self.max_length != 0 and self._serve(self._queue) and self.has_room(1, octets):
            return TAKES
        return REFUSES

    def takes_all(self, raws: Sequence[bytes]) -> bool:
        """See `PublishFilter`."""
        octets = 0 if self.max_octets is None else sum(map(body_size, raws))
        return self.has_room(len(raws), octets)

    def _drop_expired(self) -> bool:
        """Have no publish refused for the sake of what nobody can have any more (TTL-06)."""
        expiry = self._queue.feature(Expiry)
        if expiry is None or dead_letters_of(self._queue).is_nested:
            return False
        expiry.run(at_once=not self._queue.is_head_wanted)
        return True

    def on_publish_refused(self, message: Message) -> None:
        dead_letters = self._queue.feature(DeadLetters)
        if self.dead_letters_refused and dead_letters is not None:
            dead_letters.send_refused(message)

    def has_room(self, count: int, octets: int) -> bool:
        """Whether so many more messages of so many octets would not exceed a limit."""
        queue = self._queue
        if self.max_length is not None and queue.held_count + count > self.max_length:
            return False
        return self.max_octets is None or queue.held_octets + octets <= self.max_octets

    def call_when_room(self, call: Callable[[], None]) -> None:
        """See `PublishFilter`."""
        self._waiters.add(call)

    def _tell_room(self) -> None:
        if not self.rejects:
            self._waiters.call_all()
        elif self.has_room(1, 0):
            self._waiters.call_next()

    def on_purged(self) -> None:
        if self._waiters:
            self._queue.wake()

    def on_deleted(self) -> None:
        self._waiters.call_all()

    # Dropping

    def on_requeue(self, messages: list[Message], outcome: Outcome) -> list[Message]:
        """They count as entering, before anybody is served (LEN-06)."""
        del outcome
        self._has_returned = True
        return messages

    def before_dispatch(self) -> bool:
        """What came back counts at once; everything else after the consumers had their turn."""
        return not self._has_returned or self.run()

    def after_dispatch(self) -> bool:
        is_done = self.run()
        if self._waiters:
            self._tell_room()
        return is_done

    def run_outside_dispatch(self) -> bool:
        """Nothing while there are consumers: they come first, and are served in the turn."""
        if self._queue.has_consumers:
            return True
        is_done = self.run()
        expiry = self._queue.feature(Expiry)
        if expiry is not None:
            is_done &= expiry.run(at_once=True)  # the head may be another one
        return is_done

    def run(self) -> bool:
        """Drop what is too much; False when there is more than fits in one turn."""
        # Whatever the limits are now: others may hold when the next messages come back.
        self._has_returned = False
        if self.rejects:
            return True
        dead_letters = dead_letters_of(self._queue)
        left = TURN_DROPS
        while left > 0:
            # Heads that are on disk may have to wait for the next turn, but for the first.
            line = self._victim(at_once=left == TURN_DROPS)
            if line is None:
                return True
            count = self._excess(line, min(left, dead_letters.batch_limit(BATCH_MESSAGES)))
            if not count:
                return True
            if not dead_letters.may_send:
                return False
            left -= count
            self._dead_letter(line.take(count))
        return False

    def _dead_letter(self, dropped: list[Message]) -> None:
        expiry = self._queue.feature(Expiry)
        if expiry is None:
            self._queue.dead_letter(dropped, DeadLetterReason.MAXLEN)
            return
        # Those that had expired behind others died of that, in their place among them (TTL-03).
        for is_late, run in groupby(dropped, expiry.is_late):
            self._queue.dead_letter(
                list(run), DeadLetterReason.EXPIRED if is_late else DeadLetterReason.MAXLEN
            )

    def _victim(self, *, at_once: bool) -> ReadyList | None:
        """The line whose head is dropped: that of the next delivery (LEN-05).

        None: there is none, or it is read in the next turn, which is asked for (LIMIT-23).
        """
        if self.overflow != DROP_LOWEST:
            return self._queue.next_ready(at_once=at_once)
        for line in reversed(self._queue.lines):
            if not line.is_empty:
                return line if line.ready or line.refill(at_once=at_once) else None
        return None

    def _excess(self, line: ReadyList, most: int) -> int:
        """How many heads of this line are too much."""
        queue = self._queue
        over = 0 if self.max_length is None else queue.held_count - self.max_length
        over_octets = 0 if self.max_octets is None else queue.held_octets - self.max_octets
        if over <= 0 and over_octets <= 0:
            return 0
        count = 0
        for message in line.ready:
            if count == most or (over <= 0 and over_octets <= 0):
                break
            count += 1
            over -= 1
            if self.max_octets is not None:
                over_octets -= body_size(message[0])
        return count
