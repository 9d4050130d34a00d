"""`vouchmq ledger on|off|status|inventory|rotate`: speaks to the broker on a data directory.

It prints. Exit codes: 0 done, 1 the broker refuses, 2 no broker runs there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TextIO

from vouchmq.server.edge.control import NoBrokerError, ask

if TYPE_CHECKING:
    from pathlib import Path

DONE: Final = 0
REFUSED: Final = 1
NO_BROKER: Final = 2


def run(directory: Path, verb: str, out: TextIO | None = None) -> int:
    """Do one of the verbs; returns the exit code."""
    out = sys.stdout if out is None else out
    try:
        answer = ask(directory, f"ledger {verb}")
    except NoBrokerError as error:
        sys.stderr.write(f"vouchmq: {error}\n")
        return NO_BROKER
    if not answer.pop("ok", False):
        sys.stderr.write(f"vouchmq: ledger {verb}: {answer.get('error', 'refused')}\n")
        return REFUSED
    if verb == "status":
        for name, value in answer.items():
            shown = ("no", "yes")[value] if isinstance(value, bool) else value
            out.write(f"{name:<10}{shown}\n")
    elif answer.get("path"):
        out.write(f"{answer['path']}\n")
    return DONE
