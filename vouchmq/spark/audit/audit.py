"""A full audit: ledger files in, tables, verdicts and what is worst out.

    files ──▶ lines ──▶ facts, copies, findings ──▶ tables ──▶ summary

Puts the other modules together; the order of things is here, their meaning there. Works in any
session, also one that `spark-submit` has made.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vouchmq.spark.audit import findings, line_tables, summary_text, tables, verdicts
from vouchmq.spark.audit.result import Job, Result
from vouchmq.spark.audit.step import Folded, State, facts_before, fold
from vouchmq.spark.ledger import judging, lines, seals
from vouchmq.spark.ledger.collect import Batch, file_of, gather, of_one_log
from vouchmq.spark.ledger.facts import Broker, Facts
from vouchmq.spark.ledger.lines import LedgerError
from vouchmq.spark.ledger.seals import Look, Seals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_BYTES: Final = 4 * 1024 * 1024
PARTITIONS: Final = 64
"""Of a shuffle, before Spark puts small ones together: each has to fit in the heap of a task."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the tables are made of, over all batches."""

    rows: DataFrame
    findings: DataFrame
    hours: DataFrame
    rates: DataFrame
    dead_letters: DataFrame


class TableCache:
    """Where frames are written down, to be read several times."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory

    def keep(self, name: str, frame: DataFrame) -> DataFrame:
        """Write a frame down; the same frame, read from there."""
        path = str(self._directory / name)
        frame.write.mode("overwrite").parquet(path)
        return self._spark.read.schema(frame.schema).parquet(path)


@contextmanager
def apart(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of our own: settings of queries are changed, not in the caller's."""
    try:
        yield spark.newSession()
    finally:
        # A new session becomes the active one, in which Spark looks formats up; this brings the
        # caller's back.
        spark.createDataFrame([], "nothing int")


def run(spark: SparkSession, job: Job) -> Result:
    """Audit everything that is there, from the beginning.

    Raises:
        LedgerError: the input cannot be judged
    """
    with apart(spark) as own:
        return _run(own, job)


def _run(spark: SparkSession, job: Job) -> Result:
    began = time.monotonic()
    found = lines.find(job.paths)
    tune(spark, sum(path.stat().st_size for path in (*found.closed, *found.open)))
    shutil.rmtree(job.internal, ignore_errors=True)
    cache = TableCache(spark, job.internal / "full")
    staged, torn = lines.stage_open(found.open, job.internal / "open")
    facts = Facts(torn=torn)
    with ThreadPoolExecutor(1) as beside:
        # While the JVM reads the same files.
        looking = beside.submit(look, [*found.closed, *staged])
        bronze = write_lines(spark, [*found.closed, *staged], cache)
        looks = looking.result()
    note_broken(bronze, facts)
    before = facts_before(facts)
    batch = gather(bronze, facts)
    if not any(broker.epochs for broker in facts.brokers.values()):
        raise LedgerError(f"{', '.join(job.paths)}: no line of a ledger can be read")
    found_seals = judge(looks, facts)
    joined = None
    if job.is_shared:
        batch, joined = of_one_log(batch, cache.keep)
        found_seals = joined.renamed(found_seals)
    folded = fold(State(batch.facts), before, batch, cache.keep)
    parts = parts_of(folded, batch, cache)
    written = write_tables(spark, job, folded.state, parts, found_seals, cache)
    result = finish(spark, job, batch.facts, found_seals, batch.lines, parts.rows, written, began)
    return replace(result, joined=joined)


def look(files: Sequence[Path]) -> list[Look]:
    """What seals and clocks of files say; one that was removed by its age since says nothing."""
    found = []
    for path in files:
        with suppress(FileNotFoundError):
            found.append(seals.look(path))
    return found


def judge(looks: Sequence[Look], facts: Facts) -> Seals:
    """What seals, clocks and files of all brokers say together.

    A broker of whose lines none can be read gets a place in the facts: it has findings.
    """
    ended = {(name, o): facts.brokers[name].ended(o) for _, name, o, _ in facts.epochs()}
    found = judging.judge(looks, ended, list(facts.overlaps()))
    for fault in found.faults:
        facts.brokers.setdefault(fault.broker, Broker())
    return found


