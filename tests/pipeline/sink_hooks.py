"""The sink of our crash tests: the product's, whose tasks fail or stand still when told to.

Workers import the class by its name, so what they shall do comes by the environment:
    SINK_FAILURES   so often each task of a batch write fails in its midst
    SINK_PAUSE_AT   the batch of a query whose tasks stand still in their midst, to be killed
    SINK_REACHED    the directory where such a task leaves a file named after its query
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

from vouchmq.spark.data_source import AmqpDataSource
from vouchmq.spark.options import SinkOptions
from vouchmq.spark.sink.sink import (
    BatchWriter,
    Published,
    StreamWriter,
    batch_writer,
    stream_writer,
)

# So many record batches are confirmed by then.
CONFIRMED = 3


def context() -> TaskContext:
    """That of the task we are in."""
    found = TaskContext.get()
    assert found is not None
    return found


class FailingWriter(BatchWriter):
    """Fails in the first so many attempts of each task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return super().write(self._broken_off(iterator))

    def _broken_off(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = context().attemptNumber()
        for number, batch in enumerate(batches):
            if number == CONFIRMED and attempt < int(os.environ.get("SINK_FAILURES", "0")):
                raise RuntimeError(f"attempt {attempt} fails on purpose")
            yield batch


class PausingWriter(StreamWriter):
    """Stands still in one batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return super().write(self._held_up(iterator))

    def _held_up(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        is_meant = context().getLocalProperty("streaming.sql.batchId") == os.environ.get(
            "SINK_PAUSE_AT"
        )
        for number, batch in enumerate(batches):
            if is_meant and number == CONFIRMED:
                query = str(context().getLocalProperty("sql.streaming.queryId"))
                (Path(os.environ["SINK_REACHED"]) / query).touch()
                time.sleep(600)
            yield batch


class HookedSink(AmqpDataSource):
    """The format with those writers."""

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        options = SinkOptions.parse(self.options)
        batch_writer(options, schema)
        return FailingWriter(options)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = SinkOptions.parse(self.options)
        stream_writer(options, schema)
        return PausingWriter(options)
