"""Percentiles of the load generator, beside those of the sorted times themselves."""

from __future__ import annotations

import math
import random

import pytest

from vouchmq.kit.load.histogram import LEAST_ABOVE, Histogram


@pytest.mark.parametrize("percent", [50.0, 95.0, 99.0, 99.9])
def test_a_percentile_is_that_of_the_times(percent: float) -> None:
    chance = random.Random(1)
    times = [int(chance.lognormvariate(7, 2)) for _ in range(50_000)]
    histogram = Histogram()
    for each in times:
        histogram.add(each)
    exact = sorted(times)[math.ceil(len(times) * percent / 100) - 1]
    found = histogram.percentile_us(percent)
    assert found is not None
    # Never less than the truth, and hardly more.
    assert exact <= found <= exact * 1.002 + 1
    assert histogram.most_us == max(times)
    assert histogram.total == len(times)


def test_there_is_no_percentile_of_too_few_times() -> None:
    histogram = Histogram()
    assert histogram.percentile_us(50) is None
    for each in range(LEAST_ABOVE * 100 - 1):
        histogram.add(each)
    assert histogram.percentile_us(99) is None
    assert histogram.percentile_us(95) is not None
    histogram.add(0)
    assert histogram.percentile_us(99) is not None


def test_no_percentile_is_above_the_longest_time() -> None:
    histogram = Histogram()
    histogram.add(1_000_001, 1000)
    assert histogram.percentile_us(50) == 1_000_001
    histogram.add(-5)
    assert min(histogram.counts) == 0


def test_what_several_have_counted_is_counted_together() -> None:
    one, other = Histogram(), Histogram()
    one.add(10, 100)
    other.add(2000, 100)
    one.merge(Histogram(dict(other.counts), other.most_us))
    assert (one.total, one.most_us) == (200, 2000)
    assert one.percentile_us(50) == 10
    assert one.percentile_us(51) == 2000
