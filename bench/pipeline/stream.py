"""What reading a stream from Spark gives: `spark.read`, all columns, two tasks, beside pika's loop.

Rows go into Spark's `noop` sink, which takes every column of every row and keeps none. The first
read, in which Spark starts its workers, does not count. `json` is Spark's own reader on the same
rows as JSON lines in a file: what a source in the JVM can do, with no broker behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bench.pipeline import loops
from bench.pipeline.row import Demand, Place, Play, Row, RowError, Values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM: Final = "bench.stream"
MESSAGES: Final = 200_000
TASKS: Final = 2
PIKA, SPARK, JSON = "pika", "spark", "json"


@contextmanager
def measure(place: Place) -> Iterator[Play]:
    """The same stream again and again, from its beginning."""
    import vouchmq.spark

    count = place.scaled(MESSAGES)
    spark = place.session()
    vouchmq.spark.register(spark)
    loops.delete(place.url, STREAM)
    loops.fill(place.url, STREAM, count, stream=True)
    reader = spark.read.format("amqp").option("url", place.url).option("queue", STREAM)
    rows = reader.option("mode", "stream").option("minPartitions", TASKS).load()
    if (there := rows.count()) != count:
        raise RowError(f"{there} of {count} messages came")
    lines = str(place.directory / "lines")
    rows.write.mode("overwrite").json(lines)
    from_json = spark.read.schema(rows.schema).json(lines)

    def play(arm: str) -> Values:
        if arm == PIKA:
            rate = loops.pika_consume(place.url, STREAM, count, stream=True)
        else:
            rate = count / seconds(rows if arm == SPARK else from_json)
        return {"rows_per_s": round(rate)}

    yield play
    loops.delete(place.url, STREAM)


def seconds(rows: DataFrame) -> float:
    """How long it takes to read all of them."""
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


ROWS: Final = (
    Row(
        "spark_stream",
        "spark.read of a stream, all columns, two tasks",
        (PIKA, SPARK, JSON),
        measure,
        (
            Demand("rows_per_s", SPARK, PIKA, at_least=1.5),
            Demand("rows_per_s", SPARK, JSON),
        ),
    ),
)
