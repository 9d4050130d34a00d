"""A topology drawn by seed: queues and exchanges with every feature, and what clients do to them.

Each name stands for one set of arguments for a whole history, so that declaring it again is never
a quarrel.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

QUEUES = ("q0", "q1", "q2", "q3", "q4", "q5", "q6")
EXCHANGES = ("e0", "e1", "e2", "e3")
KEYS = ("k1", "k2", "a.b", "a.c", *QUEUES[:3])
PATTERNS = ("k1", "k2", "a.*", "#", *QUEUES[:3])
NOWHERE = "nowhere"  # an exchange that is never declared
PRIVATE = "q6"  # may be exclusive


@dataclass(slots=True)
class QueuePlan:
    """A queue as every client declares it."""

    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ExchangePlan:
    """An exchange as every client declares it."""

    name: str
    type: str
    durable: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Topology:
    """What may be there in one history."""

    queues: dict[str, QueuePlan]
    exchanges: dict[str, ExchangePlan]

    @classmethod
    def drawn(cls, draw: random.Random) -> Topology:
        """One for a history."""
        return cls(
            {name: draw_queue(name, draw) for name in QUEUES},
            {name: draw_exchange(name, draw) for name in EXCHANGES},
        )


def draw_queue(name: str, draw: random.Random) -> QueuePlan:
    """A queue with a few features."""
    plan = QueuePlan(name, durable=draw.random() < 0.8)
    arguments = plan.arguments
    is_quorum = plan.durable and draw.random() < 0.25
    if is_quorum:
        arguments["x-queue-type"] = "quorum"
    elif name == PRIVATE:
        plan.exclusive = draw.random() < 0.5
        plan.auto_delete = draw.random() < 0.3
    if not is_quorum and draw.random() < 0.3:
        arguments["x-max-priority"] = draw.choice((1, 3, 10))
    if draw.random() < 0.3:
        arguments["x-message-ttl"] = draw.choice((0, 3, 20, 60, 200))
    if draw.random() < 0.08:
        arguments["x-expires"] = draw.choice((40, 150, 400))
    if draw.random() < 0.65:
        _draw_dead_letters(arguments, draw)
    if draw.random() < 0.4:
        _draw_limits(arguments, draw)
    if draw.random() < 0.25:
        arguments["x-delivery-limit"] = draw.choice((0, 1, 2, 5))
    if draw.random() < 0.25:
        _draw_retries(arguments, draw)
    if draw.random() < 0.15:
        arguments["x-single-active-consumer"] = True
    if draw.random() < 0.05:
        arguments["x-consumer-timeout"] = draw.choice((10, 40))
    return plan


def _draw_dead_letters(arguments: dict[str, Any], draw: random.Random) -> None:
    arguments["x-dead-letter-exchange"] = draw.choice(("", *EXCHANGES, NOWHERE))
    if draw.random() < 0.6:
        arguments["x-dead-letter-routing-key"] = draw.choice((*QUEUES, "k1", "a.b"))
    if draw.random() < 0.35:
        arguments["x-dead-letter-strategy"] = "at-least-once"


def _draw_limits(arguments: dict[str, Any], draw: random.Random) -> None:
    if draw.random() < 0.75:
        arguments["x-max-length"] = draw.choice((0, 1, 2, 3, 5))
    if draw.random() < 0.4:
        arguments["x-max-length-bytes"] = draw.choice((30, 100, 400, 700))
    kinds = ["drop-head", "reject-publish", "reject-publish-dlx"]
    if "x-max-priority" in arguments:
        kinds.append("drop-lowest")
    if draw.random() < 0.8:
        arguments["x-overflow"] = draw.choice(kinds)


def _draw_retries(arguments: dict[str, Any], draw: random.Random) -> None:
    arguments["x-delayed-retry-type"] = draw.choice(("all", "failed", "returned"))
    arguments["x-delayed-retry-min"] = draw.choice((2, 10, 40))
    if draw.random() < 0.5:
        arguments["x-delayed-retry-max"] = draw.choice((40, 60, 100))
    if draw.random() < 0.5:
        arguments["x-delayed-retry-backoff"] = draw.choice(("linear", "exponential"))


def draw_exchange(name: str, draw: random.Random) -> ExchangePlan:
    """An exchange of any type."""
    kinds = ("direct", "fanout", "topic", "headers")
    plan = ExchangePlan(name, draw.choice(kinds), durable=draw.random() < 0.85)
    if draw.random() < 0.35:
        plan.arguments["x-delayed-type"] = plan.type
        plan.type = "x-delayed-message"
    if draw.random() < 0.3:
        plan.arguments["alternate-exchange"] = draw.choice((*EXCHANGES, NOWHERE, "amq.fanout"))
    return plan
