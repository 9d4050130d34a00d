"""`vouchmq.testing.Broker`: what its guide says, with real clients."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import aio_pika
import pika
import pika.exceptions
import psutil
import pytest

from tests.integration.broker_process import PROJECT, clean_environment
from tests.waiting import LIMIT_S, wait_until
from vouchmq.testing import (
    AsyncBroker,
    Broker,
    BrokerError,
    BrokerNotRunning,
    VHost,
    WaitTimeout,
)

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module")
def test_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def vhost(test_broker: Broker) -> Iterator[VHost]:
    test_broker.start()
    with test_broker.new_vhost() as vhost:
        yield vhost
        test_broker.heal()


class Client:
    """A connection with a channel that confirms, and a durable queue `orders`."""

    def __init__(self, vhost: VHost) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(vhost.url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.queue_declare("orders", durable=True)

    def publish(self, body: bytes = b"order") -> None:
        self.channel.basic_publish("", "orders", body, PERSISTENT)

    def publish_many(self, count: int) -> None:
        for _ in range(count):
            self.publish()

    def publish_in_vain(self) -> None:
        with pytest.raises(pika.exceptions.AMQPError):
            self.publish()


Connect = Callable[[VHost], Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients, and closes what the broker has not broken."""
    clients: list[Client] = []

    def connect_to(vhost: VHost) -> Client:
        clients.append(Client(vhost))
        return clients[-1]

    yield connect_to
    for client in clients:
        with suppress(pika.exceptions.AMQPError):
            client.connection.close()


@pytest.fixture
def client(connect: Connect, vhost: VHost) -> Client:
    return connect(vhost)


def test_a_virtual_host_is_fresh_and_goes_with_all_that_is_in_it(
    test_broker: Broker, vhost: VHost, client: Client, connect: Connect
) -> None:
    client.channel.exchange_declare("events", "topic")
    client.publish()
    with test_broker.new_vhost() as other:
        assert other.name != vhost.name
        assert other.listing("queues") == []
        connect(other)
        assert [row["name"] for row in other.listing("queues")] == ["orders"]
    assert test_broker.listing("queues", vhost=other.name) == []
    assert test_broker.listing("connections", vhost=other.name) == []
    assert vhost.queue("orders").info()["messages"] == 1


def test_waiting_ends_when_it_is_so(vhost: VHost, client: Client) -> None:
    publisher = threading.Thread(target=client.publish_many, args=(5,))
    publisher.start()
    row = vhost.queue("orders").wait(messages=5, timeout_s=LIMIT_S)
    publisher.join()
    assert (row["messages_ready"], row["published"]) == (5, 5)
    method, *_ = client.channel.basic_get("orders")
    client.channel.basic_ack(method.delivery_tag)
    assert vhost.queue("orders").wait(acked=1, messages=1, at_least=True)["messages"] == 4


def test_a_queue_may_be_waited_for_before_it_exists(vhost: VHost, connect: Connect) -> None:
    declared = threading.Thread(target=connect, args=(vhost,))
    declared.start()
    vhost.queue("orders").wait(messages=0, timeout_s=LIMIT_S)
    declared.join()


def test_waiting_in_vain_tells_what_there_is(vhost: VHost, client: Client) -> None:
    client.publish()
    with pytest.raises(WaitTimeout, match=r"^queue 'orders' after 0 s: messages is 1, not 2$"):
        vhost.queue("orders").wait(messages=2, messages_ready=1, timeout_s=0)
    with pytest.raises(WaitTimeout, match=r"consumers is 0, not at least 1$"):
        vhost.queue("orders").wait(messages=1, consumers=1, at_least=True, timeout_s=0)
    with pytest.raises(WaitTimeout, match=r"^queue 'none' does not exist after 0 s$"):
        vhost.queue("none").wait(messages=1, timeout_s=0)
    with pytest.raises(WaitTimeout, match=r"has 1 connections, 0 of them blocked, after 0 s$"):
        vhost.wait_for_connections(2, timeout_s=0)
    with pytest.raises(BrokerError, match="a queue has no count 'mesages'; it has messages, "):
        vhost.queue("orders").wait(mesages=1)
    with pytest.raises(BrokerError, match="no queue 'none' in virtual host"):
        vhost.queue("none").info()


