"""Bytes waiting for one socket write.

Whatever a turn has to say to one client is collected here and leaves in one write at the end
of the turn. The size is an upper estimate kept by those who add: it bounds what a turn may
pile up, not what is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.protocol.runs import Piece


# Copying a part of this size costs more than the system call that the copy would save.
UNJOINED_OCTETS: Final = 32768


def nothing(*_: object) -> bool:
    """What a closed outbox calls: it must not keep the connection that it belonged to."""
    return True


class Write(Protocol):
    """A socket write."""

    def __call__(self, data: Piece, /, *more: Piece) -> bool:
        """Write `data`, and `more` behind it without joining them; whether the socket has it."""


class Flusher(Protocol):
    """Who flushes the outbox once per loop turn."""

    def wants_flush(self, outbox: Outbox) -> None:
        """Put the outbox on this turn's list."""


class Outbox:
    """Collects what leaves with the next write.

    Args:
        turn: asked for a flush when the first part comes in
        write: the socket write
        high_octets: with more than this collected, deliveries wait for the next turn (CONS-11)
        drained: called when deliveries that had to wait may go on
    """

    __slots__ = (
        "_drained",
        "_high_octets",
        "_is_closed",
        "_is_dirty",
        "_is_full",
        "_is_held",
        "_is_restrained",
        "_parts",
        "_turn",
        "_write",
        "blocked",
        "has_large",
        "size",
        "waits_for_reply",
    )

    def __init__(
        self,
        turn: Flusher,
        write: Write,
        high_octets: int,
        drained: Callable[[], object],
    ) -> None:
        self._drained = drained
        self._turn = turn
        self._write = write
        self._high_octets = high_octets
        self._parts: list[Piece] = []
        self._is_dirty = False
        self._is_full = False
        self._is_held = False
        self._is_restrained = False
        self._is_closed = False
        self.size = 0
        self.blocked = False
        self.waits_for_reply = False  # for the disk: no delivery may overtake it
        self.has_large = False  # set by who adds a part worth writing uncopied

    def add(self, parts: Sequence[Piece], size: int) -> None:
        """Collect parts of about `size` octets together."""
        self._parts += parts
        self.size += size
        if self.size >= self._high_octets:
            self._is_full = self.blocked = True
        if not self._is_dirty:
            self._is_dirty = True
            self._turn.wants_flush(self)

    def send(self, frame: bytes) -> None:
        """Collect one frame; an empty one is nothing."""
        if frame:
            self.add([frame], len(frame))

    def add_content(self, pieces: Sequence[Piece]) -> None:
        """Collect pieces of exactly known size; large ones are not copied."""
        size = sum(map(len, pieces))
        if size >= UNJOINED_OCTETS:
            self.has_large = True
        if size:
            self.add(pieces, size)

    def flush(self) -> bool:
        """Write what has been collected, in one go.

        Returns:
            False while the loop has some of it, which it hands to the socket later
        """
        self._is_dirty = False
        is_out = True
        parts, self._parts = self._parts, []
        self.size = 0
        if parts and not self._is_closed:
            if self.has_large:
                self.has_large = False
                is_out = self._write_large(parts)
            else:
                is_out = self._write(parts[0] if len(parts) == 1 else b"".join(parts))
        was_full, self._is_full = self._is_full, False
        self.blocked = self._is_held or self._is_restrained or self._is_closed
        if was_full and not self.blocked:
            self._drained()
        return is_out

    def _write_large(self, parts: list[Piece]) -> bool:
        """Join what is small; what is large goes to the socket as it is, uncopied.

        All in one write: one for each part would wake the client for every few octets that stand
        in front of a body.
        """
        joined: list[Piece] = []
        small: list[Piece] = []
        for part in parts:
            if len(part) < UNJOINED_OCTETS:
                small.append(part)
                continue
            if small:
                joined.append(b"".join(small))
                small = []
            joined.append(part)
        if small:
            joined.append(b"".join(small))
        return self._write(*joined)

    def hold(self) -> None:
        """The socket's own buffer is above its high mark: deliveries wait."""
        self._is_held = self.blocked = True

    def release(self) -> None:
        """The socket's own buffer has drained: it holds back no delivery any more."""
        self._is_held = False
        self._look_again()

    def restrain(self, *, is_restrained: bool) -> None:
        """Memory is low and the client holds much of it: deliveries wait, or go on."""
        self._is_restrained = is_restrained
        self._look_again()

    def limit(self, high_octets: int) -> None:
        """Another high mark from now on."""
        self._high_octets = high_octets

    def _look_again(self) -> None:
        is_waiting = self._is_held or self._is_restrained
        self.blocked = is_waiting or self._is_full or self._is_closed
        if not self.blocked:
            self._drained()

    def close(self) -> None:
        """The socket is gone: whatever is still collected goes nowhere."""
        self._is_closed = True
        self.blocked = True
        self._parts.clear()
        self._write = self._drained = nothing
