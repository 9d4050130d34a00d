"""Clients that break the rules on purpose, next to one that does not.

In every test a well-behaved client goes on publishing and consuming; it must lose nothing and
wait for nobody. Spec: FRAME-10 ... FRAME-36, CONN-03, CONN-04, CONN-61, CONS-11, LIMIT-23.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pamqp.commands as amqp
import psutil
import pytest

from tests.conftest import Names
from tests.fault.neighbour import Neighbour
from tests.integration.broker_process import Broker, BrokerProcess
from tests.integration.raw_client import (
    BODY,
    HEADER,
    METHOD,
    PROTOCOL_HEADER,
    PeerClosedError,
    RawClient,
    content,
    frame,
    method,
)
from tests.waiting import wait_until

MIB = 1024 * 1024


@pytest.fixture
def neighbour(broker: Broker) -> Iterator[Neighbour]:
    """The undisturbed client, judged at the end of the test."""
    with Neighbour(broker) as working:
        yield working


def resident_mib(broker: Broker) -> float:
    """Memory of the broker; 0 when it is not ours to look at."""
    if not isinstance(broker, BrokerProcess):
        return 0.0
    return broker.resident_bytes() / MIB


def close_code(client: RawClient) -> int:
    """The code of the broker's connection.close; 0 when the connection just ended."""
    try:
        while True:
            _, value = client.read()
            if isinstance(value, amqp.Connection.Close):
                return value.reply_code or 0
    except PeerClosedError:
        return 0


def cut(broker: Broker) -> set[int]:
    """RabbitMQ may reset the connection so that its reason is lost; VouchMQ must not (CONN-07)."""
    return {0} if broker.is_referee else set()


def ready(url: str, queue: str) -> int:
    """Messages ready in a queue."""
    with RawClient(url).handshake() as client:
        client.open_channel()
        return client.ready_count(queue)


def declare(url: str, queue: str) -> None:
    """Make a transient queue."""
    with RawClient(url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Queue.Declare(queue=queue), amqp.Queue.DeclareOk)


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_instead_of_a_protocol_header(
    url: str, neighbour: Neighbour, broker: Broker, seed: int
) -> None:
    junk = random.Random(seed).randbytes(20_000)
    with RawClient(url) as client:
        client.send_some(junk, limit_s=0.5)
        answer = client.read_to_end()
    if not broker.is_referee:
        assert answer == PROTOCOL_HEADER


@pytest.mark.parametrize("seed", range(10))
def test_random_bytes_after_the_handshake(
    url: str, broker: Broker, neighbour: Neighbour, seed: int
) -> None:
    chance = random.Random(seed)
    with RawClient(url).handshake() as client:
        client.open_channel()
        client.send_some(chance.randbytes(5_000), limit_s=0.5)
        assert close_code(client) in {501, 502, 503, 504, 505, 540} | cut(broker)


@pytest.mark.parametrize("seed", range(10))
def test_well_framed_nonsense(url: str, broker: Broker, neighbour: Neighbour, seed: int) -> None:
    chance = random.Random(seed)
    with RawClient(url).handshake() as client:
        client.open_channel()
        for _ in range(50):
            kind = chance.choice([METHOD, METHOD, HEADER, BODY])
            ids = struct.pack(
                ">HH", chance.choice([10, 20, 40, 50, 60, 85, 90, 7]), chance.randrange(0, 130)
            )
            payload = ids + chance.randbytes(chance.randrange(0, 40))
            client.send_some(frame(kind, chance.choice([0, 1, 1, 2]), payload), limit_s=0.5)
        assert close_code(client) in {501, 502, 503, 504, 505, 530, 540} | cut(broker)


def test_a_publish_cut_at_every_octet(url: str, neighbour: Neighbour, names: Names) -> None:
    queue = names()
    declare(url, queue)
    whole = content(1, "", queue, b"never complete", persistent=True)
    for cut in range(1, len(whole)):
        with RawClient(url).handshake() as client:
            client.open_channel()
            client.send(whole[:cut])
            if cut % 2:
                client.reset()
    assert ready(url, queue) == 0


def test_connection_cut_in_the_middle_of_a_large_body(
    url: str, neighbour: Neighbour, names: Names
) -> None:
    queue = names()
    declare(url, queue)
    whole = content(1, "", queue, bytes(4 * MIB), persistent=True)
    for cut in (100, 131_072, 131_080, MIB, len(whole) - 1):
        with RawClient(url).handshake() as client:
            client.open_channel()
            client.send(whole[:cut])
            client.reset()
    assert ready(url, queue) == 0


@pytest.mark.parametrize("size", [131_073, 1_000_000, 0x7FFF_FFFF, 0xFFFF_FFFF])
def test_oversized_frame_is_refused_by_its_header(
    url: str, neighbour: Neighbour, broker: Broker, size: int
) -> None:
    before = resident_mib(broker)
    with RawClient(url).handshake() as client:
        client.open_channel()
        client.send(struct.pack(">BHI", BODY, 1, size))
        assert close_code(client) == 501
    assert resident_mib(broker) - before < 4


