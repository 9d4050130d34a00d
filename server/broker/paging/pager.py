"""Keeping queued messages within memory: what waits behind is left to the disk (LIMIT-21).

A queue holds its next messages in memory. Beyond a budget per queue, or over all queues, what
lies behind its head becomes *spans*: the LSNs of messages that the journal holds anyway, or a
page of a scratch file for those that it does not. Spans come back in order, a piece at a time,
when the head runs out. A plain queue within its budget has no backlog and pays nothing.

While anything is unacked only messages that were never handed out are paged, so whatever is
requeued belongs before every span, and order needs no merging. There is one exception: after a
restart all ready messages are spans, those that had been handed out before it too, and a message
whose retry delay ends then may belong between two of them (`Backlog.insert`, ACK-10).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from itertools import accumulate, islice, repeat
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vouchmq.protocol.runs import body_size
from vouchmq.server.broker.message import Message

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Sequence

# What a queued message costs in memory beside its octets: tuple, bytes object, deque slot.
MESSAGE_OVERHEAD_OCTETS: Final = 150
# Sizes of spans made here: messages, and octets of a scratch page.
SPAN_MESSAGES: int = 512
PAGE_OCTETS: Final = 256 * 1024
# Messages read back at a time: few at first, twice as many each time that was not enough.
FIRST_REFILL_MESSAGES: Final = 16
REFILL_MESSAGES: Final = 1024
REFILL_OCTETS: Final = 1024 * 1024
LEAST_REFILL_OCTETS: Final = 16 * 1024
# What all queues together may have read back in one turn, in about microseconds: the steps of the
# store, and one for each message; so much for a scratch page and one for each KiB (LIMIT-23).
TURN_READS: Final = 4096
PAGE_READS: Final = 16
# What a queue keeps in memory when all queues together have too much, and when that is not enough.
LEAST_OCTETS: int = 64 * 1024
TINY_OCTETS: Final = 4 * 1024
# A tail behind spans is paged from this size on.
TAIL_OCTETS: int = 256 * 1024


# What leaves memory in one turn, of one queue that has too much and of all together, by the same
# estimate as counts them; twice what has come since, if that is more (LIMIT-23).
TURN_ROOM_OCTETS: int = 2 * 1024 * 1024
# So many queues that may have too much are looked at in one turn, the others in the next ones.
TURN_LINES: Final = 512
# So many messages, or spans, of deleted queues are freed in one turn (LIMIT-23).
TURN_DISCARDED: Final = 8192


class PagedStore(Protocol):
    """Where paged messages are read from."""

    @property
    def read_steps(self) -> int:
        """What `fetch_runs` has taken so far, in about microseconds."""

    def fetch_runs(
        self, lsns: Sequence[int], limit_octets: int
    ) -> list[tuple[int, bytes, Sequence[bytes], int]]:
        """Read stored messages back in order, as (first LSN, tail, raws, arrived_ms).

        The last is when they came, by the clock of the loop. Fewer than were asked for, but at
        least one, when they are large together, or when they lie in so many places that reading
        all of them would hold up others (LIMIT-23).
        """

    def page_out(self, messages: list[Message]) -> int:
        """Put messages into a scratch page; returns its number."""

    def page_in(self, page: int) -> list[Message]:
        """Read a scratch page back, which ends it."""

    def read_page(self, page: int) -> list[Message]:
        """Read a scratch page, which stays."""

    def drop_page(self, page: int) -> None:
        """End a scratch page unread."""


def drop_refused(messages: deque[Message], first_lsn: int) -> tuple[int, int]:
    """Take from the newer end what was to be stored from this LSN on; gives count and octets."""
    kept: list[Message] = []
    count = octets = 0
    while messages and messages[-1][2] >= first_lsn * 2:
        message = messages.pop()
        if message[2] & 1:
            count += 1
            octets += len(message[0]) + MESSAGE_OVERHEAD_OCTETS
        else:
            kept.append(message)
    messages.extend(reversed(kept))
    return count, octets


class StoredSpan:
    """Messages that the journal holds: nothing but their LSNs, growing."""

    __slots__ = ("lsns",)

    def __init__(self, lsns: Sequence[int]) -> None:
        contiguous = len(lsns) > 1 and lsns[-1] - lsns[0] + 1 == len(lsns)
        self.lsns: Sequence[int] = range(lsns[0], lsns[-1] + 1) if contiguous else array("Q", lsns)


def merged(span: StoredSpan, lsns: Sequence[int]) -> list[StoredSpan]:
    """A span with some LSNs put between its own; a long one is cut, so that few are copied twice.

    The span's own sequence stays as it is: a listing may be reading it (`Backlog.held_spans`).
    """
    own = span.lsns
    if not lsns:
        return [span]
    if len(own) > SPAN_MESSAGES:
        middle = len(own) // 2
        at = bisect_left(lsns, own[middle])
        older, newer = StoredSpan(own[:middle]), StoredSpan(own[middle:])
        return merged(older, lsns[:at]) + merged(newer, lsns[at:])
    return [StoredSpan(sorted([*own, *lsns]))]


class ScratchSpan:
    """Messages in a scratch page, at least one of which the journal does not hold.

    `lsns` are of those that it does hold, `all_lsns` of all of them.
    """

    __slots__ = ("all_lsns", "count", "lsns", "page")

    def __init__(self, page: int, messages: list[Message], lsns: list[int]) -> None:
        self.page = page
        self.count = len(messages)
        self.lsns = lsns
        first, last = messages[0][2] >> 1, messages[-1][2] >> 1
        # They are in the order of their LSNs, no two of which are the same.
        self.all_lsns: Sequence[int] = (
            range(first, last + 1)
            if last - first + 1 == len(messages)
            else array("Q", [message[2] >> 1 for message in messages])
        )


class Piece(NamedTuple):
    """Messages for the head of a queue, about their octets in memory, and the largest one's.

    `reads` is what it took to read them, 0 if they were in memory.
    """

    messages: list[Message]
    octets: int
    largest_octets: int
    reads: int


class Backlog:
    """The part of one queue that lies behind its head: spans, then a tail still in memory.

    Args:
        store: journal and scratch files
        is_stored: the journal holds copies for this queue, and not for others of theirs alone
    """

    __slots__ = (
        *("_ahead", "_is_stored", "_spans", "_store", "count", "octets", "paged_count"),
        "tail",
    )

    def __init__(self, store: PagedStore, *, is_stored: bool = True) -> None:
        self._store = store
        self._is_stored = is_stored
        self._spans: deque[StoredSpan | ScratchSpan] = deque()
        self._ahead = FIRST_REFILL_MESSAGES
        self.tail: deque[Message] = deque()
        self.octets = 0  # of the tail
        self.paged_count = 0
        self.count = 0

    def extend(self, messages: Iterable[Message], count: int, octets: int) -> None:
        """Append a run behind everything else."""
        self.tail.extend(messages)
        self.count += count
        self.octets += octets

    def page_in_front(self, messages: list[Message]) -> None:
        """Put messages as spans before everything else.

        Raises:
            OSError: the disk refused; nothing has changed
        """
        self._spans.extendleft(reversed(self._paged(messages)))
        self._ahead = FIRST_REFILL_MESSAGES
        self.count += len(messages)
        self.paged_count += len(messages)

    def restore(self, spans: Iterable[Sequence[int]]) -> None:
        """Append recovered messages by their LSNs, without reading them."""
        for lsns in spans:
            self._spans.append(StoredSpan(lsns))
            self.count += len(lsns)
            self.paged_count += len(lsns)

    def held_spans(self) -> list[Collection[int]]:
        """LSNs of everything in it, ascending; none of what is given changes later."""
        spans: list[Collection[int]] = [
            span.lsns if isinstance(span, StoredSpan) else span.all_lsns for span in self._spans
        ]
        spans.append(array("Q", [message[2] >> 1 for message in self.tail]))
        return spans

    @property
    def first_lsn(self) -> int:
        """Of the oldest stored message at its head, 0: there is none."""
        span = self._spans[0] if self._spans else None
        return span.lsns[0] if isinstance(span, StoredSpan) else 0

    def insert(self, lsns: Sequence[int]) -> None:
        """Put stored messages at their places among the spans, by their LSNs, which ascend."""
        at = 0
        spans: deque[StoredSpan | ScratchSpan] = deque()
        for span in self._spans:
            oldest, newest = (
                (span.lsns[0], span.lsns[-1])
                if isinstance(span, StoredSpan)
                else (span.all_lsns[0], span.all_lsns[-1])
            )
            if isinstance(span, StoredSpan):
                end = bisect_left(lsns, newest, at)
                spans += merged(span, lsns[at:end])
            else:
                # Of a scratch page nothing was handed out yet: all of this is older.
                end = bisect_left(lsns, oldest, at)
                spans += [StoredSpan(lsns[at:end])] if at < end else []
                spans.append(span)
            at = end
        if at < len(lsns):
            spans.append(StoredSpan(lsns[at:]))
        self._spans = spans
        self.count += len(lsns)
        self.paged_count += len(lsns)

    @property
    def newest_lsn(self) -> int:
        """Of what has just been restored; 0: nothing."""
        return self._spans[-1].lsns[-1] if self._spans else 0

    def page_tail(self) -> int:
        """Turn the tail into spans; returns the octets of memory that this freed.

        Raises:
            OSError: the disk refused; nothing has changed
        """
        spans = self._paged(list(self.tail))
        self._spans.extend(spans)
        self.paged_count += len(self.tail)
        freed, self.octets = self.octets, 0
        self.tail.clear()
        return freed

    def take(self, limit_octets: int) -> Piece:
        """Take the next piece, which may have to be read back, up to about so many octets of it."""
        if not self._spans:
            piece = Piece(list(self.tail), self.octets, 0, 0)
            self.tail.clear()
            self.octets = 0
            self.count -= len(piece.messages)
            return piece
        span = self._spans[0]
        if isinstance(span, ScratchSpan):
            messages = self._store.page_in(span.page)
            self._spans.popleft()
        else:
            steps = self._store.read_steps
            messages = self._read(span, limit_octets)
            steps = self._store.read_steps - steps
        sizes = [len(message[0]) for message in messages]
        octets = sum(sizes)
        if isinstance(span, ScratchSpan):
            steps = PAGE_READS + octets // 1024
        reads = steps + len(sizes)
        self.count -= len(messages)
        self.paged_count -= len(messages)
        return Piece(messages, octets + len(sizes) * MESSAGE_OVERHEAD_OCTETS, max(sizes), reads)

    def forget_refused(self, first_lsn: int) -> int:
        """Drop what the journal could not store; gives the octets of memory that this freed."""
        count, octets = drop_refused(self.tail, first_lsn)
        self.count -= count
        self.octets -= octets
        return octets

    def extract(self, lsns: Container[int]) -> list[Message]:
        """Take some stored messages out of the middle, wherever they are paged."""
        taken: list[Message] = []
        for span in self._spans:
            if isinstance(span, ScratchSpan):
                continue
            wanted = [lsn for lsn in span.lsns if lsn in lsns]
            if not wanted:
                continue
            gone = set(wanted)
            span.lsns = array("Q", [lsn for lsn in span.lsns if lsn not in gone])
            at = 0
            while at < len(wanted):
                for first, tail, raws, arrived_ms in self._store.fetch_runs(
                    wanted[at:], REFILL_OCTETS
                ):
                    seqs = range(first * 2 + 1, (first + len(raws)) * 2 + 1, 2)
                    taken += zip(raws, repeat(tail), seqs, repeat(arrived_ms))
                    at += len(raws)
        self._spans = deque(
            span for span in self._spans if isinstance(span, ScratchSpan) or len(span.lsns)
        )
        self.count -= len(taken)
        self.paged_count -= len(taken)
        return taken

    def stored_up_to(self, lsn: int) -> list[int]:
        """LSNs of paged messages, up to this one."""
        found: list[int] = []
        for span in self._spans:
            if isinstance(span, StoredSpan):
                found += [each for each in span.lsns if each <= lsn]
        return found

    def body_octets(self) -> int:
        """Octets of all bodies; what is on disk is read for it."""
        return sum(body_size(message[0]) for message in self.contents())

    def contents(self) -> Iterator[Message]:
        """Every message, read from where it is and left there."""
        for span in self._spans:
            if isinstance(span, ScratchSpan):
                messages = self._store.page_in(span.page)
                span.page = self._store.page_out(messages)
                yield from messages
                continue
            at = 0
            while at < len(span.lsns):
                piece = span.lsns[at : at + REFILL_MESSAGES]
                for first, tail, raws, arrived_ms in self._store.fetch_runs(piece, REFILL_OCTETS):
                    seqs = range(first * 2 + 1, (first + len(raws)) * 2 + 1, 2)
                    yield from zip(raws, repeat(tail), seqs, repeat(arrived_ms))
                    at += len(raws)
        yield from self.tail

    def peek(self, at: int, count: int) -> list[Message]:
        """Messages from a place on, read from where they are and left there.

        Not all that are asked for, but at least one, if there is one.
        """
        for span in self._spans:
            size = len(span.lsns) if isinstance(span, StoredSpan) else span.count
            if at >= size:
                at -= size
                continue
            if isinstance(span, ScratchSpan):
                return self._store.read_page(span.page)[at : at + count]
            found: list[Message] = []
            lsns = span.lsns[at : at + min(count, REFILL_MESSAGES)]
            for first, tail, raws, arrived_ms in self._store.fetch_runs(lsns, REFILL_OCTETS):
                seqs = range(first * 2 + 1, (first + len(raws)) * 2 + 1, 2)
                found += zip(raws, repeat(tail), seqs, repeat(arrived_ms))
            return found
        return list(islice(self.tail, at, at + count))

    def drop_spans(self, most: int) -> tuple[int, list[Sequence[int]]]:
        """Drop so many spans at the head; gives their messages' count and the stored ones' LSNs."""
        count = 0
        dropped: list[Sequence[int]] = []
        while self._spans and len(dropped) < most:
            span = self._spans.popleft()
            dropped.append(span.lsns)
            if isinstance(span, ScratchSpan):
                self._store.drop_page(span.page)
                count += span.count
            else:
                count += len(span.lsns)
        self.count -= count
        self.paged_count -= count
        return count, [lsns for lsns in dropped if lsns]

    def parts(self) -> tuple[deque[StoredSpan | ScratchSpan], deque[Message]]:
        """What it is made of, for who takes it apart."""
        return self._spans, self.tail

    def clear(self) -> list[Sequence[int]]:
        """Drop everything; gives the LSNs of what the journal holds of it, by and by."""
        spans: list[Sequence[int]] = []
        for span in self._spans:
            spans.append(span.lsns)
            if isinstance(span, ScratchSpan):
                self._store.drop_page(span.page)
        spans.append([message[2] >> 1 for message in self.tail if message[2] & 1])
        self._spans.clear()
        self.tail.clear()
        self.count = self.octets = self.paged_count = 0
        return spans

    def _paged(self, messages: list[Message]) -> list[StoredSpan | ScratchSpan]:
        spans: list[StoredSpan | ScratchSpan] = []
        at = 0
        try:
            while at < len(messages):
                some = messages[at : at + SPAN_MESSAGES]
                if not (self._is_stored and all(message[2] & 1 for message in some)):
                    ends = accumulate(len(message[0]) for message in some)
                    some = some[: 1 + sum(end <= PAGE_OCTETS for end in ends)]
                spans.append(self._span(some))
                at += len(some)
        except OSError:
            for span in spans:
                if isinstance(span, ScratchSpan):
                    self._store.drop_page(span.page)
            raise
        return spans

    def _span(self, messages: list[Message]) -> StoredSpan | ScratchSpan:
        lsns = [message[2] >> 1 for message in messages if message[2] & 1]
        if self._is_stored and len(lsns) == len(messages):
            return StoredSpan(lsns)
        return ScratchSpan(self._store.page_out(messages), messages, lsns)

    def _read(self, span: StoredSpan, limit_octets: int) -> list[Message]:
        """The next piece of a stored span."""
        messages: list[Message] = []
        runs = self._store.fetch_runs(span.lsns[: self._ahead], limit_octets)
        for first, tail, raws, arrived_ms in runs:
            seq = first * 2 + 1
            seqs = range(seq, seq + 2 * len(raws), 2)
            messages += zip(raws, repeat(tail), seqs, repeat(arrived_ms))
        span.lsns = span.lsns[len(messages) :]
        if not span.lsns:
            self._spans.popleft()
        self._ahead = min(2 * self._ahead, REFILL_MESSAGES)
        return messages


class Pageable(Protocol):
    """Who holds messages in memory and can leave them to the disk: a line, a stream's reader."""

    octets: int
    backlog: Backlog | None

    def page_out(self, keep_octets: int) -> None:
        """Leave to the disk what is beyond about so many octets."""

    def wake(self) -> None:
        """There is something to read in this turn again."""


