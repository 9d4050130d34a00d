"""Pairs of features among pages, segments, restarts, disk, clock and ledger as further features.

Each history has another row of `SURROUNDINGS` (`pair_plans.py`), so that within a few seeds each of
them meets each level of each feature of a queue, and each other one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.simulation.feature_world import FeatureWorld
from tests.simulation.ledger_world import LedgerWorld
from tests.simulation.pair_plans import surroundings_of
from tests.simulation.pair_world import PairWorld

JUMPS_MS: Final = (0, 40, 1_000, 3_600_000)
RESTART_RATE: Final = 0.03
INVENTORY_RATE: Final = 0.02


class SurroundedWorld(LedgerWorld, PairWorld):
    """One history of pairs in its surroundings."""

    def __init__(self, seed: int, bugs: list[BaseException], *, crash_rate: float = 0.1) -> None:
        self.around = surroundings_of(seed)
        super().__init__(seed, bugs, crash_rate=crash_rate)

    @property
    def keeps_ledger(self) -> bool:
        """Whether this history has one."""
        return bool(self.around["ledger"] == "on")

    def start(self) -> None:
        """See `World`; the clock may have gone on meanwhile."""
        if self.around["clock"] == "jumps":
            self.base_ms += self.draw.choice(JUMPS_MS)
        self.settings = replace(self.settings, segment_size_bytes=self.around["segments"])
        if self.keeps_ledger:
            super().start()
        else:
            FeatureWorld.start(self)

    def strain(self) -> None:
        """What the surroundings do, before each step."""
        if self.model.has_failed:
            return
        if self.around["disk"] == "refuses":
            super().strain()
        if self.around["restarts"] == "often" and self.draw.random() < RESTART_RATE:
            self.crash()
        if self.keeps_ledger and self.draw.random() < INVENTORY_RATE:
            self.take_stock()

    def end(self) -> None:
        """See `World`; each copy had the outcome that the ledger says."""
        super().end()
        if self.keeps_ledger:
            self.take_stock()
            self.judge()
