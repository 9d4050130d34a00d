"""The identity of a data directory, and what it says to somebody who has seen another one."""

from __future__ import annotations

from itertools import count

import pytest

from tests.unit.server.broker.stand_ins import QueueStandIn, new_broker
from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.broker import Broker
from vouchmq.server.broker.data_directory import KEPT_EARLIER, KEPT_STARTS, DataDirectory


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


def test_a_start_is_known_however_many_there_were_since() -> None:
    """A checkpoint may sleep for years beside a broker that is started every night."""
    world = World()
    first = world.start(0)
    seen = broker = world.start(10, first.definitions())
    backup = seen.definitions()
    for number in range(2 * KEPT_STARTS):
        broker = world.start(20 + number, broker.definitions())
        directory = broker.data_directory
        assert directory.mismatch(*told(first.data_directory, 10), 9999) == ""
        assert "ended at LSN 10" in directory.mismatch(*told(first.data_directory, 11), 9999)
        assert directory.mismatch(*told(seen.data_directory, 20), 9999) == ""
        assert "ended at LSN 20" in directory.mismatch(*told(seen.data_directory, 21), 9999)
    # A copy that is restored knows what it has, and nothing of what came since.
    restored = world.start(20, backup)
    for _ in range(KEPT_STARTS + 5):
        restored = world.start(20, restored.definitions())
    assert restored.data_directory.mismatch(*told(seen.data_directory, 20), 9999) == ""
    assert "does not know start" in restored.data_directory.mismatch(*told(directory, 20), 9999)


def test_what_is_remembered_of_starts_has_a_bound() -> None:
    random_name = map("random{}".format, count()).__next__
    directory = DataDirectory()
    directory.begin(0, random_name)
    first = directory.start
    for number in range(1, KEPT_STARTS + KEPT_EARLIER):
        directory.begin(number, random_name)
    assert directory.mismatch(directory.identity, first, 1, 9999) == ""
    assert len(directory.records()[0]) < 90_000
    directory.begin(9998, random_name)
    assert "does not know start" in directory.mismatch(directory.identity, first, 1, 9999)


def test_a_record_of_few_starts_is_one_that_older_brokers_read() -> None:
    world = World()
    broker = world.start(0)
    for number in range(KEPT_STARTS):
        assert b"earlier" not in broker.data_directory.records()[0]
        broker = world.start(number, broker.definitions())
    assert b"earlier" in broker.data_directory.records()[0]
