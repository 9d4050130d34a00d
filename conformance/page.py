"""Writes a comparison as one HTML page that needs nothing else: no server, no network.

What is shown stands in the page as it is, so that it can be read, searched and printed without a
script; the script only filters. It knows verdicts and names, and nothing of how they came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple

VERDICTS: Final = ("passed", "failed", "excused", "skipped", "not run")
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


def page(columns: Sequence[Column], parts: Sequence[Part]) -> str:
    """The page."""
    names = " · ".join(column.name for column in columns)
    here = files("vouchmq.conformance")
    style = here.joinpath("page.css").read_text(encoding="utf-8")
    script = here.joinpath("page.js").read_text(encoding="utf-8")
    heads = "".join(f'<th scope="col" class="broker">{escape(one.name)}</th>' for one in columns)
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>AMQP 0-9-1 conformance: {escape(names)}</title>",
            f"<style>\n{style}</style></head><body>",
            "<header><h1>AMQP 0-9-1 conformance</h1>",
            f'<div class="brokers">{"".join(map(_card, columns))}</div>',
            _controls(parts),
            "</header><main><table>",
            '<thead><tr><th scope="col">rule</th><th scope="col" class="says">what it says</th>',
            f'<th scope="col">mark</th>{heads}</tr></thead>',
            *(_part(part, len(columns)) for part in parts),
            '</table><p id="none" hidden>No case is left by these filters.</p></main>',
            f"<footer>{_legend()}</footer>",
            f"<script>\n{script}</script></body></html>",
            "",
        )
    )


def _card(column: Column) -> str:
    judged = sum(column.counts.get(verdict, 0) for verdict in ("passed", "failed", "excused"))
    bars = "".join(
        f'<i class="{_slug(verdict)}" style="flex-grow:{column.counts[verdict]}"></i>'
        for verdict in VERDICTS
        if column.counts.get(verdict)
    )
    counts = "".join(
        f'<li class="{_slug(verdict)}"><b>{column.counts[verdict]}</b> {verdict}</li>'
        for verdict in VERDICTS
        if column.counts.get(verdict)
    )
    share = f"{100 * column.counts.get('passed', 0) / judged:.1f} %" if judged else "-"
    return (
        f'<section class="card"><h2>{escape(column.name)}</h2><p class="url">{escape(column.url)}'
        f'</p><p class="share" title="passed of those judged">{share}</p>'
        f'<div class="bar" aria-hidden="true">{bars}</div>'
        f"<ul>{counts}</ul></section>"
    )


def _controls(parts: Sequence[Part]) -> str:
    sections = "".join(
        f'<option value="{escape(part.section)}">{escape(part.title)}</option>' for part in parts
    )
    marks = "".join(
        f'<option value="{mark}">{mark} {says}</option>' for mark, says in MARKS.items()
    )
    verdicts = "".join(f'<option value="{one}">{one}</option>' for one in VERDICTS)
    return (
        '<form class="controls" role="search" onsubmit="return false">'
        '<label>find <input type="search" id="find" placeholder="rule or words"></label>'
        f'<label>section <select id="section"><option value="">all</option>{sections}</select>'
        f'</label><label>mark <select id="mark"><option value="">all</option>{marks}</select>'
        f'</label><label>some broker <select id="verdict"><option value="">any verdict</option>'
        f"{verdicts}</select></label>"
        '<label class="switch"><input type="checkbox" id="differences"> differences only</label>'
        '<output id="shown"></output></form>'
    )


def _part(part: Part, width: int) -> str:
    totals = "".join(f"<td>{_total(counts)}</td>" for counts in part.counts)
    lines = "\n".join(_line(part.section, line, width) for line in part.lines)
    return (
        f'<tbody data-section="{escape(part.section)}"><tr class="section"><th scope="rowgroup" '
        f'colspan="3"><button type="button" aria-expanded="true">{escape(part.title)}'
        f"</button></th>{totals}</tr>\n{lines}</tbody>"
    )


def _total(counts: Mapping[str, int]) -> str:
    judged = sum(counts.get(verdict, 0) for verdict in ("passed", "failed", "excused"))
    return f"{counts.get('passed', 0)} / {judged}" if judged else "-"


def _line(section: str, line: Line, width: int) -> str:
    cells = "".join(map(_cell, line.cells))
    verdicts = " ".join(dict.fromkeys(_slug(cell.verdict) for cell in line.cells))
    different = " different" if line.is_different else ""
    says = _details(line, width)
    return (
        f'<tr class="case{different}" data-section="{escape(section)}" data-mark="{line.mark}" '
        f'data-verdicts="{verdicts}"><th scope="row">{escape(line.rule)}</th>'
        f'<td class="says">{says}</td><td class="mark" title="{MARKS.get(line.mark, "")}">'
        f"{line.mark}</td>{cells}</tr>"
    )


def _details(line: Line, width: int) -> str:
    """What the case says; with the reasons behind a fold, where there are any."""
    reasons = [(at, cell) for at, cell in enumerate(line.cells, 1) if cell.reason]
    if not reasons:
        return escape(line.says)
    parts = [f"<details><summary>{escape(line.says)}</summary>"]
    for at, cell in reasons:
        which = f"{at}. " if width > 1 else ""
        parts.append(
            f'<p class="{_slug(cell.verdict)}">{which}{cell.verdict}: {escape(cell.reason)}</p>'
        )
        if cell.trace:
            parts.append(f"<pre>{escape(chr(10).join(cell.trace))}</pre>")
    return "".join((*parts, "</details>"))


def _cell(cell: Cell) -> str:
    sign = SIGNS.get(cell.verdict, "?")
    return (
        f'<td class="verdict {_slug(cell.verdict)}"><span aria-hidden="true">{sign}</span> '
        f"{escape(cell.verdict)}</td>"
    )


def _legend() -> str:
    marks = "".join(f"<dt>{mark}</dt><dd>{says}</dd>" for mark, says in MARKS.items())
    return (
        f"<dl>{marks}</dl><p>Excused: a known departure of RabbitMQ 3.10.8, the reason is given. "
        "Skipped: it could not be judged there. A difference is one between brokers that were "
        "judged.</p>"
    )


def _slug(verdict: str) -> str:
    return verdict.replace(" ", "-")
