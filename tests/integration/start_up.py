"""Starting the program by hand, and what a start that fails may say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from tests.integration.broker_process import PROJECT, clean_environment
from tests.waiting import LIMIT_S


def serve(
    *flags: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a broker that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "vouchmq", "serve", "--log-level", "warning", *flags],
        cwd=PROJECT,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def assert_one_clear_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit 2, nothing on standard output, one line on standard error that names the culprit."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    for word in words:
        assert word in lines[0], lines[0]
