"""What an audit is asked to do, and what it has found: given to whoever tells of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vouchmq.spark.audit import tables
from vouchmq.spark.ledger.facts import Facts
from vouchmq.spark.ledger.seals import TAMPERED, Seals
from vouchmq.spark.ledger.shared_log import Joined

INTERNAL: Final = "_audit"
"""Below the output directory: what the audit itself keeps; Spark passes over it."""
POISON_DELIVERIES: Final = 5


@dataclass(frozen=True, slots=True)
class Job:
    """What to audit and how to tell of it."""

    paths: tuple[str, ...]
    out: Path
    scope: tables.Scope = field(default_factory=tables.Scope)
    poison_deliveries: int = POISON_DELIVERIES
    by_queue: bool = False
    is_shared: bool = False  # the brokers share a log

    @property
    def internal(self) -> Path:
        """Where the audit keeps its own things."""
        return self.out / INTERNAL


@dataclass(frozen=True, slots=True)
class Result:
    """What an audit has found; the tables have the rest."""

    job: Job
    facts: Facts
    seals: Seals
    states: dict[str, int]
    findings: dict[str, int]
    worst: list[Any]
    lives: list[Any]
    overall: list[Any]
    took_s: float
    joined: Joined | None = None

    @property
    def copies(self) -> int:
        """How many copies were judged."""
        return sum(self.states.values())

    @property
    def is_provable(self) -> bool:
        """Whether nothing is missing that a verdict would have needed."""
        facts = self.facts
        # A line that cannot be read may have been the last of its epoch: its number is not missed.
        lacking = facts.missing() or facts.lost() or facts.broken_count or facts.unseen()
        return not (lacking or self.states.get("unproven"))

    def failing(self, fail_on: Sequence[str]) -> dict[str, int]:
        """Findings of these kinds, but for seals that are not there: those prove nothing."""
        absent = {TAMPERED: len(self.seals.stripped)}
        return {kind: self.findings.get(kind, 0) - absent.get(kind, 0) for kind in fail_on}

    def exit_code(self, fail_on: Sequence[str]) -> int:
        """0 clean, 1 findings of these kinds, 3 nothing worse than what cannot be proven."""
        if any(self.failing(fail_on).values()):
            return 1
        return 0 if self.is_provable and not self.seals.stripped else 3
