"""Queries go on over a take-over: brokers that share a log have one identity, and one journal.

A query has the addresses of all brokers. The leader is killed between and within its batches; the
next one has every message that was confirmed, in its place. Each comes once into the sink.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.brokers import Brokers, status
from tests.engine.servers import MISSING, NatsServer, program, running_server, wait_until
from tests.pipeline import streams
from tests.pipeline.source_world import Killed, Query, channel_to, declare, fill, once, settles_at
from vouchmq.kit import bulk
from vouchmq.spark.source.dedupe import KEPT_RANGES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)

QUEUE = "orders"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[NatsServer]:
    """The log's server."""
    with running_server(tmp_path / "engine") as made:
        yield made


@pytest.fixture
def brokers(tmp_path: Path, engine: NatsServer) -> Iterator[Brokers]:
    """A leader and a standby, whose addresses are known from the beginning."""
    made = Brokers(tmp_path, engine)
    for each in (made.leader, made.standby):
        each.choose_port()
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture
def urls(brokers: Brokers) -> str:
    """Of all brokers."""
    return f"{brokers.leader.url},{brokers.standby.url}"


def take_over(brokers: Brokers) -> None:
    """The leader dies, and the standby takes over."""
    brokers.leader.kill9()
    brokers.standby.wait_until_ready()


def exchange_roles(brokers: Brokers) -> None:
    """The dead broker comes back as the standby of the one that has taken over."""
    brokers.leader, brokers.standby = brokers.standby, brokers.leader
    brokers.standby.begin()
    name = brokers.leader.data_dir.parent.name
    brokers.standby.wait_until(lambda: status(brokers.standby).get("leader") == name)


@pytest.fixture(params=["queue", "spool"])
def options(request: pytest.FixtureRequest, urls: str, tmp_path: Path) -> dict[str, Any]:
    """Of a query in either mode that settles."""
    more = {"spoolLocation": tmp_path / "spool"} if request.param == "spool" else {}
    return {"url": urls, "queue": QUEUE, "maxMessagesPerTrigger": 100, **more}


def test_a_query_that_died_goes_on_with_the_next_leader(
    brokers: Brokers, options: dict[str, Any]
) -> None:
    declare(brokers.leader.url, QUEUE)
    fill(brokers.leader.url, QUEUE, range(300))
    query = Query(**options)
    query.start()
    assert query.trigger() == 100
    with pytest.raises(Killed):
        query.trigger(until="planned")
    # It starts again before there is another leader.
    brokers.leader.kill9()
    query.start()
    brokers.standby.wait_until_ready()
    fill(brokers.standby.url, QUEUE, range(300, 350))
    query.drain_to(350)
    assert query.drain() == 0
    query.kill()
    assert query.ids() == once(350)
    assert settles_at(brokers.standby.url, QUEUE, 0)
    seen = [offset["at"] for offset in query.offsets]
    assert len({each["directory"] for each in seen}) == 1
    assert len({each["start"] for each in seen}) == 2


def test_a_query_that_runs_goes_on_with_the_next_leader(
    brokers: Brokers, options: dict[str, Any]
) -> None:
    declare(brokers.leader.url, QUEUE)
    fill(brokers.leader.url, QUEUE, range(300))
    query = Query(**options)
    query.start()
    assert query.trigger() == 100
    brokers.leader.kill9()
    query.drain_to(300)
    exchange_roles(brokers)
    fill(brokers.leader.url, QUEUE, range(300, 350))
    query.drain_to(350)
    take_over(brokers)
    assert query.drain() == 0
    query.kill()
    assert query.ids() == once(350)
    assert settles_at(brokers.standby.url, QUEUE, 0)


def test_acks_that_were_not_committed_leave_no_copies(
    brokers: Brokers, urls: str, engine: NatsServer
) -> None:
    """More queues than a query remembers ranges of acks for: these may be forgotten only later."""
    queues = [f"q{number}" for number in range(KEPT_RANGES + 6)]
    with channel_to(brokers.leader.url) as channel:
        channel.confirm_select()
        for queue in queues:
            channel.declare(queue, durable=True)
        rows = [
            ("", queue, {"message_id": str(number), "delivery_mode": 2}, b"")
            for number, queue in enumerate(queues)
        ]
        assert channel.publish_many(rows).confirmed == len(queues)
    query = Query(url=urls, queue=",".join(queues), maxMessagesPerTrigger=200)
    query.start()
    query.drain_to(len(queues))
    # Nothing is committed any more, so the next leader will not know of these acks.
    engine.kill()
    assert query.trigger() == 0
    time.sleep(0.5)  # for an answer that must not come
    assert query.trigger() == 0
    brokers.leader.kill9()
    engine.start()
    brokers.standby.wait_until_ready()
    assert query.drain() == 0
    assert query.driver.dropped_count == len(queues)
    query.kill()
    assert query.ids() == once(len(queues))


