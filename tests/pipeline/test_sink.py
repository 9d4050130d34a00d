"""A task of the sink, without Spark, against both brokers: done means confirmed, or it fails."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.integration.broker_process import BrokerProcess
from tests.pipeline import peer
from tests.pipeline.conftest import Referee
from vouchmq.spark.options import SinkOptions
from vouchmq.spark.sink.publishes import RowError
from vouchmq.spark.sink.sink import BatchWriter, Published, SinkError, publish_task

Either = BrokerProcess | Referee


def batch(first: int, stop: int, body: bytes = b"") -> pa.RecordBatch:
    bodies = [body or str(number).encode() for number in range(first, stop)]
    return pa.record_batch({"body": pa.array(bodies, pa.binary())})


def publish(
    url: str, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch], **given: str
) -> Published:
    options = SinkOptions.parse({"url": url, **given})
    return publish_task(options, iter(batches), "query/1/0")


@pytest.fixture
def queue(either: Either, fresh: Callable[[str], str]) -> str:
    """A durable queue on the broker of the test."""
    name = fresh("sink")
    peer.declare(either.url, name)
    return name


def test_a_task_that_is_done_has_stored_each_row_in_order(either: Either, queue: str) -> None:
    done = publish(either.url, [batch(0, 3000), batch(0, 0), batch(3000, 5000)], routingKey=queue)
    assert done == Published(rows=5000)
    stored = peer.drain(either.url, queue)
    assert [each.body for each in stored] == [str(number).encode() for number in range(5000)]
    assert [each.id for each in stored] == [f"query/1/0/{number}" for number in range(5000)]
    # delivery-mode 2 is the last octet in front of the id.
    assert {each.properties[:3] for each in stored} == {b"\x10\x80\x02"}


def test_bodies_of_every_size(either: Either, queue: str) -> None:
    bodies = [b"", b"x", os.urandom(131_064), os.urandom(131_065), os.urandom(5 << 20), b"end"]
    rows = pa.record_batch({"body": pa.array(bodies, pa.binary())})
    assert publish(either.url, [rows], routingKey=queue).rows == len(bodies)
    assert [each.body for each in peer.drain(either.url, queue)] == bodies


def test_unroutable_rows_fail_the_task_with_the_brokers_words(either: Either, queue: str) -> None:
    keys = [queue, "nosuch", queue, "nosuch"]
    rows = pa.record_batch({"body": pa.array(keys), "routing_key": pa.array(keys)})
    with pytest.raises(SinkError) as raised:
        publish(either.url, [rows])
    assert str(raised.value) == "unroutable: 312 NO_ROUTE exchange= key=nosuch (2 rows)"
    assert publish(either.url, [rows], onUnroutable="count") == Published(4, unroutable=2)
    assert publish(either.url, [rows], mandatory="false") == Published(4)
    assert len(peer.drain(either.url, queue)) == 6


def test_nacked_rows_fail_the_task_when_nobody_makes_room(
    either: Either, fresh: Callable[[str], str]
) -> None:
    full = fresh("full")
    peer.declare(either.url, full, x_max_length=5, x_overflow="reject-publish")
    with pytest.raises(SinkError) as raised:
        publish(either.url, [batch(0, 5), batch(5, 25)], routingKey=full, onNack="fail")
    text = str(raised.value)
    assert text.startswith("nacked: 20 of 20 rows, after 0 retries; the first is row 5 exchange=")
    assert text.endswith(f"key={full}")
    began = time.monotonic()
    with pytest.raises(SinkError, match="nacked: 20 of 20 rows, after 2 retries"):
        publish(either.url, [batch(5, 25)], routingKey=full, onNack="retry:2")
    # 0.1 s, then 0.2 s.
    assert time.monotonic() - began >= 0.3
    assert len(peer.drain(either.url, full)) == 5


def test_nacked_rows_are_published_again_until_there_is_room(
    either: Either, fresh: Callable[[str], str]
) -> None:
    full = fresh("full")
    peer.declare(either.url, full, x_max_length=5, x_overflow="reject-publish")
    taken: list[bytes] = []
    rows = 60

    def make_room() -> None:
        with peer.channel(either.url) as consumer:
            time.sleep(0.2)
            consumer.consume(full, no_ack=True)
            end = time.monotonic() + peer.PATIENCE_S
            while len(taken) < rows and time.monotonic() < end:
                taken.extend(body for *_, body in consumer.wait(1, 0.1))

    taker = threading.Thread(target=make_room)
    taker.start()
    try:
        done = publish(either.url, [batch(0, rows)], routingKey=full, onNack="retry:50")
    finally:
        taker.join()
    assert done.rows == rows
    assert done.nacked >= rows - 5
    # Each row once: what is nacked is nowhere.
    assert sorted(taken) == sorted(str(number).encode() for number in range(rows))


def test_an_exchange_that_there_is_not(either: Either) -> None:
    with pytest.raises(SinkError) as raised:
        publish(either.url, [batch(0, 5000)], exchange="nosuch", routingKey="k")
    assert str(raised.value).startswith(
        "the broker closed the channel: 404 NOT_FOUND - no exchange 'nosuch' in vhost '/'"
    )


def test_a_user_who_may_not_write(either: Either, queue: str) -> None:
    url = either.url.replace("guest:guest", "limited:limited")
    with pytest.raises(SinkError, match="the broker closed the channel: 403 ACCESS_REFUSED"):
        publish(url, [batch(0, 10)], exchange="amq.topic", routingKey=queue)
    assert peer.drain(either.url, queue) == []


def test_a_wrong_password_is_in_no_text(either: Either) -> None:
    url = either.url.replace("guest:guest", "guest:s3cret")
    with pytest.raises(SinkError, match=r"no connection: .*ACCESS_REFUSED") as raised:
        publish(url, [batch(0, 10)], routingKey="q")
    assert "s3cret" not in str(raised.value)


def test_the_next_broker_is_taken_when_one_is_not_there(either: Either, queue: str) -> None:
    nobody = "amqp://guest:s3cret@127.0.0.1:1/"
    publish(f"{nobody},{either.url}", [batch(0, 10)], routingKey=queue)
    assert len(peer.drain(either.url, queue)) == 10
    with pytest.raises(SinkError, match=r"no connection: .*127\.0\.0\.1:1") as raised:
        publish(nobody, [batch(0, 1)], routingKey=queue)
    assert "s3cret" not in str(raised.value)


def test_a_row_that_cannot_be_published_is_named_by_its_place_in_the_task(
    either: Either, queue: str
) -> None:
    bad = pa.record_batch({"body": pa.array([b"x", None])})
    with pytest.raises(RowError, match="row 1001: column body: is null"):
        publish(either.url, [batch(0, 1000), bad], routingKey=queue)
    assert len(peer.drain(either.url, queue)) == 1000


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("routing_key", "k" * 256, "routing_key is longer than 255 bytes"),
        ("exchange", "ü" * 128, "exchange is longer than 255 bytes"),
        ("properties_raw", bytes(200_000), "properties of 200000 bytes: over frame_max"),
    ],
)
def test_what_does_not_fit_the_wire_is_named_by_its_place_in_the_task(
    either: Either, queue: str, column: str, value: str | bytes, said: str
) -> None:
    bad = pa.record_batch({"body": pa.array([b"x", b"y"]), column: pa.array([None, value])})
    with pytest.raises(RowError) as raised:
        publish(either.url, [batch(0, 1000), bad], routingKey=queue)
    assert str(raised.value) == f"row 1001: {said}"
    assert len(peer.drain(either.url, queue)) == 1000


def test_a_task_without_rows_needs_no_broker() -> None:
    nobody = "amqp://127.0.0.1:1/"
    assert publish(nobody, [batch(0, 0)], routingKey="q") == Published()
    assert publish(nobody, [], routingKey="q") == Published()


def test_the_driver_hears_of_totals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="vouchmq.spark.sink.sink")
    writer = BatchWriter(SinkOptions.parse({"url": "amqp://broker", "exchange": "x"}))
    writer.commit([Published(5), None, Published(7, nacked=2)])
    writer.commit([Published(5, unroutable=2)])
    writer.abort([None, Published(5)])
    assert [record.message for record in caplog.records] == [
        "amqp write: 12 rows confirmed, 2 nacks",
        "amqp write: 5 rows confirmed, 0 nacks",
        "amqp write: 2 of 5 rows unroutable",
        "amqp write failed; its other tasks have published 5 rows",
    ]


def test_a_blocked_connection_waits_and_goes_on(
    rabbit: Referee, fresh: Callable[[str], str]
) -> None:
    queue = fresh("blocked")
    peer.declare(rabbit.url, queue)
    rabbit.control("set_vm_memory_high_watermark", "0.00001")
    try:
        with pytest.raises(SinkError) as raised:
            publish(rabbit.url, [batch(0, 10)], routingKey=queue, confirmTimeoutMs="700")
        assert str(raised.value).startswith("confirmTimeoutMs: no confirm in 0.7 s; 10 publishes")
        assert "blocked publishing: low on memory" in str(raised.value)
        timer = threading.Timer(0.5, rabbit.control, ("set_vm_memory_high_watermark", "0.4"))
        timer.start()
        publish(rabbit.url, [batch(10, 30)], routingKey=queue)
        timer.join()
    finally:
        rabbit.control("set_vm_memory_high_watermark", "0.4")
    # What timed out is published or not: it is for the next try of the task to say it again.
    stored = [int(each.body) for each in peer.drain(rabbit.url, queue)]
    assert [each for each in stored if each >= 10] == list(range(10, 30))


def test_a_broker_in_alarm_is_named_as_the_reason(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, flags=["--vm-memory-high-watermark", "1MB"])
    broker.start(limit_s=60)
    try:
        with pytest.raises(SinkError) as raised:
            publish(broker.url, [batch(0, 10)], routingKey="q", confirmTimeoutMs="500")
        assert "the broker has blocked publishing: low on memory" in str(raised.value)
    finally:
        broker.kill9()


def test_a_broker_that_dies_in_the_middle_of_a_task(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start(limit_s=60)
    peer.declare(broker.url, "q")

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(0, 1000)
        broker.kill9()
        yield batch(1000, 2000)

    try:
        with pytest.raises(SinkError, match="the broker closed the connection: "):
            publish(broker.url, batches(), routingKey="q")
        broker.restart()
        # What was confirmed before is there.
        assert len(peer.drain(broker.url, "q")) >= 1000
    finally:
        broker.kill9()
