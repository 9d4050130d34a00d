"""What reading a queue from Spark gives, in modes spool and queue, beside a plain loop with pika.

All columns, into Parquet files: the spool's sync and the sink's log are in it. It is measured from
when 200,000 rows have gone through it, by when the JVM has compiled what it runs, to the end of its
last batch: what it does for hours. What the broker sends ahead meanwhile counts for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import count as numbers
from typing import TYPE_CHECKING, Any, Final

import vouchmq.spark
from bench.pipeline import loops
from bench.pipeline.row import Demand, Place, Play, Row, RowError, Values

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

QUEUE: Final = "bench.source"
PIKA: Final = "pika"
SOURCE: Final = "source"
PIKA_MESSAGES: Final = 40_000
PATIENCE_S: Final = 600


@dataclass(frozen=True)
class Shape:
    """How a mode is measured: batches that only warm up, and all of them."""

    mode: str
    batch: int
    warm_up: int
    batches: int


SPOOL: Final = Shape("spool", 50_000, 4, 8)
IN_QUEUE: Final = Shape("queue", 20_000, 10, 16)


def measuring(shape: Shape) -> Callable[[Place], AbstractContextManager[Play]]:
    """The measure of a mode."""

    @contextmanager
    def measure(place: Place) -> Iterator[Play]:
        spark = place.session()
        vouchmq.spark.register(spark)
        loops.delete(place.url, QUEUE)
        number = numbers()

        def play(arm: str) -> Values:
            if arm == PIKA:
                count = place.scaled(PIKA_MESSAGES)
                loops.fill(place.url, QUEUE, count)
                rate = loops.pika_consume(place.url, QUEUE, count)
            else:
                batch = place.scaled(shape.batch)
                loops.fill(place.url, QUEUE, batch * shape.batches)
                rate = read(spark, place, shape, batch, next(number))
            wait_for_acks(place.url)
            return {"rows_per_s": round(rate)}

        yield play
        loops.delete(place.url, QUEUE)

    return measure


def read(spark: SparkSession, place: Place, shape: Shape, batch: int, number: int) -> float:
    """Read the queue until it is empty; rows per second of the warm part.

    Raises:
        RowError: not all came, or it took too long
    """
    directory = place.directory / f"{shape.mode}-{number}"
    stream = spark.readStream.format("amqp").option("url", place.url).option("queue", QUEUE)
    stream = stream.option("maxMessagesPerTrigger", batch)
    if shape.mode == SPOOL.mode:
        stream = stream.option("spoolLocation", str(directory / "spool"))
    writer = stream.load().writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.start(str(directory / "rows"))
    if not query.awaitTermination(PATIENCE_S):
        query.stop()
        raise RowError(f"a query was not done after {PATIENCE_S} s")
    # Parsed from the listener's JSON, whatever form this version of Spark gives it.
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    rows = [int(each["numInputRows"]) for each in batches]
    if sum(rows) != batch * shape.batches or len(rows) < shape.batches:
        raise RowError(f"batches of {rows} rows came")
    began_s, ended_s = (end_s(batches[at]) for at in (shape.warm_up - 1, -1))
    return sum(rows[shape.warm_up :]) / (ended_s - began_s)


def end_s(progress: Any) -> float:
    """When a batch was done, in seconds since 1970."""
    began = datetime.fromisoformat(str(progress["timestamp"]))
    return began.timestamp() + int(progress["durationMs"]["triggerExecution"]) / 1000


def wait_for_acks(url: str) -> None:
    """Until the queue is empty and stays so without its consumer.

    Raises:
        RowError: messages came back
    """
    deadline = time.monotonic() + loops.PATIENCE_S
    while left := loops.ready_count(url, QUEUE):
        if time.monotonic() > deadline:
            raise RowError(f"{left} messages are still there")
        time.sleep(0.1)


def row(shape: Shape, at_least: float) -> Row:
    """The row of a mode."""
    return Row(
        f"source_{shape.mode}",
        f"reading a queue from Spark into Parquet, mode {shape.mode}, batches of {shape.batch}",
        (PIKA, SOURCE),
        measuring(shape),
        (Demand("rows_per_s", SOURCE, PIKA, at_least=at_least),),
    )


ROWS: Final = (row(SPOOL, 2.0), row(IN_QUEUE, 1.0))
