"""Coming below the memory watermark when waiting does not help: who holds most is closed.

The alarm stops what comes in, but it frees nothing, and some of what connections hold can never be
finished while they are not read: contents without their end, transactions without their commit,
answers that nobody reads. Beside that there are deliveries that nobody acks.

    memory low     who holds much unacked gets no further deliveries
    … and no less for a while, or far above the watermark
                   the largest holders are closed with 506, as many as it takes

What is held is estimated, and only while memory is low: nobody pays for it at other times. Must
not know channels, frames or sockets.

Spec: LIMIT-28
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from vouchmq.server.runtime.alarms import MEMORY_CLEARS_AT, NO_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vouchmq.server.runtime.alarms import Alarms

MIB: Final = 1024 * 1024
# So far above the watermark nobody waits for clients to help.
MARGIN_OCTETS: Final = 32 * MIB
# Below that they have so long, and longer while there is less and less in use.
GRACE_S: Final = 10.0
PROGRESS_OCTETS: Final = MIB
# What was let go takes a while to be gone.
PAUSE_S: Final = 0.3
# While it goes, no new connection takes its place.
REFUSING_S: Final = 1.0
# Who holds less is not worth it, and who has more unacked than this share gets no more for now.
LEAST_OCTETS: Final = 64 * 1024
UNACKED_SHARE: Final = 8

log = structlog.get_logger(__name__)


class Holder(Protocol):
    """A connection, as far as memory is concerned."""

    @property
    def label(self) -> str:
        """Which one it is, for the log."""

    @property
    def buffered_octets(self) -> int:
        """What only its client can end: unfinished contents, transactions, unread answers."""

    @property
    def unacked_octets(self) -> int:
        """About what its unsettled deliveries take."""

    def restrain(self, *, is_restrained: bool) -> None:
        """Deliver nothing more to it, or again."""

    def close_for_memory(self) -> None:
        """End it with 506, and free what it holds at once."""


class Share(NamedTuple):
    """How many bytes of memory one connection uses, by kind."""

    holder: Holder
    buffered_octets: int
    unacked_octets: int

    @property
    def octets(self) -> int:
        """The sum of all kinds."""
        return self.buffered_octets + self.unacked_octets


class MemoryRelief:
    """Closes the largest holders while memory stays low.

    Args:
        alarms: tell what is in use, and what may be
        holders: all connections
        clock: monotonic seconds
    """

    def __init__(
        self,
        alarms: Alarms,
        holders: Callable[[], Iterable[Holder]],
        clock: Callable[[], float],
    ) -> None:
        self._alarms = alarms
        self._holders = holders
        self._clock = clock
        self._lowest_octets = NO_LIMIT
        self._since = 0.0
        self._closed_at = -REFUSING_S
        self._restrained: set[Holder] = set()
        self.closed_count = 0

    def is_refusing(self) -> bool:
        """True while new connections would take what others have just been closed for."""
        return self._clock() - self._closed_at < REFUSING_S

    def look(self) -> bool:
        """Do what the last reading asks for; True when memory was let go."""
        alarms = self._alarms
        if not alarms.is_memory_low:
            self._lowest_octets = NO_LIMIT
            self._restrain(set())
            return False
        now, used = self._clock(), alarms.memory_octets
        if used < self._lowest_octets - PROGRESS_OCTETS:
            self._lowest_octets, self._since = used, now
        shares = [
            Share(holder, holder.buffered_octets, holder.unacked_octets)
            for holder in self._holders()
        ]
        limit = alarms.memory_limit_octets
        much = limit // UNACKED_SHARE
        self._restrain({share.holder for share in shares if share.unacked_octets > much})
        if now - self._closed_at < PAUSE_S:
            return False
        wanted = used - int(limit * MEMORY_CLEARS_AT)
        is_urgent = used > limit + MARGIN_OCTETS
        if not is_urgent and now - self._since < GRACE_S:
            return False
        shares = [share for share in shares if share.octets >= LEAST_OCTETS]
        if not is_urgent and sum(share.octets for share in shares) < wanted:
            return False  # it is not theirs, and closing them all would not help
        return self._close(shares, wanted)

    def _close(self, shares: list[Share], wanted: int) -> bool:
        """Close the largest until so much is let go; what can still be acked comes last."""
        freed = 0
        shares.sort(key=lambda share: (share.buffered_octets >= LEAST_OCTETS, share.octets))
        while shares and freed < wanted:
            share = shares.pop()
            freed += share.octets
            self.closed_count += 1
            log.warning(
                "memory.connection_closed",
                connection=share.holder.label,
                unfinished_bytes=share.buffered_octets,
                unacked_bytes=share.unacked_octets,
                used_bytes=self._alarms.memory_octets,
                limit_bytes=self._alarms.memory_limit_octets,
            )
            share.holder.close_for_memory()
        if not freed:
            return False
        self._closed_at = self._since = self._clock()
        self._lowest_octets = NO_LIMIT
        return True

    def _restrain(self, wanted: set[Holder]) -> None:
        before, self._restrained = self._restrained, wanted
        for holder in before - wanted:
            holder.restrain(is_restrained=False)
        for holder in wanted - before:
            holder.restrain(is_restrained=True)
