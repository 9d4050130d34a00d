"""Small durable facts: the newest value counts, and none pins or fills the disk."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from tests.simulation.sim_disk import SimDisk, SimFile
from tests.unit.store.journals import corrupt, open_on, publish, segments_on, sync
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.errors import WriteFailed
from vouchmq.store.inspection import Inspector
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.records import NOTE_SIZE
from vouchmq.store.journal.segment import segment_name


def fill(journal: Journal, segments: int = 1) -> None:
    """Publish and settle until so many segments more were begun."""
    end = journal.chain.tail_generation + segments
    while journal.chain.tail_generation < end:
        journal.settle(9, publish(journal, 9, b"x" * 900))
        sync(journal)


def notes_after_restart(disk: SimDisk, size: int = 4096) -> dict[int, dict[bytes, bytes]]:
    disk.crash(0)
    return open_on(disk, size=size)[1].notes


def test_the_newest_value_of_a_key_survives() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.note(1, b"a", b"old")
    journal.note(1, b"b", b"")
    sync(journal)
    journal.note(1, b"a", b"new")
    journal.note(2, b"a", b"other")
    sync(journal)
    assert notes_after_restart(disk) == {1: {b"a": b"new", b"b": b""}, 2: {b"a": b"other"}}


def test_a_note_taken_back_stays_away_and_may_come_again() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.note(1, b"a", b"one")
    journal.note(1, b"b", b"two")
    sync(journal)
    journal.unnote(1, b"a")
    journal.unnote(1, b"b")
    journal.note(1, b"b", b"three")
    journal.unnote(1, b"never")
    sync(journal)
    assert notes_after_restart(disk) == {1: {b"b": b"three"}}


def test_a_dropped_queue_takes_its_notes_along() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.note(1, b"a", b"one")
    sync(journal)
    journal.note(1, b"b", b"two")
    journal.note(2, b"b", b"kept")
    journal.drop_queue(1)
    sync(journal)
    fill(journal, 3)
    assert segment_name(1) not in disk.listdir()
    assert notes_after_restart(disk) == {2: {b"b": b"kept"}}


def test_a_note_asks_for_no_sync_and_is_in_the_block_of_its_turn() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    sync(journal)
    lsn = journal.note(1, b"a", b"one")
    assert journal.write() == lsn
    assert not journal.wants_sync
    journal.append_run((1,), b"", [b"message"])
    journal.note(1, b"b", b"with it")
    number = journal.chain.number
    journal.write()
    assert journal.chain.number == number + 1


def test_a_refused_block_takes_its_notes_along_but_not_what_was_taken_back() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.note(1, b"a", b"old")
    journal.note(1, b"b", b"old")
    journal.note(1, b"c", b"old")
    sync(journal)
    lsn = journal.note(1, b"a", b"refused")
    journal.unnote(1, b"b")
    journal.unnote(1, b"c")
    journal.note(1, b"c", b"refused")
    disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(WriteFailed) as refused:
        journal.write()
    assert refused.value.first_lsn <= lsn <= refused.value.last_lsn
    sync(journal)
    assert notes_after_restart(disk) == {1: {b"a": b"old"}}


@pytest.mark.parametrize("reads_all", [False, True])
def test_a_note_that_two_refused_blocks_took_back_and_gave_again_is_there(reads_all: bool) -> None:
    disk = SimDisk()
    known = {b"a": b"one", b"b": b"one"}
    journal, _ = open_on(disk, recall=lambda _scope_id, key: known.get(key))
    for key, value in known.items():
        journal.note(1, key, value)
    sync(journal)
    for key in known:
        journal.unnote(1, key)
    disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(WriteFailed):
        journal.write()
    # Whoever took it back has heard that it was in vain, as for dead letters that stay.
    journal.note(1, b"a", b"one")
    disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(WriteFailed):
        journal.write()
    del known[b"b"]
    sync(journal)
    fill(journal, 0 if reads_all else 3)
    assert notes_after_restart(disk) == {1: {b"a": b"one"}}


def test_notes_outlive_their_segment_and_pin_none() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    for n in range(20):
        journal.note(n % 3, b"key%d" % n, b"value %d" % n)
    sync(journal)
    expected = {s: {b"key%d" % n: b"value %d" % n for n in range(s, 20, 3)} for s in range(3)}
    for _ in range(5):
        fill(journal, 2)
        assert len(segments_on(disk)) <= 3
        assert notes_after_restart(disk) == expected
        journal, _ = open_on(disk)


def test_the_owner_is_asked_what_is_still_wanted() -> None:
    disk = SimDisk()
    known = {(1, b"a"): b"one", (1, b"b"): b"two"}
    journal, _ = open_on(disk, recall=lambda scope_id, key: known.get((scope_id, key)))
    for (scope_id, key), value in known.items():
        journal.note(scope_id, key, value)
    sync(journal)
    # Whoever forgets without a word about it is taken at that word when the segment goes.
    del known[1, b"a"]
    fill(journal, 3)
    assert segment_name(1) not in disk.listdir()
    assert notes_after_restart(disk) == {1: {b"b": b"two"}}


def compact(journal: Journal) -> None:
    """Take steps until there is nothing left to do."""
    compactor = Compactor(journal, lambda name, why: pytest.fail(why))
    for _ in range(2000):
        is_going_on = compactor.step(4096)
        sync(journal)
        if not is_going_on:
            return
    pytest.fail("compaction comes to no end")


def test_notes_are_carried_on_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    size = 256 * 1024
    journal, _ = open_on(disk, size=size)
    for n in range(2000):
        journal.note(n % 7, b"%d" % n, b"v")
    sync(journal)
    sizes: list[int] = []
    write = SimFile.write

    def watched(self: SimFile, parts: Sequence[bytes], offset: int) -> None:
        if any(b"x" * 4000 in part for part in parts):
            sizes.append(sum(map(len, parts)))
        write(self, parts, offset)

    monkeypatch.setattr(SimFile, "write", watched)
    while segment_name(1) in disk.listdir():
        journal.settle(9, publish(journal, 9, b"x" * 4000))
        journal.write()
    assert journal.notes.carried_count == 2000
    assert max(sizes) < 4500 + 256 * (NOTE_SIZE + 8)
    assert sum(map(len, notes_after_restart(disk, size).values())) == 2000


def test_a_segment_of_live_notes_is_not_written_again_and_again() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    for n in range(200):
        journal.note(1, b"key%d" % n, b"v" * 20)
        journal.write()
    sync(journal)
    for _ in range(12):
        fill(journal)
        compact(journal)
    # Some notes stood in segments that were mostly something else.
    carried = journal.notes.carried_count
    assert carried < 400
    for _ in range(6):
        fill(journal)
        compact(journal)
    assert journal.notes.carried_count == carried
    assert len(segments_on(disk)) <= 12
    for n in range(190):
        journal.unnote(1, b"key%d" % n)
    sync(journal)
    fill(journal, 2)
    compact(journal)
    assert len(segments_on(disk)) <= 4, "those that are mostly gone are carried on"
    assert set(notes_after_restart(disk)[1]) == {b"key%d" % n for n in range(190, 200)}


def test_a_segment_in_the_middle_leaves_its_word_behind() -> None:
    disk = SimDisk()
    size = 16 * 1024
    journal, _ = open_on(disk, size=size)
    pin = publish(journal, 1, b"p" * 9000)
    journal.note(1, b"gone", b"old")
    journal.note(1, b"kept", b"old")
    sync(journal)
    fill(journal)
    middle = segment_name(journal.chain.tail_generation)
    journal.unnote(1, b"gone")
    journal.note(1, b"kept", b"new")
    fill(journal, 2)
    compact(journal)
    assert middle not in disk.listdir()
    assert segment_name(1) in disk.listdir()
    disk.crash(0)
    _, recovered = open_on(disk, size=size)
    assert recovered.notes == {1: {b"kept": b"new"}}
    assert list(recovered.queues[1].spans[0]) == pin


def test_damage_costs_only_the_notes_it_hit() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.note(1, b"forgotten", b"old")
    journal.note(1, b"hit", b"older")
    sync(journal)
    fill_bytes = publish(journal, 1, b"pin" * 900)
    assert fill_bytes
    fill(journal)
    name = segment_name(journal.chain.tail_generation)
    journal.note(1, b"saved", b"value")
    journal.unnote(1, b"forgotten")
    sync(journal)
    journal.note(1, b"hit", b"newest value")
    sync(journal)
    fill(journal)
    corrupt(disk, name, bytes(disk.visible[name].visible).find(b"newest value"))
    for _ in range(2):
        disk.crash(0)
        _, recovered = open_on(disk)
        assert recovered.notes == {1: {b"hit": b"older", b"saved": b"value"}}
    assert name + ".damaged" in disk.listdir()


def test_a_look_from_outside_counts_them() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    for n in range(5):
        journal.note(1, b"key%d" % n, b"v")
    journal.note(2, b"key", b"v")
    sync(journal)
    fill(journal)
    journal.unnote(1, b"key3")
    journal.note(1, b"key4", b"again")
    journal.drop_queue(2)
    sync(journal)
    assert Inspector(disk).inspect().notes == {1: 4}
