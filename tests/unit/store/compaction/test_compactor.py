"""Mostly dead segments are emptied, and nothing that lives is lost on the way."""

from __future__ import annotations

import random

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import corrupt, lsns_of, open_on, publish, raws_of, segments_on, sync
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.reading.blocks import Block, Window, find_block

SIZE = 64 * 1024
RAW = b"r" * 1000
Corrupted = list[tuple[str, str]]


def compactor_of(journal: Journal) -> tuple[Compactor, Corrupted]:
    corrupted: Corrupted = []
    return Compactor(journal, lambda name, why: corrupted.append((name, why))), corrupted


def compact(journal: Journal, octets: int = 4096) -> tuple[Compactor, Corrupted]:
    """Take steps until there is nothing left to do."""
    compactor, corrupted = compactor_of(journal)
    for _ in range(10_000):
        is_going_on = compactor.step(octets)
        sync(journal)
        if not is_going_on:
            sync(journal)
            return compactor, corrupted
    raise AssertionError("compaction comes to no end")


def pinned(disk: SimDisk, count: int = 400, every: int = 50) -> tuple[Journal, list[int]]:
    """Return a journal in which one message out of `every` is left."""
    journal, _ = open_on(disk, size=SIZE)
    lsns = []
    for _ in range(count // 10):
        lsns += publish(journal, 1, *[RAW] * 10)
    journal.settle(1, [lsn for at, lsn in enumerate(lsns) if at % every])
    sync(journal)
    return journal, lsns[::every]


def test_one_message_pins_no_segment() -> None:
    disk = SimDisk()
    journal, kept = pinned(disk)
    assert len(segments_on(disk)) > 5
    compactor, corrupted = compact(journal)
    assert corrupted == []
    assert len(segments_on(disk)) <= 2
    assert compactor.counters.moved_messages >= 6
    assert lsns_of(open_on(disk, size=SIZE)[1], 1) == kept


def test_disk_use_is_bounded_by_what_lives() -> None:
    disk = SimDisk()
    journal, kept = pinned(disk, count=1000, every=3)
    compact(journal)
    used = sum(len(disk.visible[name].visible) for name in disk.listdir())
    assert used <= 2 * len(kept) * len(RAW) + 3 * SIZE
    _, recovered = open_on(disk, size=SIZE)
    assert lsns_of(recovered, 1) == kept
    assert set(raws_of(recovered, 1)) == {RAW}


def test_a_segment_that_mostly_lives_is_left_alone() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    lsns = publish(journal, 1, *[RAW] * 200)
    journal.settle(1, lsns[::4])
    sync(journal)
    before = segments_on(disk)
    compactor, _ = compact(journal)
    assert compactor.counters.moved_messages == 0
    assert segments_on(disk) == before


def test_a_dead_segment_behind_a_living_one_goes_with_its_settles_logged_again() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    living = publish(journal, 1, *[RAW] * 100)
    # The settles of some of these stand in segments that are dead soon.
    journal.settle(1, living[10:20])
    sync(journal)
    passing = publish(journal, 2, *[RAW] * 300)
    journal.settle(2, passing)
    sync(journal)
    before = len(segments_on(disk))
    compact(journal)
    assert len(segments_on(disk)) <= before - 4
    for _ in range(2):
        _, recovered = open_on(disk, size=SIZE)
        assert lsns_of(recovered, 1) == living[:10] + living[20:]
        assert lsns_of(recovered, 2) == []
        assert recovered.report.damaged == []


def test_a_dead_segment_is_not_read_through_for_settles_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    living = publish(journal, 1, *[RAW] * 100)
    sync(journal)
    for _ in range(300):
        # The settle is a block of its own.
        lsns = publish(journal, 2, RAW)
        sync(journal)
        journal.settle(2, lsns)
        sync(journal)
    journal.settle(1, living[:1])
    before = len(segments_on(disk))
    reads: list[int] = []

    def counted(window: Window, offset: int, *rest: int) -> Block | None:
        reads.append(offset)
        return find_block(window, offset, *rest)

    monkeypatch.setattr("vouchmq.store.compaction.compactor.find_block", counted)
    compact(journal)
    assert len(segments_on(disk)) <= before - 4
    assert len(reads) < 20
    _, recovered = open_on(disk, size=SIZE)
    assert lsns_of(recovered, 1) == living[1:]
    assert lsns_of(recovered, 2) == []


def test_a_retired_file_that_comes_back_does_not_count() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    living = publish(journal, 1, *[RAW] * 60)
    passing = publish(journal, 2, *[RAW] * 300)
    old = {name: disk.visible[name] for name in segments_on(disk)}
    journal.settle(2, passing)
    sync(journal)
    compact(journal)
    gone = sorted(old.keys() - set(segments_on(disk)))
    assert len(gone) >= 3
    disk.visible[gone[1]] = old[gone[1]]
    _, recovered = open_on(disk, size=SIZE)
    assert lsns_of(recovered, 2) == []
    assert lsns_of(recovered, 1) == living
    assert recovered.report.damaged == []
    assert gone[1] not in disk.listdir()


def test_settling_goes_on_between_the_steps() -> None:
    disk = SimDisk()
    journal, kept = pinned(disk, every=10)
    compactor, corrupted = compactor_of(journal)
    left = list(kept)
    while compactor.step(600):
        if left:
            journal.settle(1, [left.pop()])
        sync(journal)
    sync(journal)
    assert corrupted == []
    assert lsns_of(open_on(disk, size=SIZE)[1], 1) == left


def test_a_message_of_two_queues_moves_for_those_that_still_have_it() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    lsns = []
    for _ in range(300):
        lsns.append(journal.append_run((1, 2), b"t", [RAW]))
        sync(journal)
    journal.settle(1, lsns)
    journal.settle(2, [lsn for at, lsn in enumerate(lsns) if at % 20])
    sync(journal)
    compact(journal)
    _, recovered = open_on(disk, size=SIZE)
    assert (lsns_of(recovered, 1), lsns_of(recovered, 2)) == ([], lsns[::20])
    assert len(segments_on(disk)) <= 3


def test_what_recovery_found_is_compacted_too() -> None:
    disk = SimDisk()
    journal, kept = pinned(disk)
    del journal
    again, _ = open_on(disk, size=SIZE)
    compact(again)
    assert len(segments_on(disk)) <= 2
    assert lsns_of(open_on(disk, size=SIZE)[1], 1) == kept


def test_a_damaged_block_is_not_carried_on_as_if_it_were_whole() -> None:
    disk = SimDisk()
    journal, _ = pinned(disk)
    inode = disk.visible[segment_name(1)]
    corrupt(disk, segment_name(1), bytes(inode.visible).find(RAW) + 10)
    _, corrupted = compact(journal)
    assert [name for name, _ in corrupted] == [segment_name(1)]
    assert "checksum" in corrupted[0][1]
    assert segment_name(1) in disk.listdir()


@pytest.mark.parametrize("octets", [1, 5000, 1 << 20])
def test_steps_of_any_size_come_to_the_same_end(octets: int) -> None:
    disk = SimDisk()
    journal, kept = pinned(disk, count=200, every=40)
    compact(journal, octets)
    assert lsns_of(open_on(disk, size=SIZE)[1], 1) == kept


def test_a_step_is_bounded() -> None:
    disk = SimDisk()
    journal, _ = pinned(disk, every=3)
    compactor, _ = compactor_of(journal)
    before = 0
    while compactor.step(4096):
        moved = compactor.counters.moved_bytes
        assert moved - before <= 4096 + 64 * len(RAW)
        before = moved
        sync(journal)
    assert before > 50_000


def test_a_step_ends_when_its_time_is_up() -> None:
    disk = SimDisk()
    journal, kept = pinned(disk, every=3)
    now = [0.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    compactor = Compactor(journal, lambda name, why: None, clock)
    compactor.look()
    steps = 0
    while compactor.step(1 << 40, 0.003):
        assert compactor.counters.moved_bytes <= steps * 4 * 33 * len(RAW)
        steps += 1
        sync(journal)
    assert steps > 50
    assert lsns_of(open_on(disk, size=SIZE)[1], 1) == kept


def test_interleaved_messages_leave_few_ranges_behind() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    left = []
    for _ in range(100):
        publish(journal, 2, RAW)
        left += publish(journal, 1, RAW)
        publish(journal, 2, RAW)
    journal.drop_queue(2)
    sync(journal)
    compact(journal)
    assert len(journal.chain._segment_map) <= 2 * len(segments_on(disk))
    journal.settle(1, left[::2])
    sync(journal)
    assert lsns_of(open_on(disk, size=SIZE)[1], 1) == left[1::2]


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_damaged_route_is_not_carried_on(is_damaged: bool) -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    # The block that logs the route holds nothing that lives.
    lsns = [journal.append_run((1,), b"a-routing-key", [RAW])]
    sync(journal)
    for _ in range(100):
        lsns.append(journal.append_run((1,), b"a-routing-key", [RAW]))
        sync(journal)
    journal.settle(1, [lsn for at, lsn in enumerate(lsns) if at % 20 != 10])
    sync(journal)
    if is_damaged:
        at = bytes(disk.visible[segment_name(1)].visible).find(b"a-routing-key")
        corrupt(disk, segment_name(1), at)
    _, corrupted = compact(journal)
    assert [name for name, _ in corrupted] == [segment_name(1)] * is_damaged


def test_a_settle_is_logged_again_once_and_only_while_its_message_is_there() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    draw = random.Random(4)
    live: list[int] = []
    compactor, corrupted = compactor_of(journal)
    settled = 0
    for _ in range(1500):
        live += publish(journal, 1, RAW)
        if len(live) > 300:
            for _ in range(2 if len(live) > 320 else 1):
                journal.settle(1, [live.pop(draw.randrange(len(live)))])
                settled += 1
        compactor.step(1 << 20)
        sync(journal)
    assert corrupted == []
    assert compactor.counters.rounds > 20
    assert compactor.counters.rewritten < settled
    assert lsns_of(open_on(disk, size=SIZE)[1], 1) == live


def test_a_segment_of_settles_that_others_need_is_left_alone() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=SIZE)
    lsns: list[int] = []
    for _ in range(200):
        first = journal.append_run((1,), b"", [b"m" * 20] * 100)
        lsns += range(first, first + 100)
        sync(journal)
    gone = random.Random(2).sample(lsns, len(lsns) * 4 // 10)
    for at in range(0, len(gone), 50):
        journal.settle(1, gone[at : at + 50])
        sync(journal)
    journal.append_run((2,), b"", [RAW])
    sync(journal)
    assert any(not segment.live_count for segment in journal.chain.resting)
    compactor, corrupted = compact(journal)
    assert corrupted == []
    assert compactor.counters.rewritten < 2 * len(gone)
    left = sorted(set(lsns).difference(gone))
    assert lsns_of(open_on(disk, size=SIZE)[1], 1) == left
    # When the messages have gone, it goes as well.
    journal.settle(1, left)
    sync(journal)
    journal.barrier()
    sync(journal)
    compact(journal)
    assert len(segments_on(disk)) <= 3


def test_definitions_near_the_size_of_a_segment_do_not_keep_compaction_busy() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, definitions=[b"d" * 3000])
    lsns = []
    for _ in range(50):
        lsns += publish(journal, 1, b"m" * 100)
        journal.settle(2, [])
        passing = publish(journal, 2, b"m" * 100)
        journal.settle(2, passing)
        sync(journal)
    kept = lsns[::10]
    journal.settle(1, sorted(set(lsns).difference(kept)))
    sync(journal)
    compact(journal)
    assert lsns_of(open_on(disk)[1], 1) == kept
    assert len(segments_on(disk)) <= 3
