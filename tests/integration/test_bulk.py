"""The bulk client against a real broker, ours or the referee: every call of its API."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from decimal import Decimal

import pytest

from tests.conftest import Names
from tests.integration.broker_process import Broker, BrokerProcess
from tests.waiting import LIMIT_S
from vouchmq.kit.bulk import (
    BulkChannel,
    BulkClosed,
    BulkConnection,
    BulkError,
    decode_properties,
    encode_properties,
)

MIB = 1 << 20
# As RabbitMQ has it.
BROKER_FLAGS = ("--max-message-size-bytes", str(128 * MIB))

NONE = b"\x00\x00"
EVERYTHING = encode_properties(
    {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "headers": {
            "n": 7,
            "big": 2**40,
            "x": 0.1,
            "yes": True,
            "none": None,
            "deep": {"list": [1, "two", [3.5]]},
            "raw": b"\x00\xff",
            "when": datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC),
            "price": Decimal("12.5"),
        },
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "600000",
        "message_id": "m",
        "timestamp": 1_800_000_000,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
    }
)


@pytest.fixture
def connection(url: str) -> Iterator[BulkConnection]:
    """A connection of the test's own."""
    with BulkConnection.open(url, name="test") as made:
        yield made


@pytest.fixture
def channel(connection: BulkConnection) -> BulkChannel:
    """A channel with confirms."""
    made = connection.channel()
    made.confirm_select()
    return made


def refused(connection: BulkConnection, queue: str, **options: bool) -> str:
    """The broker's words when a consumer is refused; the channel is gone then."""
    with pytest.raises(BulkClosed) as caught:
        connection.channel().consume(queue, **options)  # type: ignore[arg-type]  # booleans
    assert not caught.value.is_connection
    return str(caught.value)


def test_the_broker_tells_who_it_is(connection: BulkConnection, broker: Broker) -> None:
    product = "RabbitMQ" if broker.is_referee else "VouchMQ"
    assert connection.server_properties["product"] == product
    assert "publisher_confirms" in connection.capabilities
    assert connection.frame_max == 131072
    assert not connection.is_blocked


def test_what_is_published_comes_back_bit_by_bit(channel: BulkChannel, names: Names) -> None:
    queue = channel.declare(names()).queue
    sizes = (0, 1, 256, 131064, 131065, 262_128, 1_000_000)
    rows = [
        ("", queue, raw, bytes([size % 251]) * size) for raw in (NONE, EVERYTHING) for size in sizes
    ]
    assert channel.publish_many(rows, mandatory=True).confirmed == len(rows)
    channel.consume(queue)
    taken = channel.wait(len(rows), LIMIT_S)
    assert [(each[2], each[3], each[4], each[5]) for each in taken] == rows
    assert [each[0] for each in taken] == list(range(1, len(rows) + 1))
    assert not any(each[1] for each in taken)
    assert decode_properties(taken[-1][4]).message_id == "m"
    channel.ack(taken[-1][0], multiple=True)
    channel.fence()
    assert channel.declare_passive(queue)[0] == 0


def test_a_body_of_20_mib_goes_both_ways(channel: BulkChannel, names: Names) -> None:
    queue = channel.declare(names()).queue
    body = bytes(range(256)) * (20 * 4096)
    result = channel.publish_many([("", queue, NONE, body)] * 2, mandatory=True)
    assert result.confirmed == 2
    channel.consume(queue)
    taken = channel.wait(2, LIMIT_S)
    assert [each[5] == body for each in taken] == [True, True]
    assert channel.arrived == (0, 0)


def test_many_messages_in_their_order(channel: BulkChannel, names: Names) -> None:
    queue = channel.declare(names(), durable=False).queue
    count = 10_000
    rows = (("", queue, NONE, b"%d" % number) for number in range(count))
    assert channel.publish_many(rows, mandatory=True).confirmed == count
    channel.qos(2000)
    tag = channel.consume(queue)
    bodies: list[bytes] = []
    while len(bodies) < count:
        run = channel.wait(1000, LIMIT_S)
        assert run
        bodies.extend(each[5] for each in run)
        channel.ack(run[-1][0], multiple=True)
    assert bodies == [b"%d" % number for number in range(count)]
    channel.cancel(tag)
    channel.fence()
    assert channel.declare_passive(queue) == (0, 0)