def tune(spark: SparkSession, size_bytes: int) -> None:
    """Settings of queries that the audit needs; they may be changed in a running session."""
    is_small = size_bytes < SMALL_BYTES
    for name, value in {
        "spark.sql.session.timeZone": "UTC",
        # A place that an array does not have is nothing, and no error.
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.sources.partitionOverwriteMode": "static",
        "spark.sql.files.maxPartitionBytes": "32m",
        # Many small files are the rule here: rotated by time, a set of them for each broker.
        "spark.sql.files.openCostInBytes": "65536",
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "32m",
        # Planning again and compiling cost seconds each, and pay from some megabytes on.
        "spark.sql.adaptive.enabled": str(not is_small).lower(),
        "spark.sql.codegen.wholeStage": str(not is_small).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if is_small else "FALLBACK",
        "spark.sql.shuffle.partitions": "1" if is_small else str(PARTITIONS),
    }.items():
        spark.conf.set(name, value)


def write_lines(spark: SparkSession, files: Sequence[Path], cache: TableCache) -> DataFrame:
    """Read ledger files and write their lines down."""
    return cache.keep("lines", lines.read(spark, files))


def note_broken(bronze: DataFrame, facts: Facts) -> None:
    """Count and name the lines that cannot be read."""
    rows = bronze.groupBy("f").agg({"broken": "count_if"}).orderBy("f").collect()
    found: list[Path] = []
    for file, count in rows:
        path = Path(file_of(file))
        broken = lines.count_broken(path) if lines.may_have_arrays(path) else count
        if broken:
            found.append(path)
        facts.broken_count += broken
    facts.broken += lines.name_broken(found)


def parts_of(folded: Folded, batch: Batch, cache: TableCache) -> Parts:
    """What a step adds to the tables."""
    rows = folded.state.copies
    if rows is None:
        raise TypeError("a step without rows")
    return Parts(
        rows,
        folded.findings,
        cache.keep("hours", folded.hours),
        cache.keep("rates", line_tables.rate_parts(batch.lines)),
        cache.keep("dead_letters", line_tables.dead_letter_parts(batch.lines)),
    )


def write_tables(
    spark: SparkSession, job: Job, state: State, parts: Parts, found: Seals, cache: TableCache
) -> dict[str, DataFrame]:
    """Write all tables; returns those that the summary wants."""
    facts, scope = state.facts, job.scope
    queues, routes, consumers, standing = state.queues, state.routes, state.consumers, state.unacked
    if queues is None or routes is None or consumers is None or standing is None:
        raise TypeError("a state without its frames")
    if state.eras is None:
        raise TypeError("a state without its eras")
    judged = cache.keep("judged", verdicts.judge(parts.rows, queues, facts))
    named = tables.named(judged, routes, facts)
    within = tables.Scope(None, None, scope.vhost, scope.queue).condition()
    time_of = "unix_micros(coalesce(t_pub, CAST(day AS timestamp)))"
    named = named.where(within).where(
        tables.Scope(scope.since_us, scope.until_us).condition(time_of)
    )
    written = {"copies": _write_copies(spark, job, named)}
    copies = written["copies"]
    seen = parts.rows.where("seq_off IS NOT NULL")
    every = (
        parts.findings.unionByName(tables.findings_of_copies(judged))
        .unionByName(findings.unanswered(judged, state.eras, facts))
        .unionByName(findings.of_ledger(spark, found, facts))
    )
    ages = cache.keep(
        "ages", line_tables.ages(parts.rows).unionByName(line_tables.waiting(parts.rows, facts))
    )
    hours = parts.hours.unionByName(
        line_tables.tails(standing, consumers, facts), allowMissingColumns=True
    )
    bins = cache.keep("bins", tables.bins(copies))
    written["overall"] = tables.latency(bins, "kind")
    for name, frame in {
        "findings": tables.findings_table(every, queues, seen, facts, scope),
        "completeness": tables.completeness(spark, facts),
        "states": tables.states(copies),
        "latency": tables.latency(bins, "hour", "b", "v", "queue", "kind"),
        "heat": tables.heat(copies, line_tables.width_of(facts)),
        "poison": tables.poison(copies, job.poison_deliveries),
        "rates": line_tables.rates(parts.rates, facts, scope),
        "dead_letters": line_tables.dead_letters(parts.dead_letters, queues, facts, scope),
        "consumers": line_tables.consumers(hours, ages, consumers, queues, facts, scope),
    }.items():
        tables.write(frame, job.out / name)
        written[name] = spark.read.schema(frame.schema).parquet(str(job.out / name))
    return written


