"""Makes `format("amqp")` known to a session. Nothing of Spark is imported before that is asked for.

Spark could find a data source by itself, but then tries every installed one in a fresh process for
each session, and one that fails breaks all others: so it is a call.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `amqp` a format of this session, to read and to write.

    Once per session, before the first use. Spark's worker processes import this package by its
    name, so it must be installed wherever they run. Workers on this machine are given the
    interpreter that runs here, unless PYSPARK_PYTHON names one, and start sooner than by Spark's
    own way (see `worker_python.py`); with Spark Connect they are those
    of the server, which was started with its own.
    """
    from vouchmq.spark.data_source import AmqpDataSource, SpeculativeAmqpDataSource

    # A static setting, which the processes that plan a write cannot see: so the class carries it.
    # A session of Spark Connect has no context: its server answers.
    context = getattr(spark, "sparkContext", None)
    settings = spark.conf if context is None else context.getConf()
    is_speculative = str(settings.get("spark.speculation", "false")).lower() == "true"
    if context is not None:
        _take_this_interpreter(context)
    spark.dataSource.register(SpeculativeAmqpDataSource if is_speculative else AmqpDataSource)


def _take_this_interpreter(context: SparkContext) -> None:
    """Spark starts whatever `python3` is first on PATH, which need not have these packages."""
    if "PYSPARK_PYTHON" not in os.environ and str(context.master).startswith("local"):
        from vouchmq.spark.worker_python import worker_python

        context.pythonExec = worker_python()
