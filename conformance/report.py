"""Shows verdicts: progress while it runs, then a table, JSON, JUnit XML and the summary line."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from vouchmq.conformance.case import Outcome, Verdict

COLOURS: Final[dict[Outcome, str]] = {
    "passed": "green",
    "failed": "bold red",
    "skipped": "yellow",
    "excused": "cyan",
}


class Display:
    """Progress on a terminal, one plain line per verdict elsewhere."""

    def __init__(self, total: int) -> None:
        self.console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
        self._failed = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._progress.add_task("conformance", total=total)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, verdict: Verdict) -> None:
        """One more verdict."""
        self._failed += verdict.outcome == "failed"
        if self.console.is_terminal:
            words = f"conformance · {self._failed} failed" if self._failed else "conformance"
            self._progress.update(self._task, advance=1, description=words)
        else:
            line = f"{verdict.outcome:8}{verdict.case.title}{_tried(verdict)}"
            self.console.print(line, markup=False)

    def table(self, verdicts: Sequence[Verdict]) -> None:
        """Rule, what it says, verdict; then the wire evidence of every failure."""
        if self.console.is_terminal:
            self.console.print(_rich_table(verdicts))
        else:
            for verdict in verdicts:
                self.console.print(_line(verdict), markup=False)
        for verdict in verdicts:
            if verdict.outcome == "failed":
                self._evidence(verdict)

    def _evidence(self, verdict: Verdict) -> None:
        self.console.print(f"\nFAILED {verdict.case.title}", style="bold", markup=False)
        self.console.print(f"  {verdict.reason}", markup=False)
        for line in verdict.trace:
            self.console.print(f"    {line}", markup=False)

    def summary(self, verdicts: Sequence[Verdict]) -> None:
        """The last line."""
        self.console.print(summary(verdicts), markup=False)


def summary(verdicts: Sequence[Verdict]) -> str:
    """`N passed, N failed, N skipped`, and excused ones if there are any."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    words: list[Outcome] = ["passed", "failed", "skipped"]
    if counts["excused"]:
        words.append("excused")
    return ", ".join(f"{counts[word]} {word}" for word in words)


def _line(verdict: Verdict) -> str:
    one, reason = verdict.case, _why(verdict)
    return f"{one.rule:11} {one.mark:2} | {one.says} | {verdict.outcome}{reason}"


def _why(verdict: Verdict) -> str:
    if verdict.outcome in ("skipped", "excused"):
        return f": {verdict.reason}"
    return _tried(verdict)


def _tried(verdict: Verdict) -> str:
    """What went wrong before it was tried again."""
    if not verdict.tries:
        return ""
    return f" (try {len(verdict.tries) + 1}, before: {'; '.join(verdict.tries)})"


def _rich_table(verdicts: Sequence[Verdict]) -> Table:
    table = Table("rule", "", "what it says", "verdict", show_lines=False)
    for verdict in verdicts:
        table.add_row(
            verdict.case.rule,
            verdict.case.mark,
            _escaped(verdict.case.says),
            f"[{COLOURS[verdict.outcome]}]{verdict.outcome}[/]{_escaped(_why(verdict))}",
        )
    return table


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def write_json(path: Path, url: str, verdicts: Sequence[Verdict], product: str = "") -> None:
    """All verdicts as one JSON object; the URL without its password, what the broker is called."""
    rows = [
        {
            "rule": verdict.case.rule,
            "says": verdict.case.says,
            "mark": verdict.case.mark,
            "verdict": verdict.outcome,
            "reason": verdict.reason,
            "tries": list(verdict.tries),
            "trace": list(verdict.trace),
            "duration_s": round(verdict.duration_s, 3),
        }
        for verdict in verdicts
    ]
    counts = Counter(verdict.outcome for verdict in verdicts)
    report = {"product": product, "url": url, "counts": dict(counts), "cases": rows}
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_junit(path: Path, verdicts: Sequence[Verdict]) -> None:
    """All verdicts as JUnit XML; an excused case counts as skipped there."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    suite = ElementTree.Element(
        "testsuite",
        name="conformance",
        tests=str(len(verdicts)),
        failures=str(counts["failed"]),
        skipped=str(counts["skipped"] + counts["excused"]),
        time=f"{sum(verdict.duration_s for verdict in verdicts):.3f}",
    )
    for verdict in verdicts:
        node = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"conformance.{verdict.case.rule}",
            name=f"{verdict.case.says} ({verdict.case.mark})",
            time=f"{verdict.duration_s:.3f}",
        )
        if verdict.outcome == "failed":
            failure = ElementTree.SubElement(node, "failure", message=_printable(verdict.reason))
            failure.text = _printable("\n".join(verdict.trace))
        elif verdict.outcome != "passed":
            ElementTree.SubElement(node, "skipped", message=_printable(verdict.reason))
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """XML knows no control characters and no lone surrogates, even escaped."""
    return "".join(one if one == "\n" or one.isprintable() else "·" for one in text)
