"""The audit as a script: its own directory is then the first that modules are looked for in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vouchmq.spark
from tests.integration.broker_process import PROJECT

SPARK = Path(vouchmq.spark.__file__).parent


def test_no_module_beside_one_has_the_name_of_one_of_the_standard_library() -> None:
    scripts = sorted(SPARK.glob("*/cli.py"))
    assert [script.parent.name for script in scripts] == ["archive", "audit", "replay"]
    names = {path.stem for script in scripts for path in script.parent.glob("*.py")}
    assert not names & sys.stdlib_module_names


@pytest.mark.slow
def test_spark_submit_runs_the_audit(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("spark-submit")
    arguments = ["--master", "local[1]", str(SPARK / "audit" / "cli.py"), str(tmp_path / "nowhere")]
    done = subprocess.run(
        [command, *arguments, "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PYSPARK_PYTHON": sys.executable},
        # It shows what a script says on standard error among what it prints.
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("vouchmq audit: ")]
    assert str(tmp_path / "nowhere") in line
