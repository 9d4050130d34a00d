"""A segment is emptied halfway, and where its messages went is gone before it is.

What was moved has a copy in the old segment still. Its settle stands with the new copy, so when
that goes, the old one must not pass for alive. Spec: DURABLE-15, DURABLE-16
"""

from __future__ import annotations

import pytest

from tests.simulation.store_model import Copy, StoreModel
from vouchmq.store.journal.segment_map import SegmentMap


def sync(model: StoreModel) -> None:
    model.write()
    model.request_sync(is_late=False)
    model.finish_sync()


def ack(model: StoreModel, copies: set[Copy]) -> None:
    for queue_id in {queue_id for queue_id, _ in copies}:
        model.journal.settle(queue_id, sorted(lsn for q, lsn in copies if q == queue_id))
    model.live -= copies
    model.block.settled |= copies
    sync(model)


def publish(model: StoreModel, queue_id: int, size: int) -> None:
    model.publish([queue_id], [size])
    sync(model)


@pytest.mark.parametrize("step_octets", [1, 5000])
@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize(("count", "moved"), [(2, 1), (3, 1), (3, 2), (5, 2), (5, 4)])
def test_what_was_moved_and_acked_is_not_alive_where_it_was_before(
    count: int, moved: int, is_killed: bool, step_octets: int
) -> None:
    model = StoreModel(0, segment_size_bytes=16384)
    model.whole_bytes = 1 << 30
    for size in (9000, 6500):  # the oldest segment stays
        publish(model, 2, size)
    publish(model, 3, 9000)  # the next one begins with what is dead soon
    for _ in range(count):
        publish(model, 1, 1500)
    ack(model, {copy for copy in model.live if copy[0] == 3})
    publish(model, 2, 15000)
    sync(model)
    while model.compactor.counters.moved_messages < moved:
        model.compactor.step(1)
    sync(model)
    if is_killed:
        model.crash(1, keeps_cache=True)
    else:
        model.compactor.close()
    mine = sorted(lsn for queue_id, lsn in model.live if queue_id == 1)
    ack(model, {(1, lsn) for lsn in mine[:moved]})
    sync(model)
    publish(model, 2, 15000)
    for _ in range(400 if step_octets == 1 else 40):
        model.compactor.step(step_octets)
        sync(model)
    assert {lsn for queue_id, lsn in model.live if queue_id == 1} == set(mine[moved:])
    model.crash(2, keeps_cache=True)
    assert {lsn for queue_id, lsn in model.live if queue_id == 1} == set(mine[moved:])


def test_a_range_goes_to_a_neighbour_who_may_have_it_or_to_nobody() -> None:
    segment_map: SegmentMap[int] = SegmentMap()
    for first, segment in ((10, 1), (20, 2), (30, 3)):
        segment_map.begin(first, segment)
    segment_map.assign(12, 14, 3)
    segment_map.forget(3, lambda each: each > 3)
    assert [segment_map.of(lsn) for lsn in (9, 10, 12, 14, 25, 35)] == [None, 1, None, 1, 2, None]
    segment_map.begin(40, 4)
    segment_map.assign(15, 16, 4)
    segment_map.forget(1, lambda each: each > 1)
    # What was behind the part of the fourth is as dead, and it never held it.
    assert [segment_map.of(lsn) for lsn in (10, 12, 14, 15, 17, 25, 45)] == [
        None,
        None,
        None,
        4,
        4,
        2,
        4,
    ]
