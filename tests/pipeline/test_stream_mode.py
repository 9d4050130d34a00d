"""Stream mode without Spark, against both brokers: tails, ranges, gaps, what retention takes."""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.integration.broker_process import Broker, BrokerProcess
from tests.pipeline.conftest import Referee
from tests.pipeline.streams import SMALL, declare, delete, options, publish, query
from vouchmq.kit.bulk import BulkClosed, BulkConnection
from vouchmq.kit.bulk.publish import AnyRow
from vouchmq.spark.columns import ALL
from vouchmq.spark.options import OptionError
from vouchmq.spark.source.streams.bounds import NotAStreamError, Probe, StreamGoneError
from vouchmq.spark.source.streams.mode import StreamBatchReader, StreamPartition
from vouchmq.spark.source.streams.range_reader import RangeReader, SilenceError
from vouchmq.spark.source.streams.ranges import DataLossError, OffsetError, Range

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


def test_batches_follow_each_other_and_a_replay_is_the_same(url: str, stream: str) -> None:
    publish(url, stream, 0, 1000)
    with query(options(url, stream, maxMessagesPerTrigger=300, minPartitions=3)) as run:
        assert run.run() == 4
        assert run.ids == list(range(1000))
        assert [row["offset"] for row in run.rows] == list(range(1000))
        assert {row["queue"] for row in run.rows} == {stream}
        assert len(run.reader.partitions(*run.log[1])) == 3
        # Once more in this process, and in another one, which asks nothing else before.
        again = run.read(run.log[1])
        assert again == run.rows[300:600]
        run.restart()
        assert run.read(run.log[1]) == again
        assert run.plan() is None
        publish(url, stream, 1000, 1010)
        assert run.run() == 1
        assert run.ids == list(range(1010))


def test_the_tail_is_right_under_load(url: str, stream: str) -> None:
    """What was confirmed before the question is below the tail, however busy the broker is."""
    confirmed = [0]
    done = threading.Event()

    def publish_on() -> None:
        while not done.is_set():
            publish(url, stream, confirmed[0], confirmed[0] + 200)
            confirmed[0] += 200

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        with Probe(options(url, stream)) as probe:
            for _ in range(25):
                before = confirmed[0]
                assert probe.newest(stream).next >= before
    finally:
        done.set()
        publisher.join()
    with Probe(options(url, stream)) as probe:
        tail = probe.newest(stream)
        assert tail.next >= confirmed[0] > 0
        assert tail.mean_bytes == pytest.approx(100 + 35, abs=20)
        assert probe.oldest(stream) == 0


STUTTER = """
{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{stream}">>)),
Writer = amqqueue:get_pid(Q),
Loop = fun Again(0) -> ok;
           Again(Left) ->
               erlang:suspend_process(Writer), timer:sleep(20),
               erlang:resume_process(Writer), timer:sleep(1),
               Again(Left - 1)
       end,
spawn(fun() -> Loop({times}) end), ok.
"""


def test_a_writer_that_is_slow_to_answer_is_waited_for(rabbit: Referee, fresh: Fresh) -> None:
    """RabbitMQ sends nothing before the stream's writer has said that there is something."""
    stream = fresh("stream")
    declare(rabbit.url, stream)
    publish(rabbit.url, stream, 0, 50)
    rabbit.control("eval", STUTTER.format(stream=stream, times=200))
    ends_at = time.monotonic() + 4
    with Probe(options(rabbit.url, stream)) as probe:
        while time.monotonic() < ends_at:
            assert probe.oldest(stream) == 0
            assert probe.since(stream, datetime(2020, 1, 1, tzinfo=UTC)) == 0
            assert probe.newest(stream).next == 50


def test_an_empty_stream_is_waited_at(url: str, stream: str) -> None:
    with query(options(url, stream)) as run:
        assert run.run() == 0
        # It answers although nothing comes.
        assert run.plan() is None
        assert run.reader.reportLatestOffset() == {"v": 1, "next": {stream: 0}}
        # News is noticed while it waits, on the consumers that are open already.
        publish(url, stream, 0, 3)
        assert run.run() == 1
        assert run.ids == [0, 1, 2]


