"""Spark's view of lines becomes `Facts`: which numbers are there, who began and ended an epoch.

Also the lines themselves, each once, with the broker as a number. A line is its broker, epoch and
number: the same one found again, in whichever file, counts once. Of two that differ the one in the
file that is rather believed counts; `contradictions.py` tells of the other. Must not know messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from vouchmq.spark.ledger import events, seals
from vouchmq.spark.ledger.contradictions import credit
from vouchmq.spark.ledger.facts import LINE_BITS, Broker, Epoch, Facts, merged
from vouchmq.spark.ledger.lines import LedgerError, sql_text
from vouchmq.spark.ledger.shared_log import Joined, Place, join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONTROL: Final = ("boot", "end", "gap")
_BOOT_KEYS: Final = ("w", "wm", "msg", "prev_o", "prev_n", "prev_lsn", "dark")
_LINE: Final = f"(o << {LINE_BITS}) | n AS line"


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines that are new, and what they changed.

    Attributes:
        lines: with `bk` and `line`; each line once, none that was known before
        facts: of all lines up to these
        is_late: some lines belong before ones that were known already
        has_positions: some deliveries tell where copies stand in their queue
    """

    lines: DataFrame
    facts: Facts
    is_late: bool
    has_positions: bool


def file_of(url: str) -> str:
    """The path of a file as Spark names it."""
    return unquote(urlsplit(url).path)


def gather(bronze: DataFrame, facts: Facts) -> Batch:
    """What lines, as `lines.read` made them, add to the facts, which are changed.

    Args:
        bronze: the lines, written down already: they are read several times
        facts: of earlier batches

    Raises:
        LedgerError: nothing is left that is of a known format
    """
    files = _per_file(bronze)
    foreign = [
        file for file in files if not _is_own(file) or [file["b"], file["o"]] in facts.unread
    ]
    files = [file for file in files if _is_own(file) and [file["b"], file["o"]] not in facts.unread]
    known = {
        (name, number): [list(span) for span in epoch.spans]
        for _, name, number, epoch in facts.epochs()
    }
    spans: dict[Place, list[list[int]]] = defaultdict(list)
    odd: set[Place] = set()
    for file in files:
        place = (file["b"], file["o"])
        first, last, count = file["first_n"], file["last_n"], file["count"]
        is_dense = count == last - first + 1 and file["sum_n"] * 2 == (first + last) * count
        others = (*spans[place], *known.get(place, ()))
        if not is_dense or any(a <= last and b >= first for a, b in others):
            odd.add(place)
        spans[place].append([first, last])
    for name in sorted({file["b"] for file in files}):
        facts.brokers.setdefault(name, Broker())
    lines = bronze.where("NOT broken")
    if foreign:
        # Seals tell of them; they are no evidence of what they claim to be of.
        lines = lines.where(f"NOT ({_any_of(map(_in_file, foreign))})")
    if odd:
        lines = _sort_out(lines, odd, known, spans)
    is_late = _is_late(known, spans)
    _take_over(facts, files, spans)
    codes = " ".join(f"WHEN {sql_text(name)} THEN {code}" for name, code in facts.codes().items())
    told = lines.selectExpr("*", f"CASE b {codes} END AS bk" if codes else "0 AS bk", _LINE)
    unknown = _read_controls(facts, told)
    if unknown:
        told = told.where(f"NOT ({_unread(facts, unknown, files)})")
    return Batch(told, facts, is_late, any(file["positions"] for file in files))


def of_one_log(batch: Batch, keep: Callable[[str, DataFrame], DataFrame]) -> tuple[Batch, Joined]:
    """The lines of brokers that share a log as those of one broker.

    Args:
        batch: of all of them, from the beginning
        keep: writes a frame down, which is read several times

    Raises:
        LedgerError: they are not of one log
    """
    from pyspark.sql import functions as f

    joined = join(batch.facts)
    numbers = [(*place, number) for place, number in joined.numbers.items()]
    made = batch.lines.sparkSession.createDataFrame(numbers, "b string, o bigint, number bigint")
    told = (
        batch.lines.drop("bk", "line")
        .join(f.broadcast(made), ["b", "o"])
        .withColumns({"b": f.lit(joined.name), "o": f.col("number")})
        .selectExpr(*batch.lines.drop("bk", "line").columns, "0 AS bk", _LINE)
    )
    return replace(batch, lines=keep("joined", told), facts=joined.facts), joined


