"""Every scenario, in the order of the table."""

from __future__ import annotations

from typing import Final

from bench.scenarios import confirms, connections, drain, flow, latency, traffic
from bench.shape import Scenario

GROUPS: Final[dict[str, tuple[Scenario, ...]]] = {
    "confirms": confirms.SCENARIOS,
    "flow": flow.SCENARIOS,
    "traffic": traffic.SCENARIOS,
    "drain": drain.SCENARIOS,
    "latency": latency.SCENARIOS,
    "connections": connections.SCENARIOS,
}
SCENARIOS: Final[tuple[Scenario, ...]] = tuple(
    scenario for group in GROUPS.values() for scenario in group
)


def group_of(scenario: Scenario) -> str:
    """Name the group that a scenario is drawn with."""
    return next(name for name, group in GROUPS.items() if scenario in group)


def chosen(names: list[str]) -> list[Scenario]:
    """Pick scenarios by name, all of them when none is named.

    Raises:
        ValueError: a name that is none, with the names there are.
    """
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no scenario {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in names] if names else list(SCENARIOS)
