"""How often a number was how large: one count for each bucket, with bounds that never change.

Kept as plain integers by those who measure, and read by those who are asked: an observation costs
a few comparisons and one increment. Whoever publishes it adds the buckets up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# From the fastest disk to one that hangs. Annotated, because the compiler takes a tuple of so many
# numbers apart, and one that it has put together of others then counts as not set.
DURATIONS_S: Final[tuple[float, ...]] = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
SIZES_BYTES: Final = tuple(4.0**power for power in range(3, 14))


class Histogram:
    """Observations, by size.

    Args:
        bounds: upper bounds of the buckets, ascending; one bucket more has what is above all
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: list[float] = list(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, number: float, times: int = 1) -> None:
        """The same number has been seen that many times; one below zero counts as zero."""
        # Most are in the first buckets; compiled, to compare costs less than to call `bisect`.
        bucket = 0
        for bound in self.bounds:
            if number <= bound:
                break
            bucket += 1
        self.counts[bucket] += times
        if number > 0.0:
            self.total += number * times