def test_offsets_with_gaps(either: Broker, fresh: Fresh) -> None:
    stream = fresh("stream")
    declare(either.url, stream, **{**SMALL, "x-max-length-bytes": 10_000_000})
    publish(either.url, stream, 0, 5000)
    with query(options(either.url, stream, maxMessagesPerTrigger=331, minPartitions=2)) as run:
        run.run()
        offsets = [row["offset"] for row in run.rows]
        assert run.ids == list(range(5000))
        assert offsets == sorted(set(offsets))
        assert run.log[-1][1]["next"][stream] == offsets[-1] + 1
        if either.is_referee:
            # Else this test has shown nothing.
            assert offsets[-1] > 4999
        # A range that begins or ends in a gap, or is nothing else, gives what lies in it.
        holes = sorted(set(range(offsets[-1] + 1)) - set(offsets))
        for hole in holes[:3]:
            for start, stop in ((hole - 1, hole + 1), (hole, hole + 1), (hole, hole + 2)):
                reader = RangeReader(
                    options(either.url, stream), ("offset",), Range(stream, start, stop)
                )
                got = [row["offset"] for each in reader.batches() for row in each.to_pylist()]
                assert got == [each for each in range(start, stop) if each != hole]


def test_a_projection_builds_only_its_columns(url: str, stream: str) -> None:
    publish(url, stream, 0, 10)
    with query(options(url, stream), ("body", "message_id")) as run:
        run.run()
        assert run.ids == list(range(10))
        assert run.rows[3] == {"body": b"x" * 100, "message_id": "3"}


def test_two_streams_share_a_trigger_by_what_waits(url: str, fresh: Fresh) -> None:
    large, small = fresh("large"), fresh("small")
    declare(url, large)
    declare(url, small)
    publish(url, large, 0, 1800)
    publish(url, small, 10_000, 10_200)
    with query(options(url, large, small, maxMessagesPerTrigger=500)) as run:
        run.plan()
        assert run.log[0][1]["next"] == dict(sorted({large: 450, small: 50}.items()))
        assert [(p.range.start, p.range.stop) for p in run.reader.partitions(*run.log[0])]
        run.rows += run.read(run.log[0])
        assert run.run() == 3
        assert sorted(run.ids) == [*range(1800), *range(10_000, 10_200)]
        # Without limits, as with Trigger.Once.
        publish(url, large, 1800, 2900)
        batch = run.plan(ReadAllAvailable())
        assert batch is not None
        assert len(run.read(batch)) == 1100


def test_a_batch_is_also_limited_by_size(url: str, stream: str) -> None:
    publish(url, stream, 0, 100, b"x" * 10_000)
    with query(options(url, stream, maxBytesPerTrigger="200k")) as run:
        assert 4 <= run.run() <= 6
        assert run.ids == list(range(100))


def test_available_now_reads_what_is_there_and_no_more(url: str, stream: str) -> None:
    publish(url, stream, 0, 100)
    with query(options(url, stream, maxMessagesPerTrigger=40)) as run:
        run.reader.prepareForTriggerAvailableNow()
        publish(url, stream, 100, 150)
        assert run.run() == 3
        assert run.ids == list(range(100))
        run.restart()
        run.reader.prepareForTriggerAvailableNow()
        assert run.run() == 2
        assert run.ids == list(range(150))


def test_a_query_from_latest_on_begins_where_it_was_first_said(url: str, stream: str) -> None:
    """However often Spark asks for the beginning, and whatever has come in between."""
    publish(url, stream, 0, 1000)
    asked = options(url, stream, startingOffsets="latest", maxMessagesPerTrigger=50)
    with query(asked) as run:
        begin = run.reader.initialOffset()
        assert begin["next"] == begin["from"] == {stream: 1000}
        publish(url, stream, 1000, 1100)
        assert run.reader.initialOffset() == begin
        # Batch 0 is made even of nothing; what has come is in it, as far as the limit goes.
        batch = run.plan()
        assert batch is not None
        assert batch[1]["next"] == {stream: 1050}
        publish(url, stream, 1100, 1300)
        assert [row["offset"] for row in run.read(batch)] == list(range(1000, 1050))
        # Not committed: a new process is asked for the beginning again, and then for the batch.
        run.restart()
        assert run.reader.initialOffset()["next"] == {stream: 1300}
        run.rows += run.read(batch)
        assert run.run() == 5
        assert run.ids == list(range(1000, 1300))


def test_a_first_batch_of_nothing_stays_one(url: str, stream: str) -> None:
    """Spark makes batch 0 at once; its end is all that says where the query has begun."""
    publish(url, stream, 0, 10)
    with query(options(url, stream, startingOffsets="latest")) as run:
        begin = run.reader.initialOffset()
        assert run.plan() is None
        assert list(run.reader.partitions(begin, begin)) == []
        run.restart()
        publish(url, stream, 10, 20)
        later = run.reader.initialOffset()
        assert list(run.reader.partitions(later, begin)) == []
        run.log.append((begin, begin))
        assert run.run() == 1
        assert run.ids == list(range(10, 20))


