"""A Spark program of our crash tests: queue → Parquet, run in a process of its own to be killed.

Takes one JSON argument:
    options      of the source
    columns      schema, as DDL
    work         directory; `out` of the file sink, the checkpoint and the notes are in it

It goes on until it is killed; a query that fails is started again, as a supervisor would.

Notes: `running` tells of the last batch, `failures` has a line for each failed query.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.pipeline.source_hooks import StoppingSource
from vouchmq.spark.session import session


def run(spark: Any, job: dict[str, Any]) -> str:
    """Run the query; why it failed."""
    work = Path(job["work"])
    stream = spark.readStream.format("amqp")
    for name, value in job["options"].items():
        stream = stream.option(name, value)
    writer = stream.schema(job["columns"]).load().writeStream
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    query = writer.format("parquet").option("path", str(work / "out")).start()
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["numInputRows"]:
            note(work / "running", f"{os.getpid()} {query.runId} {progress['batchId']}")
        time.sleep(0.1)
    return str(query.exception())


def note(path: Path, text: str) -> None:
    """Whoever reads it sees all of it."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def main() -> None:
    job = json.loads(sys.argv[1])
    work = Path(job["work"])
    work.mkdir(parents=True, exist_ok=True)
    # A session leaves things in its working directory.
    os.chdir(work)
    with session("source-job", cores=2, memory="1g") as spark:
        spark.dataSource.register(StoppingSource)
        while True:
            failure = run(spark, job)
            with (work / "failures").open("a") as failures:
                failures.write(failure.replace("\n", "\\n") + "\n")
            time.sleep(0.2)


if __name__ == "__main__":
    main()
