"""`vouchmq watch`: a line for each event of a running broker, until somebody has seen enough."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vouchmq.server.cli.client import Broker


def run(
    broker: Broker,
    events: Sequence[str],
    vhost: str | None,
    *,
    as_json: bool,
    out: TextIO | None = None,
) -> int:
    """Print events; returns the exit code.

    Args:
        broker: is asked
        events: how their names begin; none: all
        vhost: only those that concern it
        as_json: an object for each
        out: where to

    Raises:
        CommandFailed: the broker refuses, or has gone
    """
    out = sys.stdout if out is None else out
    for row in broker.watch("watch events", vhost=vhost, prefixes=list(events)):
        out.write(f"{json.dumps(row) if as_json else _line(row)}\n")
        # Whoever reads wants to know it now.
        out.flush()
    return 0


def _line(row: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(row["time_ms"] / 1000, UTC).isoformat(timespec="milliseconds")
    facts = " ".join(f"{name}={json.dumps(value)}" for name, value in row["facts"].items())
    return f"{when.replace('+00:00', 'Z')}  {row['event']:<20} {facts}".rstrip()
