"""The sink as Spark runs it: what is refused before anything is sent, what a query publishes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.broker_process import BrokerProcess
from tests.pipeline import peer
from tests.pipeline.conftest import Referee
from tests.pipeline.sink_jobs import JOB_LIMIT_S, files
from vouchmq.kit.bulk import decode_properties, encode_properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def say(frame: DataFrame, url: str, mode: str = "append", **options: str) -> None:
    """Write a frame to the sink."""
    writer = frame.write.format("amqp").mode(mode).option("url", url)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def why(act: Callable[[], Any]) -> str:
    """What Spark says when it fails."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as raised:
        act()
    return str(raised.value)


def test_all_columns_of_a_batch(
    spark: SparkSession, either: BrokerProcess | Referee, fresh: Callable[[str], str]
) -> None:
    queue = fresh("all")
    peer.declare(either.url, queue)
    frame = spark.range(0, 3000, 1, 2).selectExpr(
        "cast(id as string) body",
        f"'{queue}' routing_key",
        "'' exchange",
        "map('n', cast(id as string), 'none', null) headers",
        "cast(1 as tinyint) delivery_mode",
        "7 priority",
        "'text/plain' content_type",
        "concat('m', id) message_id",
        "timestamp'2026-01-31 12:00:00.75Z' timestamp",
        "'kind' type",
    )
    say(frame, either.url, dedupeHeader="x-deduplication-header")
    stored = peer.drain(either.url, queue)
    assert sorted(int(each.body) for each in stored) == list(range(3000))
    for each in stored:
        number = each.body.decode()
        assert each.id == f"m{number}"
        identity = {"x-deduplication-header": f"m{number}"}
        assert each.headers == {"n": number, "none": None} | identity
    said = decode_properties(stored[0].properties)
    assert (said.delivery_mode, said.priority, said.message_type) == (1, 7, "kind")
    assert said.timestamp is not None
    assert said.timestamp.isoformat() == "2026-01-31T12:00:00+00:00"


@pytest.mark.parametrize("mode", ["queue", "stream"])
def test_headers_keep_their_types_from_a_source_to_a_sink(
    spark: SparkSession,
    vouch: BrokerProcess,
    fresh: Callable[[str], str],
    tmp_path: Path,
    mode: str,
) -> None:
    origin, target = fresh("origin"), fresh("target")
    peer.declare(vouch.url, origin, **({"x_queue_type": "stream"} if mode == "stream" else {}))
    peer.declare(vouch.url, target)
    headers = {
        "n": 2**40,
        "flag": True,
        "half": 0.5,
        "text": "Zoë",
        "in": {"list": [1, None, b"x"]},
    }
    raw = encode_properties({"headers": headers})
    with peer.channel(vouch.url) as channel:
        channel.confirm_select()
        channel.publish_many([("", origin, raw, b"1"), ("", origin, b"\0\0", b"2")])
    reader = spark.readStream.format("amqp").options(url=vouch.url, queue=origin, mode=mode)
    rows = reader.option("typedHeaders", "true").load()
    chosen = rows.where("headers_typed['n'].type = 'long' OR headers_typed IS NULL")
    writer = chosen.select("body", "headers_typed").writeStream.format("amqp")
    writer = writer.options(url=vouch.url, routingKey=target, messageId="none")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(JOB_LIMIT_S)
    stored = {each.body: each for each in peer.drain(vouch.url, target)}
    assert stored[b"1"].headers == headers
    assert stored[b"2"].headers == {}
    table = raw[raw.index(b"\x01n") - 4 :]
    assert table in stored[b"1"].properties


