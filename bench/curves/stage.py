"""Where a point of a curve is measured: a broker of its own, with a clock in its loop.

What a point costs is CPU time: on a machine that others use as well, rates and waits say more about
them. So is its longest stall: the time of the loop's thread between two ticks of the clock. The
part of it that Python's garbage collector took is told, too.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench import servers
from bench.client import Address, Client
from bench.frames import qos
from bench.servers import Server

PATIENCE_S: Final = 600.0
SETTLE_S: Final = 0.5
"""What is put off to later turns belongs to a point, too."""
LONG_MS: Final = 20.0
"""No stall should take more of the loop's CPU time."""
COMMAND: Final = (
    f"{shlex.quote(sys.executable)} -m bench.loop_clock {{clock}} serve --port 0 "
    "--data-dir {{data_dir}} --log-level warning"
)


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of the loop: when it ended (monotonic seconds), and milliseconds of CPU time."""

    at_s: float
    wall_ms: float
    cpu_ms: float
    gc_ms: float


@dataclass(slots=True)
class Stage:
    """A running broker, and what has been measured on it."""

    server: Server
    clock: Path
    series: dict[str, float] = field(default_factory=dict)
    """CPU microseconds of the whole process tree for each item, by the name of the series."""
    stalls: dict[str, Pause] = field(default_factory=dict)
    """The longest pause of each series."""
    long_stall_count: int = 0

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self.server.address

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Connect, and close in order."""
        with Client(self.address) as made:
            made.socket.settimeout(PATIENCE_S)
            yield made
            made.close()

    @contextmanager
    def watched(self, series: str) -> Iterator[None]:
        """Note the longest pause while the block runs and just after it."""
        first_s = time.monotonic()
        yield
        time.sleep(SETTLE_S)
        self.server.require_alive()
        found = [pause for pause in self._pauses() if pause.at_s >= first_s]
        self.long_stall_count += sum(pause.cpu_ms > LONG_MS for pause in found)
        longest = max(found, key=lambda pause: pause.cpu_ms, default=Pause(0.0, 0.0, 0.0, 0.0))
        self.stalls[series] = longest

    @contextmanager
    def measured(self, series: str, count: int) -> Iterator[None]:
        """Note what the block costs for each of so many items, and its longest pause."""
        with self.watched(series):
            cpu_s = self.server.cpu_s() or 0.0
            yield
            self.series[series] = ((self.server.cpu_s() or 0.0) - cpu_s) * 1e6 / count

    def _pauses(self) -> list[Pause]:
        lines = self.clock.read_text().splitlines()
        return [Pause(*map(float, line.split())) for line in lines]


@contextmanager
def stage(directory: Path, flags: Sequence[str] = ()) -> Iterator[Stage]:
    """Start a broker for one point."""
    directory.mkdir()
    clock = directory / "pauses"
    command = COMMAND.format(clock=shlex.quote(str(clock))) + "".join(f" {flag}" for flag in flags)
    with servers.vouchmq(command, directory) as server:
        yield Stage(server, clock)


def finish(client: Client) -> None:
    """Wait until the broker has done everything that the client has sent so far."""
    client.call(qos(0))


def until(is_over: Callable[[], bool]) -> None:
    """Look every 50 ms until it is over."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_over():
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.05)
