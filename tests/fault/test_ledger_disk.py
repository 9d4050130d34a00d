"""The ledger on a real disk that is full: the broker confirms on, a gap says what is missing."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.fault.loop_disk import LoopDisk, loop_disk, why_not
from tests.integration.broker_process import BrokerProcess
from tests.integration.ledger_load import connect, doomed
from tests.ledger_reader import Audit, lines_in

MIB = 1024 * 1024
DISK_BYTES = 24 * MIB
BUFFER_BYTES = 65536
WAIT_S = 60.0

pytestmark = [
    pytest.mark.slow,
    # pika leaves sockets behind when its broker is killed.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def disk(tmp_path: Path, referee_url: str | None) -> Iterator[LoopDisk]:
    """A small ext4, for the ledger alone."""
    if referee_url is not None:
        pytest.skip("a ledger is VouchMQ's own")
    if missing := why_not("ext4"):
        pytest.skip(missing)
    with loop_disk(tmp_path, "ext4", DISK_BYTES) as made:
        yield made


@pytest.fixture
def broker(disk: LoopDisk, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose ledger is on that disk."""
    flags = ("--ledger-enabled", "on", "--ledger-dir", str(disk.mount_point / "ledger"))
    made = BrokerProcess(
        tmp_path,
        flags=(*flags, "--ledger-buffer-bytes", str(BUFFER_BYTES), "--ledger-sync", "group"),
    )
    made.start()
    yield made
    made.kill9()


def fill(disk: LoopDisk) -> Path:
    """Leave no room on the disk; gives the file that takes it."""
    ballast = disk.mount_point / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
        os.fsync(file.fileno())
    return ballast


def publish(channel: pika.adapters.blocking_connection.BlockingChannel, count: int) -> None:
    """Each is confirmed, or pika raises."""
    for _ in range(count):
        channel.basic_publish("", "q", b"x" * 50, pika.BasicProperties(delivery_mode=2))


def lines_of(broker: BrokerProcess, word: str) -> list[str]:
    return [line for line in broker.output().splitlines() if word in line]


def test_a_full_disk_costs_lines_and_no_messages(disk: LoopDisk, broker: BrokerProcess) -> None:
    broker.forgiven = ("ledger.write_failed", "ledger.buffer_full", "ledger.rotate_failed")
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        publish(channel, 100)
        ballast = fill(disk)
        publish(channel, 1500)
        assert len(lines_of(broker, "ledger.write_failed")) == 1
        assert len(lines_of(broker, "ledger.buffer_full")) == 1
        ballast.unlink()
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            publish(channel, 1)
            time.sleep(0.02)
            if any(b'"e":"gap"' in path.read_bytes() for path in disk.mount_point.rglob("*.open")):
                break
        publish(channel, 100)
        count = channel.queue_declare("q", passive=True).method.message_count
    assert broker.stop() == 0
    assert broker.complaints() == []
    lines = lines_in(disk.mount_point / "ledger")
    gaps = [line for line in lines if line["e"] == "gap"]
    assert sum(line["lost"] for line in gaps) == lines[-1]["n"] + 1 - len(lines) > 500
    last = [line for line in lines if line["e"] == "inv" and line["w"] == "stop"]
    held = sum(to - since + 1 for line in last for since, to in line["i"])
    assert held == count >= 1700
    # Names are said again behind a gap, and what the queues hold.
    behind = [line for line in lines if line["n"] > gaps[-1]["n"]]
    assert {"que", "inv", "rte"} <= {line["e"] for line in behind}


def test_killed_while_it_drops_lines_the_next_life_says_so(
    disk: LoopDisk, broker: BrokerProcess
) -> None:
    with doomed(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        publish(channel, 50)
        ballast = fill(disk)
        publish(channel, 1000)
        broker.kill9()
    ballast.unlink()
    broker.start()
    assert broker.stop() == 0
    lines = lines_in(disk.mount_point / "ledger")
    boots = [line for line in lines if line["e"] == "boot"]
    assert [(line["w"], line["dark"]) for line in boots] == [("clean", 0), ("crash", 1)]
    audit = Audit(lines)
    assert audit.lost == []
    assert len(audit.held[1]) == 1050
