"""How late confirms are at a steady rate: alone, beside a backlog, while segments are emptied.

2,000 persistent messages of 1 KiB a second, confirmed, consumed and acknowledged, in rounds by
turns with RabbitMQ in the same run. What compaction adds is measured on our broker alone, and held
against RabbitMQ's rounds without anything beside them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from bench import frames, servers
from bench.backlog.broker import Broker, Row, running
from bench.backlog.load import declare, fill
from bench.client import Client
from bench.measure import play
from bench.scenarios.latency import RATE_PER_S
from bench.scenarios.latency import SCENARIOS as LATENCY
from bench.servers import Server
from bench.shape import Shape

ROUND_S: Final = 8.0
ROUNDS: Final = 3
SETTLE_S: Final = 3.0
SEGMENT_BYTES: Final = 16 * 1024 * 1024
BESIDE: Final = "backlog"
NAMES: Final = ("confirm_p50_ms", "confirm_p99_ms", "delivery_p50_ms", "delivery_p99_ms")
TARGET: Final = 0.25


def shape_of(round_s: float) -> Shape:
    shape = next(each.shape for each in LATENCY if each.name == "latency_2000")
    publisher = replace(shape.publishers[0], limit_count=int(RATE_PER_S * round_s))
    return replace(shape, publishers=(publisher,), duration_ms=int(round_s * 1000))


def ours(broker: Broker) -> Server:
    return Server("vouchmq", broker.address, broker.pid, "", None)


def round_of(server: Server) -> dict[str, float]:
    """One round.

    Raises:
        RuntimeError: it does not count, and why
    """
    found = play(server, shape_of(ROUND_S))
    if found.error:
        raise RuntimeError(f"{found.server}: {found.error}")
    return found.values


def compare(rounds: dict[str, list[dict[str, float]]]) -> Row:
    """Values of all rounds by name and server, and ratios of medians to RabbitMQ's."""
    row: Row = {}
    for name in NAMES:
        values = {server: [each[name] for each in found] for server, found in rounds.items()}
        row[name] = values
        theirs = median(values["rabbitmq"])
        row[f"{name}_ratio"] = round(median(values["vouchmq"]) / theirs, 3)
    row["foreign_cores"] = [each["foreign_cores"] for found in rounds.values() for each in found]
    ratio = row["confirm_p99_ms_ratio"]
    row["passes"] = isinstance(ratio, float) and ratio <= TARGET
    return row


def by_turns(servers_: tuple[Server, ...], rounds: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers_}
    for _ in range(rounds):
        for server in servers_:
            found[server.name].append(round_of(server))
    return found


def while_emptied(broker: Broker, rounds: int, count: int) -> list[dict[str, float]]:
    """Rounds in which two of three large queues have just been deleted."""
    found = []
    names = ["a", "b", "c"]
    for _ in range(rounds):
        declare(broker.address, names)
        fill(broker.address, names, count)
        time.sleep(SETTLE_S)
        with Client(broker.address) as client:
            for name in names[1:]:
                client.call(frames.queue_delete(name))
            client.close()
        found.append(round_of(ours(broker)))
        with Client(broker.address) as client:
            client.call(frames.queue_delete("a"))
            client.close()
        time.sleep(SETTLE_S)
    return found


def measure_tails(directory: Path, backlog_count: int, emptied_count: int) -> Row:
    """Everything in one run."""
    row: Row = {"rate_per_s": RATE_PER_S, "round_s": ROUND_S, "backlog_count": backlog_count}
    flags = ("--segment-size-bytes", str(SEGMENT_BYTES))
    with (
        running(directory / "data", *flags) as broker,
        servers.rabbitmq("start", directory) as rabbitmq,
    ):
        both = (ours(broker), rabbitmq)
        alone = by_turns(both, ROUNDS)
        row["alone"] = compare(alone)
        print("alone", row["alone"], flush=True)
        emptied = while_emptied(broker, ROUNDS, emptied_count)
        row["compaction"] = compare({"vouchmq": emptied, "rabbitmq": alone["rabbitmq"]})
        print("compaction", row["compaction"], flush=True)
        for server in both:
            declare(server.address, [BESIDE])
            fill(server.address, [BESIDE], backlog_count)
        time.sleep(SETTLE_S)
        row["beside_backlog"] = compare(by_turns(both, ROUNDS))
    return row
