"""Mode spool: messages are acked when a batch of them is durable in a directory.

That makes a queue a source that can be read again. At each trigger the driver writes what it has
into one file, acks, and hands out the file's number; executors read the file. An ack means here:
durable in the pipeline's own storage.

Spec: SEQ-01, SEQ-02
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from vouchmq.spark.errors import sentence_only
from vouchmq.spark.options import SourceOptions
from vouchmq.spark.rows import arrow_schema
from vouchmq.spark.source import spool
from vouchmq.spark.source.batch_limits import Intake, measured
from vouchmq.spark.source.consumer import Barrier, QueueConsumer
from vouchmq.spark.source.data_directory import Seen
from vouchmq.spark.source.dedupe import Keys
from vouchmq.spark.source.offsets import Place, Places, SpoolOffset
from vouchmq.spark.source.places import places_of
from vouchmq.spark.source.queue_channel import Portion
from vouchmq.spark.source.reader import QueryReader, telling
from vouchmq.spark.source.tasks import record_batches, shares

# Places of spooled messages are remembered from file to file while they are so few ranges.
KEPT_RANGES: Final = 10_000
# A file is read by tasks in place, so nothing but the disk limits them.
_TASK_BYTES: Final = 1 << 40

log = logging.getLogger("vouchmq.spark")


class SpooledPartition(InputPartition):
    """Some record batches of a spooled file."""

    def __init__(self, path: str, batches: list[int]) -> None:
        """Created on the driver, with the numbers of record batches in a spool file."""
        super().__init__(None)
        self.path = path
        self.batches = batches


class SpoolReader(QueryReader["SpoolDriver"]):
    """What Spark calls. One instance lives on the driver, others elsewhere only `read`."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        """Opens nothing.

        Raises:
            SpoolError: `spoolLocation` is no place for a spool
        """
        super().__init__(options, columns)
        self._directory = spool.directory_of(options.spool_location or "")

    def new_driver(self) -> SpoolDriver:
        directory = spool.Spool(self._directory)
        return SpoolDriver(self._options, self._columns, QueueConsumer(self._options), directory)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """The offset of a query without any spool file yet."""
        return SpoolOffset("", 0).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        with telling():
            return [
                SpooledPartition(str(path), batches)
                for path, batches in self.driver.tasks(start, end)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task; on an executor."""
        if not isinstance(partition, SpooledPartition):
            raise TypeError(f"no partition of this source: {partition!r}")
        with sentence_only():
            yield from spool.read(Path(partition.path), partition.batches, self._columns)


