"""The suites of examples/testing pass, run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.integration.broker_process import PROJECT, clean_environment
from tests.integration.plugin_flags import plugin_flags

LIMIT_S = 300


@pytest.mark.parametrize(
    ("suite", "count"),
    [("with_pika", 6), ("with_aio_pika", 5), ("with_celery", 3), ("with_faststream", 3)],
)
def test_a_suite_passes(suite: str, count: int) -> None:
    folder = PROJECT / "examples" / "testing" / suite
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin_flags(), str(folder)],
        cwd=PROJECT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^=+ {count} passed in ", done.stdout, re.MULTILINE), done.stdout
