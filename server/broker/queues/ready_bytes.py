"""How many octets the bodies of the ready messages of a queue have together (LEN-01)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.protocol.runs import body_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vouchmq.server.broker.message import Message


class ReadyBytes:
    """Counts for all lines of one queue."""

    __slots__ = ("octets",)

    def __init__(self) -> None:
        self.octets = 0

    def add(self, messages: Iterable[Message]) -> None:
        """These are in a line now."""
        self.octets += sum(body_size(message[0]) for message in messages)

    def remove(self, messages: Iterable[Message]) -> None:
        """These are in no line any more."""
        self.octets -= sum(body_size(message[0]) for message in messages)