def test_the_prefetch_is_a_limit_until_something_is_settled(
    channel: BulkChannel, names: Names
) -> None:
    queue = channel.declare(names()).queue
    channel.publish_many([("", queue, NONE, b"%d" % number) for number in range(20)])
    channel.qos(5)
    channel.consume(queue)
    first = channel.wait(5, LIMIT_S)
    assert channel.wait(1, 0.3) == []
    assert [each[5] for each in first] == [b"0", b"1", b"2", b"3", b"4"]
    channel.ack_many([first[0][0], first[3][0]])
    second = channel.wait(2, LIMIT_S)
    assert [each[5] for each in second] == [b"5", b"6"]
    channel.nack(first[1][0])
    (again,) = channel.wait(1, LIMIT_S)
    assert (again[1], again[5]) == (True, b"1")
    channel.nack(second[-1][0], multiple=True, requeue=False)
    rest = channel.wait(4, LIMIT_S)
    assert [each[5] for each in rest] == [b"7", b"8", b"9", b"10"]


def test_columns_in_and_out(channel: BulkChannel, names: Names) -> None:
    queue = channel.declare(names()).queue
    bodies = [b"1", b"2", b"3"]
    result = channel.publish_columns(
        {
            "routing_key": queue,
            "body": bodies,
            "message_id": ["a", "b", None],
            "headers": {"source": "columns"},
            "delivery_mode": 2,
        },
        mandatory=True,
    )
    assert (result.confirmed, result.returned) == (3, [])
    channel.consume(queue, no_ack=True)
    channel.connection.poll_until(lambda: channel.arrived[0] == 3, LIMIT_S)
    columns = channel.take_columns(10)
    assert columns["body"] == bodies
    assert columns["routing_key"] == [queue] * 3
    read = [decode_properties(raw) for raw in columns["properties_raw"]]  # type: ignore[arg-type]
    assert [each.message_id for each in read] == ["a", "b", None]
    assert [each.headers for each in read] == [{"source": "columns"}] * 3


def test_a_refused_row_is_nacked_by_its_number(channel: BulkChannel, names: Names) -> None:
    arguments = {"x-max-length": 3, "x-overflow": "reject-publish"}
    queue = channel.declare(names(), arguments=arguments).queue
    result = channel.publish_many([("", queue, NONE, b"x")] * 3)
    assert (result.confirmed, result.nacked) == (3, [])
    other = channel.declare(names()).queue
    rows = [("", queue if number % 3 == 1 else other, NONE, b"x") for number in range(9)]
    result = channel.publish_many(rows)
    assert sorted(result.nacked) == [1, 4, 7]
    assert result.confirmed == 6


def test_rows_without_a_queue_come_back_and_are_confirmed(
    channel: BulkChannel, names: Names
) -> None:
    queue = channel.declare(names()).queue
    keys = [queue, "nowhere", queue, "nowhere.else", "nowhere"] * 300
    rows = [("", key, EVERYTHING, b"%d" % number) for number, key in enumerate(keys)]
    result = channel.publish_many(rows, mandatory=True)
    lost = [number for number, key in enumerate(keys) if key != queue]
    assert [each[0] for each in result.returned] == lost
    assert result.returned[1] == (3, 312, "NO_ROUTE", "", "nowhere.else")
    assert (result.confirmed, result.nacked) == (len(rows), [])
    assert channel.declare_passive(queue)[0] == 600
    assert channel.publish_many(rows).returned == []


