"""`vouchmq ledger on|off|status|inventory|rotate|audited`: what a broker answers.

Must not know how the broker is asked.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from vouchmq.server.cli.program import EXIT_MISTAKE, CommandFailed
from vouchmq.server.cli.running.listing import cell

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
        audit = answer.pop("audit", None)
        for name, value in answer.items():
            shown = ("no", "yes")[value] if isinstance(value, bool) else value
            out.write(f"{name:<12}{shown}\n")
        out.writelines(f"{name:<12}{cell(value)}\n" for name, value in _audit_facts(audit))
    elif answer.get("path"):
        out.write(f"{answer['path']}\n")
    return 0


def audited(broker: Broker, summary: str, *, as_json: bool, out: TextIO | None = None) -> int:
    """Tell the broker what an audit has found; returns the exit code.

    Raises:
        CommandFailed: there is no summary, the broker refuses it, or there is no broker
    """
    out = sys.stdout if out is None else out
    try:
        result = json.loads(Path(summary).read_bytes())
    except OSError as error:
        raise CommandFailed(f"{summary}: {error.strerror}", EXIT_MISTAKE) from None
    except ValueError:
        raise CommandFailed(f"{summary} is not JSON", EXIT_MISTAKE) from None
    if not isinstance(result, dict) or "verdict" not in result:
        raise CommandFailed(f"{summary} is not the summary of an audit", EXIT_MISTAKE)
    answer = broker.ask("ledger audited", result=result)
    del answer["ok"]
    out.write(json.dumps(answer) + "\n" if as_json else "recorded\n")
    return 0


def _audit_facts(audit: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What there is to say of the last audit, line by line."""
    if audit is None:
        return [("last audit", "none is known")]
    found = [("last audit", _time(audit["finished_us"])), ("verdict", audit["verdict"])]
    if audit["last_us"] is not None:
        found.append(("events", f"{_time(audit['first_us'])} to {_time(audit['last_us'])}"))
    found += [
        ("audited", f"{name}, up to epoch {at['o']}, line {at['n']}")
        for name, at in audit["brokers"].items()
    ]
    limits = [
        f"{name} {_time(value) if isinstance(value, int) else repr(value)}"
        for name in ("vhost", "queue", "since", "until")
        if (value := audit[name]) is not None
    ]
    if limits:
        found.append(("only", ", ".join(limits)))
    for name in ("findings", "states"):
        counts = ", ".join(f"{kind} {count:,}" for kind, count in audit[name].items())
        found.append((name, counts or "none"))
    return found


def _time(time_us: int) -> str:
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
