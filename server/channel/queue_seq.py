"""Consumers that are shown the place of each message in its queue (`x-queue-seq`).

Must not know how places are found.

Spec: SEQ-01, SEQ-03
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import type_name
from vouchmq.protocol.stamps import Stamp
from vouchmq.server.channel.consumer import Consumer

if TYPE_CHECKING:
    from vouchmq.protocol.fields import Table
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Numbering

ASKS: Final = "x-queue-seq"
NAMES: Final = ("x-queue-seq", "x-queue-id")


def asks_for_places(queue: str, arguments: Table) -> bool:
    """Whether a consume asks for the places of its messages; `queue` is the {Q} of the text.

    Raises:
        PreconditionFailed: 406, the argument is no boolean

    Spec: SEQ-01
    """
    field = arguments.get(ASKS)
    if field is None:
        return False
    if field.kind != "t":
        why = f'"expected boolean, got {type_name(field)}"'
        raise PreconditionFailed(f"invalid arg '{ASKS}' for {queue}: {why}")
    return bool(field.value)


class NumberedConsumer(Consumer):
    """A consumer whose deliveries have the headers `x-queue-seq` and `x-queue-id`."""

    __slots__ = ("_numbering", "_stamp")

    def number_by(self, numbering: Numbering) -> None:
        """Ask this one for numbers; before anything is delivered."""
        self._numbering = numbering
        self._stamp = Stamp(*NAMES)

    def deliver(
        self, messages: list[Message], mark: int, shown: list[Message] | None = None
    ) -> None:
        """See `ConsumerPort`."""
        stamped = self._stamped(messages, shown or messages)
        if self.recorder is not None:
            self.recorder.places = self._numbering.numbers_of(messages)
        super().deliver(messages, mark, stamped)

    def shown_again(self, messages: list[Message]) -> list[Message]:
        """See `Consumer`."""
        return self._stamped(messages, messages)

    def _stamped(self, messages: list[Message], shown: list[Message]) -> list[Message]:
        numbering = self._numbering
        on, queue_id = self._stamp.on, numbering.queue_id
        return [
            (on(message[0], number, queue_id), *message[1:])
            for message, number in zip(shown, numbering.numbers_of(messages), strict=True)
        ]
