"""The report as HTML: what a value looks like, and the parts that `report.html` has a macro for.

Knows no table of the audit. The page is one file. Its policy forbids it to load anything, so
neither a name in the ledger nor a plot can make a browser ask the network for something. The
template escapes all that is no `Markup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

PACKAGE: Final = "vouchmq.spark.report"
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
SHOWN_ROWS: Final = 50
"""Of a table that grows with the number of queues; all of it is in the Parquet it names."""

# Markup is a str.
Cell = str | int | float | None
Cells = Sequence[Cell]
NONE: Final = "\N{EM DASH}"


class Section(NamedTuple):
    """A part of the page that can be linked to."""

    identity: str
    title: str
    inside: Markup


def visible(text: str) -> str:
    """Text with its control characters shown: a name may have any octet, a page may not."""
    return "".join(
        chr(0x2400 + ord(character))
        if ord(character) < 32
        else "�"
        if not shows(character)
        else character
        for character in text
    )


def shows(character: str) -> bool:
    """Whether a letter may stand in a page: no control, no half of a pair."""
    return character.isprintable() or character in "\u00a0\u200d\u3000"


def shown(value: Cell) -> str:
    """A value as text, or as the markup that it is."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return Markup('<span class="none">{}</span>').format(NONE)
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else visible(value)


def name(text: object) -> Markup:
    """A name out of the ledger: escaped, and kept from turning its neighbours' direction."""
    return Markup("<bdi>{}</bdi>").format(visible(str(text)))


def code(text: object) -> Markup:
    """The same in the type of code."""
    return Markup("<code>{}</code>").format(name(text))


def joined(parts: Iterable[str], between: str = "") -> Markup:
    """Parts one after the other; those that are no markup are escaped."""
    return Markup(between).join(parts)  # noqa: S704 - a constant of ours


@cache
def _macros() -> Any:
    environment = Environment(
        loader=PackageLoader(PACKAGE, ""), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["shown"] = shown
    return environment.get_template("report.html").module


def _made(macro: str, *values: object) -> Markup:
    found: Markup = getattr(_macros(), macro)(*values)
    return found


def paragraph(text: str, kind: str = "") -> Markup:
    """A paragraph, of a class if one is given."""
    return _made("paragraph", text, kind)


def table(headings: Sequence[str], rows: Iterable[Cells]) -> Markup:
    """A table; numbers are set to the right."""
    return _made("table", headings, rows)


def behind(
    what: str, headings: Sequence[str], rows: Sequence[Cells], where: str, total: int = 0
) -> Markup:
    """The table behind a plot, folded away; `total` is how many rows there are if not all."""
    return _made("behind", what, headings, rows, where, total)


def folded(what: str, inside: Markup, *, is_open: bool = False) -> Markup:
    """Something that opens when asked."""
    return _made("folded", what, inside, is_open)


def plot(svg: Markup, caption: str) -> Markup:
    """A plot with what it shows."""
    return _made("plot", svg, caption)


def header(kind: str, word: str, text: str, facts: Sequence[tuple[str, str]]) -> Markup:
    """The verdict, in its colour, and what was looked at."""
    return _made("header", kind, word, text, facts)


def page(title: str, top: Markup, sections: Sequence[Section]) -> str:
    """The whole HTML page, with styles and drawings in it."""
    style = files(PACKAGE).joinpath("report.css").read_text(encoding="utf-8")
    return _made("page", title, top, sections, POLICY, Markup(style))  # noqa: S704 - a file of ours
