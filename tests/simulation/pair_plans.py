"""Queues and exchanges whose features are rows of covering arrays: any two meet within a few seeds.

One history has `len(QUEUES)` rows, the next one those that follow.
"""

from __future__ import annotations

from typing import Any, Final

from tests.covering import Level, covering_rows
from tests.simulation.feature_topology import (
    EXCHANGES,
    NOWHERE,
    QUEUES,
    ExchangePlan,
    QueuePlan,
    Topology,
)

QUEUE_FACTORS: Final[dict[str, tuple[Any, ...]]] = {
    "type": ("classic", "quorum", "transient"),
    "x-max-priority": (None, 3),
    "x-message-ttl": (None, 3, 60),
    "letters": (None, "at-most-once", "at-least-once", "nowhere"),
    "x-max-length": (None, 1, 3),
    "x-max-length-bytes": (None, 400),
    "x-overflow": (None, "drop-head", "reject-publish", "reject-publish-dlx", "drop-lowest"),
    "x-delivery-limit": (None, 0, 2),
    "x-delayed-retry-type": (None, "all", "failed", "returned"),
    "x-single-active-consumer": (None, True),
    "x-consumer-timeout": (None, 40),
    "keys": (None, "in the queue", "the last three", "for 30 ms"),
    "x-expires": (None, 400),
}
EXCHANGE_FACTORS: Final[dict[str, tuple[Any, ...]]] = {
    "type": ("fanout", "direct", "topic", "headers"),
    "delays": (False, True),
    "keys": (None, "the last three", "for 30 ms"),
    "alternate": (None, *EXCHANGES[:2], NOWHERE),
    "durable": (True, False),
}
SURROUNDINGS: Final[dict[str, tuple[Any, ...]]] = {
    "pages": ("large", "small"),
    "segments": (4096, 65536),
    "restarts": ("rare", "often"),
    "disk": ("fine", "refuses"),
    "clock": ("steady", "jumps"),
    "ledger": ("off", "on"),
}
"""What is around all queues of a history: small pages are paged out, small segments compacted, a
disk that refuses has no room every few steps, a clock that jumps does so between two processes."""
KEYS: Final[dict[str, dict[str, Any]]] = {
    "in the queue": {},
    "the last three": {"x-cache-size": 3},
    "for 30 ms": {"x-cache-ttl": 30},
}


def may_be(one: Level, other: Level) -> bool:
    """Leave out what the broker refuses to declare."""
    if other == ("x-overflow", "drop-lowest"):
        return one not in {("type", "quorum"), ("x-max-priority", None)}
    return one != ("type", "quorum") or other[0] != "x-max-priority" or other[1] is None


QUEUE_ROWS: Final = covering_rows(QUEUE_FACTORS, may_be)
EXCHANGE_ROWS: Final = covering_rows(EXCHANGE_FACTORS)
SURROUNDING_ROWS: Final = covering_rows(SURROUNDINGS)


def rows_of(seed: int) -> dict[str, dict[str, Any]]:
    """Which row each queue of a history has."""
    first = seed * len(QUEUES)
    return {
        name: QUEUE_ROWS[(first + place) % len(QUEUE_ROWS)] for place, name in enumerate(QUEUES)
    }


def surroundings_of(seed: int) -> dict[str, Any]:
    """What is around the queues of a history; once all rows have been, they begin one farther."""
    round_number = seed // len(SURROUNDING_ROWS)
    return SURROUNDING_ROWS[(seed + round_number) % len(SURROUNDING_ROWS)]


def paired_topology(seed: int) -> Topology:
    """The queues and exchanges of one history."""
    first = seed * len(EXCHANGES)
    exchanges = {
        name: exchange_of(name, EXCHANGE_ROWS[(first + place) % len(EXCHANGE_ROWS)])
        for place, name in enumerate(EXCHANGES)
    }
    return Topology({name: queue_of(name, row) for name, row in rows_of(seed).items()}, exchanges)


def queue_of(name: str, row: dict[str, Any]) -> QueuePlan:
    """What a row says of a queue; its dead letters go to the next one."""
    plan = QueuePlan(name, durable=row["type"] != "transient")
    arguments = {
        key: level for key, level in row.items() if key.startswith("x-") and level is not None
    }
    if row["type"] == "quorum":
        arguments["x-queue-type"] = "quorum"
    if row["letters"] is not None:
        arguments["x-dead-letter-exchange"] = NOWHERE if row["letters"] == "nowhere" else ""
        arguments["x-dead-letter-routing-key"] = QUEUES[(QUEUES.index(name) + 1) % len(QUEUES)]
        if row["letters"] == "at-least-once":
            arguments["x-dead-letter-strategy"] = "at-least-once"
    if "x-delayed-retry-type" in arguments:
        arguments |= {"x-delayed-retry-min": 10, "x-delayed-retry-max": 60}
    if row["keys"] is not None:
        arguments |= {"x-message-deduplication": True, **KEYS[row["keys"]]}
    plan.arguments = arguments
    return plan


def exchange_of(name: str, row: dict[str, Any]) -> ExchangePlan:
    """What a row says of an exchange."""
    plan = ExchangePlan(name, row["type"], durable=row["durable"])
    if row["delays"]:
        plan.type, plan.arguments["x-delayed-type"] = "x-delayed-message", row["type"]
    if row["keys"] is not None:
        plan.arguments |= {"x-message-deduplication": True, **KEYS[row["keys"]]}
    if row["alternate"] is not None:
        plan.arguments["alternate-exchange"] = row["alternate"]
    return plan
