"""One step of an audit: what was open before, and new lines, become copies and what is open now.

A full audit is one step from nothing; an incremental one is a step for each batch of files. All
that a step remembers is in `State`, as frames of numbers; what it finds out is in `Folded`. Must
not know where either is kept.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vouchmq.spark.audit import copies as c
from vouchmq.spark.audit import findings, unacked
from vouchmq.spark.ledger.collect import Batch, union
from vouchmq.spark.ledger.facts import LINE_BITS, Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

PUBLISH_COLUMNS: Final = ("bk", "o", "c", "h", "s", "to", "rt", "lsn", "line", "t")


@dataclass(frozen=True, slots=True)
class State:
    """What has to be remembered of the lines so far; None: nothing.

    Attributes:
        facts: of brokers and epochs
        copies: those that are not over, with `copies.COLUMNS`
        publishes: `pub` lines whose confirms may still come
        queues: what `que` lines say of each queue, and its newest whole inventory
        routes: names of routes
        consumers: of all epochs
        unacked: where each consumer stands
        last: the last first delivery of each queue
        inventories: lines of inventories of which parts are still to come
        eras: channels that confirm, and how far they have come
    """

    facts: Facts
    copies: DataFrame | None = None
    publishes: DataFrame | None = None
    queues: DataFrame | None = None
    routes: DataFrame | None = None
    consumers: DataFrame | None = None
    unacked: DataFrame | None = None
    last: DataFrame | None = None
    inventories: DataFrame | None = None
    eras: DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Folded:
    """What a step has found.

    Attributes:
        state: after it; its `copies` are all rows of this step, whether over or not
        findings: those that are no copy's own, with `findings.COLUMNS`
        hours: what consumers did, as `unacked.hours` has it, to be added up
    """

    state: State
    findings: DataFrame
    hours: DataFrame


def fold(
    state: State,
    before: Facts,
    batch: Batch,
    keep: Callable[[str, DataFrame], DataFrame],
    older: DataFrame | None = None,
    closed: Callable[[DataFrame], DataFrame] | None = None,
) -> Folded:
    """Fold new lines into what was open.

    Args:
        state: of the step before; its facts may be those of the batch already
        before: the facts before the batch
        batch: the new lines
        keep: writes a frame down and reads it back, since it is needed several times
        older: lines of earlier batches, for confirms of publishes that are not in the state
        closed: rows of copies that were over before and are told of again, by their keys
    """
    spark = batch.lines.sparkSession
    lines = batch.lines
    holes = findings.holes(spark, batch.facts)
    claims = keep("claims", findings.claims(lines, before, batch.facts))
    confirms = c.confirmed_ranges(lines, None if claims.isEmpty() else claims)
    publishes = _publishes(lines, state, confirms, older)
    whole, parts = inventories(lines, state.inventories)
    queues = keep("queues", describe_queues(lines, whole, state.queues))
    streams = queues.where("is_stream = 1").select("bk", "qid")
    reasons, has_positions = batch.facts.reasons, batch.has_positions
    only = None if streams.isEmpty() else streams
    rows = c.copies(lines, publishes, confirms, whole, reasons, only, has_positions=has_positions)
    rows, known = _merge_open(rows, state, keep, closed)
    consumers = keep("consumers", unacked.describe_consumers(lines, state.consumers))
    told = unacked.timeline(lines, rows, known, queues, state.unacked)
    moves = keep("moves", told)
    fresh = rows.where(_is_new(batch.facts, before, c.line_of("o_dlv1", c.PLACE_BITS + 1)))
    found = [
        findings.overtakings(fresh, queues, state.last),
        findings.unknown_consumers(lines, consumers, holes),
        *_of_nowhere(lines, publishes, confirms, state.routes, older, holes),
        unacked.over_prefetch(moves, holes),
    ]
    after = replace(
        state,
        facts=batch.facts,
        copies=rows,
        publishes=publishes,
        queues=queues,
        routes=describe_routes(lines, state.routes),
        consumers=consumers,
        unacked=unacked.standing(moves),
        last=_last_deliveries(fresh, queues, state.last),
        inventories=parts,
        eras=findings.eras(lines, state.eras),
    )
    return Folded(after, keep("findings", _together(found)), unacked.hours(moves))


def _with_older(confirms: DataFrame, older: DataFrame | None) -> DataFrame:
    return confirms if older is None else confirms.unionByName(c.confirmed_ranges(older, None))


def _together(found: Sequence[DataFrame]) -> DataFrame:
    return union(each.select(*findings.COLUMNS) for each in found)


def _of_nowhere(
    lines: DataFrame,
    publishes: DataFrame,
    confirms: DataFrame,
    routes: DataFrame | None,
    older: DataFrame | None,
    holes: DataFrame,
) -> tuple[DataFrame, DataFrame]:
    """Findings of publishes that went to no queue, and so have no copy."""
    nowhere = publishes.where("size(to) = 0")
    # Who was confirmed before may have been so in an earlier step.
    every = confirms if older is None or nowhere.isEmpty() else _with_older(confirms, older)
    mandatory = _mandatory(nowhere, lines, routes)
    return (
        findings.owed_returns(mandatory, _returned(lines, older), confirms, holes),
        findings.twice_confirmed_nowhere(nowhere, every),
    )


def facts_before(facts: Facts) -> Facts:
    """A copy of the facts, to be kept while a batch changes them."""
    return copy.deepcopy(facts)


def _publishes(
    lines: DataFrame, state: State, confirms: DataFrame, older: DataFrame | None
) -> DataFrame:
    """`pub` lines that these confirms can be about: new ones, open ones, old ones if need be."""
    fresh = lines.where("e = 'pub'").select(*PUBLISH_COLUMNS)
    if state.publishes is None:
        return fresh
    near = fresh.unionByName(state.publishes.select(*PUBLISH_COLUMNS))
    said = confirms.selectExpr("coalesce(sum(f1 - f0 + 1), 0) AS count").collect()[0]["count"]
    met = c.matched(near, confirms)
    found = met.selectExpr("coalesce(sum(x1 - x0 + 1), 0) AS count").collect()[0]["count"]
    if found >= said or older is None:
        return near
    return fresh.unionByName(older.where("e = 'pub'").select(*PUBLISH_COLUMNS))


def _merge_open(
    rows: DataFrame,
    state: State,
    keep: Callable[[str, DataFrame], DataFrame],
    closed: Callable[[DataFrame], DataFrame] | None,
) -> tuple[DataFrame, DataFrame | None]:
    """New rows and open ones; also those of copies that had seemed to be over.

    Returns:
        one row of each copy, and the rows of before that are in them; None: there was nothing
    """
    if state.copies is None:
        return keep("rows", rows.select(*c.COLUMNS)), None
    told = keep("rows_new", rows.select(*c.COLUMNS))
    known = state.copies.select(*c.COLUMNS)
    if closed is not None:
        strange = told.where("o_pub IS NULL").select(*c.KEY)
        strange = keep("strange", strange.join(state.copies.select(*c.KEY), [*c.KEY], "left_anti"))
        if not strange.isEmpty():
            known = known.unionByName(closed(strange).select(*c.COLUMNS))
    return keep("rows", c.merge(told.unionByName(known))), known


def _is_new(facts: Facts, before: Facts, line: str) -> str:
    """SQL: whether a line is behind all that were known of its broker."""
    cases = []
    for name, code in facts.codes().items():
        known = before.brokers.get(name)
        if known is not None and known.epochs:
            number, epoch = known.ordered()[-1]
            cases.append(f"WHEN {code} THEN {line} > {number << LINE_BITS | epoch.last_n}L")
    return f"CASE bk {' '.join(cases)} ELSE {line} IS NOT NULL END" if cases else f"{line} >= 0"


def inventories(lines: DataFrame, held: DataFrame | None) -> tuple[DataFrame, DataFrame]:
    """Lines of inventories: of those that are whole, and of those that are not yet."""
    told = lines.where("e = 'inv'").selectExpr(
        *("bk", "o", "qid", "t", "w", "i", "part", "parts"),
        f"((line - n) | coalesce(at, n)) << {c.PLACE_BITS} AS at_line",
    )
    if held is not None:
        told = told.unionByName(held)
    key = ["bk", "qid", "at_line"]
    counted = told.groupBy(*key).agg(*_counts())
    whole = counted.where("there = due").select(*key)
    return told.join(whole, key, "left_semi"), told.join(whole, key, "left_anti")


def _counts() -> list[Column]:
    from pyspark.sql import functions as f

    return [f.expr("count(DISTINCT part) AS there"), f.expr("max(parts) AS due")]


def describe_queues(
    lines: DataFrame, inventories: DataFrame, before: DataFrame | None
) -> DataFrame:
    """A row for each queue, with `verdicts.QUEUE_COLUMNS`."""
    from pyspark.sql import functions as f

    told = lines.where("e = 'que'").selectExpr(
        *("bk", "qid", "v", "k AS queue", "int(ty = 'stream') AS is_stream", "d", "pri"),
        "CAST(NULL AS bigint) AS newest",
    )
    seen = inventories.selectExpr("bk", "qid", f"{c.line_of('at_line')} AS newest")
    every = told.unionByName(seen, allowMissingColumns=True)
    if before is not None:
        every = every.unionByName(before)
    ways = {"v": "max", "queue": "max", "is_stream": "max", "d": "min", "pri": "max"}
    made = [f.expr(f"{way}({name}) AS {name}") for name, way in {**ways, "newest": "max"}.items()]
    return every.groupBy("bk", "qid").agg(*made)


def describe_routes(lines: DataFrame, before: DataFrame | None) -> DataFrame:
    """(bk, o, rt, name, m) of routes: `exchange:key`, and 1 for mandatory."""
    told = lines.where("e = 'rte'").selectExpr(
        "bk", "o", "id AS rt", "concat(x, ':', k) AS name", "CAST(m AS int) AS m"
    )
    return told if before is None else told.unionByName(before)


def _mandatory(publishes: DataFrame, lines: DataFrame, routes: DataFrame | None) -> DataFrame:
    wanted = describe_routes(lines, routes).where("m = 1").select("bk", "o", "rt").distinct()
    refused = lines.where("e = 'pub' AND rj = 1").select("bk", "line")
    return publishes.join(wanted, ["bk", "o", "rt"], "left_semi").join(
        refused, ["bk", "line"], "left_anti"
    )


def _returned(lines: DataFrame, older: DataFrame | None) -> DataFrame:
    def numbers(told: DataFrame) -> DataFrame:
        return (
            told.where("e = 'ret'")
            .selectExpr("bk", "o", "c", "h", "explode(i) AS span")
            .selectExpr("bk", "o", "c", "h", "explode(sequence(span[0], span[1])) AS number")
        )

    fresh = numbers(lines)
    return fresh if older is None else fresh.unionByName(numbers(older))


def _last_deliveries(fresh: DataFrame, queues: DataFrame, before: DataFrame | None) -> DataFrame:
    """(bk, qid, place, lsn): the highest LSN in the last batch of each queue."""
    from pyspark.sql import functions as f

    told = findings.first_deliveries(fresh, queues).select("bk", "qid", "place", "lsn")
    if before is not None:
        told = told.unionByName(before)
    lined = told.withColumn("place", f.expr(f"place | {c.DEALT}"))
    return lined.groupBy("bk", "qid").agg(
        f.max("place").alias("place"), f.expr("max_by(lsn, struct(place, lsn)) AS lsn")
    )
