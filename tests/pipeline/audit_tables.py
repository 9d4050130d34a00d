"""Tables as the audit writes them, made by hand: what the report is tried on without a Spark."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

BEGAN: Final = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
WHERE: Final = "b v queue"
RATES: Final = (
    "published confirmed nacked delivered redelivered acked requeued dead_lettered dropped"
)
COLUMNS: Final = {
    "states": f"{WHERE} qid:i state count:i",
    "rates": "t:t width_s:i b " + " ".join(f"{name}:i" for name in RATES.split()),
    "heat": "t:t b kind bin:i count:i",
    "lives": f"finding:i {WHERE} lsn:i t:t o:i n:i e what",
    "findings": f"{WHERE} seq:i kind t:t o:i n:i detail lsn:i rank:i",
    "completeness": "b o:i first_t:t last_t:t events:i missing:i gaps:i ended unseen:i",
    "latency": f"hour:t {WHERE} kind count:i p50:i p95:i p99:i p999:i max:i",
    "consumers": f"hour:t {WHERE} o:i cid:i g deliveries:i redeliveries:i acks:i requeues:m "
    "prefetch:i unacked_mean:f unacked_max:i utilisation:f oldest_unacked_us:i",
    "poison": f"{WHERE} qid:i lsn:i seq:i t_pub:t t_dlv1:t t_dlvN:t n_dlv:i n_req:i state why",
    "dead_letters": f"hour:t {WHERE} why target count:i",
}
TYPES: Final = {
    "": pa.string(),
    "i": pa.int64(),
    "f": pa.float64(),
    "t": pa.timestamp("us", tz="UTC"),
    "m": pa.map_(pa.string(), pa.int64()),
}


def schema(table: str) -> pa.Schema:
    """The columns of a table of the audit."""
    split = [column.partition(":") for column in COLUMNS[table].split()]
    return pa.schema([(name, TYPES[kind]) for name, _, kind in split])


@dataclass(slots=True)
class Made:
    """Rows by table; a table that is not named has none."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    def add(self, table: str, row: dict[str, Any]) -> None:
        """One more row; columns that are not named are null."""
        self.rows.setdefault(table, []).append(row)

    def write(self, directory: Path) -> Path:
        """Write all tables, the empty ones too."""
        for name in COLUMNS:
            (directory / name).mkdir(parents=True)
            table = pa.Table.from_pylist(self.rows.get(name, []), schema=schema(name))
            parquet.write_table(table, directory / name / "part-0.parquet")
        (directory / "summary.json").write_text(json.dumps(self.summary))
        return directory


def honest(queues: Sequence[str] = ("orders", "mail"), minutes: int = 30) -> Made:
    """A run in which each message was confirmed, delivered once and acknowledged."""
    made = Made(summary={"paths": ["ledger"], "exit": 0, "version": "0.1.0"})
    epoch = {"b": "east", "o": 1, "first_t": BEGAN, "last_t": BEGAN + timedelta(minutes=minutes)}
    made.add("completeness", epoch | {"events": 40_000, "missing": 0, "gaps": 0, "ended": "stop"})
    for number, queue in enumerate(queues):
        where = {"b": "east", "v": "/", "queue": queue}
        made.add("states", where | {"qid": number, "state": "acked", "count": 3000 * minutes})
        made.add("states", where | {"qid": number, "state": "queued", "count": 12 + number})
        for kind, middle in MIDDLES.items():
            sizes = {"p50": middle, "p95": 3 * middle, "p99": 9 * middle, "p999": 20 * middle}
            row = where | {"hour": BEGAN, "kind": kind, "count": 3000, "max": 50 * middle + number}
            made.add("latency", row | sizes)
        consumer = {"hour": BEGAN, "o": 1, "cid": number, "g": f"ctag-{number}", "prefetch": 100}
        counts = {"deliveries": 3000, "redeliveries": 0, "acks": 3000, "requeues": {}}
        held = {"unacked_mean": 41.5, "unacked_max": 100, "utilisation": 0.415}
        oldest = {"oldest_unacked_us": 250_000 + 1000 * number}
        made.add("consumers", where | consumer | counts | held | oldest)
    chance = random.Random(1)
    for step in range(minutes):
        add_minute(made, step, 6000 + chance.randrange(800))
    return made


