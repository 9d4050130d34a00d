"""A Spark program to be killed: stream → Parquet, started again by itself when its query fails.

    python -m tests.pipeline.stream_job JSON

The JSON holds `options` of the source, `directory` for table and checkpoint, and `interval`. It
writes `progress` there after each batch with rows; once there is a file `stop` it reads what is
left and ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import vouchmq.spark
from vouchmq.spark.command_line import reason_of
from vouchmq.spark.session import session


def start(spark: SparkSession, job: dict[str, Any], **trigger: Any) -> Any:
    """Start the query on its checkpoint."""
    rows = spark.readStream.format("amqp").options(**job["options"])
    writer = rows.schema("offset bigint, message_id string, body binary").load().writeStream
    directory = Path(job["directory"])
    writer = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(**trigger)
    return writer.format("parquet").start(str(directory / "out"))


def follow(query: Any, directory: Path, stop: Path) -> None:
    """Write down its progress until it ends, or until somebody wants it to."""
    last = -1
    while query.isActive and not stop.exists():
        progress = query.lastProgress
        if progress is not None and progress.batchId > last and progress.numInputRows:
            last = progress.batchId
            # Whoever reads it sees all of it.
            unfinished = directory / "progress.new"
            unfinished.write_text(f"{os.getpid()} {last} {time.time()}")
            unfinished.rename(directory / "progress")
        time.sleep(0.1)


def run(spark: SparkSession, job: dict[str, Any]) -> int:
    """The query, again and again."""
    directory = Path(job["directory"])
    stop = directory / "stop"
    while not stop.exists():
        query = start(spark, job, processingTime=job["interval"])
        follow(query, directory, stop)
        error = query.exception()
        query.stop()
        if error is not None:
            sys.stderr.write(f"QUERY FAILED: {reason_of(error)}\n")
            sys.stderr.flush()
            time.sleep(0.5)
    # What waits by now need not come in small batches.
    job["options"]["maxMessagesPerTrigger"] = "200000"
    start(spark, job, availableNow=True).awaitTermination()
    return 0


def main() -> int:
    job = json.loads(sys.argv[1])
    with session("stream-job", cores=2, memory="1g") as spark:
        vouchmq.spark.register(spark)
        return run(spark, job)


if __name__ == "__main__":
    sys.exit(main())
