"""A line of messages in the order of their seq: a head in memory, a backlog behind it.

A plain queue is one line; a queue with priorities has one per level that is in use. The line
knows where its messages are and what they cost; who may have them is the queue's business.

Redelivery is one number: a line hands messages out in the order of their seq, so everything not
above the highest seq ever handed out is a redelivery, and the journal keeps that one number per
line instead of a record per delivery (ACK-12, DURABLE-12).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol, cast

from vouchmq.protocol.runs import body_size
from vouchmq.server.broker.message import Message, lsn_of, lsns_of, seq_of
from vouchmq.server.broker.paging.pager import (
    LEAST_OCTETS,
    MESSAGE_OVERHEAD_OCTETS,
    TAIL_OCTETS,
    Backlog,
    drop_refused,
)
from vouchmq.server.broker.queues.requeued import Requeued

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

    from vouchmq.server.broker.paging.pager import Pager

# A run's messages, about their octets in memory together, and the octets of the largest.
RunSize = tuple[int, int, int]

# Octets of one batch for one consumer (LIMIT-23).
BATCH_OCTETS: Final = 262144
# Pieces of what came back that are merged in one turn so that they can be paged (LIMIT-23).
PAGE_OUT_PIECES: Final = 4
# The highest mark: everything in this line has been handed out before, and stands in any order.
ALWAYS: Final = 1 << 63
# So few requeued messages are put each at its place, when that is so near the head.
FEW_MESSAGES: Final = 64
NEAR: Final = 256
# What came back is merged with the rest so many messages at a time.
PIECE_MESSAGES: Final = 1024
RAW_OF: Final = itemgetter(0)
# Of a purge one piece: so many spans of what is on disk, and so small a share of what is in memory
# where features look at each message (LIMIT-23).
PURGE_SPANS: int = 512
SEEN_SHARE: Final = 8


class LsnSnapshot:
    """LSNs of messages at one moment, looked at when they are asked for."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages = list(messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[int]:
        return (message[2] >> 1 for message in self._messages)

    def __contains__(self, lsn: object) -> bool:
        return any(each == lsn for each in self)


class ReadyBytes:
    """How many octets the bodies of the ready messages of a queue have together (LEN-01).

    Counts for all lines of one queue.
    """

    __slots__ = ("octets",)

    def __init__(self) -> None:
        self.octets = 0

    def add(self, messages: Iterable[Message]) -> None:
        """These are in a line now."""
        self.octets += sum(body_size(message[0]) for message in messages)

    def remove(self, messages: Iterable[Message]) -> None:
        """These are in no line any more."""
        self.octets -= sum(body_size(message[0]) for message in messages)


class Owner(Protocol):
    """The queue of a line."""

    largest_octets: int
    lines: list[ReadyList]
    ready_bytes: ReadyBytes | None

    @property
    def may_come_back(self) -> bool:
        """True while messages that were handed out may be put back."""

    def wake(self) -> None:
        """There may be something to dispatch again."""


class Nobody:
    """The owner of a line whose queue is gone."""

    may_come_back = False

    def __init__(self) -> None:
        self.largest_octets = 0
        self.lines: list[ReadyList] = []
        self.ready_bytes: ReadyBytes | None = None

    def wake(self) -> None:
        """Nobody is served any more."""


