"""How far a streaming query is behind, and how fast it is, out of the progress that Spark reports.

Spark has no metrics for sources in Python, but one thing that a source may say at each trigger:
`latestOffset` of its progress. There ours puts what only it knows. Needs neither Spark nor Arrow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

# The key of it in `latestOffset`.
BACKLOG: Final = "backlog"


@dataclass(frozen=True)
class SourceProgress:
    """One source of format `amqp` in one progress of a query. None: nobody can tell.

    Attributes:
        batch_id: of the batch that the progress is about
        rows: in this batch
        rows_per_s: as Spark counts them, `processedRowsPerSecond`
        bytes_per_s: bodies and properties; None in mode `stream`, where the tasks read them
        backlog: messages not handed out yet: `ready` + `buffered`, or offsets behind the end
        ready: of these, those that wait in the broker; None in mode `stream`
        buffered: of these, those that wait in the driver; None in mode `stream`
        lag_s: age of the oldest message not handed out, by the `timestamp` of its publisher; 0.0
            with no backlog, None in mode `stream` and where the message has none
    """

    batch_id: int
    rows: int
    rows_per_s: float
    bytes_per_s: float | None
    backlog: int | None
    ready: int | None
    buffered: int | None
    lag_s: float | None


def progress(of: Any, clock: Callable[[], float] = time.time) -> list[SourceProgress]:
    """What the sources of format `amqp` last said, in the order of the query's sources.

    Args:
        of: a StreamingQuery, of which the last progress is read; or a progress, such as `progress`
            of a listener's event
        clock: seconds since 1970, for `lag_s`

    Empty while the query has reported nothing.
    """
    one = of.lastProgress if hasattr(of, "lastProgress") else of
    if one is None:
        return []
    told: dict[str, Any] = json.loads(one.json) if hasattr(one, "json") else dict(one)
    return list(_sources(told, clock()))


def _sources(told: Mapping[str, Any], now_s: float) -> Iterator[SourceProgress]:
    duration_s = told.get("durationMs", {}).get("triggerExecution", 0) / 1000
    for source in told["sources"]:
        latest, end = _parsed(source.get("latestOffset")), _parsed(source.get("endOffset"))
        rows = int(source["numInputRows"])
        rate = float(source.get("processedRowsPerSecond") or 0)
        batch_id = int(told["batchId"])
        if isinstance(latest.get(BACKLOG), dict):
            said = latest[BACKLOG]
            ready = said.get("ready")
            backlog = None if ready is None else ready + said["buffered"]
            size = said["bytes"] if rows else 0
            lag_s = None if "oldest_s" not in said else max(0.0, now_s - said["oldest_s"])
            yield SourceProgress(
                batch_id,
                rows,
                rate,
                size / duration_s if duration_s else 0.0,
                backlog,
                ready,
                said["buffered"],
                0.0 if backlog == 0 else lag_s,
            )
        elif latest.get("v") == 1 and isinstance(latest.get("next"), dict):
            at = end.get("next", {})
            backlog = sum(max(0, tail - at.get(name, 0)) for name, tail in latest["next"].items())
            yield SourceProgress(
                batch_id, rows, rate, None, backlog, None, None, None if backlog else 0.0
            )


def _parsed(offset: Any) -> dict[str, Any]:
    """An offset, of which Spark's JSON holds the object or its text."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    return found if isinstance(found, dict) else {}
