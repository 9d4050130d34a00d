"""A look into a data directory tells what recovery would find, and changes nothing."""

from __future__ import annotations

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import corrupt, lsns_of, open_on, publish, sync
from vouchmq.store.inspection import Contents, Inspector
from vouchmq.store.journal.segment import segment_name


def octets_of(disk: SimDisk) -> dict[str, bytes]:
    return {name: bytes(inode.visible) for name, inode in disk.visible.items()}


def test_counts_are_those_of_recovery_and_nothing_changes() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    lsns = publish(journal, 1, *[b"m%d|" % n * 100 for n in range(20)])
    journal.append_run((1, 2), b"both", [b"shared"])
    journal.settle(1, lsns[3:9])
    journal.delivered(1, lsns[10])
    journal.define(b"a definition")
    sync(journal)
    before = octets_of(disk)
    found = Inspector(disk).inspect()
    assert octets_of(disk) == before
    _, recovered = open_on(disk)
    live = lsns_of(recovered, 1)
    queue = found.queues[1]
    assert (queue.count, queue.first_lsn, queue.last_lsn) == (len(live), live[0], live[-1])
    assert queue.redelivered == sum(lsn <= lsns[10] for lsn in live)
    assert (found.queues[2].count, found.queues[2].size_bytes) == (1, len(b"shared"))
    assert found.messages == len(live)
    assert found.definitions == [b"a definition"]
    assert (found.version, found.damaged, found.torn_bytes) == (1, [], 0)


def test_messages_come_in_order_with_their_contents_moved_ones_included() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    lsns = publish(journal, 1, *[b"m%d|" % n * 100 for n in range(12)])
    journal.move_run((1,), b"tail", lsns[0], [b"m0|" * 100], 0)
    journal.settle(1, lsns[4:6])
    sync(journal)
    inspector = Inspector(disk)
    inspector.inspect()
    contents = Contents(disk)
    messages = list(inspector.messages())
    assert [message.lsn for message in messages] == lsns[:4] + lsns[6:]
    assert [contents.read(each, 3) for each in messages][:3] == [b"m0|", b"m1|", b"m2|"]
    assert messages[0].generation > messages[1].generation
    contents.close()


def test_damage_is_told_with_its_place_and_queues() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    lsns = publish(journal, 7, *[b"message %d|" % n * 50 for n in range(8)])
    at = bytes(disk.visible[segment_name(1)].visible).find(b"message 2")
    corrupt(disk, segment_name(1), at)
    before = octets_of(disk)
    [damage] = Inspector(disk).inspect().damaged
    assert (damage.segment, damage.queue_ids) == (segment_name(1), (7,))
    assert (damage.first_lsn, damage.last_lsn) == (lsns[2], lsns[2])
    assert octets_of(disk) == before


def test_a_torn_tail_is_no_damage() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    kept = publish(journal, 1, b"kept")
    journal.append_run((1,), b"t", [b"torn" * 50])
    journal.write()
    corrupt(disk, segment_name(1), bytes(disk.visible[segment_name(1)].visible).find(b"torn"))
    found = Inspector(disk).inspect()
    assert found.damaged == []
    assert found.torn_bytes > 200
    assert (found.queues[1].count, found.queues[1].last_lsn) == (1, kept[0])
