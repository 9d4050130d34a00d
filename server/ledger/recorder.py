"""Pens: what queues and consumers have in hand while the ledger is on, None while it is not.

Each writes the events of its owner, one line a run. They are told what has happened and decide
nothing; `docs/operate/ledger.md` says what the lines mean. Must not know files.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.server.broker.queues.ready_list import ALWAYS
from vouchmq.server.ledger.text import (
    lsns_in,
    lsns_text,
    pairs_text,
    quoted,
    ranges_in,
    ranges_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vouchmq.protocol.runs import Message
    from vouchmq.server.broker.queues.api import Destination, Queue
    from vouchmq.server.ledger.writer import LedgerWriter

# Ranges in one line: a line of many is split.
LINE_RANGES: Final = 2000


def in_lines(pairs: Iterable[tuple[int, int]]) -> Iterable[str]:
    """Ranges as JSON, so many at a time."""
    some: list[tuple[int, int]] = []
    for pair in pairs:
        some.append(pair)
        if len(some) == LINE_RANGES:
            yield pairs_text(some)
            some.clear()
    if some:
        yield pairs_text(some)


class Watch(Protocol):
    """Who knows all that a queue holds."""

    def purged(self, queue: Queue) -> None:
        """What is ready is about to go."""

    def deleted(self, queue: Queue) -> None:
        """The queue is about to go, with all that it holds."""


class QueueEventRecorder:
    """Writes what becomes of the copies in one queue.

    Args:
        writer: where
        qid: the queue's number in the ledger
        look: type, durability and order, as they were written down
        watch: told of what concerns a whole queue
    """

    __slots__ = ("_watch", "_writer", "look", "qid")

    def __init__(self, writer: LedgerWriter, qid: int, look: str, watch: Watch) -> None:
        self._writer = writer
        self._watch = watch
        self.qid = qid
        self.look = look  # what the last line about the queue itself says of it

    def dropped(self, messages: Sequence[Message], why: str) -> None:
        """These copies are gone, and nothing is left of them."""
        if messages and messages[0][2]:
            text = lsns_text(messages)
            self._writer.put(f'drp","qid":{self.qid},"i":{text},"w":"{why}"')

    def died(self, messages: Sequence[Message], why: str, exchange: str) -> None:
        """These copies are gone as dead letters."""
        if messages and messages[0][2]:
            text = lsns_text(messages)
            self._writer.put(f'dle","qid":{self.qid},"i":{text},"w":"{why}","x":{quoted(exchange)}')

    def back(self, messages: Sequence[Message]) -> None:
        """Their end was refused by the disk: they are in the queue again."""
        # A message that was refused before it entered its queue has no LSN, and is a copy of none.
        copies = [message for message in messages if message[2]]
        if copies:
            self._writer.put(f'uns","qid":{self.qid},"i":{lsns_text(copies)}')

    def lost(self, lsns: Iterable[int], why: str) -> None:
        """Copies are gone, by their LSNs."""
        span = range(0) if isinstance(lsns, range) else lsns
        pairs = [(lsns[0], lsns[-1])] if isinstance(lsns, range) and lsns else ranges_in(span)
        self.lost_ranges(pairs, why)

    def lost_ranges(self, ranges: Iterable[tuple[int, int]], why: str) -> None:
        """Copies are gone, by ranges of their LSNs."""
        for text in in_lines(ranges):
            self._writer.put(f'drp","qid":{self.qid},"i":{text},"w":"{why}"')

    def moves(self, messages: Sequence[Message], raws: Sequence[bytes], why: str) -> MoveRecorder:
        """Copies that leave for other queues; `raws` is what of each of them arrives there."""
        return MoveRecorder(self._writer, self.qid, messages, raws, why)

    def purged(self, queue: Queue) -> None:
        """See `QueueRecorder`."""
        self._watch.purged(queue)

    def deleted(self, queue: Queue) -> None:
        """See `QueueRecorder`."""
        self._watch.deleted(queue)

    def dealing(self) -> None:
        """A batch is dealt to several consumers from here on …"""
        self._writer.deal = self._writer.number

    def dealt(self) -> None:
        """… to here: what they have is one step in the order of the queue."""
        self._writer.deal = -1


class MoveRecorder:
    """Writes where messages that the broker publishes itself have gone."""

    __slots__ = ("_messages", "_qid", "_raws", "_why", "_writer")

    def __init__(
        self,
        writer: LedgerWriter,
        qid: int,
        messages: Sequence[Message],
        raws: Sequence[bytes],
        why: str,
    ) -> None:
        self._writer = writer
        self._qid = qid
        self._messages = messages
        self._raws = raws
        self._why = why

    def stored(
        self,
        target: Destination,
        raws: list[bytes],
        first_lsn: int,
        octets: int,
        *,
        persistent: bool,
    ) -> None:
        """See `Author`."""
        del octets
        if not target.queues:
            return
        sources = lsns_in(self._of(raws))
        qid, text = self._qid, ranges_text(sources)
        if not sources[0]:
            qid, text = 0, "[]"  # refused before it entered a queue: a copy of none
        last_lsn = first_lsn + len(raws) - 1
        self._writer.highest_lsn = last_lsn
        self._writer.put(
            f'mov","w":"{self._why}","src":{qid},"si":{text},"lsn":[{first_lsn},{last_lsn}],'
            f'"to":{qids_text(target.queues)},"p":{persistent:d}'
        )

    def _of(self, raws: list[bytes]) -> Sequence[Message]:
        """The messages that some contents were made of, which may be in another order."""
        if len(raws) == len(self._raws):
            same = all(map(is_same, raws, self._raws))
            if same:
                return self._messages
        waiting: dict[int, list[Message]] = {}
        for raw, message in zip(reversed(self._raws), reversed(self._messages), strict=True):
            waiting.setdefault(id(raw), []).append(message)
        return [waiting[id(raw)].pop() for raw in raws]


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two names are of one object."""
    return one is other


