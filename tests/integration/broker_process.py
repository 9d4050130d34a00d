"""A broker as its operator sees it: a process that is started, stopped, killed and restarted.

Knows the command line, the ready line and the data directory; nothing of what is inside.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from tests.waiting import LIMIT_S, wait_until

PROJECT = Path(__file__).resolve().parents[2]
READY_LINE = re.compile(r"^VouchMQ ready on (?P<host>\S+):(?P<port>\d+)\s*$", re.MULTILINE)
# Hang limits: a machine may be busy.
START_LIMIT_S = LIMIT_S
STOP_LIMIT_S = LIMIT_S
POLL_S = 0.01


class Broker(Protocol):
    """What every client test needs of the broker under test."""

    @property
    def url(self) -> str:
        """Where it listens, as an amqp:// URL."""

    @property
    def is_referee(self) -> bool:
        """True when it is another broker, to compare with."""


class RefereeBroker:
    """A broker that somebody else started; it can be used but not restarted."""

    is_referee = True

    def __init__(self, url: str) -> None:
        # rabbitmq-c reads the path "/" as an empty virtual host: spell it out for everybody.
        self.url = url[:-1] + "/%2F" if url.count("/") == 3 and url.endswith("/") else url


class StartError(Exception):
    """The process ended, or printed no ready line in time; carries its output."""


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The tests' environment without settings that happen to be exported on this machine."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VOUCHMQ_", "RABBITMQ_"))
    }
    return {**kept, "VOUCHMQ_AUTH_FAILURE_DELAY_S": "0", **(extra or {})}


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Another command of the program, such as `store check DIR`, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "vouchmq", *arguments],
        cwd=PROJECT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


class KeptPort:
    """A port that nobody else is given as long as this lives.

    Another process of the tests could have it else, when it asks for any, while the broker that
    had it is being started again. It is bound, at both addresses of this machine as a broker binds
    it, and does not listen: clients are refused as long as no broker does, and one that asks for
    this port may have it.
    """

    def __init__(self) -> None:
        self._bound: list[socket.socket] = []
        self.give = weakref.finalize(self, _close, self._bound)
        held = self._hold(socket.AF_INET, "127.0.0.1", 0)
        # What one address has free may be taken at the other.
        while not self._hold_both(held):
            held = self._hold(socket.AF_INET, "127.0.0.1", 0)
        self.port = int(held.getsockname()[1])

    def _hold_both(self, held: socket.socket) -> bool:
        try:
            self._hold(socket.AF_INET6, "::1", held.getsockname()[1])
        except OSError as error:
            return error.errno != errno.EADDRINUSE
        return True

    def _hold(self, family: socket.AddressFamily, address: str, port: int) -> socket.socket:
        held = socket.socket(family)
        self._bound.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, port))
        return held


def _close(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()


class BrokerProcess:
    """One VouchMQ process on a data directory of its own."""

    is_referee = False

    def __init__(
        self,
        directory: Path,
        *,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        program: str = "vouchmq",
    ) -> None:
        """`directory` holds data and output.

        `prefix` is a program that runs ours (strace), `program` the module that is run.
        """
        self.data_dir = directory / "data"
        self.port = 0
        self.forgiven: tuple[str, ...] = ()
        self._output_file = directory / "output.log"
        self._flags = list(flags)
        self._environment = clean_environment(environment)
        self._prefix = list(prefix)
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._kept_port: KeptPort | None = None
        self._printed_before = 0

    @property
    def url(self) -> str:
        """Where it listens, as an amqp:// URL with the virtual host spelt out."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    @property
    def pid(self) -> int:
        """The broker's process id, also when it runs below another program."""
        assert self._process is not None
        if not self._prefix:
            return self._process.pid
        return int(psutil.Process(self._process.pid).children()[0].pid)

    @property
    def is_running(self) -> bool:
        """True between start and the end of the process."""
        return self._process is not None and self._process.poll() is None

    def output(self) -> str:
        """Everything the process has printed since its first start."""
        if not self._output_file.exists():
            return ""
        return self._output_file.read_text(encoding="utf-8", errors="replace")

    def complaints(self) -> list[str]:
        """The lines that tell of something wrong inside, which no client can cause.

        What a test provokes itself it names in `forgiven`.
        """
        signs = ("Traceback", '"level": "error"', '"level": "critical"', "INTERNAL_ERROR")
        return [
            line
            for line in self.output().splitlines()
            if any(sign in line for sign in signs)
            and not any(event in line for event in self.forgiven)
        ]

    def start(self, limit_s: float = START_LIMIT_S) -> float:
        """Start and wait for the ready line; returns the seconds that took."""
        began = time.monotonic()
        self.begin()
        self.wait_until_ready(limit_s)
        return time.monotonic() - began

    def begin(self) -> None:
        """Start, and wait for nothing.

        Every start asks for the same port, so that clients may reconnect.
        """
        self.choose_port()
        self._printed_before = len(self.output())
        command = [
            *self._prefix,
            *(sys.executable, "-m", self._program, "serve", "--port", str(self.port)),
            *("--data-dir", str(self.data_dir), "--log-level", "warning", *self._flags),
        ]
        with self._output_file.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def choose_port(self) -> None:
        """Choose the port now, if there is none yet; the first start does it else."""
        if not self.port:
            self._kept_port = KeptPort()
            self.port = self._kept_port.port

    def wait_until_ready(self, limit_s: float = START_LIMIT_S) -> None:
        """Wait for the ready line of this start."""
        began = time.monotonic()
        while time.monotonic() - began < limit_s:
            ready = READY_LINE.search(self.output(), self._printed_before)
            if ready is not None:
                self.port = int(ready["port"])
                return
            if not self.is_running:
                raise StartError(self.output()[self._printed_before :])
            time.sleep(POLL_S)
        self.kill9()
        raise StartError(f"no ready line in {limit_s} s: {self.output()}")

    def kill9(self) -> None:
        """Kill the broker without a word, as the kernel would; returns when it is gone."""
        if self._process is None or self._process.poll() is not None:
            return
        if self._prefix:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.kill()
        self._process.kill()
        self._ended(STOP_LIMIT_S)

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Ask it to drain and end; returns its exit code."""
        assert self._process is not None
        if self.is_running:
            os.kill(self.pid, signal.SIGTERM)
        return self._ended(limit_s)

    def restart(self) -> float:
        """Start again on the same data and port; returns the seconds to ready."""
        self.kill9()
        return self.start()

    def wait_until(self, claim: Callable[[], object]) -> None:
        """Wait for something to happen to a broker that must stay up."""

        def is_so() -> object:
            assert self.is_running, self.output()
            return claim()

        wait_until(is_so, lambda: self.output()[-2000:])

    def wait_for_log(self, *words: str) -> None:
        """Wait until one line of its output has all these words."""

        def is_there() -> bool:
            return any(all(each in line for each in words) for line in self.output().splitlines())

        self.wait_until(is_there)

    def listed(self, what: str) -> list[dict[str, object]]:
        """The rows of `vouchmq list`."""
        done = run_command("list", what, "--data-dir", str(self.data_dir), "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def resident_bytes(self) -> int:
        """Resident memory of the broker process, without its helper."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def wait(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Wait for the process to end by itself; returns its exit code."""
        return self._ended(limit_s)

    def _ended(self, limit_s: float) -> int:
        """Wait for the process to end; its exit code."""
        assert self._process is not None
        return self._process.wait(limit_s)
