"""What a leader believes of what standbys say they have synced."""

from __future__ import annotations

from tests.unit.store.replication.chains import Chain
from vouchmq.store.replication.log_view import LogView, Position
from vouchmq.store.replication.standby_syncs import MOST_RECORDS, StandbySyncs

BLOCK = bytes(100)


class Leader:
    """A leader's log, and what it has heard of standbys."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.syncs = StandbySyncs(self.told.append)
        self.chain = Chain().claim().begin()
        self._view = LogView()
        self._bytes = 0
        self.positions: list[Position] = []
        self.commit()

    def commit(self) -> Position:
        """Commit what the chain has by now."""
        for sequence, raw in enumerate(self.chain.messages, 1):
            if sequence > self._view.at.sequence:
                self._view.found(sequence, raw)
                self._bytes += len(raw)
                self.syncs.committed(self._view.at, self._bytes)
                self.positions.append(self._view.at)
        return self._view.at

    def block(self) -> Position:
        self.chain.blocks(BLOCK)
        return self.commit()


def test_the_record_that_a_standby_names_and_all_before_it_are_synced() -> None:
    leader = Leader()
    first, second, third = leader.block(), leader.block(), leader.block()
    assert leader.syncs.waiting_bytes > 3 * len(BLOCK)
    leader.syncs.reported("b", second.number, second.checksum)
    assert leader.told == [second.lsn]
    assert len(BLOCK) < leader.syncs.waiting_bytes < 2 * len(BLOCK) + 100
    # One that is behind tells nothing.
    leader.syncs.reported("c", first.number, first.checksum)
    leader.syncs.reported("c", third.number, third.checksum)
    assert leader.told == [second.lsn, third.lsn]
    assert (leader.syncs.waiting_bytes, leader.syncs.number) == (0, third.number)


def test_a_record_of_another_history_is_not_this_one() -> None:
    """An engine that has lost its end lets another node's claim stand under the same number."""
    leader = Leader()
    before = leader.block()
    other = Chain().claim().begin().blocks(BLOCK).claim("b")
    view = LogView()
    for sequence, raw in enumerate(other.messages, 1):
        view.found(sequence, raw)
    lost = leader.block()
    assert view.at.number == lost.number
    leader.syncs.reported("c", view.at.number, view.at.checksum)
    assert leader.told == []
    leader.syncs.reported("c", before.number, before.checksum)
    assert leader.told == [before.lsn]


def test_a_report_that_is_ahead_of_the_answer_waits_for_it() -> None:
    leader = Leader()
    ahead = Chain().claim().begin().blocks(BLOCK).blocks(BLOCK)
    view = LogView()
    for sequence, raw in enumerate(ahead.messages, 1):
        view.found(sequence, raw)
    leader.syncs.reported("b", view.at.number, view.at.checksum)
    leader.block()
    assert leader.told == []
    assert leader.block() == view.at
    assert leader.told == [view.at.lsn]


def test_a_report_that_is_ahead_does_not_outlive_the_next_one() -> None:
    """The standby's directory may be lost before the answer comes."""
    leader = Leader()
    ahead = Chain().claim().begin().blocks(BLOCK)
    view = LogView()
    for sequence, raw in enumerate(ahead.messages, 1):
        view.found(sequence, raw)
    leader.syncs.reported("b", view.at.number, view.at.checksum)
    leader.syncs.reported("b", -1, 0)
    leader.syncs.reported("c", view.at.number, view.at.checksum)
    leader.syncs.withdrawn("c")
    assert leader.block() == view.at
    assert leader.told == []


def test_a_report_that_is_ahead_and_wrong_is_passed_over() -> None:
    leader = Leader()
    number = leader.positions[-1].number + 1
    leader.syncs.reported("b", number, 1)
    leader.block()
    assert leader.told == []


def test_a_standby_may_name_a_beat() -> None:
    leader = Leader()
    block = leader.block()
    leader.chain.beat()
    beat = leader.commit()
    leader.syncs.reported("b", beat.number, beat.checksum)
    assert leader.told == [block.lsn]
    assert leader.syncs.waiting_bytes == 0


def test_a_standby_that_is_far_behind_counts_when_it_comes_near() -> None:
    leader = Leader()
    first = leader.block()
    for _ in range(MOST_RECORDS):
        leader.chain.blocks(b"x")
    last = leader.commit()
    leader.syncs.reported("b", first.number, first.checksum)
    assert leader.told == []
    leader.syncs.reported("b", last.number, last.checksum)
    assert leader.told == [last.lsn]