def qids_text(queues: Sequence[Queue]) -> str:
    """The ledger's numbers of queues, as JSON."""
    return (
        "["
        + ",".join([str(queue.recorder.qid) for queue in queues if queue.recorder is not None])
        + "]"
    )


class ConsumerEventRecorder:
    """Writes who consumes, and what is delivered there.

    Args:
        writer: where
        qid: the queue's number in the ledger
        cid: the consumer's
        where: connection and channel, as lines say them
        tag: the consumer tag
        limit: its prefetch, 0: none
        no_ack: deliveries need no ack
    """

    __slots__ = ("_no_ack", "_qid", "_tag", "_where", "_writer", "cid", "limit", "places")

    def __init__(
        self,
        writer: LedgerWriter,
        qid: int,
        cid: int,
        where: str,
        tag: str,
        *,
        limit: int,
        no_ack: bool,
    ) -> None:
        self._writer = writer
        self._qid = qid
        self._where = where
        self._tag = quoted(tag)
        self._no_ack = no_ack
        self.cid = cid
        self.limit = limit
        # Of the messages that are delivered next, if the consumer is shown them (SEQ-01).
        self.places: list[int] | None = None

    def introduce(self, why: str) -> None:
        """Say who it is, that it has gone, or has another limit."""
        self._writer.name(
            f'con","id":{self.cid},"qid":{self._qid},{self._where},"g":{self._tag},'
            f'"pf":{self.limit},"na":{self._no_ack:d},"w":"{why}"'
        )

    def delivered(
        self, messages: list[Message], first_tag: int, mark: int, *, no_ack: bool
    ) -> bool:
        """Messages were written to the client; those up to `mark` are marked as redelivered.

        Returns:
            whether their LSNs are known to follow each other
        """
        places, self.places = self.places, None
        first, last = messages[0][2], messages[-1][2]
        # What comes from a line is in its order, unless all of it came back.
        if mark < ALWAYS and (first > mark or last <= mark):
            is_dense = (last >> 1) - (first >> 1) == len(messages) - 1
            text = f"[[{first >> 1},{last >> 1}]]" if is_dense else lsns_text(messages)
            writer = self._writer
            if places is None and writer.deal < 0:
                writer.put(
                    f'dlv","qid":{self._qid},"cid":{self.cid},"i":{text},"tag":{first_tag},'
                    f'"r":{first <= mark:d},"na":{no_ack:d}'
                )
            else:
                self._put(text, first_tag, first <= mark, no_ack, places)
            return is_dense
        lsns = lsns_in(messages)
        mark >>= 1
        at = 0
        for is_again, some in groupby(lsns, mark.__ge__):
            part = list(some)
            end = at + len(part)
            text = ranges_text(part)
            self._put(text, first_tag + at, is_again, no_ack, places and places[at:end])
            at = end
        return False

    def _put(
        self, text: str, tag: int, is_again: bool, no_ack: bool, places: list[int] | None
    ) -> None:
        writer = self._writer
        more = "" if places is None else f',"s":{ranges_text(places)}'
        if 0 <= writer.deal < writer.number:
            more += f',"deal":{writer.deal}'
        writer.put(
            f'dlv","qid":{self._qid},"cid":{self.cid},"i":{text},"tag":{tag},'
            f'"r":{is_again:d},"na":{no_ack:d}{more}'
        )
