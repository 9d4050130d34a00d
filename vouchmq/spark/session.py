"""The Spark session of our own commands: one machine, loopback, quiet, ended with the command.

A user's own program makes its session as it likes; nothing else in this package depends on this
room. It sees to what Spark leaves to the user: which Java, which Python the workers take, and that
no port is opened to the network.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vouchmq.spark.java import prepare
from vouchmq.spark.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING: Final = Path(__file__).with_name("log4j2.properties")
# A heap is what was asked for; beside it a JVM takes as much as it likes, unless it is told.
LEAN: Final = "-XX:+UseSerialGC -XX:MaxDirectMemorySize=256m -XX:ReservedCodeCacheSize=192m"


def settings(cores: int, memory: str) -> dict[str, str]:
    """What a session of ours is configured with.

    Args:
        cores: tasks at a time
        memory: heap of the JVM, such as `2g`
    """
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # For this process to fetch rows on a busy machine. How long Spark waits for a process of
        # Python to start is a constant; see `command_line.with_source`.
        "spark.python.authenticate.socketTimeout": "90s",
        "spark.driver.extraJavaOptions": f"{LEAN} -Dlog4j2.configurationFile={LOGGING.as_uri()}",
    }


@contextmanager
def session(
    app: str, *, cores: int = 2, memory: str = "2g", more: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A local session for the time of a `with` block.

    Args:
        app: its name
        cores: tasks at a time
        memory: heap of the JVM, such as `2g`; fixed when the process starts its first session
        more: settings beside ours, or in their place

    Raises:
        JavaError: there is no Java 17 or newer
    """
    prepare()
    # Else workers start whatever `python3` is first on PATH, which has no pyarrow.
    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().appName(app)
    for name, value in {**settings(cores, memory), **(more or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
