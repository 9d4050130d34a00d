"""A small real disk is filled by the load itself, freed, filled again, and the broker killed on it.

Whoever publishes waits or is told; whoever consumes is served; nothing confirmed is lost and
nothing refused comes back, also when the broker is killed on the full disk and has to start
there. Spec: CONF-12, LIMIT-15, DURABLE-16
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pamqp.commands as amqp
import pytest

from tests.fault.campaign import FLAGS, Campaign, campaign
from tests.fault.clients import WORK, Client, RawPublisher, Scene, declare_all, load
from tests.fault.ledger import name_of
from tests.fault.loop_disk import LoopDisk, loop_disk, why_not
from tests.integration.broker_process import StartError
from tests.integration.raw_client import RawClient, method

pytestmark = pytest.mark.slow

MIB: Final = 1024 * 1024
DISK_BYTES: Final = 64 * MIB
ROOM_BYTES: Final = 5 * MIB
WAIT_S: Final = 60.0
TAKEN: Final = 50


@pytest.fixture
def disk(tmp_path: Path, referee_url: str | None) -> Iterator[LoopDisk]:
    """An ext4 of 64 MiB."""
    if referee_url is not None:
        pytest.skip("fills the disk of VouchMQ's own process")
    if missing := why_not("ext4"):
        pytest.skip(missing)
    with loop_disk(tmp_path, "ext4", DISK_BYTES) as disk:
        yield disk


@pytest.fixture
def one(disk: LoopDisk, tmp_path: Path) -> Iterator[Campaign]:
    """A campaign whose data is on that disk."""
    with campaign(
        tmp_path, seed=1, end="kill", data_dir=disk.mount_point / "data", flags=FLAGS
    ) as made:
        yield made


def take_room(disk: LoopDisk, leave_bytes: int) -> Path:
    """Fill the disk but for so much; gives the file that does."""
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


def publishers(scene: Scene) -> tuple[Client, ...]:
    """Nobody takes anything away."""
    return tuple(RawPublisher(scene, index) for index in range(3))


def refusals(one: Campaign) -> int:
    """How often the disk was found full."""
    return one.broker.output().count("journal.disk_full")


def take_some(one: Campaign, queue: str) -> None:
    """A consumer is served while the disk is full, and its acks are taken."""
    with RawClient(one.broker.url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Basic.Qos(prefetch_count=TAKEN), amqp.Basic.QosOk)
        client.send(method(1, amqp.Basic.Consume(queue=queue)))
        for _ in range(2):
            taken = client.deliveries(TAKEN)
            bodies = [name_of(body) for _, body in taken]
            for (sent, _), body in zip(taken, bodies, strict=True):
                one.ledger.receiving(queue, body, redelivered=bool(sent.redelivered))
            one.ledger.acking(queue, bodies, f"taker of {queue}")
            tag = taken[-1][0].delivery_tag or 0
            client.send(method(1, amqp.Basic.Ack(delivery_tag=tag, multiple=True)))
        one.ledger.on_the_way[queue] += TAKEN
        client.call(1, amqp.Basic.Qos(prefetch_count=TAKEN), amqp.Basic.QosOk)


def scene_of(one: Campaign, generation: str) -> Scene:
    """For the clients of one life of the broker."""
    return Scene(one.broker.url, one.ledger, generation, 1, threading.Event())


def test_full_freed_and_killed(one: Campaign, disk: LoopDisk) -> None:
    declare_all(one.broker.url)
    ballast = take_room(disk, ROOM_BYTES)
    with load(scene_of(one, "0"), publishers):
        one.broker.wait_until(lambda: refusals(one) > 0)
        stopped_at = one.ledger.confirmed_count
        assert stopped_at > 100
        for queue in WORK:
            take_some(one, queue)
        # What was acked makes a little room, and no more than that.
        room = 100 + 2 * TAKEN * len(WORK)
        assert one.ledger.confirmed_count - stopped_at < room, "the disk is not full"
        ballast.unlink()
        one.broker.wait_until(lambda: one.ledger.confirmed_count > stopped_at + 1000)
        one.broker.kill9()
    one.broker.start(WAIT_S)
    assert one.judge(random.Random(1)) == []


def test_killed_and_started_on_the_full_disk(one: Campaign, disk: LoopDisk) -> None:
    declare_all(one.broker.url)
    ballast = take_room(disk, ROOM_BYTES)
    with load(scene_of(one, "0"), publishers):
        one.broker.wait_until(lambda: refusals(one) > 0)
        time.sleep(0.5)
        one.broker.kill9()
    # Not an octet is left, so it need not start; it has to say why, and to harm nothing.
    take_room(disk, 0)
    for _ in range(3):
        try:
            one.broker.start(WAIT_S)
        except StartError as error:
            (line,) = (line for line in str(error).splitlines() if "vouchmq:" in line)
            assert "No space left on device" in line
            assert "Traceback" not in str(error)
        else:
            one.broker.kill9()
    ballast.unlink()
    one.broker.start(WAIT_S)
    assert one.ledger.nacked_count or one.ledger.confirmed_count
    assert one.judge(random.Random(1)) == []
    with load(scene_of(one, "1"), publishers):
        confirmed = one.ledger.confirmed_count
        one.broker.wait_until(lambda: one.ledger.confirmed_count > confirmed + 500)
        one.broker.kill9()
    one.broker.start(WAIT_S)
    assert one.judge(random.Random(2)) == []
