"""pika's BlockingConnection: what a beginner's script does, and what it may rely on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exchange_type import ExchangeType

from tests.conftest import Names
from tests.integration.samples import BODY_SIZES, HEADERS, PROPERTIES, body_of
from tests.waiting import wait_until

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def connection(url: str) -> Iterator[pika.BlockingConnection]:
    """One open connection."""
    opened = pika.BlockingConnection(pika.URLParameters(url))
    yield opened
    if opened.is_open:
        opened.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """A fresh channel of that connection."""
    return connection.channel()


def pump(connection: pika.BlockingConnection, until: Callable[[], bool]) -> None:
    """Let pika work until the claim holds."""
    wait_until(until, between=lambda: connection.process_data_events(time_limit=0.05))


def settle_down(connection: pika.BlockingConnection) -> None:
    """Let pika work for a moment, for claims that something does not come."""
    connection.process_data_events(time_limit=0.3)


def drain(channel: BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    """Take everything that is ready: body and redelivered flag, in order."""
    taken: list[tuple[bytes, bool]] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return taken
        taken.append((body, method.redelivered))


def came(count: int, seen: list[list[bytes]]) -> bool:
    """True when so many have come to all consumers together."""
    return sum(map(len, seen)) == count


def bodies(count: int, first: int = 1) -> list[bytes]:
    """Numbered bodies."""
    return [b"%d" % number for number in range(first, first + count)]


def test_each_publish_confirmed_on_its_own(channel: BlockingChannel, names: Names) -> None:
    queue = names()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for body in bodies(50):
        channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)
    assert channel.queue_declare(queue, passive=True).method.message_count == 50
    assert drain(channel, queue) == [(body, False) for body in bodies(50)]


def test_unroutable_mandatory_publish_raises_on_a_confirm_channel(
    channel: BlockingChannel, names: Names
) -> None:
    channel.confirm_delivery()
    missing = names("missing")
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", missing, b"back", PERSISTENT, mandatory=True)
    [returned] = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("", missing)
    assert returned.body == b"back"
    assert returned.properties.delivery_mode == 2
    channel.basic_publish("", missing, b"dropped without a word", PERSISTENT)


def test_unroutable_mandatory_publish_is_returned_without_confirms(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    returned: list[tuple[int, str, bytes]] = []
    channel.add_on_return_callback(
        lambda _, method, __, body: returned.append((method.reply_code, method.routing_key, body))
    )
    missing = names("missing")
    for body in bodies(3):
        channel.basic_publish("amq.direct", missing, body, mandatory=True)
    pump(connection, lambda: len(returned) == 3)
    assert returned == [(312, missing, body) for body in bodies(3)]


def test_requeued_messages_return_to_their_places_marked_redelivered(
    channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    for body in bodies(5):
        channel.basic_publish("", queue, body)
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(3)]
    assert tags == [1, 2, 3]
    channel.basic_nack(tags[2], requeue=True)
    channel.basic_reject(tags[0], requeue=True)
    channel.basic_nack(tags[1], requeue=True)
    expected = [(b"1", True), (b"2", True), (b"3", True), (b"4", False), (b"5", False)]
    assert drain(channel, queue) == expected


def test_nack_multiple_requeues_and_reject_discards(channel: BlockingChannel, names: Names) -> None:
    queue = names()
    channel.queue_declare(queue)
    for body in bodies(6):
        channel.basic_publish("", queue, body)
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(5)]
    channel.basic_nack(tags[2], multiple=True, requeue=True)
    channel.basic_reject(tags[3], requeue=False)
    channel.basic_ack(tags[4])
    expected = [(b"1", True), (b"2", True), (b"3", True), (b"6", False)]
    assert drain(channel, queue) == expected


def test_ack_multiple_settles_all_up_to_the_tag(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    for body in bodies(5):
        channel.basic_publish("", queue, body)
    for _ in range(5):
        method, _, _ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag - 2, multiple=True)
    channel.close()
    assert drain(connection.channel(), queue) == [(b"4", True), (b"5", True)]


def test_unknown_delivery_tag_closes_only_the_channel(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    other = connection.channel()
    other.queue_declare(queue)
    channel.basic_ack(99)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(queue, passive=True)
    assert caught.value.reply_code == 406
    assert caught.value.reply_text == "PRECONDITION_FAILED - unknown delivery tag 99"
    other.basic_publish("", queue, b"still here")
    assert drain(other, queue) == [(b"still here", False)]


def test_unacked_messages_return_when_the_channel_closes(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    for body in bodies(4):
        channel.basic_publish("", queue, body)
    channel.basic_get(queue)
    method, _, _ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag)
    channel.close()
    assert drain(connection.channel(), queue) == [(b"1", True), (b"3", False), (b"4", False)]


def test_recover_requeues_everything_outstanding(channel: BlockingChannel, names: Names) -> None:
    queue = names()
    channel.queue_declare(queue)
    for body in bodies(3):
        channel.basic_publish("", queue, body)
    for _ in range(2):
        channel.basic_get(queue)
    channel.basic_recover(requeue=True)
    assert drain(channel, queue) == [(b"1", True), (b"2", True), (b"3", False)]


def test_prefetch_limits_each_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    for body in bodies(20):
        channel.basic_publish("", queue, body)
    channel.basic_qos(prefetch_count=3)
    seen: list[tuple[int, bytes]] = []
    channel.basic_consume(queue, lambda _, m, __, body: seen.append((m.delivery_tag, body)))
    pump(connection, lambda: len(seen) >= 3)
    settle_down(connection)
    assert [body for _, body in seen] == bodies(3)
    channel.basic_ack(seen[0][0])
    pump(connection, lambda: len(seen) >= 4)
    settle_down(connection)
    assert [body for _, body in seen] == bodies(4)
    channel.basic_ack(seen[-1][0], multiple=True)
    pump(connection, lambda: len(seen) >= 7)
    settle_down(connection)
    assert [body for _, body in seen] == bodies(7)


def test_channel_limit_is_shared_by_its_consumers(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    first, second = names(), names()
    for queue, numbers in ((first, bodies(10)), (second, bodies(10, first=11))):
        channel.queue_declare(queue)
        for body in numbers:
            channel.basic_publish("", queue, body)
    channel.basic_qos(prefetch_count=3)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    seen: dict[str, list[bytes]] = {first: [], second: []}
    for queue in (first, second):
        channel.basic_consume(queue, lambda _, __, ___, body, q=queue: seen[q].append(body))
    pump(connection, lambda: sum(map(len, seen.values())) >= 5)
    settle_down(connection)
    assert seen == {first: bodies(3), second: bodies(2, first=11)}


def test_round_robin_between_idle_consumers(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    seen: list[list[bytes]] = [[], [], []]
    for taken in seen:
        channel.basic_consume(
            queue, lambda _, __, ___, body, taken=taken: taken.append(body), auto_ack=True
        )
    for body in bodies(9):
        channel.basic_publish("", queue, body)
        pump(connection, functools.partial(came, int(body), seen))
    assert sorted(seen) == [[b"1", b"4", b"7"], [b"2", b"5", b"8"], [b"3", b"6", b"9"]]


def test_tx_commit_publishes_and_rollback_forgets(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue, durable=True)
    observer = connection.channel()
    channel.tx_select()
    for body in bodies(3):
        channel.basic_publish("", queue, body, PERSISTENT)
    assert observer.queue_declare(queue, passive=True).method.message_count == 0
    channel.tx_commit()
    assert observer.queue_declare(queue, passive=True).method.message_count == 3
    channel.basic_publish("", queue, b"rolled back", PERSISTENT)
    channel.tx_rollback()
    channel.tx_commit()
    assert drain(observer, queue) == [(body, False) for body in bodies(3)]


def test_tx_rollback_gives_acked_tags_back(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"kept")
    channel.tx_select()
    method, _, _ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    channel.basic_ack(method.delivery_tag)
    channel.tx_commit()
    channel.close()
    assert drain(connection.channel(), queue) == []


def test_confirm_and_tx_exclude_each_other(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.tx_select()
    text = "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
    assert (caught.value.reply_code, caught.value.reply_text) == (406, text)
    other = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        other.tx_commit()
    assert caught.value.reply_text == "PRECONDITION_FAILED - channel is not transactional"


def test_get_tells_what_is_left_and_when_empty(channel: BlockingChannel, names: Names) -> None:
    queue = names()
    channel.queue_declare(queue)
    for body in bodies(3):
        channel.basic_publish("", queue, body)
    left = []
    for _ in range(3):
        method, _, _ = channel.basic_get(queue, auto_ack=True)
        left.append(method.message_count)
        assert (method.exchange, method.routing_key) == ("", queue)
    assert left == [2, 1, 0]
    assert channel.basic_get(queue, auto_ack=True) == (None, None, None)


def test_rpc_over_a_reply_queue(url: str, channel: BlockingChannel, names: Names) -> None:
    requests = names("rpc")
    server_connection = pika.BlockingConnection(pika.URLParameters(url))
    server = server_connection.channel()
    server.queue_declare(requests)

    def answer(
        channel: BlockingChannel,
        method: pika.spec.Basic.Deliver,
        properties: pika.BasicProperties,
        body: bytes,
    ) -> None:
        echo = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, body.upper(), echo)
        channel.basic_ack(method.delivery_tag)

    server.basic_consume(requests, answer)
    replies = channel.queue_declare("", exclusive=True).method.queue
    assert replies.startswith("amq.gen-")
    for number in range(3):
        properties = pika.BasicProperties(reply_to=replies, correlation_id=str(number))
        channel.basic_publish("", requests, b"call %d" % number, properties)
    answers: list[tuple[str, bytes]] = []
    channel.basic_consume(
        replies, lambda _, __, p, body: answers.append((p.correlation_id, body)), auto_ack=True
    )
    for _ in range(100):
        server_connection.process_data_events(time_limit=0.01)
        channel.connection.process_data_events(time_limit=0.01)
        if len(answers) == 3:
            break
    assert answers == [(str(number), b"CALL %d" % number) for number in range(3)]
    server_connection.close()


def test_rpc_over_direct_reply_to(url: str, channel: BlockingChannel, names: Names) -> None:
    requests = names("rpc")
    server_connection = pika.BlockingConnection(pika.URLParameters(url))
    server = server_connection.channel()
    server.queue_declare(requests)
    answers: list[tuple[str, str, bytes]] = []
    channel.basic_consume(
        "amq.rabbitmq.reply-to",
        lambda _, m, p, body: answers.append((m.exchange, p.correlation_id, body)),
        auto_ack=True,
    )
    for number in range(3):
        properties = pika.BasicProperties(
            reply_to="amq.rabbitmq.reply-to", correlation_id=str(number)
        )
        channel.basic_publish("", requests, b"call", properties)
    reply_names = set()
    for _ in range(3):
        _, properties, body = next(server.consume(requests, inactivity_timeout=60))
        assert properties.reply_to.startswith("amq.rabbitmq.reply-to.")
        reply_names.add(properties.reply_to)
        echo = pika.BasicProperties(correlation_id=properties.correlation_id)
        server.basic_publish("", properties.reply_to, body + b" answered", echo)
    assert len(reply_names) == 1
    pump(channel.connection, lambda: len(answers) == 3)
    assert answers == [("", str(number), b"call answered") for number in range(3)]
    server.queue_declare(reply_names.pop(), passive=True)
    server_connection.close()


def test_direct_reply_to_needs_a_reply_consumer(channel: BlockingChannel, names: Names) -> None:
    queue = names()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"?", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(queue, passive=True)
    text = "PRECONDITION_FAILED - fast reply consumer does not exist"
    assert (caught.value.reply_code, caught.value.reply_text) == (406, text)


def test_consumer_is_told_when_its_queue_is_deleted(
    url: str, connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)
    with pika.BlockingConnection(pika.URLParameters(url)) as other:
        other.channel().queue_delete(queue)
    pump(connection, lambda: bool(cancelled))
    assert cancelled == [tag]
    assert channel.consumer_tags == []


def test_deleted_queue_leaves_its_deliveries_settleable(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"1")
    method, _, _ = channel.basic_get(queue)
    connection.channel().queue_delete(queue)
    channel.basic_ack(method.delivery_tag)
    channel.queue_declare(queue)
    assert drain(channel, queue) == []


def test_exclusive_queue_belongs_to_its_connection(
    url: str, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue, exclusive=True)
    with pika.BlockingConnection(pika.URLParameters(url)) as other:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            other.channel().queue_declare(queue, passive=True)
        assert caught.value.reply_code == 405
        assert caught.value.reply_text.startswith(
            f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost"
        )
        other.channel().basic_publish("", queue, b"publishing is allowed")
        assert channel.connection is not None
        assert _eventually_ready(channel, queue) == 1
        channel.connection.close()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            other.channel().queue_declare(queue, passive=True)
        assert caught.value.reply_code == 404


def _eventually_ready(channel: BlockingChannel, queue: str) -> int:
    def count() -> int:
        ready: int = channel.queue_declare(queue, passive=True).method.message_count
        return ready

    wait_until(count, "nothing is ready")
    return count()


def test_auto_delete_queue_goes_with_its_last_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue, auto_delete=True)
    channel.basic_get(queue, auto_ack=True)
    tags = [channel.basic_consume(queue, lambda *_: None) for _ in range(2)]
    channel.basic_cancel(tags[0])
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 1
    channel.basic_cancel(tags[1])
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_declare(queue, passive=True)
    text = f"NOT_FOUND - no queue '{queue}' in vhost '/'"
    assert (caught.value.reply_code, caught.value.reply_text) == (404, text)


def test_exclusive_consumer_shuts_others_out(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    channel.basic_consume(queue, lambda *_: None, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().basic_consume(queue, lambda *_: None)
    text = f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"
    assert (caught.value.reply_code, caught.value.reply_text) == (403, text)


def test_topic_exchange_routes_by_pattern(channel: BlockingChannel, names: Names) -> None:
    exchange = names("x")
    channel.exchange_declare(exchange, ExchangeType.topic)
    patterns = {names(): ["logs.*"], names(): ["logs.#"], names(): ["*.error", "logs.error"]}
    for queue, keys in patterns.items():
        channel.queue_declare(queue)
        for key in keys:
            channel.queue_bind(queue, exchange, key)
    for key in ("logs", "logs.error", "logs.error.disk", "disk.error", "other"):
        channel.basic_publish(exchange, key, key.encode())
    got = [[body for body, _ in drain(channel, queue)] for queue in patterns]
    assert got == [
        [b"logs.error"],
        [b"logs", b"logs.error", b"logs.error.disk"],
        [b"logs.error", b"disk.error"],
    ]


def test_headers_exchange_matches_all_or_any(channel: BlockingChannel, names: Names) -> None:
    exchange = names("x")
    channel.exchange_declare(exchange, ExchangeType.headers)
    both, either = names(), names()
    for queue, match in ((both, "all"), (either, "any")):
        channel.queue_declare(queue)
        channel.queue_bind(
            queue, exchange, arguments={"x-match": match, "format": "pdf", "pages": 3}
        )
    samples: dict[bytes, dict[str, Any]] = {
        b"both": {"format": "pdf", "pages": 3, "more": True},
        b"one": {"format": "pdf", "pages": 4},
        b"none": {"format": "zip"},
        b"type": {"pages": "3"},
    }
    for body, headers in samples.items():
        channel.basic_publish(exchange, "", body, pika.BasicProperties(headers=headers))
    channel.basic_publish(exchange, "", b"no headers")
    assert [body for body, _ in drain(channel, both)] == [b"both"]
    assert [body for body, _ in drain(channel, either)] == [b"both", b"one"]


def test_fanout_copies_and_exchange_to_exchange_binding(
    channel: BlockingChannel, names: Names
) -> None:
    entry, fan = names("x"), names("x")
    channel.exchange_declare(entry, ExchangeType.direct)
    channel.exchange_declare(fan, ExchangeType.fanout)
    channel.exchange_bind(fan, entry, "go")
    queues = [names() for _ in range(3)]
    for queue in queues:
        channel.queue_declare(queue)
        channel.queue_bind(queue, fan)
    channel.basic_publish(entry, "go", b"copied")
    channel.basic_publish(entry, "stay", b"dropped")
    assert [drain(channel, queue) for queue in queues] == [[(b"copied", False)]] * 3


def test_alternate_exchange_takes_what_is_unroutable(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    main, spare, queue = names("x"), names("x"), names()
    channel.exchange_declare(spare, ExchangeType.fanout)
    channel.exchange_declare(main, ExchangeType.direct, arguments={"alternate-exchange": spare})
    channel.queue_declare(queue)
    channel.queue_bind(queue, spare)
    channel.confirm_delivery()
    channel.basic_publish(main, "nowhere", b"saved", mandatory=True)
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (main, "nowhere", b"saved")


def test_cc_and_bcc_headers_add_keys(channel: BlockingChannel, names: Names) -> None:
    first, second, third = names(), names(), names()
    for queue in (first, second, third):
        channel.queue_declare(queue)
    headers = {"CC": [second, first], "BCC": [third], "kept": 1}
    channel.basic_publish("", first, b"copies", pika.BasicProperties(headers=headers))
    for queue in (first, second, third):
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        assert (method.routing_key, body) == (first, b"copies")
        assert properties.headers == {"CC": [second, first], "kept": 1}
        assert channel.basic_get(queue)[0] is None


@pytest.mark.parametrize("size", BODY_SIZES)
def test_bodies_of_every_size_come_back(channel: BlockingChannel, names: Names, size: int) -> None:
    queue = names()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    body = body_of(size)
    channel.basic_publish("", queue, body, PERSISTENT)
    channel.basic_publish("", queue, b"after", PERSISTENT)
    method, properties, got = channel.basic_get(queue, auto_ack=True)
    assert got == body
    assert (method.message_count, properties.delivery_mode) == (1, 2)
    assert drain(channel, queue) == [(b"after", False)]


def test_large_bodies_are_delivered_to_consumers(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    expected = [body_of(size) for size in BODY_SIZES if size < 2_000_000]
    for body in expected:
        channel.basic_publish("", queue, body)
    seen: list[bytes] = []
    channel.basic_consume(queue, lambda _, __, ___, body: seen.append(body), auto_ack=True)
    pump(connection, lambda: len(seen) == len(expected))
    assert seen == expected


def test_small_frame_max_is_kept_in_both_directions(url: str, names: Names) -> None:
    parameters = pika.URLParameters(url)
    parameters.frame_max = 4096
    queue = names()
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare(queue)
        for size in (4087, 4088, 4089, 100_000):
            channel.basic_publish("", queue, body_of(size))
        for size in (4087, 4088, 4089, 100_000):
            assert channel.basic_get(queue, auto_ack=True)[2] == body_of(size)


def test_all_properties_and_headers_come_back(channel: BlockingChannel, names: Names) -> None:
    queue = names()
    channel.queue_declare(queue)
    sent = pika.BasicProperties(headers=HEADERS, **PROPERTIES)
    channel.basic_publish("", queue, b"", sent)
    _, got, _ = channel.basic_get(queue, auto_ack=True)
    assert got == sent
    assert got.headers == HEADERS
    assert {name: getattr(got, name) for name in PROPERTIES} == PROPERTIES


def test_redeclaring_otherwise_is_refused(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue, durable=True)
    channel.queue_declare(queue, durable=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(queue, durable=False)
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': "
        "received 'false' but current is 'true'"
    )
    assert (caught.value.reply_code, caught.value.reply_text) == (406, text)
    assert connection.channel().queue_declare(queue, passive=True).method.queue == queue


def test_publishing_to_a_missing_exchange_closes_the_channel(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    missing = names("x")
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish(missing, "", b"lost")
    text = f"NOT_FOUND - no exchange '{missing}' in vhost '/'"
    assert (caught.value.reply_code, caught.value.reply_text) == (404, text)
    assert connection.channel().is_open


def test_purge_and_delete_count_ready_messages(
    connection: pika.BlockingConnection, channel: BlockingChannel, names: Names
) -> None:
    queue = names()
    channel.queue_declare(queue)
    for body in bodies(5):
        channel.basic_publish("", queue, body)
    method, _, _ = channel.basic_get(queue)
    assert channel.queue_purge(queue).method.message_count == 4
    channel.basic_nack(method.delivery_tag, requeue=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_delete(queue, if_empty=True)
    text = f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"
    assert caught.value.reply_text == text
    assert channel.queue_delete(queue).method.message_count == 1


def test_wrong_password_is_refused_with_403(url: str) -> None:
    parameters = pika.URLParameters(url)
    parameters.credentials = pika.PlainCredentials("guest", "wrong")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError) as caught:
        pika.BlockingConnection(parameters)
    assert "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN" in str(
        caught.value
    )


def test_unknown_vhost_is_refused(url: str) -> None:
    parameters = pika.URLParameters(url)
    parameters.virtual_host = "nowhere"
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        pika.BlockingConnection(parameters)
    assert "NOT_ALLOWED - vhost nowhere not found" in str(caught.value)


def test_many_channels_on_one_connection(connection: pika.BlockingConnection, names: Names) -> None:
    queue = names()
    channels = [connection.channel() for _ in range(100)]
    channels[0].queue_declare(queue)
    for number, channel in enumerate(channels):
        channel.basic_publish("", queue, b"%d" % number)
    for channel in channels[1:]:
        channel.close()
    got = drain(channels[0], queue)
    assert sorted(int(body) for body, _ in got) == list(range(100))
