"""`vouchmq list queues|connections|…`: what a running broker has, as a table or as lines of JSON.

On a terminal the table is drawn; elsewhere its columns are separated by tabs.

An edge: it prints. Exit codes: 0 done, 1 the broker refuses, 2 no broker runs there.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from vouchmq.server.cli.tables import print_table
from vouchmq.server.edge.control import NoBrokerError, ask_rows

if TYPE_CHECKING:
    from pathlib import Path

DONE: Final = 0
REFUSED: Final = 1
NO_BROKER: Final = 2


def run(directory: Path, listing: str, *, as_json: bool, out: TextIO | None = None) -> int:
    """Print one listing; returns the exit code."""
    out = sys.stdout if out is None else out
    answer: dict[str, Any] = {"error": "no answer"}
    on_terminal: list[dict[str, Any]] = []
    heads: list[str] = []
    try:
        for row in ask_rows(directory, f"list {listing}"):
            if "ok" in row:
                answer = row
            elif as_json:
                out.write(json.dumps(row) + "\n")
            elif out.isatty():
                on_terminal.append(row)
            else:
                # Rows go out as they come: there may be very many.
                if not heads:
                    heads = list(row)
                    out.write("\t".join(heads) + "\n")
                out.write("\t".join(_shown(row[head]) for head in heads) + "\n")
        if answer.get("ok") and not as_json:
            if out.isatty():
                _print_table(listing, on_terminal, out)
            elif not heads:
                out.write("\t".join(answer["columns"]) + "\n")
    except NoBrokerError as error:
        sys.stderr.write(f"vouchmq: {error}\n")
        return NO_BROKER
    except BrokenPipeError:
        # Whoever reads has seen enough.
        sys.stderr.close()
        return DONE
    if not answer.get("ok"):
        sys.stderr.write(f"vouchmq: list {listing}: {answer.get('error', 'refused')}\n")
        return REFUSED
    return DONE


def _print_table(listing: str, rows: list[dict[str, Any]], out: TextIO) -> None:
    if not rows:
        out.write(f"no {listing}\n")
        return
    heads = list(rows[0])
    numbers = frozenset(at for at, head in enumerate(heads) if type(rows[0][head]) in {int, float})
    cells = [[_shown(row[head]) for head in heads] for row in rows]
    print_table(listing, heads, cells, out, numbers=numbers)


def _shown(value: object) -> str:
    """One cell: no tabs, line ends or escape sequences of clients' names."""
    if isinstance(value, bool):
        return ("false", "true")[value]
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
