"""Findings that are no copy's own: they show in the order of lines, or beside the copies.

Each function returns rows of one form (COLUMNS). Where lines are missing that could excuse what
is seen, nothing is said. Must not know how findings are written down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.spark.audit import copies as c
from vouchmq.spark.audit.copies import matched
from vouchmq.spark.ledger.facts import LINE_BITS, Facts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from vouchmq.spark.ledger.seals import Seals

COLUMNS: Final = ("bk", "qid", "lsn", "kind", "t", "line", "detail")
SCHEMA: Final = "bk int, qid bigint, lsn bigint, kind string, t bigint, line bigint, detail string"
BOUNDLESS: Final = (1 << 63) - 1


def holes(spark: SparkSession, facts: Facts) -> DataFrame:
    """(bk, o, first): where the lines of an epoch have their first hole."""
    firsts: dict[tuple[int, int], int] = {}
    for code, broker in enumerate(facts.brokers.values()):
        for hole in broker.holes():
            firsts.setdefault((code, hole >> LINE_BITS), hole)
    rows = [(code, number, line) for (code, number), line in sorted(firsts.items())]
    return spark.createDataFrame(rows, "bk int, o bigint, first bigint")


def claims(lines: DataFrame, before: Facts, facts: Facts) -> DataFrame:
    """(bk, line) of confirms that speak of a watermark beyond the last sync before them.

    Args:
        lines: new ones
        before: the facts before these lines
        facts: and with them
    """
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    told = lines.where("e IN ('boot', 'syn') OR (e = 'cnf' AND ok = 1)").selectExpr(
        *("bk", "o", "line"),
        "CASE WHEN e != 'cnf' THEN wm END AS mark",
        "CASE WHEN e = 'cnf' THEN wm END AS said",
    )
    marks = [
        (code, number, (number << LINE_BITS) - 1, epoch.synced_lsn)
        for code, _, number, epoch in before.epochs()
        if epoch.synced_lsn
    ]
    for code, broker in enumerate(facts.brokers.values()):
        # What was synced there nobody knows; the next sync says.
        marks += [(code, hole >> LINE_BITS, hole, BOUNDLESS) for hole in broker.holes()]
    if marks:
        given = lines.sparkSession.createDataFrame(
            marks, "bk int, o bigint, line bigint, mark bigint"
        )
        told = told.unionByName(given, allowMissingColumns=True)
    so_far = Window.partitionBy("bk", "o").orderBy("line").rowsBetween(Window.unboundedPreceding, 0)
    return (
        told.withColumn("synced", f.last("mark", ignorenulls=True).over(so_far))
        .where("said > synced")
        .select("bk", "line")
    )


def overtakings(rows: DataFrame, queues: DataFrame, last: DataFrame | None) -> DataFrame:
    """First deliveries that came after the one of a younger copy.

    Exempt are queues with priorities and the like, streams, and copies that were put back, or had
    ended, before their first delivery that is known: an end that was lost with a broker (expired,
    over a limit) brings a copy back after younger ones were delivered.

    Args:
        rows: copies whose first delivery is new
        queues: with `verdicts.QUEUE_COLUMNS`
        last: (bk, qid, place, lsn) of the last first delivery of each queue before; None: none
    """
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    told = first_deliveries(rows, queues)
    told = told.withColumn("is_new", f.expr("true"))
    if last is not None:
        told = told.unionByName(last.withColumns({"is_new": f.expr("false"), "t": f.lit(0)}))
    told = told.withColumns(
        {
            "line": f.expr(c.line_of("place")),
            "own": f.expr(f"nullif(place & {c.DEALT}, {c.DEALT})"),
        }
    )
    in_order = Window.partitionBy("bk", "qid").orderBy("line", "lsn")
    in_line = Window.partitionBy("bk", "qid", "line").orderBy("lsn")
    earlier = in_line.rowsBetween(Window.unboundedPreceding, -1)
    return (
        told.withColumns(
            {
                "before": f.lag("lsn").over(in_order),
                "own_before": f.last("own", ignorenulls=True).over(earlier),
            }
        )
        .where("is_new AND (before > lsn OR own_before > own)")
        .selectExpr(
            *("bk", "qid", "lsn", "'order' AS kind", "t", "line"),
            "CASE WHEN before > lsn THEN concat('delivered after LSN ', before) "
            "ELSE 'delivered before an older one of the same batch' END AS detail",
        )
    )


def first_deliveries(rows: DataFrame, queues: DataFrame) -> DataFrame:
    """(bk, qid, lsn, place, t) of first deliveries whose order counts."""
    from pyspark.sql import functions as f

    exempt = queues.where("pri = 1 OR is_stream = 1").select("bk", "qid")
    line = c.line_of("o_dlv1", c.PLACE_BITS + 1)
    return (
        rows.where(
            f"o_dlv1 & 1 = 0 AND (o_req1 IS NULL OR o_req1 > {line}) "
            f"AND (end1 IS NULL OR {c.line_of('end1')} >= {line})"
        )
        .join(f.broadcast(exempt), ["bk", "qid"], "left_anti")
        .selectExpr("bk", "qid", "lsn", "shiftright(o_dlv1, 1) AS place", "t_dlv1 AS t")
    )


def unknown_consumers(lines: DataFrame, consumers: DataFrame, holes: DataFrame) -> DataFrame:
    """Deliveries to consumers that nobody has started, the first of each.

    Args:
        lines: new ones
        consumers: (bk, o, cid, begin) of all that were started, with the line that says so
        holes: as `holes` makes them
    """
    told = lines.where("e = 'dlv' AND cid > 0").select("bk", "o", "cid", "qid", "line", "t", "i")
    return (
        told.join(consumers.select("bk", "o", "cid", "begin"), ["bk", "o", "cid"], "left")
        .where("begin IS NULL OR begin > line")
        .join(holes, ["bk", "o"], "left")
        .where("first IS NULL OR first > line")
        .groupBy("bk", "o", "cid")
        .agg(*_first_line())
        .selectExpr(
            *("bk", "qid", "lsn", "'unknown_consumer' AS kind", "t", "line"),
            "concat('consumer ', cid, ' was never started') AS detail",
        )
    )


def eras(lines: DataFrame, before: DataFrame | None) -> DataFrame:
    """(bk, o, c, h, sel, wm): from where on a channel confirms, and its last confirm's watermark.

    Args:
        lines: new ones
        before: the same of those before; None: there were none
    """
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    channel = ("bk", "o", "c", "h")
    told = lines.where("e IN ('sel', 'cnf')").selectExpr(
        *channel, "line", "CASE WHEN e = 'sel' THEN line END AS sel", "wm"
    )
    if before is not None:
        told = told.unionByName(before.withColumn("line", f.col("sel")))
    so_far = Window.partitionBy(*channel).orderBy("line")
    since = f.last("sel", ignorenulls=True).over(so_far.rowsBetween(Window.unboundedPreceding, 0))
    told = told.withColumn("sel", since).where("sel IS NOT NULL")
    return told.groupBy(*channel, "sel").agg(f.max("wm").alias("wm"))


def unanswered(judged: DataFrame, eras: DataFrame, facts: Facts) -> DataFrame:
    """Publishes that a later confirm of their channel must have answered, and none has.

    All that waits for a place in the journal is answered together with whatever else waits for it.
    """
    from pyspark.sql import functions as f

    lasts: dict[tuple[int, int], int] = {}
    for code, broker in enumerate(facts.brokers.values()):
        for hole in broker.holes():
            lasts[code, hole >> LINE_BITS] = hole
    rows = [(code, epoch, hole) for (code, epoch), hole in sorted(lasts.items())]
    last = judged.sparkSession.createDataFrame(rows, "bk int, o bigint, last_hole bigint")
    silent = judged.where(
        f"o_pub IS NOT NULL AND (flags & {c.ACKED | c.NACKED | c.MOVED}) = 0 AND c IS NOT NULL"
    ).withColumnRenamed("ep_pub", "o")
    owed = eras.where("wm IS NOT NULL").withColumnRenamed("wm", "said")
    return (
        silent.join(f.broadcast(owed), ["bk", "o", "c", "h"])
        .where("sel < l_pub AND said >= lsn")
        .join(f.broadcast(last), ["bk", "o"], "left")
        .where("last_hole IS NULL OR last_hole < l_pub")
        .selectExpr(
            *("bk", "qid", "lsn", "'unanswered' AS kind", "t_pub AS t", "l_pub AS line"),
            "concat('no confirm, and its channel was told of watermark ', said) AS detail",
        )
    )


def of_ledger(spark: SparkSession, seals: Seals, facts: Facts) -> DataFrame:
    """Findings of the ledger itself: what is not as it was sealed, clocks that went back."""
    codes = facts.codes()
    rows = [
        (
            *(codes[fault.broker], 0, None, fault.kind, fault.t),
            *(fault.epoch << LINE_BITS | fault.n, fault.detail),
        )
        for fault in seals.faults
        if fault.broker in codes
    ]
    return spark.createDataFrame(rows, SCHEMA)


def _first_line() -> list[Column]:
    from pyspark.sql import functions as f

    told = ("min(line) AS line", "min(t) AS t", "min_by(qid, line) AS qid")
    return [*map(f.expr, told), f.expr("min_by(i[0][0], line) AS lsn")]


def owed_returns(
    publishes: DataFrame, returns: DataFrame, confirms: DataFrame, holes: DataFrame
) -> DataFrame:
    """Mandatory publishes that went to no queue and were confirmed without a return.

    Args:
        publishes: `pub` lines that led nowhere on mandatory routes, older ones among them
        returns: (bk, o, c, h, number) that were returned
        confirms: of `copies.confirmed_ranges`
        holes: as `holes` makes them
    """
    from pyspark.sql import functions as f

    met = matched(publishes, confirms.where("ok = 1")).withColumn(
        "number", f.explode(f.sequence("x0", "x1"))
    )
    return (
        met.join(returns, ["bk", "o", "c", "h", "number"], "left_anti")
        .join(holes, ["bk", "o"], "left")
        .where("first IS NULL OR first > line")
        .selectExpr(
            *("bk", "0L AS qid", "CAST(NULL AS bigint) AS lsn", "'nack_lost_in_returns' AS kind"),
            *("pub_t AS t", "pub_line AS line"),
            "concat('connection ', c, ', channel ', h, ': publish ', number,"
            " ' led nowhere and was confirmed, not returned') AS detail",
        )
    )


def twice_confirmed_nowhere(publishes: DataFrame, confirms: DataFrame) -> DataFrame:
    """Publishes that went to no queue and were confirmed more than once."""
    from pyspark.sql import functions as f

    met = matched(publishes, confirms).withColumn("number", f.explode(f.sequence("x0", "x1")))
    return (
        met.groupBy("bk", "o", "c", "h", "number")
        .agg(f.min("t").alias("t"), f.sort_array(f.collect_list("line")).alias("lines"))
        .where("size(lines) > 1")
        .selectExpr(
            *("bk", "0L AS qid", "CAST(NULL AS bigint) AS lsn", "'confirm_twice' AS kind"),
            *("t", "lines[1] AS line"),
            "concat('connection ', c, ', channel ', h, ': publish ', number,"
            " ' was confirmed more than once') AS detail",
        )
    )
