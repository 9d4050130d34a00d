"""A queued message: a tuple of bytes and ints only.

`(raw, tail, seq, arrived_ms)`:

- raw: content header frame and body frames as received, octet for octet (FRAME-53)
- tail: exchange and routing key as a deliver frame wants them; one object shared by a route
- seq: twice the message's LSN, plus 1 when the journal holds it. It orders messages in a queue,
  and the lowest bit spares a lookup when the message is settled.
- arrived_ms: when it came into the queue, by the clock of the loop in milliseconds

Atoms only, because the garbage collector stops looking at such a tuple after its first round:
a million of them cost no pause. Rarer facts stand beside the queue, by seq.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.contents import property_block
from vouchmq.protocol.runs import PROPERTIES_AT, Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Message", "lsn_of", "lsns_of", "runs_of_same", "seq_of"]

# Sort key of messages: the order in which they came.
seq_of: Final[Callable[[Message], int]] = itemgetter(2)


def lsn_of(seq: int) -> int:
    """The LSN behind a seq, stored or not."""
    return seq >> 1


def lsns_of(messages: list[Message]) -> Sequence[int]:
    """LSNs of those messages that the journal holds: a range if they follow each other."""
    lsns = [message[2] >> 1 for message in messages if message[2] & 1]
    if len(lsns) > 1 and lsns[-1] - lsns[0] == len(lsns) - 1:
        row = range(lsns[0], lsns[-1] + 1)
        # What was put back may be anywhere between them.
        if lsns == [*row]:
            return row
    return lsns


def runs_of_same(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Messages that follow each other, published alike and with nothing noted, together."""
    same: list[Message] = []
    block, tail = b"", b""
    for message in messages:
        raw = message[0]
        is_plain = bool(raw[1] or raw[2])
        if same and is_plain and message[1] == tail and raw.startswith(block, PROPERTIES_AT):
            same.append(message)
            continue
        if same:
            yield same
        same = [message]
        # What has notes is like no other.
        block, tail = property_block(raw), message[1] if is_plain else b""
    if same:
        yield same
