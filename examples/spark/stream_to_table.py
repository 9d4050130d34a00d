"""A stream becomes a table, exactly once, through foreachBatch, although a batch is repeated.

Spark calls the function of `foreachBatch` again for a batch whose end it has not noted. From a
stream such a batch has exactly the same rows as the first time, so writing it to a place of its
own, which is overwritten, makes the table right. Here the program fails once between writing and
noting, and is started again.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import vouchmq.spark
from vouchmq.kit.bulk import BulkConnection

STREAM = "example.readings"


class StagedError(Exception):
    """The crash that this example plays."""


class Table:
    """A directory with a part for each batch."""

    def __init__(self, directory: Path, crash_at: int | None) -> None:
        self._directory = directory
        self._crash_at = crash_at

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch to its own part, in the place of what an earlier try left there."""
        part = self._directory / f"batch={batch_id}"
        batch.write.mode("overwrite").parquet(str(part))
        print(f"batch {batch_id} is written")
        if batch_id == self._crash_at:
            raise StagedError  # staged: written, but Spark has not noted it


def publish(url: str, count: int) -> None:
    """Publish readings of some sensors to a stream."""
    with BulkConnection.open(url) as connection, connection.channel() as channel:
        channel.declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_select()
        readings = (
            ("", STREAM, {"type": f"sensor-{number % 3}"}, str(number).encode())
            for number in range(count)
        )
        print(f"published {channel.publish_many(readings).confirmed}, confirmed")


def run(spark: SparkSession, url: str, checkpoint: Path, table: Table, batch: int) -> str:
    """Read what is in the stream now; how it ended."""
    query = (
        spark.readStream.format("amqp")
        .option("url", url)
        .option("queue", STREAM)
        .option("mode", "stream")
        .option("maxMessagesPerTrigger", batch)
        .load()
        .selectExpr("offset", "type AS sensor", "CAST(CAST(body AS STRING) AS BIGINT) AS value")
        .writeStream.foreachBatch(table.write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if "StagedError" not in str(error):
            raise
        return "crashed"
    return "ended"


def session() -> SparkSession:
    """A Spark on this machine that keeps its own log to itself."""
    builder = SparkSession.Builder().master("local[2]").appName("stream to table")
    builder = builder.config("spark.log.level", "OFF")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def main() -> None:
    """Publish, write with a crash, write again, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--count", type=int, default=6000, help="how many readings")
    args = parser.parse_args()
    lake = Path(tempfile.mkdtemp(prefix="readings-"))

    spark = session()
    vouchmq.spark.register(spark)
    publish(args.url, args.count)
    # Three batches; some brokers' offsets have gaps, so there may be a small fourth.
    size = args.count // 3
    for crash_at in (1, None):
        table = Table(lake / "table", crash_at)
        print(f"the query {run(spark, args.url, lake / 'checkpoint', table, size)}")

    rows = spark.read.parquet(str(lake / "table"))
    print(f"{rows.count()} rows, {rows.select('value').distinct().count()} different readings")
    for row in rows.groupBy("sensor").count().orderBy("sensor").collect():
        print(f"{row['sensor']}: {row['count']}")
    with BulkConnection.open(args.url) as connection, connection.channel() as channel:
        channel.delete(STREAM)


if __name__ == "__main__":
    main()
