"""Scenarios about connections themselves."""

from __future__ import annotations

from typing import Final

from bench.shape import Scenario, Shape

SCENARIOS: Final = (
    Scenario(
        "connection_churn",
        "Connect, open a channel, close, four clients at once: how often a second?",
        Shape(churn_client_count=4),
        also=("cycle_p50_ms",),
    ),
)