def test_a_killed_broker_comes_back_with_port_data_and_virtual_hosts(
    test_broker: Broker, vhost: VHost, client: Client, connect: Connect
) -> None:
    client.publish()
    port, pid = test_broker.port, test_broker.pid
    test_broker.kill()
    assert not test_broker.is_running
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(vhost)
    with pytest.raises(BrokerNotRunning):
        vhost.queue("orders").info()
    test_broker.start()
    assert test_broker.port == port
    assert test_broker.pid != pid
    connect(vhost).publish()
    assert vhost.queue("orders").info()["messages"] == 2


def test_a_broker_that_has_ended_by_itself_may_be_started_again(
    test_broker: Broker, vhost: VHost, connect: Connect
) -> None:
    descriptors = Path("/proc/self/fd")
    count = len(list(descriptors.iterdir()))
    os.kill(test_broker.pid, signal.SIGKILL)
    wait_until(lambda: not test_broker.is_running)
    test_broker.start()
    assert len(list(descriptors.iterdir())) <= count
    connect(vhost).publish()
    assert vhost.queue("orders").info()["messages"] == 1


def test_a_virtual_host_may_be_dropped_while_the_broker_is_down(
    test_broker: Broker, connect: Connect
) -> None:
    test_broker.start()
    with test_broker.new_vhost() as vhost:
        connect(vhost).publish()
        test_broker.kill()
    test_broker.start()
    assert test_broker.listing("queues", vhost=vhost.name) == []


def test_a_queue_that_refuses_publishes_nacks_them(vhost: VHost, client: Client) -> None:
    client.publish(b"1")
    with vhost.queue("orders").refused_publishes():
        for _ in range(3):
            with pytest.raises(pika.exceptions.NackError):
                client.publish(b"refused")
    client.publish(b"2")
    with vhost.queue("orders").refused_publishes(count=1):
        with pytest.raises(pika.exceptions.NackError):
            client.publish(b"refused")
        client.publish(b"3")
    with (
        pytest.raises(BrokerError, match="no queue 'none' in virtual host"),
        vhost.queue("none").refused_publishes(),
    ):
        pass
    with (
        pytest.raises(BrokerError, match="count must be at least 1, not 0"),
        vhost.queue("orders").refused_publishes(count=0),
    ):
        pass
    bodies = [client.channel.basic_get("orders", auto_ack=True)[2] for _ in range(3)]
    assert bodies == [b"1", b"2", b"3"]


def test_a_queue_with_a_length_limit_refuses_by_itself_again(vhost: VHost, client: Client) -> None:
    limit = {"x-max-length": 1, "x-overflow": "reject-publish"}
    client.channel.queue_declare("short", durable=True, arguments=limit)
    with (
        vhost.queue("short").refused_publishes(count=1),
        pytest.raises(pika.exceptions.NackError),
    ):
        client.channel.basic_publish("", "short", b"refused")
    client.channel.basic_publish("", "short", b"1")
    with pytest.raises(pika.exceptions.NackError):
        client.channel.basic_publish("", "short", b"one too many")


