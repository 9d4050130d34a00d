"""Tables that are counted over lines: rates, dead letters, consumers by the hour.

They are made of parts that add up, one for each batch of lines, so that an incremental audit does
not read its lines again. Must not know verdicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.spark.audit.tables import Scope, brokers
from vouchmq.spark.audit.unacked import CONSUMER, HOUR_US
from vouchmq.spark.ledger.facts import LINE_BITS, Facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RATES: Final = (
    *("published", "confirmed", "nacked", "delivered", "redelivered", "acked", "requeued"),
    *("dead_lettered", "dropped"),
)
WIDTHS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400),
)
"""Of the buckets of `rates` and `heat`: the smallest that makes at most MOST_BUCKETS."""
MOST_BUCKETS: Final = 240
_COUNT: Final = "aggregate(i, 0L, (sum, x) -> sum + x[1] - x[0] + 1)"
_KINDS: Final = {
    "published": ("e = 'pub'", "CAST(s[1] AS bigint) - CAST(s[0] AS bigint) + 1"),
    "confirmed": ("e = 'cnf' AND ok = 1", _COUNT),
    "nacked": ("e = 'cnf' AND ok = 0", _COUNT),
    "delivered": ("e = 'dlv'", _COUNT),
    "redelivered": ("e = 'dlv' AND r = 1", _COUNT),
    "acked": ("e = 'ack'", _COUNT),
    "requeued": ("e = 'req'", _COUNT),
    "dead_lettered": ("e = 'dle'", _COUNT),
    "dropped": ("e = 'drp'", _COUNT),
}


def rate_parts(lines: DataFrame) -> DataFrame:
    """(bk, second, RATES) of these lines."""
    from pyspark.sql import functions as f

    made = [
        f.expr(f"sum(CASE WHEN {when} THEN {count} ELSE 0 END)").alias(name)
        for name, (when, count) in _KINDS.items()
    ]
    told = lines.where("e IN ('pub', 'cnf', 'dlv', 'ack', 'req', 'dle', 'drp')")
    return told.groupBy("bk", f.expr("t div 1000000").alias("second")).agg(*made)


def dead_letter_parts(lines: DataFrame) -> DataFrame:
    """(bk, hour, qid, why, target, count) of the dead letters of these lines."""
    from pyspark.sql import functions as f

    told = lines.where("e = 'dle'").selectExpr(
        *("bk", "qid", "w AS why", "x AS target", f"t - t % {HOUR_US} AS hour"),
        f"{_COUNT} AS letters",
    )
    return told.groupBy("bk", "hour", "qid", "why", "target").agg(f.sum("letters").alias("count"))


def width_of(facts: Facts) -> int:
    """Seconds of a bucket, so that all of the time fits in MOST_BUCKETS."""
    times = [time for *_, epoch in facts.epochs() for time in (epoch.first_t, epoch.last_t) if time]
    seconds = (max(times) - min(times)) // 1_000_000 + 1 if times else 0
    return next((width for width in WIDTHS_S if width * MOST_BUCKETS >= seconds), WIDTHS_S[-1])


def rates(parts: DataFrame, facts: Facts, scope: Scope) -> DataFrame:
    """What brokers did over time, over all their queues."""
    from pyspark.sql import functions as f

    width = width_of(facts)
    within = Scope(scope.since_us, scope.until_us).condition("second * 1000000")
    told = parts.where(within).selectExpr(
        f"timestamp_seconds(second - second % {width}) AS t",
        f"{width}L AS width_s",
        f"{brokers(facts)} AS b",
        *RATES,
    )
    return told.groupBy("t", "width_s", "b").agg(*[f.sum(name).alias(name) for name in RATES])


def dead_letters(parts: DataFrame, queues: DataFrame, facts: Facts, scope: Scope) -> DataFrame:
    """Dead letters by hour, queue, reason and target."""
    from pyspark.sql import functions as f

    told = parts.join(queues.select("bk", "qid", "v", "queue"), ["bk", "qid"], "left")
    return (
        told.where(scope.condition("hour"))
        .selectExpr(
            *("timestamp_micros(hour) AS hour", f"{brokers(facts)} AS b", "v", "queue"),
            *("why", "target", "count"),
        )
        .groupBy("hour", "b", "v", "queue", "why", "target")
        .agg(f.sum("count").alias("count"))
    )


def ages(rows: DataFrame) -> DataFrame:
    """(CONSUMER, hour, age) of copies that a consumer has acked: how old the oldest was."""
    from pyspark.sql import functions as f

    return (
        rows.where("cid > 0 AND t_ack >= t_dlvn")
        .selectExpr(
            *("bk", f"shiftright(o_dlvn, {LINE_BITS}) AS o", "cid"),
            f"t_ack - t_ack % {HOUR_US} AS hour",
            "t_ack - t_dlvn AS age",
        )
        .groupBy(*CONSUMER, "hour")
        .agg(f.max("age").alias("age"))
    )


def waiting(rows: DataFrame, facts: Facts) -> DataFrame:
    """The same of copies that a consumer still has, at the last line of its epoch."""
    from pyspark.sql import functions as f

    last = [(code, number, epoch.last_t) for code, _, number, epoch in facts.epochs()]
    ends = rows.sparkSession.createDataFrame(last, "bk int, o bigint, last_t bigint")
    return (
        rows.where(
            "cid > 0 AND endn IS NULL AND t_ack IS NULL AND (o_reqn IS NULL OR o_reqn < o_dlvn)"
        )
        .selectExpr("bk", f"shiftright(o_dlvn, {LINE_BITS}) AS o", "cid", "t_dlvn")
        .join(f.broadcast(ends), ["bk", "o"])
        .selectExpr(*CONSUMER, f"last_t - last_t % {HOUR_US} AS hour", "last_t - t_dlvn AS age")
        .groupBy(*CONSUMER, "hour")
        .agg(f.max("age").alias("age"))
    )


def tails(standing: DataFrame, consumers: DataFrame, facts: Facts) -> DataFrame:
    """Parts of `consumers` from the last line of each consumer to its stop, or its epoch's end."""
    from pyspark.sql import functions as f

    last = [(code, number, epoch.last_t) for code, _, number, epoch in facts.epochs()]
    ends = standing.sparkSession.createDataFrame(last, "bk int, o bigint, last_t bigint")
    told = (
        standing.join(f.broadcast(ends), ["bk", "o"])
        .join(consumers.select(*CONSUMER, "stop_t"), [*CONSUMER], "left")
        .withColumn("until_t", f.expr("coalesce(greatest(t, stop_t), last_t)"))
        .where("until_t > t")
    )
    hours = (
        f"explode(sequence(t - t % {HOUR_US}, until_t - until_t % {HOUR_US}, {HOUR_US})) AS hour"
    )
    return (
        told.selectExpr("*", hours)
        .selectExpr(
            *(*CONSUMER, "hour", "pf AS prefetch", "count AS most", "CAST(NULL AS string) AS why"),
            f"least(until_t, hour + {HOUR_US}) - greatest(t, hour) AS span",
            "count AS unacked",
        )
        .where("span > 0")
        .selectExpr("*", "CAST(unacked AS double) * span AS area")
        .drop("unacked")
    )


