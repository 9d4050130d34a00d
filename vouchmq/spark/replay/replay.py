"""Table of Parquet files → exchange: a thin command over Spark's reader and the sink.

    files by the sink's log ──▶ units, slices ──▶ where, sort, edit ──▶ sink, confirmed ──▶ resume

A slice is one job, and done when the broker has confirmed all of it; then that is written down. So
a run that was killed repeats a slice at most, with the same ids: at least once, and each message
once in a queue or exchange that drops duplicates by their ids.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from vouchmq.spark.archive.files import Files, FilesError
from vouchmq.spark.command_line import Line, Stop, UsageError, counted, reason_of, shown
from vouchmq.spark.replay.edit import Edit, real_time
from vouchmq.spark.replay.slices import Place, Resume, ResumeError, Slice, Unit, slices_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NEEDED: Final = ("queue", "offset", "exchange", "routing_key", "body", "properties_raw")
RESUME: Final = "replay.json"

SLICE_ROWS: Final = 50_000
# With a rate: so many seconds' worth, which is what a killed run may repeat.
_SLICE_S: Final = 10.0
_LEAST_ROWS: Final = 100
# Batches between Spark and its Python workers, so that a rate is kept within a second too.
_BATCHES_A_SECOND: Final = 10
MAX_BATCH_ROWS: Final = 10_000
# One task can publish about so many a second.
_RATE_OF_A_TASK: Final = 5_000


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """What to replay, and how.

    Attributes:
        exchange: instead of each message's own
        routing_key: instead of each message's own
        rate: messages a second at most
        in_order: per original queue, by offset
        checkpoint: where it is written down how far it has come; None: nowhere
    """

    source: Path
    url: str = field(repr=False)
    edit: Edit
    exchange: str | None = None
    routing_key: str | None = None
    where: str | None = None
    rate: int | None = None
    in_order: bool = False
    checkpoint: Path | None = None
    cores: int = 2
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def task(self) -> dict[str, Any]:
        """What makes this replay another one than others."""
        return {
            "from": str(self.source),
            "exchange": self.exchange,
            "routing key": self.routing_key,
            "where": self.where,
            "order": self.in_order,
        }

    @property
    def slice_rows(self) -> int:
        """Rows of a slice and of a unit."""
        if self.rate is None:
            return SLICE_ROWS
        return min(SLICE_ROWS, max(_LEAST_ROWS, int(self.rate * _SLICE_S)))

    @property
    def tasks(self) -> int:
        """How many tasks a slice may have at a time."""
        if self.rate is None:
            return self.cores
        return min(self.cores, 1 + self.rate // _RATE_OF_A_TASK)

    @property
    def session(self) -> dict[str, str]:
        """The settings that the Spark session needs."""
        rows = MAX_BATCH_ROWS
        if self.rate is not None:
            rows = max(1, min(rows, self.rate // self.tasks // _BATCHES_A_SECOND))
        return {
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(rows),
            "spark.sql.shuffle.partitions": str(self.cores),
            # It would put the partitions of a sorted slice together again.
            "spark.sql.adaptive.coalescePartitions.enabled": "false",
        }

    @property
    def sink(self) -> dict[str, str]:
        """The options of the sink; what is given as such wins."""
        own = {"url": self.url, "messageId": "none"}
        if self.in_order:
            # One that is published again later would come after those behind it.
            own["onNack"] = "fail"
        lower = {name.lower() for name in self.options}
        return {**{k: v for k, v in own.items() if k.lower() not in lower}, **self.options}


class Archive:
    """The rows of an archive that are to be replayed.

    Args:
        spark: the session
        plan: what to replay
        chunk_rows: rows of a unit
    """

    def __init__(self, spark: SparkSession, plan: ReplayPlan, chunk_rows: int) -> None:
        """Raises UsageError when there is no archive, or `where` does not fit it."""
        self._spark = spark
        self._plan = plan
        self._chunk_rows = chunk_rows
        self._files = Files(plan.source)
        self._chunked: set[str] = set()
        try:
            whole = spark.read.parquet(self._files.pattern)
        except (PySparkException, Py4JJavaError) as error:
            raise UsageError(f"--from: {plan.source}: {reason_of(error)}") from None
        missing = [name for name in NEEDED if name not in whole.columns]
        if missing:
            raise UsageError(f"--from: {plan.source} has no column {', '.join(missing)}")
        self._has_ids = "queue_id" in whole.columns
        self._whole = self._selected(whole)

    def _selected(self, rows: DataFrame) -> DataFrame:
        if self._plan.where is None:
            return rows
        try:
            return rows.where(self._plan.where)
        except PySparkException as error:
            raise UsageError(f"--where: {reason_of(error)}") from None

    def units(self) -> list[Unit]:
        """All units, in the order in which their files were written.

        Raises:
            FilesError: files cannot be told from each other
        """
        from pyspark.sql import functions as f

        chunk = f.floor(f.col("_metadata.row_index") / self._chunk_rows).cast("int").alias("chunk")
        place = ["queue", "queue_id"] if self._has_ids else ["queue"]
        counted_rows = (
            self._whole.select("_metadata.file_path", chunk, *place, "offset")
            .groupBy("file_path", "chunk", *place)
            .agg(
                f.count("*").alias("rows"),
                f.min("offset").alias("first"),
                f.max("offset").alias("last"),
            )
            .collect()
        )
        found: dict[tuple[str, int], tuple[int, list[Place]]] = {}
        for row in counted_rows:
            name = self._files.name_of(row.file_path)
            rows, places = found.get((name, row.chunk), (0, []))
            queue_id = row.queue_id if self._has_ids else None
            place_of = Place(row.queue, queue_id, row.first, row.last)
            found[name, row.chunk] = (rows + row.rows, [*places, place_of])
        self._chunked = {name for name, number in found if number}
        ranks = {name: rank for rank, name in enumerate(self._files.in_order())}
        order = sorted(found, key=lambda key: (ranks.get(key[0], -1), key))
        return [Unit(*key, found[key][0], tuple(found[key][1])) for key in order]

    def rows(self, part: Slice) -> DataFrame:
        """The rows of a slice, ready to be published."""
        from pyspark.sql import functions as f

        paths = self._files.patterns(part.files)
        read = self._spark.read.option("basePath", str(self._plan.source))
        rows = self._selected(read.schema(self._whole.schema).parquet(*paths))
        only = self._only(part)
        if only is not None:
            rows = rows.where(only)
        tasks = self._plan.tasks
        rows = self._sorted(rows, part) if self._plan.in_order else rows.coalesce(tasks)
        given = {"exchange": self._plan.exchange, "routing_key": self._plan.routing_key}
        way = [
            f.col(name) if value is None else f.lit(value).alias(name)
            for name, value in given.items()
        ]
        return self._edited(rows).select(*way, "properties_raw", "body")

    def _only(self, part: Slice) -> Column | None:
        """What of its files belongs to a slice; None: all."""
        from pyspark.sql import functions as f

        chunks: dict[str, list[int]] = {}
        for unit in part.units:
            if unit.file in self._chunked:
                chunks.setdefault(unit.file, []).append(unit.chunk)
        if not chunks:
            return None
        url, index = f.col("_metadata.file_path"), f.col("_metadata.row_index")
        chunk = f.floor(index / self._chunk_rows)
        wanted = ~url.isin([self._files.url(name) for name in chunks])
        for name, numbers in chunks.items():
            is_of_it = url == self._files.url(name)
            wanted |= is_of_it & chunk.between(min(numbers), max(numbers))
        return wanted

    def _sorted(self, rows: DataFrame, part: Slice) -> DataFrame:
        """One queue after the other in each partition, by offset; else as they were written."""
        from pyspark.sql import functions as f

        place = ["queue", "queue_id"] if self._has_ids else ["queue"]
        urls = [self._files.url(name) for name in part.files]
        ranks = [(f.lit(url), f.lit(rank)) for rank, url in enumerate(urls)]
        rank = f.create_map(*(each for pair in ranks for each in pair))
        rows = rows.withColumn("_rank", rank[f.col("_metadata.file_path")])
        rows = rows.withColumn("_row", f.col("_metadata.row_index"))
        queues = {place.queue for unit in part.units for place in unit.places}
        rows = rows.repartition(min(self._plan.tasks, len(queues)), "queue")
        return rows.sortWithinPartitions(*place, "offset", "_rank", "_row")

    def _edited(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.functions import arrow_udf

        plan = self._plan
        rate = None if plan.rate is None else plan.rate / plan.tasks
        # Its annotations know of fewer ways to call it than it does.
        make: Any = arrow_udf
        edit = make(real_time(plan.edit, rate), "binary")
        return rows.withColumn(
            "properties_raw", edit(f.col("properties_raw"), f.col("queue"), f.col("offset"))
        )


def begun(plan: ReplayPlan) -> Resume:
    """How far this replay has come.

    Raises:
        UsageError: the checkpoint is of something else
    """
    fresh = Resume(plan.task, plan.slice_rows)
    if plan.checkpoint is None:
        return fresh
    path = plan.checkpoint / RESUME
    if plan.checkpoint.exists() and not plan.checkpoint.is_dir():
        raise UsageError(f"--checkpoint: {plan.checkpoint} is not a directory")
    try:
        kept = Resume.of(path.read_text("utf-8"))
        kept.check_task(plan.task)
    except FileNotFoundError:
        if plan.checkpoint.exists() and any(plan.checkpoint.iterdir()):
            raise UsageError(
                f"--checkpoint: {plan.checkpoint} holds something else than a replay's"
            ) from None
        return fresh
    except ResumeError as error:
        raise UsageError(f"--checkpoint: {path} {error}") from None
    return kept


def keep(plan: ReplayPlan, resume: Resume) -> None:
    """Write down how far it has come, whole or not at all."""
    if plan.checkpoint is None:
        return
    plan.checkpoint.mkdir(parents=True, exist_ok=True)
    path = plan.checkpoint / RESUME
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(resume.text())
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)


class ReplayError(Exception):
    """What was published is not what was to be; one line."""


def publish(rows: DataFrame, part: Slice, options: Mapping[str, str]) -> None:
    """Publish the rows of a slice.

    Raises:
        ReplayError: they were not as many as were counted
        Exception: of Spark; not all of them are confirmed
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    rows = rows.observe(seen, f.count(f.lit(1)).alias("rows"))
    rows.write.format("amqp").options(**options).mode("append").save()
    published = seen.get.get("rows", 0)
    if published != part.rows:
        raise ReplayError(
            f"{counted(published, 'message')} published of a slice in which "
            f"{shown(part.rows)} had been counted: the archive, or what fits --where, has changed "
            "since the replay began"
        )


