"""What a task does in stream mode: read one range of a stream over a connection of its own.

    connect ──▶ consume(start) ──▶ take, ack as credit, 5,000 rows a batch ──▶ offset ≥ stop - 1

Acks settle nothing in a stream, so a task may fail and be run again as often as Spark likes: the
same range gives the same messages. It never ends early: silence before the end of its range is an
error. A connection that is lost is opened again where the task had come to. Must not know Spark.

Spec: STREAM-15, STREAM-16, STREAM-23
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from vouchmq.kit.bulk import BulkConnection, BulkError
from vouchmq.spark.rows import batch_from
from vouchmq.spark.source.data_directory import DirectoryGuard, Seen
from vouchmq.spark.source.streams.bounds import (
    OFFSET,
    StreamGoneError,
    connect,
    first_offset,
    is_away,
    newest,
)
from vouchmq.spark.source.streams.bounds import offset_of_delivery as offset_of
from vouchmq.spark.source.streams.ranges import DataLossError, Range, first_gap

if TYPE_CHECKING:
    from vouchmq.kit.bulk import BulkChannel, Delivery
    from vouchmq.spark.options import SourceOptions

log = logging.getLogger(__name__)

BATCH_ROWS: Final = 5000
BATCH_BYTES: Final = 16 << 20
_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 2.0


class SilenceError(Exception):
    """There should be messages, and the broker sends none."""


def loss(options: SourceOptions, text: str) -> None:
    """Messages are gone: fail, or say so and go on.

    Raises:
        DataLossError: with `failOnDataLoss`.
    """
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{text}; with option failOnDataLoss=false the query continues with what is left"
        )
    log.warning("%s; continuing (failOnDataLoss is false)", text)


class RangeReader:
    """Reads one range.

    Args:
        options: of the source
        columns: of the rows
        whole: what to read
        at: in which data directory, None where the broker does not tell
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: tuple[str, ...],
        whole: Range,
        at: Seen | None = None,
    ) -> None:
        self._options = options
        self._columns = columns
        # Offsets are needed to know where to stop, whether or not the user wants to see them.
        self._read = columns if "offset" in columns else (*columns, "offset")
        self._range = whole
        self._guard = DirectoryGuard(at)
        self._position = whole.start
        self._silence_s = options.read_timeout_ms / 1000
        self._batch_rows = BATCH_ROWS

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The messages of the range, in order.

        Raises:
            DataLossError: some of them are gone, and `failOnDataLoss` is set
            ForeignDirectoryError: the broker has another data directory than when it was planned
            BulkClosed: the broker's code and text; code 0: it was away for `readTimeoutMs`
            SilenceError: no message for `readTimeoutMs`, though there should be
        """
        pause_s = _PAUSE_S
        heard_at = time.monotonic()
        while self._position < self._range.stop:
            before = self._position
            try:
                with connect(self._options, "task") as connection:
                    self._guard.verify_if_new(connection)
                    yield from self._attempt(connection)
            except BulkError as error:
                if self._position > before:
                    heard_at, pause_s = time.monotonic(), _PAUSE_S
                left_s = heard_at + self._silence_s - time.monotonic()
                if not is_away(error) or left_s <= 0:
                    raise
                log.warning("%s: %s; connecting again", self._range, error)
                time.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _attempt(self, connection: BulkConnection) -> Iterator[pa.RecordBatch]:
        """Read over one connection, to the end of the range or to where retention overtook it."""
        channel = connection.channel()
        channel.qos(self._options.prefetch)
        channel.consume(self._range.queue, arguments={OFFSET: self._position})
        pending: list[Delivery] = []
        size = 0
        begun, last = self._position, self._position - 1
        is_overtaken = False
        while last < self._range.stop - 1 and not is_overtaken:
            deliveries = channel.wait(1, self._silence_s)
            if deliveries:
                deliveries += channel.take(self._batch_rows)
                last = offset_of(self._range.queue, deliveries[-1])
                channel.ack(deliveries[-1][0], multiple=True)
                pending += deliveries
                size += sum(len(each[5]) for each in deliveries)
            elif last >= begun and self._is_dropped(connection, channel, last + 1):
                # Another consumer begins behind the gap, which is checked as any other.
                is_overtaken = True
            else:
                self._check_silence(connection, channel)
                last = self._range.stop - 1
            if (
                is_overtaken
                or last >= self._range.stop - 1
                or len(pending) >= self._batch_rows
                or size >= BATCH_BYTES
            ):
                batch = self._batch(connection, pending)
                pending, size = [], 0
                # Before the rows are handed on: whoever asks for more has got them.
                self._position = last + 1
                if batch.num_rows:
                    yield batch

    def _batch(self, connection: BulkConnection, deliveries: list[Delivery]) -> pa.RecordBatch:
        """The rows of those deliveries that lie in the range, checked for gaps."""
        batch = batch_from(self._range.queue, deliveries, self._read, is_stream=True)
        at = batch.schema.get_field_index("offset")
        column = batch.column(at)
        offsets = column.to_pylist()
        if column.null_count:
            # A message whose properties cannot be read has its place all the same.
            offsets = [offset_of(self._range.queue, each) for each in deliveries]
            batch = batch.set_column(at, batch.schema.field(at), pa.array(offsets, pa.int64()))
        first = bisect_left(offsets, self._position)
        gap = first_gap(offsets[first:], self._position)
        if gap is not None and gap[0] < self._range.stop:
            self._check_gap(connection, *gap)
        rows = batch.slice(first, bisect_left(offsets, self._range.stop) - first)
        return rows if self._read is self._columns else rows.select(list(self._columns))

    def _check_gap(self, connection: BulkConnection, missing: int, seen: int) -> None:
        """Offsets were left out: some brokers do not give all, retention has eaten others."""
        queue = self._range.queue
        oldest = first_offset(connection, queue, "first")
        if oldest is not None and oldest <= missing:
            return
        loss(
            self._options,
            f"data loss in {self._range}: {missing} to {seen - 1} are gone, the oldest message is "
            f"{oldest}: retention was faster than the query, or the stream was declared again",
        )

    def _is_dropped(self, connection: BulkConnection, channel: BulkChannel, offset: int) -> bool:
        """Whether retention has removed a message; RabbitMQ may then deliver nothing more."""
        if channel.cancelled is not None:
            return False
        oldest = first_offset(connection, self._range.queue, "first")
        return oldest is not None and oldest > offset

    def _check_silence(self, connection: BulkConnection, channel: BulkChannel) -> None:
        """Nothing comes although the range has not ended; returns when what is missing is lost."""
        if channel.cancelled is not None:
            raise StreamGoneError(f"{self._range}: the stream was deleted while it was read")
        tail = newest(connection, self._range.queue).next
        if tail >= self._range.stop:
            raise SilenceError(
                f"{self._range}: no message for {self._options.read_timeout_ms} ms (readTimeoutMs)"
            )
        loss(
            self._options,
            f"data loss in {self._range}: the stream ends before offset {tail}: it was deleted and "
            "declared again, or its broker has lost messages",
        )
