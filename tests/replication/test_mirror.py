"""Machines that lead, mirror, lose power and rot: some schedules in every run, and planted bugs."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.replication.machines import Machine, MachineRoom
from tests.simulation.sim_disk import SimFile
from vouchmq.store.replication.leader_position import LeaderPosition
from vouchmq.store.replication.log_view import Position
from vouchmq.store.replication.log_writer import LogWriter, _UnderWay
from vouchmq.store.replication.mirror import Mirror
from vouchmq.store.replication.own_segments import OwnSegments
from vouchmq.store.replication.position_file import PositionFile
from vouchmq.store.replication.watermark import Watermark

COUNT = 60
MOST_SCHEDULES = 600


def run(seed: int, *, needs_standby: bool = False) -> MachineRoom:
    room = MachineRoom(seed, needs_standby=needs_standby)
    try:
        room.run()
    except Exception as error:
        raise AssertionError(f"MachineRoom({seed}, {needs_standby=}): {error!r}") from error
    return room


def test_what_was_confirmed_outlives_the_machines() -> None:
    first = time.time_ns() >> 10
    rooms = [run(seed) for seed in range(first, first + COUNT)]
    # They have been about something.
    assert sum(room.take_overs for room in rooms) > COUNT
    assert sum(room.cuts for room in rooms) > COUNT
    assert sum(room.heals for room in rooms) > 5
    assert sum(len(room.confirmed) for room in rooms) > COUNT
    assert sum(each.position_count for room in rooms for each in room.machines) > COUNT


def test_what_was_confirmed_is_on_two_disks_if_that_is_asked_for() -> None:
    first = time.time_ns() >> 10
    rooms = [run(seed, needs_standby=True) for seed in range(first, first + COUNT)]
    assert sum(room.take_overs for room in rooms) > COUNT
    assert sum(len(room.confirmed) for room in rooms) > COUNT


def caught(*, needs_standby: bool = False) -> AssertionError:
    """The failure of the first schedule, of fresh seeds, that finds something."""
    first = time.time_ns() >> 10
    for seed in range(first, first + MOST_SCHEDULES):
        try:
            run(seed, needs_standby=needs_standby)
        except AssertionError as failure:
            # A plant that does not run proves nothing.
            assert not isinstance(failure.__cause__, TypeError | AttributeError | NameError)
            return failure
    raise AssertionError(f"{MOST_SCHEDULES} schedules from {first} on have not found the bug")


def test_finds_a_standby_that_reports_what_it_has_not_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reported(self: Machine) -> tuple[int, int]:
        assert self.mirror is not None
        return self.mirror.at.number, self.mirror.at.checksum

    monkeypatch.setattr(Machine, "reported", reported)
    assert "on 1 disk" in str(caught(needs_standby=True))


def test_finds_a_confirm_that_waits_for_no_standby(monkeypatch: pytest.MonkeyPatch) -> None:
    def synced_here(self: Watermark, lsn: int) -> None:
        self._standby = self._synced = lsn
        self._tell()

    monkeypatch.setattr(Watermark, "synced_here", synced_here)
    assert "on 1 disk" in str(caught(needs_standby=True))


def test_finds_a_position_that_speaks_for_what_is_not_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sync(self: Mirror) -> None:
        if self._whole != self._position.at and self.view.log_id is not None:
            self._position.put(self.view.log_id, self._whole)

    monkeypatch.setattr(Mirror, "sync", sync)
    caught()


def test_finds_a_leader_s_position_that_speaks_for_what_is_not_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def next_job(
        self: LeaderPosition, whole: Position | None, safe_number: int
    ) -> Callable[[], None] | None:
        return original(self, whole, safe_number + 100)

    original = LeaderPosition.next_job
    monkeypatch.setattr(LeaderPosition, "next_job", next_job)
    caught()


def test_finds_a_leader_s_position_in_the_middle_of_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def commit(self: LogWriter, under_way: _UnderWay) -> None:
        original(self, under_way)
        self.whole = self.at

    original = LogWriter._commit
    monkeypatch.setattr(LogWriter, "_commit", commit)
    caught()


def test_finds_that_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(self: Mirror, offset: int, block: int) -> None:
        del offset, block
        self._is_comparing = False

    monkeypatch.setattr(Mirror, "_cut_off", cut_off)
    caught()


def test_finds_that_the_rest_of_an_unfinished_block_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: Mirror, end: int) -> None:
        del self, end

    monkeypatch.setattr(Mirror, "_cut", cut)
    caught()


def test_finds_that_damage_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnSegments, "damaged", lambda self: [])
    caught()


def test_finds_a_torn_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place for it is not enough: a write that is torn takes the one before it along."""

    def put(self: PositionFile, log_id: bytes, at: Position) -> None:
        self._turn += 1 - self._turn % 2
        original(self, log_id, at)

    original = PositionFile.put
    monkeypatch.setattr(PositionFile, "put", put)
    caught()


def test_finds_a_segment_that_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimFile.sync

    def skip(self: SimFile) -> None:
        names = [name for name, inode in self._disk.visible.items() if inode is self.inode]
        if not any(name.endswith("1.journal") for name in names):
            sync(self)

    monkeypatch.setattr(SimFile, "sync", skip)
    caught()
