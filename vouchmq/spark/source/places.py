"""Where a message stands in its queue, as VouchMQ tells consumers that ask for it.

Two headers behind those of the publisher: the id of the queue and a number. They are read from
the octets, as each delivery has them. Must not know connections, files, nor Spark.

Spec: SEQ-01, SEQ-02
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any, Final

from vouchmq.kit import bulk
from vouchmq.spark.source.offsets import Place

SEQUENCE: Final = "x-queue-seq"
QUEUE_ID: Final = "x-queue-id"
# How a 64-bit integer of these names begins in a table.
_SEQUENCE_KEY: Final = bytes([len(SEQUENCE)]) + SEQUENCE.encode() + b"l"
_QUEUE_ID_KEY: Final = bytes([len(QUEUE_ID)]) + QUEUE_ID.encode() + b"l"
_NUMBER: Final = Struct(">q").unpack_from
# What the two add to the properties of a message.
PLACE_BYTES: Final = len(_SEQUENCE_KEY) + len(_QUEUE_ID_KEY) + 2 * 8
PLACE_HEADERS: Final = frozenset({SEQUENCE.encode(), QUEUE_ID.encode()})


def places_of(raws: Iterable[bytes]) -> list[Place | None]:
    """Where these messages stand in their queues, by the headers that the broker has added.

    Args:
        raws: properties as received

    None for one without these headers.
    """
    found: list[Place | None] = []
    for raw in raws:
        sequence_at = raw.find(_SEQUENCE_KEY)
        queue_at = raw.find(_QUEUE_ID_KEY)
        if sequence_at < 0 or queue_at < 0:
            found.append(None)
        elif (
            raw.find(_SEQUENCE_KEY, sequence_at + 1) < 0
            and raw.find(_QUEUE_ID_KEY, queue_at + 1) < 0
        ):
            sequence = _NUMBER(raw, sequence_at + len(_SEQUENCE_KEY))[0]
            found.append((_NUMBER(raw, queue_at + len(_QUEUE_ID_KEY))[0], sequence))
        else:
            # The same octets stand inside another value too: read them properly.
            found.append(_place_in(raw))
    return found


def _place_in(raw: bytes) -> Place | None:
    try:
        headers: dict[str, Any] = dict(bulk.decode_properties(raw).headers or {})
    except ValueError:
        return None
    queue_id, sequence = headers.get(QUEUE_ID), headers.get(SEQUENCE)
    if isinstance(queue_id, int) and isinstance(sequence, int):
        return queue_id, sequence
    return None
