"""The consumers of one queue: who is served, in which order of priority, and who waits.

Messages are dealt out among several consumers round robin, to the message. Who has no room is not
asked again before the queue hears that it may have some, so what a message costs does not grow with
the number of consumers. Must not know where messages lie, nor what a consumer is beyond `api.py`.

Spec: CONS-05, CONS-10, CONS-20, CONS-30 … CONS-32
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from vouchmq.server.broker.message import lsn_of

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator

    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import ConsumerPort, HostQueue
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

    def add(self, consumer: ConsumerPort) -> None:
        """Enter a consumer: it comes last."""
        self.served(consumer)

    def remove(self, consumer: ConsumerPort) -> None:
        """Remove a consumer that was cancelled or has disconnected."""
        del self._last[consumer]
        self._full.discard(consumer)
        if consumer in self._judging:
            self._judging.remove(consumer)
        if len(self._idle) > 2 * len(self._last):
            self._idle = [entry for entry in self._idle if self._last.get(entry[1]) == entry[0]]
            heapify(self._idle)

    def served(self, consumer: ConsumerPort) -> None:
        """It has got something: all others come first now."""
        self._time += 1
        self._last[consumer] = self._time
        heappush(self._idle, (self._time, consumer))

    def all_served(self, able: list[ConsumerPort], rooms: list[int], count: int) -> None:
        """All that have room, and no others, have got so many, in this order; `rooms` is what room
        they had, the size of their heads apart.
        """
        time, last = self._time, self._last
        idle: list[tuple[int, ConsumerPort]] = []
        for at, consumer in enumerate(able):
            time += 1
            last[consumer] = time
            if rooms[at] > count:
                idle.append((time, consumer))
            else:
                # Not asked in vain: it will be told when there is some again.
                self._full.add(consumer)
        self._time, self._idle = time, idle

    def credit_available(self, consumer: ConsumerPort) -> None:
        """It may have room, which it had not."""
        if consumer in self._full:
            self._full.remove(consumer)
            heappush(self._idle, (self._last[consumer], consumer))

    def first_able(self, head: bytes) -> ConsumerPort | None:
        """Whose turn it is: the one longest not served that has room; None: nobody has."""
        self._judge_again()
        idle = self._idle
        while idle:
            time, consumer = idle[0]
            if self._last.get(consumer) == time:
                if consumer.capacity(head) > 0:
                    return consumer
                self._wait(consumer)
            heappop(idle)
        return None

    def able(self, head: bytes) -> tuple[list[ConsumerPort], list[int]]:
        """All that have room, longest not served first, and how much each of them has."""
        self._judge_again()
        able: list[ConsumerPort] = []
        rooms: list[int] = []
        last = self._last
        self._idle.sort()
        for time, consumer in self._idle:
            if last.get(consumer) != time:
                continue
            room = consumer.capacity(head)
            if room > 0:
                able.append(consumer)
                rooms.append(room)
            else:
                self._wait(consumer)
        if len(able) < len(self._idle):
            self._idle = [(last[consumer], consumer) for consumer in able]
        return able, rooms

    def _wait(self, consumer: ConsumerPort) -> None:
        if consumer.judges_size:
            self._judging.append(consumer)
        else:
            self._full.add(consumer)

    def _judge_again(self) -> None:
        if self._judging:
            judging, self._judging = self._judging, []
            for consumer in judging:
                heappush(self._idle, (self._last[consumer], consumer))


class SingleActive:
    """Single active consumer: of all consumers of a queue one is served, the others wait.

    The successor is the one of the highest priority, the oldest among equals. In a quorum-type
    queue a consumer of higher priority takes over from a lower one as soon as that has settled
    everything; until then nobody is served.

    Args:
        displaces: a higher priority takes over (quorum-type queues)
    """

    __slots__ = ("_displaces", "_leaving", "active", "waiting")

    def __init__(self, *, displaces: bool) -> None:
        self._displaces = displaces
        self._leaving: ConsumerPort | None = None
        self.active: ConsumerPort | None = None
        self.waiting: list[ConsumerPort] = []

    def add(self, consumer: ConsumerPort) -> bool:
        """Enter a consumer; True when it is the active one now."""
        if self.active is None and self._leaving is None:
            self.active = consumer
            return True
        self.waiting.append(consumer)
        return False

    def yields(self) -> ConsumerPort | None:
        """The active consumer, if one of higher priority waits: it is served no more (CONS-32)."""
        active = self.active
        if not self._displaces or active is None:
            return None
        if all(consumer.priority <= active.priority for consumer in self.waiting):
            return None
        self.active, self._leaving = None, active
        return active

    def remove(self, consumer: ConsumerPort) -> None:
        """Remove a consumer that was cancelled or has disconnected."""
        if consumer is self.active:
            self.active = None
        elif consumer is self._leaving:
            self._leaving = None
        elif consumer in self.waiting:
            self.waiting.remove(consumer)

    def successor(self) -> ConsumerPort | None:
        """Who becomes active now, if the place is free."""
        leaving = self._leaving
        if leaving is not None and not leaving.has_outstanding:
            # First again among its equals: it has been here longest.
            self._leaving = None
            self.waiting.insert(0, leaving)
        if self.active is not None or self._leaving is not None or not self.waiting:
            return None
        self.active = max(self.waiting, key=lambda consumer: consumer.priority)
        self.waiting.remove(self.active)
        return self.active

    def everybody(self) -> list[ConsumerPort]:
        """Those who are not being served."""
        return self.waiting + ([] if self._leaving is None else [self._leaving])


class QueueConsumers:
    """Consumers by priority, highest first.

    `groups` are those that are served: none while the queue is paused.
    """

    __slots__ = ("_all_groups", "_group_of", "count", "exclusive", "groups", "single_active")

    def __init__(self) -> None:
        self.count = 0
        self.exclusive: ConsumerPort | None = None
        self._all_groups: list[RoundRobin] = []
        self.groups = self._all_groups
        self._group_of: dict[ConsumerPort, RoundRobin] = {}
        self.single_active: SingleActive | None = None

    def add(self, consumer: ConsumerPort, *, exclusive: bool) -> bool:
        """Enter a consumer; False when exclusiveness forbids it (CONS-05)."""
        if self.exclusive is not None:
            return False
        if exclusive and (self.count or self.single_active is not None):
            return False
        if exclusive:
            self.exclusive = consumer
        self.count += 1
        single = self.single_active
        if single is None or single.add(consumer):
            self._serve(consumer)
        elif (active := single.yields()) is not None:
            self._serve_no_more(active)
        return True

    def remove(self, consumer: ConsumerPort) -> bool:
        """Take a consumer away; False when it was not there."""
        single = self.single_active
        waits = single is not None and consumer in single.everybody()
        if not self._serve_no_more(consumer) and not waits:
            return False
        if single is not None:
            single.remove(consumer)
        self.count -= 1
        if self.exclusive is consumer:
            self.exclusive = None
        return True

    def clear(self) -> list[ConsumerPort]:
        """Take all away, since the queue goes; gives who they were."""
        consumers = self.everybody()
        self._all_groups = self.groups = []
        self.count, self.exclusive, self.single_active = 0, None, None
        self._group_of.clear()
        return consumers

    def pause(self, *, is_paused: bool) -> None:
        """Serve nobody from now on, or go on."""
        self.groups = [] if is_paused else self._all_groups

    def everybody(self) -> list[ConsumerPort]:
        """All consumers, those who are served first."""
        served = [consumer for group in self._all_groups for consumer in group]
        return served + (self.single_active.everybody() if self.single_active is not None else [])

    def look_for_successor(self) -> None:
        """Where one is served alone: serve the next one if the place is free."""
        successor = self.single_active.successor() if self.single_active is not None else None
        if successor is not None:
            self._serve(successor)

    def credit_available(self, consumer: ConsumerPort | None) -> None:
        """A consumer, if it is one that is served, may have room which it had not."""
        if consumer is not None and (group := self._group_of.get(consumer)) is not None:
            group.credit_available(consumer)

    def _serve(self, consumer: ConsumerPort) -> None:
        for group in self._all_groups:
            if group.priority == consumer.priority:
                break
        else:
            group = RoundRobin(consumer.priority)
            self._all_groups.append(group)
            self._all_groups.sort(key=lambda each: -each.priority)
        group.add(consumer)
        self._group_of[consumer] = group

    def certain_lsn(self, ready: deque[Message]) -> int:
        """Return the LSN of the head if just that is sure to go, to somebody who owes an ack; or 0.

        So it is with a message that comes alone, and with one consumer that takes one at a time.
        """
        groups = self.groups
        if not ready or len(groups) != 1 or self.single_active is not None:
            return 0
        group, head = groups[0], ready[0]
        if len(group) == 1:
            only = group.oldest
            is_sure = not only.no_ack and min(only.capacity(head[0]), len(ready)) == 1
        else:
            # Of several each may take one of several.
            first = group.first_able(head[0]) if len(ready) == 1 else None
            is_sure = first is not None and not first.no_ack
        return lsn_of(head[2]) if is_sure else 0

    def _serve_no_more(self, consumer: ConsumerPort) -> bool:
        group = self._group_of.pop(consumer, None)
        if group is None:
            return False
        group.remove(consumer)
        if not len(group):
            self._all_groups.remove(group)
        return True


def serve_group(queue: HostQueue, group: RoundRobin, limit: int) -> int:
    """Give consumers of one priority what they have room for; gives how many messages that were."""
    served = 0
    while served < limit and (line := queue.next_ready()) is not None:
        if len(line.ready) >= group.idle_count:
            able, rooms = group.able(line.ready[0][0])
            if not able:
                break
            if share_room(able):
                served += _serve_singly(queue, group, able, limit - served)
            else:
                served += _deal(queue, group, able, rooms, line, limit - served)
            continue
        consumer = group.first_able(line.ready[0][0])
        if consumer is None:
            break
        if queue.deliver(consumer, line, queue.take(line, 1)):
            group.served(consumer)
        served += 1
    return served


def _serve_singly(queue: HostQueue, group: RoundRobin, able: list[ConsumerPort], limit: int) -> int:
    """One message each to those who had room a moment ago.

    Room that is shared over a channel, or judged against the size of one head, can be
    promised for one message only.
    """
    served = 0
    for consumer in able:
        line = queue.next_ready()
        if served >= limit or line is None:
            break
        if consumer.capacity(line.ready[0][0]) > 0:
            if queue.deliver(consumer, line, queue.take(line, 1)):
                group.served(consumer)
            served += 1
    return served


def share_room(able: list[ConsumerPort]) -> bool:
    """Whether the room of one of them depends on what others get, or on message sizes."""
    for consumer in able:  # noqa: SIM110 - `any` makes a list of all when it is compiled
        if consumer.shares_room:
            return True
    return False


def _rounds(line: ReadyList, able: list[ConsumerPort], limit: int) -> int:
    """How many messages for each of them make a batch of a bounded size."""
    count = len(able)
    return min(len(line.ready) // count, limit // count + 1, max(1, line.batch_limit // count))


def _tell_delivered(
    queue: HostQueue, able: list[ConsumerPort], line: ReadyList, batch: list[Message]
) -> None:
    """Tell the queue, once for all, up to where messages are about to be handed out, and up to
    where to those who owe an ack.
    """
    last = len(batch) - 1
    for at in range(last, max(last - len(able), -1), -1):
        no_ack = able[at % len(able)].no_ack
        queue.on_delivered(line, batch[at][2], no_ack=no_ack)
        if not no_ack:
            break


def _deal(
    queue: HostQueue,
    group: RoundRobin,
    able: list[ConsumerPort],
    rooms: list[int],
    line: ReadyList,
    limit: int,
) -> int:
    """Give each of `able` every n-th message of a batch, which is exact round robin."""
    rounds = min(min(rooms), _rounds(line, able, limit))
    count = rounds * len(able)
    batch = queue.take(line, count)
    mark = line.mark
    recorder = queue.recorder
    if recorder is not None:
        recorder.dealing()
    group.all_served(able, rooms, rounds)
    _tell_delivered(queue, able, line, batch)
    for index, consumer in enumerate(able):
        queue.deliver(consumer, line, batch[index :: len(able)], mark)
    if recorder is not None:
        recorder.dealt()
    return count
