"""What a drained message costs, in instructions.

    make compile && cd build/compiled && .venv/bin/python -m bench.micro.drain [--out FILE]

A backlog of one queue goes to one consumer with a prefetch of 200, which acknowledges fifty
messages with one `basic.ack` (multiple) or each alone, a hundred messages in a read: what the
bench's rows about draining do. The broker's parts are in one process, with a real directory, a
clock that stands still and no socket: a write goes to /dev/null. Callgrind (of valgrind) counts
while a part of the backlog is drained that is neither the first nor the last of it, so that start
and filling are not in it, nor is the kernel. It works interpreted as well.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import pack

from bench import frames
from bench.run import conditions
from vouchmq.protocol.native import IS_NATIVE
from vouchmq.server.connection.connection import Connection
from vouchmq.server.connection.handshake import Handshake, Offer
from vouchmq.server.runtime.runtime import Host, start_broker
from vouchmq.server.settings.accounts import UserAccount
from vouchmq.server.settings.settings import Settings
from vouchmq.store.disk import FileDisk
from vouchmq.store.sync.worker import SyncInline

QUEUE = "drained"
PREFETCH_COUNT = 200
# Of each read, and of each basic.ack with multiple.
READ_MESSAGES = 100
ACK_EVERY = 50
FILL_MESSAGES = 12_000
PUBLISH_READ_OCTETS = 65536
# Drained before those that count, and those; the last messages stay.
FIRST_MESSAGES = 3_000
COUNTED_MESSAGES = 8_000


@dataclass(frozen=True)
class Row:
    """What is drained: bodies of so many octets, from memory or from disk."""

    body_octets: int
    is_persistent: bool
    queue_memory_bytes: int
    ack_every: int = ACK_EVERY


ROWS = {
    "transient, 100 B, in memory": Row(100, False, 1 << 30),
    "transient, 100 B, paged": Row(100, False, 1 << 20),
    "transient, 100 B, in memory, an ack for each": Row(100, False, 1 << 30, 1),
    "persistent, 1 KiB, in memory": Row(1024, True, 1 << 30),
    "persistent, 1 KiB, paged": Row(1024, True, 1 << 22),
}


class Null:
    """The wire to a client that reads everything at once and says what it is told to."""

    name = "127.0.0.1:50000 -> 127.0.0.1:5672"
    is_paused = is_swamped = False
    unsent_octets = 0

    def __init__(self) -> None:
        self._descriptor = os.open(os.devnull, os.O_WRONLY)
        self.octets = 0

    def write(self, data: bytes | memoryview) -> bool:
        self.octets += os.write(self._descriptor, data)
        return True

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        for part in parts:
            self.write(part)

    def limit_unsent(self, octets: int) -> None: ...
    def pause(self, reason: int) -> None: ...
    def resume(self, reason: int) -> None: ...
    def finish(self, *, is_orderly: bool = False) -> None: ...
    def abort(self) -> None: ...
    def cancel(self) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "Null":
        del delay_s, callback  # the clock stands still
        return self


class Broker:
    """A broker whose turns are run by hand."""

    def __init__(self, directory: str, row: Row) -> None:
        self._scheduled: list[Callable[[], None]] = []
        settings = Settings(
            users=(UserAccount("guest", password="guest"),),  # noqa: S106
            disk_free_limit="0",
            queue_memory_bytes=row.queue_memory_bytes,
        )
        host = Host(
            call_soon=self._scheduled.append,
            call_later=lambda delay_s, callback: None,
            clock=lambda: 1000.0,
            wall_ms=lambda: 1_600_000_000_000,
            random_token=lambda: "0" * 22,
            fatal=sys.exit,
        )
        self._runtime = start_broker(settings, FileDisk(directory), SyncInline(), host)
        self._runtime.broker.create_vhost("/")
        self.wire = Null()
        handshake = Handshake(
            Offer("bench@localhost", "VouchMQ", "1", "bench", channel_max=2047, heartbeat_s=0),
            self._runtime.authenticator,
            self._runtime.broker.vhosts.get,
            self._runtime.connection_limits,
            peer=self.wire.name,
            is_loopback=True,
        )
        runtime = self._runtime
        self._connection = Connection(runtime.context, runtime.connections, self.wire, handshake)
        for octets in (
            frames.PROTOCOL_HEADER,
            frames.start_ok("guest", "guest"),
            frames.tune_ok(),
            frames.connection_open("/"),
            frames.channel_open(),
            frames.queue_declare(QUEUE, durable=row.is_persistent),
        ):
            self.read(octets)

    @property
    def delivered_count(self) -> int:
        """How many messages have gone out."""
        return self._connection.channels[1].next_tag - 1

    def read(self, octets: bytes) -> None:
        """Take what one read of the socket brings, with all that follows from it."""
        self._connection.receive(octets)
        commit = self._runtime.commit
        while self._scheduled or not commit.is_idle:
            scheduled, self._scheduled[:] = list(self._scheduled), []
            for job in scheduled:
                job()
            if not commit.is_idle:
                commit.on_readable()


def reads(first: int, count: int, ack_every: int) -> list[bytes]:
    """What the client says of so many messages behind the first ones, read by read."""
    said: list[bytes] = []
    for at in range(first, first + count, READ_MESSAGES):
        tags = range(at + ack_every, at + READ_MESSAGES + 1, ack_every)
        acks = (frames.method(1, (60, 80), pack(">Q?", tag, ack_every > 1)) for tag in tags)
        said.append(b"".join(acks))
    return said


def play(directory: str, row: Row, *, is_counted: bool) -> None:
    """Fill the queue and drain a part of it, the second part of that under callgrind's eyes.

    Raises:
        RuntimeError: something else came out
    """
    broker = Broker(directory, row)
    publish = frames.publish("", QUEUE, bytes(row.body_octets), persistent=row.is_persistent)
    left = FILL_MESSAGES
    while left:
        some = min(left, PUBLISH_READ_OCTETS // len(publish))
        broker.read(publish * some)
        left -= some
    broker.read(frames.qos(PREFETCH_COUNT))
    broker.read(frames.consume(QUEUE, "worker", no_ack=False))
    for each in reads(0, FIRST_MESSAGES, row.ack_every):
        broker.read(each)
    counted = reads(FIRST_MESSAGES, COUNTED_MESSAGES, row.ack_every)
    octets = broker.wire.octets
    if is_counted:
        instrument("on")
    for each in counted:
        broker.read(each)
    if is_counted:
        instrument("off")
    if broker.delivered_count != FIRST_MESSAGES + COUNTED_MESSAGES + PREFETCH_COUNT:
        raise RuntimeError(f"{broker.delivered_count} messages went out")
    if broker.wire.octets - octets < COUNTED_MESSAGES * row.body_octets:
        raise RuntimeError(f"only {broker.wire.octets - octets} octets went out")


def instrument(switch: str) -> None:
    """Have callgrind, under which this process runs, count from now on or no longer.

    Raises:
        RuntimeError: it does not
    """
    command = f"callgrind_control --instr={switch} {os.getpid()} >/dev/null"
    # Of the calls that start a program it takes the fewest instructions.
    if os.system(command):  # noqa: S605
        raise RuntimeError(command)


def instructions(name: str, counts: Path | None) -> int:
    """Return what callgrind counts for each message; where it went goes to a file.

    Raises:
        RuntimeError: it has counted nothing
    """
    with tempfile.TemporaryDirectory(prefix="vouchmq-drain-") as place:
        out = counts or Path(place) / "out"
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
        command += [f"--callgrind-out-file={out}", sys.executable, "-m", "bench.micro.drain"]
        command += ["--row", name, "--counted", "--play", str(Path(place) / "data")]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(done.stderr)
    return int(found[1]) // COUNTED_MESSAGES


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--row", choices=ROWS, action="append", help="only these")
    parser.add_argument("--out", type=Path, help="where the counts go as JSON")
    parser.add_argument("--profile", type=Path, help="where callgrind's own file of a row goes")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    parser.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.row or list(ROWS)
    if arguments.play:
        play(arguments.play, ROWS[names[0]], is_counted=arguments.counted)
        return
    told: dict[str, object] = {
        "conditions": conditions(Path(tempfile.gettempdir())),
        "build": "compiled" if IS_NATIVE else "pure Python",
        "instructions_per_message": {name: instructions(name, arguments.profile) for name in names},
    }
    sys.stdout.write(json.dumps(told, indent=1) + "\n")
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
