"""Rows for programs that write to a sink, and those programs as processes that may be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.integration.broker_process import PROJECT, clean_environment
from tests.waiting import wait_until

# A quiet machine needs a tenth of it.
JOB_LIMIT_S = 240
# When the first of some files was written.
OLDEST_S = 1_700_000_000


def files(directory: Path, count: int, rows: int, queue: str) -> Path:
    """Parquet files with numbered bodies; a file is a batch of a query."""
    directory.mkdir()
    for number in range(count):
        bodies = [str(each).encode() for each in range(number * rows, (number + 1) * rows)]
        table = pa.table({"body": pa.array(bodies, pa.binary())})
        table = table.append_column("routing_key", pa.array([queue] * rows))
        path = directory / f"{number:04}.parquet"
        pq.write_table(table, path, row_group_size=500)
        # Spark takes them by their times, and two may be written within a millisecond.
        os.utime(path, (OLDEST_S + number, OLDEST_S + number))
    return directory


class SinkJob:
    """One run of `sink_job`; a context manager that leaves nothing running."""

    def __init__(self, job: dict[str, Any], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.sink_job", json.dumps(job)],
                cwd=PROJECT,
                env={**clean_environment(), "PYTHONPATH": str(PROJECT)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> SinkJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def is_running(self) -> bool:
        """False when it has come to its end."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill driver, JVM and workers at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finish(self, limit_s: float = JOB_LIMIT_S) -> None:
        """Wait for its end, which must be a good one."""
        assert self._process.wait(limit_s) == 0, self._log.read_text()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so; it must not end before."""

        def is_there() -> bool:
            assert self.is_running, self._log.read_text()
            return is_so()

        wait_until(is_there, self._log.read_text, limit_s=JOB_LIMIT_S)
