"""Who waits until a full queue takes messages again.

Must not know what a full queue is, nor who waits.

Spec: DLX-09
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RoomWaiters:
    """Those who wait for room in one queue, in the order in which they came.

    They are called one at a time, each once: whoever has used what it could and finds that there is
    still room has the queue look again (`Queue.wake`). So a message that leaves a queue for which a
    thousand others wait costs one call.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[Callable[[], None], None] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Callable[[], None]) -> None:
        """Call this once, when there is room."""
        self._calls[call] = None

    def call_next(self) -> None:
        """There is some room: call who has waited longest, if anybody waits."""
        if self._calls:
            call = next(iter(self._calls))
            del self._calls[call]
            call()

    def call_all(self) -> None:
        """There is room for everybody, or nobody will ever be called again."""
        calls, self._calls = self._calls, {}
        for call in calls:
            call()
