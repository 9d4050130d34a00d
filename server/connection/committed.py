"""Deliveries wait until the shared log has what they rest on: the message, and its mark.

    add ─▶ flush ─▶ blocks that are not committed yet? ─▶ held ─▶ `Commits.passed` ─▶ one write

So a consumer sees nothing that the next leader does not know of: `redelivered` stays exact over a
take-over, and a leader that has been replaced without knowing it delivers nothing. What an outbox
collects behind a delivery waits with it, because the order within a channel counts. What belongs to
no channel (blocked, unblocked, close) goes at once.

What a turn delivers was written to the journal before its outboxes are flushed (`turn.py`), so the
number of the block that was written last is the only thing to wait for. It may be a later block
than that of the message: the log takes them in order, and nearly always as one record.

A broker without a log has none of this: its connections have an `Outbox` as it is.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.server.connection.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.protocol.runs import Piece
    from vouchmq.server.connection.outbox import Flusher, Write

# What stands behind the type of a frame.
NO_CHANNEL: Final = b"\0\0"


class BlockNumbers(Protocol):
    """The journal's segments, as far as their blocks are numbered."""

    number: int
    """Of the next block."""


class Commits:
    """Which blocks the log has for good, and the outboxes that wait for one.

    Args:
        blocks: the journal's
        request: has what was written committed: somebody waits for it
    """

    def __init__(self, blocks: BlockNumbers, request: Callable[[], None]) -> None:
        self.committed = 0
        # This broker leads no more: nothing that waits is ever sent.
        self.is_over = False
        self._blocks = blocks
        self._request = request
        self._waiting: dict[CommittedOutbox, None] = {}

    @property
    def written(self) -> int:
        """Number of the block that was written last."""
        return self._blocks.number - 1

    @property
    def waiting_count(self) -> int:
        """How many outboxes wait."""
        return len(self._waiting)

    def has(self, number: int) -> bool:
        """Whether what rests on this block may be told."""
        return number <= self.committed and not self.is_over

    def waits(self, outbox: CommittedOutbox) -> None:
        """Tell this outbox of the next commits, until it holds nothing."""
        self._waiting[outbox] = None
        self._request()

    def forget(self, outbox: CommittedOutbox) -> None:
        """Its connection is closed."""
        self._waiting.pop(outbox, None)

    def passed(self, number: int) -> None:
        """The log has everything up to this block for good."""
        self.committed = number
        for outbox in list(self._waiting):
            if not self.is_over and outbox.passed(number):
                self._waiting.pop(outbox, None)

    def end(self) -> None:
        """Another broker leads: what waits here may be something else there."""
        self.is_over = True
        waiting, self._waiting = self._waiting, {}
        for outbox in waiting:
            outbox.drop()


class _Held:
    """What one flush would have written."""

    __slots__ = ("has_large", "number", "parts", "size")

    def __init__(self, number: int, parts: list[Piece], size: int, *, has_large: bool) -> None:
        self.number = number
        self.parts = parts
        self.size = size
        self.has_large = has_large


class CommittedOutbox(Outbox):
    """An outbox whose deliveries wait for the log; see there.

    Args:
        commits: tells what the log has
    """

    __slots__ = ("_commits", "_has_delivery", "_held", "_held_size")

    def __init__(
        self,
        commits: Commits,
        turn: Flusher,
        write: Write,
        high_octets: int,
        drained: Callable[[], object],
    ) -> None:
        super().__init__(turn, write, high_octets, drained)
        self._commits = commits
        self._has_delivery = False
        self._held: deque[_Held] = deque()
        self._held_size = 0

    def add(self, parts: Sequence[Piece], size: int) -> None:
        """Collect what may rest on a block: all that is no plain reply."""
        self._has_delivery = True
        super().add(parts, size)

    def send(self, frame: bytes) -> None:
        """Collect one frame, which rests on nothing; without a channel it waits for nothing."""
        if not frame:
            return
        if (self._held or self._has_delivery) and frame[1:3] == NO_CHANNEL:
            if not self._is_closed:
                self._write(frame)
            return
        super().add([frame], len(frame))

    def flush(self) -> bool:
        """Write what has been collected, or hold it."""
        commits = self._commits
        number = commits.written if self._has_delivery else 0
        if not self._held and (not number or commits.has(number)):
            self._has_delivery = False
            return super().flush()
        parts, self._parts = self._parts, []
        size = self.size - self._held_size
        self._is_dirty = self._has_delivery = False
        if not parts or self._is_closed or commits.is_over:
            self.size = self._held_size
            return True
        self._held.append(_Held(number, parts, size, has_large=self.has_large))
        self.has_large = False
        self._held_size = self.size
        commits.waits(self)
        return True

    def passed(self, number: int) -> bool:
        """Write what rests on no later block; return whether nothing is held any more."""
        held = self._held
        parts: list[Piece] = []
        size = 0
        has_large = False
        while held and held[0].number <= number:
            each = held.popleft()
            parts += each.parts
            size += each.size
            has_large = has_large or each.has_large
        if not parts or self._is_closed:
            return not held
        self._held_size -= size
        self.size -= size
        if has_large:
            self._write_large(parts)
        else:
            self._write(b"".join(parts))
        if self._is_full and self.size < self._high_octets:
            self._is_full = False
            self._look_again()
        return not held

    def drop(self) -> None:
        """Send nothing of what is held."""
        self._held.clear()
        self._held_size = 0

    def close(self) -> None:
        """The socket is gone."""
        super().close()
        self.drop()
        self._commits.forget(self)


def new_outbox(
    commits: Commits | None,
    turn: Flusher,
    write: Write,
    high_octets: int,
    drained: Callable[[], object],
) -> Outbox:
    """The outbox of a connection; its deliveries wait for the shared log if there is one."""
    if commits is None:
        return Outbox(turn, write, high_octets, drained)
    return CommittedOutbox(commits, turn, write, high_octets, drained)