def test_latest_of_a_busy_stream_is_no_loss_for_available_now(url: str, stream: str) -> None:
    publish(url, stream, 0, 100)
    with query(options(url, stream, startingOffsets="latest")) as run:
        run.reader._asked.prepareForTriggerAvailableNow()
        publish(url, stream, 100, 150)
        begin = run.reader.initialOffset()
        assert run.plan() is None
        run.log.append((begin, begin))
        run.restart()
        publish(url, stream, 150, 160)
        run.reader.prepareForTriggerAvailableNow()
        assert run.run() == 1
        assert run.ids == list(range(begin["next"][stream], 160))


def test_available_now_ends_where_it_was_first_said(url: str, stream: str) -> None:
    publish(url, stream, 0, 10)
    with query(options(url, stream)) as run:
        run.reader.prepareForTriggerAvailableNow()
        publish(url, stream, 10, 20)
        run.reader.prepareForTriggerAvailableNow()
        run.run()
        assert run.ids == list(range(10))


def test_a_query_cannot_begin_beyond_the_end(url: str, stream: str) -> None:
    publish(url, stream, 0, 40)
    at = f'{{"{stream}": 41}}'
    for more in ({}, {"failOnDataLoss": "false"}):
        with (
            query(options(url, stream, startingOffsets=at, **more)) as run,
            pytest.raises(OptionError, match=r"startingOffsets: .* from 41 on, and ends before 40"),
        ):
            run.plan()


def test_a_batch_that_an_earlier_version_has_logged(url: str, stream: str) -> None:
    """Its end does not say where it began: it is read where Spark says, which may be too late."""
    publish(url, stream, 0, 30)
    with query(options(url, stream)) as run:
        run.plan()
        ((start, end),) = run.log
        for offset in (start, end):
            del offset["from"]
        assert [row["offset"] for row in run.read((start, end))] == list(range(30))
    late = {"v": 1, "next": {stream: 31}}
    with query(options(url, stream, startingOffsets="latest")) as run:
        with pytest.raises(DataLossError, match="does not say where the batch began"):
            run.reader.partitions(late, end)
        run.restart(options(url, stream, startingOffsets="latest", failOnDataLoss="false"))
        assert list(run.reader.partitions(late, end)) == []


def test_where_a_new_query_starts(url: str, stream: str) -> None:
    publish(url, stream, 0, 10)
    time.sleep(1.1)
    between = datetime.now(UTC)
    time.sleep(1.1)
    publish(url, stream, 10, 20)
    for start, expected in (
        ("earliest", 0),
        ("latest", 20),
        (f'{{"{stream}": 7}}', 7),
        (between.isoformat(), 10),
        ((between + timedelta(hours=1)).isoformat(), 20),
    ):
        with query(options(url, stream, startingOffsets=start)) as run:
            run.run()
            assert run.ids == list(range(expected, 20)), start


