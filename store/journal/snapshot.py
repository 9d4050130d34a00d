"""All definitions as records, at hand whenever a segment begins with them.

Asking the broker for everything takes long when there is much: half a second for 100,000 queues.
So what it said last is kept, and changes are put behind it, as they are in the journal; it is asked
again when there are more changes than half of what was there. Until there is a broker to ask, what
recovery found and every change since are all definitions.

It must not know what a definition says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# So many changes may come in any case.
_LEAST_CHANGES: Final = 1000


class Snapshot:
    """The records from which all definitions are made again, in order.

    Args:
        recovered: what recovery found, changes included
    """

    def __init__(self, recovered: list[bytes]) -> None:
        self._take: Callable[[], list[bytes]] | None = None
        self._records = recovered
        # Until the broker is asked nobody knows how many of these matter.
        self._changes_left = 0

    def ask(self, take: Callable[[], list[bytes]]) -> None:
        """From now on ask the broker, who has taken in everything that recovery found."""
        self._take = take

    def add(self, changes: Sequence[bytes]) -> None:
        """Take in changes that were written."""
        self._records += changes
        self._changes_left -= len(changes)

    @property
    def known(self) -> list[bytes]:
        """All of them, without asking anybody."""
        return self._records

    def refresh(self) -> None:
        """Ask the broker, which takes long when there is much."""
        if self._take is None:
            return
        self._records = list(self._take())
        self._changes_left = max(_LEAST_CHANGES, len(self._records) // 2)

    def records(self) -> list[bytes]:
        """All of them, and not many that do not matter any more."""
        if self._changes_left <= 0:
            self.refresh()
        return self._records
