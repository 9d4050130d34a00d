"""Since when nothing has happened in queues and on channels.

Nobody notes the time of a message: every few seconds what has been counted is compared with what
had been counted before, a few objects in a turn. So a queue is known to be idle `EVERY_S` after it
has become so at the latest, and the time that is told is late by as much at most.

Must not know views.

Spec: HTTP-14, HTTP-19
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.channel.channel import Channel

EVERY_S: Final = 5.0
# Objects in one turn.
AT_ONCE: Final = 200


class IdleWatch:
    """Compares, again and again.

    Args:
        objects: all queues and channels there are, when it is called
        wall_ms: the time of day in milliseconds
        later: runs something in another turn of the loop
        call_later: runs something after so many seconds
    """

    def __init__(
        self,
        objects: Callable[[], Iterable[Queue | Channel]],
        wall_ms: Callable[[], int],
        later: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._objects = objects
        self._wall_ms = wall_ms
        self._later = later
        self._call_later = call_later
        self._seen: dict[Queue | Channel, tuple[int, int]] = {}

    def start(self) -> IdleWatch:
        """Compare now, and every few seconds."""
        self._compare()
        return self

    def _compare(self) -> None:
        self._go_on(iter(list(self._objects())), {})

    def since_ms(self, one: Queue | Channel) -> int | None:
        """Since when nothing has happened; None when something has just now."""
        count, since_ms = self._seen.get(one, (-1, 0))
        return since_ms if count == events_of(one) else None

    def _go_on(
        self, left: Iterator[Queue | Channel], found: dict[Queue | Channel, tuple[int, int]]
    ) -> None:
        now_ms = self._wall_ms()
        for at, one in enumerate(left, 1):
            before, count = self._seen.get(one), events_of(one)
            is_same = before is not None and before[0] == count
            found[one] = before if before is not None and is_same else (count, now_ms)
            if at == AT_ONCE:
                self._later(lambda: self._go_on(left, found))
                return
        # Those that have gone are not in it.
        self._seen = found
        self._call_later(EVERY_S, self._compare)


def events_of(one: Queue | Channel) -> int:
    """A number that grows with whatever happens to messages."""
    counters = one.counters
    events = counters.published + counters.acked + counters.rejected + counters.get_empty
    events += counters.delivered + counters.resent
    confirms = getattr(one, "confirms", None)
    if confirms is not None:
        events += confirms.last
    # Of a channel the tags say how many deliveries there have been.
    return events + int(getattr(one, "next_tag", 0))
