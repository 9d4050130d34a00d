"""Histograms: which bucket counts, and what they add up to."""

from __future__ import annotations

from vouchmq.store.histogram import DURATIONS_S, SIZES_BYTES, Histogram


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(number)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 7.5


def test_one_number_may_be_seen_often() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.5, 40)
    assert (histogram.counts, histogram.total) == ([0, 40, 0], 60.0)


def test_a_clock_that_disagrees_counts_as_no_time_at_all() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(-3.0, 2)
    histogram.observe(0.0)
    assert (histogram.counts, histogram.total) == ([3, 0, 0], 0.0)


def test_bounds_ascend() -> None:
    for bounds in (DURATIONS_S, SIZES_BYTES):
        assert list(bounds) == sorted(set(bounds))
