"""A real file system fills up under the broker and is freed again (CONF-12, LIMIT-15)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.fault.loop_disk import LoopDisk, loop_disk, why_not
from tests.integration.broker_process import BrokerProcess
from tests.integration.pika_async import PERSISTENT, ConfirmLedger, call, connected, open_channel
from tests.waiting import until

MIB = 1024 * 1024
QUEUE = "full"
BODY_OCTETS = 20_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not("ext4")), reason=why_not("ext4")),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """An ext4 of 64 MiB."""
    with loop_disk(tmp_path, "ext4", 64 * MIB) as disk:
        yield disk


@pytest.fixture
def broker(
    request: pytest.FixtureRequest, referee_url: str | None, disk: LoopDisk, tmp_path: Path
) -> Iterator[BrokerProcess]:
    """A broker whose data is on it, in segments of 1 MiB; takes flags as parameter."""
    if referee_url is not None:
        pytest.skip("needs a broker of its own")
    flags = ("--segment-size-bytes", str(MIB), *getattr(request, "param", ()))
    process = BrokerProcess(tmp_path, flags=flags)
    process.data_dir = disk.mount_point / "data"
    process.start()
    try:
        yield process
        assert process.complaints() == []
    finally:
        process.kill9()


def fill(disk: LoopDisk, leave_bytes: int = 0) -> Path:
    """Take what is free on the disk; gives the file that does."""
    ballast = disk.mount_point / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (MIB, 4096):
            while disk.free_bytes() - leave_bytes >= size:
                try:
                    file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                    break
        os.fsync(file.fileno())
    return ballast


def numbered(number: int) -> bytes:
    """A body that starts with its number."""
    return b"%08d" % number + bytes(BODY_OCTETS)


def take_all(url: str) -> list[int]:
    """Get and ack whatever is ready; the numbers of the bodies, in order."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        numbers: list[int] = []
        while True:
            method, _, body = channel.basic_get(QUEUE)
            if method is None or body is None:
                return numbers
            channel.basic_ack(method.delivery_tag)
            numbers.append(int(body[:8]))


@pytest.mark.parametrize("broker", [("--disk-free-limit", "0")], indirect=True)
async def test_full_and_freed(broker: BrokerProcess, disk: LoopDisk) -> None:
    events: list[str] = []
    async with connected(broker.url) as connection:
        connection.add_on_connection_blocked_callback(
            lambda _, frame: events.append(frame.method.reason)
        )
        connection.add_on_connection_unblocked_callback(lambda *_: events.append("unblocked"))
        channel = await open_channel(connection)
        await call(channel.queue_declare, QUEUE, durable=True)
        ledger = ConfirmLedger(channel)
        await ledger.select()
        ballast = fill(disk)
        # What is preallocated is written first; then nothing more can be had.
        while not ledger.nacked and not events:
            assert ledger.sent < 500, "the disk is never full"
            for _ in range(5):
                ledger.publish("", QUEUE, numbered(ledger.sent + 1))
            await until(lambda: not ledger.pending or bool(events))
        ledger.publish("", QUEUE, numbered(ledger.sent + 1))
        await until(lambda: bool(events))
        assert events == ["low on disk"]
        assert ledger.nacked
        assert ledger.acked
        confirmed, waiting = list(ledger.acked), sorted(ledger.pending)

        # Whoever only consumes is served, and its acks are taken; nothing refused is there.
        taken = await asyncio.to_thread(take_all, broker.url)
        assert taken[: len(confirmed)] == confirmed
        # Acks empty segments, whose room is enough as soon as they are removed. What waited is
        # there only then: it is confirmed, and publishers go on, although the ballast is there.
        taken = taken[len(confirmed) :] + await asyncio.to_thread(take_all, broker.url)
        assert taken in ([], waiting)
        if not taken:
            ballast.unlink()
        await until(lambda: not ledger.pending)
        await until(lambda: len(events) > 1)
        assert events == ["low on disk", "unblocked"]
        assert ledger.acked == confirmed + waiting
    assert broker.is_running
    broker.restart()
    # Acks are on disk as soon as anything after them was confirmed.
    assert taken + await asyncio.to_thread(take_all, broker.url) == waiting


@pytest.mark.parametrize("broker", [("--disk-free-limit", "0")], indirect=True)
async def test_without_confirms_the_connection_ends(broker: BrokerProcess, disk: LoopDisk) -> None:
    fill(disk)

    def publish() -> tuple[int, str]:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        try:
            channel.queue_declare(QUEUE, durable=True)
            for number in range(500):
                channel.basic_publish("", QUEUE, numbered(number), PERSISTENT)
                connection.process_data_events(time_limit=0)
        except pika.exceptions.ConnectionClosedByBroker as error:
            return error.reply_code, error.reply_text
        raise AssertionError("the disk is never full")

    code, text = await asyncio.to_thread(publish)
    assert code == 506
    assert text in {
        "RESOURCE_ERROR - failed to deliver message",
        "RESOURCE_ERROR - failed to store definition",
    }
    assert broker.is_running


@pytest.mark.parametrize("broker", [("--disk-free-limit", "20MiB")], indirect=True)
async def test_alarm_before_it_is_full(broker: BrokerProcess, disk: LoopDisk) -> None:
    events: list[str] = []
    async with connected(broker.url) as connection:
        connection.add_on_connection_blocked_callback(
            lambda _, frame: events.append(frame.method.reason)
        )
        connection.add_on_connection_unblocked_callback(lambda *_: events.append("unblocked"))
        channel = await open_channel(connection)
        await call(channel.queue_declare, QUEUE, durable=True)
        ledger = ConfirmLedger(channel)
        await ledger.select()
        ballast = fill(disk, leave_bytes=10 * MIB)
        await until(lambda: "alarm.raised" in broker.output())
        await asyncio.sleep(0.2)
        assert not events
        number = ledger.publish("", QUEUE, numbered(1))
        await until(lambda: bool(events))
        assert ledger.pending == {number}
        ballast.unlink()
        await until(lambda: not ledger.pending)
        assert events == ["low on disk", "unblocked"]
        assert (ledger.acked, ledger.nacked) == ([number], [])
