"""The tables of an audit: numbers get their names, and are written as Parquet for everybody.

What is here reads judged copies, findings and lines, and writes below the output directory; it
decides nothing. All times are UTC; durations are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vouchmq.spark.audit import copies as c
from vouchmq.spark.audit import verdicts
from vouchmq.spark.ledger.facts import LAST_LINE, LINE_BITS, Facts
from vouchmq.spark.ledger.lines import sql_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COPIES: Final = (
    *("b", "qid", "queue", "lsn", "seq", "rt", "t_pub", "p", "pub_c", "pub_h", "pub_s"),
    *("t_cnf", "cnf_ok", "wm_cnf", "t_dlv1", "t_dlvN", "n_dlv", "n_req", "cid", "na", "t_ack"),
    *("n_ack", "n_dle", "n_drp", "why", "state", "early_confirm", "day", "v"),
)
NOWHERE: Final = "?"
"""Virtual host of a queue of which no line tells."""
BINS_PER_OCTAVE: Final = 64
"""Percentiles are upper edges of bins: within 1.1 % of the exact ones, and never below them."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
HOUR: Final = "interval 1 hour"
MOST_QUEUES: Final = 64
"""With more of them there is no directory for each."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which copies go into the tables; None: no limit."""

    since_us: int | None = None
    until_us: int | None = None
    vhost: str | None = None
    queue: str | None = None  # a regular expression of Java's, found anywhere in the name

    def condition(self, time: str = "t", queue: str = "queue") -> str:
        """SQL: whether a row with this time belongs to it."""
        parts = ["true"]
        if self.since_us is not None:
            parts.append(f"{time} >= {self.since_us}L")
        if self.until_us is not None:
            parts.append(f"{time} < {self.until_us}L")
        if self.vhost is not None:
            parts.append(f"v = {sql_text(self.vhost)}")
        if self.queue is not None:
            parts.append(f"{queue} RLIKE {sql_text(self.queue)}")
        return " AND ".join(parts)


def brokers(facts: Facts) -> str:
    """SQL: the id of a broker, from its code."""
    cases = " ".join(f"WHEN {code} THEN {sql_text(name)}" for name, code in facts.codes().items())
    return f"CASE bk {cases} END" if cases else "CAST(NULL AS string)"


def named(judged: DataFrame, routes: DataFrame, facts: Facts) -> DataFrame:
    """Judged copies with the columns COPIES; times are timestamps."""
    reasons = ", ".join(map(sql_text, facts.reasons))
    why = f"array({reasons})[CAST(shiftright(endn & {(1 << c.CODE_BITS) - 1}, 2) AS int)]"
    flags = f"flags & {c.ACKED | c.NACKED}"
    told = judged.join(
        routes.selectExpr("bk", "o AS ep_pub", "rt", "name AS route"),
        ["bk", "ep_pub", "rt"],
        "left",
    )
    times = [f"timestamp_micros({t}) AS {n}" for n, t in _TIMES.items()]
    return told.selectExpr(
        *(f"{brokers(facts)} AS b", "qid", "queue", "lsn", "lsn + seq_off AS seq"),
        *("route AS rt", "int(flags & 1) AS p", "c AS pub_c", "h AS pub_h"),
        *("lsn + s_off AS pub_s", "wm AS wm_cnf", "n_dlv", "n_req", "cid", *times),
        f"CASE WHEN ({flags}) != 0 THEN int(({flags}) & {c.NACKED} = 0) END AS cnf_ok",
        f"int({c.second('n_ends')} > 0) AS na",
        f"{c.first('n_ends')} AS n_ack",
        f"{c.second('n_more')} AS n_dle",
        f"{c.third('n_more')} AS n_drp",
        f"CASE WHEN state IN ('dropped', 'dead_lettered') THEN {why} END AS why"
        if facts.reasons
        else "CAST(NULL AS string) AS why",
        *("state", "coalesce(early_confirm, false) AS early_confirm"),
        "CAST(timestamp_micros(coalesce(t_pub, t_any)) AS date) AS day",
        f"coalesce(v, {sql_text(NOWHERE)}) AS v",
    ).select(*COPIES)


_TIMES: Final = {
    "t_pub": "t_pub",
    "t_cnf": "t_cnf",
    "t_dlv1": "t_dlv1",
    "t_dlvN": "t_dlvn",
    "t_ack": "t_ack",
}

