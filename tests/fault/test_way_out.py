"""A disk that ran full comes free by what consumers do, with no room made by anybody else.

A message here and there pins each segment. Acks have to be logged, what is pinned has to be moved,
and publishers go on when segments are gone; also where only the disk alarm has stopped them, with
less room left than one segment takes. Spec: LIMIT-15, DURABLE-15
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pamqp.commands as amqp
import pytest

from tests.fault.loop_disk import LoopDisk, loop_disk, why_not
from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import RawClient, content, method

pytestmark = pytest.mark.slow

MIB: Final = 1024 * 1024
DISK_BYTES: Final = 64 * MIB
SEGMENT_BYTES: Final = 4 * MIB
BODY: Final = bytes(1024)
EVERY: Final = 500
BATCH: Final = 200
WAIT_S: Final = 60.0
# More than the disk has room for.
MOST_BATCHES: Final = DISK_BYTES // len(BODY) // BATCH
MORE_BATCHES: Final = 3 * SEGMENT_BYTES // len(BODY) // BATCH


@pytest.fixture
def disk(tmp_path: Path, referee_url: str | None) -> Iterator[LoopDisk]:
    """An ext4 of 64 MiB."""
    if referee_url is not None:
        pytest.skip("fills the disk of VouchMQ's own process")
    if missing := why_not("ext4"):
        pytest.skip(missing)
    with loop_disk(tmp_path, "ext4", DISK_BYTES) as disk:
        yield disk


class Publisher:
    """Publishes in batches, one message in so many to the queue that nobody reads."""

    def __init__(self, url: str, limit_s: float) -> None:
        self.client = RawClient(url, limit_s=limit_s).handshake()
        self.client.open_channel()
        self.client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        self.sent = self.confirmed = 0

    def batch(self) -> bool:
        """Publish one; False when it was refused, or is still waiting when the time is up."""
        numbers = range(self.sent, self.sent + BATCH)
        keys = ["pinned" if number % EVERY == 0 else "work" for number in numbers]
        try:
            self.client.send(b"".join(content(1, "", k, BODY, persistent=True) for k in keys))
            self.sent += BATCH
            while self.confirmed < self.sent:
                _, answer = self.client.read()
                if isinstance(answer, amqp.Basic.Nack):
                    return False
                if isinstance(answer, amqp.Basic.Ack):
                    self.confirmed = answer.delivery_tag or 0
        except TimeoutError:
            return False
        return True


def ready(url: str, queue: str) -> int:
    with RawClient(url).handshake() as client:
        client.open_channel()
        return client.ready_count(queue)


def drain(url: str, queue: str) -> None:
    """Take and acknowledge all of it."""
    with RawClient(url, limit_s=WAIT_S).handshake() as client:
        client.open_channel()
        count = client.ready_count(queue)
        client.call(1, amqp.Basic.Qos(prefetch_count=BATCH), amqp.Basic.QosOk)
        client.send(method(1, amqp.Basic.Consume(queue=queue)))
        while count:
            taken = client.deliveries(min(count, BATCH))
            count -= len(taken)
            tag = taken[-1][0].delivery_tag or 0
            client.send(method(1, amqp.Basic.Ack(delivery_tag=tag, multiple=True)))
        client.call(1, amqp.Basic.Qos(prefetch_count=BATCH), amqp.Basic.QosOk)


@pytest.mark.parametrize("free_limit", ["0", "3000000"])
def test_consumers_alone_free_a_full_disk(tmp_path: Path, disk: LoopDisk, free_limit: str) -> None:
    flags = ("--segment-size-bytes", str(SEGMENT_BYTES), "--disk-free-limit", free_limit)
    broker = BrokerProcess(tmp_path, flags=flags)
    broker.data_dir = disk.mount_point / "data"
    broker.start(WAIT_S)
    try:
        with RawClient(broker.url).handshake() as client:
            client.open_channel()
            for queue in ("work", "pinned"):
                client.call(1, amqp.Queue.Declare(queue=queue, durable=True), amqp.Queue.DeclareOk)
        publisher = Publisher(broker.url, limit_s=4)
        while publisher.batch():
            assert publisher.sent < MOST_BATCHES * BATCH, "the disk is not full"
        assert disk.free_bytes() < SEGMENT_BYTES, "there was room for another segment"
        publisher.client.reset()
        drain(broker.url, "work")
        pinned = ready(broker.url, "pinned")
        assert pinned > 50
        # Every segment still holds some of them. Nobody but the broker makes room now.
        broker.wait_until(lambda: disk.free_bytes() >= DISK_BYTES // 2)
        again = Publisher(broker.url, limit_s=WAIT_S)
        for _ in range(MORE_BATCHES):
            assert again.batch()
        again.client.reset()
        more = sum(number % EVERY == 0 for number in range(again.sent))
        broker.kill9()
        broker.start(WAIT_S)
        assert ready(broker.url, "pinned") == pinned + more
    finally:
        broker.kill9()
