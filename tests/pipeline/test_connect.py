"""Spark Connect: a client without a JVM, a server that knows the package as an installed wheel.

The client is a program of its own: a process has sessions of one kind.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc", reason="of the client of Spark Connect")

import vouchmq.spark
from tests.integration.broker_process import PROJECT, BrokerProcess, clean_environment
from tests.pipeline import peer
from tests.pipeline.sink_jobs import JOB_LIMIT_S
from vouchmq.spark.session import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 2000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * JOB_LIMIT_S)]


def main() -> int:
    """Write and read as batches and as queries, and say what came of it."""
    from pyspark.sql import SparkSession

    remote, url, directory, *names = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    vouchmq.spark.register(spark)
    try:
        said = play(spark, url, Path(directory), *names)
    finally:
        spark.stop()
    # Nobody has started a JVM here.
    said["java"] = [child.name() for child in psutil.Process().children(recursive=True)]
    print(json.dumps(said), flush=True)  # noqa: T201 - what the test reads
    return 0


def play(
    spark: SparkSession, url: str, directory: Path, stream: str, queue: str, spooled: str
) -> dict[str, Any]:
    """Batch into a stream; stream into queues, as a query; each of them into Parquet or rows."""
    rows = spark.range(0, ROWS, 1, 4).selectExpr("cast(id as string) body")
    rows.write.format("amqp").mode("append").option("url", url).option("routingKey", stream).save()
    reader = spark.read.format("amqp").option("url", url).option("queue", stream)
    found = reader.option("mode", "stream").load()
    said: dict[str, Any] = {"batch": [found.count(), found.select("body").distinct().count()]}

    of_stream = spark.readStream.format("amqp").option("url", url).option("queue", stream)
    bodies = of_stream.option("mode", "stream").load().select("body")
    for target in (queue, spooled):
        sink = bodies.writeStream.format("amqp").option("url", url).option("routingKey", target)
        sink = sink.option("checkpointLocation", str(directory / f"to-{target}"))
        sink.trigger(availableNow=True).start().awaitTermination()
    for target, options in ((queue, {}), (spooled, {"spoolLocation": str(directory / "spool")})):
        source = spark.readStream.format("amqp").option("url", url).option("queue", target)
        writer = source.options(**options).load().writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(directory / f"of-{target}"))
        query = writer.trigger(availableNow=True).start(str(directory / target))
        query.awaitTermination()
        lake = spark.read.parquet(str(directory / target))
        said[target] = [lake.count(), lake.select("body").distinct().count()]
        (last,) = vouchmq.spark.progress(query)
        said[f"backlog {target}"] = last.backlog

    said["reasons"] = []
    for is_wrong in (
        lambda: spark.read.format("amqp").option("url", url).load().schema,
        lambda: rows.write.format("amqp").mode("append").option("url", url).save(),
        lambda: (
            spark.readStream.format("amqp")
            .options(url=url, queue=f"no.{queue}")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(directory / "none"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        ),
    ):
        try:
            is_wrong()
        except Exception as error:  # noqa: BLE001 - whatever it is, its reason is looked at
            said["reasons"].append(vouchmq.spark.reason_of(error))
    return said


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of Spark Connect in a JVM of its own; its address."""
    import pyspark

    directory = tmp_path_factory.mktemp("connect")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    configured = {
        **settings(2, "1g"),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    spark_home = Path(pyspark.__file__).parent
    log = directory / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                str(spark_home / "bin" / "spark-submit"),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *(word for pair in configured.items() for word in ("--conf", "=".join(pair))),
                "spark-internal",
            ],
            cwd=directory,
            env={
                **clean_environment(),
                "SPARK_HOME": str(spark_home),
                "PYTHONPATH": str(PROJECT),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(port, process, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until somebody listens there."""
    end = time.monotonic() + JOB_LIMIT_S
    while True:
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)


def test_a_source_and_a_sink_of_a_client_without_a_jvm(
    server: str, vouch: BrokerProcess, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    stream, queue, spooled = fresh("stream"), fresh("queue"), fresh("spooled")
    peer.declare(vouch.url, stream, x_queue_type="stream")
    peer.declare(vouch.url, queue)
    peer.declare(vouch.url, spooled)
    run = subprocess.run(
        [
            *(sys.executable, "-m", "tests.pipeline.test_connect"),
            *(server, vouch.url, str(tmp_path), stream, queue, spooled),
        ],
        cwd=PROJECT,
        env={**clean_environment(), "PYTHONPATH": str(PROJECT), "SPARK_HOME": os.devnull},
        capture_output=True,
        text=True,
        timeout=JOB_LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    said = json.loads(run.stdout.splitlines()[-1])
    assert said["batch"] == said[queue] == said[spooled] == [ROWS, ROWS]
    assert said[f"backlog {queue}"] == said[f"backlog {spooled}"] == 0
    assert said["java"] == []
    assert said["reasons"] == [
        "option queue: required",
        "column routing_key: neither it nor option routingKey is there, and the default exchange "
        "routes by it",
        f"404 NOT_FOUND - no queue 'no.{queue}' in vhost '/'",
    ]


if __name__ == "__main__":
    sys.exit(main())
