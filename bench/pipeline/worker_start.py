"""How long the process that feeds a query takes to report to Spark, which waits 10 s for it.

Spark's part is played here: a socket to connect to, the environment that Spark makes. One arm is
this interpreter as it is, which finds Spark's zip of PySpark first; the other is what `register`
and our commands give to Spark.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.pipeline.row import Demand, Place, Play, Row, RowError, Values

MODULE: Final = "pyspark.sql.streaming.python_streaming_source_runner"
ZIP, INSTALLED = "zip", "installed"
LIMIT_S: Final = 120.0
GOES: Final = 5


def environment(spark: Path) -> dict[str, str]:
    """What Spark puts before the PYTHONPATH of its driver."""
    library = spark / "python" / "lib"
    places = [
        str(library / "pyspark.zip"),
        *map(str, library.glob("py4j-*.zip")),
        *map(str, (spark / "jars").glob("spark-core_*.jar")),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    return {**os.environ, "SPARK_HOME": str(spark), "PYTHONPATH": os.pathsep.join(places)}


def start(program: str, spark: Path) -> Values:
    """Start the process once: seconds until it connects, CPU seconds until then.

    Raises:
        RowError: it does not
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(LIMIT_S)
        port = listening.getsockname()[1]
        more = {"PYTHON_WORKER_FACTORY_PORT": str(port), "PYTHON_WORKER_FACTORY_SECRET": "none"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        process = subprocess.Popen(
            [program, "-m", MODULE],
            env={**environment(spark), **more},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            connection, _ = listening.accept()
            seconds = time.perf_counter() - began
            connection.close()
        except TimeoutError:
            raise RowError(f"{program} has not connected within {LIMIT_S:.0f} s") from None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"connect_s": seconds, "cpu_s": cpu_s}


@contextmanager
def measure(place: Place) -> Iterator[Play]:
    """Start both in turn; the median of a few starts is a figure."""
    del place
    from pyspark.find_spark_home import _find_spark_home

    from vouchmq.spark.worker_python import worker_python

    spark = Path(_find_spark_home())
    programs = {ZIP: sys.executable, INSTALLED: worker_python()}

    def play(arm: str) -> Values:
        goes = [start(programs[arm], spark) for _ in range(GOES)]
        return {name: sorted(go[name] for go in goes)[GOES // 2] for name in goes[0]}

    yield play


ROWS: Final = (
    Row(
        "worker_start",
        "what the process that feeds a query costs until it connects",
        (ZIP, INSTALLED),
        measure,
        (
            Demand("cpu_s", ZIP, INSTALLED, at_least=2.0),
            Demand("connect_s", ZIP, INSTALLED),
            Demand("connect_s", INSTALLED),
        ),
        servers=(),
    ),
)
