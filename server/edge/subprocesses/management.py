"""The management process of a broker: started with it, watched, started again, ended with it.

    settings ─▶ one argument of JSON ─▶ python -m vouchmq.management
    its end ─▶ a descriptor that becomes readable ─▶ logged, and started again after a while

It asks the broker over the control socket, as any other program may; nothing of it runs in this
process. Its standard input is a pipe that is never written: its end tells the management process
that the broker has gone, however that went. Must not know what the process does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from msgspec import json

from vouchmq.server.version import __file__ as version_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.server.connection.wire import Timer
    from vouchmq.server.settings.settings import Settings

log = structlog.get_logger(__name__)

FIRST_DELAY_S: Final = 0.5
LONGEST_DELAY_S: Final = 30.0
# One that has lived so long is no part of a series of failures.
LIVED_S: Final = 60.0
END_LIMIT_S: Final = 2.0
# The folder in which `vouchmq` is, for a process that is to run this same code.
PACKAGES: Final = Path(version_file).absolute().parents[2]


class Loop(Protocol):
    """What is asked of the event loop."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> object:
        """Call when the descriptor is readable."""

    def remove_reader(self, fd: int, /) -> object:
        """Do not call any more."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        """Call after a delay."""

    def time(self) -> float:
        """Monotonic seconds."""


class ManagementProcess:
    """One process, started again whenever it ends, later each time.

    Args:
        command: the program and its arguments
        loop: that of the broker
    """

    def __init__(self, command: Sequence[str], loop: Loop) -> None:
        self._command = list(command)
        self._loop = loop
        self._process: subprocess.Popen[bytes] | None = None
        self._descriptor = -1
        self._timer: Timer | None = None
        self._started_at = 0.0
        self._delay_s = FIRST_DELAY_S

    def start(self) -> None:
        """Start it; returns at once."""
        self._timer = None
        self._started_at = self._loop.time()
        try:
            # In a session of its own: Ctrl+C is for the broker, which ends it in its time.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                self._command,
                stdin=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": _search_path()},
                start_new_session=True,
            )
            self._descriptor = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._forget()
            log.error("management.start_failed", reason=str(error), delay_s=self._delay_s)
            self._start_later()
            return
        self._loop.add_reader(self._descriptor, self._ended)

    def reload(self) -> None:
        """Have it read its certificate again."""
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """End it, and wait for that a moment; it is killed if it does not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        process = self._process
        if process is None:
            return
        self._forget()
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _ended(self) -> None:
        process = self._process
        if process is None:
            return
        self._forget()
        if self._loop.time() - self._started_at >= LIVED_S:
            self._delay_s = FIRST_DELAY_S
        log.warning(
            "management.ended",
            exit_code=process.wait(),
            delay_s=self._delay_s,
            meaning="messaging goes on; the process is started again after delay_s",
        )
        self._start_later()

    def _start_later(self) -> None:
        self._timer = self._loop.call_later(self._delay_s, self.start)
        self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)

    def _forget(self) -> None:
        """Let go of the process, which ends by that if it has not yet."""
        process, self._process = self._process, None
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        if process is not None and process.stdin is not None:
            process.stdin.close()


def start_management(settings: Settings, loop: Loop) -> ManagementProcess:
    """The management process of a broker, started if the settings ask for one."""
    process = ManagementProcess(management_command(settings), loop)
    if settings.management:
        process.start()
    return process


def management_command(settings: Settings) -> list[str]:
    """The command of the management process of a broker with these settings."""
    options = {
        "data_dir": str(settings.data_dir.absolute()),
        "hosts": settings.management_host,
        "management_port": settings.management_port,
        "prometheus_port": settings.prometheus_port,
        "cert_file": settings.tls_cert_file if settings.management_tls else "",
        "key_file": settings.tls_key_file if settings.management_tls else "",
        "log_level": settings.log_level,
        "log_format": settings.log_format,
        "is_watched": True,
    }
    return [sys.executable, "-P", "-m", "vouchmq.management", json.encode(options).decode()]


def _search_path() -> str:
    return os.pathsep.join(filter(None, (str(PACKAGES), os.environ.get("PYTHONPATH"))))
