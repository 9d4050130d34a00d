"""Stream mode: what Spark asks the driver of a query, and of `spark.read`, over a stream.

    initialOffset ─▶ latestOffset(start, limit) ─▶ partitions(start, end) ─▶ read, in the tasks
                       │ tail, share, data loss       │ ranges, split

The offset is where to read on, per stream, and where the batch began that ended there; nothing is
settled anywhere, so that every range can be read again. State of the driver is what it knows of the
tails, one connection to ask, and what it has answered: Spark asks some questions more than once.

Spec: STREAM-20, STREAM-21
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from vouchmq.kit.bulk import BulkError
from vouchmq.spark.errors import sentence_only
from vouchmq.spark.options import SourceOptions, refuse
from vouchmq.spark.source.data_directory import Seen
from vouchmq.spark.source.streams.bounds import Probe, is_away
from vouchmq.spark.source.streams.range_reader import RangeReader, loss
from vouchmq.spark.source.streams.ranges import (
    Range,
    admit,
    begins_of,
    ids_of,
    offset_of,
    positions_of,
    ranges_of,
    split,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# How long a trigger waits for news when there is none; also how long stopping a query may take.
WAIT_S: Final = 0.1


class StreamPartition(InputPartition):
    """One range of a stream, as it is sent to a task."""

    def __init__(self, whole: Range, at: Seen | None) -> None:
        super().__init__(whole)
        self.range = whole
        self.at = at


class StreamModeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """For `spark.readStream`; the driver's instance lives as long as its query.

    Args:
        options: of the source
        columns: of the rows
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        """Opens nothing: one more instance is made in a process of its own, and pickled."""
        self._options = options
        self._columns = columns
        self._probe = Probe(options)
        self._tails: dict[str, int] = {}
        # Of the streams as they are now, as far as they tell.
        self._ids: dict[str, int] = {}
        self._is_required = False
        self._mean_bytes = 0.0
        self._target: dict[str, int] | None = None
        self._joined: dict[str, int] = {}
        # The last question of each kind and its answer, which holds until Spark has gone on.
        self._initial: dict[str, Any] | None = None
        self._latest: tuple[dict[str, Any], ReadLimit, dict[str, Any]] | None = None
        self._planned: tuple[dict[str, Any], list[StreamPartition]] | None = None
        self._away_since: float | None = None

    @sentence_only()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins: `startingOffsets`, as it was when this was first asked.

        Spark asks before `latestOffset`, and again before `partitions` of the first batch.

        Raises:
            OptionError: `startingOffsets` lies beyond the end of a stream
        """
        if self._initial is None:
            self._initial = self._probe.insist(self._first_offset)
        return dict(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """At most `maxMessagesPerTrigger` messages in a batch."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    @sentence_only()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is there now is all that this run reads."""
        if self._target is None:
            self._probe.insist(self._look)
            self._target = dict(self._tails)

    @sentence_only()
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """How far the next batch goes; `start` itself when there is nothing new.

        Raises:
            DataLossError: a stream ends before `start`, and `failOnDataLoss` is set
            OffsetError: `start` is not of this mode, or of other streams
            ForeignDirectoryError: the broker does not hold what the checkpoint has seen
        """
        if self._latest is not None and self._latest[:2] == (start, limit):
            return dict(self._latest[2])
        self._require(start)
        positions = self._positions(start)
        if self._target is None and not self._has_news(positions):
            return dict(start)
        ids = ids_of(start)
        begins = self._checked(positions, ids)
        tails = self._tails if self._target is None else self._target
        ends = admit(begins, tails, self._limit(limit))
        if ends != positions or any(map(self._is_another(ids), ends)):
            at = self._probe.insist(self._probe.position)
            end = self._offset(ends, begins, {**ids, **self._ids}, at)
            self._latest = (dict(start), limit, end)
            return dict(end)
        if self._target is None:
            # Consumers at the ends of the streams, for the next call.
            self._outlasting(lambda: self._probe.news(positions, WAIT_S))
        return dict(start)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The tails, as they were last seen."""
        return offset_of(self._tails) if self._tails else None

    @sentence_only()
    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[StreamPartition]:
        """The ranges of a batch; the same ones again when a batch is run again.

        Raises:
            DataLossError: a stream ends before `end`, and `failOnDataLoss` is set
            ForeignDirectoryError: the broker does not hold what the checkpoint has seen
        """
        if start == end:
            return []
        if self._planned is None or self._planned[0] != end:
            self._planned = (dict(end), self._plan(start, end))
        return list(self._planned[1])

    def _plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[StreamPartition]:
        self._require(end)
        stops = positions_of(end, self._options.queues)
        begins = begins_of(end)
        if begins is None:
            begins = self._begins_before(start, end)
        unseen = {queue for queue, stop in stops.items() if stop > self._tails.get(queue, -1)}
        if unseen:
            # A batch of an earlier process: the stream may have become another one since.
            self._probe.insist(self._look)
            stops = self._checked(stops, ids_of(end))
        at = Seen.of_json(end.get("at"))
        return partitions_of(ranges_of(begins, stops), self._options.min_partitions, at)

    def _begins_before(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, int]:
        """Where a batch begins that an earlier version has logged: where Spark says that it does.

        Its first batch may have begun at another end of the stream than there is now.
        """
        known, now = ids_of(start), ids_of(end)
        begins = {
            # One that was deleted and declared again is read from its beginning.
            queue: position if known.get(queue, now.get(queue)) == now.get(queue) else 0
            for queue, position in self._positions(start).items()
        }
        for queue, stop in positions_of(end, self._options.queues).items():
            if begins[queue] > stop:
                loss(
                    self._options,
                    f"data loss in stream '{queue}': the checkpoint, of an earlier version, does "
                    f"not say where the batch began that ends at offset {stop}",
                )
        return begins

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range; runs in a task."""
        return read(self._options, self._columns, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: a stream has nothing to settle."""

    def stop(self) -> None:
        """Close the connection when the query ends."""
        self._probe.close()

    def _first_offset(self) -> dict[str, Any]:
        self._look()
        latest = self._options.starting_offsets == "latest"
        begins = self._tails if latest else starting_positions(self._probe, self._options)
        for queue, begin in begins.items():
            # The others were found, so they lie where there is something, or at the end.
            if isinstance(self._options.starting_offsets, dict) and begin > self._tails[queue]:
                refuse_beyond(queue, begin, self._tails[queue])
        return self._offset(begins, begins, self._ids, self._probe.position())

    def _offset(
        self,
        ends: Mapping[str, int],
        begins: Mapping[str, int],
        ids: Mapping[str, int],
        at: Seen | None,
    ) -> dict[str, Any]:
        return offset_of(ends, ids, at.as_json() if at else None, begins=begins)

    def _require(self, offset: Mapping[str, Any]) -> None:
        """Once: the broker must hold what the checkpoint has seen."""
        if not self._is_required:
            self._probe.require(Seen.of_json(offset.get("at")))
            self._is_required = True

    def _is_another(self, ids: Mapping[str, int]) -> Callable[[str], bool]:
        """Whether a stream is another one than that of these ids."""
        return lambda queue: queue in ids and ids[queue] != self._ids.get(queue, ids[queue])

    def _has_news(self, positions: dict[str, int]) -> bool:
        """Whether there may be something new; then the tails are known."""
        if not self._probe.is_watching(positions):
            return self._outlasting(self._look)
        has_come = self._outlasting(lambda: self._probe.news(positions, WAIT_S))
        return has_come and self._outlasting(self._look)

    def _outlasting(self, question: Callable[[], bool]) -> bool:
        """An answer, False while the broker is away: for `readTimeoutMs`, as in the tasks.

        Raises:
            BulkError: it is away for longer, or has refused something
        """
        try:
            answer = question()
        except BulkError as error:
            now = time.monotonic()
            self._away_since = now if self._away_since is None else self._away_since
            is_over = now - self._away_since > self._options.read_timeout_ms / 1000
            if is_over or not is_away(error):
                raise
            log.warning("%s; waiting for it", error)
            time.sleep(WAIT_S)
            return False
        self._away_since = None
        return answer

    def _look(self) -> bool:
        tails = {queue: self._probe.newest(queue) for queue in self._options.queues}
        self._tails = {queue: tail.next for queue, tail in tails.items()}
        ids = {queue: tail.queue_id for queue, tail in tails.items()}
        self._ids = {queue: number for queue, number in ids.items() if number is not None}
        self._mean_bytes = max(tail.mean_bytes for tail in tails.values())
        return True

    def _positions(self, start: Mapping[str, Any]) -> dict[str, int]:
        """Where each stream is read on; one that joined the query is read from its beginning."""
        known = positions_of(start, self._options.queues)
        for queue in self._options.queues:
            if queue not in known and queue not in self._joined:
                oldest = partial(self._probe.oldest, queue)
                self._joined[queue] = self._probe.insist(oldest) or 0
        return {
            queue: known.get(queue, self._joined.get(queue, 0)) for queue in self._options.queues
        }

    def _checked(self, positions: dict[str, int], ids: Mapping[str, int]) -> dict[str, int]:
        """Positions none of which lies beyond the end of its stream, or is of another one.

        Raises:
            DataLossError: one does, and `failOnDataLoss` is set
        """
        if any(position > self._tails[queue] for queue, position in positions.items()):
            # What is known may be older than the position.
            self._probe.insist(self._look)
        return {queue: self._where(queue, at, ids) for queue, at in positions.items()}

    def _where(self, queue: str, position: int, ids: Mapping[str, int]) -> int:
        """Where to go on; at the beginning, unless the stream is known to be the same."""
        tail = self._tails[queue]
        if self._is_another(ids)(queue):
            loss(
                self._options,
                f"data loss in stream '{queue}': the query continues at offset {position} of a "
                "stream that was deleted and declared again",
            )
            return 0
        if position <= tail:
            return position
        loss(
            self._options,
            f"data loss in stream '{queue}': the query continues at offset {position}, and the "
            f"stream ends before {tail}: it was deleted and declared again, or its broker has lost "
            "messages",
        )
        return tail if queue in ids and queue in self._ids else 0

    def _limit(self, limit: ReadLimit) -> int:
        """How many messages, by number and by their size as far as the newest ones tell it."""
        if isinstance(limit, ReadAllAvailable):
            return 1 << 62
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        if not self._mean_bytes:
            return rows
        return max(1, min(rows, int(self._options.max_bytes_per_trigger / self._mean_bytes)))


class StreamBatchReader(DataSourceReader):
    """For `spark.read`: a stream from one offset to another, once.

    Args:
        options: of the source
        columns: of the rows
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    @sentence_only()
    def partitions(self) -> list[InputPartition]:
        """The ranges between `startingOffsets` and `endingOffsets`.

        Raises:
            OptionError: they lie beyond the end of a stream, or in the wrong order
            DataLossError: `startingOffsets` are numbers that are gone, and `failOnDataLoss` is set
        """
        options = self._options
        with Probe(options) as probe:
            starts, stops, at = probe.insist(
                lambda: (
                    starting_positions(probe, options),
                    ending_positions(probe, options),
                    probe.position(),
                )
            )
        for queue, start in starts.items():
            if start > stops[queue]:
                refuse_beyond(queue, start, stops[queue])
        ranges = ranges_of(starts, stops)
        return list(partitions_of(ranges, self._options.min_partitions, at))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range; runs in a task."""
        return read(self._options, self._columns, partition)


def stream_reader(options: SourceOptions, columns: tuple[str, ...]) -> DataSourceStreamReader:
    """The reader of a streaming query in stream mode."""
    return StreamModeReader(options, columns)


def batch_reader(options: SourceOptions, columns: tuple[str, ...]) -> DataSourceReader:
    """The reader of `spark.read` in stream mode."""
    return StreamBatchReader(options, columns)


def partitions_of(
    ranges: Sequence[Range], min_partitions: int, at: Seen | None
) -> list[StreamPartition]:
    """Ranges for tasks, split so that there are so many at least."""
    return [StreamPartition(piece, at) for piece in split(ranges, min_partitions)]


def read(
    options: SourceOptions, columns: tuple[str, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; Spark makes one with nothing in it out of none."""
    if isinstance(partition, StreamPartition):
        with sentence_only():
            yield from RangeReader(options, columns, partition.range, partition.at).batches()


def starting_positions(probe: Probe, options: SourceOptions) -> dict[str, int]:
    """Where each stream begins for a query that has not read anything yet."""
    start = options.starting_offsets
    if isinstance(start, dict):
        return dict(start)
    return {queue: _start(probe, queue, start) for queue in options.queues}


def refuse_beyond(queue: str, start: int, stop: int) -> NoReturn:
    """A stream shall be read from where it, or what is read of it, has ended already.

    Raises:
        OptionError: always
    """
    refuse("startingOffsets", f"stream '{queue}' is read from {start} on, and ends before {stop}")


def _start(probe: Probe, queue: str, start: str | datetime) -> int:
    if isinstance(start, datetime):
        return probe.since(queue, start)
    if start == "latest":
        return probe.newest(queue).next
    return probe.oldest(queue) or 0


def ending_positions(probe: Probe, options: SourceOptions) -> dict[str, int]:
    """One past the last offset to read, per stream.

    Raises:
        OptionError: it lies beyond the end.
    """
    tails = {queue: probe.newest(queue).next for queue in options.queues}
    end = options.ending_offsets
    if not isinstance(end, dict):
        return tails
    for queue, stop in end.items():
        if stop > tails[queue]:
            refuse(
                "endingOffsets",
                f"{stop} lies beyond the end of stream '{queue}', which is {tails[queue]}",
            )
    return dict(end)