def _per_file(bronze: DataFrame) -> list[Any]:
    return (
        bronze.where("NOT broken")
        .groupBy("f", "b", "o")
        .agg(*_expressions())
        .orderBy("b", "o", "first_n")
        .collect()
    )


def _expressions() -> list[Any]:
    from pyspark.sql import functions as f

    told = (
        *("count(1) AS count", "min(n) AS first_n", "max(n) AS last_n", "sum(n) AS sum_n"),
        *("min(t) AS first_t", "max(t) AS last_t"),
        "max(CASE WHEN e = 'syn' THEN wm END) AS synced_lsn",
        "min(CASE WHEN e IN ('pub', 'mov') THEN lsn[0] END) AS lowest_lsn",
        "max(CASE WHEN e IN ('pub', 'mov') THEN lsn[1] END) AS highest_lsn",
        "coalesce(max(e = 'dlv' AND s IS NOT NULL), false) AS positions",
    )
    return [f.expr(each) for each in told]


def _sort_out(
    lines: DataFrame,
    odd: set[Place],
    known: dict[Place, list[list[int]]],
    spans: dict[Place, list[list[int]]],
) -> DataFrame:
    """Lines without those that were there before; `spans` become what is really there."""
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    is_odd = _any_of(f"b = {sql_text(name)} AND o = {number}" for name, number in sorted(odd))
    told = lines.where(is_odd)
    seen = _any_of(
        f"b = {sql_text(name)} AND o = {number} AND n BETWEEN {first} AND {last}"
        for name, number in sorted(odd)
        for first, last in known.get((name, number), ())
    )
    # What was read before has been judged already.
    fresh = _believed(told.where(f"NOT ({seen})"))
    rank = f.row_number().over(Window.partitionBy("b", "o").orderBy("n"))
    stretches = (
        fresh.select("b", "o", "n", (f.col("n") - rank).alias("stretch"))
        .groupBy("b", "o", "stretch")
        .agg(f.min("n").alias("first"), f.max("n").alias("last"))
    )
    for place in odd:
        spans[place] = []
    for row in stretches.collect():
        spans[row["b"], row["o"]].append([row["first"], row["last"]])
    return lines.where(f"NOT ({is_odd})").unionByName(fresh)


def _any_of(conditions: Iterable[str]) -> str:
    return " OR ".join(f"({each})" for each in conditions) or "false"


def _is_own(file: Any) -> bool:
    """Whether lines are of the broker whose file it is, by its name."""
    named = events.FILE_NAME.fullmatch(Path(file_of(file["f"])).name)
    return named is None or events.is_of(named, file["b"])


def _in_file(file: Any) -> str:
    return f"f = {sql_text(file['f'])} AND b = {sql_text(file['b'])} AND o = {file['o']}"


def _believed(lines: DataFrame) -> DataFrame:
    """Each line once; of those that differ the one in the file that is rather believed."""
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    content = [f.to_json(key.name) if "array" in key.ddl else key.name for key in events.KEYS]
    hashed = lines.withColumn("hash", f.xxhash64(*content))
    by_line = Window.partitionBy("b", "o", "n")
    differing = (
        hashed.groupBy("b", "o", "n")
        .agg(
            f.min("hash").alias("low"), f.max("hash").alias("high"), f.collect_set("f").alias("fs")
        )
        .where("low != high")
        .select(f.explode("fs").alias("f"))
        .distinct()
        .orderBy("f")
        .collect()
    )
    if not differing:
        return lines.dropDuplicates(["b", "o", "n"])
    ordered = sorted((row["f"] for row in differing), key=_credit)
    cases = " ".join(f"WHEN {sql_text(url)} THEN {rank}" for rank, url in enumerate(ordered))
    rank = f.expr(f"CASE f {cases} ELSE {len(ordered)} END")
    nth = f.row_number().over(by_line.orderBy(rank, "f", "hash"))
    return hashed.withColumn("nth", nth).where("nth = 1").drop("nth", "hash")


