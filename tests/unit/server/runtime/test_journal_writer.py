"""Who makes the sync of a turn: the loop, if hardly anything else goes on, or the helper."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import Client, World
from vouchmq.store.disk import Syncable
from vouchmq.store.sync.worker import SyncInline, sync_each


class CountingWorker(SyncInline):
    """Counts who is asked for syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.by_helper = self.by_loop = 0

    def submit(self, sequence: int, targets: Sequence[Syncable]) -> None:
        self.by_helper += 1
        super().submit(sequence, targets)

    def sync(self, targets: Sequence[Syncable]) -> tuple[int, int]:
        self.by_loop += 1
        return sync_each(targets)

    def take(self) -> tuple[int, int]:
        """By the loop, by the helper, since the last time."""
        counts = self.by_loop, self.by_helper
        self.by_loop = self.by_helper = 0
        return counts


@pytest.fixture
def worker() -> CountingWorker:
    return CountingWorker()


@pytest.fixture
def world(worker: CountingWorker) -> World:
    return World(worker=worker)


@pytest.fixture
def publisher(world: World) -> Client:
    client = world.connect()
    client.open()
    client.declare("orders", durable=True)
    client.ask(1, commands.Confirm.Select())
    return client


@pytest.fixture
def consumers(world: World, publisher: Client, worker: CountingWorker) -> list[Client]:
    made = [world.connect() for _ in range(2)]
    for each in made:
        each.open()
        each.qos(1)
        each.consume("orders", "c")
    worker.take()
    return made


def publish(publisher: Client, count: int = 1) -> None:
    """Until it is synced, by whomever."""
    message = wire.publish(1, "orders", b"body", wire.persistent())
    publisher.send(*[message] * count)
    publisher.world.sync()


def ack_delivery(consumers: list[Client]) -> None:
    """Whoever has the message acks it."""
    [(consumer, tag)] = [(each, tag) for each in consumers for _, tag, _, _ in each.deliveries()]
    consumer.send(wire.ack(1, tag))


def test_the_loop_syncs_a_message_by_itself(publisher: Client, worker: CountingWorker) -> None:
    publish(publisher)
    worker.take()
    for _ in range(3):
        publish(publisher)
    assert worker.take() == (3, 0)
    assert publisher.names() == ["Basic.Ack"] * 4


def test_the_loop_syncs_a_message_when_the_one_before_was_acked(
    publisher: Client, consumers: list[Client], worker: CountingWorker
) -> None:
    publish(publisher)
    worker.take()
    for _ in range(3):
        ack_delivery(consumers)
        publish(publisher)
    assert worker.take() == (3, 0)


def test_the_helper_syncs_a_message_if_more_clients_are_active(
    publisher: Client, consumers: list[Client], worker: CountingWorker
) -> None:
    publish(publisher, 2)
    worker.take()
    for each in consumers:
        each.send(wire.ack(1, 1))
    publish(publisher)
    assert worker.take() == (0, 1)


def test_the_helper_syncs_several_messages_while_a_consumer_acks(
    publisher: Client, consumers: list[Client], worker: CountingWorker
) -> None:
    publish(publisher)
    worker.take()
    ack_delivery(consumers)
    publish(publisher, 2)
    assert worker.take() == (0, 1)