class ReadyList:
    """Messages of one queue, or of one level of it.

    Args:
        owner: the queue
        pager: keeps the memory of all lines within bounds
        store_id: under which the journal keeps its copies, 0 when it does not
    """

    __slots__ = (
        *("_owner", "_pager", "backlog", "mark", "octets", "ready", "requeued", "store_id"),
        "ready_bytes",
    )

    def __init__(self, owner: Owner, pager: Pager, store_id: int) -> None:
        self._owner = owner
        self._pager = pager
        self.store_id = store_id
        self.ready: deque[Message] = deque()
        self.requeued: Requeued | None = None  # what came back and stands behind `ready`
        self.octets = 0  # of what is in memory, ready or in the backlog's tail; an estimate
        self.backlog: Backlog | None = None
        self.mark = 0
        self.ready_bytes: ReadyBytes | None = (
            None  # counts octets of bodies where there is a limit of them
        )

    @property
    def count(self) -> int:
        """Messages in it, in memory or not."""
        return self._memory_count + (self.backlog.count if self.backlog is not None else 0)

    @property
    def is_empty(self) -> bool:
        """True when nothing is in it."""
        return not self.ready and self.requeued is None and self.backlog is None

    @property
    def _memory_count(self) -> int:
        """The number of messages in memory, which are before the backlog."""
        return len(self.ready) + (len(self.requeued) if self.requeued is not None else 0)

    @property
    def _newest(self) -> deque[Message]:
        """The last messages before the backlog."""
        return self.ready if self.requeued is None else self.requeued.newest

    def in_memory(self) -> Sequence[Message]:
        """Messages before the backlog, in the order of delivery."""
        if self.requeued is None:
            return self.ready
        return [*self.ready, *sorted(self.requeued, key=seq_of)]

    @property
    def head_lsn(self) -> int:
        """The LSN of the next message if the journal is to hold it, else 0."""
        if not self.ready and self.requeued is not None:
            self._merge(self.requeued)
        for messages in (self.ready, self.backlog.tail if self.backlog is not None else ()):
            if messages:
                return lsn_of(messages[0][2]) if messages[0][2] & 1 else 0
        return 0

    @property
    def batch_limit(self) -> int:
        """So many messages make a batch of a bounded size."""
        largest = self._owner.largest_octets
        return BATCH_OCTETS // largest or 1 if largest else BATCH_OCTETS

    def restore(self, spans: Sequence[Sequence[int]], delivered_lsn: int) -> None:
        """Put recovered copies in place by their LSNs; the mark tells who was delivered.

        They are read when somebody wants them.
        """
        self.mark = delivered_lsn * 2 + 1
        if spans:
            self.backlog = Backlog(self._pager.store)
            self.backlog.restore(spans)
            if self.ready_bytes is not None:
                self.ready_bytes.octets += self.backlog.body_octets()

    def measure(self, counted: ReadyBytes) -> None:
        """From now on count the octets of bodies, beginning with what is there."""
        self.ready_bytes = counted
        counted.add(self.in_memory())
        if self.backlog is not None:
            counted.octets += self.backlog.body_octets()

    def append(self, messages: Iterable[Message], size: RunSize) -> None:
        """Add a run behind everything else."""
        count, octets, _ = size
        self.octets += octets
        if self.ready_bytes is not None:
            messages = list(messages)
            self.ready_bytes.add(messages)
        if self.backlog is not None:
            self.backlog.extend(messages, count, octets)
        elif self.requeued is None:
            self.ready.extend(messages)
        else:
            self.requeued.newest.extend(messages)
        self._pager.charge(self, octets)

    def take(self, count: int) -> list[Message]:
        """Take messages from the head, not more than are in memory."""
        ready = self.ready
        self._discard_memory(count)
        if count >= len(ready):
            batch = list(ready)
            ready.clear()
        else:
            # Compiled, a `Message` would be taken apart and put together again.
            popleft: Callable[[], object] = ready.popleft
            batch = cast("list[Message]", [popleft() for _ in range(count)])
        if self.ready_bytes is not None:
            self.ready_bytes.remove(batch)
        return batch

    def peek(self, at: int, count: int) -> list[Message] | None:
        """Messages from a place on, in the order of delivery, and left where they are.

        Not all that are asked for, but at least one, if there is one. None: more has come back than
        is merged in one turn.
        """
        for _ in range(PAGE_OUT_PIECES):
            if self.requeued is not None and at + count > len(self.ready):
                self._merge(self.requeued)
        if self.requeued is not None and at >= len(self.ready):
            return None
        if at < len(self.ready) or self.backlog is None:
            return list(islice(self.ready, at, at + count))
        return self.backlog.peek(at - len(self.ready), count)

    def take_head(self, most: int) -> list[Message]:
        """Take from the head, not more than is read back at once; one at least, if there is one."""
        if not self.ready:
            self.refill(at_once=True)
        return self.take(min(most, len(self.ready)))

    def return_delivered(self, messages: list[Message]) -> None:
        """Put messages back at their original places (ACK-10)."""
        if self.backlog is not None and 0 < self.backlog.first_lsn * 2 < max(map(seq_of, messages)):
            messages = self._return_behind(self.backlog, messages)
            if not messages:
                return
        ready = self.ready
        octets = sum(map(len, map(RAW_OF, messages))) + len(messages) * MESSAGE_OVERHEAD_OCTETS
        self.octets += octets
        self._pager.charge(self, octets, is_new=False)
        if self.ready_bytes is not None:
            self.ready_bytes.add(messages)
        back = sorted(messages, key=seq_of)
        last_seq = back[-1][2]
        if not ready and self.requeued is None:
            ready.extend(back)
        elif ready and last_seq < ready[0][2]:
            ready.extendleft(reversed(back))
        elif len(back) < FEW_MESSAGES and ready and last_seq < ready[min(NEAR, len(ready)) - 1][2]:
            for message in back:
                ready.insert(bisect_left(ready, message[2], key=seq_of), message)
        else:
            if self.requeued is None:
                self.requeued = Requeued(ready)
                self.ready = deque()
            elif ready and back[0][2] < ready[-1][2]:
                self.requeued.add(list(ready))
                ready.clear()
            self.requeued.add(back)

    def _return_behind(self, backlog: Backlog, messages: list[Message]) -> list[Message]:
        """Put back what belongs among messages that a restart left on disk; gives the others."""
        first_seq = backlog.first_lsn * 2
        behind = [message for message in messages if message[2] & 1 and message[2] > first_seq]
        backlog.insert(sorted(message[2] >> 1 for message in behind))
        if self.ready_bytes is not None:
            self.ready_bytes.add(behind)
        return [message for message in messages if not message[2] & 1 or message[2] < first_seq]

    def extract(self, lsns: Container[int]) -> list[Message]:
        """Take stored messages out that have just been restored, and nobody has read yet."""
        if self.backlog is None:
            return []
        taken = self.backlog.extract(lsns)
        if not self.backlog.count:
            self.backlog = None
        if self.ready_bytes is not None:
            self.ready_bytes.remove(taken)
        return taken

    def restored(self) -> Iterator[Message]:
        """Everything that has just been restored, read without being taken."""
        return self.backlog.contents() if self.backlog is not None else iter(())

    def delivered_before(self) -> list[int]:
        """LSNs of restored messages that had been handed out before the restart."""
        return self.backlog.stored_up_to(self.mark >> 1) if self.backlog is not None else []

    def append_paged(self, messages: list[Message]) -> None:
        """Put messages behind everything else, whatever their seq; nothing of it is ever paged."""
        self._charge_paged(messages)
        self.ready.extend(messages)

    def prepend_paged(self, messages: list[Message]) -> None:
        """Put messages of such a list in front of everything else."""
        self._charge_paged(messages)
        self.ready.extendleft(reversed(messages))

    def _charge_paged(self, messages: list[Message]) -> None:
        octets = sum(len(message[0]) + MESSAGE_OVERHEAD_OCTETS for message in messages)
        self.octets += octets
        self._pager.charge(self, octets, is_new=False)
        if self.ready_bytes is not None:
            self.ready_bytes.add(messages)

    def drop_all(self) -> list[Sequence[int]]:
        """Empty the line; gives the LSNs of what the journal holds of it."""
        spans: list[Sequence[int]] = [lsns_of(list(self.ready))]
        self.ready.clear()
        if self.requeued is not None:
            spans.append(lsns_of(list(self.requeued)))
            self.requeued = None
        self._uncharge(self.octets)
        backlog, self.backlog = self.backlog, None
        return spans + backlog.clear() if backlog is not None else spans

    def drop_some(
        self, most: int, *, is_seen: bool
    ) -> tuple[list[Message], int, list[Sequence[int]]]:
        """Drop what is in front, a part of it (LIMIT-23).

        Args:
            most: messages, if they are in memory
            is_seen: somebody has to see each of them, so that nothing goes that is on disk

        Returns:
            messages, or the LSNs of stored ones that were on disk, and how many went
        """
        backlog = self.backlog
        is_paged = backlog is not None and backlog.paged_count > 0
        if not self.ready and (self.requeued is not None or not is_paged):
            self.refill(at_once=True)
        if self.ready:
            batch = self.take(min(most // SEEN_SHARE if is_seen else most, len(self.ready)))
            return batch, len(batch), []
        if backlog is None or is_seen:
            return [], 0, []
        count, spans = backlog.drop_spans(PURGE_SPANS)
        if not backlog.count:
            self.backlog = None
        return [], count, spans

    def held_spans(self) -> list[Collection[int]]:
        """LSNs of what is in it now, ascending, as they are kept; nothing is read for it."""
        ready: Collection[int] = LsnSnapshot(self.in_memory())
        if self.mark == ALWAYS:
            ready = sorted(ready)
        behind = self.backlog.held_spans() if self.backlog is not None else []
        return [ready, *behind]

    def forget_refused(self, first_lsn: int) -> list[int]:
        """The journal could not store what it was given from this LSN on: no copy stays (CONF-12).

        Such messages are the newest, and none has been handed out (see `turn.py`).

        Returns:
            their LSNs
        """
        backlog = self.backlog
        gone = sorted(lsn_of(message[2]) for message in self._refused(first_lsn))
        if self.ready_bytes is not None:
            self.ready_bytes.remove(self._refused(first_lsn))
        if backlog is not None:
            self._uncharge(backlog.forget_refused(first_lsn))
            if not backlog.count:
                self.backlog = None
        self._uncharge(drop_refused(self._newest, first_lsn)[1])
        return gone

    def _refused(self, first_lsn: int) -> Iterator[Message]:
        for messages in (self._newest, self.backlog.tail if self.backlog is not None else ()):
            for message in reversed(messages):
                if message[2] < first_lsn * 2:
                    break
                if message[2] & 1:
                    yield message

    # Memory

    def wake(self) -> None:
        """See `Owner`."""
        self._owner.wake()

    def abandon(self) -> None:
        """The queue is gone; what it had in memory is freed by and by (LIMIT-23)."""
        self._uncharge(self.octets)
        pager = self._pager
        pager.forget(self)
        pager.discard(self.ready)
        self.ready = deque()
        if self.requeued is not None:
            for run in self.requeued.runs():
                pager.discard(run)
            self.requeued = None
        if self.backlog is not None:
            for part in self.backlog.parts():
                pager.discard(part)
            self.backlog = None
        self._owner = Nobody()  # without the ring all of it goes at once

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
        before = self._memory_count
        if head_octets <= keep_octets or before < 2:
            return
        mark = self.mark
        if mark != ALWAYS and not self._owner.may_come_back:
            if self.requeued is not None and not self._merge_some(self.requeued):
                return
            mark = 0
        moved, octets = self._leave_newest(before * keep_octets // head_octets, mark)
        if not moved:
            return
        moved.reverse()
        behind = backlog or Backlog(self._pager.store, is_stored=self.store_id != 0)
        try:
            behind.page_in_front(moved)
        except OSError as error:
            self._newest.extend(moved)
            self._pager.tell(error)
            return
        self.backlog = behind
        self._uncharge(head_octets * len(moved) // before)
        if octets >= self._pager.page_out_octets:
            self._pager.go_on(self)

    def _leave_newest(self, keep: int, mark: int) -> tuple[list[Message], int]:
        """Take the newest out of memory, newest first; gives them, and their octets.

        What has been handed out before stays: it may be requeued again in front of it. Not while
        nothing can come back: then only what lies here can be handed out, in its order.
        """
        messages = self._newest
        left = self._memory_count - max(1, keep)
        moved: list[Message] = []
        octets, enough = 0, self._pager.page_out_octets
        while left > len(moved) and messages and messages[-1][2] > mark and octets < enough:
            octets += len(messages[-1][0]) + MESSAGE_OVERHEAD_OCTETS
            moved.append(messages.pop())
        return moved, octets

    def _merge_some(self, requeued: Requeued) -> bool:
        """Merge what came back, so that it can be paged; False when there is more than a turn's."""
        for _ in range(PAGE_OUT_PIECES):
            self._merge(requeued)
            if self.requeued is None:
                return True
        self._pager.go_on(self)
        return False

    def refill(self, *, at_once: bool = False) -> bool:
        """Have something ready: what came back, or the next piece of the backlog; False: nothing.

        Also when enough was read in this turn, unless it must be `at_once`; then the queue is
        woken in the next one.
        """
        if self.requeued is not None and self._merge(self.requeued):
            return True
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
            owner = self._owner
            owner.largest_octets = max(owner.largest_octets, piece.largest_octets)
        if not backlog.count:
            self.backlog = None
        return bool(piece.messages)

    def _merge(self, requeued: Requeued) -> bool:
        """Have the next of what came back ready; when no more is left, all is as it was before."""
        if requeued.count:
            self.ready.extend(requeued.take_due(PIECE_MESSAGES))
        if not requeued.count:
            requeued.newest.extendleft(reversed(self.ready))
            self.ready, self.requeued = requeued.newest, None
        return bool(self.ready)

    def _uncharge(self, octets: int) -> None:
        self.octets -= octets
        self._pager.refund(octets)

    def _discard_memory(self, count: int) -> None:
        """Count out messages that are taken, by their share."""
        held = self._memory_count
        backlog = self.backlog
        octets = self.octets if backlog is None else self.octets - backlog.octets
        freed = octets if count >= held else octets * count // held
        self._uncharge(freed)
