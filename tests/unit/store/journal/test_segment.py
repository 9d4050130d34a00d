"""One file's name, end and live copies."""

from __future__ import annotations

import pytest

from vouchmq.store.errors import SettledTwice
from vouchmq.store.journal.segment import Segment, parse_generation, segment_name


def test_names_sort_like_generations_and_parse_back() -> None:
    names = [segment_name(n) for n in (1, 2, 10, 123456)]
    assert names == sorted(names)
    assert [parse_generation(name) for name in names] == [1, 2, 10, 123456]


@pytest.mark.parametrize(
    "name", ["lock", "1.journal", "000000000000000x.journal", segment_name(3) + ".damaged"]
)
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_generation(name) is None


def test_copies_are_counted_per_queue() -> None:
    segment = Segment(1, 0, 1, 100)
    segment.add_live(1, 3)
    segment.add_live(2, 2)
    segment.take_live(1, 2)
    assert segment.live_count == 3
    assert segment.drop_queue(2) == 2
    segment.take_live(2, 1)  # settled late by a queue that is gone
    assert (segment.live_count, segment.live_by_queue) == (1, {1: 1})


def test_settling_more_than_there_is_is_the_callers_fault() -> None:
    segment = Segment(1, 0, 1, 100)
    segment.add_live(1, 1)
    with pytest.raises(SettledTwice, match="settled 2 copies"):
        segment.take_live(1, 2)


def test_a_closed_segment_takes_no_block() -> None:
    with pytest.raises(ValueError, match="full and closed"):
        Segment(1, 0, 1, 100).append([b"x"], 1)
