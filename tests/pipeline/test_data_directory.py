"""A checkpoint that outlives its broker: what it has seen is another directory's, or gone.

Each test is made like this: a query reads 100 messages, something happens to the data directory,
and other messages get the places that the first ones had. Nothing of theirs may be acked unread.

Spec: DURABLE-26, DURABLE-27, DURABLE-28
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker_process import BrokerProcess
from tests.pipeline import source_world as world
from tests.pipeline import streams
from tests.pipeline.source_world import Killed, Query, channel_to, declare, fill
from tests.waiting import LIMIT_S
from vouchmq.spark.source.data_directory import ForeignDirectoryError
from vouchmq.spark.source.streams.ranges import DataLossError

QUEUE = "orders"
Make = Callable[..., BrokerProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Starts brokers on data directories of their own."""
    made: list[BrokerProcess] = []

    def start(name: str = "one") -> BrokerProcess:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        process = BrokerProcess(directory)
        process.start(limit_s=60)
        made.append(process)
        return process

    yield start
    for process in made:
        process.kill9()


@pytest.fixture(params=["queue", "spool"])
def mode(request: pytest.FixtureRequest) -> str:
    """Both modes that settle."""
    chosen: str = request.param
    return chosen


def query_on(broker: BrokerProcess, mode: str, tmp_path: Path) -> Query:
    """A query that has read 100 messages, and whose process has ended."""
    more: dict[str, Any] = {"spoolLocation": tmp_path / "spool"} if mode == "spool" else {}
    query = Query(url=broker.url, queue=QUEUE, maxMessagesPerTrigger=100, **more)
    declare(broker.url, QUEUE)
    fill(broker.url, QUEUE, range(100))
    query.start()
    query.drain()
    query.kill()
    assert len(query.ids()) == 100
    return query


def redeliver(url: str) -> None:
    """A consumer takes everything and gives nothing back but by its end: it comes as redelivered.

    That is what a query does that dies in a batch, and what makes a place be looked up.
    """
    with channel_to(url) as channel:
        channel.consume(QUEUE)
        for _ in range(100):
            channel.wait(1, LIMIT_S)


def refused(query: Query, url: str, match: str) -> None:
    """The query says why it does not go on, and has acked nothing."""
    waiting = world.ready(url, QUEUE)
    query.options["url"] = url
    with pytest.raises(ForeignDirectoryError, match=match) as caught:
        query.start()
        query.drain()
    query.kill()
    text = str(caught.value)
    assert "\n" not in text
    assert "new checkpointLocation" in text
    assert world.settles_at(url, QUEUE, waiting)


def others(url: str) -> None:
    """100 other messages, in the places that the first ones had."""
    fill(url, QUEUE, range(1000, 1100))
    redeliver(url)
    assert world.settles_at(url, QUEUE, 100)


def test_wiped(make: Make, mode: str, tmp_path: Path) -> None:
    broker = make()
    query = query_on(broker, mode, tmp_path)
    assert broker.stop() == 0
    shutil.rmtree(broker.data_dir)
    broker.start(limit_s=60)
    declare(broker.url, QUEUE)
    others(broker.url)
    refused(query, broker.url, "another data directory")


def test_another_url(make: Make, tmp_path: Path) -> None:
    one, two = make("one"), make("two")
    query = query_on(one, "queue", tmp_path)
    declare(two.url, QUEUE)
    others(two.url)
    refused(query, two.url, "another data directory")
    # The same query goes on where it belongs.
    query.options["url"] = one.url
    fill(one.url, QUEUE, range(100, 150))
    query.start()
    assert query.drain() == 50
    query.kill()
    # Also when it fails over while it runs.
    query.options["url"] = f"{one.url},{two.url}"
    query.start()
    one.kill9()
    with pytest.raises(ForeignDirectoryError, match="another data directory"):
        while True:
            query.trigger()
    query.kill()
    assert world.settles_at(two.url, QUEUE, 100)


def test_backup_of_a_running_broker(make: Make, mode: str, tmp_path: Path) -> None:
    broker = make()
    declare(broker.url, QUEUE)
    shutil.copytree(broker.data_dir, tmp_path / "backup", ignore=shutil.ignore_patterns("*.sock"))
    query = query_on(broker, mode, tmp_path)
    restore(broker, tmp_path / "backup")
    others(broker.url)
    refused(query, broker.url, "restored from a backup")
    # Also when it has grown beyond what the query has seen, and was started again.
    fill(broker.url, QUEUE, range(2000, 2500))
    assert broker.stop() == 0
    broker.start(limit_s=60)
    refused(query, broker.url, "restored from a backup")


def restore(broker: BrokerProcess, backup: Path) -> None:
    broker.kill9()
    shutil.rmtree(broker.data_dir)
    shutil.copytree(backup, broker.data_dir)
    broker.start(limit_s=60)


