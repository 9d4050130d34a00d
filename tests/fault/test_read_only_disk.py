"""The file system under the data directory turns read-only or breaks: the broker ends in order.

ext4 mounted with errors=remount-ro does so by itself after an error of the device. Whatever the
end of the process would like to remove, cut or write there is refused; it ends all the same, with
its own line instead of a traceback, and nothing that was confirmed is missing. Spec: DURABLE-21
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pamqp.commands as amqp
import pytest

from tests.fault.loop_disk import LoopDisk, loop_disk, why_not
from tests.integration.broker_process import BrokerProcess, StartError
from tests.integration.raw_client import RawClient, content

pytestmark = pytest.mark.slow

MIB: Final = 1024 * 1024
DISK_BYTES: Final = 48 * MIB
WAIT_S: Final = 60.0
CONFIRMED: Final = 50


@pytest.fixture
def disk(tmp_path: Path, referee_url: str | None) -> Iterator[LoopDisk]:
    """An ext4 that turns read-only after an error."""
    if referee_url is not None:
        pytest.skip("breaks the disk of VouchMQ's own process")
    if missing := why_not("ext4"):
        pytest.skip(missing)
    with loop_disk(tmp_path, "ext4", DISK_BYTES, "errors=remount-ro") as made:
        yield made


@pytest.fixture(params=["off", "group"])
def broker(
    disk: LoopDisk, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[BrokerProcess]:
    """A broker with everything it can have on that disk; its ledger synced along, or off."""
    data_dir = disk.mount_point / "data"
    ledger = ("--ledger-enabled", "on", "--ledger-sync", "group")
    made = BrokerProcess(
        tmp_path,
        flags=(
            *("--segment-size-bytes", str(2 * MIB), "--disk-free-limit", "0"),
            *("--ready-file", str(disk.mount_point / "ready"), "--log-level", "info"),
            *("--shutdown-timeout-s", "2"),
            *(ledger if request.param == "group" else ()),
        ),
    )
    made.data_dir = data_dir
    made.start(WAIT_S)
    yield made
    made.kill9()


def publish(client: RawClient, first: int, count: int) -> None:
    client.send(
        b"".join(content(1, "", "q", b"%d" % n, persistent=True) for n in range(first, count))
    )


def publisher(broker: BrokerProcess) -> RawClient:
    """A client with some messages confirmed."""
    client = RawClient(broker.url, limit_s=WAIT_S).handshake()
    client.open_channel()
    client.call(1, amqp.Queue.Declare(queue="q", durable=True), amqp.Queue.DeclareOk)
    client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    publish(client, 0, CONFIRMED)
    client.confirmed_up_to(CONFIRMED)
    return client


def logged(broker: BrokerProcess, event: str) -> list[str]:
    return [line for line in broker.output().splitlines() if f'"{event}"' in line]


def assert_in_order(broker: BrokerProcess, code: int) -> None:
    """The last line is that the broker has stopped, and nothing went wrong on the way there."""
    assert "Traceback" not in broker.output()
    (stopped,) = logged(broker, "broker.stopped")
    assert f'"exit_code": {code}' in stopped
    assert broker.output().splitlines()[-1] == stopped


def assert_nothing_is_missing(disk: LoopDisk, broker: BrokerProcess) -> None:
    """Mounted again, with the data directory as it was left, everything confirmed is there."""
    disk.unmount()
    disk.mount()
    broker.start(WAIT_S)
    with RawClient(broker.url).handshake() as client:
        client.open_channel()
        assert client.ready_count("q") >= CONFIRMED


def test_a_write_to_a_read_only_disk_ends_it_in_order(
    disk: LoopDisk, broker: BrokerProcess
) -> None:
    client = publisher(broker)
    disk.break_it()
    publish(client, CONFIRMED, CONFIRMED + 1)
    assert broker.wait(WAIT_S) == 1
    (failed,) = logged(broker, "store.failed")
    assert "Read-only file system" in failed or "EROFS" in failed
    client.reset()
    assert_in_order(broker, 1)
    assert_nothing_is_missing(disk, broker)


def test_stopped_on_a_read_only_disk_it_ends_in_order(
    disk: LoopDisk, broker: BrokerProcess
) -> None:
    publisher(broker).reset()
    disk.break_it()
    assert_in_order(broker, broker.stop(WAIT_S))
    with pytest.raises(StartError) as refused:
        broker.start(WAIT_S)
    (line,) = str(refused.value).splitlines()
    assert line.startswith("vouchmq: ") and "Read-only file system" in line
    assert_nothing_is_missing(disk, broker)
