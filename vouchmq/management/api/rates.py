"""Rates of counters: what they were some seconds ago, remembered only while somebody looks.

A list that is asked for leaves its counters here, once a second at most; the next one takes the
difference. Nothing is sampled in between, and what nobody has looked at for a while is forgotten:
a management process without visitors does nothing.

Spec: HTTP-07
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

# Rates are over the last so many seconds, or more if nobody has looked in between.
WINDOW_S: Final = 5.0
APART_S: Final = 1.0
FORGET_S: Final = 30.0
SAMPLES: Final = 8


class Rates:
    """The counters of all objects that somebody looks at.

    Args:
        clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: dict[Hashable, deque[tuple[float, Mapping[str, int]]]] = {}
        self._swept_at = clock()

    @property
    def count(self) -> int:
        """Objects that are remembered."""
        return len(self._samples)

    def of(
        self, key: Hashable, counters: Mapping[str, int], *, is_gauge: bool = False
    ) -> dict[str, float]:
        """The rate of each counter in 1/s; 0 where nobody has looked before.

        Args:
            key: of the object: its kind and its name
            counters: what they are now; a smaller number than before is a new object
            is_gauge: they may as well become smaller
        """
        now = self._clock()
        self._sweep(now)
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = deque(maxlen=SAMPLES)
        while samples and now - samples[0][0] > FORGET_S:
            samples.popleft()
        base = next(
            (each for each in reversed(samples) if now - each[0] >= WINDOW_S),
            samples[0] if samples else None,
        )
        if not samples or now - samples[-1][0] >= APART_S:
            samples.append((now, dict(counters)))
        if base is None or now <= base[0]:
            return dict.fromkeys(counters, 0.0)
        passed_s = now - base[0]
        least = -math.inf if is_gauge else 0.0
        return {
            name: max(least, (count - base[1].get(name, count)) / passed_s)
            for name, count in counters.items()
        }

    def _sweep(self, now: float) -> None:
        if now - self._swept_at < FORGET_S:
            return
        self._swept_at = now
        old = [key for key, samples in self._samples.items() if now - samples[-1][0] > FORGET_S]
        for key in old:
            del self._samples[key]


def with_details(counters: Mapping[str, int], rates: Mapping[str, float]) -> dict[str, Any]:
    """Counters, and beside each `x` an `x_details` with its rate."""
    found: dict[str, Any] = {}
    for name, count in counters.items():
        found[name] = count
        found[f"{name}_details"] = {"rate": rates.get(name, 0.0)}
    return found