def test_without_confirms_it_waits_until_the_broker_has_it(
    connection: BulkConnection, names: Names
) -> None:
    channel = connection.channel()
    queue = channel.declare(names()).queue
    result = channel.publish_many([("", queue, NONE, b"x")] * 3000)
    assert result.confirmed == 0
    assert connection.channel().declare_passive(queue)[0] == 3000
    result = channel.publish_many([("", "nowhere", NONE, b"x")], mandatory=True)
    assert [each[0] for each in result.returned] == [0]


def test_an_exchange_that_is_missing_ends_the_channel_only(
    connection: BulkConnection, channel: BulkChannel, names: Names
) -> None:
    missing = names("exchange")
    with pytest.raises(BulkClosed, match=f"404 NOT_FOUND - no exchange '{missing}'") as caught:
        channel.publish_many([(missing, "k", NONE, b"x")] * 10)
    assert (caught.value.code, caught.value.is_connection) == (404, False)
    assert caught.value.published is not None
    assert caught.value.published.confirmed == 0
    with pytest.raises(BulkClosed, match="404"):
        channel.qos(1)
    assert connection.channel().ended is None


def test_exchanges_bind_and_route(channel: BulkChannel, names: Names) -> None:
    exchange, queue = names("exchange"), names()
    channel.exchange_declare(exchange, "topic", durable=False)
    channel.exchange_declare(exchange, passive=True)
    channel.declare(queue, durable=False, auto_delete=True)
    channel.bind(queue, exchange, "order.*")
    rows = [(exchange, key, NONE, b"x") for key in ("order.new", "invoice.new", "order.paid")]
    result = channel.publish_many(rows, mandatory=True)
    assert [each[0] for each in result.returned] == [1]
    got = channel.get(queue, no_ack=True)
    assert got is not None
    assert (got[2], got[3]) == (exchange, "order.new")
    assert channel.purge(queue) == 1
    assert channel.get(queue) is None
    assert channel.delete(queue) == 0
    channel.exchange_delete(exchange)


def test_what_the_broker_refuses_is_told_in_its_words(
    connection: BulkConnection, names: Names
) -> None:
    assert refused(connection, "no.such.queue").startswith("404 NOT_FOUND - no queue")
    channel = connection.channel()
    queue = channel.declare(names()).queue
    channel.consume(queue, exclusive=True)
    assert refused(connection, queue).startswith("403 ACCESS_REFUSED")
    with pytest.raises(BulkClosed, match="406 PRECONDITION_FAILED"):
        connection.channel().declare(queue, durable=False)
    with pytest.raises(BulkClosed, match="406 PRECONDITION_FAILED"):
        other = connection.channel()
        other.ack(99)
        other.fence()
    with pytest.raises(ValueError, match="queue"):
        connection.channel().declare_passive("q" * 256)


def test_a_deleted_queue_cancels_its_consumer(connection: BulkConnection, names: Names) -> None:
    consumer, other = connection.channel(), connection.channel()
    queue = consumer.declare(names()).queue
    tag = consumer.consume(queue, tag="mine")
    assert tag == "mine"
    other.delete(queue)
    # It would wait longer than a test may take.
    assert consumer.wait(1, 10 * LIMIT_S) == []
    assert consumer.cancelled == "mine"
    assert consumer.ended is None


def test_names_of_any_kind(channel: BulkChannel, names: Names) -> None:
    queue = names() + " with spaces, ü, заказ"
    names.also(queue)
    assert channel.declare(queue).queue == queue
    assert channel.publish_many([("", queue, NONE, b"x")], mandatory=True).returned == []
    got = channel.get(queue)
    assert got is not None
    assert got[3] == queue


