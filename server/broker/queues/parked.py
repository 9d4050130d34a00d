"""Messages of a queue that are neither ready nor unacked: parked until their time comes.

Used for what waits before it may be tried again (delayed retry) and for dead letters that nobody
took yet. The journal holds them as copies of the queue like any other; that they are parked is a
note, so that after a restart they are taken out of the ready list again.

Spec: REDELIVER-20, REDELIVER-22, DLX-09
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.timers import Timers


class ParkedMessages:
    """Messages by their seq, each with the time at which it is due.

    Args:
        timers: ring when one is due
        due: called then; it takes them with `take_due`
    """

    __slots__ = ("_armed_ms", "_due", "_heap", "_messages", "_timers")

    def __init__(self, timers: Timers, due: Callable[[], None]) -> None:
        self._timers = timers
        self._due = due
        self._messages: dict[int, tuple[Message, int]] = {}
        self._heap: list[tuple[int, int]] = []  # (due, seq), also of messages that are gone
        self._armed_ms = 0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message, due_ms: int) -> None:
        """Keep a message until then, by the loop's clock."""
        self._messages[message[2]] = (message, due_ms)
        heappush(self._heap, (due_ms, message[2]))
        self._arm()

    @property
    def is_due(self) -> bool:
        """Whether the time of any of them has come."""
        return bool(self._heap) and self._heap[0][0] <= self._timers.now_ms()

    def take_due(self, most: int) -> list[Message]:
        """Take what is due by now, the earliest first."""
        now_ms = self._timers.now_ms()
        taken: list[Message] = []
        while self._heap and self._heap[0][0] <= now_ms and len(taken) < most:
            due_ms, seq = heappop(self._heap)
            entry = self._messages.get(seq)
            if entry is not None and entry[1] == due_ms:
                del self._messages[seq]
                taken.append(entry[0])
        self._arm()
        return taken

    def find(self, seq: int) -> Message | None:
        """One of them, None if it is somewhere else."""
        entry = self._messages.get(seq)
        return entry[0] if entry is not None else None

    def forget(self, seq: int) -> None:
        """One of them, if it is there, is somewhere else."""
        self._messages.pop(seq, None)

    def take_all(self) -> list[Message]:
        """Take everything, due or not."""
        taken = [message for message, _ in self._messages.values()]
        self._messages.clear()
        self._heap.clear()
        return taken

    def messages(self) -> list[Message]:
        """What is there, without taking it."""
        return [message for message, _ in self._messages.values()]

    def due_ms(self, seq: int) -> int:
        """When one of them is due, by the clock of the loop; 0: it is not here."""
        entry = self._messages.get(seq)
        return entry[1] if entry is not None else 0

    def _arm(self) -> None:
        if not self._heap:
            return
        now_ms = self._timers.now_ms()
        due_ms = max(self._heap[0][0], now_ms + 1)
        if not now_ms < self._armed_ms <= due_ms:
            self._armed_ms = self._timers.at(due_ms, self._fire)

    def _fire(self) -> None:
        if self._heap:
            self._due()
            self._arm()
