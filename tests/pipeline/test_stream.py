"""Stream mode through Spark: batch reads, streaming queries into a table, how they end and fail."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.broker_process import Broker, BrokerProcess
from tests.pipeline.streams import declare, delete, publish
from tests.waiting import wait_until
from vouchmq.kit.bulk import BulkConnection

# A busy machine takes a minute to start a JVM and its Python workers.
pytestmark = pytest.mark.timeout(300)

Fresh = Callable[[str], str]


@pytest.fixture
def url(either: Broker) -> str:
    """Both brokers, one after the other."""
    return either.url


@pytest.fixture
def stream(url: str, fresh: Fresh) -> str:
    """A stream that is empty."""
    name = fresh("stream")
    declare(url, name)
    return name


def reading(source: Any, where: str, name: str, **more: object) -> Any:
    """A reader, of a batch or a stream, with its options set."""
    source = source.format("amqp")
    for option, value in {"url": where, "queue": name, "mode": "stream", **more}.items():
        source = source.option(option, value)
    return source


def into(rows: DataFrame, directory: Path, **trigger: Any) -> StreamingQuery:
    """A query that writes Parquet."""
    writer = rows.writeStream.format("parquet").option("path", str(directory / "out"))
    return (
        writer.option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(**trigger)
        .start()
    )


def table(spark: SparkSession, directory: Path) -> list[tuple[int, str]]:
    """What the sink's log holds."""
    rows = spark.read.parquet(str(directory / "out")).select("offset", "message_id")
    return sorted((row.offset, row.message_id) for row in rows.collect())


def test_a_stream_is_read_as_a_batch(spark: SparkSession, url: str, stream: str) -> None:
    empty = reading(spark.read, url, stream).load()
    assert empty.count() == 0
    publish(url, stream, 0, 12_000)
    rows = reading(spark.read, url, stream, minPartitions=2).load()
    assert rows.rdd.getNumPartitions() == 2
    row = rows.selectExpr(
        "count(*) n", "count(distinct offset) d", "min(offset) a", "max(offset) b"
    ).collect()[0]
    assert (row.n, row.d, row.a, row.b) == (12_000, 12_000, 0, 11_999)
    part = (
        reading(spark.read, url, stream, startingOffsets=f'{{"{stream}": 11990}}')
        .schema("message_id string, body binary")
        .load()
    )
    assert part.columns == ["message_id", "body"]
    assert [row.message_id for row in part.collect()] == [str(n) for n in range(11_990, 12_000)]


@pytest.mark.parametrize(
    "either", ["vouch", pytest.param("rabbit", marks=pytest.mark.campaign)], indirect=True
)
def test_a_query_reads_each_message_once_over_restarts(
    spark: SparkSession, url: str, stream: str, tmp_path: Path
) -> None:
    publish(url, stream, 0, 1000)
    for stop in (1000, 1600):
        if stop > 1000:
            publish(url, stream, 1000, stop)
        rows = reading(spark.readStream, url, stream, maxMessagesPerTrigger=400).load()
        query = into(rows, tmp_path, availableNow=True)
        query.awaitTermination()
        batches = [p for p in query.recentProgress if p.numInputRows]
        assert [p.numInputRows for p in batches] == (
            [400, 400, 200] if stop == 1000 else [400, 200]
        )
        assert table(spark, tmp_path) == [(n, str(n)) for n in range(stop)]


