"""How fast dead letters go: a share of each turn for all queues together, and none on a full disk.

Queues that dead-letter to each other multiply messages by themselves, with no client doing
anything. So whoever has letters to send asks here before each few of them. Who is refused goes on
in the next turn, before those who were not; while the disk is short of room nobody sends any, and
all are woken when there is room again. What goes on for long is told, with the queue that does
most of it. Must not know what a dead letter is.

Spec: DLX-23, LIMIT-23
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.queues.api import Queue

# What dead letters may take of a turn.
TURN_S: Final = 0.006
# How many are sent between two looks at the clock: more when that took less, fewer when more.
LEAST_DEAD_LETTERS: Final = 8
MOST_DEAD_LETTERS: Final = 256
SHORT_S: Final = 0.001
# Told when letters have been put off for so long without a pause, and again after so long.
LONG_S: Final = 1.0
TELL_EVERY_S: Final = 10.0

log = structlog.get_logger(__name__)


class DeadLetterPace:
    """Tells who may send dead letters now.

    Args:
        clock: monotonic seconds
        turn_count: turns of the loop so far
        is_held: whether the disk is so short of room that none may be sent
        later: runs a callable in the next turn
        source_of: what gives a queue its dead letter exchange, for the log
    """

    __slots__ = (
        *("_began", "_clock", "_ends_at", "_first", "_is_behind", "_is_held", "_long_since"),
        *("_put_off", "_sent", "_served_in", "_source_of", "_told_at", "_turn", "_turn_count"),
        *("_waiting", "at_a_time", "later", "put_off_count", "sent_count"),
    )

    def __init__(
        self,
        clock: Callable[[], float],
        turn_count: Callable[[], int],
        is_held: Callable[[], bool],
        later: Callable[[Callable[[], None]], None],
        source_of: Callable[[Queue], str] = lambda _: "",
    ) -> None:
        self._clock = clock
        self._turn_count = turn_count
        self._is_held = is_held
        self.later = later
        self._source_of = source_of
        self._turn = -1
        self._ends_at = 0.0
        self._began = 0.0  # the last few letters, in this turn
        self.at_a_time = LEAST_DEAD_LETTERS
        self._is_behind = False  # some were refused in the last turn
        # Who has waited longest and comes first; who was refused in this turn; in which turn those
        # who wait were served.
        self._first: Queue | None = None
        # In the order in which they came: a set of queues would be one of addresses.
        self._put_off: dict[Queue, None] = {}
        self._served_in: dict[Queue, int] = {}
        # What goes on when the disk has room again.
        self._waiting: dict[Callable[[], None], None] = {}
        self._sent: dict[Queue, int] = {}  # since it was last told
        self._long_since = 0.0
        self._told_at = -TELL_EVERY_S
        self.sent_count = 0
        self.put_off_count = 0  # how often some had to wait for another turn

    @property
    def is_paused(self) -> bool:
        """True while none may be sent at all."""
        return self._is_held()

    def may_send(self, queue: Queue) -> bool:
        """Whether this queue may send some letters now; if not, it goes on in another turn."""
        if self._is_held():
            return False
        turn = self._turn_count()
        if turn != self._turn:
            self._begin(turn)
        if queue in self._put_off:
            return False
        if self._first is not None and queue is not self._first:
            return self._refuse(queue)
        now = self._clock()
        if not self._ends_at:
            self._ends_at = now + TURN_S
        elif self._began:
            self._learn(now - self._began)
        if now >= self._ends_at:
            return self._refuse(queue)
        self._began = now
        self._first = None
        self._served_in[queue] = turn
        return True

    def sent(self, queue: Queue, count: int, exchange: str) -> None:
        """So many letters of a queue have gone."""
        self.sent_count += count
        if not self._is_behind:
            return
        self._sent[queue] = self._sent.get(queue, 0) + count
        now = self._clock()
        if now - self._long_since >= LONG_S and now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            self._tell(exchange)

    def wait(self, job: Callable[[], None]) -> None:
        """Call this when the disk has room again."""
        if not self._waiting:
            log.warning(
                "dead_letter.paused",
                reason="low on disk",
                meaning="dead letters wait for disk space",
            )
        self._waiting[job] = None

    def look(self) -> None:
        """See whether the disk has room again; to be called when it may have."""
        if self._waiting and not self._is_held():
            log.warning("dead_letter.resumed", count=len(self._waiting))
            waiting, self._waiting = self._waiting, {}
            for job in waiting:
                job()

    def _refuse(self, queue: Queue) -> bool:
        self._put_off[queue] = None
        self.put_off_count += 1
        self._began = 0.0
        return False

    def _learn(self, duration_s: float) -> None:
        """The last few letters took so long."""
        if duration_s < SHORT_S:
            self.at_a_time = min(MOST_DEAD_LETTERS, self.at_a_time * 2)
        elif duration_s > 2 * SHORT_S:
            self.at_a_time = max(LEAST_DEAD_LETTERS, self.at_a_time // 2)

    def _begin(self, turn: int) -> None:
        self._began = 0.0
        self._is_behind = bool(self._put_off)
        if not self._is_behind:
            self._long_since = self._clock()
            self._sent.clear()
        self._turn = turn
        self._ends_at = 0.0
        self._served_in = {each: self._served_in.get(each, -1) for each in self._put_off}
        self._first = min(self._put_off, key=self._served_in.__getitem__, default=None)
        self._put_off = {}

    def _tell(self, exchange: str) -> None:
        queue, count = max(self._sent.items(), key=lambda item: item[1])
        log.warning(
            "dead_letter.throttled",
            vhost=queue.spec.vhost,
            queue=queue.spec.name,
            exchange=exchange,
            source=self._source_of(queue),
            count=count,
            sent_count=self.sent_count,
            meaning="more dead letters than one turn can move; look for a dead-letter cycle",
        )
        self._sent.clear()
