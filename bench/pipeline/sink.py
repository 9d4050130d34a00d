"""What writing from Spark gives: two tasks, confirmed and mandatory, beside who waits for each.

The rows are kept by Spark beforehand, so that only their way to the broker is measured; the time
that Spark takes to plan a write is in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import vouchmq.spark
from bench.pipeline import bulk, loops
from bench.pipeline.row import Demand, Place, Play, Row, RowError, Values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE: Final = "bench.sink"
MESSAGES: Final = 60_000
WARM_UP: Final = 5_000
PIKA_PUBLISHES: Final = 2_000
TASKS: Final = 2
PIKA: Final = "pika"
BULK: Final = "bulk"
SINK: Final = "sink"


@contextmanager
def measure(place: Place) -> Iterator[Play]:
    """Into a durable queue that is new for each go."""
    few, many = place.scaled(PIKA_PUBLISHES), place.scaled(MESSAGES)
    spark = place.session()
    vouchmq.spark.register(spark)
    rows = kept(spark, many)
    loops.delete(place.url, QUEUE)
    loops.pika_publish(place.url, QUEUE, 1)
    write(kept(spark, WARM_UP), place.url, WARM_UP)

    def play(arm: str) -> Values:
        loops.delete(place.url, QUEUE)
        # Declares the queue, too.
        count = few if arm == PIKA else 1
        rate = loops.pika_publish(place.url, QUEUE, count)
        if arm == BULK:
            rate = bulk.publish_all(place.url, QUEUE, many)
        elif arm == SINK:
            rate = write(rows, place.url, many)
        if arm != PIKA:
            count += many
        if (found := loops.ready_count(place.url, QUEUE)) != count:
            raise RowError(f"{count} were confirmed, {found} are there")
        return {"rows_per_s": round(rate)}

    yield play
    rows.unpersist()
    loops.delete(place.url, QUEUE)


def kept(spark: SparkSession, count: int) -> DataFrame:
    """Rows like the messages that pika publishes, in the memory of Spark."""
    rows = spark.range(0, count, 1, TASKS).selectExpr(
        f"cast(repeat('x', {loops.BODY_BYTES}) as binary) body",
        "'application/json' content_type",
        "concat('m-', lpad(id, 12, '0')) message_id",
        "map('tenant', 'north', 'attempt', '1') headers",
    )
    rows = rows.persist()
    if rows.count() != count:
        raise RowError("Spark has made other rows than it was asked for")
    return rows


def write(rows: DataFrame, url: str, count: int) -> float:
    """Write all of them; rows per second."""
    began = time.perf_counter()
    writer = rows.write.format("amqp").mode("append").option("url", url)
    writer.option("routingKey", QUEUE).save()
    return count / (time.perf_counter() - began)


ROWS: Final = (
    Row(
        "sink",
        f"writing from Spark with {TASKS} tasks, confirmed and mandatory",
        (PIKA, BULK, SINK),
        measure,
        (
            Demand("rows_per_s", SINK, PIKA, at_least=10.0),
            Demand("rows_per_s", SINK, BULK),
        ),
    ),
)
