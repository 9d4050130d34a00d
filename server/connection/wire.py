"""The socket, as a connection sees it: what a connection may ask of it, and why it is not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Why a socket is not read, as bits, since several reasons may hold at once. All stand here: two of
# one value would end each other.
STALLED: Final = 1  # a reply waits for the disk (GEN-08)
FLOODED: Final = 2  # too much is not yet synced (LIMIT-20)
OUT_OF_BUDGET: Final = 4  # other sockets are read first (LIMIT-23)
BLOCKED: Final = 8  # an alarm (LIMIT-10)
UNREAD: Final = 16  # the client leaves its answers unread
STOPPING: Final = 32  # the broker stops
PUT_OFF: Final = 64  # others have their turn first (LIMIT-23)
UNSENT: Final = 128  # what was said is not yet sent
FLOW: Final = 256  # consumers of what it publishes have enough (LIMIT-29)
UNHEARD: Final = 512  # it is new, and others are opened first (LIMIT-23)
CHECKED: Final = 1024  # its password takes long to check
REASONS: Final = (
    *(STALLED, FLOODED, OUT_OF_BUDGET, BLOCKED, UNREAD),
    *(STOPPING, PUT_OFF, UNSENT, FLOW, UNHEARD, CHECKED),
)


class Timer(Protocol):
    """A timer that can be taken back."""

    def cancel(self) -> None:
        """Cancel the timer; its callback is never called."""


class Wire(Protocol):
    """The socket, seen from the connection."""

    name: str

    @property
    def is_paused(self) -> bool:
        """True while this side does not read."""

    @property
    def is_swamped(self) -> bool:
        """True while the client leaves more unread than it may."""

    @property
    def unsent_octets(self) -> int:
        """What was written and the client has not yet made room for."""

    def limit_unsent(self, octets: int) -> None:
        """With more than so much unsent, deliveries wait (CONS-11)."""

    def write(self, data: bytes | memoryview) -> bool:
        """Send octets, after those that wait already; whether the socket has them by now."""

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send several parts, in this order and without joining them."""

    def pause(self, reason: int) -> None:
        """Stop reading for this reason."""

    def resume(self, reason: int) -> None:
        """Read again unless another reason to pause is left."""

    def finish(self, *, is_orderly: bool = False) -> None:
        """Send what is left, then close without destroying it (CONN-07).

        Orderly: the client has said its close, and may still send what stood behind it.
        """

    def abort(self) -> None:
        """Close the socket at once; unsent octets are lost."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run a callable after a delay."""