def test_a_stream_is_read_up_to_its_fence(connection: BulkConnection, names: Names) -> None:
    channel = connection.channel()
    channel.confirm_select()
    queue = channel.declare(names(), arguments={"x-queue-type": "stream"}).queue
    rows = [("", queue, NONE, b"%d" % number) for number in range(3000)]
    assert channel.publish_many(rows, mandatory=True).confirmed == 3000
    channel.qos(1000)
    channel.consume(queue, arguments={"x-stream-offset": "first"})
    bodies: list[bytes] = []
    offsets: list[object] = []
    while len(bodies) < 3000:
        run = channel.wait(500, LIMIT_S)
        assert run
        bodies.extend(each[5] for each in run)
        offsets.extend(
            (decode_properties(each[4]).headers or {})["x-stream-offset"] for each in run
        )
        channel.ack(run[-1][0], multiple=True)
    assert bodies == [row[3] for row in rows]
    assert offsets[0] == 0
    assert all(isinstance(each, int) for each in offsets)
    channel.fence()
    assert channel.take(10) == []


def test_a_wrong_login_is_refused_without_the_password(url: str) -> None:
    wrong = url.replace("guest:guest@", "guest:geheim@")
    with pytest.raises(BulkClosed, match=r"403 .*ACCESS_REFUSED") as caught:
        BulkConnection.open(wrong)
    assert (caught.value.code, caught.value.is_connection) == (403, True)
    assert "geheim" not in str(caught.value)
    with pytest.raises(BulkClosed, match=r"530 .*NOT_ALLOWED"):
        BulkConnection.open(url.replace("%2F", "no-such-host"))
    with pytest.raises(BulkError, match=r"403 .*; .*403 "):
        BulkConnection.open(f"{wrong},{wrong}")


def test_channels_are_numbered_again_when_they_are_closed(connection: BulkConnection) -> None:
    for _ in range(30):
        with connection.channel() as channel:
            channel.fence()
        with pytest.raises(BulkClosed, match="closed here"):
            channel.fence()


def test_a_connection_that_only_polls_stays_open(url: str) -> None:
    with BulkConnection.open(url, heartbeat_s=1) as connection:
        until = time.monotonic() + 3.5
        while time.monotonic() < until:
            connection.poll(0.7)
        connection.channel().fence()
    assert connection.ended is not None


def test_one_thread_reads_while_another_settles(connection: BulkConnection, names: Names) -> None:
    channel = connection.channel()
    channel.confirm_select()
    queue = channel.declare(names(), durable=False).queue
    count = 8000
    channel.publish_many([("", queue, NONE, b"%d" % number) for number in range(count)])
    channel.qos(500)
    is_over = threading.Event()

    def pump() -> None:
        while not is_over.is_set():
            connection.poll(0.2)

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        channel.consume(queue)
        bodies: list[bytes] = []
        deadline = time.monotonic() + LIMIT_S
        while len(bodies) < count and time.monotonic() < deadline:
            run = channel.take(100)
            if not run:
                time.sleep(0.001)
                continue
            bodies.extend(each[5] for each in run)
            channel.ack_many([each[0] for each in run])
        assert bodies == [b"%d" % number for number in range(count)]
        # Calls and publishes, too, while the other thread reads.
        assert channel.publish_many([("", queue, NONE, b"more")] * 1200).confirmed == 1200
        channel.fence()
    finally:
        is_over.set()
        thread.join()


def test_a_broker_that_dies_is_told_with_what_was_confirmed(own_broker: BrokerProcess) -> None:
    connection = BulkConnection.open(own_broker.url)
    channel = connection.channel()
    channel.confirm_select()
    queue = channel.declare("q").queue
    confirmed = 0

    def endless() -> Iterator[tuple[str, str, bytes, bytes]]:
        for number in range(10_000_000):
            if number == 20_000:
                own_broker.kill9()
            yield ("", queue, EVERYTHING, b"%d" % number)

    with pytest.raises(BulkClosed) as caught:
        channel.publish_many(endless())
    assert (caught.value.code, caught.value.is_connection) == (0, True)
    assert caught.value.published is not None
    confirmed = caught.value.published.confirmed
    assert 10_000 < confirmed <= 20_000
    own_broker.start(limit_s=60)
    with BulkConnection.open(own_broker.url) as again:
        assert again.channel().declare_passive(queue)[0] >= confirmed