def test_a_query_goes_on_and_stops_at_once(
    spark: SparkSession, vouch: BrokerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    url, stream = vouch.url, fresh("stream")
    declare(url, stream)
    query = into(
        reading(spark.readStream, url, stream).load(), tmp_path, processingTime="0 seconds"
    )
    try:
        for stop in (300, 301):
            publish(url, stream, 0 if stop == 300 else 300, stop)
            until = time.monotonic() + 60
            while time.monotonic() < until:
                query.processAllAvailable()
                if len(table(spark, tmp_path)) == stop:
                    break
            assert table(spark, tmp_path) == [(n, str(n)) for n in range(stop)]
    finally:
        began = time.monotonic()
        query.stop()
    assert time.monotonic() - began < 10
    assert query.exception() is None
    with BulkConnection.open(url) as connection:
        wait_until(lambda: connection.channel().declare_passive(stream)[1] == 0)


def test_a_batch_read_is_frozen_at_its_first_action(
    spark: SparkSession, vouch: BrokerProcess, fresh: Fresh
) -> None:
    """As the manual says: the options are asked for anew with each load, view and SELECT."""
    url, stream = vouch.url, fresh("stream")
    declare(url, stream)
    publish(url, stream, 0, 10)
    rows = reading(spark.read, url, stream).load()
    given = f"USING amqp OPTIONS (url '{url}', queue '{stream}', mode 'stream')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW frozen {given}")
    spark.sql("CREATE TABLE thawed (body BINARY) USING amqp")
    asked_anew = f"FROM thawed WITH (url = '{url}', queue = '{stream}', mode = 'stream') SELECT *"
    try:
        for published in (10, 15):
            publish(url, stream, 10, published)
            assert rows.count() == 10
            assert spark.sql("SELECT * FROM frozen").count() == 10
            assert spark.sql(asked_anew).count() == published
        assert reading(spark.read, url, stream).load().count() == 15
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW frozen {given}")
        assert spark.sql("SELECT * FROM frozen").count() == 15
    finally:
        spark.sql("DROP TABLE thawed")
        spark.catalog.dropTempView("frozen")


@pytest.mark.slow
def test_a_query_from_latest_on_reads_nothing_older(
    spark: SparkSession, vouch: BrokerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    """Spark asks where it begins again and again, while messages come; also for a repetition."""
    url, stream = vouch.url, fresh("stream")
    declare(url, stream)
    publish(url, stream, 0, 1000)
    numbers = count(1000, 7)
    rows = reading(
        spark.readStream, url, stream, startingOffsets="latest", maxMessagesPerTrigger=50
    ).load()

    def first_read() -> int:
        """The first offset of a query that runs while messages come."""
        query = into(rows, tmp_path, processingTime="0 seconds")

        def publish_on() -> None:
            assert query.exception() is None
            number = next(numbers)
            publish(url, stream, number, number + 7)

        wait_until(
            lambda: sum(each.numInputRows for each in query.recentProgress) > 100,
            "the query reads nothing",
            between=publish_on,
        )
        query.stop()
        assert max(each.numInputRows for each in query.recentProgress) <= 50
        found = table(spark, tmp_path)
        first = found[0][0]
        assert found == [(at, str(at)) for at in range(first, first + len(found))]
        return first

    begins = first_read()
    assert begins >= 1000
    # As if it had died in its first batch.
    for kept in (tmp_path / "checkpoint").glob("*/*"):
        if kept.parent.name == "commits" or kept.name != "0":
            kept.unlink()
    shutil.rmtree(tmp_path / "out")
    assert first_read() == begins


def test_what_is_lost_fails_the_query_with_the_reason(
    spark: SparkSession, vouch: BrokerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    url, stream = vouch.url, fresh("stream")
    declare(url, stream)
    publish(url, stream, 0, 50)
    into(
        reading(spark.readStream, url, stream).load(), tmp_path, availableNow=True
    ).awaitTermination()
    delete(url, stream)
    declare(url, stream)
    publish(url, stream, 0, 3)
    query = into(reading(spark.readStream, url, stream).load(), tmp_path, availableNow=True)
    with pytest.raises(
        PySparkException, match="at offset 50 of a stream that was deleted and declared again"
    ):
        query.awaitTermination()
    rows = reading(spark.readStream, url, stream, failOnDataLoss="false").load()
    into(rows, tmp_path, availableNow=True).awaitTermination()
    assert len(table(spark, tmp_path)) == 53


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"mode": "queue"}, "spark.read cannot read a queue"),
        ({"startingOffsets": "yesterday"}, "option startingOffsets: 'yesterday'"),
        ({"endingOffsets": "earliest"}, "option endingOffsets: 'earliest'"),
        ({"queue": "no-such-stream"}, "404 NOT_FOUND - no queue 'no-such-stream'"),
        ({"url": "amqp://guest:no@127.0.0.1:{port}/%2F"}, r"403 .*ACCESS_REFUSED"),
        ({"url": "amqp://guest:guest@127.0.0.1:1/%2F"}, "Connection refused"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, vouch: BrokerProcess, fresh: Fresh, more: dict[str, str], said: str
) -> None:
    stream = fresh("stream")
    declare(vouch.url, stream)
    more = {name: value.replace("{port}", str(vouch.port)) for name, value in more.items()}
    with pytest.raises(PySparkException, match=said):
        reading(spark.read, vouch.url, stream, **more).load().collect()
