"""Modes queue and spool as a user of Spark has them: rows arrive, errors say why, stop is stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.broker_process import Broker
from tests.pipeline import source_world as world
from tests.pipeline.source_world import channel_to, fill
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# On a machine that has more to do, a first query may take a minute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def reading(
    spark: SparkSession, broker: Broker, queue: str, schema: str = "", **options: Any
) -> DataFrame:
    stream = spark.readStream.format("amqp").option("url", broker.url).option("queue", queue)
    for name, value in options.items():
        stream = stream.option(name, str(value))
    return (stream.schema(schema) if schema else stream).load()


def to_files(rows: DataFrame, directory: Path) -> StreamingQuery:
    writing = rows.writeStream.format("parquet").option("path", str(directory / "out"))
    writing = writing.option("checkpointLocation", str(directory / "checkpoint"))
    return writing.trigger(availableNow=True).start()


@pytest.fixture
def queue(vouch: Broker, fresh: Callable[[str], str]) -> str:
    name = fresh("spark")
    world.declare(vouch.url, name)
    return name


@pytest.mark.parametrize("mode", ["queue", "spool"])
def test_a_queue_becomes_files_and_is_empty_then(
    spark: SparkSession, vouch: Broker, queue: str, tmp_path: Path, mode: str
) -> None:
    fill(vouch.url, queue, range(3000), headers={"kind": "x"})
    options: dict[str, Any] = {"maxMessagesPerTrigger": 2000}
    if mode == "spool":
        options["spoolLocation"] = tmp_path / "spool"
    rows = reading(spark, vouch, queue, **options)
    query = to_files(rows, tmp_path)
    assert query.awaitTermination(200)
    table = spark.read.parquet(str(tmp_path / "out"))
    assert table.count() == 3000
    first = table.where("message_id = '7'").collect()[0]
    assert (first["queue"], first["body"], first["headers"]["kind"]) == (queue, b"7", "x")
    assert (first["offset"], first["redelivered"]) == (8, False)
    assert world.settles_at(vouch.url, queue, 0)


def test_stopping_a_query_gives_its_messages_back(
    spark: SparkSession, vouch: Broker, queue: str
) -> None:
    fill(vouch.url, queue, range(500))

    def never_ends(_: DataFrame, __: int) -> None:
        time.sleep(600)

    query = reading(spark, vouch, queue, "body binary").writeStream.foreachBatch(never_ends).start()
    try:
        with channel_to(vouch.url) as channel:
            wait_until(lambda: channel.declare_passive(queue) == (0, 1), limit_s=200)
    finally:
        query.stop()
    assert world.settles_at(vouch.url, queue, 500)
    with channel_to(vouch.url) as channel:
        assert channel.declare_passive(queue) == (500, 0)


def test_the_brokers_words_are_the_querys_error(
    spark: SparkSession, vouch: Broker, tmp_path: Path
) -> None:
    query = to_files(reading(spark, vouch, "nowhere", "body binary"), tmp_path)
    with pytest.raises(Exception, match="404 NOT_FOUND - no queue 'nowhere' in vhost '/'"):
        query.awaitTermination(200)


def test_a_bad_option_is_an_error_at_load(spark: SparkSession, vouch: Broker) -> None:
    with pytest.raises(Exception, match="prefetch: 5 is below maxMessagesPerTrigger"):
        reading(spark, vouch, "any", prefetch=5)
