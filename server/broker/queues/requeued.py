"""Messages that came back to a line and stand between others: sorted runs, merged when wanted.

However many come back, and in whatever order: a run costs its own sorting, and what is merged is
the next piece only, when somebody wants it. So a thousand consumers that leave together cost no
more than their messages, and nobody waits for it (LIMIT-23).

Spec: ACK-10
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from vouchmq.server.broker.message import lsn_of, seq_of

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Iterator

    from vouchmq.server.broker.message import Message

# Taken of one run at a time: more when runs follow each other, fewer when they interleave.
FIRST_STRIDE: Final = 64
MOST_STRIDE: Final = 1024


class Requeued:
    """What is in memory of one line, but for the piece in front that has been merged.

    Args:
        newest: the other messages of the line, in order; new ones come to its end
    """

    __slots__ = ("_heap", "_stride", "count", "newest")

    def __init__(self, newest: deque[Message]) -> None:
        self.newest = newest
        self.count = 0  # of messages in runs
        # Runs by the seq of their next message, which stands last in its run.
        self._heap: list[tuple[int, list[Message]]] = []
        self._stride = FIRST_STRIDE

    def __len__(self) -> int:
        return self.count + len(self.newest)

    def __iter__(self) -> Iterator[Message]:
        """Everything in it, in no order."""
        for _, run in self._heap:
            yield from run
        yield from self.newest

    def runs(self) -> list[list[Message] | deque[Message]]:
        """What it is made of, for who takes it apart."""
        return [*(run for _, run in self._heap), self.newest]

    def add(self, run: list[Message]) -> None:
        """Add messages in the order of their seq; the list is ours from now on."""
        self.count += len(run)
        run.reverse()
        heappush(self._heap, (run[-1][2], run))

    def take_due(self, limit: int) -> list[Message]:
        """Take the next messages, about so many at most and one at least, while there are runs."""
        heap = self._heap
        piece: list[Message] = []
        while heap and len(piece) < limit:
            run = heap[0][1]
            piece += run[-self._stride :]
            del run[-self._stride :]
            if run:
                heapreplace(heap, (run[-1][2], run))
            else:
                heappop(heap)
        self.count -= len(piece)
        newest = self.newest
        last_seq = max(map(seq_of, piece))
        most = len(piece) + limit
        while newest and newest[0][2] < last_seq and len(piece) < most:
            piece.append(newest.popleft())
        piece.sort(key=seq_of)
        self._give_back(piece)
        return piece

    def clear(self) -> None:
        """Drop all requeued messages."""
        self._heap.clear()
        self.newest.clear()
        self.count = 0

    def _give_back(self, piece: list[Message]) -> None:
        """Leave in a piece what stands before everything else."""
        heads = [pile[0][2] for pile in (self.newest,) if pile]
        if self._heap:
            heads.append(self._heap[0][0])
        end_seq = min(heads, default=piece[-1][2] + 1)
        rest: list[Message] = []
        while piece[-1][2] > end_seq:
            rest.append(piece.pop())
        if rest:
            self.count += len(rest)
            heappush(self._heap, (rest[-1][2], rest))
        if len(rest) > len(piece):
            self._stride = max(1, self._stride // 2)
        elif len(rest) < len(piece) // 4:
            self._stride = min(MOST_STRIDE, self._stride * 2)


def forget_refused(
    returned: Iterable[tuple[list[Message], object]], first_lsn: int
) -> list[list[int]]:
    """Take out of what came back the messages that the journal could not store, from an LSN on.

    Returns:
        the LSNs of those of each row that had any
    """
    refused: list[list[int]] = []
    for messages, _ in returned:
        gone = sorted(lsn_of(m[2]) for m in messages if m[2] & 1 and m[2] >= first_lsn * 2)
        if gone:
            messages[:] = [m for m in messages if not m[2] & 1 or m[2] < first_lsn * 2]
            refused.append(gone)
    return refused
