"""What a broker has in its queues, read off its own structures: for the books and after a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.dead_letter.dead_letters import (
    DeadLetters,
    PendingDeadLetters,
    note_key,
)
from vouchmq.server.broker.delays import DelayQueue
from vouchmq.server.broker.features.redelivery import Redelivery
from vouchmq.server.broker.paging.pager import StoredSpan
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.queues.settlement import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.queues.ready_list import ReadyList
    from vouchmq.server.connection.connection import Connection
    from vouchmq.server.runtime.runtime import BrokerRuntime

Place = tuple[str, int]  # a queue and a seq


class Kept(NamedTuple):
    """A stored copy: what must be known of it after a crash."""

    returns: int  # -1: nobody counts
    due_ms: int
    pending: bytes | None


# What was known of a dead letter that the disk refused is known no more.
UNKNOWN = Kept(-2, 0, None)
NOTHING_KEPT = Kept(-1, 0, None)


@dataclass(slots=True)
class Snapshot:
    """What is stored when a block is written, or has been recovered."""

    definitions: frozenset[bytes]
    queues: frozenset[str]  # by `label_of`
    copies: dict[Place, Kept] = field(default_factory=dict)  # by label and LSN
    handed: set[Place] = field(default_factory=set)
    out: set[Place] = field(default_factory=set)  # with consumers
    begins_segment: bool = False


@dataclass(slots=True)
class Listing:
    """Where every message is, queue by queue."""

    ready: dict[str, list[int]] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)  # in scratch pages, not told one by one
    parked: dict[str, list[int]] = field(default_factory=dict)  # delayed, stuck, held
    unacked: dict[str, list[int]] = field(default_factory=dict)
    kept: dict[str, list[int]] = field(default_factory=dict)  # dead letters the disk refused

    def places(self) -> set[Place]:
        """All of it; some messages are in two of these at once."""
        piles = (self.ready, self.parked, self.unacked, self.kept)
        return {
            (name, seq) for messages in piles for name, seqs in messages.items() for seq in seqs
        }


@lru_cache(maxsize=4096)
def is_lasting(record: bytes) -> bool:
    """Ids that were reserved may be more after a crash, nobody sees that; each start adds one."""
    return not isinstance(d.decode(record), d.QueueIdsReserved | d.DataDirectoryStarted)


def line_seqs(line: ReadyList) -> tuple[list[int], int]:
    """Seqs in a line in order, and how many more lie in scratch pages."""
    seqs = [message[2] for message in line.in_memory()]
    unread = 0
    if line.backlog is not None:
        for span in line.backlog._spans:
            if isinstance(span, StoredSpan):
                seqs += [lsn * 2 + 1 for lsn in span.lsns]
            else:
                seqs += [lsn * 2 + 1 for lsn in span.lsns]
                unread += span.count - len(span.lsns)
        seqs += [message[2] for message in line.backlog.tail]
    return seqs, unread


def listing_of(runtime: BrokerRuntime, connections: Iterable[Connection]) -> Listing:
    """Everything that is anywhere."""
    found = Listing()
    for queue in runtime.broker.vhosts["/"].every_queue():
        name = queue.spec.name
        found.unacked[name] = []
        found.kept[name] = []
        if isinstance(queue, DelayQueue):
            found.ready[name], found.unread[name] = [], 0
            found.parked[name] = [seq for _, seq in queue._heap]
            continue
        queue = classic(queue)
        lines = [line_seqs(line) for line in queue.lines]
        found.ready[name] = [seq for seqs, _ in lines for seq in seqs]
        if queue.returned_count:
            # In the turn they go to their places, which only one line has for all of them.
            found.ready[name] += [m[2] for messages, _ in queue._returned for m in messages]
            found.ready[name].sort()
        found.unread[name] = sum(unread for _, unread in lines)
        found.parked[name] = parked_of(queue)
    for connection in connections:
        for channel in connection.channels.values():
            entries = channel.unacked.live()
            if channel.transaction is not None:
                entries = entries + [e for s in channel.transaction.settlements for e in s.entries]
            for entry in entries:
                if not entry.queue.is_deleted:
                    found.unacked[entry.queue.spec.name] += [m[2] for m in entry.messages]
    for sent in runtime.dead_letter_publisher._kept:
        if not sent.queue.is_deleted:
            found.kept[sent.queue.spec.name] += [m[2] for m in sent.messages if m[2] & 1]
    return found


def parked_of(queue: Queue) -> list[int]:
    """What is delayed or stuck, or refused and not yet buried."""
    found, returns = dying_of(queue), queue.feature(Redelivery)
    if returns is not None:
        found += [message[2] for message in returns.parked.messages()]
    return found + [message[2] for message in pending_messages(queue)]


def put_off_by(queue: Queue) -> list[tuple[list[Message], DeadLetterReason]]:
    """What is dead, and why, and a dead letter in a later turn."""
    dead_letters = queue.feature(DeadLetters)
    return list(dead_letters._deferred) if dead_letters is not None else []


def classic(queue: Queue) -> ClassicQueue:
    """A queue that is no other kind."""
    assert isinstance(queue, ClassicQueue)
    return queue


def lines_of(queue: Queue) -> list[ReadyList]:
    """Its ready lists; who holds delayed messages has none."""
    return queue.lines if isinstance(queue, ClassicQueue) else []


def dying_of(queue: Queue) -> list[int]:
    """What is dead and not yet buried: no settlement of it is written."""
    dying = put_off_by(queue)
    return [message[2] for messages, _ in dying for message in messages]


def rejected_of(queue: Queue) -> list[int]:
    """What of it a client had, and has refused; others died where they stood."""
    dying = put_off_by(queue)
    return [
        m[2] for messages, reason in dying if reason is DeadLetterReason.REJECTED for m in messages
    ]


def pending_of(queue: Queue) -> dict[int, frozenset[str]]:
    """Dead letters that the queue keeps, and who has taken each."""
    pending = queue.feature(PendingDeadLetters)
    return {seq: one.taken_by for seq, one in pending._tries.items()} if pending is not None else {}


def pending_messages(queue: Queue) -> list[Message]:
    """Those dead letters themselves."""
    pending = queue.feature(PendingDeadLetters)
    return pending.held() if pending is not None else []


def snapshot_of(runtime: BrokerRuntime, listing: Listing, handed: set[Place] | None) -> Snapshot:
    """The stored part of it; `handed` None: as the marks of a recovered broker say."""
    queues = {each.spec.name: each for each in runtime.broker.vhosts["/"].every_queue()}
    found = Snapshot(
        frozenset(filter(is_lasting, runtime.broker.definitions())),
        frozenset(label_of(queue) for queue in queues.values() if queue.stored),
    )
    for name, queue in queues.items():
        if not queue.stored:
            continue
        label, kept_of = label_of(queue), kept_by(queue)
        out = {*listing.unacked[name], *rejected_of(queue)}
        for messages in (listing.kept, listing.ready, listing.parked, listing.unacked):
            for seq in messages[name]:
                if seq & 1:
                    is_unknown = messages is listing.kept
                    found.copies[label, seq >> 1] = UNKNOWN if is_unknown else kept_of(seq)
                    if seq in out:
                        found.out.add((label, seq >> 1))
                    if handed is not None and (name, seq) in handed:
                        found.handed.add((label, seq >> 1))
        if handed is None and not isinstance(queue, DelayQueue):
            for line in classic(queue).lines:
                seqs = line_seqs(line)[0]
                found.handed |= {(label, seq >> 1) for seq in seqs if seq <= line.mark}
    return found


def label_of(queue: Queue) -> str:
    """A queue of this name, and no later one of the same name."""
    return f"{queue.spec.name}#{queue.spec.queue_id}"


def kept_by(queue: Queue) -> Callable[[int], Kept]:
    """Tells what features of a queue know of each of its copies."""
    returns, pending = queue.feature(Redelivery), queue.feature(PendingDeadLetters)
    if returns is None and pending is None:
        return lambda _seq: NOTHING_KEPT

    def kept_of(seq: int) -> Kept:
        counts = returns._counts.get(seq) if returns is not None else None
        note = pending.recall(note_key(seq)) if pending is not None else None
        if counts is None:
            return Kept(-1 if returns is None else 0, 0, note)
        return Kept(counts.returns, counts.due_ms, note)

    return kept_of


def messages_of(queue: Queue) -> list[Message]:
    """Messages of a recovered queue, read from the disk without taking them."""
    if isinstance(queue, DelayQueue):
        lsns = sorted(seq >> 1 for _, seq in queue._heap)
        store = queue._pages
    else:
        queue = classic(queue)
        lsns = sorted(seq >> 1 for line in queue.lines for seq in line_seqs(line)[0])
        store = queue.ready._pager.store
    found: list[Message] = []
    while len(found) < len(lsns):
        for first, tail, raws, arrived_ms in store.fetch_runs(lsns[len(found) :], 1 << 30):
            found += [(raw, tail, lsn * 2 + 1, arrived_ms) for lsn, raw in enumerate(raws, first)]
    returns = queue.feature(Redelivery)
    if returns is not None:
        found += returns.parked.messages()
    return found + pending_messages(queue)