_OF_COPIES: Final = {
    "LOST": (
        "state = 'LOST'",
        *("t_pub", "l_pub", "'confirmed, no end, and not in the newest inventory of its queue'"),
    ),
    "double_end": (
        "state = 'double_end'",
        *("coalesce(t_ack, t_dlvn, t_any)", "l_endn", "concat('ends: ', net_ends)"),
    ),
    "orphan": ("state = 'orphan'", "t_any", "l_seen", "'no publish of it in the ledger'"),
    "resurrected": (
        "resurrected",
        *("coalesce(t_ack, t_dlvn, t_any)", "l_inv", "'in an inventory after its end, no crash'"),
    ),
    "early_confirm": (
        "early_confirm",
        "t_cnf",
        "o_cnf",
        f"CASE WHEN (flags & {c.CLAIMED}) != 0 THEN concat('watermark ', wm, ' was not synced') "
        "ELSE concat('watermark ', wm) END",
    ),
    "acked_undelivered": (
        "acked_undelivered",
        *("t_ack", "l_endn", "'acked, but not delivered before'"),
    ),
    "confirm_twice": (
        "confirm_twice",
        *("t_cnf", "o_cnf", f"concat('confirms: ', {c.first('n_more')})"),
    ),
    "redelivered_flag": (
        "redelivered_flag",
        *("t_dlvn", "o_dlv0", "concat('deliveries: ', n_dlv, ', not marked as redelivered')"),
    ),
}


def findings_of_copies(judged: DataFrame) -> DataFrame:
    """Findings that are a copy's own, with `findings.COLUMNS`."""
    from pyspark.sql import functions as f

    each = f.array(
        *[
            f.when(
                f.expr(condition),
                f.struct(
                    f.lit(kind).alias("kind"),
                    f.expr(f"CAST({t} AS bigint)").alias("t"),
                    f.expr(f"CAST({line} AS bigint)").alias("line"),
                    f.expr(detail).alias("detail"),
                ),
            )
            for kind, (condition, t, line, detail) in _OF_COPIES.items()
        ]
    )
    anything = " OR ".join(f"coalesce({condition}, false)" for condition, *_ in _OF_COPIES.values())
    told = judged.where(anything).withColumn("found", f.explode(f.array_compact(each)))
    return told.selectExpr(
        "bk", "qid", "lsn", *[f"found.{name}" for name in ("kind", "t", "line", "detail")]
    )


def findings_table(
    found: DataFrame, queues: DataFrame, seen: DataFrame, facts: Facts, scope: Scope
) -> DataFrame:
    """The table of findings, the worst first by `rank`.

    Args:
        found: with `findings.COLUMNS`
        queues: names of queues
        seen: (bk, qid, lsn, seq_off) of copies that have a position
        facts: of brokers
        scope: which of them
    """
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    # A consumer may be told of in each batch; the first counts.
    once = found.groupBy(
        "bk", "qid", "lsn", "kind", "detail", f.expr(f"shiftright(line, {LINE_BITS})")
    )
    told = once.agg(f.min("line").alias("line"), f.expr("min_by(t, line)").alias("t"))
    per_consumer = Window.partitionBy(
        "bk", "kind", "detail", f.expr(f"shiftright(line, {LINE_BITS})")
    )
    told = told.withColumn("nth", f.row_number().over(per_consumer.orderBy("line", "lsn")))
    told = told.where("nth = 1 OR kind NOT IN ('over_prefetch', 'unknown_consumer')")
    names = queues.select("bk", "qid", "v", "queue")
    told = told.join(names, ["bk", "qid"], "left").join(
        seen.select("bk", "qid", "lsn", "seq_off"), ["bk", "qid", "lsn"], "left"
    )
    severity = f.expr(
        "CASE kind "
        + " ".join(f"WHEN '{kind}' THEN {place}" for place, kind in enumerate(verdicts.FINDINGS))
        + f" ELSE {len(verdicts.FINDINGS)} END"
    )
    rank = f.row_number().over(Window.orderBy(severity, "bk", "line", "qid", "lsn", "detail"))
    return (
        # What is wrong with the ledger itself concerns all queues.
        told.where(f"({scope.condition()}) OR kind IN {verdicts.OF_LEDGER}")
        .selectExpr("*", f"{brokers(facts)} AS b")
        .select(
            *("b", "v", "queue"),
            f.expr("lsn + seq_off").alias("seq"),
            "kind",
            f.expr("timestamp_micros(t)").alias("t"),
            f.expr(f"shiftright(line, {LINE_BITS})").alias("o"),
            f.expr(f"line & {LAST_LINE}L").alias("n"),
            *("detail", "qid", "lsn"),
            rank.alias("rank"),
        )
    )


