"""Spans hold every LSN they were given, and few others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vouchmq.store.lsn_spans import NEAR, Spans


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 50)), max_size=40),
    st.lists(st.integers(1, 6000), unique=True).map(sorted),
)
def test_none_is_missed_and_none_far_away_is_named(
    runs: list[tuple[int, int]], asked: list[int]
) -> None:
    spans = Spans()
    there: set[int] = set()
    for first, count in runs:
        spans.add(first, count)
        there.update(range(first, first + count))
    among = spans.among(asked)
    assert among == sorted(set(among))
    assert there.intersection(asked) <= set(among) <= set(asked)
    near = {lsn + distance for lsn in there for distance in range(-NEAR - 1, NEAR + 2)}
    assert set(among) <= near
    for lsn in asked:
        assert spans.overlaps(lsn, lsn + 1) == (lsn in among)


def test_what_is_near_takes_no_span_of_its_own() -> None:
    spans = Spans()
    for lsn in range(0, 3000, 3):
        spans.add(lsn, 1)
    assert len(spans) == 1
    spans.add(10_000, 5)
    assert len(spans) == 2
    assert spans.among([5000, 10_001]) == [10_001]
    assert not spans.overlaps(4000, 9000)
