"""What a hole means, told from numbers alone."""

from __future__ import annotations

from vouchmq.store.recovery.scan import Extent, judge, list_generations, merge_gaps


def extent(
    generation: int, numbers: tuple[int, int], *, start: int = 0, synced: int = 0, oldest: int = 1
) -> Extent:
    """Blocks `numbers` (first, last), one LSN and ten octets each."""
    first, last = numbers
    count = last - first + 1
    return Extent(
        generation=generation,
        salt=generation,
        start=start,
        end=start + 10 * count,
        first_number=first,
        last_number=last,
        first_lsn=first,
        next_lsn=last + 1,
        synced=synced,
        oldest=oldest,
        block_count=count,
    )


def test_unbroken_numbers_all_count() -> None:
    extents = [extent(1, (1, 5)), extent(2, (6, 9), synced=5)]
    verdict = judge(extents, [1, 2])
    assert (verdict.accepted, verdict.discarded, verdict.holes) == (extents, [], [])
    assert verdict.unproven == 6


def test_a_hole_above_what_is_known_synced_is_the_torn_tail() -> None:
    extents = [extent(1, (1, 5), synced=3), extent(1, (7, 9), start=60, synced=5)]
    verdict = judge(extents, [1])
    assert (verdict.accepted, verdict.discarded) == (extents[:1], extents[1:])
    assert verdict.holes == []


def test_a_hole_below_what_is_known_synced_is_damage() -> None:
    extents = [extent(1, (1, 5), synced=3), extent(1, (7, 9), start=60, synced=6)]
    verdict = judge(extents, [1])
    assert verdict.accepted == extents
    (hole,) = verdict.holes
    assert (hole.generation, hole.offset, hole.size_bytes) == (1, 50, 10)
    assert (hole.numbers, hole.first_lsn, hole.last_lsn) == ((6, 6), 6, 6)


def test_a_hole_across_the_line_is_damage_and_the_end() -> None:
    extents = [extent(1, (1, 5)), extent(1, (9, 9), start=90, synced=6)]
    verdict = judge(extents, [1])
    assert verdict.accepted == extents[:1]
    assert verdict.damaged_generations() == {1}


def test_a_segment_whose_head_failed_is_passed_over() -> None:
    extents = [extent(1, (1, 5)), extent(2, (6, 6)), extent(3, (6, 9), synced=8)]
    verdict = judge(extents, [1, 2, 3])
    assert (verdict.accepted, verdict.abandoned) == ([extents[0], extents[2]], [2])
    assert (verdict.holes, verdict.doomed, verdict.discarded) == ([], [], [])


def test_a_segment_that_was_given_up_for_the_one_before_it_is_passed_over() -> None:
    extents = [extent(1, (1, 7)), extent(2, (6, 6)), extent(3, (8, 9), synced=8)]
    verdict = judge(extents, [1, 2, 3])
    assert (verdict.accepted, verdict.abandoned) == ([extents[0], extents[2]], [2])
    assert (verdict.holes, verdict.doomed, verdict.discarded) == ([], [], [])


def test_a_number_that_comes_twice_ends_the_journal_if_nothing_connects() -> None:
    extents = [extent(1, (1, 5)), extent(2, (5, 7)), extent(3, (8, 8))]
    verdict = judge(extents, [1, 2, 3])
    assert (verdict.accepted, verdict.doomed) == (extents[:1], [2, 3])


def test_segments_below_the_oldest_do_not_count() -> None:
    extents = [extent(1, (1, 5)), extent(3, (11, 14), synced=12, oldest=3)]
    verdict = judge(extents, [1, 3])
    assert (verdict.accepted, verdict.oldest, verdict.holes) == (extents[1:], 3, [])


def test_the_oldest_is_not_believed_from_a_block_that_is_discarded() -> None:
    torn = extent(2, (8, 8), start=70, synced=5, oldest=2)
    verdict = judge([extent(1, (1, 5)), torn], [1, 2])
    assert (verdict.oldest, verdict.accepted) == (1, [extent(1, (1, 5))])


def test_known_gaps_are_no_news() -> None:
    late = extent(3, (10, 12), synced=11)
    late.gaps = [(4, 6), (7, 9)]
    verdict = judge([extent(1, (1, 3)), late], [1, 3])
    assert (len(verdict.accepted), verdict.holes) == (2, [])


def test_unreadable_segments_in_between_are_damaged_ones() -> None:
    extents = [extent(1, (1, 5)), extent(4, (9, 12), synced=10)]
    assert judge(extents, [1, 2, 3, 4]).damaged_generations() == {2, 3}


def test_no_block_at_all_dooms_every_file() -> None:
    verdict = judge([], [1, 2])
    assert (verdict.accepted, verdict.doomed, verdict.unproven) == ([], [1, 2], 1)


def test_gaps_merge_and_names_are_picked() -> None:
    assert merge_gaps([(7, 9), (1, 2), (3, 4), (8, 12)]) == [(1, 4), (7, 12)]
    names = ["lock", "0000000000000010.journal", "0000000000000009.journal", "x.journal"]
    assert list_generations(names) == [9, 10]
