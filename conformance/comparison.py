"""Puts the JSON reports of several brokers side by side.

    vouchmq conformance compare A.json B.json …

Reads what `--json` wrote; asks no broker. The terminal gets the counts of each section and the
cases in which the brokers differ, a file gets all of it as one page (conformance/page.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from vouchmq.conformance.case import SECTIONS, order
from vouchmq.conformance.command_line import EXIT_UNUSABLE, Parser
from vouchmq.conformance.page import Cell, Column, Line, Part, page

PLAIN_WIDTH: Final = 200
ABSENT: Final = "not run"
# Says nothing about the broker, so it makes no difference either.
SILENT: Final = frozenset({ABSENT, "skipped"})
SIGNS: Final = {
    "passed": "ok",
    "failed": "FAILED",
    "skipped": "skipped",
    "excused": "excused",
    ABSENT: "-",
}
TITLES: Final[Mapping[str, str]] = {
    "GEN": "General",
    "CONN": "Connections",
    "FRAME": "Frames and content",
    "CHAN": "Channels",
    "EXCH": "Exchanges",
    "QUEUE": "Queues",
    "PUB": "Publishing",
    "CONF": "Publisher confirms",
    "TX": "Transactions",
    "ACK": "Acknowledgements",
    "QOS": "Prefetch",
    "CONS": "Consumers",
    "TTL": "Expiry",
    "DLX": "Dead-lettering",
    "LEN": "Length limits",
    "PRIO": "Priorities",
    "DELAY": "Delays",
    "REDELIVER": "Redelivery",
    "DUP": "De-duplication",
    "SEQ": "Queue sequence",
    "STREAM": "Streams",
    "QUORUM": "Quorum type",
    "AUTH": "Users",
    "VHOST": "Virtual hosts",
    "PERM": "Permissions",
    "TLS": "TLS",
    "POLICY": "Policies",
    "DURABLE": "Durability",
    "LIMIT": "Limits and alarms",
}


class ReportError(Exception):
    """A file is not a report of this suite."""


class Key(NamedTuple):
    """What makes two cases of two reports the same."""

    rule: str
    says: str
    mark: str


@dataclass(frozen=True, slots=True)
class Report:
    """What one broker was found to do."""

    name: str
    url: str
    cells: dict[Key, Cell]

    def cell(self, key: Key) -> Cell:
        """The verdict on a case."""
        return self.cells.get(key, Cell(ABSENT))


def read(path: Path) -> Report:
    """A report from its file.

    Raises:
        ReportError: the file cannot be read, or is no report.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        cells = {
            Key(row["rule"], row["says"], row["mark"]): Cell(
                row["verdict"], row["reason"], tuple(row["trace"])
            )
            for row in report["cases"]
        }
        for key in cells:
            order(key.rule)
        return Report(report.get("product") or path.stem, report["url"], cells)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{path} is no report of this suite: {error!r}") from error


def named(reports: Sequence[Report], paths: Sequence[Path]) -> list[Report]:
    """The same reports; brokers of one name get that of their file beside it."""
    often = Counter(report.name for report in reports)
    return [
        report
        if often[report.name] == 1 or report.name == path.stem
        else Report(f"{report.name} ({path.stem})", report.url, report.cells)
        for report, path in zip(reports, paths, strict=True)
    ]


class Comparison:
    """Some reports, case by case."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self.reports = reports
        keys = {key: None for report in reports for key in report.cells}
        self.keys = sorted(keys, key=lambda key: order(key.rule))

    def differs(self, key: Key) -> bool:
        """Whether brokers that were judged on a case were judged differently."""
        verdicts = {report.cell(key).verdict for report in self.reports}
        return len(verdicts - SILENT) > 1

    def sections(self) -> Iterator[tuple[str, list[Key]]]:
        """Sections in the order of the rules, with their cases."""
        for section in dict.fromkeys((*SECTIONS, *(_section(key) for key in self.keys))):
            keys = [key for key in self.keys if _section(key) == section]
            if keys:
                yield section, keys

    def counts(self, report: Report, keys: Sequence[Key]) -> Counter[str]:
        """How many of these cases came to which verdict."""
        return Counter(report.cell(key).verdict for key in keys)

    def page(self) -> str:
        """The whole comparison as one HTML page."""
        columns = [
            Column(report.name, report.url, self.counts(report, self.keys))
            for report in self.reports
        ]
        parts = [
            Part(
                section,
                TITLES.get(section, section),
                [self.counts(report, keys) for report in self.reports],
                [
                    Line(*key, self.differs(key), [report.cell(key) for report in self.reports])
                    for key in keys
                ],
            )
            for section, keys in self.sections()
        ]
        return page(columns, parts)


def _section(key: Key) -> str:
    return key.rule.partition("-")[0]


# --- terminal ---------------------------------------------------------------------------------


def _shares(comparison: Comparison) -> Table:
    """Cases kept of cases judged, by section and broker."""
    table = Table(
        "section", "cases", *(report.name for report in comparison.reports), box=box.SIMPLE
    )
    rows = [*comparison.sections(), ("all", comparison.keys)]
    for section, keys in rows:
        cells = []
        for report in comparison.reports:
            counts = comparison.counts(report, keys)
            judged = len(keys) - sum(counts[verdict] for verdict in SILENT)
            cells.append(f"{counts['passed']} of {judged}" if judged else "-")
        table.add_row(TITLES.get(section, section), str(len(keys)), *cells)
    return table


def _cases(comparison: Comparison, keys: Sequence[Key]) -> Table:
    """Verdicts case by case."""
    names = [report.name for report in comparison.reports]
    table = Table("rule", "", "what it says", *names, box=box.SIMPLE)
    for key in keys:
        signs = [SIGNS.get(report.cell(key).verdict, "?") for report in comparison.reports]
        table.add_row(key.rule, key.mark, key.says.replace("[", r"\["), *signs)
    return table


def show(comparison: Comparison, console: Console, *, is_all: bool) -> None:
    """Counts by section, then the cases that differ, or all of them."""
    console.print(_shares(comparison))
    keys = (
        comparison.keys if is_all else [key for key in comparison.keys if comparison.differs(key)]
    )
    if keys:
        console.print(_cases(comparison, keys))
    differing = sum(map(comparison.differs, comparison.keys))
    console.print(f"{differing} of {len(comparison.keys)} cases differ", markup=False)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(prog="vouchmq conformance compare", description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT.json")
    parser.add_argument("--html", type=Path, metavar="F", help="write the comparison as a page")
    parser.add_argument("--all", action="store_true", help="show all cases, not only differences")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; 0, or 2 when a report cannot be read."""
    wanted = options(arguments)
    try:
        reports = named([read(path) for path in wanted.reports], wanted.reports)
    except ReportError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_UNUSABLE
    comparison = Comparison(reports)
    if wanted.html:
        wanted.html.write_text(comparison.page(), encoding="utf-8")
    console = Console(highlight=False)
    # A file or a pipe has no width: nothing is cut or broken there.
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    show(comparison, console, is_all=wanted.all)
    return 0