def test_messages_are_seen_and_stay(
    test_broker: Broker, vhost: VHost, client: Client, connect: Connect
) -> None:
    queue = vhost.queue("orders")
    assert queue.peek() == []
    properties = pika.BasicProperties(
        delivery_mode=2, message_id="m1", timestamp=17, headers={"n": 1, "deep": {"x": [True]}}
    )
    large = bytes(range(256)) * 4096
    client.channel.basic_publish("", "orders", b'{"item": "book"}', properties)
    client.publish(large)
    client.publish(b"")
    first, second, third = queue.peek()
    assert first.json() == {"item": "book"}
    assert (first.text, first.exchange, first.routing_key) == ('{"item": "book"}', "", "orders")
    assert first.properties == {"delivery_mode": 2, "message_id": "m1", "timestamp": 17}
    assert first.headers == {"n": 1, "deep": {"x": [True]}}
    assert (second.body, third.body) == (large, b"")
    assert [each.redelivered for each in (first, second, third)] == [False] * 3
    # It has been read, and nothing has changed.
    method, _, body = client.channel.basic_get("orders")
    assert (method.redelivered, body) == (False, first.body)
    assert [each.body for each in queue.peek()] == [large, b""]
    client.channel.basic_nack(method.delivery_tag)
    assert [(each.redelivered, each.body) for each in queue.peek(1)] == [(True, first.body)]
    # From the disk, too.
    test_broker.restart()
    assert [each.body for each in queue.peek()] == [first.body, large, b""]
    with pytest.raises(BrokerError, match="no queue 'none'"):
        vhost.queue("none").peek()
    with pytest.raises(BrokerError, match="peek: Expected `int` <= 10000"):
        queue.peek(10_001)
    client = connect(vhost)
    client.channel.basic_get("orders")
    assert [each.body for each in queue.peek(state="unacknowledged")] == [first.body]
    client.channel.queue_declare("stream", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(5):
        client.channel.basic_publish("", "stream", b"%d" % number)
    assert [each.body for each in vhost.queue("stream").peek(2, first=1)] == [b"1", b"2"]


def test_messages_are_seen_in_the_order_of_delivery(vhost: VHost, client: Client) -> None:
    client.channel.queue_declare("ranked", durable=True, arguments={"x-max-priority": 3})
    for priority in (1, 3, 2, 3):
        ranked = pika.BasicProperties(priority=priority)
        client.channel.basic_publish("", "ranked", b"%d" % priority, ranked)
    queue = vhost.queue("ranked")
    assert [each.body for each in queue.peek()] == [b"3", b"3", b"2", b"1"]
    assert [each.body for each in queue.peek(2)] == [b"3", b"3"]


def test_what_is_published_can_be_captured(vhost: VHost, client: Client) -> None:
    client.channel.exchange_declare("events", "topic")
    with vhost.capture("events", "order.#") as captured:
        for key in ("order.placed", "mail.sent", "order.paid"):
            client.channel.basic_publish("events", key, key.encode())
        captured.wait(messages=2)
        placed, paid = captured.peek()
        assert (placed.exchange, placed.routing_key) == ("events", "order.placed")
        assert paid.text == "order.paid"
    assert [row["name"] for row in vhost.listing("queues")] == ["orders"]
    with (
        pytest.raises(BrokerError, match="no exchange 'none'"),
        vhost.capture("none"),
    ):
        pass
    assert [row["name"] for row in vhost.listing("queues")] == ["orders"]


def blocked_reasons(connection: pika.BlockingConnection) -> list[str]:
    """What the client hears of alarms from now on."""
    heard: list[str] = []
    connection.add_on_connection_blocked_callback(
        lambda _, method: heard.append(method.method.reason)
    )
    connection.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
    return heard


def test_a_full_disk_nacks_and_then_blocks(
    test_broker: Broker, vhost: VHost, client: Client
) -> None:
    heard = blocked_reasons(client.connection)
    with test_broker.disk_full():
        client.publish_in_vain()
        publisher = threading.Thread(target=client.publish)
        publisher.start()
        vhost.wait_for_connections(blocked=1, timeout_s=LIMIT_S)
        assert vhost.queue("orders").info()["messages"] == 0
    publisher.join(LIMIT_S)
    client.connection.process_data_events(0)
    assert heard == ["low on disk", "unblocked"]
    assert vhost.queue("orders").info()["messages"] == 1


def test_a_disk_alarm_blocks_and_confirms_nothing_meanwhile(
    test_broker: Broker, vhost: VHost, client: Client
) -> None:
    client.publish()
    heard = blocked_reasons(client.connection)
    with test_broker.disk_alarm():
        publisher = threading.Thread(target=client.publish)
        publisher.start()
        vhost.wait_for_connections(blocked=1, timeout_s=LIMIT_S)
        assert vhost.queue("orders").info()["messages"] == 1
        assert publisher.is_alive()
    publisher.join(LIMIT_S)
    client.connection.process_data_events(0)
    assert heard == ["low on disk", "unblocked"]
    assert vhost.queue("orders").info()["messages"] == 2


def test_nobody_waits_for_time_to_pass(
    test_broker: Broker, vhost: VHost, client: Client, connect: Connect
) -> None:
    """A TTL, an expiry of a queue, a delay and a consumer timeout, all of hours."""
    hour_ms = 3_600_000
    channel = client.channel
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    channel.queue_declare("waiting", arguments={"x-message-ttl": hour_ms, **dead})
    channel.queue_declare("unused", arguments={"x-expires": 3 * hour_ms})
    channel.exchange_declare("delays", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("delayed")
    channel.queue_bind("delayed", "delays")
    channel.basic_publish("", "waiting", b"expires")
    later = pika.BasicProperties(headers={"x-delay": 2 * hour_ms})
    channel.basic_publish("delays", "", b"comes later", later)
    channel.queue_declare("slow", durable=True, arguments={"x-consumer-timeout": 4 * hour_ms})
    channel.basic_publish("", "slow", b"held")
    other = connect(vhost)
    other.channel.basic_consume("slow", print)
    vhost.queue("slow").wait(messages_unacknowledged=1)

    test_broker.advance_clock(3599)
    assert vhost.queue("waiting").info()["messages"] == 1
    test_broker.advance_clock(2)
    assert vhost.queue("orders").wait(messages=1)["messages_ready"] == 1
    assert vhost.queue("delayed").info()["messages"] == 0
    test_broker.advance_clock(3600)
    vhost.queue("delayed").wait(messages=1)
    assert "unused" in [row["name"] for row in vhost.listing("queues")]
    test_broker.advance_clock(3600)
    assert "unused" not in [row["name"] for row in vhost.listing("queues")]
    vhost.queue("slow").wait(messages_unacknowledged=1)
    test_broker.advance_clock(2 * 3600)
    vhost.queue("slow").wait(messages_ready=1, consumers=0)
    assert vhost.listing("connections") != []


def test_the_clock_stays_ahead_after_a_restart(
    test_broker: Broker, vhost: VHost, client: Client, connect: Connect
) -> None:
    test_broker.advance_clock(3600)
    client.channel.exchange_declare(
        "delays", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
    )
    client.channel.queue_bind("orders", "delays")
    later = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 1_000_000})
    client.channel.basic_publish("delays", "", b"comes later", later)
    test_broker.restart()
    test_broker.advance_clock(500)
    assert vhost.queue("orders").info()["messages"] == 0
    test_broker.advance_clock(500)
    vhost.queue("orders").wait(messages=1)


