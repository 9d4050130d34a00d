"""Queue or stream → table of Parquet files: a thin command over the source and the file sink.

    source ──▶ + archived_day ──▶ sink, whose log says which files count

The checkpoint directory holds Spark's own checkpoint, the spool and whose it is; the archive's
holds whose it is, too. Where the two do not belong together nothing is read: a sink that has seen
batch 5 of another query would take this query's batch 5 for done, and the queue would be acked.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vouchmq.kit.bulk import BulkConnection, BulkError
from vouchmq.kit.bulk.url import targets
from vouchmq.spark.command_line import Line, Stop, UsageError, asking, counted, shown
from vouchmq.spark.options import STREAM, SourceOptions
from vouchmq.spark.source.streams.bounds import Probe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARQUET: Final = "parquet"
TABLES: Final = (PARQUET, "delta", "iceberg")
DAY: Final = "archived_day"
# In the archive, where Spark skips what begins with an underscore.
ARCHIVE_NOTE: Final = "_archive.json"
CHECKPOINT_NOTE: Final = "archive.json"
SINK_LOG: Final = "_spark_metadata"

_POLL_S: Final = 0.2
_ASK_EVERY_S: Final = 1.0
# One trigger may take all that fits the window of a consumer, or a good many tasks' worth.
_PER_TRIGGER: Final = {STREAM: 500_000}
_PER_TRIGGER_OF_QUEUES: Final = 65_535
_BYTES_PER_TRIGGER: Final = "256m"


@dataclass(frozen=True, kw_only=True)
class ArchivePlan:
    """What to archive, and where to.

    Attributes:
        interval_s: seconds between triggers; None: stop after what is there now
        cores: tasks at a time
        options: more options of the source
    """

    url: str = field(repr=False)
    queue: str
    to: Path
    checkpoint: Path
    mode: str
    interval_s: float | None
    by_day: bool = False
    table: str = PARQUET
    cores: int = 2
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> dict[str, str]:
        """The options of the source; what is given as such wins."""
        own = {
            "url": self.url,
            "queue": self.queue,
            "mode": self.mode,
            "maxMessagesPerTrigger": str(_PER_TRIGGER.get(self.mode, _PER_TRIGGER_OF_QUEUES)),
            "maxBytesPerTrigger": _BYTES_PER_TRIGGER,
        }
        if self.mode == STREAM:
            own["minPartitions"] = str(self.cores)
        else:
            own |= {"spoolLocation": str(self.checkpoint / "spool")}
            own |= {"numPartitions": str(self.cores)}
        lower = {name.lower() for name in self.options}
        kept = {name: value for name, value in own.items() if name.lower() not in lower}
        return {**kept, **self.options}

    def check(self) -> SourceOptions:
        """The options as the source takes them.

        Raises:
            OptionError: one of them is wrong
            UsageError: a URL with parameters that there are not, or directories that cannot be
                what they are meant for
        """
        asked = SourceOptions.parse(self.source)
        with asking():
            targets(asked.url)
        for name, path in (("--to", self.to), ("--checkpoint", self.checkpoint)):
            if path.exists() and not path.is_dir():
                raise UsageError(f"{name}: {path} is not a directory")
        if self.to == self.checkpoint or self.to in self.checkpoint.parents:
            raise UsageError("--checkpoint: must not be inside the archive")
        return asked


@dataclass(frozen=True)
class Archived:
    """What one run has done."""

    messages: int
    batches: int
    seconds: float


def look_at_queues(asked: SourceOptions) -> None:
    """Whether the broker lets us in and has what is to be read: said before Spark starts.

    Raises:
        UsageError: no such queue, no permission, or a URL that cannot be used
        BulkError: the broker is not there
    """
    with asking():
        if asked.mode == STREAM:
            with Probe(asked) as probe:
                for queue in asked.queues:
                    probe.newest(queue)
            return
        limit_s = asked.connect_timeout_ms / 1000
        with BulkConnection.open(asked.url, connect_timeout_s=limit_s) as one:
            for queue in asked.queues:
                one.channel().declare_passive(queue)


def claim(plan: ArchivePlan) -> None:
    """Write down that this checkpoint and this archive belong together, or find it written.

    Raises:
        UsageError: one of them belongs to another archive, or to a query of somebody's own.
    """
    about = {"queue": plan.queue, "mode": plan.mode, "table": plan.table}
    mine = _note(plan.checkpoint / CHECKPOINT_NOTE)
    if mine is None:
        if (plan.checkpoint / "offsets").exists() or (plan.checkpoint / "metadata").exists():
            raise UsageError(f"--checkpoint: {plan.checkpoint} is that of another query")
        mine = {"v": 1, "archive": uuid.uuid4().hex, "to": str(plan.to), **about}
    for name, value in about.items():
        if mine.get(name) != value:
            raise UsageError(
                f"--checkpoint: {plan.checkpoint} belongs to the archive of {name} "
                f"'{mine.get(name)}', not '{value}'"
            )
    # A catalogue's table has no place for a note; the checkpoint is what it knows a writer by.
    if plan.table == PARQUET:
        theirs = _note(plan.to / ARCHIVE_NOTE)
        if theirs is None and (plan.to / SINK_LOG).exists():
            raise UsageError(f"--to: {plan.to} holds the table of another query")
        if theirs is not None and theirs.get("archive") != mine["archive"]:
            raise UsageError(
                f"--to: {plan.to} is the archive of queue '{theirs.get('queue')}' with the "
                f"checkpoint {theirs.get('checkpoint')}: use that one, or another directory"
            )
    # The checkpoint's first: what is killed in between finds its own again.
    _write(plan.checkpoint / CHECKPOINT_NOTE, mine)
    if plan.table == PARQUET:
        _write(plan.to / ARCHIVE_NOTE, {**mine, "checkpoint": str(plan.checkpoint)})


def _note(path: Path) -> dict[str, Any] | None:
    try:
        note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: {error}") from None
    return note


def _write(path: Path, note: Mapping[str, Any]) -> None:
    """Whole or not at all, and durable before anything is acked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", encoding="utf-8") as file:
        json.dump(note, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def rows_of(spark: SparkSession, plan: ArchivePlan) -> DataFrame:
    """The messages, with the day that each is filed under: its own time, else that of its batch."""
    from pyspark.sql import functions as f

    source = spark.readStream.format("amqp").options(**plan.source).load()
    day = f.to_date(f.coalesce(f.col("timestamp"), f.current_timestamp()))
    return source.withColumn(DAY, day)


def start(spark: SparkSession, plan: ArchivePlan) -> StreamingQuery:
    """Start the query that archives."""
    writer = rows_of(spark, plan).writeStream.format(plan.table).outputMode("append")
    writer = writer.option("checkpointLocation", str(plan.checkpoint / "query"))
    if plan.by_day:
        writer = writer.partitionBy(DAY)
    if plan.interval_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{plan.interval_s:g} seconds")
    return writer.start(str(plan.to))


def follow(
    query: StreamingQuery,
    waiting: Waiting,
    line: Line,
    stop: Stop,
    hush: Callable[[], None] = lambda: None,
) -> Archived:
    """Show how a query gets on until it ends, or until somebody wants it to.

    Args:
        query: the query
        waiting: knows what is still to come
        line: shows it
        stop: the wish; a batch that is under way then is done again by the next run
        hush: called before it is stopped in the middle, of which Spark would complain

    Raises:
        StreamingQueryException: it failed
    """
    began = time.monotonic()
    messages = batches = 0
    last = -1
    while True:
        is_over = not query.isActive
        for progress in query.recentProgress:
            if progress.batchId > last:
                last = progress.batchId
                batches += progress.numInputRows > 0
                messages += progress.numInputRows
        seconds = time.monotonic() - began
        so_far = f"{counted(messages, 'message')} in {counted(batches, 'batch')}"
        rate = shown(messages / max(seconds, 0.001))
        line.show((f"{so_far}, {rate}/s" if batches else "first batch") + waiting.text(query))
        if is_over or stop:
            break
        time.sleep(_POLL_S)
    if stop:
        hush()
        query.stop()
    error = query.exception()
    if error is not None:
        raise error
    return Archived(messages, batches, time.monotonic() - began)


class Waiting:
    """How many messages are still to come: asked of the broker, or seen from the stream's tail."""

    def __init__(self, asked: SourceOptions) -> None:
        self._asked = asked
        self._connection: BulkConnection | None = None
        self._due = 0.0
        self._count: int | None = None

    def text(self, query: StreamingQuery) -> str:
        """Something to put behind other facts, or nothing where it is not known."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _ASK_EVERY_S
            self._count = self._behind(query) if self._asked.mode == STREAM else self._ready()
        return "" if self._count is None else f", {shown(self._count)} waiting"

    def _behind(self, query: StreamingQuery) -> int | None:
        progress = query.lastProgress
        if progress is None or not progress.sources:
            return None
        source = progress.sources[0]
        try:
            tails, ends = (
                json.loads(text)["next"] for text in (source.latestOffset, source.endOffset)
            )
        except (TypeError, ValueError, KeyError):
            return None
        return sum(max(0, int(tail) - int(ends.get(queue, 0))) for queue, tail in tails.items())

    def _ready(self) -> int | None:
        """Of all queues; None when the broker does not answer just now."""
        try:
            if self._connection is None:
                limit_s = self._asked.connect_timeout_ms / 1000
                self._connection = BulkConnection.open(
                    self._asked.url,
                    connect_timeout_s=limit_s,
                    heartbeat_s=0,
                    name="vouchmq archive",
                )
            with self._connection.channel() as channel:
                return sum(channel.declare_passive(queue)[0] for queue in self._asked.queues)
        except BulkError:
            self.close()
            return None

    def close(self) -> None:
        """Close the connection to the broker."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
