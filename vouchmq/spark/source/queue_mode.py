"""Mode queue: messages are acked when Spark has finished the batch they were in.

The driver-side process holds the deliveries; the rows go to the tasks inside their descriptions.
Spark says that a batch is finished by asking for what comes after it: `latestOffset(start)` acks
everything up to `start`. `commit` does the same, but of the last batch it would come too late.

A logged range never yields other messages than the first time. After a restart the batch under way
is either empty, and its messages come in a later one; or, where the broker numbers its deliveries,
it is exactly the same messages, waited for one by one.

Spec: SEQ-01, SEQ-02
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from vouchmq.spark.options import SPOOL, SourceOptions
from vouchmq.spark.rows import arrow_schema
from vouchmq.spark.source.batch_limits import Intake, measured
from vouchmq.spark.source.batch_replay import Replay
from vouchmq.spark.source.consumer import Barrier, ConsumerError, QueueConsumer
from vouchmq.spark.source.dedupe import DeliveredSet
from vouchmq.spark.source.offsets import OffsetError, Place, Places, QueueOffset
from vouchmq.spark.source.places import places_of
from vouchmq.spark.source.queue_channel import Portion
from vouchmq.spark.source.reader import QueryReader, telling
from vouchmq.spark.source.tasks import (
    MESSAGE_BYTES,
    largest,
    packed,
    record_batches,
    shares,
    unpacked,
)

EPOCH_BYTES: Final = 6

log = logging.getLogger("vouchmq.spark")


def stream_reader(options: SourceOptions, columns: tuple[str, ...]) -> DataSourceStreamReader:
    """The reader of mode queue or spool, as the options say."""
    if options.mode == SPOOL:
        from vouchmq.spark.source.spool_mode import SpoolReader

        return SpoolReader(options, columns)
    return QueueReader(options, columns)


class PackedPartition(InputPartition):
    """The rows of a task, as the octets of an Arrow stream."""

    def __init__(self, octets: bytes) -> None:
        """Created on the driver, with deliveries as an Arrow stream."""
        super().__init__(None)
        self.octets = octets


class QueueReader(QueryReader["QueueDriver"]):
    """What Spark calls. One instance lives on the driver, others elsewhere only `read`."""

    def new_driver(self) -> QueueDriver:
        return QueueDriver(self._options, self._columns, QueueConsumer(self._options))

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """The offset of a query that has handed out nothing yet."""
        return self.driver.initial()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        with telling():
            return [PackedPartition(octets) for octets in self.driver.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task; on an executor."""
        if not isinstance(partition, PackedPartition):
            raise TypeError(f"no partition of this source: {partition!r}")
        return unpacked(partition.octets)


@dataclass
class _Batch:
    """What was handed out and is not known to be finished."""

    portions: list[Portion]
    end: dict[str, Any]
    # Spark may ask for its tasks again.
    is_packed: bool = False