def test_body_size_beyond_all_limits_is_refused_at_the_header(
    url: str, neighbour: Neighbour, broker: Broker
) -> None:
    if broker.is_referee:
        pytest.skip("RabbitMQ 3.10 looks at the size only when the body is there")
    before = resident_mib(broker)
    with RawClient(url).handshake() as client:
        client.open_channel()
        client.send(method(1, amqp.Basic.Publish(routing_key="nobody")))
        client.send(frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 1 << 62, 0)))
        assert close_code(client) == 501
    with RawClient(url).handshake() as client:
        client.open_channel()
        client.send(method(1, amqp.Basic.Publish(routing_key="nobody")))
        client.send(frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 129 * MIB, 0)))
        _, closed = client.read()
        assert isinstance(closed, amqp.Channel.Close)
        assert (closed.reply_code, closed.reply_text) == (
            406,
            f"PRECONDITION_FAILED - message size {129 * MIB} is larger than configured max size "
            f"{128 * MIB}",
        )
        # The connection goes on, and the channel may be opened again.
        client.send(method(1, amqp.Channel.CloseOk()))
        client.open_channel()
    assert resident_mib(broker) - before < 4


def test_wrong_end_octet_and_unknown_frame_type(url: str, neighbour: Neighbour) -> None:
    good = method(1, amqp.Queue.Declare(queue="", exclusive=True))
    for bad in (good[:-1] + b"\xcd", frame(9, 1, b"x"), frame(HEADER, 1, b"\x00")):
        with RawClient(url).handshake() as client:
            client.open_channel()
            client.send(bad)
            assert close_code(client) == 501


def test_nested_tables_beyond_the_depth_limit(
    url: str, neighbour: Neighbour, broker: Broker
) -> None:
    table = b""
    for _ in range(2_000):
        table = b"\x01kF" + struct.pack(">I", len(table)) + table
    declaration = struct.pack(">HHH", 50, 10, 0) + b"\x00" + b"\x00"
    with RawClient(url).handshake() as client:
        client.open_channel()
        client.send(frame(METHOD, 1, declaration + struct.pack(">I", len(table)) + table))
        if not broker.is_referee:
            assert close_code(client) == 501


def test_handshake_that_never_ends_is_dropped(
    own_broker_with_short_handshake: BrokerProcess,
) -> None:
    url = own_broker_with_short_handshake.url
    with Neighbour(own_broker_with_short_handshake):
        clients = [RawClient(url) for _ in range(4)]
        clients[1].send(b"AMQP")
        clients[2].send(PROTOCOL_HEADER)
        clients[3].send(PROTOCOL_HEADER)
        clients[3].send(b"\x01\x00\x00\x00")
        for client in clients:
            with client:
                client.read_to_end()
    # And not because a limit of something else was reached.
    log = own_broker_with_short_handshake.output()
    assert log.count('"event": "connection.handshake_timeout"') == len(clients)


@pytest.fixture
def own_broker_with_short_handshake(
    referee_url: str | None, module_path: Path
) -> Iterator[BrokerProcess]:
    """A broker that waits half a second for the end of the handshake."""
    if referee_url is not None:
        pytest.skip("needs a setting")
    # The module's other broker has a data directory there.
    directory = module_path / "short"
    directory.mkdir()
    process = BrokerProcess(directory, flags=["--handshake-timeout-s", "0.5"])
    process.start()
    try:
        yield process
        assert process.stop() == 0
        assert process.complaints() == []
    finally:
        process.kill9()


def test_half_open_consumer_is_dropped_by_heartbeat(
    url: str, neighbour: Neighbour, names: Names
) -> None:
    queue = names()
    declare(url, queue)
    with RawClient(url).handshake(heartbeat_s=1) as silent:
        silent.open_channel()
        for number in range(5):
            silent.send(content(1, "", queue, b"%d" % number))
        silent.send(method(1, amqp.Basic.Qos(prefetch_count=3)))
        silent.send(method(1, amqp.Basic.Consume(queue=queue)))
        assert [body for _, body in silent.deliveries(3)] == [b"0", b"1", b"2"]
        last_sign = time.monotonic()
        assert ready(url, queue) == 2
        wait_until(lambda: ready(url, queue) == 5, "still not dropped")
        assert time.monotonic() - last_sign > 1.8
        # It was told nothing but heartbeats, then the end.
        assert set(silent.read_to_end()) <= set(frame(8, 0, b""))
    with RawClient(url).handshake() as client:
        client.open_channel()
        client.send(method(1, amqp.Basic.Consume(queue=queue, no_ack=True)))
        flags = [(body, sent.redelivered) for sent, body in client.deliveries(5)]
    assert flags == [(b"%d" % n, n < 3) for n in range(5)]


