"""What stands in memory of a stream: its newest messages, and what one consumer has read ahead.

Both are copies of what the journal holds, so the pager may have them dropped at any time: they
are read again when somebody wants them. Must not know channels.

Spec: STREAM-02, STREAM-22, LIMIT-21
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Final

from vouchmq.server.broker.paging.pager import (
    FIRST_REFILL_MESSAGES,
    MESSAGE_OVERHEAD_OCTETS,
    REFILL_MESSAGES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.paging.pager import Backlog, Pager
    from vouchmq.server.broker.queues.api import ConsumerPort
    from vouchmq.server.broker.streams.start import Start

# Of its newest messages a stream keeps no more in memory, however far its consumers are.
RECENT_OCTETS: Final = 4 * 1024 * 1024


class Recent:
    """The newest messages of a stream, as long as consumers are to have them soon.

    Args:
        pager: counts what is in memory
        wake: has the stream dispatch
    """

    __slots__ = ("_pager", "backlog", "first_offset", "messages", "octets", "wake")

    def __init__(self, pager: Pager, wake: Callable[[], None]) -> None:
        self._pager = pager
        self.wake = wake
        self.messages: list[Message] = []
        self.first_offset = 0
        self.octets = 0
        self.backlog: Backlog | None = None

    def append(self, messages: Sequence[Message], octets: int, next_offset: int) -> None:
        """Add messages that end before `next_offset`."""
        if not self.messages:
            self.first_offset = next_offset - len(messages)
        self.messages += messages
        self.octets += octets
        self._pager.charge(self, octets)
        if self.octets > 2 * RECENT_OCTETS:
            self.page_out(RECENT_OCTETS)

    def take(self, offset: int, count: int) -> list[Message]:
        """At most so many messages from that offset on, which is not below the first."""
        at = offset - self.first_offset
        return self.messages[at : at + count]

    def drop_below(self, offset: int) -> None:
        """Nobody wants what stands before this offset any more."""
        count = min(offset - self.first_offset, len(self.messages))
        # Little by little would move all the others each time.
        if count > 0 and (count == len(self.messages) or 4 * count >= len(self.messages)):
            self._drop(count)

    def page_out(self, keep_octets: int) -> None:
        """See `Pageable`; all of it is in the journal."""
        if self.octets > keep_octets and self.messages:
            keep = len(self.messages) * keep_octets // self.octets
            self._drop(len(self.messages) - keep)

    def forget_from(self, lsn: int) -> None:
        """Messages with this LSN or a higher one never were."""
        count = 0
        while count < len(self.messages) and self.messages[-1 - count][2] >= lsn * 2:
            count += 1
        if count:
            self._refund(count)
            del self.messages[-count:]

    def clear(self) -> None:
        """Drop all messages, and their share of memory."""
        self._drop(len(self.messages))

    def _drop(self, count: int) -> None:
        if count:
            self._refund(count)
            del self.messages[:count]
            self.first_offset += count

    def _refund(self, count: int) -> None:
        octets = self.octets * count // len(self.messages)
        self.octets -= octets
        self._pager.refund(octets)


class Reader:
    """One consumer's place in a stream, and what was read ahead for it.

    `position` is the offset of the next message it may get. While `since_ms` is not None, that is
    yet to be found: the first message that arrived then or later, by the loop's clock.
    """

    __slots__ = (
        "_ahead",
        "_at",
        "_pager",
        "_piece",
        "backlog",
        "consumer",
        "filter",
        "octets",
        "position",
        "since_ms",
        "wake",
    )

    def __init__(
        self, consumer: ConsumerPort, start: Start, pager: Pager, wake: Callable[[], None]
    ) -> None:
        self.consumer = consumer
        self.since_ms: int | None = None
        self.filter = start.filter
        self.position = 0
        self.octets = 0
        self.backlog: Backlog | None = None
        self.wake = wake
        self._pager = pager
        self._ahead = FIRST_REFILL_MESSAGES
        self._piece: list[Message] = []
        self._at = 0  # of the message at `position`

    @property
    def has_piece(self) -> bool:
        """Whether the next message was read ahead."""
        return self._at < len(self._piece)

    def take(self, count: int) -> list[Message]:
        """At most so many messages that were read ahead."""
        return self._piece[self._at : self._at + count]

    def moved(self, count: int) -> None:
        """So many messages are behind it now."""
        self.position += count
        if self._piece:
            self._at += count
            if self._at >= len(self._piece):
                self.drop_piece()

    def jump(self, offset: int) -> None:
        """Go on at another offset."""
        self.position = offset
        self.drop_piece()

    @property
    def ahead(self) -> int:
        """How many messages to read at a time: more each time."""
        ahead = self._ahead
        self._ahead = min(2 * ahead, REFILL_MESSAGES)
        return ahead

    def read(self, lsns: list[int]) -> None:
        """Read messages ahead, the next ones."""
        pager = self._pager
        pieces: list[Message] = []
        steps = pager.store.read_steps
        runs = pager.store.fetch_runs(lsns, pager.refill_octets)
        for first, tail, raws, arrived_ms in runs:
            seq = first * 2 + 1
            seqs = range(seq, seq + 2 * len(raws), 2)
            pieces += zip(raws, repeat(tail), seqs, repeat(arrived_ms))
        sizes = [len(message[0]) for message in pieces]
        octets = sum(sizes)
        pager.reads_left -= pager.store.read_steps - steps + len(sizes)
        self._piece, self._at = pieces, 0
        self.octets = octets + len(sizes) * MESSAGE_OVERHEAD_OCTETS
        pager.charge(self, self.octets)

    def drop_piece(self) -> None:
        """What was read ahead is used up, or not wanted."""
        if self._piece:
            self._piece = []
            self._pager.refund(self.octets)
            self.octets = 0
        self._at = 0

    def page_out(self, keep_octets: int) -> None:
        """See `Pageable`; it can be read again."""
        if self.octets > keep_octets:
            self.drop_piece()
            self._ahead = FIRST_REFILL_MESSAGES
