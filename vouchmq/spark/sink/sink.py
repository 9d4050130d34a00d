"""Writes data frames to a broker: a task is done when the broker has confirmed each of its rows.

Each task opens a connection of its own at its first rows and publishes record batch by record
batch, mandatory and confirmed. Nacked rows are published again, a little later each time; whatever
else goes wrong fails the task with the broker's words, and Spark may run it again: at least once,
with ids that stay the same. The driver's part hears of totals only, in a process of its own.

Spec: CONF-05, CONF-08
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from vouchmq.kit.bulk import BulkConnection
from vouchmq.kit.bulk.errors import BulkClosed, BulkError, BulkTimeout
from vouchmq.kit.bulk.publish import RowError as UnsentError
from vouchmq.spark.columns import check_published
from vouchmq.spark.errors import sentence_only
from vouchmq.spark.options import SinkOptions
from vouchmq.spark.sink.publishes import Publish, Publisher, RowError, check_ids

if TYPE_CHECKING:
    import pyarrow as pa

    from vouchmq.kit.bulk import BulkChannel
    from vouchmq.kit.bulk.result import ReturnedRow

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
# Where Spark tells a task which batch of which query it belongs to.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class SinkError(RuntimeError):
    """A task could not publish all of its rows; the text holds the broker's words."""


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """What one task has done.

    Attributes:
        rows: confirmed rows
        unroutable: how many of them reached no queue, with `onUnroutable` count
        nacked: how often one was nacked before it was confirmed
    """

    rows: int = 0
    unroutable: int = 0
    nacked: int = 0

    def __add__(self, other: Published) -> Published:
        return Published(
            self.rows + other.rows,
            self.unroutable + other.unroutable,
            self.nacked + other.nacked,
        )


def batch_writer(options: SinkOptions, schema: Any) -> DataSourceArrowWriter:
    """The writer of `df.write`.

    Raises:
        OptionError: the ids that are asked for cannot be made
        SchemaError: a column cannot be published, or one is missing
    """
    check_ids(options, check_published(schema), is_stream=False)
    return BatchWriter(options)


def stream_writer(options: SinkOptions, schema: Any) -> DataSourceStreamArrowWriter:
    """The writer of `df.writeStream`.

    Raises:
        OptionError: the ids that are asked for cannot be made
        SchemaError: a column cannot be published, or one is missing
    """
    check_ids(options, check_published(schema), is_stream=True)
    return StreamWriter(options)


