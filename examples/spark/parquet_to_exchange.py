"""Parquet is published to an exchange: each row confirmed, none silently unroutable.

A task of the job succeeds when all its messages are confirmed, which on VouchMQ means: on disk. A
row that no queue takes fails the job with the broker's own words, unless `onUnroutable` says to
count. A job that is run again publishes again: `messageId` lets consumers, or a broker that
de-duplicates, tell.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import vouchmq.spark
from vouchmq.kit.bulk import BulkConnection

EXCHANGE = "example.events"
QUEUES = {"example.north": "order.north", "example.south": "order.south"}


def declare(url: str) -> None:
    """A topic exchange, and a queue for each half of the country."""
    with BulkConnection.open(url) as connection, connection.channel() as channel:
        channel.exchange_declare(EXCHANGE, "topic", durable=True)
        for queue, key in QUEUES.items():
            channel.declare(queue, durable=True)
            channel.bind(queue, EXCHANGE, key)


def make_parquet(spark: SparkSession, path: Path, count: int) -> DataFrame:
    """Some orders, as another system might have left them."""
    spark.range(count).selectExpr(
        "concat('order-', id) AS id",
        "if(id % 2 = 0, 'north', 'south') AS region",
        "id % 100 AS amount",
    ).write.parquet(str(path))
    return spark.read.parquet(str(path))


def publish(orders: DataFrame, url: str) -> None:
    """Publish a row as a message; columns that are not named keep AMQP's defaults."""
    messages = orders.selectExpr(
        "to_json(struct(id, amount)) AS body",
        "concat('order.', region) AS routing_key",
        "id AS message_id",
        "'application/json' AS content_type",
        "map('region', region) AS headers",
    )
    sink = messages.write.format("amqp").option("url", url).option("exchange", EXCHANGE)
    sink.mode("append").save()


def session() -> SparkSession:
    """A Spark on this machine that keeps its own log to itself."""
    builder = SparkSession.Builder().master("local[2]").appName("parquet to exchange")
    builder = builder.config("spark.log.level", "OFF")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def main() -> None:
    """Publish a Parquet file, look into the queues, then publish what nobody takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--count", type=int, default=10_000, help="how many orders")
    args = parser.parse_args()

    spark = session()
    vouchmq.spark.register(spark)
    declare(args.url)
    orders = make_parquet(spark, Path(tempfile.mkdtemp(prefix="orders-")) / "orders", args.count)
    publish(orders, args.url)
    with BulkConnection.open(args.url) as connection, connection.channel() as channel:
        for queue in QUEUES:
            print(f"{queue} holds {channel.declare_passive(queue)[0]}")
        first = channel.get("example.north", no_ack=True)
        if first:
            print(f"one of them, by {first[3]}: {first[5].decode()}")

    try:
        publish(orders.limit(1).selectExpr("id", "'west' AS region", "amount"), args.url)
    except Exception as error:  # noqa: BLE001 - whatever Spark wraps them in, they are in it
        words = re.search(r"unroutable: \d+ [^\n]*", str(error))
        print(f"refused: {words[0] if words else error}")
    with BulkConnection.open(args.url) as connection, connection.channel() as channel:
        for queue in QUEUES:
            channel.delete(queue)
        channel.exchange_delete(EXCHANGE)


if __name__ == "__main__":
    main()
