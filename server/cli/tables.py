"""Tables of commands: rich draws them on a terminal, elsewhere they are plain columns.

Plain columns are made by hand: rich takes more than a second for a thousand rows of `list queues`,
and a broker may have fifty thousand queues. They are also what a terminal gets that is too narrow,
since it wraps a line better than a dozen cells. Must not know what is in a cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_DRAWN_ROWS: Final = 500


def print_table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    out: TextIO,
    *,
    numbers: frozenset[int],
) -> None:
    """Print a table.

    Args:
        title: above it
        heads: one for each column
        rows: cells, which are printed as they are
        out: where to
        numbers: the columns that are set to the right
    """
    drawn = out.isatty() and len(rows) <= MOST_DRAWN_ROWS
    if drawn and _draw(title, heads, rows, out, numbers):
        return
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    print(title, file=out)
    for row in (heads, *rows):
        cells = (
            cell.rjust(widths[at]) if at in numbers else cell.ljust(widths[at])
            for at, cell in enumerate(row)
        )
        print("  " + "  ".join(cells).rstrip(), file=out)


def _draw(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    out: TextIO,
    numbers: frozenset[int],
) -> bool:
    """Whether the table fits, and is drawn."""
    # Most tables are not drawn, and importing rich takes longer than asking a broker.
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for at, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if at in numbers else "left")
    for row in rows:
        # Text, as names may hold what rich takes for markup.
        table.add_row(*map(Text, row))
    console = Console(file=out)
    unbounded = console.options.update(max_width=1_000_000)
    fits = Measurement.get(console, unbounded, table).maximum <= console.width
    if fits:
        console.print(table)
    return fits
