"""Segments begin with all definitions, and the broker is seldom asked for them."""

from __future__ import annotations

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import open_on, publish, sync
from vouchmq.store.journal.snapshot import Snapshot


class Asked:
    """A broker with some definitions, which counts how often it is asked."""

    def __init__(self, count: int) -> None:
        self.records = [b"definition %d" % n for n in range(count)]
        self.times = 0

    def __call__(self) -> list[bytes]:
        self.times += 1
        return list(self.records)


def test_changes_are_put_behind_what_was_said_last() -> None:
    asked = Asked(3000)
    snapshot = Snapshot([b"recovered"])
    snapshot.ask(asked)
    assert snapshot.known == [b"recovered"]
    assert snapshot.records() == asked.records
    snapshot.add([b"new", b"newer"])
    assert snapshot.records() == [*asked.records, b"new", b"newer"]
    assert asked.times == 1


def test_it_is_asked_again_when_half_has_changed() -> None:
    asked = Asked(3000)
    snapshot = Snapshot([])
    snapshot.ask(asked)
    snapshot.refresh()
    snapshot.add([b"change"] * 1499)
    snapshot.records()
    assert asked.times == 1
    snapshot.add([b"change"])
    assert snapshot.records() == asked.records
    assert asked.times == 2


def test_a_restart_finds_definitions_and_their_changes_whatever_segment_they_are_in() -> None:
    disk = SimDisk()
    known: list[bytes] = []
    journal, _ = open_on(disk, definitions=known)
    journal.learn_definitions()
    for n in range(12):
        known.append(b"definition %d" % n)
        journal.define(known[-1])
        journal.settle(1, publish(journal, 1, b"x" * 1500))
        sync(journal)
    assert journal.chain.oldest.generation > 1
    for _ in range(2):
        disk.crash(0)
        _, recovered = open_on(disk, definitions=known)
        assert list(dict.fromkeys(recovered.definitions)) == known
