"""`vouchmq list queues|connections|…`: what a running broker has, as a table or as lines of JSON.

On a terminal the table is drawn; elsewhere its columns are separated by tabs, and rows go out as
they come, for there may be very many. Must not know what is listed.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from vouchmq.server.cli.client import Refused
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vouchmq.server.cli.client import Broker, Listing

EXIT_MISTAKE = 2
# Shown to who names it only: a terminal has onlookers, and a pipe may end in a log.
HIDDEN_COLUMN = "password_hash"
# On each side of a cell of a table there is a blank, and a line between two.
BORDER = 3
MORE = "more with --columns: "
# What says nothing where all rows have it.
EMPTY: tuple[object, ...] = ("", 0, [], {}, False, None)
# Those that come first where a terminal has no room for all.
FIRST_COLUMNS = {
    "queues": (
        *("vhost", "name", "messages_ready", "messages_unacknowledged", "consumers", "type"),
    ),
    "exchanges": ("vhost", "name", "type", "published_in", "published_out"),
    "bindings": ("vhost", "source", "destination", "destination_type", "routing_key"),
    "connections": ("name", "user", "vhost", "state", "channels"),
    "channels": ("connection", "number", "user", "consumers", "unacknowledged"),
    "consumers": ("vhost", "queue", "tag", "connection", "prefetch"),
    "users": ("name", "tags", "has_password"),
}


class Shown(NamedTuple):
    """What of a listing is shown, and how.

    Args:
        columns: in this order; none: all
        sort: by this column
        reverse: the last first
        as_json: an object for each row
    """

    columns: tuple[str, ...] = ()
    sort: str = ""
    reverse: bool = False
    as_json: bool = False


def show(
    broker: Broker, what: str, shown: Shown, selected: dict[str, str], out: TextIO | None = None
) -> int:
    """Print one listing; returns the exit code.

    Args:
        broker: is asked
        what: the listing
        shown: how
        selected: arguments of the listing, `vhost` or `name`
        out: where to

    Raises:
        CommandFailed: the broker refuses, or a column is unknown
    """
    out = sys.stdout if out is None else out
    listing = broker.rows(f"list {what}", **selected)
    rows = _required(broker, _wanted(listing, shown), selected.get("vhost"))
    if shown.as_json:
        for row in rows:
            out.write(json.dumps(row) + "\n")
    elif out.isatty():
        width = get_terminal_size().columns
        _print_table(what, list(rows), out, are_chosen=bool(shown.columns), width=width)
    else:
        heads: Sequence[str] = ()
        for row in rows:
            if not heads:
                heads = list(row)
                out.write("\t".join(heads) + "\n")
            out.write("\t".join(cell(row[head]) for head in heads) + "\n")
        if not heads:
            heads = shown.columns or [name for name in listing.columns if name != HIDDEN_COLUMN]
            out.write("\t".join(heads) + "\n")
    return 0


def _wanted(listing: Listing, shown: Shown) -> Iterator[dict[str, Any]]:
    """The rows with the columns that are wanted, in order."""
    rows: Iterable[dict[str, Any]] = listing
    if shown.sort:
        every = list(listing)
        _require(listing.columns, (shown.sort,))
        rows = sorted(every, key=lambda row: order(row[shown.sort]), reverse=shown.reverse)
    are_known = not shown.columns
    for row in rows:
        if not are_known:
            _require(listing.columns, shown.columns)
            are_known = True
        if not shown.columns:
            row.pop(HIDDEN_COLUMN, None)
        yield {name: row[name] for name in shown.columns} if shown.columns else row
    _require(listing.columns, shown.columns)


def _required(
    broker: Broker, rows: Iterable[dict[str, Any]], vhost: str | None
) -> Iterator[dict[str, Any]]:
    """The same rows; if there are none, the virtual host that is named must be there.

    Raises:
        CommandFailed: it is not
    """
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty and vhost is not None:
        # Who may see policies alone is not told of virtual hosts.
        with suppress(Refused):
            if not any(row["name"] == vhost for row in broker.rows("list vhosts")):
                raise CommandFailed(f"there is no virtual host {vhost!r}")


def _require(columns: Sequence[str], names: Sequence[str]) -> None:
    for name in names:
        if name not in columns:
            raise CommandFailed(
                f"no column {name!r}; there are {', '.join(columns)}", exit_code=EXIT_MISTAKE
            )


def order(value: object) -> tuple[bool, Any]:
    """By what values of a column are sorted: numbers as such, all else as text."""
    if isinstance(value, int | float):
        return False, value
    return True, cell(value)


def _print_table(
    what: str, rows: list[dict[str, Any]], out: TextIO, *, are_chosen: bool, width: int
) -> None:
    """A table; of columns that nobody has chosen so many as fit."""
    if not rows:
        out.write(f"no {what}\n")
        return
    left_out: list[str] = []
    shown = rows
    if not are_chosen:
        if len(rows) == 1 and not _fits(rows, width):
            print_facts(what, rows[0], out)
            return
        names = fitting(what, rows, width)
        left_out = [name for name in rows[0] if name not in names]
        shown = [{name: row[name] for name in names} for row in rows]
    heads = list(shown[0])
    numbers = frozenset(at for at, head in enumerate(heads) if type(rows[0][head]) in {int, float})
    cells = [[cell(row[head]) for head in heads] for row in shown]
    print_table(what, heads, cells, out, numbers=numbers)
    if left_out:
        text = f"{MORE}{', '.join(left_out)}"
        for line in wrap(text, width, subsequent_indent="  "):
            out.write(f"{line}\n")


def fitting(what: str, rows: list[dict[str, Any]], width: int) -> list[str]:
    """The columns that a terminal has room for, those that say most, in their order."""
    every = list(rows[0])
    if _fits(rows, width):
        return every
    # First those that matter, then those that say something of any row, the first of them first.
    first = [name for name in FIRST_COLUMNS.get(what, ()) if name in rows[0]]
    telling = [name for name in every if any(row[name] not in EMPTY for row in rows)]
    chosen: list[str] = []
    for name in dict.fromkeys((*first, *telling)):
        if _fits([{each: row[each] for each in (*chosen, name)} for row in rows], width):
            chosen.append(name)
    return [name for name in every if name in chosen] or every


def _fits(rows: list[dict[str, Any]], width: int) -> bool:
    """Whether a table of them is no wider."""
    columns = rows[0]
    cells = sum(max(len(name), *(len(cell(row[name])) for row in rows)) for name in columns)
    return cells + BORDER * len(columns) + 1 <= width


def print_facts(title: str, facts: Mapping[str, object], out: TextIO) -> None:
    """One fact a line, below a title."""
    width = max(map(len, facts))
    out.write(f"{title}\n")
    for name, value in facts.items():
        out.write(f"  {name.ljust(width)}  {cell(value)}".rstrip() + "\n")


def cell(value: object) -> str:
    """One cell: no tabs, line ends or escape sequences of clients' names."""
    if isinstance(value, bool):
        return ("false", "true")[value]
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
