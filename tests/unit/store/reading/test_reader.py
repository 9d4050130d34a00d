"""Messages read back from a journal: wherever they lie, in order, and never wrong ones."""

from __future__ import annotations

import errno

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import corrupt, open_on, publish, segments_on, sync
from vouchmq.store.errors import ReadFailed, WriteFailed
from vouchmq.store.journal.journal import Journal
from vouchmq.store.reading.reader import (
    CACHED_ROUTES,
    NO_LIMIT,
    OPEN_FILES,
    WHOLE_BYTES,
    Reader,
)

TEN = [b"\x01xkey%d" % n for n in range(10)]
LARGE_SEGMENT = 8 * 1024 * 1024


def reader_of(journal: Journal) -> Reader:
    return journal._reader


def test_what_is_written_can_be_read_before_it_is_synced() -> None:
    journal, _ = open_on(SimDisk())
    first = journal.append_run((1,), b"tail", [b"a", b"bb", b"ccc"])
    journal.write()
    assert journal.fetch([first, first + 2]) == [(b"a", b"tail"), (b"ccc", b"tail")]
    later = journal.append_run((1,), b"tail", [b"d"])
    journal.write()
    assert journal.fetch(range(first, later + 1))[-1] == (b"d", b"tail")


@pytest.mark.parametrize("is_recovered", [False, True])
@pytest.mark.parametrize("size", [1, 100, 1060])
@pytest.mark.parametrize("run", [1, 7, 60, 2000])
def test_runs_of_all_lengths(run: int, size: int, is_recovered: bool) -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=LARGE_SEGMENT)
    raws: dict[int, bytes] = {}
    for n in range(max(2, 3000 // run)):
        # One in three runs has contents of different sizes.
        some = [b"%d" % (n * run + at) for at in range(run)]
        some = [
            raw.ljust(size + (at % 3 if n % 3 == 2 else 0), b".") for at, raw in enumerate(some)
        ]
        first = journal.append_run((1,), b"tail", some)
        raws.update(enumerate(some, start=first))
        journal.write()
    if is_recovered:
        sync(journal)
        journal, _ = open_on(disk, size=LARGE_SEGMENT)
    for lsns in (
        sorted(raws),
        sorted(raws)[::3],
        sorted(raws)[::137],
        sorted(raws)[5:6],
        range(2, len(raws)),
    ):
        assert journal.fetch(lsns) == [(raws[lsn], b"tail") for lsn in lsns]


@pytest.mark.parametrize("is_recovered", [False, True])
def test_runs_of_one_with_ten_routes_in_turn(is_recovered: bool) -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=LARGE_SEGMENT)
    raws = []
    for n in range(3000):
        raws.append(b"%d" % n * 100)
        # Ten routes over and over, and now and then one that is never seen again.
        tail = b"once%d" % n if n % 500 == 7 else TEN[n % 10]
        journal.append_run((1 + n % 3,), tail, [raws[-1]])
        if n % 13 == 0:
            journal.write()
    sync(journal)
    if is_recovered:
        journal, _ = open_on(disk, size=LARGE_SEGMENT)
    for part in (range(3000), range(3, 3000, 10), range(2999, 3000)):
        found = journal.fetch([n + 1 for n in part])
        assert [raw for raw, _ in found] == [raws[n] for n in part]
        assert [t for _, t in found] == [
            b"once%d" % n if n % 500 == 7 else TEN[n % 10] for n in part
        ]


def test_tails_of_one_route_are_one_object() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=LARGE_SEGMENT)
    for _ in range(2000):  # some MiB, so that the route is logged again
        journal.append_run((1,), b"the tail", [bytes(1500)])
        journal.write()
    assert len({id(tail) for _, tail in journal.fetch(range(1, 2001))}) == 1


def test_more_routes_than_are_remembered() -> None:
    journal, _ = open_on(SimDisk(), size=LARGE_SEGMENT)
    count = CACHED_ROUTES + 500
    for n in range(count):
        journal.append_run((1,), b"key %d" % n, [b"."])
        if n % 100 == 99:
            journal.write()
    journal.write()
    for lsns in (range(1, count + 1), range(count - 50, count + 1), range(1, 50)):
        assert [tail for _, tail in journal.fetch(lsns)] == [b"key %d" % (n - 1) for n in lsns]