async def test_held_confirms_come_at_the_end(test_broker: Broker, vhost: VHost) -> None:
    broker, queue = test_broker.aio, vhost.aio.queue("orders")
    async with await aio_pika.connect(vhost.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("orders", durable=True)
        message = aio_pika.Message(b"order", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        async with broker.held_confirms():
            publish = asyncio.create_task(channel.default_exchange.publish(message, "orders"))
            await queue.wait(messages=1, timeout_s=LIMIT_S)
            assert not publish.done()
        await asyncio.wait_for(publish, LIMIT_S)


def test_a_broker_may_be_killed_inside_a_fault(
    test_broker: Broker, vhost: VHost, client: Client, connect: Connect
) -> None:
    with test_broker.held_confirms():
        publisher = threading.Thread(target=client.publish_in_vain)
        publisher.start()
        vhost.queue("orders").wait(messages=1, timeout_s=LIMIT_S)
        test_broker.kill()
    publisher.join(LIMIT_S)
    test_broker.start()
    # It had been written, though nobody was told.
    connect(vhost).publish()
    assert vhost.queue("orders").info()["messages"] == 2


def test_a_frozen_broker_answers_nobody(test_broker: Broker, vhost: VHost, client: Client) -> None:
    with test_broker.frozen():
        publisher = threading.Thread(target=client.publish)
        publisher.start()
        with socket.create_connection((test_broker.host, test_broker.port)) as other:
            other.sendall(b"AMQP\0\0\x09\x01")
            # It listens still, and would answer at once.
            other.settimeout(0.2)
            with pytest.raises(TimeoutError):
                other.recv(1)
        assert publisher.is_alive()
    publisher.join(LIMIT_S)
    assert vhost.queue("orders").info()["messages"] == 1
    with test_broker.frozen():
        test_broker.kill()
    test_broker.start()
    assert vhost.queue("orders").info()["messages"] == 1


def test_cut_connections_return_what_was_unacknowledged(
    test_broker: Broker, vhost: VHost, client: Client, connect: Connect
) -> None:
    client.publish()
    client.channel.basic_get("orders")
    assert vhost.queue("orders").info()["messages_unacknowledged"] == 1
    with test_broker.new_vhost() as other:
        connect(other)
        assert vhost.cut_connections() == 1
        assert vhost.queue("orders").info()["messages_ready"] == 1
        assert vhost.listing("connections") == []
        other.wait_for_connections(1)
    with pytest.raises(pika.exceptions.AMQPError):
        client.publish()
    assert test_broker.cut_connections() == 0


async def test_the_same_with_coroutines() -> None:
    async with Broker(settings={"default_user": "tester", "default_pass": "p@ss/word"}) as broker:
        assert isinstance(broker, AsyncBroker)
        async with await broker.new_vhost("odd / name") as vhost:
            assert vhost.url.endswith("/odd%20%2F%20name")
            connection = await aio_pika.connect(vhost.url)
            channel = await connection.channel()
            queue = await channel.declare_queue("orders", durable=True)
            await channel.default_exchange.publish(aio_pika.Message(b"1"), queue.name)
            assert (await vhost.queue("orders").wait(messages=1))["messages_ready"] == 1
            assert [each.body for each in await vhost.queue("orders").peek()] == [b"1"]
            async with vhost.capture("amq.fanout") as captured:
                fanout = await channel.get_exchange("amq.fanout")
                await fanout.publish(aio_pika.Message(b"all"), "")
                assert [each.body for each in await captured.peek()] == [b"all"]
            async with vhost.queue("orders").refused_publishes():
                with pytest.raises(aio_pika.exceptions.DeliveryError):
                    await channel.default_exchange.publish(aio_pika.Message(b"2"), queue.name)
            assert await vhost.cut_connections() == 1
            await connection.close()
            await broker.restart()
            assert [row["name"] for row in await vhost.listing("queues")] == ["orders"]
        assert await broker.stop() == 0
        assert not broker.is_running


def test_it_stops_in_order(tmp_path: Path, connect: Connect) -> None:
    with Broker(directory=tmp_path / "kept", fsync=True) as broker:
        client = connect(broker.default_vhost)
        client.publish()
        client.connection.close()
        assert broker.stop() == 0
        broker.start()
        assert broker.default_vhost.queue("orders").info()["messages"] == 1
        events = [event["event"] for event in broker.log()]
        assert events.count("broker.stopped") == 1
        assert "durability.fsync_off" not in events
    assert (tmp_path / "kept" / "data").is_dir()


def test_it_may_have_the_http_api(connect: Connect) -> None:
    with Broker(settings={"management": True}) as broker:
        connect(broker.default_vhost)

        def queues() -> list[str]:
            api = http.client.HTTPConnection(urlsplit(broker.management_url).netloc)
            login = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}
            api.request("GET", "/api/queues", headers=login)
            names = [row["name"] for row in json.load(api.getresponse())]
            api.close()
            return names

        assert queues() == ["orders"]
        url = broker.management_url
        broker.restart()
        assert broker.management_url == url
        assert queues() == ["orders"]
    with Broker() as broker, pytest.raises(BrokerError, match="without the setting management"):
        assert broker.management_url


def test_a_broker_that_cannot_start_says_why() -> None:
    broker = Broker(settings={"no_such_setting": 1})
    with pytest.raises(BrokerError, match="no such option '--no-such-setting'"):
        broker.start()
    broker.close()
    with pytest.raises(ValueError, match="data_dir, host: not a setting of a broker for tests"):
        Broker(settings={"host": "::", "data_dir": "somewhere"})
    with pytest.raises(BrokerNotRunning, match="has not been started"):
        broker.kill()


def test_no_other_broker_has_these_commands() -> None:
    with pytest.raises(BrokerError, match="test_clock_ahead_ms: needs test_commands"):
        Broker(settings={"test_commands": False, "test_clock_ahead_ms": 1}).start()
    with (
        Broker(settings={"test_commands": False}) as broker,
        pytest.raises(BrokerError, match="has no command 'test heal'"),
    ):
        broker.heal()


USER_PROGRAM = """
import sys, time
sys.path.insert(0, "")
import server, store
from vouchmq.testing import Broker
broker = Broker(fsync=len(sys.argv) > 1)
broker.start()
print(broker.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("flags", [(), ("--fsync",)])
def test_packages_of_the_user_are_left_alone_and_no_process_is_left(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """A killed session of tests leaves no broker, and no helper of one."""
    for name in ("server", "store", "protocol", "conformance"):
        (tmp_path / f"{name}.py").write_text("print('of the user', file=__import__('sys').stderr)")
    environment = clean_environment({"PYTHONPATH": f"{PROJECT}{os.pathsep}{tmp_path}"})
    environment["TMPDIR"] = str(tmp_path)
    program = subprocess.Popen(
        [sys.executable, "-c", USER_PROGRAM, *flags],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with program:
        assert program.stdout is not None
        broker = psutil.Process(int(program.stdout.readline()))
        helpers = broker.children()
        assert bool(helpers) == bool(flags)
        program.send_signal(signal.SIGKILL)
    for process in (broker, *helpers):
        wait_until(partial(is_gone, process))


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended; who has no parent may stay as a zombie for a while."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