class BatchWriter(DataSourceArrowWriter):
    """Runs in each task of a batch write; `commit` and `abort` run on the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @sentence_only()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a partition.

        Raises:
            SinkError: not every row is confirmed
            RowError: a row cannot be published
        """
        return publish_task(self._options, iterator, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks have published their rows; log what was returned or retried."""
        _tell("write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task has failed for good: what others have published stays published."""
        _tell_abort("write", messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Runs in each task of each batch of a query; `commit` and `abort` run on the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @sentence_only()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a partition of a batch.

        Raises:
            SinkError: not every row is confirmed
            RowError: a row cannot be published
        """
        return publish_task(self._options, iterator, _position())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks of a batch are done."""
        _tell(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A task has failed for good: what others have published stays published."""
        _tell_abort(f"batch {batchId}", messages)


def publish_task(
    options: SinkOptions,
    batches: Iterator[pa.RecordBatch],
    position: str | None,
) -> Published:
    """Publish all rows of a task and wait for their confirms.

    Args:
        options: where to, and how
        batches: the rows
        position: what their ids by position begin with, if they have such

    Raises:
        SinkError: not every row is confirmed
        RowError: a row cannot be published; nothing behind it was sent
    """
    publisher = Publisher(options, position)
    done = Published()
    task: _Task | None = None
    first = 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            # A task without rows needs no connection.
            task = task or _Task(options, position or "")
            done += task.publish(publisher, batch, first)
            first += batch.num_rows
    except BulkClosed as closed:
        raise SinkError(f"the broker closed the {_what(closed)}: {closed}") from None
    except BulkTimeout as late:
        raise SinkError(f"confirmTimeoutMs: {late}") from None
    except BulkError as error:
        raise SinkError(str(error)) from None
    finally:
        if task is not None:
            task.close()
    return done


class _Task:
    """The connection of one task."""

    def __init__(self, options: SinkOptions, name: str) -> None:
        self._options = options
        with ExitStack() as unless_it_opens:
            try:
                self._connection = BulkConnection.open(
                    options.url,
                    connect_timeout_s=options.connect_timeout_ms / 1000,
                    name=f"vouchmq.spark sink {name}".rstrip(),
                )
                unless_it_opens.callback(self._connection.close)
                self._channel: BulkChannel = self._connection.channel()
                self._channel.confirm_select()
            except (BulkError, ValueError) as error:
                raise SinkError(f"no connection: {error}") from None
            unless_it_opens.pop_all()

    def publish(self, publisher: Publisher, batch: pa.RecordBatch, first: int) -> Published:
        """Publish a batch until all of it is confirmed."""
        options = self._options
        size = batch.num_rows
        wanted: Sequence[int] = range(size)
        unroutable = nacked = attempt = 0
        while True:
            rows: Iterator[Publish] = publisher.publishes(batch, first)
            if attempt:
                chosen = set(wanted)
                rows = compress(rows, (row in chosen for row in range(size)))
            try:
                result = self._channel.publish_many(
                    rows,
                    mandatory=options.mandatory,
                    window=options.confirm_window,
                    timeout_s=options.confirm_timeout_ms / 1000,
                )
            except UnsentError as error:
                # It counts the rows that it was given.
                raise RowError(f"row {first + wanted[error.row]}: {error.reason}") from None
            if result.returned and options.on_unroutable == "fail":
                _fail_unroutable(result.returned)
            unroutable += len(result.returned)
            if not result.nacked:
                return Published(size, unroutable, nacked)
            nacked += len(result.nacked)
            wanted = [wanted[row] for row in sorted(result.nacked)]
            if attempt == options.nack_retries:
                _fail_nacked(publisher, batch, first, wanted, attempt)
            attempt += 1
            self._pause(attempt)

    def _pause(self, attempt: int) -> None:
        """Wait before publishing again; heartbeats go on meanwhile."""
        end = time.monotonic() + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1))
        while (left := end - time.monotonic()) > 0:
            self._connection.poll(left)

    def close(self) -> None:
        self._connection.close()


def _fail_unroutable(returned: Sequence[ReturnedRow]) -> NoReturn:
    _, code, text, exchange, key = returned[0]
    more = f" ({len(returned)} rows)" if len(returned) > 1 else ""
    raise SinkError(f"unroutable: {code} {text} exchange={exchange} key={key}{more}")


def _fail_nacked(
    publisher: Publisher, batch: pa.RecordBatch, first: int, rows: Sequence[int], retries: int
) -> NoReturn:
    exchange, key, _, _ = next(publisher.publishes(batch.slice(rows[0], 1), first + rows[0]))
    raise SinkError(
        f"nacked: {len(rows)} of {batch.num_rows} rows, after {retries} retries; the first is row "
        f"{first + rows[0]} exchange={exchange} key={key}"
    )


def _what(closed: BulkClosed) -> str:
    return "connection" if closed.is_connection else "channel"


def _position() -> str | None:
    """What is the same when Spark runs this task, or this batch, again."""
    context = TaskContext.get()
    if context is None:
        return None
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if query is None or batch is None:
        return None
    return f"{query}/{batch}/{context.partitionId()}"


def _total(messages: Sequence[WriterCommitMessage | None]) -> Published:
    return sum((each for each in messages if isinstance(each, Published)), Published())


def _tell(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    total = _total(messages)
    log.info("amqp %s: %d rows confirmed, %d nacks", what, total.rows, total.nacked)
    if total.unroutable:
        log.warning("amqp %s: %d of %d rows unroutable", what, total.unroutable, total.rows)


def _tell_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    total = _total(messages)
    log.warning("amqp %s failed; its other tasks have published %d rows", what, total.rows)
