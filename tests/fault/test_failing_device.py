"""A device that fails below its file system: writes succeed, and what they wrote cannot be kept.

A sparse image on a tmpfs that is smaller than it. The file system believes in room that is not
there, so no write fails: the sync does. What was confirmed before is there once the device is well.
In files that were reserved only, ext4 of Linux 6.18 answered 0 to a sync whose blocks it then could
not note (decision 0006); the first segment is one, and is full before the device fails.
Spec: CONF-12, DURABLE-21
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pamqp.commands as amqp
import pytest

from tests.fault.loop_disk import run, why_not
from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import RawClient, content
from tests.waiting import wait_until
from vouchmq.store.journal.segment_pool import PREPARED_NAME

MIB: Final = 1024 * 1024
SMALL_BYTES: Final = 24 * MIB
IMAGE_BYTES: Final = 200 * MIB
BODY: Final = bytes(20_000)
MOST: Final = 10_000
UNFILLED: Final = PREPARED_NAME + ".new"
FILL_LIMIT_S: Final = 5.0


class Device:
    """An ext4 on an image for which its own file system has too little room."""

    def __init__(self, directory: Path) -> None:
        self._below = directory / "below"
        self._image = self._below / "image"
        self.mount_point = directory / "disk"
        self.began_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        self._below.mkdir()
        self.mount_point.mkdir()

    def make(self) -> None:
        """Mount both."""
        run("mount", "-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "tmpfs", str(self._below))
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        run("mkfs.ext4", "-q", "-E", "nodiscard", "-J", "size=4", str(self._image))
        self._mount()

    def mend(self) -> None:
        """Give it the room it believes to have, and check what is there, as an operator would."""
        run("umount", str(self.mount_point))
        run("mount", "-o", f"remount,size={2 * IMAGE_BYTES}", str(self._below))
        # 1: it has repaired something.
        checked = subprocess.run(
            ["e2fsck", "-fy", str(self._image)], capture_output=True, text=True, check=False
        )
        assert checked.returncode in {0, 1}, checked.stdout
        self._mount()

    def clear(self) -> None:
        """Unmount both."""
        for place in (self.mount_point, self._below):
            # Lazily: a sync helper that was killed may hold a file a moment longer.
            subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)

    def _mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.mount_point))


@pytest.fixture
def device(tmp_path: Path, referee_url: str | None) -> Iterator[Device]:
    """A device that will fail."""
    if referee_url is not None:
        pytest.skip("breaks the disk of VouchMQ's own process")
    if missing := why_not("ext4"):
        pytest.skip(missing)
    made = Device(tmp_path)
    try:
        made.make()
        yield made
    finally:
        made.clear()


def kernel_lost(device: Device) -> str:
    """What the kernel says it has lost of this device's data; empty when it says nothing."""
    told = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
    lines = [line for line in told.splitlines() if "potential data loss" in line]
    # Of this run: the kernel's clock is the one since boot.
    recent = [line for line in lines if float(line[1:].split("]")[0]) >= device.began_s]
    return recent[-1] if recent else ""


def published_until_refused(client: RawClient, queue: str, unfilled: Path) -> int:
    """Publish one by one; how many were confirmed before one was not.

    The next segment must be full of zeros before it is needed, or what this is about can happen in
    it, too. A busy machine may need longer for that than for filling the segment before it.
    """
    for confirmed in range(MOST):
        # On a device that has just failed it is never full.
        with suppress(AssertionError):
            wait_until(lambda: not unfilled.exists(), limit_s=FILL_LIMIT_S)
        client.send(content(1, "", queue, BODY, persistent=True))
        _, said = client.read()
        if not isinstance(said, amqp.Basic.Ack):
            assert isinstance(said, amqp.Basic.Nack), said
            return confirmed
    raise AssertionError("the device did not fail")


def test_what_was_confirmed_before_the_device_failed_is_there(
    device: Device, tmp_path: Path
) -> None:
    flags = ("--disk-free-limit", "0", "--segment-size-bytes", str(2 * MIB))
    broker = BrokerProcess(tmp_path, flags=flags)
    broker.data_dir = device.mount_point / "data"
    broker.forgiven = ("store.failed",)
    broker.start()
    try:
        with RawClient(broker.url).handshake() as client:
            client.open_channel(1)
            client.call(1, amqp.Queue.Declare(queue="q", durable=True), amqp.Queue.DeclareOk)
            client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
            confirmed = published_until_refused(client, "q", broker.data_dir / UNFILLED)
            assert client.expect_close().reply_code == 320
        assert confirmed > 0
        assert broker.wait() == 1
        # The kernel tells EIO or ENOSPC, as the device failed it; or ext4 was faster, and takes no
        # more writes.
        told = re.search(r"cannot (sync|write to) the journal: (E|Read-only)", broker.output())
        assert told, broker.output()
        device.mend()
        broker.start()
        with RawClient(broker.url).handshake() as client:
            client.open_channel(1)
            ready = client.ready_count("q")
        # The refused one may be there as well.
        assert ready - confirmed in {0, 1}, kernel_lost(device)
    finally:
        broker.kill9()
