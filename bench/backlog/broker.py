"""A broker that a measurement stops, kills and starts again, and what memory it takes."""

from __future__ import annotations

import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import process_tree, servers
from bench.client import Address

MIB: Final = 1024 * 1024
Row = dict[str, object]


class Broker:
    """A broker of ours that may be stopped, killed and started again on the same directory."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        self.data_dir = data_dir
        self.flags = flags
        self.start_s = 0.0
        self._process: subprocess.Popen[str] | None = None
        self.address = Address("127.0.0.1", 0)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = shlex.split(servers.DEFAULT_VOUCHMQ.format(data_dir=self.data_dir))
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, *self.flags], cwd=servers.ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if ready := servers.READY.search(line):
                self.start_s = time.perf_counter() - began
                self.address = Address("127.0.0.1", int(ready[1]))
                return
        raise servers.ServerError("the broker did not get ready")

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


@contextmanager
def running(data_dir: Path, *flags: str) -> Iterator[Broker]:
    broker = Broker(data_dir, *flags)
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


class Peak:
    """The largest resident set of a process tree while a block runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.rss_mib = 0

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.25):
            self.rss_mib = max(self.rss_mib, rss_mib(self._pid))


def rss_mib(pid: int) -> int:
    return process_tree.memory(pid).rss_bytes // MIB


def high_water_mib(pid: int) -> int:
    """The largest resident set a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0


def disk_mib(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir()) // MIB
