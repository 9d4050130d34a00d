"""Times in buckets that are at most 0.2 % wide, for percentiles that can be trusted.

Each time is counted, none is averaged or thrown away; a percentile is the upper end of its bucket,
and there is none where too few times were counted to tell.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Times below so many microseconds have buckets of one; above, this is the least number in each
# doubling.
EXACT_BITS: Final = 10
# Above a percentile there must be as many times, or a few of them decide it.
LEAST_ABOVE: Final = 10


class Histogram:
    """Counts times in microseconds."""

    def __init__(self, counts: Mapping[int, int] | None = None, most_us: int = 0) -> None:
        self.counts: Counter[int] = Counter(counts)
        self.most_us = most_us

    def add(self, time_us: int, count: int = 1) -> None:
        """Count a time; one below 0 is 0."""
        value = max(0, time_us)
        shift = max(0, value.bit_length() - EXACT_BITS)
        # The last of those that begin with the same bits.
        self.counts[((value >> shift) + 1 << shift) - 1] += count
        self.most_us = max(self.most_us, value)

    def merge(self, other: Histogram) -> None:
        """Count all that another has."""
        self.counts.update(other.counts)
        self.most_us = max(self.most_us, other.most_us)

    @property
    def total(self) -> int:
        """How many times were counted."""
        return self.counts.total()

    def percentile_us(self, percent: float) -> int | None:
        """The time below which so many are; None if there are too few to tell."""
        total = self.total
        above = total * (100 - percent) / 100
        if not total or above < LEAST_ABOVE:
            return None
        left = total - above
        for edge in sorted(self.counts):
            left -= self.counts[edge]
            if left <= 0:
                return min(edge, self.most_us)
        return self.most_us
