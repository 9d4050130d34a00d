"""What one client may make the broker hold: answers it does not read, bodies it never finishes.

Spec: CONS-11, CONN-07, LIMIT-22, LIMIT-23
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pamqp.commands as amqp
import pytest

from tests.conftest import Names
from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import BODY, HEADER, RawClient, content, frame, method
from tests.waiting import LIMIT_S, wait_until

MIB = 1024 * 1024
LARGE = 4 * MIB


@pytest.fixture
def client(own_broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(own_broker.url) as raw:
        raw.handshake().open_channel(1)
        yield raw


def declare_with_one_large(client: RawClient, queue: str) -> None:
    client.call(1, amqp.Queue.Declare(queue=queue, exclusive=True), amqp.Queue.DeclareOk)
    client.send(content(1, "", queue, b"x" * LARGE))
    wait_until(lambda: client.ready_count(queue))


def test_getting_and_rejecting_a_large_message_again_and_again_costs_it_once(
    own_broker: BrokerProcess, client: RawClient, names: Names
) -> None:
    queue = names("q")
    declare_with_one_large(client, queue)
    before = own_broker.resident_bytes()
    asks = [
        method(1, amqp.Basic.Get(queue=queue)) + method(1, amqp.Basic.Reject(tag, requeue=True))
        for tag in range(1, 201)
    ]
    client.send(b"".join(asks))
    most = 0
    for _ in range(30):
        time.sleep(0.05)
        most = max(most, own_broker.resident_bytes())
    assert most - before < 100 * MIB


def test_publishes_cut_off_in_the_middle_leave_nothing_behind(own_broker: BrokerProcess) -> None:
    def cut_off() -> None:
        with RawClient(own_broker.url) as raw:
            raw.handshake().open_channel(1)
            head = (60).to_bytes(2, "big") + bytes(2) + (16 * MIB).to_bytes(8, "big") + bytes(2)
            raw.send(method(1, amqp.Basic.Publish(exchange="", routing_key="q")))
            raw.send(frame(HEADER, 1, head))
            for _ in range(64):
                raw.send(frame(BODY, 1, bytes(65536)))
            raw.reset()

    for _ in range(5):
        cut_off()
    before = own_broker.resident_bytes()
    for _ in range(40):
        cut_off()
    own_broker.wait_until(lambda: own_broker.resident_bytes() - before < 40 * MIB)


def test_the_last_words_reach_a_client_that_reads_late(client: RawClient, names: Names) -> None:
    queue = names("q")
    declare_with_one_large(client, queue)
    ask = method(1, amqp.Basic.Get(queue=queue)) + method(1, amqp.Basic.Reject(1, requeue=True))
    ask += method(1, amqp.Basic.Get(queue=queue))
    client.send(ask + method(0, amqp.Connection.Close(200, "bye", 0, 0)))
    time.sleep(2)
    received = client.read_to_end()
    assert len(received) > 2 * LARGE
    assert received.endswith(method(0, amqp.Connection.CloseOk()))


def test_idle_connections_leave_descriptors_to_the_journal(tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path,
        flags=("--segment-size-bytes", str(MIB)),
        prefix=("prlimit", "--nofile=160:160"),
    )
    broker.start()
    with contextlib.ExitStack() as stack:
        stack.callback(broker.kill9)
        raw = stack.enter_context(RawClient(broker.url))
        raw.handshake().open_channel(1)
        raw.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        raw.call(1, amqp.Queue.Declare(queue="q", durable=True), amqp.Queue.DeclareOk)
        port = int(broker.url.rsplit(":", 1)[1].split("/")[0])
        for _ in range(200):
            idle = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
            stack.callback(idle.close)
        for number in range(1, 41):
            raw.send(content(1, "", "q", bytes(100_000), persistent=True))
            raw.confirmed_up_to(number)
