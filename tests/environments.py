"""Virtual environments of their own, in `.cache/`, for programs that the tests only run.

The first run makes each from `requirements/NAME.txt`, and makes it anew when that changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PROJECT: Final = Path(__file__).resolve().parents[1]
CACHE: Final = PROJECT / ".cache"
INSTALL_LIMIT_S: Final = 300


def environment(name: str) -> Path:
    """The interpreter of an environment; skips the test where it cannot be installed."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    # Another process of this run may need it at the same moment.
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _installed(CACHE / name, PROJECT / "requirements" / f"{name}.txt")


def _installed(place: Path, requirements: Path) -> Path:
    python = place / "bin" / "python"
    stamp = place / "installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python
    shutil.rmtree(place, ignore_errors=True)
    install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input"]
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(python), *install, "--no-deps", "--require-hashes", "-r", str(requirements)],
    ):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
        if done.returncode != 0:
            told = (done.stdout + done.stderr)[-300:]
            pytest.skip(f"{requirements.name} cannot be installed here: {told}")
    stamp.write_text(wanted)
    return python
