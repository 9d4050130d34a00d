"""The process of a broker for tests: started, stopped, killed, and started again on its port.

    BrokerProcess ─▶ python -I launch.py … serve
       ▲ ready line │ log file │ lifeline: a pipe, whose end ends the broker

Must not know what the broker is asked.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vouchmq.testing.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST: Final = "127.0.0.1"
LOG_NAME: Final = "broker.log"
LAUNCH: Final = Path(__file__).with_name("launch.py")
PACKAGE_FOLDER: Final = Path(__file__).resolve().parents[2]
# Settings of another broker, and what would have coverage measured in this process.
FOREIGN_PREFIXES: Final = ("VOUCHMQ_", "RABBITMQ_DEFAULT_", "COV_CORE_", "COVERAGE_PROCESS_")
LOG_TAIL_LINES: Final = 20
BROKER_READY: Final = "broker.ready"
MANAGEMENT_READY: Final = "management.ready"
POLL_MS_MOST: Final = 2_000_000_000
KILL_LIMIT_S: Final = 60.0


class KeptPort:
    """A port that nobody else is given while its broker does not run.

    It is bound and does not listen, so that clients are refused as if nobody had it.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def keep(self, port: int) -> None:
        """Keep it, as far as nobody has it yet."""
        self.give()
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            held.bind((HOST, port))
        self._socket = held

    def give(self) -> None:
        """The broker has it again, or needs it no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class BrokerProcess:
    """One broker on one data directory.

    Args:
        data_dir: its data directory
        log_file: where its log goes, of all its starts
        settings: those of `vouchmq serve`, by name; without a port the system chooses one
    """

    def __init__(self, data_dir: Path, log_file: Path, settings: Mapping[str, object]) -> None:
        self.data_dir = data_dir
        self.log_file = log_file
        self.ports: dict[str, int] = {"port": int(str(settings.get("port", 0)))}
        self.settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._kept_port = KeptPort()

    @property
    def port(self) -> int:
        """Where it listens; 0 before its first start."""
        return self.ports["port"]

    @property
    def pid(self) -> int:
        """Its process id; 0 when it does not run."""
        return self._process.pid if self._process is not None and self.is_running else 0

    @property
    def is_running(self) -> bool:
        """True between its start and its end."""
        return self._process is not None and self._process.poll() is None

    def start(self, limit_s: float) -> None:
        """Start it and wait until clients can connect, at the port that it had before.

        Raises:
            BrokerError: it ends, or is not ready within the limit
        """
        # It may have ended by itself.
        self._end(KILL_LIMIT_S)
        reading, self._lifeline = os.pipe()
        try:
            self._process = self._spawn(reading)
        finally:
            os.close(reading)
        try:
            self._await_ready(self._process, limit_s)
        except BaseException:
            self.kill()
            raise
        self._kept_port.give()

    def kill(self) -> None:
        """End it as SIGKILL does; returns when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._end(KILL_LIMIT_S)

    def freeze(self) -> None:
        """Stop it where it is, until `thaw`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on; nothing if it has gone meanwhile."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self, limit_s: float) -> int:
        """Ask it to end in order; returns its exit code.

        Raises:
            BrokerError: it has not ended within the limit, and has been killed
        """
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._end(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"the broker did not stop within {limit_s:g} s") from None

    def forget_port(self) -> None:
        """It is not started again: others may have its port."""
        self._kept_port.give()

    def log_tail(self) -> str:
        """The last lines of its log, for an error message."""
        with suppress(FileNotFoundError):
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
            return "\n".join(lines[-LOG_TAIL_LINES:])
        return ""

    def _spawn(self, lifeline: int) -> subprocess.Popen[bytes]:
        settings = {"host": HOST, "data_dir": self.data_dir} | self.settings | self.ports
        command = [
            *(sys.executable, "-I", str(LAUNCH), str(PACKAGE_FOLDER), str(lifeline), "serve"),
            *(word for name, value in settings.items() for word in flag_of(name, value)),
        ]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(FOREIGN_PREFIXES)
        }
        with self.log_file.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own interpreter
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=(lifeline,),
                # Ctrl-C in the terminal is for the tests, which then end the broker.
                start_new_session=True,
            )

    def _await_ready(self, process: subprocess.Popen[bytes], limit_s: float) -> None:
        """Read standard output until all that is awaited has said where it listens."""
        if process.stdout is None:
            raise BrokerError("the broker has no standard output")
        descriptor = process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ends_at = time.monotonic() + limit_s
        awaited = {BROKER_READY, MANAGEMENT_READY} if self._has_management else {BROKER_READY}
        heard = b""
        while awaited:
            left_ms = min((ends_at - time.monotonic()) * 1000, POLL_MS_MOST)
            if left_ms <= 0 or not poll.poll(left_ms):
                raise BrokerError(
                    f"the broker was not ready within {limit_s:g} s\n{self.log_tail()}"
                )
            data = os.read(descriptor, 4096)
            if not data:
                raise BrokerError(f"the broker did not start\n{self.log_tail()}")
            *lines, heard = (heard + data).split(b"\n")
            for line in lines:
                event = json.loads(line)
                awaited.discard(event["event"])
                self._take_ports(event)

    @property
    def _has_management(self) -> bool:
        return self.settings.get("management") in {True, "on", "true", "yes", "1"}

    def _take_ports(self, event: Mapping[str, object]) -> None:
        """Keep the ports, for the next start as well."""
        for name in ("port", "management_port", "prometheus_port"):
            value = event.get(name)
            if isinstance(value, int):
                self.ports[name] = value

    def _end(self, limit_s: float) -> int:
        process = self._process
        if process is None:
            return 0
        code = process.wait(limit_s)
        self._process = None
        if process.stdout is not None:
            process.stdout.close()
        os.close(self._lifeline)
        if self.port:
            self._kept_port.keep(self.port)
        return code


def flag_of(name: str, value: object) -> list[str]:
    """A setting as flags of `vouchmq serve`."""
    if isinstance(value, bool):
        text = "on" if value else "off"
    elif isinstance(value, list | tuple | set | frozenset):
        text = ",".join(map(str, value)) or "none"
    else:
        text = str(value)
    return [f"--{name.replace('_', '-')}", text]
