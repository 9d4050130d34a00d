"""The identity of a data directory, and what it says to somebody who has seen another one."""

from __future__ import annotations

from itertools import count

import pytest

from tests.unit.server.broker.stand_ins import QueueStandIn, new_broker
from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.broker import Broker
from vouchmq.server.broker.data_directory import KEPT_STARTS, DataDirectory


class World:
    """Starts of brokers, each on the records that an earlier one has left."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def start(self, found_lsn: int, records: list[bytes] | None = None) -> Broker[QueueStandIn]:
        broker = new_broker()
        broker.restore(records or [])
        broker.data_directory.begin(found_lsn, lambda: f"random{next(self._numbers)}")
        return broker


def told(directory: DataDirectory, lsn: int) -> tuple[str, str, int]:
    return directory.identity, directory.start, lsn


def test_an_identity_stays_and_each_start_has_its_own() -> None:
    world = World()
    first = world.start(0)
    again = world.start(40, first.definitions()).data_directory
    assert again.identity == first.data_directory.identity
    assert again.start != first.data_directory.start
    assert again.mismatch(*told(first.data_directory, 40), 50) == ""
    assert again.mismatch(*told(again, 49), 50) == ""
    assert world.start(0).data_directory.identity != again.identity


def test_nothing_is_recorded_before_a_start() -> None:
    assert new_broker().definitions() == [d.encode(d.QueueIdsReserved(1))]


def test_another_directory() -> None:
    world = World()
    one, two = world.start(0).data_directory, world.start(0).data_directory
    assert two.mismatch(*told(one, 0), 10).startswith("this is data directory")


@pytest.mark.parametrize("restarts", range(3))
def test_a_backup_of_a_running_broker(restarts: int) -> None:
    world = World()
    seen = world.start(0)
    restored = world.start(100, seen.definitions())
    for number in range(restarts):
        restored = world.start(1000 * number + 1000, restored.definitions())
    directory = restored.data_directory
    assert directory.mismatch(*told(seen.data_directory, 100), 9999) == ""
    assert "restored from a backup" in directory.mismatch(*told(seen.data_directory, 101), 9999)


def test_a_backup_from_before_the_start_that_was_seen() -> None:
    world = World()
    first = world.start(0)
    seen = world.start(50, first.definitions())
    restored = world.start(50, first.definitions()).data_directory
    assert "does not know start" in restored.mismatch(*told(seen.data_directory, 50), 9999)


def test_an_lsn_that_was_never_given() -> None:
    directory = World().start(0).data_directory
    assert "ended at LSN 9" in directory.mismatch(*told(directory, 10), 10)


def test_starts_are_forgotten_after_many() -> None:
    world = World()
    seen = broker = world.start(0)
    for _ in range(KEPT_STARTS - 1):
        broker = world.start(10, broker.definitions())
    assert broker.data_directory.mismatch(*told(seen.data_directory, 10), 20) == ""
    broker = world.start(10, broker.definitions())
    assert "does not know start" in broker.data_directory.mismatch(
        *told(seen.data_directory, 10), 20
    )