def test_retention_ahead_of_the_checkpoint(
    either: Broker, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    url, stream = either.url, fresh("stream")
    declare(url, stream, **SMALL)
    # Few enough to be kept: RabbitMQ drops the rest in its own time, also while it is read.
    publish(url, stream, 0, 300, b"x" * 300)
    with query(options(url, stream)) as run:
        run.run()
        read = len(run.rows)
        publish(url, stream, 300, 8000, b"x" * 300)
        batch = run.plan()
        assert batch is not None
        with pytest.raises(DataLossError, match=r"'.*', offsets \d+ to \d+: \d+ to \d+ are gone"):
            run.read(batch)
        run.restart(options(url, stream, failOnDataLoss="false"))
        with caplog.at_level(logging.WARNING):
            run.rows += run.read(batch)
        assert "data loss" in caplog.text
        # A new query begins at what there is, and misses nothing.
        late = run.ids[read:]
        assert late[0] > 300
        assert late == list(range(late[0], 8000))
    with query(options(url, stream)) as run:
        run.run()
        assert run.ids == late


def test_retention_in_front_of_a_reader(either: Broker, fresh: Fresh) -> None:
    """A task has read a part when the rest of its range is dropped: it notices."""
    url, stream = either.url, fresh("stream")
    declare(url, stream, **SMALL)
    publish(url, stream, 0, 1500, b"x" * 100)
    stop = 1500
    reader = RangeReader(
        options(url, stream, prefetch=10), ("message_id", "offset"), Range(stream, 0, stop)
    )
    reader._batch_rows = 10
    batches = reader.batches()
    first = next(batches)
    assert first.num_rows < 1000
    publish(url, stream, 1500, 12_000, b"x" * 300)
    with pytest.raises(DataLossError):
        list(batches)


def test_silence_where_retention_has_overtaken_the_reader(
    vouch: Broker, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ's consumer may be given nothing more once its segment is removed."""
    url, stream = vouch.url, fresh("stream")
    declare(url, stream, **SMALL)
    publish(url, stream, 0, 1500, b"x" * 100)
    # Without acks the window stays full after five.
    monkeypatch.setattr("vouchmq.kit.bulk.BulkChannel.ack", lambda *_, **__: None)
    asked = options(url, stream, readTimeoutMs=500, prefetch=5)
    reader = RangeReader(asked, ("offset",), Range(stream, 0, 1500))
    reader._batch_rows = 2
    batches = reader.batches()
    assert next(batches).column("offset")[0].as_py() == 0
    publish(url, stream, 1500, 12_000, b"x" * 300)
    with pytest.raises(DataLossError, match="retention was faster than the query"):
        list(batches)


def test_a_stream_that_was_declared_again(
    url: str, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(url, stream, 0, 500)
    with query(options(url, stream)) as run:
        run.run()
        delete(url, stream)
        declare(url, stream)
        publish(url, stream, 7000, 7010)
        run.restart()
        with pytest.raises(DataLossError, match="continues at offset 500"):
            run.plan()
        with pytest.raises(DataLossError, match=r"ends before 10|deleted and declared again"):
            run.read(run.log[0])
        run.restart(options(url, stream, failOnDataLoss="false"))
        with caplog.at_level(logging.WARNING):
            assert run.run() == 1
        assert "declared again" in caplog.text
        assert run.ids[500:] == list(range(7000, 7010))
        publish(url, stream, 7010, 7013)
        assert run.run() == 1
        assert run.ids[510:] == [7010, 7011, 7012]


def test_a_stream_that_is_deleted_while_it_is_read(url: str, stream: str) -> None:
    publish(url, stream, 0, 20)
    asked = options(url, stream, readTimeoutMs=4000)
    with query(asked) as run:
        run.run()
        run.plan()
        delete(url, stream)
        with pytest.raises(BulkClosed, match=f"404 NOT_FOUND - no queue '{stream}'"):
            for _ in range(3):
                run.plan()
    declare(url, stream)
    publish(url, stream, 0, 20)
    deleting = threading.Timer(0.3, delete, (url, stream))
    deleting.start()
    with pytest.raises((StreamGoneError, BulkClosed), match=r"was deleted|404"):
        list(RangeReader(asked, ("offset",), Range(stream, 0, 100)).batches())
    deleting.join()


def test_silence_before_the_end_is_an_error(url: str, stream: str) -> None:
    publish(url, stream, 0, 20)
    asked = options(url, stream, readTimeoutMs=500)
    with pytest.raises(DataLossError, match="the stream ends before offset 20"):
        list(RangeReader(asked, ("offset",), Range(stream, 0, 30)).batches())


def test_a_broker_that_sends_nothing_fails_the_task(
    url: str, stream: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if "rabbit" in request.node.name:
        pytest.skip("RabbitMQ sends whole chunks of a stream, whatever the prefetch (C-77)")
    publish(url, stream, 0, 20)
    monkeypatch.setattr("vouchmq.kit.bulk.BulkChannel.ack", lambda *_, **__: None)
    # Without acks the window stays full after ten.
    asked = options(url, stream, readTimeoutMs=500, prefetch=5)
    with pytest.raises(SilenceError, match="no message for 500 ms"):
        list(RangeReader(asked, ("offset",), Range(stream, 0, 20)).batches())


def test_a_queue_is_no_stream(url: str, fresh: Fresh) -> None:
    queue = fresh("queue")
    with BulkConnection.open(url) as connection:
        connection.channel().declare(queue)
        publish(url, queue, 0, 3)
        with (
            query(options(url, queue)) as run,
            pytest.raises((NotAStreamError, BulkClosed), match="x-stream-offset"),
        ):
            run.run()
        # Nothing was acked.
        assert connection.channel().declare_passive(queue)[0] == 3
        connection.channel().delete(queue)


def test_queues_that_join_and_leave_a_query(url: str, stream: str, fresh: Fresh) -> None:
    other = fresh("stream")
    declare(url, other, **SMALL)
    publish(url, stream, 0, 10)
    publish(url, other, 100, 8000, b"x" * 300)
    with query(options(url, stream)) as run:
        run.run()
        run.restart(options(url, stream, other))
        run.run()
        joined = run.ids[10:]
        # Retention took the first ones before the query knew of it: no loss.
        assert joined[0] > 100
        assert joined == list(range(joined[0], 8000))
        run.restart(options(url, stream))
        with pytest.raises(OffsetError, match=other):
            run.plan()


def test_batch_reads_have_two_ends(url: str, stream: str) -> None:
    publish(url, stream, 0, 100)

    def ranges(**more: object) -> list[tuple[int, int]]:
        reader = StreamBatchReader(options(url, stream, **more), ("offset",))
        parts = reader.partitions()
        assert all(isinstance(part, StreamPartition) for part in parts)
        return [(part.range.start, part.range.stop) for part in parts]  # type: ignore[attr-defined]

    assert ranges() == [(0, 100)]
    assert ranges(minPartitions=2) == [(0, 50), (50, 100)]
    at = f'{{"{stream}": 40}}'
    assert ranges(startingOffsets=at) == [(40, 100)]
    assert ranges(endingOffsets=at) == [(0, 40)]
    assert ranges(startingOffsets=at, endingOffsets=at) == []
    assert ranges(startingOffsets="latest") == []
    with pytest.raises(OptionError, match="endingOffsets: 101 lies beyond the end"):
        ranges(endingOffsets=f'{{"{stream}": 101}}')
    with pytest.raises(OptionError, match=r"startingOffsets: .* from 41 on, and ends before 40"):
        ranges(startingOffsets=f'{{"{stream}": 41}}', endingOffsets=at)


def test_a_broker_that_is_restarted_in_between(tmp_path: Path, fresh: Fresh) -> None:
    """Tasks and driver connect again, each for as long as `readTimeoutMs`."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    stream = fresh("stream")
    try:
        declare(broker.url, stream)
        publish(broker.url, stream, 0, 30_000)
        with query(options(broker.url, stream, maxMessagesPerTrigger=30_000)) as run:
            batch = run.plan()
            assert batch is not None
            (partition,) = run.reader.partitions(*batch)
            batches = run.reader.read(partition)
            rows = next(batches).to_pylist()
            broker.restart()
            for each in batches:
                rows += each.to_pylist()
            assert [row["offset"] for row in rows] == list(range(30_000))
            broker.restart()
            publish(broker.url, stream, 30_000, 30_005)
            later = run.plan()
            assert later is not None
            assert len(run.read(later)) == 5
            # Away when the driver asks: nothing new, for a while.
            assert run.plan() is None
            broker.kill9()
            assert run.plan() is None
            assert run.plan() is None
            broker.start()
            publish(broker.url, stream, 30_005, 30_007)
            assert run.run() == 1
            assert run.plan() is None
            broker.kill9()
            run.restart(options(broker.url, stream, readTimeoutMs=300))
            with pytest.raises(BulkClosed, match="Connection refused"):
                for _ in range(20):
                    run.plan()
    finally:
        broker.kill9()


def test_messages_of_every_shape(either: Broker, fresh: Fresh) -> None:
    """Each becomes a row with its offset, also those whose properties no column can hold."""
    url, stream = either.url, fresh("stream")
    declare(url, stream)
    far = b"\x20\x40" + struct.pack(">I", 0) + struct.pack(">Q", 2**62)
    rows: list[AnyRow] = [
        ("", stream, None, b""),
        ("", stream, {}, b"a"),
        ("", stream, {"headers": {}}, b""),
        ("", stream, far, b"timestamp out of range"),
        ("", stream, {"headers": {"x-stream-offset": "mine", "n": {"a": [1, None]}}}, b"c"),
        ("", stream, {"message_id": "two frames"}, bytes(300_000)),
        ("", stream, {"message_id": "large"}, bytes(15 << 20)),
        ("", stream, b"\x80\x00\x02\xff\xfe", b"not UTF-8"),
    ]
    with BulkConnection.open(url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        assert channel.publish_many(rows).confirmed == len(rows)
    for columns in (ALL, ("body",)):
        reader = RangeReader(options(url, stream), columns, Range(stream, 0, len(rows)))
        got = [row for batch in reader.batches() for row in batch.to_pylist()]
        assert [row["body"] for row in got] == [row[3] for row in rows]
        if "offset" in columns:
            assert [row["offset"] for row in got] == list(range(len(rows)))
            # RabbitMQ makes another time of it.
            assert either.is_referee or got[3]["timestamp"] is None
            assert got[7]["content_type"] == "\\xff\\xfe"
            assert {row["queue"] for row in got} == {stream}
