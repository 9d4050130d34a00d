"""What is demanded of VouchMQ, row by row: ratios to RabbitMQ in the same run, and bounds.

`must` fails the row; `aim` is where the design expects it. A ratio is VouchMQ's median over
RabbitMQ's, so for latency and memory less is better; a bound is in the unit of its value.
CPU time per message is the steadier gate when the machine is not quiet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

IDLE: Final = "idle"
"""The row of the servers at rest, before any scenario."""


class Kind(Enum):
    """How a target is compared."""

    RATIO_AT_LEAST = ">="
    RATIO_AT_MOST = "<="
    AT_MOST = "at most"


@dataclass(frozen=True, slots=True)
class Target:
    """One demand on one value of one scenario."""

    scenario: str
    value: str
    kind: Kind
    must: float
    aim: float

    def met_by(self, measured: float) -> bool:
        """Compare the ratio, or the value itself for a bound."""
        return measured >= self.must if self.kind is Kind.RATIO_AT_LEAST else measured <= self.must


def _rate(scenario: str, must: float, aim: float) -> Target:
    return Target(scenario, "rate_per_s", Kind.RATIO_AT_LEAST, must, aim)


def _cpu(scenario: str, must: float, aim: float) -> Target:
    return Target(scenario, "cpu_us", Kind.AT_MOST, must, aim)


def _shorter(scenario: str, value: str, must: float, aim: float) -> Target:
    return Target(scenario, value, Kind.RATIO_AT_MOST, must, aim)


TARGETS: Final[tuple[Target, ...]] = (
    _rate("confirm_each", 1.3, 2),
    _shorter("confirm_each", "confirm_p50_ms", 0.75, 0.5),
    _rate("confirm_batch_100", 5, 12),
    _rate("confirm_window_1000", 5, 12),
    _rate("confirm_async_50k", 5, 12),
    _rate("tx_commit_each", 1.2, 2),
    _rate("producers_50_window1", 2.5, 4),
    _rate("transient_16b_autoack", 5, 10),
    _cpu("transient_16b_autoack", 2.0, 1.3),
    _rate("transient_1k_autoack", 4, 8),
    _cpu("transient_1k_autoack", 3.5, 2.1),
    _rate("persistent_1k_window500_ack_each", 5, 10),
    _cpu("persistent_1k_window500_ack_each", 7.0, 4.2),
    _shorter("persistent_1k_window500_ack_each", "confirm_p50_ms", 0.25, 0.1),
    _rate("persistent_1k_window500_ack50", 5, 10),
    _cpu("persistent_1k_window500_ack50", 7.0, 4.2),
    _shorter("persistent_1k_window500_ack50", "confirm_p50_ms", 0.25, 0.1),
    _rate("p8c8q8", 4, 7),
    _cpu("p8c8q8", 7.0, 3.9),
    _rate("fanout_10", 10, 30),
    _rate("one_producer_10_queues_persistent", 3, 6),
    Target("flood_confirm_p50", "confirm_p50_ms", Kind.AT_MOST, 3.0, 0.5),
    _shorter("latency_2000", "delivery_p50_ms", 0.5, 0.25),
    _shorter("latency_2000", "confirm_p50_ms", 0.8, 0.5),
    _shorter("latency_2000", "confirm_p99_ms", 1.0, 1.0),
    _rate("connection_churn", 3, 8),
    Target(IDLE, "rss_mb", Kind.AT_MOST, 60.0, 40.0),
    _shorter(IDLE, "rss_mb", 0.5, 0.1),
)


def targets_of(scenario: str) -> list[Target]:
    """List the demands on one scenario."""
    return [target for target in TARGETS if target.scenario == scenario]
