"""Lines become copies: one row of numbers for each (broker, queue, LSN), whatever happened to it.

    lines ──▶ runs (a range of LSNs in a queue) ──▶ steps (one LSN) ──▶ one row for each copy
    confirms and publishes, by ranges ──▶ runs ──────────┘

Only numbers are aggregated: with text among them Spark would sort where it can hash. The columns
merge by themselves, so that rows of a copy from two batches are one row again (`merge`). Must not
know verdicts.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from vouchmq.spark.ledger.events import BEGINNINGS
from vouchmq.spark.ledger.lines import sql_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

KEY: Final = ("bk", "qid", "lsn")
PLACE_BITS: Final = 10
"""Of the place of a range in its line; what is farther behind counts as in the last place."""
DEALT: Final = (1 << PLACE_BITS) - 1
"""Place of a delivery that belongs to the batch of another line: it has none of its own."""
CODE_BITS: Final = 10
PERSISTENT, MOVED, ACKED, NACKED, CLAIMED = 1, 2, 4, 8, 16
"""Flags of a copy; the last: confirmed by a watermark beyond the last sync."""
END_ACK, END_NO_ACK, END_DEAD_LETTER, END_DROP = 0, 1, 2, 3
"""Kind of an end, in the lowest two bits of its code; the reason is above them."""
BUCKET_BITS: Final = 7
"""Publishes and confirms meet in buckets of so many bits of the publish number."""

AGGREGATES: Final[dict[str, str]] = {
    "t_pub": "min",  # published: time, place
    "o_pub": "min",
    "rt": "max",
    "c": "max",
    "h": "max",
    "s_off": "max",  # publish number - LSN
    "flags": "bit_or",
    "t_cnf": "min",  # confirmed: time, place, watermark
    "o_cnf": "min",
    "wm": "min",
    "t_dlv1": "min",  # delivered: first and last time
    "t_dlvn": "max",
    "o_dlv1": "min",  # first place << 1 | redelivered
    "o_dlvn": "max",  # last line
    "o_dlv0": "max",  # last line that says: not redelivered
    "t_ack": "max",
    "end1": "min",  # first and last end: line << CODE_BITS | code
    "endn": "max",
    "o_req1": "min",  # put back: first and last line
    "o_reqn": "max",
    "o_inv1": "min",  # seen in inventories: first and last line
    "o_invn": "max",
    "o_begin": "min",  # in the first of an epoch
    "t_any": "min",
    "seq_off": "max",  # position in the queue - LSN
    "n_dlv": "sum",
    "n_req": "sum",
    "n_ends": "sum",  # acks | no-ack deliveries << 20 | ends taken back << 40
    "n_more": "sum",  # confirms | letters << 20 | drops << 40
}
LAST_CONSUMER: Final = "cid"
COLUMNS: Final = (*KEY, *AGGREGATES, LAST_CONSUMER)
_COUNT_BITS: Final = 20


def schema() -> StructType:
    """The schema of rows of copies."""
    from pyspark.sql.types import IntegerType, LongType, StructType

    narrow = ("bk", "flags")
    made = StructType()
    for name in COLUMNS:
        made = made.add(name, IntegerType() if name in narrow else LongType())
    return made


def second(column: str) -> str:
    """SQL: the second of the counts packed into a column."""
    return f"(shiftright({column}, {_COUNT_BITS}) & {(1 << _COUNT_BITS) - 1})"


def first(column: str) -> str:
    """SQL: the first of the counts packed into a column."""
    return f"({column} & {(1 << _COUNT_BITS) - 1})"


def third(column: str) -> str:
    """SQL: the third of the counts packed into a column."""
    return f"shiftright({column}, {2 * _COUNT_BITS})"


def line_of(column: str, bits: int = PLACE_BITS) -> str:
    """SQL: the line (epoch << 38 | number) of a place or an end."""
    return f"shiftright({column}, {bits})"


def aggregates() -> list[Column]:
    """One row out of several of the same copy; the same for steps and for rows of batches."""
    from pyspark.sql import functions as f

    made = [f.expr(f"{way}({name})").alias(name) for name, way in AGGREGATES.items()]
    return [*made, f.expr(f"max_by({LAST_CONSUMER}, o_dlvn)").alias(LAST_CONSUMER)]


def merge(rows: DataFrame) -> DataFrame:
    """Several rows of a copy become one."""
    return rows.groupBy(*KEY).agg(*aggregates())


def copies(
    lines: DataFrame,
    publishes: DataFrame,
    confirms: DataFrame,
    inventories: DataFrame,
    reasons: Sequence[str],
    streams: DataFrame | None,
    *,
    has_positions: bool,
) -> DataFrame:
    """The rows of all copies that these lines tell of.

    Args:
        lines: with `bk`, `line` beside the keys of the ledger
        publishes: `pub` lines that the confirms may be about, older ones among them
        confirms: ranges of publish numbers, as `confirmed_ranges` makes them
        inventories: `inv` lines of inventories that are whole
        reasons: of dead letters and drops; their places are their codes
        streams: (bk, qid) of streams, whose deliveries and acks are no ends; None: there are none
        has_positions: some consumers asked where copies stand in their queue
    """
    runs = [_event_runs(lines, reasons), _inventory_runs(inventories)]
    runs.append(_confirm_runs(publishes, confirms))
    if has_positions:
        runs.append(_position_runs(lines))
    every = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), runs)
    if not has_positions:
        every = every.selectExpr("*", "CAST(NULL AS bigint) AS seq_off")
    if streams is not None:
        from pyspark.sql import functions as f

        every = every.join(
            f.broadcast(streams.withColumn("stream", f.lit(1))), ["bk", "qid"], "left"
        )
        kept = f"stream IS NULL OR (endn & 3) >= {END_DEAD_LETTER}"
        every = every.withColumn("endn", f.expr(f"CASE WHEN {kept} THEN endn END"))
    steps = every.selectExpr("*", "explode(sequence(a, b)) AS lsn")
    return merge(steps.selectExpr("*", *[f"{one} AS {other}" for other, one in _TWICE.items()]))


# Filled from the column on the right when steps become rows.
_TWICE: Final = {
    "t_dlv1": "t_dlvn",
    "end1": "endn",
    "o_req1": "o_reqn",
    "o_inv1": "o_invn",
}


def _when(kinds: str, value: str) -> str:
    return f"CASE WHEN e IN ({', '.join(repr(kind) for kind in kinds.split())}) THEN {value} END"


def _event_runs(lines: DataFrame, reasons: Sequence[str]) -> DataFrame:
    """Runs of all kinds that name their copies themselves."""
    codes = " ".join(f"WHEN {sql_text(word)} THEN {code}" for code, word in enumerate(reasons))
    why = f"CASE w {codes} END" if reasons else "0"
    told = lines.where("e IN ('pub', 'mov', 'dlv', 'ack', 'req', 'dle', 'drp', 'uns')").selectExpr(
        *("bk", "line", "n", "e", "t", "rt", "c", "h", "p", "cid", "r", "na", "deal"),
        f"coalesce({why}, 0) AS why",
        "CASE WHEN e = 'pub' THEN CAST(s[0] AS bigint) - lsn[0] END AS s_off",
        "CASE WHEN e IN ('pub', 'mov') THEN array(lsn) ELSE i END AS ranges",
        "explode(CASE WHEN e IN ('pub', 'mov') THEN to ELSE array(qid) END) AS copy_qid",
    )
    ranged = told.selectExpr("*", "posexplode(ranges) AS (place, span)").selectExpr(
        "*",
        f"(line << {PLACE_BITS}) AS at_line",
        # A batch that was dealt out to several consumers is in order as a whole.
        f"CASE WHEN deal IS NULL THEN (line << {PLACE_BITS}) | least(place, {DEALT - 1}) ELSE "
        f"(((line - n) | deal) << {PLACE_BITS}) | {DEALT} END AS dealt",
    )
    end = " ".join(
        (
            f"CASE WHEN e = 'ack' THEN {END_ACK}",
            f"WHEN e = 'dlv' AND na = 1 THEN {END_NO_ACK}",
            f"WHEN e = 'dle' THEN (why << 2) | {END_DEAD_LETTER}",
            f"WHEN e = 'drp' THEN (why << 2) | {END_DROP} END",
        )
    )
    return ranged.selectExpr(
        *("bk", "copy_qid AS qid", "span[0] AS a", "span[1] AS b", "t AS t_any"),
        f"{_when('pub mov', 't')} AS t_pub",
        f"{_when('pub mov', 'at_line')} AS o_pub",
        *("rt", f"{_when('pub', 'c')} AS c", f"{_when('pub', 'h')} AS h", "s_off"),
        f"CASE e WHEN 'pub' THEN p * {PERSISTENT} WHEN 'mov' THEN p * {PERSISTENT} + {MOVED} END"
        " AS flags",
        f"{_when('dlv', 't')} AS t_dlvn",
        f"{_when('dlv', '(dealt << 1) | r')} AS o_dlv1",
        f"{_when('dlv', 'line')} AS o_dlvn",
        f"CASE WHEN e = 'dlv' AND r = 0 THEN {line_of('dealt')} END AS o_dlv0",
        f"{_when('dlv', 'cid')} AS cid",
        f"{_when('ack', 't')} AS t_ack",
        f"(line << {CODE_BITS}) | ({end}) AS endn",
        f"{_when('req', 'line')} AS o_reqn",
        f"{_when('dlv', '1L')} AS n_dlv",
        f"{_when('req', '1L')} AS n_req",
        "CASE WHEN e = 'ack' THEN 1L WHEN e = 'dlv' AND na = 1 THEN "
        f"{1 << _COUNT_BITS}L WHEN e = 'uns' THEN {1 << 2 * _COUNT_BITS}L END AS n_ends",
        f"CASE WHEN e = 'dle' THEN {1 << _COUNT_BITS}L "
        f"WHEN e = 'drp' THEN {1 << 2 * _COUNT_BITS}L END AS n_more",
    )


def _position_runs(lines: DataFrame) -> DataFrame:
    """Where copies stand in their queue, which consumers that ask for it are told."""
    from pyspark.sql import functions as f

    def number(place: int) -> str:
        return f"CAST(regexp_extract(x, '([0-9]+)[^0-9]+([0-9]+)', {place}) AS bigint)"

    told = lines.where("e = 'dlv' AND s IS NOT NULL")
    pairs = told.selectExpr(
        *("bk", "qid", "t AS t_any"),
        "flatten(transform(i, x -> sequence(x[0], x[1]))) AS lsns",
        f"flatten(transform(s, x -> sequence({number(1)}, {number(2)}))) AS places",
    ).select("bk", "qid", "t_any", f.explode(f.arrays_zip("lsns", "places")).alias("pair"))
    return pairs.selectExpr(
        *("bk", "qid", "t_any", "pair.lsns AS a", "pair.lsns AS b"),
        "pair.places - pair.lsns AS seq_off",
    ).where("a IS NOT NULL")


def _inventory_runs(inventories: DataFrame) -> DataFrame:
    begins = ", ".join(repr(word) for word in BEGINNINGS)
    return inventories.selectExpr(
        "bk", "qid", "t", "w", "at_line", "explode(i) AS span"
    ).selectExpr(
        *("bk", "qid", "span[0] AS a", "span[1] AS b", "t AS t_any"),
        "at_line AS o_invn",
        f"CASE WHEN w IN ({begins}) THEN at_line END AS o_begin",
    )


def _confirm_runs(publishes: DataFrame, confirms: DataFrame) -> DataFrame:
    """Runs of copies that were confirmed or nacked: where ranges of both sides overlap."""
    met = matched(publishes.where("lsn IS NOT NULL"), confirms)
    return met.selectExpr(
        *("bk", "explode(to) AS qid", "x0 - s0 + lsn0 AS a", "x1 - s0 + lsn0 AS b"),
        *("t AS t_any", "t AS t_cnf", "line AS o_cnf", "wm"),
        f"CASE WHEN ok = 1 THEN {ACKED} + claimed * {CLAIMED} ELSE {NACKED} END AS flags",
        "1L AS n_more",
    )


def matched(publishes: DataFrame, confirms: DataFrame) -> DataFrame:
    """Confirms beside the part of a publish run that each is about: numbers `x0` to `x1`."""
    size = 1 << BUCKET_BITS
    runs = publishes.selectExpr(
        *("bk", "o", "c", "h", "to", "rt", "lsn[0] AS lsn0", "line AS pub_line", "t AS pub_t"),
        *("CAST(s[0] AS bigint) AS s0", "CAST(s[1] AS bigint) AS s1"),
    ).selectExpr(
        "*", f"explode(sequence(shiftright(s0, {BUCKET_BITS}), shiftright(s1, {BUCKET_BITS}))) AS k"
    )
    sides = confirms.selectExpr(
        "*", f"explode(sequence(shiftright(f0, {BUCKET_BITS}), shiftright(f1, {BUCKET_BITS}))) AS k"
    )
    return (
        runs.join(sides, ["bk", "o", "c", "h", "k"])
        .selectExpr(
            "*",
            f"greatest(s0, f0, k * {size}) AS x0",
            f"least(s1, f1, k * {size} + {size - 1}) AS x1",
        )
        .where("x0 <= x1")
    )


def confirmed_ranges(lines: DataFrame, claims: DataFrame | None) -> DataFrame:
    """`cnf` lines, one row for each range of publish numbers, `f0` to `f1`.

    Args:
        lines: the ledger's
        claims: (bk, line) of confirms whose watermark is beyond the last sync; None: there is none
    """
    from pyspark.sql import functions as f

    told = lines.where("e = 'cnf'").select("bk", "o", "c", "h", "line", "t", "wm", "ok", "i")
    if claims is not None:
        marked = claims.select("bk", "line").withColumn("claimed", f.lit(1))
        told = told.join(marked, ["bk", "line"], "left").fillna(0, ["claimed"])
    else:
        told = told.withColumn("claimed", f.lit(0))
    return told.withColumn("span", f.explode("i")).selectExpr(
        *("bk", "o", "c", "h", "line", "t", "wm", "ok", "claimed"),
        *("span[0] AS f0", "span[1] AS f1"),
    )
