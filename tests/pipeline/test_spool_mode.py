"""Mode spool against both brokers, in the order of Spark's calls; Spark itself is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker_process import Broker, BrokerProcess
from tests.pipeline import source_world as world
from tests.pipeline.source_world import Cutter, Killed, Query, both, channel_to, fill, once
from tests.waiting import LIMIT_S, wait_until
from vouchmq.spark.source import spool
from vouchmq.spark.source.consumer import ConsumerError, QueueConsumer
from vouchmq.spark.source.offsets import OffsetError
from vouchmq.spark.source.spool import SpoolError


@pytest.fixture
def query(broker: Broker, queue: str, tmp_path: Path) -> Iterator[Query]:
    """A query on it, with batches of 100."""
    made = Query(
        url=broker.url,
        queue=queue,
        maxMessagesPerTrigger=100,
        spoolLocation=tmp_path / "spool",
        connectTimeoutMs=3000,
    )
    yield made
    made.kill()


def spooled(query: Query) -> list[int]:
    names = Path(query.options["spoolLocation"]).glob("*.arrow")
    return sorted(int(path.stem) for path in names)


class TestBatches:
    @both
    def test_all_rows_once(self, broker: Broker, queue: str, query: Query) -> None:
        fill(broker.url, queue, range(950))
        query.start()
        assert query.drain() == 950
        assert query.ids() == once(950)
        # What is committed goes, but for the newest four.
        assert spooled(query) == [7, 8, 9, 10]
        query.kill()
        assert world.settles_at(broker.url, queue, 0)
        query.start()
        assert query.drain() == 0
        assert spooled(query) == [7, 8, 9, 10]

    def test_acks_do_not_wait_for_the_batch(self, broker: Broker, queue: str, query: Query) -> None:
        fill(broker.url, queue, range(100))
        query.start()
        with pytest.raises(Killed):
            query.trigger(until="offset")
        assert world.ready(broker.url, queue) == 0

    def test_prefetch_of_one_batch_does_not_stall(
        self, broker: Broker, queue: str, query: Query
    ) -> None:
        query.options["prefetch"] = "50"
        fill(broker.url, queue, range(1000))
        query.start()
        query.drain()
        assert query.ids() == once(1000)

    @both
    def test_available_now(self, broker: Broker, queue: str, query: Query) -> None:
        fill(broker.url, queue, range(250))
        query.start(available_now=True)
        fill(broker.url, queue, range(250, 300))
        assert query.drain(patience=1) == 250
        query.kill()
        assert world.settles_at(broker.url, queue, 50)

    def test_a_checkpoint_of_another_mode(self, query: Query) -> None:
        query.offsets.append({"v": 1, "epoch": "x", "n": 1})
        query.committed = 1
        query.start()
        with pytest.raises(OffsetError, match="start with another checkpointLocation"):
            query.trigger()


class TestKilled:
    @both
    @pytest.mark.parametrize("step", ["offset", "logged", "planned", "sunk"])
    def test_between_the_calls(self, broker: Broker, queue: str, query: Query, step: str) -> None:
        """Exactly once: what was spooled is handed out again, and nothing else."""
        fill(broker.url, queue, range(300))
        query.start()
        query.trigger()
        with pytest.raises(Killed):
            query.trigger(until=step)
        query.start()
        query.drain()
        assert query.ids() == once(300)
        assert [len(batch) for batch in query.sink.values()] == [100, 100, 100]

    def test_the_first_batch_before_it_is_logged(
        self, broker: Broker, queue: str, query: Query
    ) -> None:
        """The checkpoint is as new as before, and the spool is not."""
        fill(broker.url, queue, range(100))
        query.start()
        with pytest.raises(Killed):
            query.trigger(until="offset")
        query.start()
        query.drain()
        assert query.ids() == once(100)

    @both
    @pytest.mark.parametrize("dedupe", ["", "none", "messageId", "header:id"])
    def test_between_the_sync_and_the_ack(
        self,
        broker: Broker,
        queue: str,
        query: Query,
        dedupe: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if dedupe:
            query.options["dedupe"] = dedupe
        _fill_with_header(broker.url, queue, 300)
        query.start()
        query.trigger()

        def die(_: QueueConsumer, *__: Any) -> bool:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(QueueConsumer, "ack", die)
            with pytest.raises(Killed):
                query.trigger()
        query.kill()
        query.start()
        query.drain()
        query.kill()
        assert sorted(query.ids(), key=int) == [str(number) for number in range(300)]
        twice = sum(count > 1 for count in query.ids().values())
        is_known = dedupe in ("messageId", "header:id") or (not dedupe and not broker.is_referee)
        assert twice == (0 if is_known else 100)
        assert world.settles_at(broker.url, queue, 0)

    def test_between_the_write_and_the_sync(
        self, broker: Broker, queue: str, query: Query, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(broker.url, queue, range(200))
        query.start()
        query.trigger()

        def die(_: Path) -> None:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(spool, "_sync", die)
            with pytest.raises(Killed):
                query.trigger()
        assert list(Path(query.options["spoolLocation"]).glob("*.tmp"))
        query.kill()
        query.start()
        query.drain()
        assert query.ids() == once(200)
        assert not list(Path(query.options["spoolLocation"]).glob("*.tmp"))

    @both
    def test_connection_cut_before_the_ack_arrives(
        self, broker: Broker, queue: str, query: Query, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cutter = Cutter(broker.url)
        query.options |= {"url": cutter.url, "dedupe": "messageId"}
        fill(broker.url, queue, range(300))
        query.start()
        query.trigger()
        real = spool.Spool.write

        def write(self: spool.Spool, *rest: Any) -> None:
            real(self, *rest)
            generation = query.driver._consumer.generation
            cutter.cut()
            consumer = query.driver._consumer
            assert consumer.wait(lambda: consumer.generation > generation, LIMIT_S)

        with monkeypatch.context() as patch:
            patch.setattr(spool.Spool, "write", write)
            query.trigger()
        query.drain(patience=8)
        query.kill()
        cutter.close()
        assert query.ids() == once(300)
        assert world.settles_at(broker.url, queue, 0)


def _fill_with_header(url: str, queue: str, count: int) -> None:
    from vouchmq.kit import bulk

    rows = [
        (
            "",
            queue,
            bulk.encode_properties(
                {"delivery_mode": 2, "message_id": str(number), "headers": {"id": number}}
            ),
            b"x",
        )
        for number in range(count)
    ]
    with channel_to(url) as channel:
        channel.confirm_select()
        assert channel.publish_many(rows).confirmed == count


class TestRefused:
    def test_a_full_disk_acks_nothing(
        self, broker: Broker, queue: str, query: Query, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(broker.url, queue, range(50))
        query.start()

        def fail(_: Path) -> None:
            raise OSError(28, "No space left on device")

        query.reader.latestOffset(query._start_of(0), query._limit())
        query.kill()
        # The fifty are in file 1 by now; the next ones meet a full disk.
        fill(broker.url, queue, range(50, 80))
        query.start()
        assert query.trigger() == 50
        with monkeypatch.context() as patch:
            patch.setattr(spool, "_sync", fail)
            with pytest.raises(SpoolError, match="No space left on device"):
                query.drain()
        query.kill()
        assert world.settles_at(broker.url, queue, 30)
        query.start()
        query.drain()
        assert query.ids() == once(80)

    @both
    def test_a_second_query_waits_for_the_first(
        self, broker: Broker, queue: str, query: Query, tmp_path: Path
    ) -> None:
        query.start()
        query.trigger()
        other = query.twin(spoolLocation=str(tmp_path / "other"), connectTimeoutMs="700")
        other.start()
        with pytest.raises(ConsumerError, match=r"403 ACCESS_REFUSED.*exclusive.*another query"):
            other.trigger()
        other.kill()

    def test_a_second_query_on_the_same_directory(
        self, broker: Broker, queue: str, query: Query, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spool, "_LOCK_WAIT_S", 0.3)
        fill(broker.url, queue, range(10))
        query.start()
        query.trigger()
        unfinished = Path(query.options["spoolLocation"]) / "000000000002.arrow.tmp"
        unfinished.write_text("being written")
        second = query.twin()
        second.start()
        with pytest.raises(SpoolError, match="is being written to by process"):
            second.trigger()
        assert unfinished.exists()
        second.kill()

    def test_another_checkpoint(self, broker: Broker, queue: str, query: Query) -> None:
        fill(broker.url, queue, range(10))
        query.start()
        query.drain()
        query.kill()
        second = query.twin()
        second.start()
        with pytest.raises(SpoolError, match="belongs to another checkpoint, which has read from"):
            second.trigger()
        second.kill()

    def test_a_file_that_somebody_removed(self, broker: Broker, queue: str, query: Query) -> None:
        fill(broker.url, queue, range(300))
        query.start()
        with pytest.raises(Killed):
            query.trigger(until="logged")
        path = Path(query.options["spoolLocation"]) / "000000000001.arrow"
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(SpoolError, match=r"000000000001\.arrow is missing"):
            query.start()
        query.kill()
        path.write_bytes(content)
        query.start()
        query.drain()
        assert query.ids() == once(300)

    @both
    def test_a_stream(self, broker: Broker, query: Query, fresh: Callable[[str], str]) -> None:
        name = fresh("stream")
        world.declare(broker.url, name, queue_type="stream")
        query.options["queue"] = name
        query.start()
        query.trigger()
        fill(broker.url, name, range(10))
        with pytest.raises(ConsumerError, match="is a stream"):
            query.drain(patience=10)
        assert spooled(query) == []
        query.kill()
        with channel_to(broker.url) as channel:
            channel.delete(name)

    def test_an_object_store(self, query: Query) -> None:
        query.options["spoolLocation"] = "s3://bucket/spool"
        with pytest.raises(SpoolError, match="neither fsync nor an atomic rename"):
            query.start()

    def test_a_column_more_than_was_spooled(self, broker: Broker, queue: str, query: Query) -> None:
        fill(broker.url, queue, range(10))
        query.start()
        with pytest.raises(Killed):
            query.trigger(until="logged")
        query.columns = ("message_id", "body")
        with pytest.raises(SpoolError, match="without column body"):
            query.start()
        query.kill()
        query.columns = ("message_id",)
        query.start()
        assert query.ids() == once(10)


class TestMemory:
    """What is known of spooled messages, and for how long."""

    def test_copies_fill_the_whole_window(
        self, vouch: BrokerProcess, fresh: Callable[[str], str], tmp_path: Path
    ) -> None:
        name = fresh("source")
        world.declare(vouch.url, name)
        query = Query(
            url=vouch.url,
            queue=name,
            maxMessagesPerTrigger=50,
            prefetch=50,
            spoolLocation=tmp_path / "spool",
        )
        fill(vouch.url, name, range(300))
        query.start()
        query.trigger()
        # Nothing of the next two files is acked: the window holds their copies after the restart.
        consumer = query.driver._consumer
        real, consumer.ack = consumer.ack, lambda _: False
        query.trigger()
        consumer.ack = real
        query.kill()
        query.start()
        query.drain()
        query.kill()
        assert query.ids() == once(300)
        assert world.settles_at(vouch.url, name, 0)

    def test_places_go_from_file_to_file(
        self, vouch: BrokerProcess, fresh: Callable[[str], str], tmp_path: Path
    ) -> None:
        name = fresh("source")
        world.declare(vouch.url, name)
        query = Query(
            url=vouch.url, queue=name, maxMessagesPerTrigger=10, spoolLocation=tmp_path / "spool"
        )
        fill(vouch.url, name, range(200))
        query.start()
        query.drain()
        query.kill()
        newest = tmp_path / "spool" / f"{20:012}.arrow"
        (ranges,) = spool.places_in(newest).as_json().values()
        assert ranges == [[1, 200]]

    def test_files_stay_until_their_acks_have_arrived(
        self, broker: Broker, queue: str, query: Query
    ) -> None:
        query.options["maxMessagesPerTrigger"] = "10"
        fill(broker.url, queue, range(200))
        query.start()
        consumer = query.driver._consumer
        real = consumer._pass
        consumer._pass = lambda _: None
        query.drain()
        assert len(spooled(query)) == 20
        consumer._pass = real
        fill(broker.url, queue, range(200, 205))
        query.drain()
        wait_until(lambda: len(spooled(query)) <= 4, between=query.trigger)
        assert spooled(query) == [18, 19, 20, 21]
