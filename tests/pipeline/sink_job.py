"""A Spark program of our crash tests: rows of Parquet → a broker, in a process of its own.

Takes one JSON argument:
    rows         directory of Parquet files, one of which is a batch of a query
    options      of the sink
    checkpoint   of a query; without it the rows are written as one batch
    master       such as `local[2,4]`
    failures     so often each task fails in its midst before it does not
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.pipeline.sink_hooks import FAILURES, FailingSink
from vouchmq.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def with_options(writer: Any, options: dict[str, str]) -> Any:
    writer = writer.format("amqp")
    for name, value in options.items():
        writer = writer.option(name, value)
    return writer


def write(spark: SparkSession, job: dict[str, Any]) -> None:
    """Write all rows as one batch."""
    rows: DataFrame = spark.read.parquet(job["rows"])
    with_options(rows.write.mode("append"), job["options"]).save()


def stream(spark: SparkSession, job: dict[str, Any]) -> None:
    """Write file by file, from where the checkpoint is to the end."""
    schema = spark.read.parquet(job["rows"]).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(job["rows"])
    writer = with_options(rows.writeStream, job["options"])
    writer = writer.option("checkpointLocation", job["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()


def main() -> int:
    job = json.loads(sys.argv[1])
    os.chdir(Path(job["rows"]).parent)
    more = {"spark.sql.execution.arrow.maxRecordsPerBatch": "200"}
    if "master" in job:
        more["spark.master"] = job["master"]
    os.environ[FAILURES] = str(job.get("failures", 0))
    with session("sink-job", cores=2, memory="1g", more=more) as spark:
        spark.dataSource.register(FailingSink)
        (stream if "checkpoint" in job else write)(spark, job)
    return 0


if __name__ == "__main__":
    sys.exit(main())
