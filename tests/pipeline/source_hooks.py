"""The source of our crash tests: the product's, which stops at a marked point when it is told to.

Spark makes the driver-side process by itself and imports the class there by its name. What is to
happen stands in the file that the environment's `SOURCE_POINT` names: the name of a point. When it
is reached, a file beside it (`.reached`) says so, and the process waits to be killed.

    acking    Spark has finished a batch, which is not acked yet
    spooled   a batch is durable in the spool, and not acked yet
    spooling  half of a batch is in the spool's unfinished file
    logged    a batch is in the checkpoint's log, and its tasks are not described yet
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from vouchmq.spark.data_source import AmqpDataSource
from vouchmq.spark.source import spool
from vouchmq.spark.source.queue_mode import QueueReader
from vouchmq.spark.source.spool_mode import SpoolDriver, SpoolReader

POINTS = ("acking", "spooled", "spooling", "logged")


def is_meant(name: str) -> bool:
    """Whether this is the point to stop at."""
    path = os.environ.get("SOURCE_POINT")
    try:
        return path is not None and Path(path).read_text() == name
    except FileNotFoundError:
        return False


def reach(name: str) -> None:
    """At the point that is meant, wait for the end."""
    if is_meant(name):
        Path(os.environ["SOURCE_POINT"] + ".reached").write_text(f"{name} {os.getpid()}")
        time.sleep(600)


class StoppingSpool(spool.Spool):
    """A spool with the two points that are in the writing of a file."""

    def write(self, number: int, *rest: Any) -> None:
        if is_meant("spooling"):
            (self.directory / f"{number:012}.arrow.tmp").write_bytes(b"ARROW1\0\0half")
        reach("spooling")
        super().write(number, *rest)
        reach("spooled")


class StoppingQueueReader(QueueReader):
    """Stops before it acks, or before it describes tasks."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        if start["n"]:
            reach("acking")
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        reach("logged")
        return super().partitions(start, end)


class StoppingSpoolReader(SpoolReader):
    """The same, and its spool has points of its own."""

    @property
    def driver(self) -> SpoolDriver:
        is_new = self._driver is None
        driver = super().driver
        if is_new:
            driver._spool = StoppingSpool(self._directory)
        return driver

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        if start["file"]:
            reach("acking")
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        reach("logged")
        return super().partitions(start, end)


class StoppingSource(AmqpDataSource):
    """Format `amqp`, with points to stop at."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        reader = super().streamReader(schema)
        if isinstance(reader, SpoolReader):
            return StoppingSpoolReader(reader._options, reader._columns)
        assert isinstance(reader, QueueReader)
        return StoppingQueueReader(reader._options, reader._columns)
