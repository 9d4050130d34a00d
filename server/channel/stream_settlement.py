"""What is different at a channel where the queue is a stream: consume, refuse, recover, delete.

Must not know how a stream works.

Spec: STREAM-10 … STREAM-17, STREAM-20, STREAM-24, ACK-23
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.protocol.errors import NotImplementedByBroker, PreconditionFailed
from vouchmq.server.broker.features.options import STREAM, queue_type_of
from vouchmq.server.broker.queues.types import not_for_type
from vouchmq.server.broker.streams.start import OFFSET, Start, start_of

if TYPE_CHECKING:
    from vouchmq.protocol.fields import Table
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.channel.unacked import Unacked, UnackedBatch


def start_for(queue: Queue, arguments: Table, prefetch: int, *, no_ack: bool) -> Start | None:
    """Where a consumer of a stream starts; None when the queue is none.

    Args:
        queue: what is to be consumed
        arguments: of the consume
        prefetch: the limit per consumer on the channel; a limit of the channel does not count
        no_ack: whether deliveries need no ack

    Raises:
        PreconditionFailed: 406, an argument is not for it, or there is no prefetch
        NotImplementedByBroker: 540, no-ack
    """
    if queue.consuming_removes:
        if OFFSET in arguments:
            raise not_for_type(OFFSET, queue.spec.text, queue_type_of(queue.spec.arguments))
        return None
    text = queue.spec.text
    if "x-priority" in arguments:
        raise not_for_type("x-priority", text, STREAM)
    start = start_of(text, arguments)
    if no_ack:
        raise NotImplementedByBroker(
            f"automatic acknowledgement not supported by stream queues {text}"
        )
    if not prefetch:
        raise PreconditionFailed(f"consumer prefetch count is not set for '{text}'")
    return start


def refuse_nack(unacked: Unacked, taken: list[UnackedBatch], ids: tuple[int, int]) -> None:
    """Let nobody refuse deliveries of a stream (STREAM-13); `ids` are those of the method.

    Raises:
        NotImplementedByBroker: 540; what was taken is outstanding again
    """
    for entry in taken:
        if not entry.queue.consuming_removes:
            unacked.restore(taken)
            raise NotImplementedByBroker(
                "basic.nack and basic.reject not supported by stream queues "
                f"{entry.queue.spec.text}",
                ids=ids,
            )


def holds_of_streams(unacked: Unacked) -> bool:
    """Whether something outstanding is of a stream."""
    return any(not queue.consuming_removes for _, queue, _ in unacked.times())


def refuse_recover(unacked: Unacked) -> None:
    """Let nobody recover where deliveries of a stream are outstanding (ACK-23).

    Raises:
        NotImplementedByBroker: 540
    """
    for entry in unacked.live():
        if not entry.queue.consuming_removes:
            raise NotImplementedByBroker(
                f"basic.recover not supported by stream queues {entry.queue.spec.text}"
            )
