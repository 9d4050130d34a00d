"""Backlogs: what a waiting message costs, how fast they come back, how long a start takes.

    python -m bench.backlog --list
    python -m bench.backlog drain recovery --out bench/results/backlog.json
    python -m bench.backlog ten_million --directory /big/disk

Unlike the other scenarios these outgrow memory, restart the broker and take minutes, so each is
run once, alone, with a broker and a data directory of its own. Every message is accounted for:
a fill ends when all are confirmed, a drain when as many have come and the queues are empty.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from bench import frames, process_tree, servers
from bench.client import Address, Client

BODY: Final = bytes(1024)
CHUNK: Final = 500
WINDOW: Final = 5000
PREFETCH: Final = 1000
ACK_SIZE: Final = 21
READ_BYTES: Final = 1024 * 1024
MIB: Final = 1024 * 1024
START_LIMIT_S: Final = 600.0
IN_MEMORY: Final = ("--queue-memory-bytes", "64000000000", "--queues-memory-bytes", "64000000000")
BESIDE_RABBITMQ: Final = ("beside_rabbitmq", "tails")
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


def declare(address: Address, names: list[str]) -> None:
    with Client(address) as client:
        for name in names:
            client.call(frames.queue_declare(name, durable=True))
        client.close()


def count_in(address: Address, names: list[str]) -> int:
    with Client(address) as client:
        replies = [client.call(frames.queue_declare(name, passive=True)) for name in names]
        client.close()
    return sum(frames.queue_name_and_count(reply)[1] for reply in replies)


def fill(address: Address, names: list[str], count: int, *, persistent: bool = True) -> float:
    """Publish to the queues in turn, each message confirmed; seconds."""
    chunk_count = max(CHUNK, len(names))
    keys = [names[at % len(names)] for at in range(chunk_count)]
    chunk = b"".join(frames.publish("", key, BODY, persistent=persistent) for key in keys)
    with Client(address) as client:
        client.call(frames.confirm_select())
        client.socket.settimeout(START_LIMIT_S)
        began = time.perf_counter()
        sent = confirmed = 0
        rest = b""
        while confirmed < count:
            if sent < count and sent - confirmed < WINDOW:
                client.socket.sendall(chunk)
                sent += chunk_count
            must_wait = sent >= count or sent - confirmed >= WINDOW
            try:
                rest += client.socket.recv(READ_BYTES, 0 if must_wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            whole = len(rest) // ACK_SIZE * ACK_SIZE
            if whole:
                kind, _, _, ids, tag = struct.unpack_from(">BHIIQ", rest, whole - ACK_SIZE)
                assert (kind, ids) == (frames.METHOD, 60 << 16 | 80), rest
                confirmed = max(confirmed, tag)
                rest = rest[whole:]
        took = time.perf_counter() - began
        client.close()
    found = count_in(address, names)
    assert found == count, f"{count} were confirmed, {found} are there"
    return took


def drain(address: Address, names: list[str], count: int) -> float:
    """Consume and acknowledge everything; seconds."""
    with Client(address) as client:
        client.call(frames.qos(PREFETCH if len(names) == 1 else 20))
        client.socket.settimeout(START_LIMIT_S)
        began = time.perf_counter()
        # Same lengths of names and tags make all deliveries the same size.
        client.socket.sendall(b"".join(frames.consume(name, name, no_ack=False) for name in names))
        skipped = len(frames.method(1, (60, 21), frames.shortstr(names[0]))) * len(names)
        size = delivery_size(names[0])
        octets = acked = received = 0
        while received < count:
            part = client.socket.recv(READ_BYTES)
            assert part, "the broker ended the connection"
            octets += len(part)
            received = max(0, octets - skipped) // size
            if received > acked:
                acked = received
                client.socket.sendall(frames.method(1, (60, 80), struct.pack(">QB", acked, 1)))
        took = time.perf_counter() - began
        assert (octets - skipped) % size == 0
        client.call(frames.qos(0))
        client.close()
    assert count_in(address, names) == 0
    return took


def delivery_size(name: str) -> int:
    """Octets of one delivery of BODY with this queue, consumer tag and routing key."""
    publish = frames.publish("", name, BODY, persistent=True)
    # Class, method, tag, delivery tag, redelivered, exchange, key against reserved, names, bits.
    return len(publish) + len(frames.shortstr(name)) + 8 + 1 - 3


# Scenarios.


def measure_drain(directory: Path, count: int) -> Row:
    """Does a backlog on disk drain at least half as fast as one in memory?"""
    row: dict[str, float] = {"count": count}
    for kind, flags in (("in_memory", IN_MEMORY), ("paged", ())):
        with running(directory / kind, *flags) as broker:
            idle = rss_mib(broker.pid)
            declare(broker.address, ["q0000"])
            fill_s = fill(broker.address, ["q0000"], count)
            row[f"{kind}_rss_mib"] = rss_mib(broker.pid)
            row[f"{kind}_octets_per_message"] = (rss_mib(broker.pid) - idle) * MIB // count
            row[f"{kind}_fill_per_s"] = round(count / fill_s)
            row |= timed_drain(broker, count, kind)
    with running(directory / "recovered") as broker:
        declare(broker.address, ["q0000"])
        fill(broker.address, ["q0000"], count)
        broker.end()
        broker.start()
        row |= timed_drain(broker, count, "recovered")
    for kind in ("paged", "recovered"):
        share = row[f"{kind}_drain_per_s"] / row["in_memory_drain_per_s"]
        row[f"{kind}_drain_share"] = round(share, 2)
        share = row["in_memory_drain_cpu_us"] / row[f"{kind}_drain_cpu_us"]
        row[f"{kind}_drain_cpu_share"] = round(share, 2)
    return {**row}


def timed_drain(broker: Broker, count: int, kind: str) -> dict[str, float]:
    """Rate, and CPU time of the broker per message, which other load hardly changes."""
    cpu_s = process_tree.cpu_s(broker.pid)
    rate = count / drain(broker.address, ["q0000"], count)
    cpu_us = (process_tree.cpu_s(broker.pid) - cpu_s) / count * 1e6
    return {f"{kind}_drain_per_s": round(rate), f"{kind}_drain_cpu_us": round(cpu_us, 2)}


def measure_backlog(
    directory: Path, names: list[str], count: int, *, persistent: bool = True, drains: bool = True
) -> Row:
    """One broker, one backlog: rates, memory, and a restart in between if it survives one."""
    row: Row = {"count": count, "queues": len(names), "persistent": persistent}
    with running(directory / "data") as broker:
        row["idle_rss_mib"] = idle = rss_mib(broker.pid)
        declare(broker.address, names)
        with Peak(broker.pid) as peak:
            row["fill_per_s"] = round(
                count / fill(broker.address, names, count, persistent=persistent)
            )
        row["fill_peak_rss_mib"] = peak.rss_mib
        row["full_rss_mib"] = rss_mib(broker.pid)
        row["octets_per_message"] = (rss_mib(broker.pid) - idle) * MIB // count
        row["disk_mib"] = disk_mib(directory / "data")
        if persistent:
            broker.end(signal.SIGKILL)
            broker.start()
            row["recovery_s"] = round(broker.start_s, 2)
            row["recovered_rss_mib"] = rss_mib(broker.pid)
            row["recovery_peak_rss_mib"] = high_water_mib(broker.pid)
        if drains:
            with Peak(broker.pid) as peak:
                row["drain_per_s"] = round(count / drain(broker.address, names, count))
            row["drain_peak_rss_mib"] = peak.rss_mib
    return row


def measure_recovery(directory: Path, counts: tuple[int, ...]) -> Row:
    """How long from the start of the process to the open port, warm?"""
    row: Row = {}
    for count in counts:
        with running(directory / str(count)) as broker:
            empty_s = broker.start_s
            declare(broker.address, ["q0000"])
            fill(broker.address, ["q0000"], count)
            times = []
            for _ in range(3):
                broker.end(signal.SIGKILL)
                broker.start()
                times.append(broker.start_s)
            assert count_in(broker.address, ["q0000"]) == count
            row[str(count)] = {
                "start_s": round(min(times), 2),
                "recovery_s": round(min(times) - empty_s, 2),
                "rss_mib": rss_mib(broker.pid),
                "peak_rss_mib": high_water_mib(broker.pid),
            }
            print(count, row[str(count)], flush=True)
        shutil.rmtree(directory / str(count))
    return row


def measure_beside_rabbitmq(directory: Path, count: int, rounds: int) -> Row:
    """Fill and drain by turns with RabbitMQ, and what a waiting message takes of memory."""
    found: dict[str, dict[str, list[float]]] = {}
    with running(directory / "data") as broker, servers.rabbitmq("start", directory) as server:
        assert server.pid is not None
        both = {"vouchmq": (broker.address, broker.pid), "rabbitmq": (server.address, server.pid)}
        for _ in range(rounds):
            for name, (address, pid) in both.items():
                values = found.setdefault(name, {})
                idle = rss_mib(pid)
                declare(address, ["q0000"])
                fill_s = fill(address, ["q0000"], count)
                octets = (rss_mib(pid) - idle) * MIB / count
                drain_s = drain(address, ["q0000"], count)
                values.setdefault("fill_per_s", []).append(round(count / fill_s))
                values.setdefault("drain_per_s", []).append(round(count / drain_s))
                values.setdefault("octets_per_message", []).append(round(octets))
    row: Row = {"count": count, **found}
    for name in ("fill_per_s", "drain_per_s"):
        ratio = median(found["vouchmq"][name]) / median(found["rabbitmq"][name])
        row[f"{name}_ratio"] = round(ratio, 2)
    return row


def tails(directory: Path) -> Row:
    """Confirms at a steady rate, beside RabbitMQ in the same run."""
    # It builds on what stands here.
    from bench.backlog_tails import measure_tails

    return measure_tails(directory, 1_000_000, 300_000)


def high_water_mib(pid: int) -> int:
    """The largest resident set a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0


