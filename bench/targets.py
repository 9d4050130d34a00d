"""What is demanded of VouchMQ, row by row: ratios to a peer in the same run, and bounds.

`must` fails the row; `aim` is where the design expects it. A ratio is VouchMQ's median over
the peer's, so for latency, CPU time and memory less is better; a bound is in the unit of its
value. CPU time per message is the steadier gate when the machine is not quiet.

RabbitMQ is to be left behind: every row about throughput asks for three times its rate, and
more where that has been reached. LavinMQ is the fastest peer: what it does better is to be
caught up with, and what VouchMQ does better is to stay so (`_keeps`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

IDLE: Final = "idle"
"""The row of the servers at rest, before any scenario."""


RABBITMQ: Final = "rabbitmq"
LAVINMQ: Final = "lavinmq"
KEPT: Final = 0.97
"""What must be left of a lead that was measured."""


class Kind(Enum):
    """How a target is compared."""

    RATIO_AT_LEAST = ">="
    RATIO_AT_MOST = "<="
    AT_MOST = "at most"


@dataclass(frozen=True, slots=True)
class Target:
    """One demand on one value of one scenario; a bound is about no peer."""

    scenario: str
    value: str
    kind: Kind
    must: float
    aim: float
    peer: str = ""

    def met_by(self, measured: float) -> bool:
        """Compare the ratio, or the value itself for a bound."""
        return measured >= self.must if self.kind is Kind.RATIO_AT_LEAST else measured <= self.must


def _rate(scenario: str, must: float, aim: float, peer: str = RABBITMQ) -> Target:
    return Target(scenario, "rate_per_s", Kind.RATIO_AT_LEAST, must, aim, peer)


def _keeps(scenario: str, lead: float) -> Target:
    return _rate(scenario, round(KEPT * lead, 2), lead, LAVINMQ)


def _cpu(scenario: str, must: float, aim: float) -> Target:
    return Target(scenario, "cpu_us", Kind.AT_MOST, must, aim)


def _at_most(scenario: str, value: str, must: float, aim: float) -> Target:
    return Target(scenario, value, Kind.AT_MOST, must, aim)


def _less(scenario: str, value: str, must: float, aim: float, peer: str = RABBITMQ) -> Target:
    return Target(scenario, value, Kind.RATIO_AT_MOST, must, aim, peer)


THREEFOLD: Final = (
    *("unlike_persistent", "unlike_transient_autoack", "work_queue_prefetch1", "saturation_e2e"),
    *("drain_transient_100b", "drain_persistent_1k", "transient_16b_prefetch200_ack_each"),
    *("persistent_64k", "queues_500_consumers_50", "connect_500"),
)
"""Rows about throughput of which nothing more is asked beside RabbitMQ."""
TARGETS: Final[tuple[Target, ...]] = (
    _rate("confirm_each", 1.3, 2),
    _less("confirm_each", "confirm_p50_ms", 0.75, 0.5),
    _rate("confirm_batch_100", 5, 12),
    _rate("confirm_window_1000", 5, 12),
    _rate("confirm_async_50k", 5, 12),
    _rate("tx_commit_each", 1.2, 2),
    _rate("producers_50_window1", 3, 4),
    _rate("transient_16b_autoack", 5, 10),
    _cpu("transient_16b_autoack", 2.0, 1.3),
    _rate("transient_1k_autoack", 4, 8),
    _cpu("transient_1k_autoack", 3.5, 2.1),
    _rate("persistent_1k_window500_ack_each", 5, 10),
    _cpu("persistent_1k_window500_ack_each", 7.0, 4.2),
    _less("persistent_1k_window500_ack_each", "confirm_p50_ms", 0.25, 0.1),
    _rate("persistent_1k_window500_ack50", 5, 10),
    _cpu("persistent_1k_window500_ack50", 7.0, 4.2),
    _less("persistent_1k_window500_ack50", "confirm_p50_ms", 0.25, 0.1),
    _rate("p8c8q8", 4, 7),
    _cpu("p8c8q8", 7.0, 3.9),
    _rate("fanout_10", 10, 30),
    _rate("one_producer_10_queues_persistent", 3, 6),
    _at_most("flood_confirm_p50", "confirm_p50_ms", 3.0, 0.5),
    _less("latency_2000", "delivery_p50_ms", 0.5, 0.25),
    _less("latency_2000", "confirm_p50_ms", 0.8, 0.5),
    _less("latency_2000", "confirm_p99_ms", 1.0, 1.0),
    _rate("connection_churn", 3, 8),
    _at_most(IDLE, "rss_mb", 60.0, 40.0),
    _less(IDLE, "rss_mb", 0.5, 0.1),
    _less(IDLE, "connection_kb", 0.25, 0.24, LAVINMQ),
    *(_rate(scenario, 3, 4) for scenario in THREEFOLD),
    _rate("unlike_persistent", 0.7, 1.0, LAVINMQ),
    _at_most("unlike_persistent", "delivery_p50_ms", 20, 2),
    _rate("unlike_transient_autoack", 0.7, 1.0, LAVINMQ),
    _rate("work_queue_prefetch1", 0.7, 1.0, LAVINMQ),
    _at_most("work_queue_prefetch1", "delivery_p50_ms", 20, 2),
    _at_most("saturation_e2e", "delivery_p50_ms", 10, 2),
    _rate("one_producer_10_queues_persistent", 1.0, 1.3, LAVINMQ),
    _rate("drain_transient_100b", 0.9, 1.0, LAVINMQ),
    _rate("drain_persistent_1k", 0.9, 1.0, LAVINMQ),
    _less("confirm_each_50k", "total_ms", 1.2, 1.0, LAVINMQ),
    _less("tx_commit_2k", "total_ms", 1.3, 1.0, LAVINMQ),
    _less("latency_2000", "delivery_p50_ms", 1.3, 1.0, LAVINMQ),
    _less("latency_2000", "delivery_p99_ms", 1.0, 0.7, LAVINMQ),
    _less("latency_2000", "cpu_us", 1.3, 1.0, LAVINMQ),
    _rate("connect_500", 0.7, 1.0, LAVINMQ),
    _keeps("transient_16b_autoack", 1.47),
    _keeps("transient_1k_autoack", 1.39),
    _keeps("persistent_1k_window500_ack_each", 1.34),
    _keeps("p8c8q8", 1.84),
    _keeps("fanout_10", 4.4),
    _keeps("persistent_64k", 2.1),
    _keeps("queues_500_consumers_50", 2.1),
    _rate("confirm_batch_100", 0.9, 1.0, LAVINMQ),
    _rate("confirm_window_1000", 1.3, 1.5, LAVINMQ),
)


def targets_of(scenario: str) -> list[Target]:
    """List the demands on one scenario."""
    return [target for target in TARGETS if target.scenario == scenario]
