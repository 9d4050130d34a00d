"""Every scenario, in the order of the table."""

from __future__ import annotations

from typing import Final

from bench.scenarios import confirms, connections, flow, latency
from bench.shape import Scenario

SCENARIOS: Final[tuple[Scenario, ...]] = (
    *confirms.SCENARIOS,
    *flow.SCENARIOS,
    *latency.SCENARIOS,
    *connections.SCENARIOS,
)


def chosen(names: list[str]) -> list[Scenario]:
    """Pick scenarios by name, all of them when none is named.

    Raises:
        ValueError: a name that is none, with the names there are.
    """
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no scenario {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in names] if names else list(SCENARIOS)