def disk_mib(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir()) // MIB


@contextmanager
def running(data_dir: Path, *flags: str) -> Iterator[Broker]:
    broker = Broker(data_dir, *flags)
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


def many(count: int) -> list[str]:
    return [f"q{number:04}" for number in range(count)]


SCENARIOS: Final[dict[str, Callable[[Path], Row]]] = {
    "drain": lambda directory: measure_drain(directory, 400_000),
    "ten_million": lambda directory: measure_backlog(directory, many(1), 10_000_000),
    "thousand_queues": lambda directory: measure_backlog(directory, many(1000), 1_000_000),
    "transient": lambda directory: measure_backlog(directory, many(1), 2_000_000, persistent=False),
    "recovery": lambda directory: measure_recovery(
        directory, (10_000, 100_000, 300_000, 1_000_000)
    ),
    "beside_rabbitmq": lambda directory: measure_beside_rabbitmq(directory, 200_000, 3),
    "tails": lambda directory: tails(directory),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", help="default: all without RabbitMQ")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--directory", help="where data directories go; removed afterwards")
    parser.add_argument("--out", type=Path, help="JSON; rows of other scenarios in it are kept")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(SCENARIOS))
        return
    rows: Row = {}
    if arguments.out and arguments.out.exists():
        rows = json.loads(arguments.out.read_text())
    for name in arguments.scenarios or [each for each in SCENARIOS if each not in BESIDE_RABBITMQ]:
        with tempfile.TemporaryDirectory(prefix="backlog-", dir=arguments.directory) as directory:
            row = SCENARIOS[name](Path(directory))
        row["load_before_and_cpus"] = [round(os.getloadavg()[0], 1), os.cpu_count()]
        rows[name] = {**row, "python": platform.python_version()}
        print(name, json.dumps(row, indent=2), flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
