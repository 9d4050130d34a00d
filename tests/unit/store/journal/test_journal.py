"""What the journal buffers, writes, rolls, frees and refuses."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Callable

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import (
    SEGMENT_SIZE_BYTES,
    lsns_of,
    open_on,
    publish,
    raws_of,
    segments_on,
    sync,
)
from vouchmq.store.errors import SettledTwice, WriteFailed
from vouchmq.store.journal import routes as routes_module
from vouchmq.store.journal.journal import Journal


def test_lsns_start_at_one_and_run_on() -> None:
    journal, _ = open_on(SimDisk())
    assert journal.append_run((1,), b"t", [b"a", b"b"]) == 1
    assert journal.take(3) == 3
    assert journal.define(b"d") == 6
    assert journal.drop_queue(9) == 7
    assert journal.barrier() == 8
    assert journal.next_lsn == 9
    assert journal.write() == 8


def test_write_without_anything_buffered_touches_nothing() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    before = disk.calls["write"]
    assert journal.write() == 0
    journal.take(4)
    assert journal.write() == 0
    assert disk.calls["write"] == before


def test_one_turn_is_one_write() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    before = disk.calls["write"]
    first = journal.append_run((1, 2), b"t", [b"a", b"b"])
    journal.append_run((2,), b"u", [b"c"])
    journal.settle(1, [first])
    journal.delivered(2, first)
    journal.define(b"d")
    journal.write()
    assert disk.calls["write"] == before + 1


def test_only_what_asks_for_durability_wants_a_sync() -> None:
    journal, _ = open_on(SimDisk())
    lsns = publish(journal, 1, b"a", b"b")
    assert not wants_sync(journal)
    journal.settle(1, lsns[:1])
    journal.delivered(1, lsns[1])
    journal.write()
    assert not wants_sync(journal)
    asks: list[Callable[[], int]] = [
        lambda: journal.append_run((1,), b"t", [b"c"]),
        lambda: journal.define(b"d"),
        lambda: journal.drop_queue(7),
        journal.barrier,
    ]
    for ask in asks:
        ask()
        journal.write()
        assert wants_sync(journal)
        sync(journal)


def wants_sync(journal: Journal) -> bool:
    return journal.wants_sync


def test_unsynced_bytes_grow_with_writes_and_fall_with_syncs() -> None:
    journal, _ = open_on(SimDisk())
    journal.append_run((1,), b"t", [b"x" * 1000])
    journal.write()
    assert journal.unsynced_bytes > 1000
    ticket = journal.begin_sync()
    journal.append_run((1,), b"t", [b"y" * 500])
    journal.write()
    journal.end_sync(ticket)
    assert 500 < journal.unsynced_bytes < 1000


def test_everything_comes_back_in_order() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.append_run((1, 2), b"t", [b"a", b"b", b"c"])
    journal.append_run((2,), b"u", [b"d"])
    journal.settle(1, [2])
    journal.settle(2, [1, 3])
    journal.delivered(2, 2)
    journal.define(b"one")
    journal.define(b"two")
    sync(journal)
    _, recovered = open_on(disk)
    assert recovered.queues[1].messages == [(1, b"a", b"t"), (3, b"c", b"t")]
    assert recovered.queues[2].messages == [(2, b"b", b"t"), (4, b"d", b"u")]
    assert (recovered.queues[1].delivered_lsn, recovered.queues[2].delivered_lsn) == (0, 2)
    assert recovered.definitions == [b"one", b"two"]
    assert recovered.report.messages == 4


def test_a_block_larger_than_a_segment_gets_a_segment_of_its_size() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    large = b"z" * (3 * SEGMENT_SIZE_BYTES)
    publish(journal, 1, b"a", large, b"b")
    assert len(segments_on(disk)) == 3
    _, recovered = open_on(disk)
    assert raws_of(recovered, 1) == [b"a", large, b"b"]


def test_large_parts_are_not_joined_and_come_back_whole() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=1 << 20)
    raws = [bytes([n]) * 100_000 for n in range(5)]
    journal.append_run((1,), b"t", raws)
    sync(journal)
    _, recovered = open_on(disk, size=1 << 20)
    assert raws_of(recovered, 1) == raws


def test_routes_are_logged_once_per_segment_and_survive_a_full_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes_module, "_MAX_ROUTES", 4)
    disk = SimDisk()
    journal, _ = open_on(disk)
    expected = []
    for n in range(60):
        tail = b"tail%d" % (n % 11)
        expected.append((journal.append_run((1,), tail, [b"m%d" % n]), b"m%d" % n, tail))
        if n % 5 == 0:
            tails, raws = [b"tail%d" % (n % each) for each in (3, 5, 7, 3)], [b"%d" % n] * 4
            first = journal.append_unlike((1,), tails, raws)
            expected += zip(range(first, first + 4), raws, tails, strict=True)
        if n % 7 == 0:
            sync(journal)
    sync(journal)
    assert len(journal._routes.by_number) <= 12
    _, recovered = open_on(disk)
    assert recovered.queues[1].messages == expected
    assert recovered.report.unroutable_messages == 0


def test_a_segment_without_live_copies_is_removed_or_recycled() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    for _ in range(40):
        lsns = publish(journal, 1, b"m" * 900)
        journal.settle(1, lsns)
        sync(journal)
    assert len(segments_on(disk)) <= 2
    assert len(disk.listdir()) <= 5
    _, recovered = open_on(disk)
    assert recovered.queues.get(1) is None or not recovered.queues[1].messages


def test_one_live_copy_keeps_its_segment_and_those_behind_it() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    kept = publish(journal, 1, b"keep me")
    for _ in range(8):
        journal.settle(1, publish(journal, 1, b"m" * 900))
    sync(journal)
    assert segments_on(disk)[0].startswith("0000000000000001")
    assert lsns_of(open_on(disk)[1], 1) == kept


def test_a_dropped_queue_frees_its_segments() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    publish(journal, 1, *[b"m" * 900] * 12)
    assert len(segments_on(disk)) > 3
    journal.drop_queue(1)
    sync(journal)
    journal.define(b"anything")
    sync(journal)
    assert len(segments_on(disk)) == 1
    assert open_on(disk)[1].queues == {}


def test_settles_that_free_a_segment_ask_for_a_sync() -> None:
    journal, _ = open_on(SimDisk())
    lsns = publish(journal, 1, *[b"m" * 900] * 8)
    journal.settle(1, lsns)
    journal.write()
    assert journal.wants_sync


def test_each_new_segment_begins_with_the_current_definitions_and_marks() -> None:
    disk = SimDisk()
    definitions = [b"first"]
    journal, _ = open_on(disk, definitions=definitions)
    journal.define(b"first")
    lsns = publish(journal, 1, *[b"m" * 900] * 3)
    journal.delivered(1, lsns[-1])
    definitions.append(b"second")
    journal.settle(1, lsns)
    last = publish(journal, 1, *[b"m" * 900] * 8)
    assert segments_on(disk)[0] != "0000000000000001.journal"
    _, recovered = open_on(disk)
    assert recovered.definitions == [b"first", b"second"]
    assert recovered.queues[1].delivered_lsn == lsns[-1]
    assert lsns_of(recovered, 1) == last


def test_a_spare_is_ordered_when_a_segment_is_half_full_and_used_for_the_next() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.append_run((1,), b"t", [b"x" * 3000])
    journal.write()
    (file_task,) = journal.take_file_tasks()
    assert (file_task.verb, file_task.size) == ("prepare", SEGMENT_SIZE_BYTES)
    disk.prepare(file_task.name, file_task.size)
    created = disk.calls["create"]
    journal.append_run((1,), b"t", [b"y" * 3000])
    journal.write()
    assert disk.calls["create"] == created + 1, "nothing but a summary"
    assert file_task.name not in disk.listdir()
    sync(journal)
    assert len(raws_of(open_on(disk)[1], 1)) == 2


def test_a_refused_write_loses_its_messages_but_not_its_settles() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    lsns = publish(journal, 1, b"a", b"b")
    journal.settle(1, lsns[:1])
    first = journal.append_run((1,), b"other", [b"lost"])
    lost = journal.define(b"lost too")
    disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(WriteFailed) as caught:
        journal.write()
    assert (caught.value.errno, caught.value.first_lsn, caught.value.last_lsn) == (
        errno.ENOSPC,
        first,
        lost,
    )
    again = journal.append_run((1,), b"other", [b"kept"])
    sync(journal)
    disk.crash(3)
    _, recovered = open_on(disk)
    assert lsns_of(recovered, 1) == [lsns[1], again]
    assert recovered.definitions == []


def test_a_large_block_is_written_in_pieces_and_its_header_last() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=1 << 20)
    journal.chain.whole_bytes, journal.chain.piece_bytes = 4000, 1000
    raws = [bytes([n]) * (50 + n) for n in range(200)]
    offset = journal.chain.active.offset
    calls = disk.calls["write"]
    journal.append_run((1,), b"tail", raws)
    journal.write()
    assert disk.calls["write"] - calls > 10
    inode = disk.visible[segments_on(disk)[-1]]
    assert [change[0] for change in inode.pending[-1:] if isinstance(change, tuple)] == [offset]
    sync(journal)
    assert raws_of(open_on(disk, size=1 << 20)[1], 1) == raws


@pytest.mark.parametrize("number", range(1, 22))
def test_a_large_block_that_fails_in_the_middle_is_none(number: int) -> None:
    """CONF-12"""
    disk = SimDisk(number)
    journal, _ = open_on(disk, size=1 << 20)
    journal.chain.whole_bytes, journal.chain.piece_bytes = 4000, 1000
    kept = publish(journal, 1, b"before")
    disk.fail["write", disk.calls["write"] + number] = errno.ENOSPC
    journal.append_run((1,), b"tail", [b"lost" * 25] * 180)
    with pytest.raises(WriteFailed):
        journal.write()
    kept.append(journal.append_run((1,), b"tail", [b"after"]))
    sync(journal)
    disk.crash(number)
    assert lsns_of(open_on(disk, size=1 << 20)[1], 1) == kept


def test_a_segment_that_cannot_be_made_leaves_the_journal_as_it_was() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    kept = publish(journal, 1, b"a" * 1500)
    disk.fail_next("create", errno.ENOSPC)
    journal.append_run((1,), b"t", [b"b" * 3000])
    with pytest.raises(WriteFailed, match="No space left"):
        journal.write()
    small = publish(journal, 1, b"small")
    large = publish(journal, 1, b"c" * 3000)
    assert lsns_of(open_on(disk)[1], 1) == kept + small + large


def test_settling_a_copy_twice_is_noticed_and_not_written_again() -> None:
    journal, _ = open_on(SimDisk())
    lsns = publish(journal, 1, b"a")
    journal.settle(1, lsns * 2)
    with pytest.raises(SettledTwice):
        journal.write()
    journal.write()


def test_moved_copies_leave_their_old_segment() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    first, *rest = publish(journal, 1, *[b"m%d" % n * 300 for n in range(12)])
    journal.settle(1, rest)
    journal.move_run((1,), b"tail", first, [b"m0" * 300], 0)
    sync(journal)
    assert "0000000000000001.journal" not in segments_on(disk)
    journal, recovered = open_on(disk)
    assert recovered.queues[1].messages == [(first, b"m0" * 300, b"tail")]
    journal.settle(1, [first])
    sync(journal)
    assert lsns_of(open_on(disk)[1], 1) == []


def test_a_purge_of_millions_is_one_range() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=1 << 20)
    count = 50_000
    first = journal.append_run((1, 2), b"", [b""] * count)
    last = journal.append_run((1,), b"", [b"left"])
    journal.write()
    journal.settle(1, range(first, first + count))
    before = journal.chain.active.offset
    tracemalloc.start()
    journal.write()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50_000, "it was expanded"
    assert journal.chain.active.offset - before < 300
    sync(journal)
    _, recovered = open_on(disk, size=1 << 20)
    assert lsns_of(recovered, 1) == [last]
    assert len(lsns_of(recovered, 2)) == count


def test_a_settled_range_can_be_taken_back_and_outlives_a_refused_block() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk, size=1 << 20)
    first = journal.append_run((1,), b"", [b""] * 1000)
    journal.write()
    journal.settle(1, range(first, first + 1000))
    journal.unsettle(1, range(first + 990, first + 1000))
    refused = journal.append_run((1,), b"", [b""] * 1000)
    journal.settle(1, range(refused, refused + 1000))
    disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(WriteFailed):
        journal.write()
    sync(journal)
    assert lsns_of(open_on(disk, size=1 << 20)[1], 1) == [*range(first + 990, first + 1000)]


def test_a_range_over_several_segments_is_counted_where_its_messages_are() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    lsns = publish(journal, 1, *[b"r" * 100] * 300)
    assert len(segments_on(disk)) > 5
    journal.settle(1, range(lsns[0], lsns[-1]))
    for _ in range(3):
        sync(journal)
    assert len(segments_on(disk)) <= 2
    assert lsns_of(open_on(disk)[1], 1) == lsns[-1:]


def test_what_was_written_is_not_discarded() -> None:
    """Recovery writes behind the head when it carries a damaged segment on."""
    disk = SimDisk()
    journal, _ = open_on(disk)
    publish(journal, 1, b"kept")
    journal.discard()
    journal, recovered = open_on(disk)
    assert raws_of(recovered, 1) == [b"kept"]
    count = len(segments_on(disk))
    journal.discard()
    assert len(segments_on(disk)) == count - 1
