"""Which files may leave, and when."""

from __future__ import annotations

import errno

import pytest

from tests.simulation.sim_disk import SimDisk
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.journal.segment_pool import RESERVE_NAME
from vouchmq.store.journal.segments import ChainState, SegmentChain


def chain_on(disk: SimDisk, segments: int = 1) -> SegmentChain:
    chain = SegmentChain(disk, 1000, ChainState())
    for n in range(segments):
        chain.begin([b"head"], 100, first_lsn=10 * n + 1)
        chain.append([b"block"], 5, 10 * n + 1, 10 * n + 11)
        chain.add_copies([1], 10)
    return chain


def sync(chain: SegmentChain) -> bool:
    scope = chain.begin_sync()
    for target in scope.targets:
        target.sync()
    return chain.end_sync(scope)


def settle(chain: SegmentChain, first: int, count: int) -> None:
    chain.append([b"gone"], 4, 99, 99)
    chain.settle_copies(1, range(first, first + count))


def test_a_chain_without_a_segment_takes_no_block() -> None:
    with pytest.raises(ValueError, match="no segment yet"):
        SegmentChain(SimDisk(), 1000, ChainState()).append([], 0, 1, 1)


def test_a_dead_segment_goes_in_two_synced_steps() -> None:
    disk = SimDisk()
    chain = chain_on(disk, 2)
    assert not sync(chain)
    settle(chain, 1, 10)
    assert chain.look_after_files()
    assert sync(chain), "its settle is durable: it may be declared gone"
    assert segment_name(1) in disk.listdir()
    chain.append([], 0, 99, 99)  # declares it
    assert segment_name(1) in disk.listdir()
    sync(chain)
    assert segment_name(1) not in disk.listdir()


def test_a_segment_whose_settle_is_not_synced_stays() -> None:
    disk = SimDisk()
    chain = chain_on(disk, 2)
    scope = chain.begin_sync()
    settle(chain, 1, 10)
    assert not chain.end_sync(scope)


def test_the_oldest_goes_first() -> None:
    disk = SimDisk()
    chain = chain_on(disk, 3)
    settle(chain, 11, 10)
    assert not sync(chain)
    settle(chain, 1, 10)
    assert sync(chain)
    chain.append([], 0, 99, 99)
    sync(chain)
    # One file is kept for the next segment, the other is for somebody else to remove.
    unlinked = {
        file_task.name for file_task in chain.take_file_tasks() if file_task.verb == "unlink"
    }
    assert {segment_name(1), segment_name(2)}.isdisjoint({*disk.listdir()} - unlinked)
    assert len(unlinked) == 1


def test_the_active_segment_stays_whatever_it_holds() -> None:
    chain = chain_on(SimDisk())
    settle(chain, 1, 10)
    assert not chain.look_after_files()
    assert not sync(chain)


def test_one_freed_file_is_recycled_and_the_others_are_removed() -> None:
    disk = SimDisk()
    chain = chain_on(disk, 5)
    settle(chain, 1, 40)
    sync(chain)
    chain.append([], 0, 99, 99)
    sync(chain)
    segment_pool = [n for n in disk.listdir() if n.endswith(".spare") and n != RESERVE_NAME]
    assert segment_pool == ["1.spare"]
    file_tasks = chain.take_file_tasks()
    assert [(c.verb, c.name) for c in file_tasks if c.verb == "unlink"] == [
        ("unlink", segment_name(2)),
        ("unlink", segment_name(3)),
        ("unlink", segment_name(4)),
    ]
    created = disk.calls["create"]
    chain.begin([b"head"], 100, 99)
    assert disk.calls["create"] == created, "a recycled file is used for the next segment"


def test_a_file_that_cannot_be_recycled_is_removed() -> None:
    disk = SimDisk()
    chain = chain_on(disk, 2)
    settle(chain, 1, 10)
    sync(chain)
    chain.append([], 0, 99, 99)
    disk.fail_next("rename", errno.EIO)
    sync(chain)
    assert ("unlink", segment_name(1)) in [(c.verb, c.name) for c in chain.take_file_tasks()]


def test_full_segments_are_closed_once_they_are_synced() -> None:
    chain = chain_on(SimDisk(), 2)
    assert chain.close_full_segments() == []
    sync(chain)
    assert len(chain.close_full_segments()) == 1
    assert chain.close_full_segments() == []


def test_a_failed_block_is_wiped_before_its_number_is_used_again() -> None:
    disk = SimDisk()
    chain = chain_on(disk)
    at = chain.active.offset
    for seed in range(9):
        disk.draw.seed(seed)
        disk.fail_next("write", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            chain.append([b"some payload"], 12, 11, 12)
        assert chain.active.offset == at
        chain.wipe_header()
        assert not any(disk.visible[segment_name(1)].visible[at : at + 80])
