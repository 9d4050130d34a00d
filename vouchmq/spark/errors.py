"""Errors of ours in a Python process of Spark's: their sentence alone, without a traceback.

Such a process writes down an exception for the user's program, with its traceback unless a variable
of its environment says otherwise, and then ends: what is set here hides nobody else's. That is as
far as a data source reaches; what Spark writes around it is taken off by `reason_of`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Looked at when the exception is written; a Spark that does not know it shows the traceback.
HIDING: Final = "SPARK_HIDE_TRACEBACK"
# Spark's Python processes have it; programs of users do not.
_OF_WORKERS: Final = "pyspark.worker_util"


@contextmanager
def sentence_only() -> Iterator[None]:
    """An error of ours that leaves the block, or the function it decorates, ends this process."""
    try:
        yield
    except Exception as error:
        # Of others, and of faults of ours, the traceback is all that helps.
        if type(error).__module__.startswith("vouchmq.") and _OF_WORKERS in sys.modules:
            os.environ[HIDING] = "1"
        raise