class Discarded(Protocol):
    """Messages, or spans, of a queue that is gone."""

    def __len__(self) -> int: ...

    def pop(self) -> object:
        """Take the last one out."""


class Pager:
    """Watches the memory of all queues and pages out what is too much.

    Args:
        store: journal and scratch files
        queue_octets: budget of one queue
        total_octets: budget of all queues together
    """

    __slots__ = (
        "_came_octets",
        "_crowded",
        "_discarded",
        "_makes_room",
        "_put_off",
        "_queue_octets",
        "_retry_octets",
        "_sized",
        "_total_octets",
        "is_behind",
        "last_error",
        "reads_left",
        "refused_count",
        "store",
        "total",
    )

    def __init__(self, store: PagedStore, queue_octets: int, total_octets: int) -> None:
        self.store = store
        self.total = 0
        self.reads_left = TURN_READS
        self.is_behind = False  # there is more to do in the next turn
        self.refused_count = 0
        self.last_error: OSError | None = None
        self._queue_octets = queue_octets
        self._total_octets = total_octets
        self._retry_octets = 0
        self._crowded: dict[Pageable, None] = {}
        self._came_octets = 0  # since the last turn
        self._makes_room = False
        self._discarded: list[Discarded] = []
        # Queues that may have something to give when all together have too much.
        self._sized: dict[Pageable, None] = {}
        # Queues that have consumers for what could not be read in this turn any more.
        self._put_off: dict[Pageable, None] = {}

    @property
    def refill_octets(self) -> int:
        """How much a queue may read back at a time: less when memory is short."""
        room = self._total_octets * 4 // 5 - self.total
        return max(LEAST_REFILL_OCTETS, min(REFILL_OCTETS, room // 4))

    @property
    def page_out_octets(self) -> int:
        """How much one queue leaves to the disk in one turn, by the estimate that counts it."""
        return max(TURN_ROOM_OCTETS, 2 * self._came_octets)

    def charge(self, line: Pageable, octets: int, *, is_new: bool = True) -> None:
        """A run has come into memory, or has come back to it from where it is not counted."""
        self.total += octets
        if is_new:
            self._came_octets += octets
        held_octets = line.octets
        if held_octets > TINY_OCTETS:
            self._sized[line] = None
            if held_octets > self._queue_octets or line.backlog is not None:
                self._crowded[line] = None

    def go_on(self, line: Pageable) -> None:
        """It has more to leave to the disk than one turn does."""
        self.is_behind = True
        self._crowded[line] = None

    def refund(self, octets: int) -> None:
        """Subtract messages that have left memory from what is counted."""
        self.total -= octets

    def put_off(self, line: Pageable) -> None:
        """Enough was read back in this turn: the queue goes on in the next one."""
        self._put_off[line] = None

    def forget(self, line: Pageable) -> None:
        """The queue of this ready list is gone: it is neither shrunk nor filled any more."""
        self._crowded.pop(line, None)
        self._sized.pop(line, None)
        self._put_off.pop(line, None)

    def discard(self, part: Discarded) -> None:
        """Nobody needs this any more: freeing much of it at once takes long."""
        if part:
            self._discarded.append(part)
            self.is_behind = True

    def run(self) -> None:
        """Page out; called once a turn or more, when the journal has been written."""
        self.is_behind = False
        if self._crowded:
            crowded = list(islice(self._crowded, TURN_LINES))
            for line in crowded:
                del self._crowded[line]
            self.is_behind = bool(self._crowded)
            for line in crowded:
                line.page_out(self._queue_octets // 2)
        if self._makes_room or self.total > max(self._total_octets, self._retry_octets):
            self._make_room()
        if self._discarded:
            self._free()
        self._came_octets = 0
        self.reads_left = TURN_READS
        if self._put_off:
            put_off, self._put_off = self._put_off, {}
            for line in put_off:
                line.wake()

    def tell(self, error: OSError) -> None:
        """The disk refused a page; what should have gone there stays in memory."""
        self.refused_count += 1
        self.last_error = error

    def _free(self) -> None:
        """Free some of what nobody needs any more."""
        left = TURN_DISCARDED
        while self._discarded and left > 0:
            part = self._discarded[-1]
            some = min(left, len(part))
            for _ in range(some):
                each = part.pop()
                if isinstance(each, ScratchSpan):
                    self.store.drop_page(each.page)
            left -= some
            if not part:
                self._discarded.pop()
        self.is_behind |= bool(self._discarded)

    def _make_room(self) -> None:
        """Largest first, until a fifth of the budget is free again; a part of that in each turn."""
        enough = self._total_octets * 4 // 5
        rest = max(enough, self.total - self.page_out_octets)
        sized = sorted(self._sized, key=lambda line: line.octets, reverse=True)
        for keep_octets in (LEAST_OCTETS, TINY_OCTETS):
            for line in sized:
                if self.total <= rest:
                    break
                line.page_out(keep_octets)
                if line.octets <= TINY_OCTETS:
                    self._sized.pop(line, None)
        self._makes_room = enough < self.total <= rest
        self.is_behind |= self._makes_room
        # What cannot be paged now is not looked at every turn.
        is_short = self.total > self._total_octets and not self.is_behind
        self._retry_octets = self.total + self._total_octets // 16 if is_short else 0
