"""`vouchmq ledger on|off|status|inventory|rotate`: what the broker on a data directory answers."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from vouchmq.server.cli.client import Broker


def run(broker: Broker, verb: str, *, as_json: bool, out: TextIO | None = None) -> int:
    """Do one of the verbs; returns the exit code.

    Raises:
        CommandFailed: the broker refuses, or there is none
    """
    out = sys.stdout if out is None else out
    answer = broker.ask(f"ledger {verb}")
    del answer["ok"]
    if as_json:
        out.write(json.dumps(answer) + "\n")
    elif verb == "status":
        for name, value in answer.items():
            shown = ("no", "yes")[value] if isinstance(value, bool) else value
            out.write(f"{name:<10}{shown}\n")
    elif answer.get("path"):
        out.write(f"{answer['path']}\n")
    return 0
