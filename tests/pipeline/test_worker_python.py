"""Spark's Python processes: which one, what it imports first, and what if it is up too late."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home

from tests.integration.broker_process import BrokerProcess
from tests.pipeline.source_world import declare, fill
from vouchmq.spark import command_line
from vouchmq.spark.command_line import with_source
from vouchmq.spark.worker_python import worker_python

LATE = "org.apache.spark.SparkException: Python worker failed to connect back."
# Spark's process with a start that takes longer than Spark waits, as often as the file has lines.
SLOW_PYTHON = """#!/bin/sh
if [ "$2" = pyspark.sql.streaming.python_streaming_source_runner ] && [ -s {lives} ]
then
    sed -i 1d {lives}
    sleep 11
fi
exec {python} "$@"
"""
COMMAND = """
import sys, vouchmq.spark.session as room
program = sys.argv.pop(1)
room.worker_python = lambda: program
from vouchmq.spark.archive.cli import main
sys.exit(main())
"""


@pytest.fixture
def found_anew() -> Iterator[None]:
    """The program is looked for once in a process."""
    worker_python.cache_clear()
    yield
    worker_python.cache_clear()


def seen_by(program: str, *places: str) -> dict[str, object]:
    """What a worker of that program sees, started as Spark does: its interpreter, PySpark, path."""
    code = (
        "import json, os, sys, pyspark\n"
        "print(json.dumps([sys.executable, pyspark.__file__, os.environ['PYTHONPATH']]))"
    )
    spark = _find_spark_home()
    library = Path(spark) / "python" / "lib"
    path = [
        str(library / "pyspark.zip"),
        *map(str, library.glob("py4j-*.zip")),
        *map(str, (Path(spark) / "jars").glob("spark-core_*.jar")),
        *places,
    ]
    ran = subprocess.run(
        [program, "-c", code],
        env={**os.environ, "SPARK_HOME": spark, "PYTHONPATH": ":".join(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(("python", "pyspark", "path"), json.loads(ran.stdout), strict=True))


def test_a_worker_imports_what_is_installed_and_not_a_zip_without_bytecode(tmp_path: Path) -> None:
    plain = seen_by(sys.executable, str(tmp_path))
    # Else the program shows nothing.
    assert "pyspark.zip" in str(plain["pyspark"])
    found = seen_by(worker_python(), str(tmp_path / "a b*"), str(tmp_path))
    assert found["python"] == plain["python"]
    assert "pyspark.zip" not in str(found["pyspark"])
    assert found["path"] == f"{tmp_path}/a b*:{tmp_path}"


@pytest.mark.usefixtures("found_anew")
def test_a_spark_that_is_not_the_installed_one_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for spark in (tmp_path, tmp_path / "none"):
        worker_python.cache_clear()
        monkeypatch.setenv("SPARK_HOME", str(spark))
        assert worker_python() == sys.executable


@pytest.mark.usefixtures("found_anew")
def test_where_no_program_may_be_started_the_interpreter_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Directories of temporary files are often mounted so that nothing in them can be run."""
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    assert worker_python() == sys.executable


class Failing:
    """Something that fails so many times."""

    def __init__(self, times: int, text: str = LATE) -> None:
        self.times = times
        self.text = text
        self.runs = 0

    def __call__(self) -> str:
        self.runs += 1
        if self.runs <= self.times:
            raise RuntimeError(self.text)
        return "done"


def test_a_process_that_is_late_is_started_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert with_source(Failing(2), lambda: True) == "done"
    assert capsys.readouterr().err.splitlines() == [
        "the process of the source was not ready within 10 s, a limit of Spark; "
        f"attempt {number} of 5"
        for number in (2, 3)
    ]
    late = Failing(99)
    with pytest.raises(RuntimeError, match="failed to connect back"):
        with_source(late, lambda: True)
    assert late.runs == command_line._ATTEMPTS


def test_what_has_begun_or_fails_otherwise_is_not_repeated() -> None:
    for failing, may_repeat in ((Failing(1), False), (Failing(1, "404 NOT_FOUND"), True)):
        with pytest.raises(RuntimeError, match=failing.text):
            with_source(failing, [may_repeat].pop)
        assert failing.runs == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_archive_outlasts_a_process_that_is_late(
    vouch: BrokerProcess, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    queue = fresh("late")
    declare(vouch.url, queue)
    fill(vouch.url, queue, range(50))
    slow, lives = tmp_path / "python", tmp_path / "lives"
    lives.write_text("once\n")
    slow.write_text(SLOW_PYTHON.format(lives=lives, python=sys.executable))
    slow.chmod(0o755)
    arguments = ["--queue", queue, "--to", f"{tmp_path}/a", "--checkpoint", f"{tmp_path}/c"]
    ran = subprocess.run(
        [sys.executable, "-c", COMMAND, str(slow), "--url", vouch.url, *arguments, "--once"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "archived 50 messages" in ran.stdout, ran.stderr
    assert "attempt 2 of 5" in ran.stderr
    assert lives.read_text() == ""
