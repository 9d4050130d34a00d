"""The management process seen from the broker: started again, later each time, and ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from structlog.testing import capture_logs

from tests.waiting import wait_until
from vouchmq.server.edge.subprocesses.management import (
    LIVED_S,
    ManagementProcess,
    management_command,
)
from vouchmq.server.settings.settings import Settings


class Timer:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """Calls nobody by itself."""

    def __init__(self) -> None:
        self.now = 0.0
        self.readers: dict[int, Callable[[], None]] = {}
        self.later: list[tuple[float, Callable[[], None], Timer]] = []

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> None:
        self.readers[fd] = callback

    def remove_reader(self, fd: int, /) -> None:
        del self.readers[fd]

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        self.later.append((delay, callback, Timer()))
        return self.later[-1][2]

    def time(self) -> float:
        return self.now

    def end_one(self) -> float:
        """The process has ended: the delay after which it is started again."""
        [callback] = self.readers.values()
        callback()
        return self.later[-1][0]


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_it_is_started_again_later_each_time() -> None:
    loop = Loop()
    process = ManagementProcess(python("raise SystemExit(3)"), loop)
    process.start()
    delays = []
    with capture_logs() as events:
        for _ in range(9):
            delays.append(loop.end_one())
            assert not loop.readers
            loop.later[-1][1]()
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert [(event["event"], event["exit_code"]) for event in events] == [
        ("management.ended", 3)
    ] * 9
    # One that has lived for a while begins a new series.
    loop.now += LIVED_S
    assert loop.end_one() == 0.5
    process.stop()
    assert loop.later[-1][2].is_cancelled


def test_a_program_that_is_not_there_is_tried_again() -> None:
    loop = Loop()
    process = ManagementProcess(["/nonexistent/program"], loop)
    with capture_logs() as events:
        process.start()
        loop.later[-1][1]()
    assert [each[0] for each in loop.later] == [0.5, 1.0]
    assert {event["event"] for event in events} == {"management.start_failed"}
    process.stop()


def test_the_end_of_its_input_ends_it(tmp_path: Path) -> None:
    loop, started, done = Loop(), tmp_path / "started", tmp_path / "done"
    code = f"import sys; open({str(started)!r}, 'w'); sys.stdin.read(); open({str(done)!r}, 'w')"
    process = ManagementProcess(python(code), loop)
    process.start()
    wait_until(started.exists, str)
    process.stop()
    assert done.exists()
    assert not loop.readers
    assert not loop.later
    process.stop()


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"import time; open({str(started)!r}, 'w').close(); time.sleep(600)"
    loop = Loop()
    process = ManagementProcess(python(code), loop)
    process.start()
    wait_until(started.exists, str)
    process.stop()
    assert not loop.readers


def test_its_command_has_the_settings() -> None:
    settings = Settings(data_dir=Path("d"), management_host=("::",), management_port=1)
    *program, options = management_command(settings)
    assert program[1:] == ["-P", "-m", "vouchmq.management"]
    assert json.loads(options) == {
        "data_dir": str(Path.cwd() / "d"),
        "hosts": ["::"],
        "management_port": 1,
        "prometheus_port": 15692,
        "cert_file": "",
        "key_file": "",
        "log_level": "info",
        "log_format": "auto",
        "is_watched": True,
    }
