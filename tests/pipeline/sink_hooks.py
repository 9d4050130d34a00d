"""The sink of our crash tests: the product's, whose tasks fail in their midst when told to.

Workers import the class by its name, so what they shall do comes by the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceWriter

from vouchmq.spark.columns import check_published
from vouchmq.spark.options import SinkOptions
from vouchmq.spark.sink import BatchWriter, Published
from vouchmq.spark.source import AmqpDataSource

FAILURES = "SINK_FAILURES"
# So many batches of rows are confirmed before a task fails.
CONFIRMED = 3


class FailingWriter(BatchWriter):
    """Fails in the first so many attempts of each task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return super().write(self._broken_off(iterator))

    def _broken_off(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        for number, batch in enumerate(batches):
            if number == CONFIRMED and attempt < int(os.environ[FAILURES]):
                raise RuntimeError(f"attempt {attempt} fails on purpose")
            yield batch


class FailingSink(AmqpDataSource):
    """The format with that writer."""

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        check_published(schema)
        return FailingWriter(SinkOptions.parse(self.options))
