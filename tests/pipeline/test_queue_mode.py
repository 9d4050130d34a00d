"""Mode queue against both brokers, in the order of Spark's calls; Spark itself is elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.broker_process import Broker, BrokerProcess
from tests.pipeline import source_world as world
from tests.pipeline.source_world import Cutter, Killed, Query, both, channel_to, fill, once
from tests.waiting import LIMIT_S
from vouchmq.kit import bulk
from vouchmq.spark.options import OptionError
from vouchmq.spark.properties import MAX_DEPTH
from vouchmq.spark.source import queue_mode as queue_module
from vouchmq.spark.source.consumer import ConsumerError, is_delivery_timeout, is_passing
from vouchmq.spark.source.offsets import OffsetError


@pytest.fixture
def query(broker: Broker, queue: str) -> Iterator[Query]:
    """A query on it, with batches of 100."""
    made = Query(url=broker.url, queue=queue, maxMessagesPerTrigger=100, readTimeoutMs=3000)
    yield made
    made.kill()


class TestBatches:
    @both
    def test_all_rows_once_and_the_last_batch_is_acked(
        self, broker: Broker, queue: str, query: Query
    ) -> None:
        fill(broker.url, queue, range(250))
        query.start()
        assert query.drain() == 250
        assert query.ids() == once(250)
        assert [len(batch) for batch in query.sink.values()] == [100, 100, 50]
        query.kill()
        # Nothing comes back: the last batch was acked although no other followed.
        assert world.settles_at(broker.url, queue, 0)
        query.start()
        assert query.drain() == 0

    @both
    def test_prefetch_of_one_batch_does_not_stall(
        self, broker: Broker, queue: str, query: Query
    ) -> None:
        query.options["prefetch"] = "100"
        fill(broker.url, queue, range(1000))
        query.start()
        query.drain()
        assert query.ids() == once(1000)

    def test_prefetch_below_a_batch_is_refused(self, query: Query) -> None:
        query.options["prefetch"] = "99"
        with pytest.raises(OptionError, match="prefetch: 99 is below maxMessagesPerTrigger"):
            query.start()

    def test_bytes_limit_a_batch(self, broker: Broker, queue: str, query: Query) -> None:
        query.options["maxBytesPerTrigger"] = "300"
        fill(broker.url, queue, range(100))
        query.start()
        assert 1 < query.trigger() < 60

    def test_several_queues(
        self, broker: Broker, queue: str, query: Query, fresh: Callable[[str], str]
    ) -> None:
        other = fresh("source")
        world.declare(broker.url, other)
        query.options["queue"] = f"{queue},{other}"
        query.columns = ("queue", "message_id")
        fill(broker.url, queue, range(150))
        fill(broker.url, other, range(1000, 1020))
        query.start()
        query.drain()
        rows = [(row["queue"], row["message_id"]) for rows in query.sink.values() for row in rows]
        assert sorted(rows) == sorted(
            [(queue, str(n)) for n in range(150)] + [(other, str(n)) for n in range(1000, 1020)]
        )
        # The small queue is not forgotten beside the large one.
        assert {row["queue"] for row in query.sink[0]} == {queue, other}
        query.kill()
        assert world.settles_at(broker.url, queue, 0)
        assert world.settles_at(broker.url, other, 0)

    def test_a_batch_is_the_same_when_asked_twice(
        self, broker: Broker, queue: str, query: Query
    ) -> None:
        fill(broker.url, queue, range(100))
        query.start()
        start = query.reader.initialOffset()
        end = query.reader.latestOffset(start, query._limit())
        assert query.reader.latestOffset(start, query._limit()) == end
        tasks = [query.reader.partitions(start, end) for _ in range(2)]
        rows = [
            [batch.to_pylist() for task in each for batch in query.reader.read(task)]
            for each in tasks
        ]
        assert rows[0] == rows[1]
        query.reader.commit(end)
        query.reader.commit(end)
        assert query.reader.latestOffset(end, query._limit()) == end
        with pytest.raises(OffsetError, match="finished already"):
            query.reader.partitions(start, end)

    def test_a_checkpoint_of_another_mode(self, query: Query) -> None:
        query.offsets.append({"v": 1, "spool": "x", "file": 1})
        query.committed = 1
        query.start()
        with pytest.raises(OffsetError, match="start with another checkpointLocation"):
            query.trigger()


class TestAvailableNow:
    @both
    def test_ends_and_leaves_nothing(self, broker: Broker, queue: str, query: Query) -> None:
        fill(broker.url, queue, range(250))
        query.start(available_now=True)
        fill(broker.url, queue, range(250, 300))
        assert query.drain(patience=1) == 250
        query.kill()
        assert world.settles_at(broker.url, queue, 50)

    @both
    def test_with_another_consumer(self, broker: Broker, queue: str, query: Query) -> None:
        query.options["exclusive"] = "false"
        fill(broker.url, queue, range(200))
        with channel_to(broker.url) as channel:
            channel.qos(80)
            channel.consume(queue)
            theirs = channel.wait(80, LIMIT_S)
            query.start(available_now=True)
            channel.ack(theirs[-1][0], multiple=True)
            rows = query.drain(patience=1)
            # What the query has not read is theirs.
            theirs = channel.wait(120 - rows, LIMIT_S)
            query.kill()
            assert rows + 80 + len(theirs) >= 200
        assert world.settles_at(broker.url, queue, 200 - 80 - rows)

    def test_an_empty_queue(self, query: Query) -> None:
        query.start(available_now=True)
        assert query.trigger() == 0


class TestKilled:
    """At least once on any broker, exactly once where deliveries are numbered."""

    @both
    @pytest.mark.parametrize("step", ["offset", "logged", "planned"])
    def test_before_the_sink_has_it(
        self, broker: Broker, queue: str, query: Query, step: str
    ) -> None:
        fill(broker.url, queue, range(300))
        query.start()
        first = query.first_rows()
        query.wait_for(100)
        with pytest.raises(Killed):
            query.trigger(until=step)
        query.start()
        query.drain()
        assert query.ids() == once(300)
        batches = [len(batch) for batch in query.sink.values()]
        assert batches[0] == first
        # A numbering broker's batch is replayed exactly; another's is empty, and comes later.
        if step != "offset":
            assert batches[1] == (0 if broker.is_referee else 100)
        assert all(0 < size <= 100 for size in batches[2:])

    @both
    def test_between_the_sink_and_the_ack(self, broker: Broker, queue: str, query: Query) -> None:
        fill(broker.url, queue, range(300))
        query.start()
        query.first_rows()
        query.wait_for(100)
        with pytest.raises(Killed):
            query.trigger(until="sunk")
        query.start()
        query.drain()
        assert sorted(query.ids(), key=int) == [str(number) for number in range(300)]
        twice = sum(count > 1 for count in query.ids().values())
        assert twice == (100 if broker.is_referee else 0)
        query.kill()
        assert world.settles_at(broker.url, queue, 0)

    def test_a_replay_keeps_what_is_new_in_order(
        self, vouch: BrokerProcess, fresh: Callable[[str], str]
    ) -> None:
        name = fresh("source")
        world.declare(vouch.url, name)
        query = Query(url=vouch.url, queue=name, maxMessagesPerTrigger=100, prefetch=100)
        fill(vouch.url, name, range(250))
        for until in ("planned", "sunk"):
            query.start()
            with pytest.raises(Killed):
                query.trigger(until=until)
        query.start()
        assert query.drain() == 50
        query.kill()
        assert [row["message_id"] for batch in query.sink.values() for row in batch] == [
            str(number) for number in range(250)
        ]
        assert query.offsets[-1]["done"] == {
            next(iter(query.offsets[-1]["done"])): [[1, 250]],
        }

    def test_a_replay_needs_its_window(
        self, vouch: BrokerProcess, fresh: Callable[[str], str]
    ) -> None:
        name = fresh("source")
        world.declare(vouch.url, name)
        query = Query(url=vouch.url, queue=name, maxMessagesPerTrigger=100)
        fill(vouch.url, name, range(100))
        query.start()
        with pytest.raises(Killed):
            query.trigger(until="logged")
        query.options |= {"maxMessagesPerTrigger": "10", "prefetch": "50"}
        with pytest.raises(ConsumerError, match=r"option prefetch.*100 messages.*at least 100"):
            query.start()
        query.kill()

    def test_what_somebody_else_took_is_missing_and_may_come_later(
        self, vouch: BrokerProcess, fresh: Callable[[str], str], caplog: pytest.LogCaptureFixture
    ) -> None:
        name = fresh("source")
        world.declare(vouch.url, name)
        query = Query(url=vouch.url, queue=name, maxMessagesPerTrigger=100, readTimeoutMs=500)
        fill(vouch.url, name, range(10))
        query.start()
        with pytest.raises(Killed):
            query.trigger(until="logged")
        assert world.settles_at(vouch.url, name, 10)
        with channel_to(vouch.url) as channel:
            theirs = [channel.get(name), channel.get(name)]
            assert all(theirs)
            query.start()
            assert "2 were not redelivered" in caplog.text
            assert len(query.sink[0]) == 8
            # The next offset says that two are not done, also when there is nothing else.
            assert query.trigger() == 0
            assert query.offsets[-1]["done"] == {next(iter(query.offsets[-1]["done"])): [[3, 10]]}
            query.kill()
            query.start()
        query.drain()
        query.kill()
        assert query.ids() == once(10)

    def test_copies_fill_the_whole_window(
        self, vouch: BrokerProcess, fresh: Callable[[str], str]
    ) -> None:
        name = fresh("source")
        world.declare(vouch.url, name)
        query = Query(url=vouch.url, queue=name, maxMessagesPerTrigger=100, prefetch=100)
        fill(vouch.url, name, range(300))
        query.start()
        with pytest.raises(Killed):
            query.trigger(until="sunk")
        query.start()
        query.drain()
        query.kill()
        assert query.ids() == once(300)
        assert world.settles_at(vouch.url, name, 0)


class TestConnection:
    @pytest.fixture
    def cutter(self, broker: Broker, query: Query) -> Iterator[Cutter]:
        """The query's connection goes through it."""
        made = Cutter(broker.url)
        query.options["url"] = made.url
        yield made
        made.close()

    @both
    def test_cut_in_mid_batch(
        self, broker: Broker, queue: str, query: Query, cutter: Cutter
    ) -> None:
        fill(broker.url, queue, range(300))
        query.start()
        taken = query.first_rows()
        generation = query.driver._consumer.generation
        cutter.cut()
        assert query.driver._consumer.wait(
            lambda: query.driver._consumer.generation > generation, LIMIT_S
        )
        query.drain_to(300)
        query.drain()
        assert sorted(query.ids(), key=int) == [str(number) for number in range(300)]
        twice = sum(count > 1 for count in query.ids().values())
        assert twice == (taken if broker.is_referee else 0)
        query.kill()
        assert world.settles_at(broker.url, queue, 0)

    def test_heartbeats_go_on_between_triggers(
        self, broker: Broker, queue: str, query: Query, caplog: pytest.LogCaptureFixture
    ) -> None:
        query.options["url"] = broker.url + "?heartbeat=1"
        # Also while the driver does not read.
        query.options["maxBufferedBytes"] = "1k"
        fill(broker.url, queue, range(300))
        query.start()
        query.trigger()
        time.sleep(3.5)
        query.drain()
        assert query.ids() == once(300)
        assert "lost" not in caplog.text

    def test_a_full_buffer_stops_reading(self, broker: Broker, queue: str, query: Query) -> None:
        query.options |= {"maxBufferedBytes": "100k", "prefetch": "2000"}
        with channel_to(broker.url) as channel:
            channel.confirm_select()
            channel.publish_many([("", queue, b"\0\0", bytes(10_000)) for _ in range(1500)])
        query.start()
        query.trigger()
        time.sleep(0.5)
        # One read may go above it by what a read brings.
        assert query.driver._consumer.arrived()[1] < 100_000 + (2 << 20)
        assert query.drain() == 1500 - len(query.sink[0])

    def test_a_dead_broker_before_the_living_one(self, broker: Broker, query: Query) -> None:
        query.options["url"] = f"amqp://guest:guest@127.0.0.1:1/%2F,{broker.url}"
        query.start()
        assert query.trigger() == 0

    def test_the_broker_is_restarted(self, tmp_path: Any, fresh: Callable[[str], str]) -> None:
        broker = BrokerProcess(tmp_path)
        broker.start()
        try:
            name = fresh("source")
            world.declare(broker.url, name)
            query = Query(url=broker.url, queue=name, maxMessagesPerTrigger=100)
            fill(broker.url, name, range(250))
            query.start()
            query.trigger()
            broker.kill9()
            assert query.trigger() == 0
            broker.start()
            fill(broker.url, name, range(250, 300))
            query.drain_to(300)
            # Nothing more comes, and what came last is acked.
            query.drain()
            query.kill()
            assert query.ids() == once(300)
            assert world.settles_at(broker.url, name, 0)
        finally:
            broker.kill9()

    def test_nothing_is_handed_out_before_the_loss_is_noticed(
        self, tmp_path: Any, fresh: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What has arrived is handed out only by leave of a broker that lives."""
        broker = BrokerProcess(tmp_path)
        broker.start()
        try:
            name = fresh("source")
            world.declare(broker.url, name)
            query = Query(url=broker.url, queue=name, maxMessagesPerTrigger=100)
            fill(broker.url, name, range(250))
            query.start()
            query.trigger()
            consumer = query.driver._consumer
            assert consumer.wait(lambda: consumer.arrived()[0] >= 100, LIMIT_S)
            # The thread that reads is held up, as on a busy machine, until a trigger has asked.
            holds, asked = threading.Event(), threading.Event()
            turn, position = consumer._turn, consumer._guard.position

            def held_up() -> None:
                holds.set()
                asked.wait(LIMIT_S)
                turn()

            def ask() -> Any:
                try:
                    return position()
                finally:
                    asked.set()

            monkeypatch.setattr(consumer, "_turn", held_up)
            monkeypatch.setattr(consumer._guard, "position", ask)
            assert holds.wait(LIMIT_S)
            broker.kill9()
            assert query.trigger() == 0
            assert asked.is_set()
            broker.start()
            query.drain_to(250)
            query.drain()
            query.kill()
            assert query.ids() == once(250)
        finally:
            broker.kill9()


class TestRefused:
    """The query fails with the broker's own text, before anything is acked."""

    @both
    def test_no_such_queue(self, query: Query) -> None:
        query.options["queue"] = "nowhere"
        query.start()
        with pytest.raises(ConsumerError, match="404 NOT_FOUND - no queue 'nowhere' in vhost '/'"):
            query.trigger()

    def test_no_broker(self, query: Query) -> None:
        query.options["url"] = "amqp://guest:secret@127.0.0.1:1/"
        query.start()
        with pytest.raises(ConsumerError, match=r"guest@127\.0\.0\.1:1") as caught:
            query.trigger()
        assert "secret" not in str(caught.value)

    def test_wrong_password(self, broker: Broker, query: Query) -> None:
        query.options["url"] = broker.url.replace("guest:guest", "guest:secret")
        query.start()
        with pytest.raises(ConsumerError, match=r"403 .*ACCESS_REFUSED") as caught:
            query.trigger()
        assert "secret" not in str(caught.value)

    @both
    def test_the_queue_is_deleted(
        self, broker: Broker, query: Query, fresh: Callable[[str], str]
    ) -> None:
        name = fresh("source")
        world.declare(broker.url, name)
        query.options["queue"] = name
        query.start()
        assert query.trigger() == 0
        with channel_to(broker.url) as channel:
            channel.delete(name)
        with pytest.raises(ConsumerError, match=f"404 NOT_FOUND - no queue '{name}'"):
            query.drain(patience=20)

    @both
    def test_a_second_query_is_refused(self, broker: Broker, queue: str, query: Query) -> None:
        query.options["connectTimeoutMs"] = "700"
        query.start()
        query.trigger()
        second = query.twin()
        second.start()
        with pytest.raises(ConsumerError, match=r"403 ACCESS_REFUSED.*exclusive.*another query"):
            second.trigger()
        second.kill()
        query.kill()
        second.start()
        fill(broker.url, queue, range(5))
        assert second.drain() == 5
        second.kill()

    def test_queries_that_share_a_queue_are_at_least_once(
        self, broker: Broker, queue: str, query: Query
    ) -> None:
        """What the first had written and not finished, the second has too."""
        query.options["exclusive"] = "false"
        fill(broker.url, queue, range(100))
        query.start()
        with pytest.raises(Killed):
            query.trigger(until="sunk")
        second = query.twin()
        second.start()
        second.drain()
        second.kill()
        assert query.ids() == second.ids() == once(100)

    def test_many_queues_with_long_names(self, broker: Broker, fresh: Callable[[str], str]) -> None:
        """All their names would not go into the frame that begins a connection."""
        queues = [fresh("long" + "x" * 180) for _ in range(45)]
        with channel_to(broker.url) as channel:
            for name in queues:
                channel.declare(name, durable=False)
        query = Query(url=broker.url, queue=",".join(queues))
        query.start()
        for name in queues[:3]:
            fill(broker.url, name, range(10))
        assert query.drain() == 30
        query.kill()
        with channel_to(broker.url) as channel:
            for name in queues:
                channel.delete(name)

    @both
    def test_dedupe_seq_needs_a_broker_that_numbers(self, broker: Broker, query: Query) -> None:
        query.options["dedupe"] = "seq"
        query.start()
        if broker.is_referee:
            with pytest.raises(OptionError, match="dedupe: seq needs a broker that numbers"):
                query.trigger()
        else:
            assert query.trigger() == 0

    def test_a_stream_that_is_idle(
        self, broker: Broker, query: Query, fresh: Callable[[str], str]
    ) -> None:
        """It gives a consumer of a queue nothing: what is there came before the consumer."""
        name = fresh("stream")
        world.declare(broker.url, name, queue_type="stream")
        fill(broker.url, name, range(10))
        query.options["queue"] = name
        query.start(available_now=True)
        with pytest.raises(ConsumerError, match=f"queue '{name}' is a stream.*mode stream"):
            query.trigger()
        with channel_to(broker.url) as channel:
            channel.delete(name)

    @both
    def test_a_stream(self, broker: Broker, query: Query, fresh: Callable[[str], str]) -> None:
        name = fresh("stream")
        world.declare(broker.url, name, queue_type="stream")
        query.options["queue"] = name
        query.start()
        query.trigger()
        fill(broker.url, name, range(10))
        with pytest.raises(ConsumerError, match=f"queue '{name}' is a stream.*mode stream"):
            query.drain(patience=10)
        assert not query.sink
        with channel_to(broker.url) as channel:
            channel.delete(name)

    def test_a_message_copied_from_a_stream(self, broker: Broker, queue: str, query: Query) -> None:
        fill(broker.url, queue, range(10), headers={"x-stream-offset": 7})
        query.start()
        query.drain()
        assert query.ids() == once(10)

    def test_a_message_too_large(
        self, broker: Broker, queue: str, query: Query, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(queue_module, "MESSAGE_BYTES", 100_000)
        with channel_to(broker.url) as channel:
            channel.confirm_select()
            channel.publish_many([("", queue, b"\0\0", bytes(100_001))])
        query.start()
        with pytest.raises(ConsumerError, match=f"1000.. bytes in queue '{queue}'.*use mode spool"):
            query.drain()
        query.kill()
        assert world.settles_at(broker.url, queue, 1)

    def test_which_losses_pass(self) -> None:
        slow = bulk.BulkClosed(
            406,
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value "
            "used: 1800000 ms. This timeout value can be configured",
            is_connection=False,
        )
        assert is_delivery_timeout(slow)
        assert is_passing(slow)
        assert is_passing(bulk.BulkClosed(320, "CONNECTION_FORCED", is_connection=True))
        assert is_passing(bulk.BulkClosed(0, "lost", is_connection=True))
        assert is_passing(bulk.BulkTimeout("no answer"))
        for code in (403, 404, 405, 406, 530):
            assert not is_passing(bulk.BulkClosed(code, "x", is_connection=False))


class TestMessages:
    @both
    def test_of_every_shape(self, broker: Broker, queue: str, query: Query) -> None:
        bodies = [
            b"",
            b"x",
            bytes(range(256)) * 1024,
            bytes((20 if broker.is_referee else 15) << 20),
        ]
        rows = [("", queue, b"\0\0", body) for body in bodies]
        with channel_to(broker.url) as channel:
            channel.confirm_select()
            result = channel.publish_many(rows)
            assert result.confirmed == len(rows)
        query.columns = ("body", "headers", "properties_raw", "message_id")
        query.start()
        query.drain()
        got = [row["body"] for batch in query.sink.values() for row in batch]
        assert got == bodies

    @both
    def test_odd_headers(self, broker: Broker, queue: str, query: Query) -> None:
        """Names that are no UTF-8, every type of field, an empty table; each arrives once."""
        fields = (
            *(b"t\x01", b"b\xff", b"B\xff", b"s\xff\xfe", b"u\xff\xfe", b"I" + b"\xff" * 4),
            *(b"i" + b"\xff" * 4, b"l" + b"\xff" * 8, b"f" + bytes(4), b"d" + bytes(8)),
            *(b"D\x02" + bytes(4), b"T" + bytes(8), b"V", b"S\0\0\0\x02\xff\xfe", b"x\0\0\0\x01\0"),
            *(b"F\0\0\0\0", b"A\0\0\0\x02t\0"),
        )
        tables = [b"", *[b"\x03k\xff\xfe" + each for each in fields]]
        rows = [
            ("", queue, b"\x20\0" + len(table).to_bytes(4, "big") + table, b"%d" % number)
            for number, table in enumerate(tables)
        ]
        with channel_to(broker.url) as channel:
            channel.confirm_select()
            assert channel.publish_many(rows).confirmed == len(rows)
        query.columns = ("body", "headers")
        query.start()
        with pytest.raises(Killed):
            query.trigger(until="planned")
        query.start()
        query.drain()
        got = [row for batch in query.sink.values() for row in batch]
        assert [row["body"] for row in got] == [b"%d" % number for number in range(len(rows))]
        assert all(dict(row["headers"]).keys() >= {"k\\xff\\xfe"} for row in got[1:])
        query.kill()
        assert world.settles_at(broker.url, queue, 0)

    @pytest.mark.parametrize("broker", ["rabbit"], indirect=True)
    def test_one_that_makes_no_row_stops_nothing_and_is_told_of(
        self, broker: Broker, queue: str, query: Query, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Tables deeper than a row follows: without properties, but there, and acked.

        VouchMQ refuses to take what its own rules cannot read, so none of that reaches a source.
        """
        table = b""
        for _ in range(MAX_DEPTH + 2):
            table = b"\x01nF" + len(table).to_bytes(4, "big") + table
        deep = b"\x20\x00" + len(table).to_bytes(4, "big") + table
        fill(broker.url, queue, [0])
        with channel_to(broker.url) as channel:
            channel.confirm_select()
            channel.publish_many([("", queue, deep, b"deep")])
        fill(broker.url, queue, [2])
        query.columns = ("message_id", "headers", "body", "properties_raw")
        query.start()
        query.drain()
        rows = [row for batch in query.sink.values() for row in batch]
        assert [row["body"] for row in rows] == [b"0", b"deep", b"2"]
        assert [row["message_id"] for row in rows] == ["0", None, "2"]
        assert rows[1]["headers"] is None
        assert table in rows[1]["properties_raw"]
        assert query.driver.broken_count == 1
        assert "cannot read the properties of 1 messages" in caplog.text
        query.kill()
        assert world.settles_at(broker.url, queue, 0)

    def test_a_timestamp_that_no_calendar_has_is_the_only_null(
        self, broker: Broker, queue: str, query: Query
    ) -> None:
        """The rest of the message is there, and it is acked."""
        late = b"\x00\xc0" + b"\x02id" + (1 << 62).to_bytes(8, "big")
        fill(broker.url, queue, [0])
        with channel_to(broker.url) as channel:
            channel.confirm_select()
            channel.publish_many([("", queue, late, b"late")])
        fill(broker.url, queue, [2])
        query.columns = ("message_id", "timestamp", "body", "properties_raw")
        query.start()
        query.drain()
        rows = [row for batch in query.sink.values() for row in batch]
        assert [row["body"] for row in rows] == [b"0", b"late", b"2"]
        assert (rows[1]["timestamp"], rows[1]["message_id"]) == (None, "id")
        assert late[2:] in rows[1]["properties_raw"]
        assert query.driver.broken_count == 0
        query.kill()
        assert world.settles_at(broker.url, queue, 0)


def test_a_consumer_timeout_gives_the_batch_again(
    vouch: BrokerProcess, fresh: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    name = fresh("source")
    world.declare(vouch.url, name)
    query = Query(
        url=vouch.url, queue=name, maxMessagesPerTrigger=100, consumerTimeoutMs=1000, dedupe="none"
    )
    fill(vouch.url, name, range(10))
    query.start()
    assert query.trigger() == 10
    consumer = query.driver._consumer
    assert consumer.wait(lambda: consumer.generation > 0, LIMIT_S)
    assert "longer than the consumer timeout" in caplog.text
    query.drain(patience=8)
    assert query.ids() == {str(number): 2 for number in range(10)}
    query.kill()
    assert world.settles_at(vouch.url, name, 0)