def test_a_limit_ends_the_answer_but_never_before_one_message() -> None:
    journal, _ = open_on(SimDisk(), size=LARGE_SEGMENT)
    for _ in range(3):
        journal.append_run((1,), b"t", [bytes(100)] * 50)
        journal.write()
    lsns = range(1, 151)
    assert len(journal.fetch(lsns, 1)) == 1
    assert len(journal.fetch(lsns, 1000)) == 10
    assert len(journal.fetch(lsns, 1001)) == 11
    assert len(journal.fetch(lsns, 7000)) == 70
    assert len(journal.fetch(lsns)) == 150
    assert journal.fetch([]) == []


def test_a_read_stops_after_so_many_steps_but_never_before_one_message() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=LARGE_SEGMENT)
    # Every other message of blocks of one: each is a run, and most are a block to look at.
    lsns = publish(journal, 1, *[bytes(600)] * 400)[::2]
    for moved in range(2):
        for limit in (1, 500, 4000):
            before = journal.read_steps
            found = journal.fetch_runs(lsns, NO_LIMIT, limit)
            taken = journal.read_steps - before
            assert len(found) == 1 or taken < 2 * limit
            assert len(found) < len(lsns)
            assert [run[0] for run in found] == lsns[: len(found)]
        at = 0
        while at < len(lsns):
            some = journal.fetch_runs(lsns[at:], NO_LIMIT, 1000)
            assert [run[0] for run in some] == lsns[at : at + len(some)]
            at += len(some)
        if not moved:
            # To another segment, so that the first one goes.
            journal.settle(2, publish(journal, 2, *[bytes(LARGE_SEGMENT // 2)] * 2))
            for lsn in lsns:
                journal.move_run((1,), b"tail", lsn, [bytes(600)], 1)
                journal.write()
            journal.settle(1, [lsn + 1 for lsn in lsns])
            sync(journal)
            assert segments_on(disk)[0] != "0000000000000001.journal"


def test_a_block_larger_than_a_segment() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    jumbo = [bytes([n]) * WHOLE_BYTES for n in range(3)]
    before = publish(journal, 1, b"before")
    first = journal.append_run((1,), b"tail", jumbo)
    journal.write()
    after = publish(journal, 1, b"after")
    for _ in range(2):
        lsns = [*before, first, first + 1, first + 2, *after]
        assert [raw for raw, _ in journal.fetch(lsns)] == [b"before", *jumbo, b"after"]
        assert journal.fetch([first + 1]) == [(jumbo[1], b"tail")]
        # One of them is read, not all.
        reads = journal.fetch([first + 2], 10)
        assert reads == [(jumbo[2], b"tail")]
        journal, _ = open_on(disk)


def test_recycled_segments_give_what_they_hold_now() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    kept: dict[int, bytes] = {}
    names = set()
    for n in range(60):
        raw = b"%d" % n * 400
        (lsn,) = publish(journal, 1, raw)
        kept[lsn] = raw
        # Reading opens files and fills caches, which must not outlive the segment.
        assert journal.fetch(sorted(kept)) == [(kept[each], b"tail") for each in sorted(kept)]
        if len(kept) > 5:
            oldest = min(kept)
            journal.settle(1, [oldest])
            del kept[oldest]
            sync(journal)
        names.update(segments_on(disk))
    assert len(names) > 10 > len(segments_on(disk))
    assert set(reader_of(journal)._files) <= {int(name[:16]) for name in segments_on(disk)}


@pytest.mark.parametrize("is_recovered", [False, True])
def test_moved_messages_are_found_when_their_segment_has_gone(is_recovered: bool) -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    raws: dict[int, bytes] = {}
    for n in range(30):
        raw = b"%d" % n * 300
        (lsn,) = publish(journal, 1 + n % 2, raw)
        raws[lsn] = raw
    kept = sorted(raws)[::5]
    for at, lsn in enumerate(kept):
        journal.move_run((1 + (lsn - 1) % 2,), b"tail", lsn, [raws[lsn]], 0)
        if at % 2:
            journal.write()
    for lsn in raws:
        if lsn not in kept:
            journal.settle(1 + (lsn - 1) % 2, [lsn])
    sync(journal)
    assert "0000000000000001.journal" not in segments_on(disk)
    (last,) = publish(journal, 1, b"last")
    if is_recovered:
        journal, _ = open_on(disk)
    expected = [*[(raws[lsn], b"tail") for lsn in kept], (b"last", b"tail")]
    assert journal.fetch([*kept, last]) == expected
    assert journal.fetch(kept[1:2]) == expected[1:2]


def test_a_refused_block_is_not_looked_at() -> None:
    disk = SimDisk(3)
    journal, _ = open_on(disk)
    (before,) = publish(journal, 1, b"before")
    journal.fetch([before])
    lost = journal.append_run((1,), b"other", [b"lost" * 50])
    disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(WriteFailed):
        journal.write()
    kept = journal.append_run((1,), b"third", [b"kept"])
    journal.write()
    assert journal.fetch([before, kept]) == [(b"before", b"tail"), (b"kept", b"third")]
    with pytest.raises(ReadFailed, match=f"message {lost} "):
        journal.fetch([lost])


def test_a_disk_that_refuses_is_told_by_message() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    lsns = publish(journal, 1, b"a" * 600, b"b" * 600)
    # The first read is of a whole stretch; what is needed is then tried again by itself.
    disk.fail_next("read", errno.EIO)
    assert len(journal.fetch(lsns)) == 2
    reader_of(journal).close()
    for n in range(1, 9):
        disk.fail["read", disk.calls["read"] + n] = errno.EIO
    with pytest.raises(ReadFailed, match=r"message 1 .*Input/output error"):
        journal.fetch(lsns)


@pytest.mark.parametrize("at", [-60, 3, 300])
def test_octets_that_changed_are_noticed(at: int) -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    lsns = publish(journal, 1, b"a" * 600, b"b" * 600)
    [name] = segments_on(disk)
    corrupt(disk, name, bytes(disk.visible[name].visible).index(b"b" * 600) + at)
    assert journal.fetch(lsns[:1]) == [(b"a" * 600, b"tail")]
    with pytest.raises(ReadFailed, match="message 2 "):
        journal.fetch(lsns[1:])


def test_a_number_that_is_no_message_is_refused() -> None:
    journal, _ = open_on(SimDisk())
    publish(journal, 1, b"a")
    definition = journal.define(b"d")
    publish(journal, 1, b"b")
    for lsn in (definition, 0, 99):
        with pytest.raises(ReadFailed):
            journal.fetch([lsn])


def test_asking_on_where_the_last_answer_ended_reads_nothing_twice() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=LARGE_SEGMENT)
    for _ in range(20):
        journal.append_run((1,), b"t", [bytes(1000)] * 100)
        journal.write()
    before = disk.calls["read"]
    for first in range(1, 2001, 50):
        journal.fetch(range(first, first + 50))
    assert disk.calls["read"] - before <= 20


def test_few_files_stay_open() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    lsns = publish(journal, 1, *[b"x" * 3000 for _ in range(OPEN_FILES + 20)])
    assert len(segments_on(disk)) > OPEN_FILES + 10
    for _ in range(2):
        assert len(journal.fetch(lsns)) == len(lsns)
        assert len(reader_of(journal)._files) <= OPEN_FILES
    journal.close()
    assert not reader_of(journal)._files


def test_messages_keep_the_time_they_came_wherever_they_are_moved() -> None:
    disk = SimDisk()
    clock = iter(range(5000, 6000))
    journal, _ = open_on(disk, wall_ms=lambda: next(clock))
    first = journal.append_run((1,), b"tail", [b"a", b"b"])
    journal.write()
    second = journal.append_run((1,), b"tail", [b"c"])
    journal.append_run((2,), b"other", [b"d"])
    journal.write()
    journal.move_run((1,), b"tail", first, [b"a"], 5000)
    journal.write()
    found = journal.fetch_runs([first + 1, second, second + 1], 1000)
    assert [(lsn, tail, list(raws), at) for lsn, tail, raws, at in found] == [
        (first + 1, b"tail", [b"b"], 5000),
        (second, b"tail", [b"c"], 5001),
        (second + 1, b"other", [b"d"], 5001),
    ]
    sync(journal)
    journal, _ = open_on(disk)
    assert {run[3] for run in journal.fetch_runs([first, first + 1], 1000)} == {5000}


def test_blocks_that_do_not_say_when_messages_came() -> None:
    """As those of earlier programs."""
    disk = SimDisk()
    journal, _ = open_on(disk, wall_ms=lambda: 0)
    lsns = publish(journal, 1, b"a", b"b")
    assert [run[3] for run in journal.fetch_runs(lsns, 1000)] == [0, 0]
    journal, _ = open_on(disk)
    assert [run[3] for run in journal.fetch_runs(lsns, 1000)] == [0, 0]