def consumers(
    parts: DataFrame,
    ages: DataFrame,
    consumers: DataFrame,
    queues: DataFrame,
    facts: Facts,
    scope: Scope,
) -> DataFrame:
    """The table: parts of `unacked.hours` and `tails` added up, with the names of things.

    Args:
        parts: of all batches
        ages: of `ages` and `waiting`
        consumers: of `unacked.describe_consumers`
        queues: names of queues
        facts: of brokers
        scope: which of them
    """
    from pyspark.sql import functions as f

    key = [*CONSUMER, "hour"]
    counts = ("deliveries", "redeliveries", "acks")
    reasons = (
        parts.where("requeued > 0")
        .groupBy(*key, "why")
        .agg(f.sum("requeued").alias("requeued"))
        .groupBy(*key)
        .agg(
            f.expr("map_from_entries(array_sort(collect_list(struct(why, requeued)))) AS requeues")
        )
    )
    told = parts.groupBy(*key).agg(
        *[f.expr(f"coalesce(sum({name}), 0)").alias(name) for name in counts],
        f.max("prefetch").alias("prefetch"),
        f.expr("sum(area) / sum(span)").alias("unacked_mean"),
        f.max("most").alias("unacked_max"),
    )
    oldest = ages.groupBy(*key).agg(f.max("age").alias("oldest_unacked_us"))
    named = (
        told.join(reasons, key, "left")
        .join(oldest, key, "left")
        .join(consumers.select(*CONSUMER, "qid", "g"), [*CONSUMER], "left")
        .join(queues.select("bk", "qid", "v", "queue"), ["bk", "qid"], "left")
    )
    return named.where(scope.condition("hour")).selectExpr(
        *("timestamp_micros(hour) AS hour", f"{brokers(facts)} AS b", "v", "queue", "o", "cid"),
        *(
            "g",
            "deliveries",
            "redeliveries",
            "acks",
            "requeues",
            "coalesce(prefetch, 0) AS prefetch",
        ),
        *("unacked_mean", "coalesce(unacked_max, 0) AS unacked_max"),
        "CASE WHEN prefetch > 0 THEN unacked_mean / prefetch END AS utilisation",
        "oldest_unacked_us",
    )
