"""Where messages lie, by number: no files here."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vouchmq.store.reading.index import STRETCH_BYTES, Index, SegmentIndex


def segment(generation: int, first_lsn: int) -> SegmentIndex:
    return SegmentIndex(generation, f"{generation}.journal", 7, first_lsn)


def add(index: SegmentIndex, offset: int, size: int, first: int, count: int) -> int:
    index.add(offset, size, (first, first + count), has_runs=count > 0, first_route=None)
    return offset + size


@given(
    blocks=st.lists(
        st.tuples(st.integers(80, 3 * STRETCH_BYTES), st.integers(0, 5), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_a_stretch_begins_at_a_block_and_holds_what_it_says(
    blocks: list[tuple[int, int, bool]],
) -> None:
    index = segment(1, 100)
    offset, lsn = 500, 100
    places = {}
    offsets = []
    for size, count, has_gap in blocks:
        offset += 80 * has_gap
        offsets.append(offset)
        places.update(dict.fromkeys(range(lsn, lsn + count), offset))
        offset = add(index, offset, size, lsn, count)
        lsn += count
    begins = set()
    for wanted, at in places.items():
        stretch = index.stretch_of(wanted)
        assert stretch is not None
        assert stretch.first_lsn <= wanted < stretch.next_lsn
        assert stretch.offset <= at < stretch.end
        assert stretch.offset in offsets
        # Small blocks share a stretch, and nothing large has to be read to get to a later one.
        assert at == stretch.offset or at - stretch.offset <= STRETCH_BYTES + 80 * len(blocks)
        begins.add((stretch.first_lsn, stretch.next_lsn))
    assert all(a[1] == b[0] for a, b in pairwise(sorted(begins)))
    assert index.stretch_of(99) is None
    assert index.stretch_of(lsn) is None


def test_no_stretch_spans_a_hole_whatever_stands_behind_it() -> None:
    index = segment(1, 1)
    end = add(index, 500, 200, 1, 1)
    # LSN 2 was in the hole; then a block of acks alone, then another message.
    behind = add(index, end + 300, 60, 3, 0)
    add(index, behind, 200, 3, 1)
    before, lost, after = (index.stretch_of(lsn) for lsn in (1, 2, 3))
    assert before is not None
    assert before.next_lsn == 2
    assert lost == after
    assert after is not None
    assert after.offset == end + 300


def test_small_blocks_cost_next_to_nothing() -> None:
    index = segment(1, 1)
    offset = 0
    for lsn in range(1, 60_001):
        offset = add(index, offset, 1200, lsn, 1)
    assert Index([index]).entry_bytes < 2 * 60_000
    for lsn in range(60_001, 60_101):
        offset = add(index, offset, 200, lsn, 0)  # acks bring no entry at all
    assert Index([index]).entry_bytes < 2 * 60_000


def test_segments_may_go_in_any_order() -> None:
    index = Index()
    for generation, first in ((1, 1), (2, 11), (3, 21)):
        each = segment(generation, first)
        add(each, 80, 100, first, 10)
        index.begin(each)
    assert index.keep([1, 2, 3]) == []
    assert index.segment_count == 3
    assert index.keep([1, 3]) == [2]
    assert index.segment_count == 2
    assert index.stretch_of(15) is None
    for lsn, generation in ((5, 1), (25, 3)):
        stretch = index.stretch_of(lsn)
        assert stretch is not None
        assert stretch.segment.generation == generation
    assert index.keep([3]) == [1]
    assert index.stretch_of(5) is None


def test_a_segment_without_a_message_hides_none() -> None:
    index = Index()
    for generation, count in ((1, 4), (2, 0), (3, 4)):
        each = segment(generation, 1 if generation == 1 else 5)
        add(each, 80, 100, each.first_lsn, count)
        index.begin(each)
    stretch = index.stretch_of(5)
    assert stretch is not None
    assert stretch.segment.generation == 3


def put(index: SegmentIndex, offset: int, *runs: tuple[int, int]) -> None:
    """Add a block to which runs (first LSN, count) were moved."""
    lsns = (index.first_lsn, index.first_lsn)
    index.add(offset, 100, lsns, has_runs=False, first_route=None, moved=runs)


def test_a_moved_message_has_one_place() -> None:
    index = segment(4, 100)
    put(index, 80, (3, 2), (9, 1))
    put(index, 400, (40, 11))
    put(index, 700, (6, 1), (60, 3))
    found = {lsn: index.moved_to(lsn) for lsn in (2, 3, 4, 6, 9, 10, 40, 50, 51, 60, 62, 63)}
    assert found == {2: None, 3: 80, 4: 80, 6: 700, 9: 80, 10: None, 40: 400, 50: 400} | {
        51: None,
        60: 700,
        62: 700,
        63: None,
    }


def test_what_is_moved_in_order_takes_a_range_for_each_block() -> None:
    index = segment(4, 1_000_000)
    for block in range(100):
        put(index, 100 * block, *((1000 * block + 10 * n, 3) for n in range(100)))
    # Another round, of what lies between two of those blocks.
    put(index, 90_000, *((55_995 + n, 1) for n in range(4)))
    assert len(index.rows()[2]) == 3 * 101


def test_segments_are_found_by_their_number() -> None:
    index = Index([segment(4, 1), segment(7, 10), segment(9, 20)])
    found = {number: index.of(number) for number in range(3, 11)}
    assert {number for number, each in found.items() if each is not None} == {4, 7, 9}
    assert all(each is None or each.generation == number for number, each in found.items())


@given(
    blocks=st.lists(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=5)),
    is_restored=st.booleans(),
)
def test_each_moved_message_is_found_where_it_was_moved_to_last(
    blocks: list[list[tuple[int, int]]], is_restored: bool
) -> None:
    index = segment(4, 1000)
    places: dict[int, int] = {}
    for number, runs in enumerate(blocks):
        put(index, 100 * number, *runs)
        for first, count in runs:
            places.update(dict.fromkeys(range(first, first + count), 100 * number))
    if is_restored:
        stretches, routes, moves = index.rows()
        index = segment(4, 1000)
        index.restore(stretches, routes, moves, 100 * len(blocks), 1000)
    assert {lsn: index.moved_to(lsn) for lsn in places} == places
    # Ranges do not overlap, so that looking one up looks at one.
    _, _, moves = index.rows()
    assert all(high < low for high, low in zip(moves[1::3], moves[3::3], strict=False))
    assert len(moves) // 3 <= 2 * sum(map(len, blocks))


def test_a_route_is_looked_for_where_it_was_logged_last() -> None:
    index = segment(1, 1)
    for offset, route in ((80, 0), (300, None), (600, 3), (900, 9)):
        index.add(offset, 100, (1, 2), has_runs=True, first_route=route)
    first = [next(index.route_offsets(n)) for n in (0, 2, 3, 8, 9, 20)]
    assert first == [80, 80, 600, 600, 900, 900]
    assert list(index.route_offsets(3)) == [600, 900, 80]
    assert list(segment(2, 1).route_offsets(1)) == []