def _credit(url: str) -> tuple[bool, bool, str]:
    path = Path(file_of(url))
    try:
        return credit(seals.look(path))
    except FileNotFoundError:
        return True, True, str(path)


def _is_late(known: dict[Place, list[list[int]]], spans: dict[Place, list[list[int]]]) -> bool:
    newest: dict[str, tuple[int, int]] = {}
    for (name, number), there in known.items():
        if there:
            newest[name] = max(newest.get(name, (-1, -1)), (number, there[-1][1]))
    return any(
        (number, first) < newest.get(name, (-1, -1))
        for (name, number), there in spans.items()
        for first, _ in there
    )


def _take_over(facts: Facts, files: list[Any], spans: dict[Place, list[list[int]]]) -> None:
    for file in files:
        number = events.file_number(file_of(file["f"]))
        epoch = facts.brokers[file["b"]].epochs.setdefault(file["o"], Epoch(first_file=number))
        epoch.first_file = min(epoch.first_file, number)
        epoch.lowest_lsn = min(_given(epoch.lowest_lsn, file["lowest_lsn"]), default=None)
        epoch.highest_lsn = max(epoch.highest_lsn, file["highest_lsn"] or 0)
        epoch.first_t = min(_given(epoch.first_t, file["first_t"]))
        epoch.last_t = max(_given(epoch.last_t, file["last_t"]))
        epoch.synced_lsn = max(epoch.synced_lsn, file["synced_lsn"] or 0)
    for (name, number), there in spans.items():
        epoch = facts.brokers[name].epochs[number]
        epoch.spans = merged([*epoch.spans, *there])


def _given(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]


def _read_controls(facts: Facts, lines: DataFrame) -> dict[Place, int]:
    """Beginnings, ends and gaps; returns the formats of epochs that have an unknown one."""
    unknown: dict[Place, int] = {}
    names = list(facts.brokers)
    kinds = ", ".join(map(repr, CONTROL))
    for row in lines.where(f"e IN ({kinds})").orderBy("bk", "line").collect():
        epoch = facts.brokers[names[row["bk"]]].epochs[row["o"]]
        if row["e"] == "gap":
            epoch.gaps.append([row["n"], row["lost"]])
        elif row["e"] == "end":
            epoch.end = row["w"]
        else:
            if row["fmt"] != events.FORMAT:
                unknown[row["b"], row["o"]] = row["fmt"]
            epoch.boot = {key: row[key] for key in _BOOT_KEYS}
    for row in lines.where("e IN ('dle', 'drp')").select("w").distinct().orderBy("w").collect():
        facts.reason_code(row["w"])
    return unknown


def _unread(facts: Facts, unknown: dict[Place, int], files: list[Any]) -> str:
    """Take epochs of an unknown format for lines that cannot be read; a condition for theirs.

    Raises:
        LedgerError: there are no others
    """
    for (name, number), form in sorted(unknown.items()):
        why = (
            f"broker {name}, epoch {number}: format {form} of the ledger is not known here "
            f"(only {events.FORMAT})"
        )
        facts.brokers[name].epochs.pop(number)
        facts.broken.append(why)
        facts.broken_count += sum(
            file["count"] for file in files if (file["b"], file["o"]) == (name, number)
        )
        facts.unread.append([name, number])
        if not any(broker.epochs for broker in facts.brokers.values()):
            raise LedgerError(why)
    return _any_of(f"b = {sql_text(name)} AND o = {number}" for name, number in facts.unread)


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """Frames with the same columns under each other."""
    return reduce(lambda left, right: left.unionByName(right), frames)