def test_busy_peer_without_heartbeat_frames_is_kept(url: str, neighbour: Neighbour) -> None:
    with RawClient(url).handshake(heartbeat_s=1) as client:
        client.open_channel()
        began = time.monotonic()
        while time.monotonic() - began < 3.6:
            # Any octet is a sign of life, also a piece of a frame.
            for octet in method(1, amqp.Basic.Qos(prefetch_count=1)):
                client.send(bytes([octet]))
            client.expect(amqp.Basic.QosOk)
            time.sleep(0.4)


@pytest.mark.parametrize("no_ack", [True, False])
def test_slow_reader_costs_little_memory_and_nobody_time(
    url: str, broker: Broker, neighbour: Neighbour, names: Names, *, no_ack: bool
) -> None:
    queue, count, size = names(), 1000, 65_536
    with RawClient(url).handshake() as publisher:
        publisher.open_channel()
        publisher.call(1, amqp.Queue.Declare(queue=queue), amqp.Queue.DeclareOk)
        publisher.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        for _ in range(count):
            publisher.send(content(1, "", queue, bytes(size)))
        publisher.confirmed_up_to(count)
        before = resident_mib(broker)
        slow = RawClient(url, receive_buffer_bytes=4096).handshake()
        with slow:
            slow.open_channel()
            slow.send(method(1, amqp.Basic.Consume(queue=queue, no_ack=no_ack)))
            time.sleep(1.0)
            # 64 MiB wait; a reader that takes nothing may cost its socket's high-water mark.
            assert resident_mib(broker) - before < 16
            # A fast consumer is served all the same.
            with RawClient(url).handshake() as fast:
                fast.open_channel()
                fast.send(method(1, amqp.Basic.Consume(queue=queue)))
                fast.deliveries(count // 2 + 1)
        if not no_ack:
            wait_until(lambda: ready(url, queue) >= count)
            assert ready(url, queue) == count


def test_publisher_who_never_reads_its_returns(
    url: str, broker: Broker, neighbour: Neighbour
) -> None:
    before = resident_mib(broker)
    with RawClient(url, receive_buffer_bytes=4096).handshake() as deaf:
        deaf.open_channel()
        returned = content(1, "", "nobody is here", bytes(65_536), mandatory=True)
        sent = deaf.send_some(returned * 1500, limit_s=3.0)
        assert resident_mib(broker) - before < 32, f"after {sent} bytes sent"


def test_client_who_never_reads_its_replies(url: str, broker: Broker, neighbour: Neighbour) -> None:
    before = resident_mib(broker)
    with RawClient(url, receive_buffer_bytes=4096).handshake() as deaf:
        deaf.open_channel()
        question = method(1, amqp.Exchange.Declare(exchange="amq.direct", passive=True))
        sent = deaf.send_some(question * 1_000_000, limit_s=3.0)
        assert resident_mib(broker) - before < 32, f"after {sent} bytes sent"


def test_connections_that_come_and_go_leave_nothing(
    url: str, broker: Broker, neighbour: Neighbour
) -> None:
    def descriptors() -> int:
        if not isinstance(broker, BrokerProcess):
            return 0
        return int(psutil.Process(broker.pid).num_fds())

    before = descriptors()
    for number in range(200):
        client = RawClient(url)
        if number % 3 == 1:
            client.send(PROTOCOL_HEADER)
        if number % 3 == 2:
            client.handshake()
            client.open_channel()
            client.send(method(1, amqp.Queue.Declare(queue="", exclusive=True)))
        client.reset()
    wait_until(
        lambda: descriptors() <= before + 2, lambda: f"{descriptors()} descriptors, {before} before"
    )


def test_more_channels_than_negotiated(url: str, neighbour: Neighbour) -> None:
    with RawClient(url).handshake() as client:
        client.send(b"".join(method(n, amqp.Channel.Open()) for n in range(1, 2049)))
        assert close_code(client) == 530


def test_a_flood_of_small_publishes_leaves_time_for_others(
    url: str, names: Names, neighbour: Neighbour
) -> None:
    queue = names()
    declare(url, queue)
    with RawClient(url).handshake() as flooder:
        flooder.open_channel()
        flooder.send_some(content(1, "", queue, b"0123456789abcdef") * 200_000, limit_s=3.0)
    wait_until(lambda: ready(url, queue) > 10_000, "few have come")


def test_soft_errors_of_one_channel_leave_the_others_alone(
    url: str, neighbour: Neighbour, names: Names
) -> None:
    queue = names()
    declare(url, queue)
    with RawClient(url).handshake() as client:
        for number in (1, 2):
            client.open_channel(number)
        client.send(
            content(2, "", queue, b"before")
            + content(1, "no such exchange", "", b"refused")
            + content(1, "", queue, b"ignored, the channel is closing")
            + content(2, "", queue, b"after")
        )
        _, closed = client.read()
        assert isinstance(closed, amqp.Channel.Close)
        assert closed.reply_code == 404
        client.send(method(1, amqp.Channel.CloseOk()))
        client.open_channel(1)
        client.send(method(2, amqp.Basic.Consume(queue=queue, no_ack=True)))
        assert [body for _, body in client.deliveries(2)] == [b"before", b"after"]
