"""Which deliveries of one channel the application has, and which of them are still to be settled.

The one place that decides whether a settlement may be sent: never twice for a tag, never for a
channel that is closed. Knows no channel.

Spec: REDELIVER-51
"""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")


class UnsettledDeliveries(Generic[Item]):
    """The deliveries that were handed out and are not settled, in the order of their tags.

    They are handed out in the order in which they came, so those with a smaller tag than the
    youngest have all been handed out: ack(multiple=1) speaks for nothing that is still in the
    receiver's buffer or on its way.
    """

    __slots__ = ("_is_closed", "_outstanding")

    def __init__(self) -> None:
        self._outstanding: dict[int, Item] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """How many are handed out and not settled."""
        return len(self._outstanding)

    def __contains__(self, tag: object) -> bool:
        """True when this delivery may still be settled."""
        return tag in self._outstanding

    @property
    def youngest(self) -> int:
        """The highest tag that may still be settled, 0 when there is none."""
        return next(reversed(self._outstanding), 0)

    def items(self) -> list[tuple[int, Item]]:
        """The outstanding deliveries, the oldest first."""
        return list(self._outstanding.items())

    def hand_out(self, tag: int, item: Item) -> None:
        """Note that the application has it; tags come in ascending order."""
        if tag <= self.youngest:
            raise ValueError(f"delivery {tag} handed out after {self.youngest}")
        if not self._is_closed:
            self._outstanding[tag] = item

    def settle(self, tag: int) -> bool:
        """True the first time: then, and only then, the settlement may be sent."""
        return self._outstanding.pop(tag, None) is not None

    def settle_through(self, tag: int) -> bool:
        """Settle this and all older ones; True when ack(tag, multiple=1) may be sent.

        The broker knows `tag` only while it is outstanding itself (ACK-05), so if it is not, the
        ledger stays as it is.
        """
        if tag not in self._outstanding:
            return False
        for older in [each for each in self._outstanding if each <= tag]:
            del self._outstanding[older]
        return True

    def forget_all(self) -> None:
        """The broker has taken everything back: the tags so far are dead."""
        self._outstanding.clear()

    def close(self) -> None:
        """The channel is gone: whatever is settled from now on is dropped."""
        self._is_closed = True
        self._outstanding.clear()
