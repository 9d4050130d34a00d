"""SIGTERM while a broker or a management process starts, also as process 1 of a container.

Spec: CONN-57
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import pytest

from tests.integration.broker_process import PROJECT, BrokerProcess, clean_environment
from tests.integration.moving import blocking
from tests.integration.pika_async import PERSISTENT
from tests.waiting import LIMIT_S, wait_until

# A process in a PID namespace of its own, where it is number 1.
AS_FIRST = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
MANAGEMENT = ("--management", "on", "--management-port", "0", "--prometheus-port", "0")


@cache
def may_unshare() -> bool:
    """Whether this user may make namespaces."""
    try:
        return subprocess.run([*AS_FIRST, "true"], check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def started(*words: str, is_first: bool) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The program, and its id, as soon as it has begun to hear signals."""
    command = [*(AS_FIRST if is_first else ()), sys.executable, "-m", "vouchmq", *words]
    process = subprocess.Popen(
        command,
        cwd=PROJECT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process, hearing(process, is_first=is_first)
    finally:
        process.kill()
        process.wait()


def hearing(process: subprocess.Popen[str], *, is_first: bool) -> int:
    """Wait until the program has a handler for SIGTERM; its id."""
    found = [process.pid]

    def has_handler() -> bool:
        if is_first:
            found[:] = [each.pid for each in psutil.Process(process.pid).children()]
        return bool(found) and catches(found[0])

    wait_until(has_handler)
    return found[0]


def catches(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("is_first", [False, True], ids=["ordinary", "process 1"])
@pytest.mark.parametrize("flags", [(), MANAGEMENT], ids=["broker", "with management"])
def test_a_start_that_is_stopped_ends_with_zero(
    tmp_path: Path, flags: tuple[str, ...], is_first: bool
) -> None:
    if is_first and not may_unshare():
        pytest.skip("needs the right to make PID namespaces")
    words = ("serve", "--port", "0", "--data-dir", str(tmp_path / "data"), *flags)
    with started(*words, is_first=is_first) as (process, pid):
        os.kill(pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert '"signal": "SIGTERM", "event": "broker.stopping"' in output
    assert '"event": "broker.stopped"' in output
    assert "ready" not in output


def test_a_management_process_that_starts_is_stopped(tmp_path: Path) -> None:
    ports = MANAGEMENT[2:]
    words = ("manage", "--data-dir", str(tmp_path), *ports)
    with started(*words, is_first=False) as (process, pid):
        os.kill(pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output) == (0, "")


def test_what_was_confirmed_is_there_after_starts_that_were_stopped(tmp_path: Path) -> None:
    """Each is stopped somewhere else: after so many polls of what it is at."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    with blocking(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.basic_publish("", "kept", b"one", PERSISTENT)
    broker.kill9()
    words = ("serve", "--port", "0", "--data-dir", str(broker.data_dir))
    for polls in range(0, 300, 60):
        with started(*words, is_first=False) as (process, pid):
            for _ in range(polls):
                catches(pid)
            os.kill(pid, signal.SIGTERM)
            output, _ = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, output
            assert "Traceback" not in output
    broker.start()
    with blocking(broker) as connection:
        assert connection.channel().basic_get("kept")[2] == b"one"
    assert broker.stop() == 0
