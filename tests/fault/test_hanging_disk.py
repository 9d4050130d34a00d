"""A disk that takes no write for a while: what goes on meanwhile, and afterwards, and at the end.

The file system under the data directory is frozen, as snapshots do it. The loop then stands in a
write. Heartbeats go on, nobody is dropped for having been unheard, and a broker that is told to end
does not keep its clients waiting for the disk. Spec: CONN-57, CONN-60, CONN-61
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pamqp.commands as amqp
import pamqp.heartbeat
import pytest

from tests.fault.loop_disk import LoopDisk, loop_disk, why_not
from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import HEARTBEAT, RawClient, content, frame
from tests.waiting import wait_until

MIB: Final = 1024 * 1024
WAIT_S: Final = 60.0
HEARTBEAT_S: Final = 1
# Longer than it takes to be dropped for silence.
BEATS: Final = 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("fsfreeze") is None, reason="fsfreeze is not installed"),
]


@pytest.fixture
def disk(tmp_path: Path, referee_url: str | None) -> Iterator[LoopDisk]:
    """An ext4 that can be frozen."""
    if referee_url is not None:
        pytest.skip("freezes the disk of VouchMQ's own process")
    if missing := why_not("ext4"):
        pytest.skip(missing)
    with loop_disk(tmp_path, "ext4", 48 * MIB) as made:
        yield made


@pytest.fixture
def start(disk: LoopDisk, tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts a broker whose data is on that disk."""
    made: list[BrokerProcess] = []

    def begin(*flags: str) -> BrokerProcess:
        size = ("--segment-size-bytes", str(2 * MIB), "--disk-free-limit", "0")
        broker = BrokerProcess(tmp_path, flags=(*size, *flags))
        broker.data_dir = disk.mount_point / "data"
        broker.forgiven = ("disk.stalled", "broker.aborted")
        made.append(broker)
        broker.start(WAIT_S)
        return broker

    yield begin
    for broker in made:
        broker.kill9()


def publisher(broker: BrokerProcess) -> RawClient:
    """A client with one message confirmed."""
    client = RawClient(broker.url, limit_s=WAIT_S).handshake()
    client.open_channel()
    client.call(1, amqp.Queue.Declare(queue="q", durable=True), amqp.Queue.DeclareOk)
    client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    publish(client)
    client.confirmed_up_to(1)
    return client


def publish(client: RawClient) -> None:
    client.send(content(1, "", "q", b"x", persistent=True))


def test_heartbeats_go_on_and_nobody_is_dropped_for_having_been_unheard(
    disk: LoopDisk, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    busy = publisher(broker)
    idle = RawClient(broker.url, limit_s=WAIT_S).handshake(heartbeat_s=HEARTBEAT_S)
    idle.open_channel()
    with disk.frozen():
        publish(busy)
        broker.wait_for_log("disk.stalled")
        for _ in range(BEATS):
            idle.send(frame(HEARTBEAT, 0, b""))
            _, value = idle.read()
            assert isinstance(value, pamqp.heartbeat.Heartbeat)
    busy.confirmed_up_to(2)
    broker.wait_for_log("disk.resumed")
    assert idle.ready_count("q") == 2
    idle.reset()
    busy.reset()
    assert broker.stop(WAIT_S) == 0
    assert broker.complaints() == []


@pytest.mark.parametrize("signals", [1, 2])
def test_a_broker_told_to_end_keeps_no_client_waiting_for_the_disk(
    disk: LoopDisk, start: Callable[..., BrokerProcess], signals: int
) -> None:
    """Once the time to shut down is over, or at a second signal."""
    broker = start("--shutdown-timeout-s", "1" if signals == 1 else "600")
    busy = publisher(broker)
    with disk.frozen():
        publish(busy)
        broker.wait_for_log("disk.stalled")
        os.kill(broker.pid, signal.SIGTERM)
        while signals == 2 and "broker.aborted" not in broker.output():
            # Two that come together are one for the kernel.
            time.sleep(0.05)
            os.kill(broker.pid, signal.SIGTERM)
        busy.read_to_end()
        busy.reset()
        wait_until(lambda: "broker.aborted" in broker.output(), broker.output)
    # The kernel lets nobody go who stands in a write to a frozen file system.
    assert broker.wait(WAIT_S) == 1
    broker.start(WAIT_S)
    with RawClient(broker.url).handshake() as client:
        client.open_channel()
        assert client.ready_count("q") in (1, 2)
    assert broker.complaints() == []
