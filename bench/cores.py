"""Who uses which processor, and what a second broker process would bring.

    python -m bench.cores [--rounds N] [--scenario NAME …] [--out FILE]

Each scenario is played by one client process against one broker, and by two client processes at
once: against one broker, and against a broker each. The latter is the best that a broker divided
by virtual host into processes could do, because nothing is shared between them. Rates are the
sums; processors in use are those of the brokers' main processes and of their sync helpers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from bench import process_tree
from bench.measure import play
from bench.scenarios.catalogue import chosen
from bench.servers import DEFAULT_VOUCHMQ, Server, vouchmq
from bench.shape import Shape

SCENARIOS: Final = (
    "transient_16b_autoack",
    "persistent_1k_window500_ack_each",
    "unlike_persistent",
    "p8c8q8",
)
ARRANGEMENTS: Final = (("1 client, 1 broker", 1, 1), ("2, 1", 2, 1), ("2, 2", 2, 2))


@dataclass(frozen=True, slots=True)
class Played:
    """What the clients of one round got together, and who worked for it; times in cores."""

    rate_per_s: float
    main_cores: float
    helper_cores: float
    error: str = ""


def renamed(shape: Shape, number: int) -> Shape:
    """The same load with queues and an exchange of its own."""

    def name(text: str) -> str:
        return f"{text}-{number}" if text else ""

    return replace(
        shape,
        queues=tuple(replace(each, name=name(each.name)) for each in shape.queues),
        publishers=tuple(
            replace(each, exchange=name(each.exchange))
            if each.exchange
            else replace(each, routing_keys=tuple(map(name, each.routing_keys)))
            for each in shape.publishers
        ),
        consumers=tuple(
            replace(each, queue=name(each.queue), more_queues=tuple(map(name, each.more_queues)))
            for each in shape.consumers
        ),
        fanout_exchange=name(shape.fanout_exchange),
    )


def measure(shape: Shape, client_count: int, broker_count: int, command: str) -> Played:
    """Play one round with fresh brokers."""
    with ExitStack() as stack:
        servers: list[Server] = []
        for _ in range(broker_count):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers.append(stack.enter_context(vouchmq(command, directory)))
        pids = [server.pid for server in servers if server.pid is not None]
        before, began = [split_cpu_s(pid) for pid in pids], time.monotonic()
        with ThreadPoolExecutor(client_count) as pool:
            rounds = list(
                pool.map(
                    lambda number: play(servers[number % broker_count], renamed(shape, number)),
                    range(client_count),
                )
            )
        elapsed_s = time.monotonic() - began
        spent = [split_cpu_s(pid) for pid in pids]
    for each in rounds:
        if each.error:
            return Played(0.0, 0.0, 0.0, each.error)
    main_s = sum(new[0] - old[0] for old, new in zip(before, spent, strict=True))
    helper_s = sum(new[1] - old[1] for old, new in zip(before, spent, strict=True))
    rate = sum(each.values["rate_per_s"] for each in rounds)
    return Played(rate, main_s / elapsed_s, helper_s / elapsed_s)


def split_cpu_s(pid: int) -> tuple[float, float]:
    """CPU time of a broker's main process, and of all others of it."""
    own = process_tree.process_cpu_s(pid)
    return own, process_tree.cpu_s(pid) - own


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", nargs="+", default=SCENARIOS, metavar="NAME")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rounds there, as JSON")
    options = parser.parse_args()
    found: dict[str, dict[str, list[Played]]] = {}
    for scenario in chosen(options.scenario):
        rows = found[scenario.name] = {title: [] for title, _, _ in ARRANGEMENTS}
        for _ in range(options.rounds):
            for title, clients, brokers in ARRANGEMENTS:
                rows[title].append(measure(scenario.shape, clients, brokers, DEFAULT_VOUCHMQ))
    print(f"{'':34}{'rate per s':>12}{'main':>7}{'helper':>8}  (processors in use)")
    for name, rows in found.items():
        print(name)
        for title, played in rows.items():
            middle = sorted(played, key=lambda each: each.rate_per_s)[len(played) // 2]
            told = (
                f"{middle.rate_per_s:>12,.0f}{middle.main_cores:>7.2f}{middle.helper_cores:>8.2f}"
            )
            print(f"  {title:32}{middle.error or told}")
    if options.out:
        told_rows = {
            name: {title: [asdict(each) for each in played] for title, played in rows.items()}
            for name, rows in found.items()
        }
        load = os.getloadavg()[1]
        facts = {"processors": os.cpu_count(), "load_5_min": load, "scenarios": told_rows}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    return int(any(each.error for rows in found.values() for p in rows.values() for each in p))


if __name__ == "__main__":
    sys.exit(main())