MIDDLES: Final = {"confirm": 800, "delivery": 1500, "ack": 9000}
"""Half of all took that long, in µs."""


def add_minute(made: Made, step: int, count: int) -> None:
    """What happened in a minute; three of them are slow."""
    at = BEGAN + timedelta(minutes=step)
    row: dict[str, Any] = dict.fromkeys(RATES.split(), 0)
    row |= {"t": at, "width_s": 60, "b": "east", "published": count, "confirmed": count}
    made.add("rates", row | {"delivered": count - 20, "acked": count - 30})
    for kind, middle in MIDDLES.items():
        slow = 8 if 12 <= step < 15 else 1
        for each in range(-8, 14):
            share = math.exp(-abs(each) / (1.5 if each < 0 else 2.2))
            cell = {"t": at, "b": "east", "kind": kind, "count": max(1, round(count * share / 4))}
            made.add("heat", cell | {"bin": int(4 * math.log2(middle * slow)) + each})


HOSTILE: Final = "<script>alert(1)</script>"
STATES: Final = {
    "LOST": 3,
    "double_end": 1,
    "resurrected": 40,
    "unproven": 12,
    "open": 5,
    "dead_lettered": 700,
    "dropped": 90,
    "transient_gone": 4,
    "unconfirmed_gone": 2,
}


def with_findings() -> Made:
    """The same with a crash, missing lines, redeliveries, dead letters, and messages lost."""
    made = honest(("orders", HOSTILE, "naïve $x_1$ очередь \u202eevil", "a" * 200))
    end = BEGAN + timedelta(minutes=30)
    epoch = {"b": "west</style>", "first_t": BEGAN + timedelta(minutes=5), "last_t": end, "gaps": 0}
    made.add("completeness", epoch | {"o": 1, "events": 900, "missing": 7, "ended": "crash"})
    made.add("completeness", epoch | {"o": 2, "events": 500, "missing": 0, "ended": None})
    where = {"b": "east", "v": "/", "queue": HOSTILE}
    for state, count in STATES.items():
        made.add("states", where | {"qid": 1, "state": state, "count": count})
    for rank, kind in enumerate(["LOST"] * 3 + ["double_end", "order", "redelivered_flag"], 1):
        add_finding(made, where | {"lsn": 70 + rank, "o": 1}, rank, kind)
    for row in made.rows["rates"][10:20]:
        row |= {"redelivered": 400, "requeued": 390}
    made.rows["consumers"][0] |= {"redeliveries": 4000, "oldest_unacked_us": 600_000_000}
    made.rows["consumers"][0] |= {"requeues": {"nack": 300, "connection": 90}}
    poison = {"t_pub": BEGAN, "t_dlv1": BEGAN, "t_dlvN": end, "n_dlv": 17, "n_req": 16, "lsn": 99}
    made.add("poison", where | poison | {"qid": 1, "state": "dead_lettered", "why": "rejected"})
    for why, target, count in (
        ("rejected", "dlx", 500),
        ("expired", "dlx", 180),
        ("maxlen", "", 9),
    ):
        dead_letters = {"hour": BEGAN, "why": why, "target": target, "count": count}
        made.add("dead_letters", where | dead_letters)
    return made


def add_finding(made: Made, where: dict[str, Any], rank: int, kind: str) -> None:
    """A finding, and the life of its message."""
    at = BEGAN + timedelta(minutes=rank, microseconds=rank)
    finding = {"kind": kind, "t": at, "n": rank, "detail": f"{kind} of <b>{rank}</b>"}
    made.add("findings", where | finding | {"rank": rank})
    for step, what in enumerate((f"published to {HOSTILE}", "confirmed", "in no inventory")):
        life = {"finding": rank, "t": at + timedelta(milliseconds=step), "n": rank + step}
        made.add("lives", where | life | {"e": "pub", "what": what})


def empty() -> Made:
    """An audit of ledgers that tell of nothing."""
    return Made(summary={"paths": ["ledger"], "exit": 0})


def of_many_queues(count: int = 5000) -> Made:
    """A run with more queues than a page should list."""
    return honest([f"queue.{number:05d}" for number in range(count)], minutes=10)
