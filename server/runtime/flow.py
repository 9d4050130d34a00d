"""Flow control: who publishes waits while consumers that keep up have enough to do.

Reading a publisher takes time that its consumers wait for, and one read brings far more messages
than a small prefetch takes. So without a bound a backlog grows in front of consumers that are
served as fast as the broker can, until a message is seconds late.

    QueueFlow.came            messages have come to a queue that has enough
    FlowControl.charge      one read is done: its publisher waits, and is not read
    QueueFlow.served          consumers have taken messages: who has waited longest is read again
    FlowControl.woke        how long the loop had nothing to do

What holds:

- A queue has enough when more is ready than `least`, and than half of what its consumers hold. From
  then on each publisher waits behind its own read until consumers have taken twice as much as it
  had brought, in the order in which they came to wait; below the mark the next may go on at once.
  So the backlog shrinks while it is above the mark, and each publisher gets its share.
- Nobody waits while nothing is ready: no consumer is ever idle because of this.
- Consumers keep up as long as it is the broker that they wait for. If the loop is idle for more
  than half of the time while publishers wait, or nobody has gone on for `LONGEST_S`, the consumers
  are slow: all publishers go on, and the queue grows as if there were no bound. That is tried again
  after `SHORTEST_SLOW_S`, then after twice as long, at most `LONGEST_SLOW_S`.
- A connection with consumers never waits, since its acknowledgements would wait too. A queue to
  which nobody owes an acknowledgement has no bound.

So nothing can wait for ever, whatever publishers and consumers wait for among themselves: then the
loop is idle, which ends it. What a publisher is told (confirms, heartbeats) never waits.

What was tried: reading publishers only when the loop is idle. Workers with a prefetch of one leave
it idle for a moment in each round, and every such moment let a whole window in: eight times what
they took meanwhile.

What it costs: a look per run and per dispatch, as long as a queue has not enough. Must not know
frames or sockets.

Spec: LIMIT-29
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.queues.api import BusyQueue

# Consumers take so many times what a publisher has brought before it goes on.
TAKEN_PER_MESSAGE: Final = 2
# How often publishers that wait are looked at while nothing else happens.
LOOK_S: Final = 0.002
# At so many queues in one go (LIMIT-23).
LOOKS: Final = 100
# So long the loop must have been idle before consumers are called slow, and over so much waiting.
IDLE_S: Final = 0.005
WINDOW_S: Final = 0.02
# What nobody else's work may delay a client by (LIMIT-23).
LONGEST_S: Final = 0.05
SHORTEST_SLOW_S: Final = 0.01
LONGEST_SLOW_S: Final = 1.0
# The part of the last seconds in which publishers waited: what is older by this counts half.
HALF_S: Final = 1.0
# With so much of it a queue is shown as holding publishers back.
SHOWN_PART: Final = 0.05
# More than there can be: no queue has enough.
UNBOUNDED: Final = 1 << 62


class Publisher(Protocol):
    """A connection that publishes."""

    @property
    def may_wait(self) -> bool:
        """False when it must be read: it has consumers, or is about to close."""

    def wait(self) -> None:
        """Do not read it any further."""

    def go_on(self) -> None:
        """Read it again."""


class FlowControl:
    """Which publishers wait for which queues, and how idle the loop is meanwhile.

    Args:
        clock: monotonic seconds
        call_later: runs a callable in so many seconds; without it nobody ever waits
        least: as many messages may always be ready in front of consumers; 0: any number
    """

    __slots__ = (
        *("_call_later", "_is_armed", "_to_look_at", "charged", "clock", "idle_s"),
        *("idle_since", "least", "waiting"),
    )

    def __init__(
        self,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object] | None,
        least: int,
    ) -> None:
        self.clock = clock
        self._call_later = call_later
        self.least = least if least and call_later is not None else UNBOUNDED
        self.charged: list[QueueFlow] = []  # to which messages have come since `charge`
        self.waiting: dict[Publisher, set[QueueFlow]] = {}
        self._to_look_at: deque[QueueFlow] = deque()  # all that anybody waits for, and others
        self.idle_s = 0.0  # of the loop while anybody waited
        self.idle_since = 0.0  # 0: it is not idle, or nobody waits
        self._is_armed = False

    def watch(self, queue: BusyQueue) -> QueueFlow | None:
        """Bound a queue whose consumers could not take everything, if it has enough by now."""
        return QueueFlow(self, queue) if queue.ready_count > self.bound_of(queue) else None

    def bound_of(self, queue: BusyQueue) -> int:
        """With more than so many messages ready it has enough."""
        return max(self.least, queue.unacked_count // 2)

    # Publishers

    def charge(self, publisher: Publisher) -> None:
        """What has come to bounded queues since `forget` is of this publisher: it waits."""
        charged, self.charged = self.charged, []
        may_wait = publisher.may_wait
        for flow in charged:
            if flow.charge(publisher if may_wait else None):
                if not flow.is_listed:
                    flow.is_listed = True
                    self._to_look_at.append(flow)
                flows = self.waiting.get(publisher)
                if flows is None:
                    self.waiting[publisher] = {flow}
                    publisher.wait()
                else:
                    flows.add(flow)
        if self.waiting and not self._is_armed:
            self._arm()

    def forget(self) -> None:
        """What has come to bounded queues is of nobody who could wait."""
        charged, self.charged = self.charged, []
        for flow in charged:
            flow.charge(None)

    def release(self, publisher: Publisher, flow: QueueFlow) -> None:
        """A queue does not keep this publisher waiting any more."""
        flows = self.waiting[publisher]
        flows.discard(flow)
        if not flows:
            del self.waiting[publisher]
            publisher.go_on()

    def leave(self, publisher: Publisher) -> None:
        """It will publish nothing any more: it is read, and waits for nothing."""
        flows = self.waiting.pop(publisher, None)
        if flows is not None:
            for flow in flows:
                flow.leave(publisher)
            publisher.go_on()

    # The loop

    def rests(self) -> None:
        """The turn is done: the loop waits for whatever comes next."""
        self.idle_since = self.clock()

    def woke(self) -> None:
        """Something has come."""
        if self.idle_since:
            self.idle_s += self.clock() - self.idle_since
            self.idle_since = 0.0

    def _arm(self) -> None:
        self._is_armed = True
        if self._call_later is not None:
            self._call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Nobody may have been served for a while: look at those longest not looked at."""
        self._is_armed = False
        if self.idle_since:
            self.woke()
            self.rests()
        queue_flows = self._to_look_at
        for _ in range(min(len(queue_flows), LOOKS)):
            flow = queue_flows.popleft()
            flow.look()
            if flow.is_waited_for:
                queue_flows.append(flow)
            else:
                flow.is_listed = False
        if self.waiting:
            self._arm()


