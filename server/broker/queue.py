"""A queue: ready messages in order, consumers by priority, and the count of what is unacked.

Work comes in runs: a publish run is one `extend`, a batch for a consumer one slice. Nothing is
delivered from inside a publish: the queue asks for its place in the turn, and `dispatch` runs
there once for whatever has come (CONS-10, LIMIT-23). The queue must not know channels, sockets
or frames; it sees consumers through `outlet.py` and the journal through `CopyLog`.

Redelivery is one number. A queue hands messages out in the order of their seq, so everything
not above the highest seq ever handed out is a redelivery, and the journal keeps that one number
per queue instead of a record per delivery (ACK-12, DURABLE-12).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final

from protocol.errors import AccessRefused
from server.broker.message import Message, lsn_of, lsns_of
from server.broker.pager import (
    LEAST_OCTETS,
    MESSAGE_OVERHEAD_OCTETS,
    TAIL_OCTETS,
    Backlog,
    drop_refused,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from server.broker.outlet import CopyLog, Dispatcher, Outlet
    from server.broker.pager import Pager
    from server.broker.spec import QueueSpec

# A run's messages, about their octets in memory together, and the octets of the largest.
RunSize = tuple[int, int, int]

# Bounds of one turn (LIMIT-23): messages a queue hands out, and octets in one batch.
TURN_MESSAGES: Final = 4096
BATCH_OCTETS: Final = 262144
# So few requeued messages are put each at its place; more are merged in one go.
FEW_MESSAGES: Final = 64


class Queue:
    """One queue of a virtual host.

    Args:
        spec: name, flags and arguments as declared
        turn: asked for a dispatch whenever messages and consumers may have met
        log: told what becomes of stored copies
        pager: keeps the memory of all queues within bounds
        unused: called when the last consumer has gone (QUEUE-08)
    """

    __slots__ = (
        "_groups",
        "_log",
        "_pager",
        "_turn",
        "_unused",
        "backlog",
        "consumer_count",
        "exclusive_consumer",
        "holds_stored",
        "is_deleted",
        "is_dirty",
        "largest_octets",
        "mark",
        "octets",
        "ready",
        "spec",
        "stored",
        "unacked_count",
    )

    def __init__(
        self,
        spec: QueueSpec,
        turn: Dispatcher,
        log: CopyLog,
        pager: Pager,
        unused: Callable[[Queue], None],
    ) -> None:
        self.spec = spec
        self.stored = spec.stored
        self.ready: deque[Message] = deque()
        self.octets = 0  # of what is in memory, ready or in the backlog's tail; an estimate
        self.backlog: Backlog | None = None
        self.unacked_count = 0
        self.consumer_count = 0
        self.mark = 0
        self.largest_octets = 0
        self.holds_stored = False
        self.is_deleted = False
        self.is_dirty = False
        self.exclusive_consumer: Outlet | None = None
        self._groups: list[tuple[int, deque[Outlet]]] = []
        self._turn = turn
        self._log = log
        self._pager = pager
        self._unused = unused

    @property
    def ready_count(self) -> int:
        """Messages waiting, not counting unacked ones (QUEUE-01)."""
        return len(self.ready) + (self.backlog.count if self.backlog is not None else 0)

    @property
    def head_lsn(self) -> int:
        """The LSN of the next message if the journal is to hold it, else 0."""
        for pile in (self.ready, self.backlog.tail if self.backlog is not None else ()):
            if pile:
                return lsn_of(pile[0][2]) if pile[0][2] & 1 else 0
        return 0

    def restore(self, spans: Sequence[Sequence[int]], delivered_lsn: int) -> None:
        """Put recovered copies in place by their LSNs; the mark tells who was delivered.

        They are read when somebody wants them.
        """
        self.mark = delivered_lsn * 2 + 1
        if spans:
            self.backlog = Backlog(self._pager.store)
            self.backlog.restore(spans)
            self.holds_stored = True

    def enqueue(self, messages: Iterable[Message], size: RunSize, *, stored: bool) -> None:
        """Append a run of messages; `stored`: the journal holds them."""
        count, octets, largest_octets = size
        self.octets += octets
        if self.backlog is None:
            self.ready.extend(messages)
        else:
            self.backlog.extend(messages, count, octets)
        self._pager.charge(self, octets)
        if largest_octets > self.largest_octets:
            self.largest_octets = largest_octets
        if stored and self.stored:
            self.holds_stored = True
        if self._groups and not self.is_dirty:
            self.wake()

    def wake(self) -> None:
        """Ask for a dispatch in this turn."""
        if (self.ready or self.backlog) and not self.is_dirty and self._groups:
            self.is_dirty = True
            self._turn.wants_dispatch(self)

    def dispatch(self) -> None:
        """Hand ready messages to consumers: highest priority first, round robin within it.

        Spec: CONS-10, CONS-20
        """
        self.is_dirty = False
        left = TURN_MESSAGES
        for _, group in self._groups:
            if left <= 0 or not (self.ready or self._refill()):
                break
            left -= self._serve_one(group[0], left) if len(group) == 1 else self._serve(group, left)
        if left <= 0:
            self.wake()

    def _serve_one(self, outlet: Outlet, limit: int) -> int:
        served = 0
        ready = self.ready
        while served < limit and (ready or self._refill()):
            room = min(outlet.room(ready[0]), limit - served, self._batch_limit())
            if room <= 0:
                break
            batch = self._take(room)
            served += len(batch)
            self._hand_out(outlet, batch)
        return served

    def _serve(self, group: deque[Outlet], limit: int) -> int:
        served = 0
        ready = self.ready
        while served < limit and (ready or self._refill()):
            head = ready[0]
            rooms = [(outlet, outlet.room(head)) for outlet in group]
            able = [outlet for outlet, room in rooms if room > 0]
            if not able:
                break
            if any(outlet.shares_room for outlet in able):
                served += self._serve_singly(group, able, limit - served)
                continue
            smallest = min(room for _, room in rooms if room > 0)
            rounds = min(smallest, len(ready) // len(able), (limit - served) // len(able) + 1)
            rounds = min(rounds, max(1, self._batch_limit() // len(able)))
            if rounds < 1:
                self._hand_out(able[0], self._take(1))
                group.remove(able[0])
                group.append(able[0])
                served += 1
                continue
            served += self._deal(group, able, rounds)
        return served

    def _serve_singly(self, group: deque[Outlet], able: list[Outlet], limit: int) -> int:
        """One message each to those who had room a moment ago.

        Room that is shared over a channel, or judged against the size of one head, can be
        promised for one message only.
        """
        served = 0
        for outlet in able:
            if served >= limit or not (self.ready or self._refill()):
                break
            if outlet.room(self.ready[0]) > 0:
                self._hand_out(outlet, self._take(1))
                group.remove(outlet)
                group.append(outlet)
                served += 1
        return served

    def _deal(self, group: deque[Outlet], able: list[Outlet], rounds: int) -> int:
        """Give each of `able` every n-th message of a batch, which is exact round robin."""
        if len(able) != len(group):
            waiting = [outlet for outlet in group if outlet not in able]
            group.clear()
            group.extend(waiting)
            group.extend(able)
        batch = self._take(rounds * len(able))
        mark = self.mark
        for index, outlet in enumerate(able):
            self._hand_out(outlet, batch[index :: len(able)], mark)
        return len(batch)

    def _batch_limit(self) -> int:
        return BATCH_OCTETS // self.largest_octets or 1 if self.largest_octets else BATCH_OCTETS

    def _take(self, count: int) -> list[Message]:
        # Counted as a whole, before any part of it can be settled by a no-ack consumer: the queue
        # must not look empty while the rest of a batch is still on its way.
        ready = self.ready
        self._leave_memory(count)
        if count >= len(ready):
            batch = list(ready)
            ready.clear()
        else:
            popleft = ready.popleft
            batch = [popleft() for _ in range(count)]
        self.unacked_count += len(batch)
        return batch

    def _hand_out(self, outlet: Outlet, batch: list[Message], mark: int = -1) -> None:
        if mark < 0:
            mark = self.mark
        last = batch[-1][2]
        if last > self.mark:
            self.mark = last
            if self.holds_stored and not outlet.no_ack:
                self._log.delivered(self.spec.queue_id, lsn_of(last))
        outlet.deliver(batch, mark)

    def get(self, *, no_ack: bool) -> tuple[Message, bool] | None:
        """Take the head as a consumer would; also says whether it is a redelivery (CONS-51)."""
        if not self.ready and not self._refill(at_once=True):
            return None
        self._leave_memory(1)
        message = self.ready.popleft()
        self.unacked_count += 1
        redelivered = message[2] <= self.mark
        if not redelivered:
            self.mark = message[2]
            if self.holds_stored and not no_ack:
                self._log.delivered(self.spec.queue_id, lsn_of(message[2]))
        return message, redelivered

    def can_take_now(self, message: Message) -> bool:
        """PUB-30: nothing is ready and a consumer has room for it at this moment."""
        return not self.ready_count and any(
            outlet.room(message) > 0 for _, group in self._groups for outlet in group
        )

    def settle(self, messages: list[Message]) -> None:
        """These deliveries are done with: acked, rejected or sent without need of an ack."""
        self.unacked_count -= len(messages)
        if self.is_deleted:
            return
        if self.holds_stored:
            lsns = lsns_of(messages)
            if lsns:
                self._log.settle(self.spec.queue_id, lsns)
        self._forget_when_empty()

    def unsettle(self, messages: list[Message]) -> None:
        """Their settlement could not be stored: they are unacked again (TX-09)."""
        self.unacked_count += len(messages)
        if not self.is_deleted and any(message[2] & 1 for message in messages):
            self.holds_stored = True

    def forget_refused(self, first_lsn: int) -> None:
        """The journal could not store what it was given from this LSN on: no copy stays (CONF-12).

        Such messages are the newest, and none has been handed out (see `turn.py`).
        """
        backlog = self.backlog
        if backlog is not None:
            self._uncharge(backlog.forget_refused(first_lsn))
            if not backlog.count:
                self.backlog = None
        self._uncharge(drop_refused(self.ready, first_lsn)[1])
        self._forget_when_empty()

    def requeue(self, messages: list[Message]) -> None:
        """Put deliveries back at their original places (ACK-10)."""
        self.unacked_count -= len(messages)
        if self.is_deleted or not messages:
            return
        ready = self.ready
        octets = sum(len(message[0]) + MESSAGE_OVERHEAD_OCTETS for message in messages)
        self.octets += octets
        self._pager.charge(self, octets)
        back = sorted(messages, key=order)
        last = back[-1][2]
        if not ready or last < ready[0][2]:
            ready.extendleft(reversed(back))
        elif len(back) < FEW_MESSAGES:
            # Clients that give back a long backlog do it one by one; walking over what lies in
            # front each time would take seconds for some ten thousand of them.
            for message in back:
                ready.insert(bisect_left(ready, message[2], key=order), message)
        else:
            while ready and ready[0][2] < last:
                back.append(ready.popleft())
            back.sort(key=order)
            ready.extendleft(reversed(back))
        self.wake()

    def purge(self) -> int:
        """Drop what is ready; unacked messages stay with their consumers (QUEUE-60)."""
        count = self.ready_count
        for lsns in (lsns_of(list(self.ready)), *self._drop_all()):
            if self.holds_stored and lsns:
                self._log.settle(self.spec.queue_id, lsns)
        self._forget_when_empty()
        return count

    def _drop_all(self) -> list[Sequence[int]]:
        """Empty the queue; gives the LSNs of what the journal held of the backlog."""
        self.ready.clear()
        self._uncharge(self.octets)
        backlog, self.backlog = self.backlog, None
        return backlog.clear() if backlog is not None else []

    def page_out(self, keep_octets: int) -> None:
        """Leave to the disk what lies behind about the first `keep_octets` (LIMIT-21)."""
        backlog = self.backlog
        if backlog is not None and (backlog.octets >= TAIL_OCTETS or keep_octets <= LEAST_OCTETS):
            try:
                self._uncharge(backlog.page_tail())
            except OSError as error:
                self._pager.tell(error)
                return
        head_octets = self.octets - (backlog.octets if backlog is not None else 0)
        ready = self.ready
        if head_octets <= keep_octets or len(ready) < 2:
            return
        before = len(ready)
        keep = max(1, before * keep_octets // head_octets)
        moved: list[Message] = []
        # What has been handed out before stays: it may be requeued again in front of it.
        while len(ready) > keep and ready[-1][2] > self.mark:
            moved.append(ready.pop())
        if not moved:
            return
        moved.reverse()
        behind = backlog or Backlog(self._pager.store)
        try:
            behind.page_in_front(moved)
        except OSError as error:
            ready.extend(moved)
            self._pager.tell(error)
            return
        self.backlog = behind
        self._uncharge(head_octets * len(moved) // before)

    def _uncharge(self, octets: int) -> None:
        self.octets -= octets
        self._pager.refund(octets)

    def _refill(self, *, at_once: bool = False) -> bool:
        """Bring the next piece of the backlog into memory; False when there is none.

        Also when enough was read in this turn, unless it must be `at_once`; then the queue is
        woken in the next one.
        """
        backlog = self.backlog
        if backlog is None:
            return False
        pager = self._pager
        if pager.reads_left <= 0 and backlog.paged_count and not at_once:
            pager.put_off(self)
            return False
        piece = backlog.take(pager.refill_octets)
        self.ready.extend(piece.messages)
        if piece.reads:
            pager.reads_left -= piece.reads
            self.octets += piece.octets
            pager.charge(self, piece.octets)
            self.largest_octets = max(self.largest_octets, piece.largest_octets)
        if not backlog.count:
            self.backlog = None
        return bool(piece.messages)

    def _leave_memory(self, count: int) -> None:
        """Count out messages that are taken from the head, by their share."""
        held = len(self.ready)
        backlog = self.backlog
        octets = self.octets if backlog is None else self.octets - backlog.octets
        freed = octets if count >= held else octets * count // held
        self._uncharge(freed)

    def _forget_when_empty(self) -> None:
        if not self.unacked_count and not self.ready and self.backlog is None:
            self.holds_stored = False
            self.largest_octets = 0

    def deleted(self) -> None:
        """The vhost has removed this queue: drop everything, tell the consumers (CONS-40)."""
        self.is_deleted = True
        self._drop_all()
        self._pager.forget(self)
        groups, self._groups = self._groups, []
        self.consumer_count = 0
        for _, group in groups:
            for outlet in group:
                outlet.queue_deleted()

    def add_consumer(self, outlet: Outlet, *, exclusive: bool) -> None:
        """Register a consumer.

        Raises:
            AccessRefused: an exclusive consumer is there, or one is asked for beside others
                (CONS-05)
        """
        if self.exclusive_consumer is not None or (exclusive and self.consumer_count):
            raise AccessRefused(
                f"queue '{self.spec.name}' in vhost '{self.spec.vhost}' in exclusive use"
            )
        if exclusive:
            self.exclusive_consumer = outlet
        for priority, group in self._groups:
            if priority == outlet.priority:
                group.append(outlet)
                break
        else:
            self._groups.append((outlet.priority, deque([outlet])))
            self._groups.sort(key=lambda entry: -entry[0])
        self.consumer_count += 1
        self.wake()

    def remove_consumer(self, outlet: Outlet) -> None:
        """Take a consumer away; the last one's leaving may end an auto-delete queue."""
        for entry in self._groups:
            if outlet in entry[1]:
                entry[1].remove(outlet)
                if not entry[1]:
                    self._groups.remove(entry)
                break
        else:
            return
        self.consumer_count -= 1
        if self.exclusive_consumer is outlet:
            self.exclusive_consumer = None
        if not self.consumer_count:
            self._unused(self)

    def outlets(self) -> list[Outlet]:
        """All consumers, highest priority first."""
        return [outlet for _, group in self._groups for outlet in group]


def order(message: Message) -> int:
    """Sort key: the order of enqueueing."""
    return message[2]
