"""A queue becomes Parquet, exactly once: orders are published, spooled, written, counted.

Mode `spool` acknowledges a message when it is on disk in the pipeline's own directory. The query
may be stopped or killed at any time and started again with the same checkpoint and spool: no
message is lost. None is written twice either: VouchMQ numbers its messages for that, elsewhere
`--dedupe messageId` does it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import vouchmq.spark
from vouchmq.kit.bulk import BulkConnection

QUEUE = "example.orders"


def publish(url: str, first: int, count: int) -> None:
    """Publish orders, each confirmed."""
    with BulkConnection.open(url) as connection, connection.channel() as channel:
        channel.declare(QUEUE, durable=True)
        channel.confirm_select()
        orders = (
            (
                *("", QUEUE, {"message_id": f"order-{number}", "delivery_mode": 2}),
                b'{"order": %d, "amount": %d}' % (number, number % 7),
            )
            for number in range(first, first + count)
        )
        print(f"published {channel.publish_many(orders, mandatory=True).confirmed}, confirmed")


def write(spark: SparkSession, url: str, lake: Path, dedupe: str | None) -> None:
    """Write what is in the queue now, in batches, and stop."""
    source = spark.readStream.format("amqp").option("url", url).option("queue", QUEUE)
    source = source.option("mode", "spool").option("spoolLocation", str(lake / "_spool"))
    if dedupe:
        source = source.option("dedupe", dedupe)
    query = (
        source.option("maxMessagesPerTrigger", 2000)
        .load()
        .selectExpr("message_id", "CAST(body AS STRING) AS body", "headers", "properties_raw")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(lake / "_checkpoint"))
        .trigger(availableNow=True)
        .start(str(lake / "orders"))
    )
    query.awaitTermination()


def session() -> SparkSession:
    """A Spark on this machine that keeps its own log to itself."""
    builder = SparkSession.Builder().master("local[2]").appName("queue to parquet")
    builder = builder.config("spark.log.level", "OFF")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def main() -> None:
    """Publish, write, publish more, write again from where the first query ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--count", type=int, default=5000, help="orders at a time, twice")
    parser.add_argument("--dedupe", help="seq (VouchMQ's default), messageId, none")
    parser.add_argument("--lake", type=Path, help="where to write; default: a new directory")
    args = parser.parse_args()
    lake = (args.lake or Path(tempfile.mkdtemp(prefix="orders-"))).resolve()

    spark = session()
    vouchmq.spark.register(spark)
    for run in range(2):
        publish(args.url, run * args.count, args.count)
        write(spark, args.url, lake, args.dedupe)
        orders = spark.read.parquet(str(lake / "orders"))  # through the sink's log
        rows, ids = orders.count(), orders.select("message_id").distinct().count()
        print(f"{rows} rows in Parquet, {ids} different orders")

    amount = "sum(CAST(get_json_object(body, '$.amount') AS BIGINT)) AS amount"
    print(f"the sum of all is {orders.selectExpr(amount).collect()[0]['amount']}")
    with BulkConnection.open(args.url) as connection, connection.channel() as channel:
        ready, consumers = channel.declare_passive(QUEUE)
        print(f"{ready} messages and {consumers} consumers are left")
        channel.delete(QUEUE)


if __name__ == "__main__":
    main()
