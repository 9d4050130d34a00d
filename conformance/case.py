"""Cases and their verdicts: a case is a function that carries the rule it judges.

Modules under `cases/` register their functions with `@case`; importing them fills the list.
A function takes a `Stage`. One that needs a restart is a generator that yields once, at the
point where the broker is to be restarted; all of them share one restart.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from vouchmq.conformance import cases

if TYPE_CHECKING:
    from vouchmq.conformance.stage import Stage

Mark: TypeAlias = Literal["≡", "≡4", "≠", "+"]
Outcome: TypeAlias = Literal["passed", "failed", "skipped", "excused"]
Body: TypeAlias = "Callable[[Stage], Iterator[None] | None]"

MARKS: Final[tuple[Mark, ...]] = ("≡", "≡4", "≠", "+")
_RULE: Final = re.compile(r"([A-Z]+)-(\d+)([a-z]*)")


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to judge. `title` is unique, `rule` need not be."""

    rule: str
    says: str
    mark: Mark
    body: Body
    referee_reason: str = ""
    is_slow: bool = False
    is_serial: bool = False
    needs_restart: bool = False

    @property
    def title(self) -> str:
        """Rule and what it says."""
        return f"{self.rule} {self.says}"

    @property
    def races_on_referee(self) -> bool:
        """Whether RabbitMQ 3.10.8 keeps the rule, but now and then fails for a moment (C-84)."""
        return self.rule.startswith("STREAM-")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a case; `reason` explains everything but `passed`.

    `tries` has what went wrong before it was tried again (`Case.races_on_referee`, `LateError`).
    """

    case: Case
    outcome: Outcome
    reason: str = ""
    trace: tuple[str, ...] = ()
    duration_s: float = 0.0
    tries: tuple[str, ...] = ()


_CASES: Final[list[Case]] = []
_TITLES: Final[set[str]] = set()


def case(
    rule: str,
    *,
    says: str,
    mark: Mark = "≡",
    referee_reason: str = "",
    slow: bool = False,
    serial: bool = False,
    restart: bool = False,
) -> Callable[[Body], Body]:
    """Register a function as a case.

    `referee_reason` names the entry of the rules' appendix C, or the measurement, that explains
    why RabbitMQ 3.10.8 may fail a ≡ case. `slow` cases wait for the broker's clocks and start
    first, side by side; `serial` ones run alone, at the end.
    """
    if not _RULE.fullmatch(rule):
        raise ValueError(f"{rule!r} is not a rule id")

    def register(body: Body) -> Body:
        one = Case(rule, says, mark, body, referee_reason, slow, serial, restart)
        if one.title in _TITLES:
            raise ValueError(f"two cases are called {one.title!r}")
        _TITLES.add(one.title)
        _CASES.append(one)
        return body

    return register


def all_cases() -> list[Case]:
    """Every case of the suite, in the order of the rules."""
    for module in pkgutil.iter_modules(cases.__path__):
        importlib.import_module(f"{cases.__name__}.{module.name}")
    return sorted(_CASES, key=lambda one: order(one.rule))


# The sections in the order in which the rules are written down.
SECTIONS: Final = (
    *("GEN", "CONN", "FRAME", "CHAN", "EXCH", "QUEUE", "PUB"),
    *("CONF", "TX", "ACK", "QOS", "CONS", "TTL", "DLX", "LEN", "PRIO", "DELAY"),
    *("REDELIVER", "DUP", "SEQ", "STREAM", "QUORUM", "AUTH", "VHOST", "PERM"),
    *("TLS", "POLICY", "HTTP", "METRIC", "DURABLE", "LIMIT"),
)


def order(rule: str) -> tuple[int, int, str]:
    """Sort key of a rule id."""
    match = _RULE.fullmatch(rule)
    if match is None:
        raise ValueError(f"{rule!r} is not a rule id")
    section, number, suffix = match.groups()
    at = SECTIONS.index(section) if section in SECTIONS else len(SECTIONS)
    return at, int(number), suffix
