"""A Spark program of our crash tests: rows of Parquet → brokers, in a process of its own.

Takes one JSON argument:
    rows      directory of Parquet files, one of which is a batch of a query
    queries   options of the sink and `checkpoint` of each query that writes all of it
    options   of the sink of one batch write of all of it, after the queries
    master    such as `local[2,4]`
    hooks     environment of `sink_hooks`
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.pipeline.sink_hooks import HookedSink
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
    """Write file by file, each query from where its checkpoint is to the end."""
    schema = spark.read.parquet(job["rows"]).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(job["rows"])
    started = []
    for query in job["queries"]:
        writer = with_options(rows.writeStream, query["options"])
        writer = writer.option("checkpointLocation", query["checkpoint"])
        started.append(writer.trigger(availableNow=True).start())
    for each in started:
        each.awaitTermination()


def main() -> int:
    job = json.loads(sys.argv[1])
    os.chdir(Path(job["rows"]).parent)
    os.environ.update(job.get("hooks", {}))
    more = {"spark.sql.execution.arrow.maxRecordsPerBatch": "200"}
    if "master" in job:
        more["spark.master"] = job["master"]
    with session("sink-job", cores=2, memory="1g", more=more) as spark:
        spark.dataSource.register(HookedSink)
        if "queries" in job:
            stream(spark, job)
        if "options" in job:
            write(spark, job)
    return 0


if __name__ == "__main__":
    sys.exit(main())