def completeness(spark: SparkSession, facts: Facts) -> DataFrame:
    """A row for each epoch of each broker."""
    raw = "b string, o bigint, first bigint, last bigint, events bigint, missing bigint"
    rows = spark.createDataFrame(
        facts.completeness(), f"{raw}, gaps bigint, ended string, unseen int"
    )
    return rows.selectExpr(
        *("b", "o", "timestamp_micros(first) AS first_t", "timestamp_micros(last) AS last_t"),
        *("events", "missing", "gaps", "ended", "unseen"),
    )


def states(copies: DataFrame) -> DataFrame:
    """How many copies each queue has in each state."""
    return copies.groupBy("b", "v", "queue", "qid", "state").count()


def _durations(copies: DataFrame, *columns: str) -> DataFrame:
    """(columns, at, kind, us): how long each copy took for each step, `at` its end."""
    from pyspark.sql import functions as f

    steps = {
        "confirm": ("t_pub", "t_cnf"),
        "delivery": ("t_pub", "t_dlv1"),
        "ack": ("t_dlvN", "t_ack"),
    }
    each = f.array(
        *[
            f.expr(
                f"CASE WHEN {end} IS NOT NULL AND {begin} IS NOT NULL THEN struct({end} AS at, "
                f"'{kind}' AS kind, unix_micros({end}) - unix_micros({begin}) AS us) END"
            )
            for kind, (begin, end) in steps.items()
        ]
    )
    told = copies.select(*columns, f.explode(f.array_compact(each)).alias("step"))
    return told.select(*columns, "step.at", "step.kind", "step.us").where("us >= 0")


def bins(copies: DataFrame) -> DataFrame:
    """(hour, b, v, queue, kind, bin, count, most): how many copies took about how long."""
    from pyspark.sql import functions as f

    return (
        _durations(copies, "b", "v", "queue")
        .withColumns(
            {
                "hour": f.expr("date_trunc('hour', at)"),
                "bin": f.expr(f"ceil({BINS_PER_OCTAVE} * log2(greatest(us, 1)) - 1e-9)"),
            }
        )
        .groupBy("hour", "b", "v", "queue", "kind", "bin")
        .agg(f.count("us").alias("count"), f.max("us").alias("most"))
    )


def latency(bins: DataFrame, *by: str) -> DataFrame:
    """Percentiles of what the bins hold, for each of `by`."""
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    key = list(by)
    once = bins.groupBy(*key, "bin").agg(f.sum("count").alias("count"), f.max("most").alias("most"))
    below = Window.partitionBy(*key).orderBy("bin").rowsBetween(Window.unboundedPreceding, 0)
    every = Window.partitionBy(*key)
    told = once.withColumns(
        {"below": f.sum("count").over(below), "total": f.sum("count").over(every)}
    )
    edge = f"CAST(least(round(pow(2, bin / {BINS_PER_OCTAVE}.0)), 9e18) AS bigint)"
    made = [
        f.expr(f"min(CASE WHEN below >= total * {share} THEN {edge} END)").alias(name)
        for name, share in QUANTILES.items()
    ]
    top = [f.expr(f"least({name}, max) AS {name}") for name in QUANTILES]
    return (
        told.groupBy(*key)
        .agg(f.max("total").alias("count"), *made, f.max("most").alias("max"))
        .select(*key, "count", *top, "max")
    )


def poison(copies: DataFrame, deliveries: int) -> DataFrame:
    """Copies that were delivered at least so often."""
    return copies.where(f"n_dlv >= {deliveries}").select(
        *("b", "v", "queue", "qid", "lsn", "seq", "t_pub", "t_dlv1", "t_dlvN"),
        *("n_dlv", "n_req", "state", "why"),
    )


def heat(copies: DataFrame, width_s: int) -> DataFrame:
    """How many took how long over time; four bins an octave."""
    return (
        _durations(copies, "b")
        .selectExpr(
            f"timestamp_seconds(unix_seconds(at) - unix_seconds(at) % {width_s}) AS t",
            *("b", "kind", "int(floor(4 * log2(greatest(us, 1)) + 1e-9)) AS bin"),
        )
        .groupBy("t", "b", "kind", "bin")
        .count()
    )


def write(frame: DataFrame, directory: Path, *partitions: str, files: int | None = 1) -> None:
    """Write a table in the place of the one that is there; `files` None: as it comes."""
    told = frame if files is None else frame.coalesce(files)
    writer = told.write.mode("overwrite")
    if partitions:
        writer = writer.partitionBy(*partitions)
    writer.parquet(str(directory))