def test_restarts_and_complete_backups_go_on(make: Make, tmp_path: Path) -> None:
    """What knows all that the query has seen cannot be mistaken for anything else."""
    broker = make()
    query = query_on(broker, "queue", tmp_path)
    broker.kill9()
    broker.start(limit_s=60)
    assert broker.stop() == 0
    shutil.copytree(broker.data_dir, tmp_path / "backup")
    restore(broker, tmp_path / "backup")
    fill(broker.url, QUEUE, range(100, 150))
    query.options["url"] = broker.url
    query.start()
    assert query.drain() == 50
    query.kill()
    assert set(query.ids().values()) == {1}


def test_queue_declared_again(make: Make, tmp_path: Path) -> None:
    """Its id is another one, so that all of it is read: the directory is the same."""
    broker = make()
    query = query_on(broker, "queue", tmp_path)
    with channel_to(broker.url) as channel:
        channel.delete(QUEUE)
    declare(broker.url, QUEUE)
    others(broker.url)
    query.start()
    assert query.drain() == 100
    query.kill()
    assert {str(each) for each in range(1000, 1100)} < set(query.ids())
    assert world.settles_at(broker.url, QUEUE, 0)


def test_old_checkpoint_is_adopted(make: Make, mode: str, tmp_path: Path) -> None:
    """One of an earlier version does not say where it has read: the next offset does."""
    broker, other = make("one"), make("two")
    query = query_on(broker, mode, tmp_path)
    for offset in query.offsets:
        assert offset.pop("at")["directory"]
    if mode == "spool":
        forget_in_spool(tmp_path / "spool")
    query.start()
    fill(broker.url, QUEUE, range(100, 120))
    assert query.drain() == 20
    query.kill()
    declare(other.url, QUEUE)
    others(other.url)
    refused(query, other.url, "another data directory")


def forget_in_spool(directory: Path) -> None:
    import pyarrow as pa

    for path in directory.glob("*.arrow"):
        table = pa.ipc.open_file(path.read_bytes())
        metadata = {
            key: value
            for key, value in (table.schema.metadata or {}).items()
            if key != b"vouchmq.at"
        }
        batches = [table.get_batch(n) for n in range(table.num_record_batches)]
        schema = table.schema.with_metadata(metadata)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)


def test_batch_under_way_is_not_replayed_from_another_directory(make: Make, tmp_path: Path) -> None:
    one, two = make("one"), make("two")
    query = query_on(one, "queue", tmp_path)
    fill(one.url, QUEUE, range(100, 200))
    query.start()
    with pytest.raises(Killed):
        query.trigger(until="planned")
    declare(two.url, QUEUE)
    fill(two.url, QUEUE, range(1000, 1200))
    redeliver(two.url)
    refused(query, two.url, "another data directory")


def test_streams(make: Make, tmp_path: Path) -> None:
    one, two = make("one"), make("two")
    for broker in (one, two):
        streams.declare(broker.url, QUEUE)
        streams.publish(broker.url, QUEUE, 0, 50)
    shutil.copytree(one.data_dir, tmp_path / "backup", ignore=shutil.ignore_patterns("*.sock"))
    streams.publish(one.url, QUEUE, 50, 100)
    with streams.query(streams.options(one.url, QUEUE)) as run:
        assert run.run() == 1
        assert run.log[-1][1]["at"]["directory"]
        streams.publish(two.url, QUEUE, 100, 200)
        run.restart(streams.options(two.url, QUEUE))
        with pytest.raises(ForeignDirectoryError, match="another data directory"):
            run.run()
        run.restart(streams.options(one.url, QUEUE))
        streams.publish(one.url, QUEUE, 100, 110)
        assert run.run() == 1
        assert run.ids == list(range(110))
        run.reader.stop()
        restore(one, tmp_path / "backup")
        streams.publish(one.url, QUEUE, 1050, 1200)
        run.restart(streams.options(one.url, QUEUE))
        with pytest.raises(ForeignDirectoryError, match="restored from a backup"):
            run.run()


def test_stream_declared_again_and_longer_than_before(vouch: BrokerProcess) -> None:
    streams.declare(vouch.url, QUEUE)
    streams.publish(vouch.url, QUEUE, 0, 100)
    with streams.query(streams.options(vouch.url, QUEUE)) as run:
        run.run()
        streams.delete(vouch.url, QUEUE)
        streams.declare(vouch.url, QUEUE)
        streams.publish(vouch.url, QUEUE, 1000, 1100)
        run.restart()
        with pytest.raises(DataLossError, match="deleted and declared again"):
            run.run()
        run.restart(streams.options(vouch.url, QUEUE, failOnDataLoss="false"))
        run.run()
        assert run.ids == [*range(100), *range(1000, 1100)]
    streams.delete(vouch.url, QUEUE)