class QueueDriver:
    """The state of a query in mode queue.

    Args:
        options: as the user gave them
        columns: of the rows
        consumer: not started yet
        clock: seconds, never going back
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: tuple[str, ...],
        consumer: QueueConsumer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epoch = secrets.token_hex(EPOCH_BYTES)
        self._options = options
        self._columns = columns
        self._consumer = consumer
        self._clock = clock
        self._intake = Intake(options, consumer)
        self._handed_out = 0
        self._handed = DeliveredSet()
        self._has_begun = False
        self._batch: _Batch | None = None
        # A replay was not complete: the next offset must say so, also if there is nothing else.
        self._must_tell = False
        self._fences: deque[tuple[Barrier, Places]] = deque()
        self.broken_count = 0
        self.dropped_count = 0

    def initial(self) -> dict[str, Any]:
        """Where a new query begins."""
        return QueueOffset(self.epoch, 0).as_json()

    def stop(self) -> None:
        """Close the connection when the query ends."""
        self._consumer.stop()

    def backlog(self) -> dict[str, Any]:
        """See `Intake`."""
        return self._intake.backlog(*measured(self._batch.portions if self._batch else ()))

    def prepare_available_now(self) -> None:
        """See `Intake`."""
        self._intake.prepare_available_now()

    def finish(self, end: dict[str, Any]) -> None:
        """Spark has finished everything up to `end`: ack it.

        Raises:
            OffsetError: it is no offset of this mode
        """
        offset = QueueOffset.of_json(end)
        self._require(offset)
        if not self._has_begun:
            self._handed.begin(offset.done)
            self._has_begun = True
        batch = self._batch
        if batch is None or not self._is_behind(batch, end, offset):
            return
        self._batch = None
        is_acked = self._consumer.ack(batch.portions)
        places = self._handed.finish()
        if self._consumer.has_sequence and is_acked:
            self._fences.append((self._consumer.fence(), places))

    def _require(self, offset: QueueOffset) -> None:
        """Of a process before this one: the broker must hold what that has seen."""
        if offset.epoch != self.epoch:
            self._consumer.require(offset.at)

    def _is_behind(self, batch: _Batch, end: dict[str, Any], offset: QueueOffset) -> bool:
        if end == batch.end:
            return True
        is_ours = offset.epoch == self.epoch == batch.end["epoch"]
        return is_ours and offset.handed_out >= int(batch.end["n"])

    def latest(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Finish `start` and take a batch; `start` itself when there is nothing new.

        Raises:
            ConsumerError: the consumer has ended, or a message is too large
            OffsetError: `start` is no offset of this mode
        """
        self._intake.start()
        self._consumer.check()
        self.finish(start)
        if self._batch is not None:
            # Handed out, and Spark has not logged it: the same again.
            return self._batch.end
        self._look_at_fences()
        while True:
            portions, places = self._fresh(limit)
            if not portions and not self._must_tell:
                return start
            is_sure, at = self._consumer.position(portions)
            if is_sure:
                break
            self._intake.took(-sum(len(portion.deliveries) for portion in portions))
        self._must_tell = False
        self._handed_out += sum(len(portion.deliveries) for portion in portions)
        self._handed.hand_out(places)
        done = self._handed.done() if self._consumer.has_sequence else None
        end = QueueOffset(self.epoch, self._handed_out, done, at).as_json()
        self._batch = _Batch(portions, end)
        return end

    def _look_at_fences(self) -> None:
        while self._fences:
            fence, places = self._fences[0]
            if fence.is_passed:
                self._handed.acks_arrived(places)
            elif fence.generation == self._consumer.generation:
                return
            # Of a connection that is gone nobody knows which acks arrived.
            self._fences.popleft()

    def _fresh(self, limit: Any) -> tuple[list[Portion], list[Place | None]]:
        """Messages that were not handed out before, and their places; copies are acked."""
        deadline = self._clock() + self._options.fetch_max_wait_ms / 1000
        while True:
            portions = self._intake.batch(limit)
            size, queue = largest(portions)
            if size > MESSAGE_BYTES:
                raise ConsumerError(
                    f"a message of {size} bytes in queue '{queue}' is too large for mode queue, "
                    f"where rows go through the driver (at most {MESSAGE_BYTES}): use mode spool"
                )
            if not self._consumer.has_sequence:
                return portions, []
            fresh: list[Portion] = []
            places: list[Place | None] = []
            for portion in portions:
                kept, kept_places = self._without_copies(portion)
                if kept.deliveries:
                    fresh.append(kept)
                    places += kept_places
            # Copies may fill the whole window: what is behind them comes when they are acked.
            if fresh or not portions or self._clock() > deadline:
                return fresh, places

    def _without_copies(self, portion: Portion) -> tuple[Portion, list[Place | None]]:
        places = places_of([delivery[4] for delivery in portion.deliveries])
        if not any(delivery[1] for delivery in portion.deliveries):
            return portion, places
        pairs = list(zip(portion.deliveries, places, strict=True))
        copies = [each for each, place in pairs if self._handed.is_copy(place, each[1])]
        if not copies:
            return portion, places
        self._consumer.ack([portion.part(copies)])
        self.dropped_count += len(copies)
        log.warning(
            "vouchmq source: %d messages of queue '%s' were redelivered after their batch was "
            "finished: acked and left out",
            len(copies),
            portion.queue,
        )
        kept = [(each, place) for each, place in pairs if not self._handed.is_copy(place, each[1])]
        return portion.part([each for each, _ in kept]), [place for _, place in kept]

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
        """The rows of a batch, packed for each task.

        Raises:
            ConsumerError: the consumer has ended
            OffsetError: `end` is no offset of this mode, or of a batch finished long ago
        """
        offset = QueueOffset.of_json(end)
        if self._batch is None or self._batch.end != end:
            if start == end:
                return []
            if offset.epoch == self.epoch:
                raise OffsetError(f"the batch up to {end} was finished already")
            if not self._replayed(QueueOffset.of_json(start), offset, end):
                return []
        batch = self._batch
        return [] if batch is None else self._packed(batch)

    def _replayed(self, start: QueueOffset, end: QueueOffset, text: dict[str, Any]) -> bool:
        """Get a batch of an earlier process again; False when that cannot be and need not."""
        if not end.handed_out and end.done is None:
            # The first batch of a query that found nothing at first.
            return False
        if end.done is None:
            log.warning("vouchmq source: a batch is empty that was under way; its rows come later")
            return False
        self._intake.start()
        if not self._consumer.has_sequence:
            log.warning(
                "vouchmq source: without dedupe=seq a batch is empty that was under way; its rows "
                "come later"
            )
            return False
        self._require(end)
        finished = start.done if start.done is not None else Places()
        self._handed.begin(finished)
        self._has_begun = True
        replay = Replay(self._options, self._consumer, self._handed, end.done.minus(finished))
        portions, places = replay.run()
        self._intake.took(sum(len(portion.deliveries) for portion in portions))
        self.dropped_count += replay.dropped_count
        self._must_tell = bool(replay.missing)
        self._handed.hand_out(places)
        self._batch = _Batch(portions, text)
        return True

    def _packed(self, batch: _Batch) -> list[bytes]:
        broken: list[int] = []
        schema = arrow_schema(self._columns)
        packs = [
            packed(
                record_batches(runs, self._columns, broken, is_placed=self._consumer.has_sequence),
                schema,
            )
            for runs in shares(batch.portions, self._options.num_partitions)
        ]
        if broken and not batch.is_packed:
            self.broken_count += len(broken)
            log.warning(
                "vouchmq source: cannot read the properties of %d messages: their "
                "rows have only properties_raw and body",
                len(broken),
            )
        batch.is_packed = True
        return packs
