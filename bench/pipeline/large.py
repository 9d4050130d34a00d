"""A queue into files at scale: each mode of the source beside pika writing JSON lines.

The row says how many: `large_1m`, `large_5m`, `large_20m`, and `large_100k` to see that it works.
Timed is all of it, from the start of the query or of the consumer to the last row in a file, with
what Spark takes to start the query. `files` is Spark alone: the JSON lines that the pika arm would
have written, into Parquet files. They are played only when they are named.

Rows per second mean little on a machine that does other work. Beside them stands what it costs:
`cpu_us_per_row`, processor time of this program, of all it starts and of the broker, and
`peak_mib`, the largest resident set of this program and what it starts. If both stay from one row
of the table to the next, time is linear and memory flat.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count as numbers
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.backlog.broker import Peak
from bench.pipeline import loops
from bench.pipeline.rounds import own_cpu_s
from bench.pipeline.row import OURS, Demand, Place, Play, Row, RowError, Values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE: Final = "bench.large"
PIKA, FILES = "pika_json_lines", "files"
MODES: Final = ("queue", "spool", "stream")
BATCH: Final = 50_000
PATIENCE_S: Final = 4 * 3600
ACK_EVERY: Final = 500


def measuring(count: int) -> Callable[[Place], AbstractContextManager[Play]]:
    """The measure of so many rows."""

    @contextmanager
    def measure(place: Place) -> Iterator[Play]:
        import vouchmq.spark

        spark = place.session()
        vouchmq.spark.register(spark)
        total = place.scaled(count)
        number = numbers()

        def play(arm: str) -> Values:
            directory = place.directory / f"{arm}-{next(number)}"
            directory.mkdir()
            try:
                return go(spark, place, arm, total, directory)
            finally:
                loops.delete(place.url, QUEUE)
                shutil.rmtree(directory, ignore_errors=True)

        loops.delete(place.url, QUEUE)
        yield play

    return measure


def go(spark: SparkSession, place: Place, arm: str, count: int, directory: Path) -> Values:
    """One arm: how fast, and what a row costs.

    Raises:
        RowError: not all rows are in the files
    """
    if arm == FILES:
        write_lines(directory / "lines.json", count)
    else:
        loops.delete(place.url, QUEUE)
        loops.fill(place.url, QUEUE, count, stream=arm == "stream")
    # What the JVM has kept of the arm before is not this one's.
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.System.gc()
    spent, began = own_cpu_s(place.server), time.perf_counter()
    with Peak(os.getpid()) as peak:
        if arm == PIKA:
            consume(place.url, count, directory / "lines.json")
        elif arm == FILES:
            source = spark.read.schema("message_id string, body string, routing_key string")
            source.json(str(directory / "lines.json")).write.parquet(str(directory / "rows"))
        else:
            read(spark, place, arm, directory)
        took = time.perf_counter() - began
    spent = own_cpu_s(place.server) - spent
    if arm != PIKA and (there := spark.read.parquet(str(directory / "rows")).count()) != count:
        raise RowError(f"{there} of {count} rows are in the files")
    return {
        "rows_per_s": round(count / took),
        "cpu_us_per_row": spent * 1e6 / count,
        "peak_mib": peak.rss_mib,
    }


def read(spark: SparkSession, place: Place, mode: str, directory: Path) -> None:
    """The queue into Parquet, in one run.

    Raises:
        RowError: it took too long
    """
    stream = spark.readStream.format("amqp").option("url", place.url).option("queue", QUEUE)
    stream = stream.option("mode", mode).option("maxMessagesPerTrigger", BATCH)
    if mode == "spool":
        stream = stream.option("spoolLocation", str(directory / "spool"))
    writer = stream.load().writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.start(str(directory / "rows"))
    if not query.awaitTermination(PATIENCE_S):
        query.stop()
        raise RowError(f"a query was not done after {PATIENCE_S} s")


def line(message_id: str | None, routing_key: str, body: bytes) -> str:
    """What a row is as a line."""
    text = base64.b64encode(body).decode()
    return json.dumps({"message_id": message_id, "routing_key": routing_key, "body": text}) + "\n"


def write_lines(path: Path, count: int) -> None:
    """The file that `consume` would write."""
    body = bytes(loops.BODY_BYTES)
    with path.open("w") as lines:
        for number in range(count):
            lines.write(line(f"m-{number:012d}", QUEUE, body))


def consume(url: str, count: int, path: Path) -> float:
    """Consume with pika into JSON lines, acking every 500; seconds."""
    with path.open("w") as lines:

        def keep(method: Any, properties: Any, body: bytes) -> None:
            lines.write(line(properties.message_id, method.routing_key, body))

        return count / loops.pika_consume(url, QUEUE, count, ack_every=ACK_EVERY, keep=keep)


def row(name: str, count: int) -> Row:
    """The row of so many messages."""
    return Row(
        f"large_{name}",
        f"{count} messages into files, each mode, beside pika to JSON lines and plain files",
        (PIKA, *MODES, FILES),
        measuring(count),
        tuple(
            Demand(figure, arm, PIKA)
            for arm in (*MODES, FILES)
            for figure in ("rows_per_s", "cpu_us_per_row")
        ),
        (OURS,),
        is_asked_for=True,
    )


ROWS: Final = (
    row("100k", 100_000),
    row("1m", 1_000_000),
    row("5m", 5_000_000),
    row("20m", 20_000_000),
)
