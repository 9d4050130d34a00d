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
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from bench import process_tree, servers
from bench.backlog.broker import MIB, Broker, Peak, Row, disk_mib, high_water_mib, rss_mib, running
from bench.backlog.load import count_in, declare, drain, fill
from bench.backlog.tails import measure_tails

IN_MEMORY: Final = ("--queue-memory-bytes", "64000000000", "--queues-memory-bytes", "64000000000")
BESIDE_RABBITMQ: Final = ("beside_rabbitmq", "tails")


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
    "tails": lambda directory: measure_tails(directory, 1_000_000, 300_000),
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
