"""Streams to read from, and a query without Spark: what Spark calls of a reader, in its order.

The start of the first batch is asked for once more when the batch is planned, by each process that
plans it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from tests.pipeline.asked_twice import AskedTwice
from vouchmq.kit.bulk import BulkConnection
from vouchmq.spark.columns import ALL
from vouchmq.spark.options import SourceOptions
from vouchmq.spark.source.streams.mode import StreamModeReader

Offset = dict[str, Any]

# Small segments: retention has something to take, and RabbitMQ's offsets get gaps.
SMALL = {"x-max-length-bytes": 400_000, "x-stream-max-segment-size-bytes": 100_000}


def declare(url: str, queue: str, **arguments: object) -> None:
    """Declare a stream."""
    with BulkConnection.open(url) as connection:
        connection.channel().declare(queue, arguments={"x-queue-type": "stream", **arguments})


def delete(url: str, queue: str) -> None:
    """Delete a queue or stream."""
    with BulkConnection.open(url) as connection:
        connection.channel().delete(queue)


def publish(url: str, queue: str, first: int, stop: int, body: bytes = b"x" * 100) -> None:
    """Publish messages whose ids are numbers; all are confirmed on return."""
    with BulkConnection.open(url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        rows = (
            ("", queue, {"message_id": str(n), "delivery_mode": 2}, body)
            for n in range(first, stop)
        )
        assert channel.publish_many(rows).confirmed == stop - first


def options(url: str, *queues: str, **more: object) -> SourceOptions:
    """Options of the source in stream mode."""
    given = {name: str(value) for name, value in more.items()}
    return SourceOptions.parse({"url": url, "queue": ",".join(queues), "mode": "stream", **given})


class Query:
    """A streaming query: its checkpoint, and a reader that can be started anew.

    Attributes:
        rows: what all batches have read, in the order of their partitions
        log: start and end of each batch that was planned
    """

    def __init__(self, asked: SourceOptions, columns: tuple[str, ...] = ALL) -> None:
        self._options = asked
        self._columns = columns
        self.rows: list[dict[str, Any]] = []
        self.log: list[tuple[Offset, Offset]] = []
        self.reader: Any = AskedTwice(StreamModeReader(asked, columns))

    def restart(self, asked: SourceOptions | None = None) -> None:
        """A new process on the old checkpoint."""
        if asked is not None:
            self._options = asked
        self.reader.stop()
        self.reader = AskedTwice(StreamModeReader(self._options, self._columns))

    def plan(self, limit: ReadLimit | None = None) -> tuple[Offset, Offset] | None:
        """Ask for the next batch and note it; None when there is nothing new."""
        start = self.log[-1][1] if self.log else _stored(self.reader.initialOffset())
        end = _stored(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))
        if end == start:
            return None
        self.log.append((start, end))
        return start, end

    def read(self, batch: tuple[Offset, Offset]) -> list[dict[str, Any]]:
        """The rows of a batch, as its tasks read them: by pickled copies of reader and ranges."""
        start, end = batch
        if not self.log or batch == self.log[0]:
            start = _stored(self.reader.initialOffset())
        partitions = self.reader.partitions(start, end)
        asleep = pickle.dumps((StreamModeReader(self._options, self._columns), list(partitions)))
        reader, partitions = pickle.loads(asleep)  # noqa: S301 - made the line before
        return [
            row
            for partition in partitions
            for each in reader.read(partition)
            for row in each.to_pylist()
        ]

    def run(self, until: Callable[[], bool] | None = None) -> int:
        """Run batches until nothing is new; how many."""
        count = 0
        while (batch := self.plan()) is not None:
            self.rows += self.read(batch)
            count += 1
            if until is not None and until():
                break
        return count

    @property
    def ids(self) -> list[int]:
        """The messages read so far, by their numbers."""
        return [int(row["message_id"]) for row in self.rows]


@contextmanager
def query(asked: SourceOptions, columns: tuple[str, ...] = ALL) -> Iterator[Query]:
    """A query that closes its connection at the end."""
    made = Query(asked, columns)
    try:
        yield made
    finally:
        made.reader.stop()


def _stored(offset: Offset) -> Offset:
    """As Spark writes it into its checkpoint and reads it back."""
    stored: Offset = json.loads(json.dumps(offset))
    return stored