class QueueFlow:
    """What stands in front of the consumers of one queue, and who waits for it to shrink.

    Args:
        flow: keeps publishers waiting
        queue: has enough, as `FlowControl.bound_of` says
    """

    __slots__ = (
        *("_brought", "_came", "_delivered", "_flow", "_idle_before", "_idle_s", "_is_charged"),
        *("_noted_at", "_part", "_queue", "_released_at", "_since", "_slow_s", "_slow_until"),
        *("_taken", "_unacked", "_waited_s", "is_listed"),
    )

    def __init__(self, flow: FlowControl, queue: BusyQueue) -> None:
        self._flow = flow
        self._queue = queue
        self.is_listed = False  # it will be looked at
        self._came = 0  # since the last charge
        self._is_charged = False
        self._brought: dict[Publisher, int] = {}  # by those who wait, longest first
        self._taken = 0  # by consumers, which no publisher has gone on for
        self._delivered = queue.counters.delivered
        self._unacked = queue.unacked_count  # after the last dispatch
        # How much of the time in which anybody waited the loop was idle.
        self._waited_s = self._idle_s = 0.0
        self._since = self._idle_before = self._released_at = 0.0
        self._slow_until = 0.0
        self._slow_s = SHORTEST_SLOW_S
        self._part = self._noted_at = 0.0  # of the time until then in which anybody waited

    @property
    def is_shown(self) -> bool:
        """True when publishers have waited for it for a part of the last seconds that counts."""
        return self._part_until(self._flow.clock(), is_held=bool(self._brought)) >= SHOWN_PART

    @property
    def is_waited_for(self) -> bool:
        """True while publishers wait for it to shrink."""
        return bool(self._brought)

    def came(self, count: int) -> None:
        """So many messages have been published to the queue."""
        self._came += count
        if not self._is_charged:
            self._is_charged = True
            self._flow.charged.append(self)

    def charge(self, publisher: Publisher | None) -> bool:
        """What has come is of this publisher; True when it has to wait from now on."""
        self._is_charged = False
        count, self._came = self._came, 0
        if publisher is None:
            return False
        if publisher in self._brought:
            self._brought[publisher] += count
            return False
        queue = self._queue
        if not self._unacked or not queue.has_consumers:
            return False
        returned = self._unacked - queue.unacked_count  # which the next dispatch hands out again
        if queue.ready_count - returned <= self._flow.bound_of(queue):
            return False
        now = self._flow.clock()
        if now < self._slow_until:
            return False
        if not self._brought:
            self._note(now, is_held=False)
            self._since = self._released_at = now
            self._idle_before = self._flow.idle_s
            self._taken = 0
        self._brought[publisher] = count
        return True

    def leave(self, publisher: Publisher) -> None:
        """It waits no more."""
        del self._brought[publisher]
        if not self._brought:
            self._note(self._flow.clock(), is_held=True)

    def served(self) -> QueueFlow | None:
        """The queue has been dispatched; None when it needs no bound any more."""
        delivered = self._queue.counters.delivered
        taken, self._delivered = delivered - self._delivered, delivered
        self._unacked = self._queue.unacked_count
        if self._brought:
            self._taken += taken
            self._release()
            self._judge()
        is_needed = (
            self._brought
            or self._is_charged
            or self._queue.ready_count > self._flow.least // 2
            or self._flow.clock() < self._slow_until
            or self.is_shown
        )
        return self if is_needed else None

    def look(self) -> None:
        """As after a dispatch: the queue may have been emptied, or deleted, without one."""
        if not self._queue.is_dirty:
            self._release()
        self._judge()

    def _release(self) -> None:
        """Let those who have waited longest go on, as far as consumers have made room."""
        queue, flow = self._queue, self._flow
        ready = queue.ready_count if queue.unacked_count and queue.has_consumers else 0
        bound = flow.bound_of(queue)
        while self._brought:
            publisher, count = next(iter(self._brought.items()))
            if not ready or ready < bound:
                self._taken = 0
            elif self._taken >= TAKEN_PER_MESSAGE * count:
                self._taken -= TAKEN_PER_MESSAGE * count
            else:
                break
            if ready:
                ready += count  # it will bring as much again
            self._released_at = flow.clock()
            del self._brought[publisher]
            if not self._brought:
                self._note(self._released_at, is_held=True)
            flow.release(publisher, self)

    def _note(self, now: float, *, is_held: bool) -> None:
        """Publishers have waited, or not, since the last note."""
        self._part = self._part_until(now, is_held=is_held)
        self._noted_at = now

    def _part_until(self, now: float, *, is_held: bool) -> float:
        kept: float = 0.5 ** ((now - self._noted_at) / HALF_S)
        return self._part * kept + (1 - kept if is_held else 0.0)

    def _judge(self) -> None:
        """Whether consumers keep up: whether it is the broker that they wait for."""
        flow = self._flow
        now = flow.clock()
        self._waited_s += now - self._since
        self._idle_s += flow.idle_s - self._idle_before
        self._since, self._idle_before = now, flow.idle_s
        is_idle = self._idle_s > IDLE_S and self._idle_s * 2 > self._waited_s
        if self._brought and (is_idle or now - self._released_at > LONGEST_S):
            self._slow_until = now + self._slow_s
            self._slow_s = min(2 * self._slow_s, LONGEST_SLOW_S)
            self._waited_s = self._idle_s = 0.0
            self._note(now, is_held=True)
            for publisher in list(self._brought):
                del self._brought[publisher]
                flow.release(publisher, self)
        elif self._waited_s > WINDOW_S:
            self._waited_s = self._idle_s = 0.0
            self._slow_s = SHORTEST_SLOW_S
