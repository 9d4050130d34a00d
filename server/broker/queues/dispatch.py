"""How messages are dealt out among several consumers of a queue: round robin, to the message.

Who has no room is not asked again before the queue hears that it may have some, so what a message
costs does not grow with the number of consumers. Must not know where messages lie, nor what a
consumer is beyond `outlet.py`.

Spec: CONS-10
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.classic import Queue
    from vouchmq.server.broker.queues.ports import ConsumerPort
    from vouchmq.server.broker.queues.ready_list import ReadyList


class RoundRobin:
    """Consumers of one priority, each with the time when it was served last.

    Args:
        priority: of all of them
    """

    __slots__ = ("_full", "_idle", "_judging", "_last", "_time", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self._time = 0
        self._last: dict[ConsumerPort, int] = {}
        # Those that may have room, by that time; entries whose time has passed are none.
        self._idle: list[tuple[int, ConsumerPort]] = []
        self._full: set[ConsumerPort] = set()
        # Without room for the head, which the next head may change.
        self._judging: list[ConsumerPort] = []

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[ConsumerPort]:
        """All of them, longest not served first."""
        return iter(sorted(self._last, key=self._last.__getitem__))

    @property
    def oldest(self) -> ConsumerPort:
        """The one that came first: of one, that one."""
        return next(iter(self._last))

    @property
    def idle_count(self) -> int:
        """How many may have room, at most."""
        return len(self._idle) + len(self._judging)

    def add(self, outlet: ConsumerPort) -> None:
        """Enter a consumer: it comes last."""
        self.served(outlet)

    def remove(self, outlet: ConsumerPort) -> None:
        """Take a consumer away."""
        del self._last[outlet]
        self._full.discard(outlet)
        if outlet in self._judging:
            self._judging.remove(outlet)
        if len(self._idle) > 2 * len(self._last):
            self._idle = [entry for entry in self._idle if self._last.get(entry[1]) == entry[0]]
            heapify(self._idle)

    def served(self, outlet: ConsumerPort) -> None:
        """It has got something: all others come first now."""
        self._time += 1
        self._last[outlet] = self._time
        heappush(self._idle, (self._time, outlet))

    def all_served(self, able: list[ConsumerPort]) -> None:
        """All that have room, and no others, have got something, in this order."""
        times = range(self._time + 1, self._time + len(able) + 1)
        self._time += len(able)
        self._idle = list(zip(times, able, strict=True))
        self._last.update(zip(able, times, strict=True))

    def credit_available(self, outlet: ConsumerPort) -> None:
        """It may have room, which it had not."""
        if outlet in self._full:
            self._full.remove(outlet)
            heappush(self._idle, (self._last[outlet], outlet))

    def first_able(self, head: Message) -> ConsumerPort | None:
        """Whose turn it is: the one longest not served that has room; None: nobody has."""
        self._judge_again()
        idle = self._idle
        while idle:
            time, outlet = idle[0]
            if self._last.get(outlet) == time:
                if outlet.capacity(head) > 0:
                    return outlet
                self._wait(outlet)
            heappop(idle)
        return None

    def able(self, head: Message) -> tuple[list[ConsumerPort], int]:
        """All that have room, longest not served first, and how much each of them has at least."""
        self._judge_again()
        able: list[ConsumerPort] = []
        entries: list[tuple[int, ConsumerPort]] = []
        least = 0
        for entry in sorted(self._idle):
            time, outlet = entry
            if self._last.get(outlet) != time:
                continue
            room = outlet.capacity(head)
            if room > 0:
                able.append(outlet)
                entries.append(entry)
                least = min(least, room) if least else room
            else:
                self._wait(outlet)
        self._idle = entries
        return able, least

    def _wait(self, outlet: ConsumerPort) -> None:
        if outlet.judges_size:
            self._judging.append(outlet)
        else:
            self._full.add(outlet)

    def _judge_again(self) -> None:
        if self._judging:
            judging, self._judging = self._judging, []
            for outlet in judging:
                heappush(self._idle, (self._last[outlet], outlet))


def serve_group(queue: Queue, group: RoundRobin, limit: int) -> int:
    """Give consumers of one priority what they have room for; gives how many messages that were."""
    served = 0
    while served < limit and (line := queue.next_ready()) is not None:
        if len(line.ready) >= group.idle_count:
            able, least = group.able(line.ready[0])
            if not able:
                break
            if any(outlet.shares_room for outlet in able):
                served += _serve_singly(queue, group, able, limit - served)
            else:
                rounds = min(least, _rounds(line, able, limit - served))
                served += _deal(queue, group, able, line, rounds)
            continue
        outlet = group.first_able(line.ready[0])
        if outlet is None:
            break
        if queue.deliver(outlet, line, queue.take(line, 1)):
            group.served(outlet)
        served += 1
    return served


def _serve_singly(queue: Queue, group: RoundRobin, able: list[ConsumerPort], limit: int) -> int:
    """One message each to those who had room a moment ago.

    Room that is shared over a channel, or judged against the size of one head, can be
    promised for one message only.
    """
    served = 0
    for outlet in able:
        line = queue.next_ready()
        if served >= limit or line is None:
            break
        if outlet.capacity(line.ready[0]) > 0:
            if queue.deliver(outlet, line, queue.take(line, 1)):
                group.served(outlet)
            served += 1
    return served


def _rounds(line: ReadyList, able: list[ConsumerPort], limit: int) -> int:
    """How many messages for each of them make a batch of a bounded size."""
    count = len(able)
    return min(len(line.ready) // count, limit // count + 1, max(1, line.batch_limit // count))


def _deal(
    queue: Queue, group: RoundRobin, able: list[ConsumerPort], line: ReadyList, rounds: int
) -> int:
    """Give each of `able` every n-th message of a batch, which is exact round robin."""
    count = rounds * len(able)
    batch = queue.take(line, count)
    mark = line.mark
    pen = queue.recorder
    if pen is not None:
        pen.dealing()
    group.all_served(able)
    for index, outlet in enumerate(able):
        queue.deliver(outlet, line, batch[index :: len(able)], mark)
    if pen is not None:
        pen.dealt()
    return count
