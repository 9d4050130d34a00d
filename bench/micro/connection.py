"""What a connection costs the broker: instructions and system calls.

    make compile && cd build/compiled && .venv/bin/python -m bench.micro.connection [--out FILE]

The cycle of `connect_500`: connect, log in, open a channel, close both, one client after the other.
The whole process of the broker runs in callgrind (of valgrind), uvloop and Python's library with
it, but not the kernel. In callgrind a connection takes fifty times as long as otherwise, so what
the broker does by the clock is counted while it has nothing else to do, and taken off. Another
broker is watched by strace, of which the slope between rounds of different length is told. It works
interpreted as well.
"""

import argparse
import json
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import frames
from bench.client import Address, handshake_steps
from bench.micro.single import calls, slope
from bench.run import conditions
from bench.servers import Server, vouchmq
from vouchmq.protocol.native import IS_NATIVE

# Connections that warm it up, those that are counted, and those of the rounds under strace.
WARM_UP = 30
CONNECTIONS = 300
ROUNDS = (100, 300)
# How long it is looked at while it does nothing.
IDLE_S = 5.0
LIMIT_S = 60.0
# Of a broker in callgrind.
START_LIMIT_S = 300.0
ASKED_EVERY_S = 0.05
CLOSES_AT_ONCE = b"\1\0\0\0\0\0\0\0"


def connect(address: Address, count: int) -> None:
    """Connect, open a channel and close again, so often.

    Raises:
        RuntimeError: the broker has closed one of them
    """
    steps = [*handshake_steps(address), (1, frames.channel_open())]
    steps += [(1, frames.channel_close()), (1, frames.connection_close())]
    for _ in range(count):
        with socket.create_connection((address.host, address.port), LIMIT_S) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for replies, octets in steps:
                client.sendall(octets)
                data, found = b"", 0
                while found < replies:
                    more = client.recv(65536)
                    if not more:
                        raise RuntimeError("the broker has closed the connection")
                    done, data = frames.split(data + more)
                    found += len(done)
            # As the bench does it: a reset leaves no port behind.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSES_AT_ONCE)


def command(data: str = "{data_dir}") -> str:
    """The command line of a broker."""
    python = shlex.quote(sys.executable)
    return f"{python} -m vouchmq serve --port 0 --data-dir {data} --log-level warning"


class Counter:
    """Counts the instructions of a process that runs in callgrind.

    Args:
        pid: its process
        out: where callgrind writes what it has counted, followed by a number
    """

    def __init__(self, pid: int, out: Path) -> None:
        self._pid = pid
        self._out = out

    def begin(self) -> None:
        """Count from now on."""
        self._control("-i", "on")

    def counted(self, work: Callable[[], None]) -> tuple[int, float]:
        """Return how many it takes meanwhile, and the seconds that it took.

        Raises:
            RuntimeError: callgrind has written nothing
        """
        before = self._dumps()
        self._control("-z")
        began = time.monotonic()
        work()
        duration_s = time.monotonic() - began
        self._control("-d")
        ends_at = time.monotonic() + LIMIT_S
        while time.monotonic() < ends_at:
            for dump in self._dumps() - before:
                total = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
                if total is not None:
                    return int(total[1]), duration_s
            time.sleep(ASKED_EVERY_S)
        raise RuntimeError("callgrind has written nothing")

    def _dumps(self) -> set[Path]:
        return set(self._out.parent.glob(f"{self._out.name}.*"))

    def _control(self, *options: str) -> None:
        command = ["callgrind_control", *options, str(self._pid)]
        subprocess.run(command, check=True, capture_output=True)


def counted_instructions(place: Path) -> dict[str, int]:
    """Return the instructions of a connection, without those of a broker that has nothing to do."""
    out = place / "callgrind.out"
    valgrind = f"valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file={out}"
    with vouchmq(f"{valgrind} {command()}", place, start_limit_s=START_LIMIT_S) as server:
        connect(server.address, WARM_UP)
        counter = Counter(known_pid(server), out)
        counter.begin()
        connect(server.address, WARM_UP)
        count, duration_s = counter.counted(lambda: connect(server.address, CONNECTIONS))
        idle, idle_s = counter.counted(lambda: time.sleep(IDLE_S))
    beside = int(idle / idle_s * duration_s)
    return {
        "instructions": (count - beside) // CONNECTIONS,
        "by_the_clock_meanwhile": beside // CONNECTIONS,
    }


def counted_calls(place: Path) -> dict[str, float]:
    """The system calls of a connection, by name, in the broker's own process."""
    with vouchmq(command(), place) as server:
        connect(server.address, WARM_UP)
        pid = known_pid(server)
        short, long = (
            calls([pid], lambda count=count: connect(server.address, count))[0]  # type: ignore[misc]
            for count in ROUNDS
        )
    return slope(short, long, ROUNDS[1] - ROUNDS[0])


def known_pid(server: Server) -> int:
    """The process of a broker that was started here."""
    if server.pid is None:
        raise RuntimeError("the server's process cannot be seen")
    return server.pid


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, help="where the counts go as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vouchmq-connection-") as place:
        told: dict[str, object] = {
            "conditions": conditions(Path(place)),
            "build": "compiled" if IS_NATIVE else "pure Python",
            "per_connection": counted_instructions(Path(place, "instructions")),
            "system_calls_per_connection": counted_calls(Path(place, "calls")),
        }
    sys.stdout.write(json.dumps(told, indent=1) + "\n")
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
