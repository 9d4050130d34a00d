"""Offsets of streams: what is admitted, how it is split, what a gap is. No broker, no Spark."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vouchmq.spark.source.streams.ranges import (
    OffsetError,
    Range,
    admit,
    begins_of,
    first_gap,
    offset_of,
    positions_of,
    ranges_of,
    split,
)

LAGS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 5000), min_size=1)


def test_an_offset_has_one_text_whatever_the_order_of_queues() -> None:
    one = json.dumps(offset_of({"orders": 5, "bills": 7}))
    assert one == json.dumps(offset_of({"bills": 7, "orders": 5}))
    assert one == '{"v": 1, "next": {"bills": 7, "orders": 5}}'
    assert begins_of(json.loads(one)) is None
    offset = offset_of({"orders": 5, "bills": 7}, {}, begins={"orders": 3, "bills": 7})
    assert json.dumps(offset) == (
        '{"v": 1, "next": {"bills": 7, "orders": 5}, "from": {"bills": 7, "orders": 3}}'
    )
    assert begins_of(offset) == {"bills": 7, "orders": 3}
    assert positions_of(json.loads(one), ["orders", "bills", "new"]) == {"orders": 5, "bills": 7}


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        ({"v": 1, "file": 12}, "mode 'stream'"),
        ({"v": 2, "next": {"orders": 1}}, "mode 'stream'"),
        ({"v": 1, "next": {"gone": 1, "orders": 1}}, "'gone'"),
    ],
)
def test_an_offset_that_is_not_ours_is_named(offset: dict[str, object], said: str) -> None:
    with pytest.raises(OffsetError, match=said):
        positions_of(offset, ["orders"])


@given(lags=LAGS, limit=st.integers(1, 3000))
def test_the_limit_is_used_up_and_never_passed(lags: dict[str, int], limit: int) -> None:
    start = {queue: 10 * index for index, queue in enumerate(lags)}
    tails = {queue: start[queue] + lag for queue, lag in lags.items()}
    ends = admit(start, tails, limit)
    shares = {queue: ends[queue] - start[queue] for queue in lags}
    assert sum(shares.values()) == min(limit, sum(lags.values()))
    assert all(0 <= shares[queue] <= lags[queue] for queue in lags)
    waiting = [queue for queue in lags if lags[queue]]
    if limit >= len(waiting):
        assert all(shares[queue] for queue in waiting)
    # In proportion: nobody is off by more than the ones that small queues are given.
    total = sum(lags.values())
    if total > limit >= len(waiting):
        assert all(abs(shares[q] - lags[q] * limit / total) <= len(waiting) for q in waiting)


def test_two_streams_of_unequal_size_share_the_limit() -> None:
    ends = admit({"large": 100, "small": 0}, {"large": 90_100, "small": 10_000}, 1000)
    assert ends == {"large": 1000, "small": 100}
    # A tail below the position is no news of this kind.
    assert admit({"large": 100}, {"large": 50}, 10) == {"large": 100}


@given(sizes=st.lists(st.integers(1, 200), min_size=1, max_size=5), wanted=st.integers(1, 12))
def test_pieces_make_up_the_whole(sizes: list[int], wanted: int) -> None:
    whole = [Range(f"q{i}", 1000 * i, 1000 * i + size) for i, size in enumerate(sizes)]
    pieces = split(whole, wanted)
    assert len(pieces) == max(len(whole), min(wanted, sum(sizes)))
    assert all(piece.start < piece.stop for piece in pieces)
    for one in whole:
        own = [piece for piece in pieces if piece.queue == one.queue]
        assert own[0].start == one.start
        assert own[-1].stop == one.stop
        assert all(a.stop == b.start for a, b in pairwise(own))


def test_nothing_is_split_into_nothing() -> None:
    assert split([], 4) == []


def test_what_lies_between_two_offsets() -> None:
    assert ranges_of({"a": 3, "b": 5}, {"a": 3, "b": 9}) == [Range("b", 5, 9)]
    # A queue that joined later is read from its beginning.
    assert ranges_of({"a": 3}, {"a": 4, "new": 2}) == [Range("a", 3, 4), Range("new", 0, 2)]
    # That a stream was declared again is never taken from this.
    assert ranges_of({"a": 300}, {"a": 4}) == []
    assert ranges_of({"a": 300}, {"a": 0}) == []


@pytest.mark.parametrize(
    ("offsets", "expected", "gap"),
    [
        ([], 5, None),
        ([5, 6, 7], 5, None),
        ([7, 8], 5, (5, 7)),
        ([5, 6, 9, 10], 5, (7, 9)),
    ],
)
def test_a_gap_is_found(offsets: list[int], expected: int, gap: tuple[int, int] | None) -> None:
    assert first_gap(offsets, expected) == gap
