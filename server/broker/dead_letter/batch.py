"""Messages on their way from one queue to others: runs that go the same way, and what was sent.

Spec: DLX-08
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vouchmq.server.broker.dead_letter.retry import Attempt
    from vouchmq.server.broker.enqueue import Target
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.classic import Queue
    from vouchmq.server.broker.queues.ports import QueueRecorder
    from vouchmq.server.broker.queues.settlement import DeadLetterReason


class Sent(NamedTuple):
    """Messages that left their queue for stored queues in the block that is being gathered."""

    queue: Queue
    messages: list[Message]
    target: Target
    raws: list[bytes]
    persistent: bool
    # What was known of a dead letter that its queue keeps until everybody has it.
    one: Attempt | None = None


class Batch:
    """Dead letters that follow each other and go the same way."""

    __slots__ = ("messages", "persistent", "raws", "target")

    def __init__(self, target: Target, *, persistent: bool) -> None:
        self.target = target
        self.persistent = persistent
        self.messages: list[Message] = []
        self.raws: list[bytes] = []

    def takes(self, tail: bytes, queues: tuple[Queue, ...], *, persistent: bool) -> bool:
        """Whether another one goes that way too."""
        is_same = self.target.tail == tail and self.target.queues == queues
        return is_same and self.persistent == persistent

    def add(self, messages: list[Message], raws: list[bytes]) -> None:
        """More of them: messages that died, and their letters."""
        self.messages += messages
        self.raws += raws


def write_headers(
    recorder: QueueRecorder,
    messages: list[Message],
    lost: list[Message],
    reason: DeadLetterReason,
    exchange: str,
) -> None:
    """Write down which messages have become dead letters, and which of them led nowhere."""
    gone = {message[2] for message in lost}
    recorder.died([each for each in messages if each[2] not in gone], reason.value, exchange)
    recorder.dropped(lost, reason.value)
