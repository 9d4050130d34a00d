"""What each consumer has unacked, line by line; from it the hours of consumers and prefetch kept.

Works on lines, not on messages: a line adds or takes away as many deliveries as it tells of. Only
copies that ended without an ack (dead-lettered, dropped) are looked up, since their line does not
say who had them: the consumer of the delivery, if that is the last thing that happened to the copy
before, and in the same epoch. What comes later has no part in it: another leader, who does not know
of that end, may deliver the copy again or end it once more. Must not know verdicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.spark.audit import copies as c
from vouchmq.spark.ledger.facts import LINE_BITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONSUMER: Final = ("bk", "o", "cid")
HOUR_US: Final = 3_600_000_000
_COUNT: Final = "aggregate(i, 0L, (sum, x) -> sum + x[1] - x[0] + 1)"


def describe_consumers(lines: DataFrame, before: DataFrame | None) -> DataFrame:
    """A row for each consumer: queue, tag, prefetch, and the lines of its start and stop."""
    from pyspark.sql import functions as f

    told = lines.where("e = 'con'").selectExpr(
        *("bk", "o", "id AS cid", "qid", "g", "na"),
        "CASE WHEN w IN ('start', 'known') THEN line END AS begin",
        "CASE WHEN w = 'stop' THEN t END AS stop_t",
    )
    if before is not None:
        told = told.unionByName(before)
    ways = {"qid": "max", "g": "max", "na": "max", "begin": "min", "stop_t": "min"}
    made = [f.expr(f"{way}({name}) AS {name}") for name, way in ways.items()]
    return told.groupBy(*CONSUMER).agg(*made)


def timeline(
    lines: DataFrame,
    rows: DataFrame,
    known: DataFrame | None,
    queues: DataFrame,
    before: DataFrame | None,
) -> DataFrame:
    """Each line that changes what a consumer has unacked, with how much that is after it.

    Columns: CONSUMER, line, t, kind, why, r, count, unacked, pf, qid, lsn, until_t (of the next
    line of the consumer, null for the last), is_old for the line that stands for earlier batches.

    Args:
        lines: new ones
        rows: of the copies that they tell of
        known: rows of copies as they were before these lines; None: there was nothing before
        queues: as `describe_queues` has them
        before: where each consumer stood
    """
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    moved = lines.where("e IN ('dlv', 'ack', 'req') AND cid > 0 AND coalesce(na, 0) = 0")
    told = moved.selectExpr(
        *CONSUMER,
        *("line", "t", "e AS kind", "w AS why", "r", f"{_COUNT} AS count", "qid"),
        "i[0][0] AS lsn",
        "CAST(NULL AS bigint) AS pf",
    ).withColumn("delta", f.expr("CASE WHEN kind = 'dlv' THEN count ELSE -count END"))
    windows = lines.where("e = 'con' AND w != 'stop' AND coalesce(na, 0) = 0").selectExpr(
        "bk", "o", "id AS cid", "line", "t", "'con' AS kind", "0L AS count", "pf", "0L AS delta"
    )
    every = told.unionByName(windows, allowMissingColumns=True)
    had = _holders(lines, rows, known)
    every = every.unionByName(_ended_unacked(lines, had, queues), allowMissingColumns=True)
    every = every.withColumn("is_old", f.expr("false"))
    if before is not None:
        every = every.unionByName(before, allowMissingColumns=True)
    so_far = Window.partitionBy(*CONSUMER).orderBy("line").rowsBetween(Window.unboundedPreceding, 0)
    in_order = Window.partitionBy(*CONSUMER).orderBy("line")
    return every.withColumns(
        {
            "unacked": f.sum("delta").over(so_far),
            "pf": f.last("pf", ignorenulls=True).over(so_far),
            "until_t": f.lead("t").over(in_order),
        }
    )


def _holders(lines: DataFrame, rows: DataFrame, known: DataFrame | None) -> DataFrame:
    """(bk, qid, lsn, cid, line): who had a copy when this line dead-lettered or dropped it."""
    dead = rows.where(f"{c.second('n_more')} > 0 OR {c.third('n_more')} > 0")
    # Most copies end once, and nothing happens to them afterwards: their rows say who had them.
    ends = " + ".join(
        (
            *(f"coalesce({count('n_ends')}, 0)" for count in (c.first, c.second)),
            *(c.second("n_more"), c.third("n_more")),
        )
    )
    end = c.line_of("endn")
    is_plain = f"{ends} = 1 AND coalesce(greatest(o_dlvn, o_reqn), -1) < {end}"
    plain = dead.where(
        f"{is_plain} AND cid > 0 AND (o_reqn IS NULL OR o_reqn < o_dlvn) "
        f"AND {_epoch('o_dlvn')} = {_epoch(end)}"
    ).selectExpr(*c.KEY, "cid", f"{end} AS line")
    others = dead.where(f"NOT ({is_plain})").select(*c.KEY)
    if others.isEmpty():
        return plain
    return plain.unionByName(_followed(lines, others, known))


def _epoch(line: str) -> str:
    return f"shiftright({line}, {LINE_BITS})"


def _followed(lines: DataFrame, copies: DataFrame, known: DataFrame | None) -> DataFrame:
    """The same of some copies, which are followed from line to line."""
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    # Of long runs only the part is taken apart in which some of these are.
    parts = copies.groupBy("bk", "qid").agg(f.expr("min(lsn) AS low"), f.expr("max(lsn) AS high"))
    runs = lines.where("e IN ('dlv', 'ack', 'req', 'dle', 'drp')").selectExpr(
        *("bk", "qid", "line", "e IN ('dle', 'drp') AS is_end", "explode(i) AS span"),
        "CASE WHEN e = 'dlv' AND coalesce(na, 0) = 0 THEN cid END AS holder",
    )
    steps = (
        runs.join(f.broadcast(parts), ["bk", "qid"])
        .where("span[0] <= high AND span[1] >= low")
        .selectExpr(
            *("bk", "qid", "line", "is_end", "holder"),
            "explode(sequence(greatest(span[0], low), least(span[1], high))) AS lsn",
        )
    )
    if known is not None:
        last = f"coalesce(greatest(o_reqn, {c.line_of('endn')}), -1)"
        steps = steps.unionByName(
            known.where(f"o_dlvn > {last}").selectExpr(
                *c.KEY, "o_dlvn AS line", "false AS is_end", "cid AS holder"
            )
        )
    in_order = Window.partitionBy(*c.KEY).orderBy("line")
    return (
        steps.join(copies, [*c.KEY], "left_semi")
        .withColumns({"cid": f.lag("holder").over(in_order), "since": f.lag("line").over(in_order)})
        .where(f"is_end AND cid > 0 AND {_epoch('since')} = {_epoch('line')}")
        .select(*c.KEY, "cid", "line")
    )


def _ended_unacked(lines: DataFrame, had: DataFrame, queues: DataFrame) -> DataFrame:
    """What consumers had when it was dead-lettered or dropped, counted by line."""
    from pyspark.sql import functions as f

    streams = queues.where("is_stream = 1").select("bk", "qid")
    ends = lines.where("e IN ('dle', 'drp')").select("bk", "line", "t")
    return (
        had.join(f.broadcast(streams), ["bk", "qid"], "left_anti")
        .join(ends, ["bk", "line"])
        .groupBy("bk", "cid", "line", "t")
        .agg(f.count("lsn").alias("count"), f.min("qid").alias("qid"), f.min("lsn").alias("lsn"))
        .selectExpr(
            *("bk", f"shiftright(line, {LINE_BITS}) AS o", "cid", "line", "t", "'end' AS kind"),
            *("count", "-count AS delta", "qid", "lsn"),
        )
    )


def standing(moves: DataFrame) -> DataFrame:
    """Where each consumer stands after these lines: one line that the next batch begins with."""
    from pyspark.sql import functions as f

    return (
        moves.where("until_t IS NULL")
        .selectExpr(
            *CONSUMER,
            *("line", "t", "'stand' AS kind", "unacked AS count", "unacked AS delta", "pf"),
        )
        .withColumn("is_old", f.expr("true"))
    )


def over_prefetch(moves: DataFrame, holes: DataFrame) -> DataFrame:
    """The first delivery of each consumer that gave it more than its prefetch."""
    from pyspark.sql import functions as f

    first = ("min(line) AS line", "min_by(t, line) AS t", "min_by(qid, line) AS qid")
    more = ("min_by(lsn, line) AS lsn",)
    return (
        moves.where("kind = 'dlv' AND pf > 0 AND unacked > pf")
        .join(holes, ["bk", "o"], "left")
        .where("first IS NULL OR first > line")
        .groupBy(*CONSUMER)
        .agg(*map(f.expr, (*first, *more)))
        .selectExpr(
            *("bk", "qid", "lsn", "'over_prefetch' AS kind", "t", "line"),
            "concat('consumer ', cid, ' had more than its prefetch') AS detail",
        )
    )


def hours(moves: DataFrame) -> DataFrame:
    """Parts of the table `consumers`, to be added up over batches.

    Columns: CONSUMER, hour (µs), deliveries, redeliveries, acks, requeued, why, prefetch, area
    (unacked x µs), span (µs), most.
    """
    from pyspark.sql import functions as f

    hour = f"t - t % {HOUR_US}"
    counted = moves.where("NOT is_old").selectExpr(
        *CONSUMER,
        f"{hour} AS hour",
        "CASE WHEN kind = 'dlv' THEN count END AS deliveries",
        "CASE WHEN kind = 'dlv' AND r = 1 THEN count END AS redeliveries",
        "CASE WHEN kind = 'ack' THEN count END AS acks",
        "CASE WHEN kind = 'req' THEN count END AS requeued",
        "CASE WHEN kind = 'req' THEN why END AS why",
        "pf AS prefetch",
        "unacked AS most",
    )
    spans = (
        moves.where("until_t IS NOT NULL")
        .withColumn(
            "hour", f.expr(f"explode(sequence({hour}, until_t - until_t % {HOUR_US}, {HOUR_US}))")
        )
        .withColumn(
            "span",
            f.expr(f"least(until_t, hour + {HOUR_US}) - greatest(t, hour)"),
        )
        .where("span > 0")
        .selectExpr(
            *CONSUMER, "hour", "span", "CAST(unacked AS double) * span AS area", "unacked AS most"
        )
    )
    every = counted.unionByName(spans, allowMissingColumns=True)
    sums = ("deliveries", "redeliveries", "acks", "requeued", "area", "span")
    return every.groupBy(*CONSUMER, "hour", "why").agg(
        *[f.sum(name).alias(name) for name in sums],
        f.max("most").alias("most"),
        f.max("prefetch").alias("prefetch"),
    )
