"""How the deliveries of a batch are shared among its tasks, as Arrow record batches.

A task gets runs of deliveries, each from one queue and one record batch of its own; about as many
rows as its neighbours, and not so many bytes that Spark could not send it. Must not know brokers,
files, nor Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from vouchmq.spark.rows import Delivery, batch_from
from vouchmq.spark.source.queue_channel import Portion, size_of

# Spark refuses a task over spark.rpc.message.maxSize, 128 MiB, and a task carries its rows.
TASK_BYTES: Final = 32 << 20
MESSAGE_BYTES: Final = 96 << 20
# What a row costs beside its body and properties.
_ROW_BYTES: Final = 200
# A record batch of Arrow holds 2 GiB in a column.
_BATCH_BYTES: Final = 512 << 20

Run = tuple[str, list[Delivery]]


def shares(portions: Iterable[Portion], count: int, max_bytes: int = TASK_BYTES) -> list[list[Run]]:
    """Cut a batch into tasks: `count`, or more where one would be larger than `max_bytes`.

    The order of each queue stays, within a task and from each to the next.
    """
    portions = [portion for portion in portions if portion.deliveries]
    total = sum(len(portion.deliveries) for portion in portions)
    rows = max(1, -(-total // count))
    tasks: list[list[Run]] = []
    room = room_bytes = 0
    for portion in portions:
        at = 0
        while at < len(portion.deliveries):
            if not room or room_bytes <= 0:
                tasks.append([])
                room, room_bytes = rows, max_bytes
            size, stop = _fitting(portion.deliveries, at, room, room_bytes, bool(tasks[-1]))
            if stop > at:
                tasks[-1].append((portion.queue, portion.deliveries[at:stop]))
            room, room_bytes = (room - (stop - at), room_bytes - size) if stop > at else (0, 0)
            at = stop
    return tasks


def _fitting(
    deliveries: Sequence[Delivery], at: int, room: int, room_bytes: int, has_some: bool
) -> tuple[int, int]:
    """From `at` on, what still goes into a task: its bytes and where it ends."""
    whole = deliveries[at : at + room]
    size = _bytes_of(whole)
    if size <= room_bytes:
        # As it nearly always is: no need to look at them one by one.
        return size, at + len(whole)
    size = 0
    stop = at
    for delivery in whole:
        cost = row_bytes(delivery)
        if size + cost > room_bytes and (stop > at or has_some):
            break
        size += cost
        stop += 1
    return size, stop


def _bytes_of(deliveries: Sequence[Delivery]) -> int:
    """The sum of `row_bytes`, quickly."""
    bodies = sum([len(delivery[5]) for delivery in deliveries])
    properties = sum([len(delivery[4]) for delivery in deliveries])
    return bodies + 3 * properties + _ROW_BYTES * len(deliveries)


def row_bytes(delivery: Delivery) -> int:
    """About what it takes as a row: properties are there raw and in columns."""
    return len(delivery[5]) + 3 * len(delivery[4]) + _ROW_BYTES


def record_batches(
    runs: Iterable[Run], columns: tuple[str, ...], broken: list[int], *, is_placed: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a task.

    Args:
        runs: of `shares`
        columns: which
        broken: gets one entry for each message whose properties could not be read
        is_placed: see `batch_from`
    """
    for queue, deliveries in runs:
        at = 0
        while at < len(deliveries):
            _, stop = _fitting(deliveries, at, len(deliveries), _BATCH_BYTES, False)
            some = deliveries[at:stop]
            yield batch_from(queue, some, columns, broken, is_placed=is_placed)
            at = stop


def packed(batches: Iterable[pa.RecordBatch], columns_schema: pa.Schema) -> bytes:
    """Record batches as the octets of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns_schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets


def unpacked(octets: bytes) -> Iterator[pa.RecordBatch]:
    """The rows that `packed` put into a task's description."""
    with pa.ipc.open_stream(octets) as reader:
        yield from reader


def largest(portions: Iterable[Portion]) -> tuple[int, str]:
    """The bytes of the largest message, and the queue it is from."""
    return max(
        (
            (size_of(delivery), portion.queue)
            for portion in portions
            for delivery in portion.deliveries
        ),
        default=(0, ""),
    )
