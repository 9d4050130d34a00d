"""What only tests with real clients need: a place where Node's clients are installed."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.broker_process import PROJECT

CACHE = PROJECT / ".cache" / "node"
INSTALL_LIMIT_S = 120
CLIENTS = ("amqplib", "rabbitmq-client", "@cloudamqp/amqp-client")


@pytest.fixture(scope="session")
def node_path() -> Path:
    """The directory that holds the clients of Node."""
    CACHE.mkdir(parents=True, exist_ok=True)
    # Another process of this run may need it at the same moment.
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return installed_client()


def installed_client() -> Path:
    modules = CACHE / "node_modules"
    are_there = all((modules / name / "package.json").exists() for name in CLIENTS)
    if are_there and shutil.which("node"):
        return modules
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    (CACHE.parent / ".gitignore").write_text("*\n")
    (CACHE / "package.json").write_text('{"private": true}\n')
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", *CLIENTS],
        cwd=CACHE,
        capture_output=True,
        text=True,
        timeout=INSTALL_LIMIT_S,
        check=False,
    )
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install clients: {installed.stderr[-300:]}")
    return modules
