"""The file that says up to where a directory has the log."""

from __future__ import annotations

import pytest

from tests.simulation.sim_disk import PowerCut, SimDisk
from vouchmq.store.replication.log_view import START, Position
from vouchmq.store.replication.position_file import POSITION_NAME, PositionFile

ID = b"0123456789abcdef"
ONE = Position(*range(1, 9))
TWO = Position(*range(2**40, 2**40 + 8))


def test_a_position_comes_back_as_it_was_put() -> None:
    disk = SimDisk()
    assert (PositionFile(disk).at, PositionFile(disk).log_id) == (None, b"")
    file = PositionFile(disk)
    for at in (START, ONE, TWO):
        file.put(ID, at)
        again = PositionFile(disk)
        assert (again.at, again.log_id) == (at, ID)


def test_it_is_on_the_disk_when_it_was_put() -> None:
    disk = SimDisk()
    PositionFile(disk).put(ID, ONE)
    disk.crash(1)
    assert PositionFile(disk).at == ONE


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_leaves_one_or_the_other(seed: int) -> None:
    disk = SimDisk()
    file = PositionFile(disk)
    file.put(ID, ONE)
    disk.crash_after = 1
    with pytest.raises(PowerCut):
        file.put(ID, TWO)
    disk.crash(seed)
    assert PositionFile(disk).at in (ONE, TWO)


def test_what_has_rotted_does_not_count() -> None:
    disk = SimDisk()
    file = PositionFile(disk)
    file.put(ID, ONE)
    file.put(ID, TWO)
    disk.visible[POSITION_NAME].visible[40] ^= 1
    assert PositionFile(disk).at == ONE
