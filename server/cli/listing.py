"""`vouchmq list queues|connections|…`: what a running broker has, as a table or as lines of JSON.

An edge: it prints. Exit codes: 0 done, 1 the broker refuses, 2 no broker runs there.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from vouchmq.server.edge.control import NoBrokerError, ask_rows

if TYPE_CHECKING:
    from pathlib import Path

DONE: Final = 0
REFUSED: Final = 1
NO_BROKER: Final = 2


def run(directory: Path, listing: str, *, as_json: bool, out: TextIO | None = None) -> int:
    """Print one listing; returns the exit code."""
    out = sys.stdout if out is None else out
    last: dict[str, Any] | None = None
    heads: list[str] = []
    try:
        for row in ask_rows(directory, f"list {listing}"):
            if last is not None:
                heads = heads or _print_heads(last, out, as_json=as_json)
                _print_row(last, heads, out, as_json=as_json)
            last = row
    except NoBrokerError as error:
        sys.stderr.write(f"vouchmq: {error}\n")
        return NO_BROKER
    except BrokenPipeError:
        # Whoever reads has seen enough.
        sys.stderr.close()
        return DONE
    if last is None or not last.get("ok"):
        why = last.get("error", "refused") if last is not None else "no answer"
        sys.stderr.write(f"vouchmq: list {listing}: {why}\n")
        return REFUSED
    return DONE


def _print_heads(row: dict[str, Any], out: TextIO, *, as_json: bool) -> list[str]:
    heads = list(row)
    if not as_json:
        out.write("\t".join(heads) + "\n")
    return heads


def _print_row(row: dict[str, Any], heads: list[str], out: TextIO, *, as_json: bool) -> None:
    if as_json:
        out.write(json.dumps(row) + "\n")
        return
    out.write("\t".join(_shown(row[head]) for head in heads) + "\n")


def _shown(value: object) -> str:
    """One cell: no tabs, line ends or escape sequences of clients' names."""
    if isinstance(value, bool):
        return ("false", "true")[value]
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
