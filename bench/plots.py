"""Draw the results of a run, one picture for each group of rows: `python -m bench.plots FILE`.

A row has a bar for each broker, as long as its figure is large beside the others of that row,
with a line from the least to the most of its rounds, and beside it the latencies, the CPU
time and how many rounds were quiet. A bar is pale when not all of them were. Of what
`python -m bench.curves` has written each curve has a picture, in a folder of their own. The
pictures follow the reader's light or dark mode by themselves.

Exit codes: 0 drawn, 2 the file is not there or not the result of a run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from bench.curve_plots import draw_curves
from bench.report import CEILING, OURS, number

DIRECTORY: Final = Path(__file__).resolve().parent / "results" / "plots"
CURVES: Final = "curves"
TITLES: Final = {
    "confirms": "Publishers that wait for confirms",
    "flow": "Messages that stream through",
    "traffic": "Unlike messages, and work queues",
    "drain": "A backlog is drained",
    "latency": "How late messages and confirms are",
    "connections": "Connections, and many queues",
}
WIDTH: Final = 1040
MARGIN: Final = 16
TOP: Final = 108
LINE_HEIGHT: Final = 20
ROW_GAP: Final = 14
BAR_LEFT: Final = 110
BAR_WIDTH: Final = 360
BAR_HEIGHT: Final = 12
FIGURE_RIGHT: Final = 590
COLUMNS: Final = (
    (690, "CPU us", "a message"),
    (810, "end to end ms", "p50 / p99"),
    (930, "confirm ms", "p50 / p99"),
    (WIDTH - MARGIN, "quiet", "rounds"),
)
"""Where each column of numbers ends, and its heading in two lines."""
UNITS: Final = {
    "rate_per_s": "a second",
    "total_ms": "ms in all: less is better",
    "delivery_p50_ms": "ms end to end, p50: less is better",
    "confirm_p50_ms": "ms to a confirm, p50: less is better",
}
"""What the bars of a row are, by its headline."""
STYLE: Final = """
  svg { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: #ffffff }
  text { fill: #1f2328 } .title { font-size: 15px; font-weight: 600 } .name { font-weight: 600 }
  .faint { fill: #57606a } .right { text-anchor: end } .spread { stroke: #1f2328 }
  .rule { stroke: #d0d7de } .vouchmq { fill: #0969da } .peer-0 { fill: #8c959f }
  .peer-1 { fill: #bf8700 } .unquiet { fill-opacity: 0.4 }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 } text { fill: #e6edf3 } .faint { fill: #9198a1 }
    .spread { stroke: #e6edf3 } .rule { stroke: #30363d } .vouchmq { fill: #58a6ff }
    .peer-0 { fill: #6e7681 } .peer-1 { fill: #d29922 }
  }
"""

Results = Mapping[str, Any]
"""What `python -m bench --out` has written, as JSON brings it back."""


class PlotError(Exception):
    """There is nothing in the file that could be drawn."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one broker showed in one row; None when no round of it counted."""

    server: str
    low: float | None
    median: float | None
    high: float | None
    columns: tuple[str, ...]
    is_quiet: bool


def draw_all(results: Results, source: str) -> dict[str, str]:
    """Draw each group that the results have rows of: SVG by its name.

    Raises:
        PlotError: the rows do not say which group they are of.
    """
    groups: dict[str, list[Results]] = {}
    for row in results.get("scenarios", ()):
        if "group" not in row:
            raise PlotError("the rows are of no group: an earlier version has measured them")
        groups.setdefault(row["group"], []).append(row)
    if not groups:
        raise PlotError("there are no rows")
    names = [name for name in results["servers"] if name != CEILING]
    heading = list(conditions(results, names))
    return {
        name: _picture(TITLES[name], heading, source, rows, names) for name, rows in groups.items()
    }


def conditions(results: Results, names: Sequence[str]) -> Iterator[str]:
    """Say in two lines of what the figures are, and what they were measured on."""
    told = results["conditions"]
    versions = ", ".join(f"{name} {results['servers'][name]['version']}" for name in names)
    rounds = max(
        sum(entry["server"] == names[0] for entry in row["rounds"]) for row in results["scenarios"]
    )
    length = "quick, shortened rounds: " if told["quick"] else ""
    yield f"{length}median of {rounds}, line: least to most · {versions}"
    yield (
        f"{told['at'][:10]} · commit {told['commit']} · {told['cpu_count']} processors, "
        f"{told['machine']} · {told['file_system']} · Python {told['python']}"
    )


def figures_of(row: Results, names: Sequence[str]) -> list[Figures]:
    """Pick what is drawn of a row."""
    found = []
    for name in names:
        summary = row["summary"].get(name, {})
        spread = summary.get(row["headline"], {})
        columns = (
            _median(summary, "cpu_us"),
            _pair(summary, "delivery"),
            _pair(summary, "confirm"),
            row["quiet_rounds"][name],
        )
        mine = [entry for entry in row["rounds"] if entry["server"] == name]
        found.append(
            Figures(
                name,
                spread.get("min"),
                spread.get("median"),
                spread.get("max"),
                columns,
                all(entry["is_quiet"] for entry in mine),
            )
        )
    return found


def _median(summary: Results, value: str) -> str:
    return number(summary[value]["median"]) if value in summary else ""


def _pair(summary: Results, name: str) -> str:
    pair = [_median(summary, f"{name}_{part}_ms") for part in ("p50", "p99")]
    return " / ".join(pair) if all(pair) else ""


def _picture(
    title: str, heading: Sequence[str], source: str, rows: Sequence[Results], names: Sequence[str]
) -> str:
    parts = list(_heading(title, heading))
    top = TOP
    for row in rows:
        parts += _row(row, figures_of(row, names), top)
        top += LINE_HEIGHT * (len(names) + 1) + ROW_GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" '
        f'viewBox="0 0 {WIDTH} {top}" role="img">\n<title>{escape(title)}</title>\n'
        f"<desc>drawn from {escape(source)}</desc>\n<style>{STYLE}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _heading(title: str, heading: Sequence[str]) -> Iterator[str]:
    yield _text(MARGIN, 26, title, "title")
    for index, line in enumerate(heading):
        yield _text(MARGIN, 46 + 17 * index, line, "faint")
    for right, *names in COLUMNS:
        for index, name in enumerate(names):
            yield _text(right, TOP - 24 + 16 * index, name, "faint right")


def _row(row: Results, figures: Sequence[Figures], top: int) -> Iterator[str]:
    yield f'<line class="rule" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{top}" y2="{top}"/>'
    yield _text(MARGIN, top + 16, row["name"], "name")
    yield _text(FIGURE_RIGHT, top + 16, UNITS[row["headline"]], "faint right")
    most = max((entry.high for entry in figures if entry.high), default=0.0)
    peers = [entry.server for entry in figures if entry.server != OURS]
    for index, entry in enumerate(figures, 1):
        base = top + 14 + LINE_HEIGHT * index
        kind = OURS if entry.server == OURS else f"peer-{peers.index(entry.server)}"
        yield _text(MARGIN, base, entry.server)
        if entry.median is None or not most:
            yield _text(BAR_LEFT, base, "no round counted", "faint")
        else:
            yield from _bar(entry, most, kind, base)
        for (right, *_), text in zip(COLUMNS, entry.columns, strict=True):
            yield _text(right, base, text, "right")


def _bar(entry: Figures, most: float, kind: str, base: int) -> Iterator[str]:
    low, median, high = (
        BAR_LEFT + BAR_WIDTH * (value or 0.0) / most
        for value in (entry.low, entry.median, entry.high)
    )
    pale = "" if entry.is_quiet else " unquiet"
    yield (
        f'<rect class="{kind}{pale}" x="{BAR_LEFT}" y="{base - BAR_HEIGHT + 2}" '
        f'width="{max(median - BAR_LEFT, 1):.1f}" height="{BAR_HEIGHT}"/>'
    )
    middle = base + 2 - BAR_HEIGHT / 2
    if high > low:
        yield (
            f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle:g}" y2="{middle:g}"/>'
        )
    yield _text(FIGURE_RIGHT, base, number(entry.median or 0.0), "right")


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x}" y="{y}">{escape(text)}</text>'


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw what the command line names."""
    made = argparse.ArgumentParser(prog="python -m bench.plots", description="Draw a stored run.")
    made.add_argument("results", type=Path, metavar="FILE", help="what --out has written")
    made.add_argument("--out", type=Path, default=DIRECTORY, metavar="DIR", help=f"({DIRECTORY})")
    options = made.parse_args(arguments)
    try:
        results = json.loads(options.results.read_text())
        is_curves = "curves" in results
        draw = draw_curves if is_curves else draw_all
        pictures = draw(results, options.results.name)
    except (OSError, json.JSONDecodeError, PlotError) as error:
        print(f"{options.results}: {error}", file=sys.stderr)
        return 2
    directory = options.out / CURVES if is_curves else options.out
    directory.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (directory / f"{name}.svg").write_text(picture)
        print(directory / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
