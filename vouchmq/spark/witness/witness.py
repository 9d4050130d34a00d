"""Judges what clients saw: the lines of `vouchmq.kit.witness`, of any clients and any broker.

    files ──▶ lines ──▶ one row a message and queue ──▶ one row a message ──▶ state, findings

A message is known by its id. The broker's ledger is not needed; where there is one,
`with_ledger.py` holds the two against each other. Must not know how lines come to be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vouchmq.spark.ledger.lines import LedgerError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMA_DDL: Final = "w string, o bigint, n bigint, e string, k string, t bigint, m string, r int"
"""Of a line. `o` (which life of the witness) and `n` (dense in it) may be missing, both."""
EVENTS: Final = (
    *("sent", "confirmed", "nacked", "returned"),
    *("received", "acked", "rejected", "drained"),
)
STATES: Final = {
    "LOST": "confirmed, and never received nor drained",
    "unproven": "would be lost, but lines of a witness are missing",
    "open": "confirmed after the queues were last found empty: no verdict yet",
    "received": "a consumer had it",
    "drained": "it was still there when the queue was emptied",
    "returned": "no queue took it",
    "nacked": "the broker refused it",
    "unconfirmed": "sent, and nobody knows: allowed",
    "orphan": "nobody has sent it",
}
FINDINGS: Final = {
    "LOST": "confirmed, never received nor drained",
    "duplicate": "came to a queue more often than it was sent, and was not marked as redelivered",
    "confirm_unknown": "confirmed to the client, but the broker's ledger has no such confirm",
    "ack_unknown": "acked by the client, never seen again, but not acked in the broker's ledger",
    "confirm_twice": "more confirms than publishes",
    "confirm_and_nack": "more confirms and nacks than publishes",
    "returned_received": "returned, and received nevertheless",
    "orphan": "received, but no witness has sent it",
    "acked_unreceived": "acked, but no witness has received it",
    "clock": "received before it was sent",
    "nacked_received": "refused, and received: another queue may have taken it",
    "received_after_ack": "came again after its ack: allowed when the broker was killed",
}
"""From the worst on."""
ALLOWED: Final = ("nacked_received", "received_after_ack")
"""Counted, and no wrong by themselves."""
FAIL_ON: Final = ("LOST", "duplicate", "confirm_unknown", "ack_unknown")
BROKEN_TEXT: Final = "_broken_text"
NAMED_MOST: Final = 20
WORST_MOST: Final = 5

_COUNTS: Final = {
    "n_sent": "sent",
    "n_cnf": "confirmed",
    "n_nck": "nacked",
    "n_ret": "returned",
    "n_rcv": "received",
    "n_drn": "drained",
    "n_ack": "acked",
    "n_rej": "rejected",
}
_TAKEN: Final = "e IN ('received', 'drained')"


@dataclass(frozen=True, slots=True)
class Seen:
    """Whether everything is there that the witnesses wrote."""

    witnesses: int
    lines: int
    missing: int
    torn: int
    broken: tuple[str, ...]
    broken_count: int
    emptied_us: int | None

    @property
    def is_complete(self) -> bool:
        """True when no line can excuse a message that nobody has received."""
        return not (self.missing or self.broken_count)


@dataclass(frozen=True, slots=True)
class WitnessResult:
    """What the witnesses say; the tables have the rest."""

    seen: Seen
    states: Mapping[str, int]
    findings: Mapping[str, int]
    worst: Sequence[str]
    out: Path

    @property
    def messages(self) -> int:
        """How many messages were judged."""
        return sum(self.states.values())

    @property
    def is_provable(self) -> bool:
        """Whether nothing was missing that a verdict needed."""
        return self.seen.is_complete and not self.states.get("unproven")

    def exit_code(self, fail_on: Sequence[str] = FAIL_ON) -> int:
        """0 clean, 1 findings of these kinds, 3 nothing worse than what cannot be proven."""
        if any(self.findings.get(kind) for kind in fail_on):
            return 1
        return 0 if self.is_provable else 3

    def summary(self) -> list[str]:
        """At most ten lines for people."""
        seen = self.seen
        missing = f"{seen.missing:,} missing, {seen.torn} torn, {seen.broken_count} broken"
        told = [f"{self.messages:,} messages, {seen.witnesses} witnesses, {seen.lines:,} lines"]
        told.append(f"lines: {missing}")
        told += [f"broken: {', '.join(seen.broken)}"] if seen.broken else []
        states = ", ".join(f"{name} {count:,}" for name, count in self.states.items())
        told.append(f"states: {states or 'none'}")
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.findings.items())
        told.append(f"findings: {kinds or 'none'}")
        told.append(f"tables: {self.out}")
        return told


def find(directories: Iterable[str | Path]) -> list[Path]:
    """The files of the witnesses.

    Raises:
        LedgerError: a path is not there, or holds none
    """
    found: dict[Path, None] = {}
    for given in directories:
        path = Path(given)
        if not path.exists():
            raise LedgerError(f"{path} is not there")
        below = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        if not below:
            raise LedgerError(f"{path} holds no lines of witnesses (*.jsonl)")
        found.update(dict.fromkeys(each.resolve() for each in below))
    return list(found)


def run(
    spark: SparkSession,
    directories: Iterable[str | Path],
    out: Path,
    ledger_lines: DataFrame | None = None,
) -> WitnessResult:
    """Judge all lines below these directories, and write the tables below `out`.

    Args:
        spark: any session
        directories: of witnesses
        out: tables `messages`, `findings`, `witnesses` go here
        ledger_lines: of the broker, as `vouchmq.spark.ledger.lines.read` makes them, with `detail =
            messages`; None: there are none

    Raises:
        LedgerError: the input cannot be judged
    """
    from pyspark.sql import functions as f

    from vouchmq.spark.witness.with_ledger import differences

    files = find(directories)
    # In pieces for the driver, as a program may have thousands of lives.
    lines = _keep(spark, read(spark, files), out / "_lines")
    witnesses = _keep(spark, completeness(lines), out / "witnesses")
    seen = _seen(lines, witnesses, files)
    if not seen.lines:
        raise LedgerError(f"{', '.join(map(str, directories))}: no line of a witness can be read")
    messages = _keep(spark, judged(by_message(lines), seen), out / "messages")
    found = findings(messages)
    if ledger_lines is not None:
        found = found.unionByName(differences(messages, ledger_lines))
    found = _keep(spark, found, out / "findings")
    counted = {row["state"]: row["count"] for row in messages.groupBy("state").count().collect()}
    kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    rank = f.array_position(f.array(*map(f.lit, FINDINGS)), f.col("kind"))
    bad = found.where(~f.col("kind").isin(*ALLOWED))
    worst = bad.orderBy(rank, "t", "m").limit(WORST_MOST).collect()
    return WitnessResult(
        seen,
        {state: counted[state] for state in STATES if counted.get(state)},
        {kind: kinds[kind] for kind in FINDINGS if kinds.get(kind)},
        _lives(lines, [(row["kind"], row["m"]) for row in worst]),
        out,
    )


def read(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Lines, each once, with `f` (its file) and `broken`.

    Of different lines with the same number nobody can say which one the witness has written: they
    are broken.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    # A name may hold what Hadoop takes for a pattern.
    escaped = ["".join(f"\\{c}" if c in "{}[]*?\\" else c for c in str(path)) for path in files]
    reader = spark.read.schema(f"{SCHEMA_DDL}, {BROKEN_TEXT} string")
    raw = reader.option("columnNameOfCorruptRecord", BROKEN_TEXT).json(escaped)
    events = ", ".join(f"'{event}'" for event in EVENTS)
    lacks = " OR ".join(f"{key} IS NULL" for key in ("w", "e", "k", "t", "m"))
    broken = (
        f"{BROKEN_TEXT} IS NOT NULL OR {lacks} OR e NOT IN ({events}) "
        "OR (o IS NULL) != (n IS NULL) OR coalesce(r, 0) NOT IN (0, 1)"
    )
    lines = raw.selectExpr(
        *("w", "o", "n", "e", "k", "t", "m", "coalesce(r, 0) AS r"),
        *("_metadata.file_path AS f", f"coalesce({broken}, true) AS broken"),
    )
    numbered = lines.where("NOT broken AND n IS NOT NULL").dropDuplicates(
        ["w", "o", "n", "e", "k", "t", "m", "r"]
    )
    same = f.count("*").over(Window.partitionBy("w", "o", "n"))
    numbered = numbered.withColumn("broken", same > 1)
    return numbered.unionByName(lines.where("broken OR n IS NULL"))


def completeness(lines: DataFrame) -> DataFrame:
    """A row for each life of a witness: how many lines, and how many of them are missing."""
    return (
        lines.where("NOT broken")
        .groupBy("w", "o")
        .agg(*_exprs("count(*) AS lines", "min(t) AS first_t", "max(t) AS last_t", "max(n) AS top"))
        .selectExpr(
            *("w", "o", "lines", "timestamp_micros(first_t) AS first_t"),
            "timestamp_micros(last_t) AS last_t",
            "coalesce(top + 1 - lines, 0) AS missing",
        )
    )


def by_message(lines: DataFrame) -> DataFrame:
    """One row for each message: how often what happened to it, and when first."""
    counts = [f"count_if(e = '{event}') AS {name}" for name, event in _COUNTS.items()]
    times = {
        "t_sent": "e = 'sent'",
        "t_cnf": "e = 'confirmed'",
        "t_rcv": _TAKEN,
        "t_ack": "e = 'acked'",
        "t_any": "true",
    }
    firsts = [f"min(CASE WHEN {when} THEN t END) AS {name}" for name, when in times.items()]
    latest = f"max(CASE WHEN {_TAKEN} THEN t END) AS t_rcv_last"
    fresh = f"count_if(r = 0 AND {_TAKEN}) AS n_fresh"
    places = (
        lines.where("NOT broken AND m != ''")
        .groupBy("m", "k")
        .agg(*_exprs(*counts, *firsts, latest, fresh))
    )
    sums = [f"sum({name}) AS {name}" for name in _COUNTS]
    return places.groupBy("m").agg(
        *_exprs(
            *sums,
            *(f"min({name}) AS {name}" for name in times),
            "max(n_fresh) AS n_fresh",
            "coalesce(max(t_rcv_last > t_ack), false) AS came_after_ack",
            "min(CASE WHEN n_rcv + n_drn > 0 THEN k END) AS queue",
            "min(CASE WHEN n_sent > 0 THEN k END) AS route",
        )
    )


def judged(messages: DataFrame, seen: Seen) -> DataFrame:
    """The messages with their state."""
    after = "false" if seen.emptied_us is None else f"t_cnf >= {seen.emptied_us}L"
    state = f"""CASE
        WHEN n_sent = 0 THEN 'orphan'
        WHEN n_rcv > 0 THEN 'received'
        WHEN n_drn > 0 THEN 'drained'
        WHEN n_ret > 0 THEN 'returned'
        WHEN n_cnf = 0 AND n_nck > 0 THEN 'nacked'
        WHEN n_cnf = 0 THEN 'unconfirmed'
        WHEN {after} THEN 'open'
        WHEN {"false" if seen.is_complete else "true"} THEN 'unproven'
        ELSE 'LOST' END"""
    return messages.selectExpr("*", f"{state} AS state")


_OF_MESSAGES: Final = {
    "LOST": ("state = 'LOST'", "t_cnf", "concat('route ', route)"),
    "duplicate": (
        "n_fresh > greatest(n_sent, 1)",
        "t_rcv",
        "concat('queue ', queue, ': ', n_fresh, ' deliveries not marked as redelivered')",
    ),
    "confirm_twice": (
        "n_sent > 0 AND n_cnf > n_sent",
        "t_cnf",
        "concat(n_cnf, ' confirms of ', n_sent, ' publishes')",
    ),
    "confirm_and_nack": (
        "n_sent > 0 AND n_nck > 0 AND n_cnf + n_nck > n_sent",
        "t_cnf",
        "concat(n_cnf, ' confirms and ', n_nck, ' nacks of ', n_sent, ' publishes')",
    ),
    "returned_received": (
        "n_ret > 0 AND n_ret >= n_sent AND n_rcv + n_drn > 0",
        "t_rcv",
        "concat('queue ', queue)",
    ),
    "orphan": ("n_sent = 0", "t_any", "concat('queue ', queue)"),
    "acked_unreceived": ("n_ack > 0 AND n_rcv + n_drn = 0", "t_ack", "'no queue'"),
    "clock": ("t_rcv < t_sent", "t_rcv", "concat(t_sent - t_rcv, ' µs before it was sent')"),
    "nacked_received": (
        "n_nck > 0 AND n_nck >= n_sent AND n_rcv + n_drn > 0",
        "t_rcv",
        "concat('queue ', queue)",
    ),
    "received_after_ack": ("came_after_ack", "t_ack", "concat('queue ', queue)"),
}


def findings(messages: DataFrame) -> DataFrame:
    """(kind, m, t, detail) of everything that is worth a word."""
    from pyspark.sql import functions as f

    each = [
        f.when(
            f.expr(condition),
            f.struct(
                f.lit(kind).alias("kind"),
                f.expr(time).alias("t"),
                f.coalesce(f.expr(detail), f.lit("")).alias("detail"),
            ),
        )
        for kind, (condition, time, detail) in _OF_MESSAGES.items()
    ]
    return (
        messages.select("m", f.explode(f.array_compact(f.array(*each))).alias("found"))
        .select("found.kind", "m", "found.t", "found.detail")
        .where("kind IS NOT NULL")
    )


def _seen(lines: DataFrame, witnesses: DataFrame, files: Sequence[Path]) -> Seen:
    sums = witnesses.selectExpr(
        "count(DISTINCT w) AS w", "coalesce(sum(lines), 0) AS l", "coalesce(sum(missing), 0) AS x"
    ).collect()[0]
    empty = lines.where("NOT broken AND e = 'drained' AND m = ''")
    emptied_us = empty.selectExpr("max(t) AS t").collect()[0]["t"]
    counts = lines.where("broken").groupBy("f").count().collect()
    torn = {path.as_uri() for path in files if _is_torn(path)}
    # A file of a client that was killed may end in half a line; nothing depends on that one.
    broken = {row["f"]: row["count"] - (1 if _uri(row["f"]) in torn else 0) for row in counts}
    named = [f"{_path(uri)} ({count})" for uri, count in sorted(broken.items()) if count]
    return Seen(
        witnesses=sums["w"],
        lines=sums["l"],
        missing=sums["x"],
        torn=len(torn),
        broken=tuple(named[:NAMED_MOST]),
        broken_count=sum(broken.values()),
        emptied_us=emptied_us,
    )


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if not size:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"


def _path(uri: str) -> str:
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(uri).path)


def _uri(uri: str) -> str:
    return Path(_path(uri)).as_uri()


def _lives(lines: DataFrame, worst: Sequence[tuple[str, str]]) -> list[str]:
    """What all witnesses say of some messages, in the order of time."""
    ids = sorted({message_id for _, message_id in worst})
    told: list[str] = []
    rows = (
        lines.where("NOT broken").where(lines["m"].isin(ids)).orderBy("t", "w", "n").collect()
        if ids
        else []
    )
    for kind, message_id in worst:
        told.append(f"{kind}: {message_id}")
        told += [
            f"  {row['t']} {row['e']} {row['k']} by {row['w']}" + (" redelivered" * row["r"])
            for row in rows
            if row["m"] == message_id
        ]
    return told


def _keep(spark: SparkSession, frame: DataFrame, path: Path) -> DataFrame:
    """Write a frame down; the same frame, read from there."""
    frame.write.mode("overwrite").parquet(str(path))
    return spark.read.schema(frame.schema).parquet(str(path))


def _exprs(*texts: str) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.expr(text) for text in texts]
