"""The ready messages of a queue, read and left where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.protocol.contents import property_block
from vouchmq.protocol.fields import decode_shortstr
from vouchmq.protocol.properties import Properties
from vouchmq.protocol.runs import NOTES_FRAME, SIZE
from vouchmq.server.definitions.export import plain_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.classic import ClassicQueue

COLUMNS: Final = ("exchange", "routing_key", "redelivered", "properties", "headers", "body")
PROPERTIES: Final = (
    *("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id"),
    *("reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id"),
)
FRAME_HEADER_BYTES: Final = 7


def ready_messages(queue: ClassicQueue) -> Iterator[tuple[object, ...]]:
    """A row for each ready message, in the order of delivery, with what `COLUMNS` names."""
    # What has just come back stands beside the lines.
    queue.take_in(at_once=True)
    for line in queue.lines:
        for message in line.in_memory():
            yield _row(message, line.mark)
        if line.backlog is not None:
            for message in line.backlog.contents():
                yield _row(message, line.mark)


def _row(message: Message, mark: int) -> tuple[object, ...]:
    raw, tail, seq, _ = message
    exchange, at = decode_shortstr(tail, 0)
    routing_key, _ = decode_shortstr(tail, at)
    given = Properties(property_block(raw))
    values = {name: getattr(given, name) for name in PROPERTIES}
    return (
        exchange,
        routing_key,
        seq <= mark,
        {name: value for name, value in values.items() if value is not None},
        plain_table(given.headers or {}),
        body_of(raw),
    )


def body_of(raw: bytes) -> bytes:
    """The body of a content, out of its frames."""
    at = FRAME_HEADER_BYTES + SIZE.unpack_from(raw, 3)[0] + 1
    parts: list[bytes] = []
    while at < len(raw) and raw[at] != NOTES_FRAME:
        start = at + FRAME_HEADER_BYTES
        end = start + SIZE.unpack_from(raw, at + 3)[0]
        parts.append(raw[start:end])
        at = end + 1
    return b"".join(parts)