def test_streams_are_read_on(brokers: Brokers, urls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    streams.declare(brokers.leader.url, QUEUE)
    streams.publish(brokers.leader.url, QUEUE, 0, 100)
    with streams.query(streams.options(urls, QUEUE, maxMessagesPerTrigger=50)) as run:
        first = run.plan()
        assert first is not None
        # Before the tasks of a batch.
        brokers.leader.kill9()
        run.rows += run.read(first)
        assert run.run() == 1
        exchange_roles(brokers)
        streams.publish(brokers.leader.url, QUEUE, 100, 120)
        ask = run.reader._probe.position

        def die_first() -> Any:
            monkeypatch.undo()
            brokers.leader.kill9()
            return ask()

        # While a batch is planned.
        monkeypatch.setattr(run.reader._probe, "position", die_first)
        run.run(lambda: len(run.rows) >= 120)
        assert run.ids == list(range(120))
        seen = [end["at"] for _, end in run.log]
        assert len({each["directory"] for each in seen}) == 1
        assert len({each["start"] for each in seen}) == 3


class Load:
    """A thread that publishes, each message once, to whichever broker leads.

    `confirmed` has the ids of those that were; of the others nobody knows.
    """

    def __init__(self, urls: str, queue: str) -> None:
        self.confirmed: list[int] = []
        self.published = 0
        self._urls = urls
        self._queue = queue
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            with suppress(bulk.BulkError), channel_to(self._urls) as channel:
                channel.confirm_select()
                while not self._ending.wait(0.02):
                    self._publish(channel)
            self._ending.wait(0.1)

    def _publish(self, channel: bulk.BulkChannel) -> None:
        ids = range(self.published, self.published + 10)
        self.published = ids.stop
        properties = [{"message_id": str(each), "delivery_mode": 2} for each in ids]
        rows = [("", self._queue, each, b"x" * 100) for each in properties]
        if channel.publish_many(rows).confirmed == len(ids):
            self.confirmed += ids

    def wait_for_more(self, count: int = 200) -> None:
        """Wait until so many more are confirmed."""
        goal = len(self.confirmed) + count
        wait_until(lambda: len(self.confirmed) >= goal, "confirms")

    def end(self) -> None:
        """Wait until it has ended."""
        self._ending.set()
        self._thread.join()


class Pause:
    """Holds the tasks of a query where they read: once, between two files."""

    def __init__(self, directory: Path) -> None:
        self._asked, self._inside, self._over = (
            directory / name for name in ("asked", "inside", "over")
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self._asked.exists() and not self._over.exists():
                self._inside.touch()
                while not self._over.exists():
                    time.sleep(0.05)
            yield batch

    def ask(self) -> None:
        """Have the next batch held, and wait until it is."""
        self._asked.touch()
        wait_until(self._inside.exists, "a task that reads")

    def end(self) -> None:
        """Let it go on."""
        self._over.touch()


def start(
    spark: SparkSession, options: dict[str, Any], directory: Path, pause: Pause, **trigger: Any
) -> StreamingQuery:
    schema = "message_id string, offset bigint"
    rows = spark.readStream.format("amqp").options(**options).schema(schema).load()
    writer = rows.mapInArrow(pause, schema).writeStream.trigger(**trigger)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    return writer.format("parquet").start(str(directory / "out"))


def batches_of(query: StreamingQuery) -> int:
    """How many batches with rows are over."""
    assert query.isActive, query.exception()
    return sum(each["numInputRows"] > 0 for each in query.recentProgress)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["queue", "stream"])
def test_spark_reads_on(
    spark: SparkSession, brokers: Brokers, urls: str, tmp_path: Path, mode: str
) -> None:
    if mode == "queue":
        declare(brokers.leader.url, QUEUE)
    else:
        streams.declare(brokers.leader.url, QUEUE)
    options = {"url": urls, "queue": QUEUE, "mode": mode, "maxMessagesPerTrigger": "400"}
    pause = Pause(tmp_path)
    load = Load(urls, QUEUE)
    query = start(spark, options, tmp_path, pause, processingTime="200 milliseconds")
    try:
        wait_until(lambda: batches_of(query) >= 2, "batches")
        pause.ask()
        brokers.leader.kill9()
        pause.end()
        brokers.standby.wait_until_ready()
        load.wait_for_more()
        before = batches_of(query)
        wait_until(lambda: batches_of(query) > before + 1, "batches of the second leader")
        query.stop()
        exchange_roles(brokers)
        load.wait_for_more()
        take_over(brokers)
        load.wait_for_more()
        load.end()
    finally:
        load.end()
        query.stop()
    options["maxMessagesPerTrigger"] = "60000"
    assert start(spark, options, tmp_path, pause, availableNow=True).awaitTermination(200)
    found = [row["message_id"] for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert len(found) == len(set(found))
    assert set(map(str, load.confirmed)) <= set(found) <= set(map(str, range(load.published)))
    assert load.confirmed
    if mode == "queue":
        assert settles_at(brokers.standby.url, QUEUE, 0)
