"""How fast Spark reads a ledger as JSON into nothing: what the audit's rows are held against.

With the schema that the ledger has, and letting Spark find one out, which is what the audit must
never do: it costs a pass of its own, and types would change with what happens to be in a file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.pipeline.ledger_lines import Ledger
from bench.pipeline.row import Demand, Place, Play, Row, Values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES: Final = 1_000_000
EXPLICIT: Final = "explicit_schema"
INFERRED: Final = "inferred_schema"


def read_into_nothing(spark: SparkSession, directory: Path, line_count: int) -> float:
    """Read all lines with the ledger's own schema and keep nothing; lines per second."""
    from vouchmq.spark import ledger_schema

    began = time.perf_counter()
    lines = spark.read.schema(ledger_schema()).json(str(directory))
    lines.write.format("noop").mode("overwrite").save()
    return line_count / (time.perf_counter() - began)


def read_inferred(spark: SparkSession, directory: Path, line_count: int) -> float:
    """The same with a schema that Spark finds out by itself."""
    began = time.perf_counter()
    spark.read.json(str(directory)).write.format("noop").mode("overwrite").save()
    return line_count / (time.perf_counter() - began)


@contextmanager
def measure(place: Place) -> Iterator[Play]:
    """Write a ledger once, read it once for warmth, then as asked."""
    directory = place.directory / "ledger"
    line_count = Ledger(directory, place.scaled(MESSAGES)).write()
    spark = place.session()
    read_into_nothing(spark, directory, line_count)
    ways = {EXPLICIT: read_into_nothing, INFERRED: read_inferred}

    def go(arm: str) -> Values:
        return {"lines_per_s": ways[arm](spark, directory, line_count)}

    yield go


ROWS: Final = (
    Row(
        "ledger_json",
        "a ledger of whole lives in runs of 16, read as JSON into nothing",
        (EXPLICIT, INFERRED),
        measure,
        (
            Demand("lines_per_s", EXPLICIT),
            # Reading twice must cost more than reading once, or the row measures nothing.
            Demand("lines_per_s", EXPLICIT, INFERRED, at_least=1.5),
        ),
        servers=(),
    ),
)
