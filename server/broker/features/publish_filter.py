"""Queues that do not take every message: who is asked, and what they may answer.

A queue without such a say has no filter, and a target without such a queue asks nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

# What a queue says to a message; 0 and more: it is a duplicate, of one whose LSN this is
# (0: that one waits for nothing).
TAKES: Final = -1
REFUSES: Final = -2


class PublishFilter(Protocol):
    """Whether a queue takes a message."""

    def check(self, raw: bytes) -> int:
        """TAKES, REFUSES, or the LSN that the confirm of a duplicate waits for."""

    def takes_all(self, raws: Sequence[bytes]) -> bool:
        """Whether it would surely take every one of these, asked one by one as they are stored."""

    def has_room(self, count: int, octets: int) -> bool:
        """Whether so many more messages with so many octets of bodies would all be taken."""


class PublishFilters:
    """Several filters as one: a message must pass all, in their order."""

    __slots__ = ("_filters",)

    def __init__(self, *filters: PublishFilter) -> None:
        self._filters = filters

    def check(self, raw: bytes) -> int:
        """See `PublishFilter`."""
        for each in self._filters:
            word = each.check(raw)
            if word != TAKES:
                return word
        return TAKES

    def takes_all(self, raws: Sequence[bytes]) -> bool:
        """See `PublishFilter`."""
        return all(each.takes_all(raws) for each in self._filters)

    def has_room(self, count: int, octets: int) -> bool:
        """See `PublishFilter`."""
        return all(each.has_room(count, octets) for each in self._filters)


class Verdict(NamedTuple):
    """What the filters of a target said to one message.

    `is_refused`: some queue refused it (CONF-07). `lsn`: what a duplicate waits for, 0 for nothing.
    """

    is_refused: bool
    lsn: int
