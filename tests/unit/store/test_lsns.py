"""Settled LSNs against a plain set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vouchmq.store.lsns import Settled

_ranges = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=8)


@given(
    ranges=_ranges,
    later=_ranges,
    singles=st.lists(st.integers(1, 70), max_size=10),
    first=st.integers(1, 70),
    count=st.integers(1, 40),
)
def test_alive_is_what_no_range_and_no_list_has_taken(
    ranges: list[tuple[int, int]],
    later: list[tuple[int, int]],
    singles: list[int],
    first: int,
    count: int,
) -> None:
    settled = Settled()
    gone: set[int] = set()
    for batch in (ranges, later):
        for start, length in batch:
            settled.add_range(start, length)
            gone.update(range(start, start + length))
        expected = [lsn for lsn in range(first, first + count) if lsn not in gone]
        assert list(settled.alive(first, count)) == expected
    settled.add_list(singles)
    gone.update(singles)
    expected = [lsn for lsn in range(first, first + count) if lsn not in gone]
    assert list(settled.alive(first, count)) == expected
