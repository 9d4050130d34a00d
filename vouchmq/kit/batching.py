"""Acks that wait for company: when one ack(multiple=1) is due. Knows no channel and no clock.

Spec: REDELIVER-32, REDELIVER-35
"""

from __future__ import annotations

from typing import Final


class AckBatch:
    """The settled but unacknowledged messages of one channel.

    Args:
        timeout_s: seconds after the last ack at which those that wait are sent, however few
        now_s: the present, in the seconds that every other call uses too
    """

    __slots__ = ("_count", "_last_ack_s", "_tag", "_timeout_s")

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s: Final = timeout_s
        self._last_ack_s = now_s
        self._count = 0
        self._tag = 0

    def __len__(self) -> int:
        """The number of messages that wait for their ack."""
        return self._count

    def add(self, tag: int) -> None:
        """Note that this delivery, the youngest so far, has been dealt with."""
        self._tag = max(self._tag, tag)
        self._count += 1

    def is_due(self, size: int, now_s: float, *, timed: bool) -> bool:
        """True when what waits should be sent now.

        `size` messages are enough; without `timed` nothing else is.
        """
        if self._count == 0:
            return False
        return self._count >= size or (timed and now_s >= self.deadline_s)

    @property
    def deadline_s(self) -> float:
        """When those that wait are to be sent at the latest."""
        return self._last_ack_s + self._timeout_s

    def take(self, now_s: float) -> int:
        """The tag for the ack(multiple=1) that covers all who wait, 0 if nobody does."""
        tag, self._tag, self._count = self._tag, 0, 0
        if tag:
            self._last_ack_s = now_s
        return tag
