"""What a query says of its backlog: asked of the source, read from Spark's progress, end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.broker_process import Broker
from tests.pipeline import source_world as world
from tests.pipeline import streams
from tests.pipeline.source_world import Query, both, fill
from tests.waiting import LIMIT_S
from vouchmq.spark import SourceProgress, progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def told(latest: dict[str, Any], **source: Any) -> dict[str, Any]:
    one = {"numInputRows": 100, "processedRowsPerSecond": 50.0, "latestOffset": latest, **source}
    return {"batchId": 4, "durationMs": {"triggerExecution": 2000}, "sources": [one]}


def test_queues_out_of_a_progress() -> None:
    said = {"ready": 30, "buffered": 12, "rows": 100, "bytes": 5000, "oldest_s": 900}
    whole = SourceProgress(4, 100, 50.0, 2500.0, 42, 30, 12, 100.0)
    assert progress(told({"v": 1, "backlog": said}), lambda: 1000.0) == [whole]
    # Spark may hold an offset as its text.
    text: Any = json.dumps({"v": 1, "backlog": said})
    assert progress(told(text), lambda: 1000.0) == [whole]
    del said["ready"], said["oldest_s"]
    one = progress(told({"v": 1, "backlog": said}))[0]
    assert (one.backlog, one.ready, one.lag_s) == (None, None, None)
    none = {"ready": 0, "buffered": 0, "rows": 0, "bytes": 0}
    assert progress(told({"v": 1, "backlog": none}, numInputRows=0))[0].lag_s == 0.0


def test_streams_and_other_sources_out_of_a_progress() -> None:
    tails = {"v": 1, "next": {"a": 100, "b": 7}}
    one = progress(told(tails, endOffset={"v": 1, "next": {"a": 60, "b": 7}}))[0]
    assert (one.backlog, one.bytes_per_s, one.lag_s) == (40, None, None)
    assert progress(told({"topic": {"0": 12}})) == []
    assert progress(told(None)) == []  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("mode", ["queue", "spool"])
def test_a_source_knows_what_is_left(broker: Broker, queue: str, tmp_path: Path, mode: str) -> None:
    query = Query(url=broker.url, queue=queue, maxMessagesPerTrigger=100, prefetch=150)
    if mode == "spool":
        query.options |= {"mode": "spool", "spoolLocation": str(tmp_path / "spool")}
    fill(broker.url, queue, range(1000))
    query.start()
    try:
        assert query.trigger() == 100
        latest = query.reader.reportLatestOffset()
        assert latest is not None
        said = latest["backlog"]
        assert said["rows"] == 100
        assert said["bytes"] > 100
        # What is on its way, or acked and not yet replaced, is in neither count.
        assert 600 <= said["ready"] + said["buffered"] <= 900
        query.drain()
        assert world.settles_at(broker.url, queue, 0)
        query.driver._intake._count_after = 0.0
        latest = query.reader.reportLatestOffset()
        assert latest is not None
        assert latest["backlog"] == {"ready": 0, "buffered": 0, "rows": 0, "bytes": 0}
    finally:
        query.kill()


def test_the_age_of_what_is_next(vouch: Broker, queue: str) -> None:
    query = Query(url=vouch.url, queue=queue, maxMessagesPerTrigger=10)
    with world.channel_to(vouch.url) as channel:
        channel.confirm_select()
        channel.publish_many([("", queue, {"timestamp": 1000 + at}, b"x") for at in range(15)])
    query.start()
    try:
        assert query.trigger() == 10
        consumer = query.driver._consumer
        assert consumer.wait(lambda: consumer.arrived()[0] == 5, LIMIT_S)
        latest = query.reader.reportLatestOffset()
        assert latest is not None
        assert latest["backlog"]["oldest_s"] == 1010
        # To have looked at it takes nothing away.
        assert query.trigger() == 5
    finally:
        query.kill()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["queue", "stream"])
def test_progress_of_a_query(
    spark: SparkSession, vouch: Broker, fresh: Callable[[str], str], mode: str
) -> None:
    name = fresh("progress")
    rows = spark.readStream.format("amqp").option("url", vouch.url).option("queue", name)
    if mode == "stream":
        streams.declare(vouch.url, name)
        streams.publish(vouch.url, name, 0, 3000)
    else:
        world.declare(vouch.url, name)
        fill(vouch.url, name, range(3000))
    reading = rows.option("mode", mode).option("maxMessagesPerTrigger", 1000).load()
    query = reading.writeStream.format("noop").trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    found = [one for each in query.recentProgress for one in progress(each)]
    assert sum(one.rows for one in found) == 3000
    backlogs = [one.backlog for one in found if one.backlog is not None]
    assert len(backlogs) == len(found)
    assert backlogs == sorted(backlogs, reverse=True)
    if mode == "stream":
        # A queue is counted less often where counting takes long.
        assert backlogs[-1] == 0
    assert all(one.rows_per_s > 0 for one in found if one.rows)
    if mode == "queue":
        assert all(one.bytes_per_s for one in found if one.rows)
    assert progress(query)[0].batch_id == found[-1].batch_id