@dataclass(frozen=True)
class Replayed:
    """What one run has done, of how many messages in all."""

    messages: int
    before: int
    total: int
    seconds: float


def replay(spark: SparkSession, plan: ReplayPlan, line: Line, stop: Stop) -> Replayed:
    """Replay what is left, slice by slice; ends between two slices when somebody wants it to.

    Raises:
        UsageError: there is no archive, or the checkpoint does not fit it
        ReplayError: not as many messages were published as were counted
        Exception: of Spark; a slice failed
    """
    resume = begun(plan)
    archive = Archive(spark, plan, resume.chunk_rows)
    line.show("looking at the archive")
    try:
        units = archive.units()
    except FilesError as error:
        raise UsageError(f"--from: {error}") from None
    try:
        left = resume.left(units)
    except ResumeError as error:
        raise UsageError(f"--checkpoint: {plan.checkpoint} {error}") from None
    total = sum(unit.rows for unit in units)
    before = total - sum(unit.rows for unit in left)
    began = time.monotonic()
    messages = 0
    for part in slices_of(left, plan.slice_rows, in_order=plan.in_order):
        if stop:
            break
        line.show(_progress(before + messages, total, messages, time.monotonic() - began))
        publish(archive.rows(part), part, plan.sink)
        messages += part.rows
        resume = resume.after(units, len(part.units))
        keep(plan, resume)
    return Replayed(messages, before, total, time.monotonic() - began)


def _progress(done: int, total: int, messages: int, seconds: float) -> str:
    text = f"{shown(done)} of {counted(total, 'message')}"
    if messages:
        rate = messages / seconds
        text += f", {shown(rate)}/s, {shown((total - done) / rate)} s left"
    return text