def _write_copies(spark: SparkSession, job: Job, named: DataFrame) -> DataFrame:
    partitions = ["day", "v"]
    if job.by_queue:
        count = named.select("queue").distinct().limit(tables.MOST_QUEUES + 1).count()
        if count > tables.MOST_QUEUES:
            raise LedgerError(
                f"--partition-by-queue is for at most {tables.MOST_QUEUES} queues: "
                "thousands of them make thousands of tiny files a day; --queue chooses some"
            )
        partitions.append("queue")
    told = named.sortWithinPartitions("day", "v", "b", "queue", "lsn")
    tables.write(told, job.out / "copies", *partitions, files=None)
    return spark.read.schema(named.schema).parquet(str(job.out / "copies"))


def finish(
    spark: SparkSession,
    job: Job,
    facts: Facts,
    found_seals: Seals,
    told: DataFrame,
    rows: DataFrame,
    written: dict[str, DataFrame],
    began: float,
) -> Result:
    """Count what the tables hold, and follow the worst of each kind through the lines."""
    states = {row["state"]: row["sum(count)"] for row in _sums(written["states"], "state")}
    found = written["findings"]
    counted = found.groupBy("kind").agg({"*": "count", "rank": "min"}).collect()
    kinds = {row["kind"]: row["count(1)"] for row in counted}
    ranks = ", ".join(str(row["min(rank)"]) for row in counted)
    # One of each: the next ones say the same.
    worst = found.where(f"rank IN ({ranks})").orderBy("rank").collect() if kinds else []
    lives = summary_text.lives(told, rows, worst, facts)
    tables.write(summary_text.lives_table(spark, lives), job.out / "lives")
    return Result(
        job,
        facts,
        found_seals,
        {state: states[state] for state in verdicts.STATES if states.get(state)},
        {kind: kinds[kind] for kind in verdicts.FINDINGS if kinds.get(kind)},
        worst,
        lives,
        written["overall"].collect(),
        time.monotonic() - began,
    )


def _sums(frame: DataFrame, column: str) -> list[Any]:
    return frame.groupBy(column).sum("count").collect()


def write_summary(result: Result, fail_on: Sequence[str]) -> None:
    """Write `summary.json` beside the tables: what the lines of the command say, for programs."""
    job, facts = result.job, result.facts
    times = facts.times()
    write_json(
        job.out / "summary.json",
        {
            "paths": list(job.paths),
            "verdict": summary_text.verdict(result, fail_on),
            "exit": result.exit_code(fail_on),
            "finished_us": time.time_ns() // 1000,
            "first_us": min(times, default=None),
            "last_us": max(times, default=None),
            "brokers": {
                name: {"o": number, "n": broker.epochs[number].last_n}
                for name, broker in facts.brokers.items()
                if (number := max(broker.epochs, default=None)) is not None
            },
            "events": sum(epoch.events for *_, epoch in facts.epochs()),
            "copies": result.copies,
            "states": result.states,
            "findings": result.findings,
            "missing": facts.missing(),
            "gaps": facts.lost(),
            "unseen": facts.unseen(),
            "broken": facts.broken_count,
            "torn": facts.torn,
            "sealed": result.seals.sealed,
            "unsealed": result.seals.unsealed,
            "seals": {
                head.broker: {"o": head.epoch, "n": head.n, "seal": head.seal}
                for head in result.seals.heads
            },
            "joined": [
                {"o": number, "of": {"b": name, "o": own}}
                for (name, own), number in (result.joined.numbers if result.joined else {}).items()
            ],
            "since": job.scope.since_us,
            "until": job.scope.until_us,
            "vhost": job.scope.vhost,
            "queue": job.scope.queue,
            "fail_on": list(fail_on),
            "took_s": round(result.took_s, 1),
        },
    )


def note_exit(out: Path, code: int) -> None:
    """Have `summary.json` say the exit code of the command, where witnesses were judged as well."""
    path = out / "summary.json"
    write_json(path, {**json.loads(path.read_text(encoding="utf-8")), "exit": code})


def write_json(path: Path, data: Any) -> None:
    """Write plain data, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")
    draft.replace(path)