class SpoolDriver:
    """The state of a query in mode spool.

    Args:
        options: as the user gave them
        columns: of the rows
        consumer: not started yet
        directory: not opened yet
        clock: seconds, never going back
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: tuple[str, ...],
        consumer: QueueConsumer,
        directory: spool.Spool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._columns = columns
        self._consumer = consumer
        self._spool = directory
        self._clock = clock
        self._intake = Intake(options, consumer)
        self._is_ready = self._is_required = False
        # Messages and bytes of the batch under way.
        self._measured = (0, 0)
        self._files: list[int] = []
        # What was spooled, so that it is known when it comes again: by its place or by its key.
        self._places = Places()
        self._last_places: deque[Places] = deque(maxlen=spool.KEPT_FILES)
        kind = options.dedupe or "none"
        self._keys = Keys(kind) if kind not in ("none", "seq") else None
        # Up to which file the acks have certainly arrived; the others' are asked for.
        self._certain = 0
        self._fences: deque[tuple[Barrier, int]] = deque()
        self.broken_count = 0
        self.dropped_count = 0

    def stop(self) -> None:
        """End the connection, let others write."""
        self._consumer.stop()
        self._spool.close()

    def backlog(self) -> dict[str, Any]:
        """See `Intake`."""
        return self._intake.backlog(*self._measured)

    def prepare_available_now(self) -> None:
        """See `Intake`."""
        self._intake.prepare_available_now()

    def _open(self, identity: str) -> None:
        if not self._spool.identity:
            self._spool.open(identity)
            self._files = self._spool.files()
        elif identity not in ("", self._spool.identity):
            raise spool.SpoolError(
                f"spool {self._spool.directory} has identity {self._spool.identity}, but the "
                f"checkpoint was made with identity {identity}"
            )

    def _get_ready(self) -> None:
        """What only the one writer may do: he who has the exclusive consumer, and the lock."""
        if self._is_ready:
            return
        self._spool.clear_unfinished()
        for number in self._files:
            path = self._spool.path(number)
            if self._consumer.has_sequence:
                self._places.update(spool.places_in(path))
            if self._keys is not None:
                self._keys.remember(number, spool.column_of(path, self._keys.column))
        self._certain = self._last()
        self._is_ready = True

    def _last(self) -> int:
        return self._files[-1] if self._files else 0

    def finish(self, end: dict[str, Any]) -> None:
        """Files up to `end` are done with; the newest stay.

        Raises:
            OffsetError: it is no offset of this mode
            SpoolError: the spool is another one's
        """
        offset = SpoolOffset.of_json(end)
        self._open(offset.spool)
        # Of a connection that is gone nobody knows which acks arrived. What was not acked comes
        # again before anything newer, so the fence of a later file speaks for the earlier too.
        passed = [number for fence, number in self._fences if fence.is_passed]
        self._certain = max(self._certain, *passed) if passed else self._certain
        while self._fences and self._fences[0][1] <= self._certain:
            self._fences.popleft()
        newest = self._last() - spool.KEPT_FILES
        limit = min(offset.file, newest, self._certain)
        old = [number for number in self._files if number <= limit]
        if old:
            self._spool.remove(old)
            self._files = self._files[len(old) :]
            if self._keys is not None:
                for number in old:
                    self._keys.forget(number)

    def latest(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """The number of the next file: one that is there already, or a new one.

        Raises:
            ConsumerError: the consumer has ended
            OffsetError: `start` is no offset of this mode
            SpoolError: the spool is another one's, is damaged, or cannot be written
        """
        offset = SpoolOffset.of_json(start)
        self._open(offset.spool)
        self._intake.start()
        self._consumer.check()
        self._get_ready()
        self.finish(start)
        following = offset.file + 1
        if following > self._last():
            # What is in the spool already is handed out whatever broker there is.
            self._require(offset)
            portions, places, at = self._sure(limit)
            self._measured = measured(portions)
            if not portions:
                return start
            self._write(following, portions, places, at)
        elif following not in self._files:
            raise spool.SpoolError(
                f"spool file {self._spool.path(following)} is missing, and there are later ones: "
                "was it deleted? Its messages are acked and cannot be read again"
            )
        at = spool.seen_in(self._spool.path(following))
        return SpoolOffset(self._spool.identity, following, at).as_json()

    def _require(self, offset: SpoolOffset) -> None:
        """Once: the broker must hold what the newest file, or the checkpoint, has seen."""
        if self._is_required:
            return
        newest = spool.seen_in(self._spool.path(self._last())) if self._files else None
        self._consumer.require(newest or offset.at)
        self._is_required = True

    def _sure(self, limit: Any) -> tuple[list[Portion], list[Place | None], Seen | None]:
        """The same as `_fresh`, and where it was read; all of that is on the broker's disk."""
        while True:
            portions, places = self._fresh(limit)
            is_sure, at = self._consumer.position(portions) if portions else (True, None)
            if is_sure:
                return portions, places, at
            self._intake.took(-sum(len(portion.deliveries) for portion in portions))

    def _fresh(self, limit: Any) -> tuple[list[Portion], list[Place | None]]:
        """Messages that were not spooled before, and their places; copies are acked."""
        deadline = self._clock() + self._options.fetch_max_wait_ms / 1000
        while True:
            fresh: list[Portion] = []
            places: list[Place | None] = []
            portions = self._intake.batch(limit)
            for portion in portions:
                kept, kept_places = self._without_copies(portion)
                if kept.deliveries:
                    fresh.append(kept)
                    places += kept_places
            if fresh or not portions or self._clock() > deadline:
                return fresh, places

    def _without_copies(self, portion: Portion) -> tuple[Portion, list[Place | None]]:
        deliveries = portion.deliveries
        places: list[Place | None] = []
        if self._consumer.has_sequence:
            places = places_of([delivery[4] for delivery in deliveries])
        if not any(delivery[1] for delivery in deliveries):
            return portion, places
        if self._consumer.has_sequence:
            # One that comes as new is another message, see `DeliveredSet.is_copy`.
            marks = [
                delivery[1] and place is not None and place in self._places
                for delivery, place in zip(deliveries, places, strict=True)
            ]
        elif self._keys is not None:
            marks = self._keys.copies(portion.queue, deliveries)
        else:
            return portion, places
        copies = [delivery for delivery, mark in zip(deliveries, marks, strict=True) if mark]
        if not copies:
            return portion, places
        self._consumer.ack([portion.part(copies)])
        self.dropped_count += len(copies)
        log.warning(
            "vouchmq source: %d messages of queue '%s' were redelivered after they had been "
            "spooled: acked and left out",
            len(copies),
            portion.queue,
        )
        kept = [delivery for delivery, mark in zip(deliveries, marks, strict=True) if not mark]
        if places:
            places = [place for place, mark in zip(places, marks, strict=True) if not mark]
        return portion.part(kept), places

    def _write(
        self,
        number: int,
        portions: list[Portion],
        places: list[Place | None],
        at: Seen | None,
    ) -> None:
        columns = self._columns
        if self._keys is not None and self._keys.column not in columns:
            columns = (*columns, self._keys.column)
        broken: list[int] = []
        tasks = [
            list(record_batches(runs, columns, broken, is_placed=self._consumer.has_sequence))
            for runs in shares(portions, self._options.num_partitions, _TASK_BYTES)
        ]
        if broken:
            self.broken_count += len(broken)
            log.warning(
                "vouchmq source: cannot read the properties of %d messages: their "
                "rows have only properties_raw and body",
                len(broken),
            )
        self._remember_places(places)
        self._spool.write(number, tasks, arrow_schema(columns), self._places, at)
        self._files.append(number)
        if self._keys is not None:
            values = [
                value
                for batches in tasks
                for batch in batches
                for value in batch.column(self._keys.column).to_pylist()
            ]
            self._keys.remember(number, values)
        self._consumer.ack(portions)
        self._fences.append((self._consumer.fence(), number))

    def _remember_places(self, places: list[Place | None]) -> None:
        own = Places()
        own.add_all(places)
        self._last_places.append(own)
        self._places.update(own)
        if self._places.range_count > KEPT_RANGES:
            self._places = Places()
            for each in self._last_places:
                self._places.update(each)

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[Path, list[int]]]:
        """For each task its file, and the numbers of the record batches in it.

        Raises:
            OffsetError: these are no offsets of this mode
            SpoolError: the spool is another one's, or a file cannot be read
        """
        first, last = SpoolOffset.of_json(start), SpoolOffset.of_json(end)
        if last.file <= first.file:
            return []
        self._open(last.spool)
        # Spark has logged the offset by now.
        self._spool.claim()
        return [
            (path, batches)
            for path in map(self._spool.path, range(first.file + 1, last.file + 1))
            for batches in spool.tasks_of(path)
        ]
