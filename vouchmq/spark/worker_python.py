"""Which Python Spark's processes run where PySpark is installed, and how soon it is up.

Spark puts the zip of PySpark that it ships before what is installed. There is no bytecode in it, so
each process compiles what it imports, which takes three times as long; and Spark gives those that
feed a data source 10 s to start, which no setting changes. Where Spark is the installed package,
zip and package are the same, and a script of a few lines leaves the zip out.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

# The jar is Spark's own, too: a zip that every import would be looked for in.
_WRAPPER: Final = """#!/bin/sh
set -f
kept=
IFS=:
for place in $PYTHONPATH
do
    case $place in
        "$SPARK_HOME"/python/lib/*.zip | */spark-core_*.jar) ;;
        *) kept=$kept${{kept:+:}}$place ;;
    esac
done
export PYTHONPATH="$kept"
exec {python} "$@"
"""


@cache
def worker_python() -> str:
    """The program that this machine's workers start with: this interpreter, by a short way if any.

    A script, gone with the process, where Spark is the package that is installed here; else, and
    where there is no shell, the interpreter itself.
    """
    if os.name != "posix" or not _is_spark_installed():
        return sys.executable
    directory = Path(tempfile.mkdtemp(prefix="vouchmq-python-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    program = directory / "python"
    program.write_text(_WRAPPER.format(python=shlex.quote(sys.executable)), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program) if _runs(program) else sys.executable


def _runs(program: Path) -> bool:
    """Whether programs may be started from the directory of temporary files."""
    try:
        return subprocess.run([program, "-S", "-c", ""], check=False).returncode == 0  # noqa: S603
    except OSError:
        return False


def _is_spark_installed() -> bool:
    """Whether Spark is the package of this interpreter, and not one elsewhere on the machine."""
    found = find_spec("pyspark")
    places = found.submodule_search_locations if found is not None else None
    if not places:
        return False
    package = Path(places[0])
    try:
        return (
            package.samefile(os.environ.get("SPARK_HOME", package)) and (package / "jars").is_dir()
        )
    except OSError:
        return False
