"""How long large bodies hold up others: a small echo beside publishes and deliveries of them.

    python -m bench.bodies --sizes-mib 1 16 --rounds 5 --out bench/results/bodies.json
    python -m bench.bodies --rabbitmq

A process of its own publishes a small transient message, waits until it is delivered back, and
does so again a millisecond later. Meanwhile bodies of one size are published persistent and
confirmed, then consumed and acknowledged. What counts is the longest echo in each phase, beside
that of a phase in which nothing happens.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Final

from bench import frames, servers
from bench.backlog.broker import Row, running
from bench.client import Address, Client

MIB: Final = 1024 * 1024
PAUSE_S: Final = 0.001
CALM_S: Final = 1.0
PATIENCE_S: Final = 60.0
HOUR_S: Final = 3600.0
READ_BYTES: Final = 1024 * 1024
BODIES: Final = 3
TARGET_MS: Final = 50.0


def echo(address: Address, stop: Connection) -> None:
    """Send back and forth until told to stop; then send (when, how long) of each, in seconds."""
    samples: list[tuple[float, float]] = []
    deadline = time.monotonic() + HOUR_S
    with Client(address) as client:
        client.call(frames.queue_declare("echo"))
        client.call(frames.consume("echo", "echo", no_ack=True))
        client.socket.settimeout(PATIENCE_S)
        octets = frames.publish("", "echo", b"ping", persistent=False)
        stop.send(None)
        while not stop.poll() and time.monotonic() < deadline:
            began = time.monotonic()
            client.socket.sendall(octets)
            rest = b""
            # Method, header and body frame.
            while len(frames.split(rest)[0]) < 3:
                rest += client.socket.recv(65536)
            samples.append((began, time.monotonic() - began))
            time.sleep(PAUSE_S)
        client.call(frames.queue_delete("echo"))
        client.close()
    stop.send(samples)


@contextmanager
def echoing(address: Address) -> Iterator[list[tuple[float, float]]]:
    """Gather echoes while a block runs; they are in the list behind it."""
    samples: list[tuple[float, float]] = []
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=echo, args=(address, theirs))
    process.start()
    try:
        assert ours.poll(PATIENCE_S), "the echo does not start"
        ours.recv()
        yield samples
        ours.send(None)
        assert ours.poll(PATIENCE_S), "the echo hangs"
        samples += ours.recv()
    finally:
        process.terminate()
        process.join()


def publish(address: Address, size: int) -> None:
    """Publish bodies one behind the other, each confirmed."""
    octets = frames.publish("", "bodies", bytes(size), persistent=True)
    with Client(address) as client:
        client.socket.settimeout(PATIENCE_S)
        client.call(frames.confirm_select())
        for _ in range(BODIES):
            client.call(octets)
        client.close()


def consume(address: Address, size: int) -> None:
    """Take each of them off the queue, one at a time."""
    with Client(address) as client:
        client.socket.settimeout(PATIENCE_S)
        client.call(frames.qos(1))
        client.socket.sendall(frames.consume("bodies", "bodies", no_ack=False))
        step = frames.FRAME_MAX - frames.FRAME_OVERHEAD
        due = size + frames.FRAME_OVERHEAD * -(-size // step)
        got = 0
        for tag in range(1, BODIES + 1):
            while got < tag * due:
                part = client.socket.recv(READ_BYTES)
                assert part, "the broker ended the connection"
                got += len(part)
            client.socket.sendall(frames.method(1, (60, 80), struct.pack(">QB", tag, 0)))


def measure(address: Address, size: int, rounds: int) -> Row:
    """Longest and 99th of a hundred echoes in each phase, in milliseconds, median of rounds."""
    phases: dict[str, list[tuple[float, float]]] = {"calm": [], "publish": [], "deliver": []}
    with Client(address) as client:
        client.call(frames.queue_declare("bodies", durable=True))
        client.close()
    with echoing(address) as samples:
        for _ in range(rounds):
            for name in phases:
                began = time.monotonic()
                if name == "calm":
                    time.sleep(CALM_S)
                elif name == "publish":
                    publish(address, size)
                else:
                    consume(address, size)
                phases[name].append((began, time.monotonic()))
                time.sleep(CALM_S / 2)
    row: Row = {"size_mib": size / MIB}
    for name, times in phases.items():
        most, p99 = [], []
        for began, ended in times:
            found = sorted(took for at, took in samples if began - 0.5 <= at <= ended)
            within = [took for at, took in samples if at + took >= began and at <= ended]
            most.append(round(max(within, default=found[-1]) * 1000, 1))
            p99.append(round(sorted(within or found)[int(len(within or found) * 0.99)] * 1000, 1))
        row[name] = {"max_ms": median(most), "p99_ms": median(p99), "all_max_ms": most}
        row[f"{name}_s"] = round(median(ended - began for began, ended in times), 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bodies", description=__doc__)
    parser.add_argument("--sizes-mib", type=float, nargs="+", default=[1, 16, 128])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rabbitmq", action="store_true", help="the same with RabbitMQ")
    parser.add_argument("--directory", help="where data directories go; removed afterwards")
    parser.add_argument("--out", type=Path, help="JSON; other rows in it are kept")
    options = parser.parse_args()
    rows: Row = {}
    if options.out and options.out.exists():
        rows = json.loads(options.out.read_text())
    with tempfile.TemporaryDirectory(prefix="bodies-", dir=options.directory) as directory:
        for size_mib in options.sizes_mib:
            size = int(size_mib * MIB)
            flags = ("--max-message-size-bytes", str(max(size, 16 * MIB)))
            with running(Path(directory) / f"{size}", *flags) as broker:
                rows[f"vouchmq_{size_mib:g}"] = row = measure(broker.address, size, options.rounds)
            row["load_and_cpus"] = [round(os.getloadavg()[0], 1), os.cpu_count()]
            print("vouchmq", json.dumps(row), flush=True)
            if options.rabbitmq:
                with servers.rabbitmq("start", Path(directory)) as server:
                    row = measure(server.address, size, options.rounds)
                rows[f"rabbitmq_{size_mib:g}"] = row
                print("rabbitmq", json.dumps(row), flush=True)
    if options.out:
        rows["machine"] = platform.platform()
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