def test_what_is_wrong_is_refused_by_name_before_anything_is_sent(
    spark: SparkSession, vouch: BrokerProcess, fresh: Callable[[str], str]
) -> None:
    queue = fresh("refused")
    peer.declare(vouch.url, queue)
    url = vouch.url.replace("guest@", "s3cret@")
    rows = spark.range(3).selectExpr("cast(id as string) body", f"'{queue}' routing_key")
    more = rows.selectExpr("*", "1 colour")
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: say(rows, url, mode="overwrite"), "mode: only append"),
        (lambda: say(rows, url, mode="error"), '"amqp" cannot be written in the "ErrorIfExists"'),
        (lambda: say(rows, url, confirmWindows="1"), "option confirmwindows: unknown; is conf"),
        (lambda: say(rows, url, messageId="position"), "option messageId: position is for writeSt"),
        (lambda: say(more, url), "column colour: unknown; drop it"),
        (lambda: say(rows.drop("routing_key"), url), "column routing_key: neither it nor option"),
        (lambda: say(rows.withColumnRenamed("body", "b"), url), "column b: unknown"),
        (lambda: say(rows, url.replace("amqp:", "mqtt:")), "option url: the value does not begin"),
    ]
    for act, text in cases:
        said = why(act)
        assert text in said
        assert "s3cret" not in said
    assert peer.drain(vouch.url, queue) == []


def test_reading_is_refused_as_clearly(spark: SparkSession, vouch: BrokerProcess) -> None:
    def load(schema: str | None = None, **options: str) -> Any:
        reader = spark.read.format("amqp").option("url", vouch.url)
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader.schema(schema) if schema else reader).load()

    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: load(), "option queue: required"),
        (lambda: load(queue="q", prefetchh="1"), "option prefetchh: unknown; is prefetch meant?"),
        (lambda: load(queue="q", prefetch="1"), "option prefetch: 1 is below maxMessagesPerTrigg"),
        (lambda: load(queue="q", exchange="x"), "option exchange: only for write"),
        (lambda: load(queue="q").count(), "spark.read cannot read a queue (mode queue)"),
        (
            lambda: load("body string", queue="q", mode="stream").count(),
            "column body: is binary, and not string",
        ),
        (lambda: load("bodi binary", queue="q", mode="stream").count(), "column bodi: unknown"),
        (
            lambda: load("body binary", queue="q", prefetch="x").count(),
            "option prefetch: 'x' is not a whole number",
        ),
    ]
    for act, text in cases:
        assert text in why(act)


def test_the_schema_is_read_by_spark_as_it_is_meant(
    spark: SparkSession, vouch: BrokerProcess
) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from vouchmq.spark.rows import arrow_schema

    frame = spark.readStream.format("amqp").option("url", vouch.url).option("queue", "q").load()
    assert to_arrow_schema(frame.schema, timezone="UTC").equals(arrow_schema())


def test_a_task_that_fails_says_so_without_the_password(
    spark: SparkSession, vouch: BrokerProcess
) -> None:
    rows = spark.range(10).selectExpr("cast(id as string) body", "'nosuch' routing_key")
    said = why(lambda: say(rows, vouch.url))
    assert "unroutable: 312 NO_ROUTE exchange= key=nosuch" in said
    assert "guest:guest" not in said


def test_a_query_publishes_with_ids_by_position(
    spark: SparkSession, vouch: BrokerProcess, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    queue = fresh("query")
    peer.declare(vouch.url, queue)
    rows = files(tmp_path / "rows", 2, 500, queue)
    frame = spark.readStream.schema("body binary, routing_key string")
    query = (
        frame.option("maxFilesPerTrigger", 1)
        .parquet(str(rows))
        .writeStream.format("amqp")
        .option("url", vouch.url)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert query.exception() is None
    # Each file is one partition of one batch.
    assert [(each.id, int(each.body)) for each in peer.drain(vouch.url, queue)] == [
        (f"{query.id}/{number // 500}/0/{number % 500}", number) for number in range(1000)
    ]


def test_a_query_that_would_overwrite_is_refused(
    spark: SparkSession, vouch: BrokerProcess, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    rate = spark.readStream.format("rate").load()
    counts = rate.groupBy().count().selectExpr("cast(count as string) body", "'q' routing_key")
    writer = counts.writeStream.format("amqp").option("url", vouch.url).outputMode("complete")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="mode: only append"):
        query.awaitTermination(60)
