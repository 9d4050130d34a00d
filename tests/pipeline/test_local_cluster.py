"""Executors in processes of their own, as a cluster has them: what reaches them, and what not.

`local-cluster` starts a master and two workers of Spark's on this machine, whose Python processes
find the project by their path only, as they would an installed wheel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker_process import PROJECT, BrokerProcess, clean_environment
from tests.pipeline import peer
from tests.pipeline.sink_jobs import JOB_LIMIT_S

ROWS = 3000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * JOB_LIMIT_S)]


def main() -> int:
    """Write rows to a queue, read them back as a stream of batches, and say where that was done."""
    import vouchmq.spark
    from vouchmq.spark.session import session

    url, queue, stream, directory = sys.argv[1:]
    os.chdir(directory)
    more = {
        "spark.master": "local-cluster[2,1,900]",
        "spark.executor.memory": "700m",
        "spark.executorEnv.PYTHONPATH": str(PROJECT),
    }
    with session("local-cluster", cores=2, memory="700m", more=more) as spark:
        vouchmq.spark.register(spark)
        rows = spark.range(0, ROWS, 1, 4).selectExpr("cast(id as string) body")
        for target in (queue, stream):
            writer = rows.write.format("amqp").mode("append").option("url", url)
            writer.option("routingKey", target).save()
        reader = spark.read.format("amqp").option("url", url).option("queue", stream)
        found = reader.option("mode", "stream").option("minPartitions", 4).load()
        bodies = found.selectExpr("cast(body as string) body").distinct()
        spooled = spark.readStream.format("amqp").option("url", url).option("queue", queue)
        query = (
            spooled.option("mode", "queue")
            .load()
            .select("body", "queue", "redelivered")
            .writeStream.format("parquet")
            .option("path", f"{directory}/lake")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        lake = spark.read.parquet(f"{directory}/lake")
        said: dict[str, Any] = {
            "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
            "stream": [found.count(), bodies.count()],
            "queue": [lake.count(), lake.select("body").distinct().count()],
        }
        print(json.dumps(said), flush=True)  # noqa: T201 - what the test reads
    return 0


def test_a_sink_and_a_source_on_executors_of_their_own(
    vouch: BrokerProcess, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    queue, stream = fresh("queue"), fresh("stream")
    peer.declare(vouch.url, queue)
    peer.declare(vouch.url, stream, x_queue_type="stream")
    run = subprocess.run(
        [
            *(sys.executable, "-m", "tests.pipeline.test_local_cluster"),
            *(vouch.url, queue, stream, str(tmp_path)),
        ],
        cwd=PROJECT,
        env={**clean_environment(), "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=JOB_LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == {
        "executors": 2,
        "stream": [ROWS, ROWS],
        "queue": [ROWS, ROWS],
    }
    assert peer.count(vouch.url, queue) == 0
    with peer.channel(vouch.url) as channel:
        channel.delete(queue)
        channel.delete(stream)


if __name__ == "__main__":
    sys.exit(main())
