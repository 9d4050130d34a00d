"""A framework's worker as its operator sees it: a process group with a log.

Knows nothing of any framework; they say which line of their log means that they are ready.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.integration.broker_process import PROJECT, clean_environment
from tests.waiting import wait_until

STOP_LIMIT_S = 60.0


class WorkerProcess:
    """One worker with its children, from its start to its end."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str],
        ready: str,
        cwd: Path = PROJECT,
    ) -> None:
        """Start it and wait until `ready` stands in its log."""
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env=clean_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(lambda: ready in self.text(), self.text)
        except BaseException:
            self.kill9()
            raise

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill9()

    def text(self) -> str:
        """What it has logged."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def kill9(self) -> None:
        """End it and its children without a word."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_LIMIT_S)

    def stop(self) -> int:
        """Ask it to end, as its operator would; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_LIMIT_S)
