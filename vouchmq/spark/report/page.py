"""The report as HTML: escaping, tables, sections, the page around them.

Knows no table of the audit. The page is one file. Its policy forbids it to load anything, so
neither a name in the ledger nor a plot can make a browser ask the network for something.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Final

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
SHOWN_ROWS: Final = 50
"""Of a table that grows with the number of queues; all of it is in the Parquet it names."""


@dataclass(frozen=True, slots=True)
class Html:
    """Text that is HTML already; everything else is escaped where it enters the page."""

    text: str


Cell = str | int | float | None | Html
Cells = Sequence[Cell]
NONE: Final = "\N{EM DASH}"


def visible(text: str) -> str:
    """Text with its control characters shown: a name may have any octet, a page may not."""
    return "".join(
        chr(0x2400 + ord(letter)) if ord(letter) < 32 else "�" if not shows(letter) else letter
        for letter in text
    )


def shows(letter: str) -> bool:
    """Whether a letter may stand in a page: no control, no half of a pair."""
    return letter.isprintable() or letter in "\u00a0\u200d\u3000"


def name(text: object) -> Html:
    """A name out of the ledger: escaped, and kept from turning its neighbours' direction."""
    return Html(f"<bdi>{escape(visible(str(text)))}</bdi>")


def code(text: object) -> Html:
    """The same in the type of code."""
    return Html(f"<code><bdi>{escape(visible(str(text)))}</bdi></code>")


def paragraph(text: str | Html, kind: str = "") -> str:
    """A paragraph, of a class if one is given."""
    return f'<p class="{kind}">{html_of(text)}</p>' if kind else f"<p>{html_of(text)}</p>"


def html_of(value: Cell) -> str:
    """A value as HTML."""
    if isinstance(value, Html):
        return value.text
    if value is None:
        return f'<span class="none">{NONE}</span>'
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else escape(visible(value))


def table(headings: Sequence[str], rows: Iterable[Cells]) -> str:
    """A table; numbers are set to the right."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: Cell) -> str:
    kind = ' class="number"' if isinstance(value, int | float) else ""
    return f"<td{kind}>{html_of(value)}</td>"


def behind(
    what: str, headings: Sequence[str], rows: Sequence[Cells], where: str, total: int = 0
) -> str:
    """The table behind a plot, folded away; `total` is how many rows there are if not all."""
    note = f"The first {len(rows):,} of {total:,} rows. " if total > len(rows) else ""
    source = Html(f"{note}Table <code>{escape(where)}</code>.")
    return folded(what, paragraph(source, "note") + table(headings, rows))


def folded(what: str | Html, inside: str, *, is_open: bool = False) -> str:
    """Something that opens when asked."""
    state = " open" if is_open else ""
    return f"<details{state}><summary>{html_of(what)}</summary>{inside}</details>"


def plot(svg: str, caption: str) -> str:
    """A plot with what it shows."""
    return (
        f'<figure><div class="scroll">{svg}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def section(identity: str, title: str, *parts: str) -> str:
    """A part of the page that can be linked to."""
    return f'<section id="{identity}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def page(title: str, header: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """The whole page, of (identity, title, HTML) for each section."""
    links = "".join(f'<a href="#{identity}">{escape(name)}</a>' for identity, name, _ in sections)
    style = files("vouchmq.spark.report").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n"
        f"<body>{header}<nav>{links}</nav>\n<main>"
        + "\n".join(part for _, _, part in sections)
        + "</main></body></html>\n"
    )
