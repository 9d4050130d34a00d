"""Writes a comparison as one HTML page that needs nothing else: no server, no network.

What is shown stands in the page as it is, so that it can be read, searched and printed without a
script; the script only filters. Knows verdicts and names, and nothing of how they came about; what
the page looks like is said by `page.html`, which escapes whatever enters it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

VERDICTS: Final = ("passed", "failed", "excused", "skipped", "not run")
JUDGED: Final = ("passed", "failed", "excused")
SIGNS: Final = {"passed": "✓", "failed": "✗", "excused": "≈", "skipped": "○", "not run": "·"}
MARKS: Final = {
    "≡": "as RabbitMQ 3.10.8 and 4.x do it",
    "≡4": "as RabbitMQ 4.x does it, not 3.10.8",
    "≠": "deliberately unlike RabbitMQ",
    "+": "an addition",
}


class Cell(NamedTuple):
    """A verdict, why, and the frames that show it."""

    verdict: str
    reason: str = ""
    trace: tuple[str, ...] = ()


class Column(NamedTuple):
    """A broker."""

    name: str
    url: str
    counts: Mapping[str, int]

    @property
    def share(self) -> str:
        """How many of those judged have passed."""
        judged = sum(self.counts.get(verdict, 0) for verdict in JUDGED)
        return f"{100 * self.counts.get('passed', 0) / judged:.1f} %" if judged else "-"


class Line(NamedTuple):
    """A case; one cell for each broker."""

    rule: str
    says: str
    mark: str
    is_different: bool
    cells: Sequence[Cell]


class Part(NamedTuple):
    """A section of the rules; counts for each broker."""

    section: str
    title: str
    counts: Sequence[Mapping[str, int]]
    lines: Sequence[Line]

    @property
    def totals(self) -> list[str]:
        """The same for each broker, as two numbers."""
        return [_total(counts) for counts in self.counts]


def page(columns: Sequence[Column], parts: Sequence[Part]) -> str:
    """The page."""
    here = files("vouchmq.conformance")
    environment = Environment(
        loader=PackageLoader("vouchmq.conformance", ""),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(
        columns=columns,
        parts=parts,
        verdicts=VERDICTS,
        signs=SIGNS,
        marks=MARKS,
        style=Markup(here.joinpath("page.css").read_text(encoding="utf-8")),  # noqa: S704 - ours
        script=Markup(here.joinpath("page.js").read_text(encoding="utf-8")),  # noqa: S704 - ours
    )


def _total(counts: Mapping[str, int]) -> str:
    judged = sum(counts.get(verdict, 0) for verdict in JUDGED)
    return f"{counts.get('passed', 0)} / {judged}" if judged else "-"
