"""What one message costs that somebody waits for: system calls and context switches.

    python -m bench.micro.single [--syncs own|helper|broker] [--messages N] [--rate N] [--out FILE]
    python -m bench.micro.single --lavinmq ./bin/lavinmq

Three shapes of the bench are played against a broker of its own: `latency_2000`, `confirm_each` and
`tx_commit_2k`. What is told is the slope between two rounds of different length, so that
connections and declarations are not in it. System calls are counted by strace (`-c -f`), with a
message every 20 ms: strace makes each of them slow, and messages that come too fast share them.
Context switches and processor time are those of /proc in rounds without strace, at the rate of the
shape. Counts hardly depend on what else the machine does, times do.

`--syncs` has every sync made by the loop (`own`) or by the helper process (`helper`); `broker`
leaves it to the broker, which goes by how long syncs take just now.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from bench import process_tree
from bench.measure import play
from bench.run import conditions
from bench.scenarios.confirms import SCENARIOS as CONFIRMS
from bench.scenarios.latency import SCENARIOS as LATENCY
from bench.servers import Server, lavinmq, vouchmq
from bench.shape import Shape

SHAPES = ("latency_2000", "confirm_each", "tx_commit_2k")
# What the broker takes for short, and how long the helper goes on after a sync that was not.
PATIENCE = {
    "own": "group_commit.SHORT_S = group_commit.SHORT_WITH_CONSUMER_S = float('inf'); ",
    "helper": "group_commit.SHORT_S, group_commit.REST = -1.0, 1e9; "
    "group_commit.SHORT_WITH_CONSUMER_S, group_commit.REST_WITH_CONSUMER = -1.0, 1e9; ",
}
ATTACH_S = 0.5
LIMIT_MS = 120_000
Counts = dict[str, float]


def shape(name: str, count: int, rate_per_s: int = 0) -> Shape:
    """The shape of a scenario with so many messages, as fast as it says or at this rate."""
    found = next(each for each in (*LATENCY, *CONFIRMS) if each.name == name).shape
    publishers = tuple(
        replace(each, limit_count=count, rate_per_s=rate_per_s or each.rate_per_s)
        for each in found.publishers
    )
    return replace(found, publishers=publishers, duration_ms=LIMIT_MS)


def run(server: Server, played: Shape) -> None:
    """Play a round.

    Raises:
        RuntimeError: it does not count.
    """
    error = play(server, played).error
    if error:
        raise RuntimeError(error)


def calls(pids: list[int], work: Callable[[], None]) -> list[Counts]:
    """How many system calls each process makes meanwhile, by name."""
    traces = []
    with tempfile.TemporaryDirectory() as directory:
        for pid in pids:
            file = Path(directory) / str(pid)
            command = ["strace", "-c", "-f", "-o", str(file), "-p", str(pid)]
            traces.append((file, subprocess.Popen(command, stderr=subprocess.DEVNULL)))
        time.sleep(ATTACH_S)
        try:
            work()
        finally:
            for _, trace in traces:
                trace.send_signal(signal.SIGINT)
                trace.wait()
        return [table(file.read_text()) for file, _ in traces]


def table(text: str) -> Counts:
    """The calls by name of a summary of strace."""
    rows = [line.split() for line in text.splitlines()[2:]]
    return {
        row[-1]: int(row[3])
        for row in rows
        if len(row) >= 5 and row[3].isdigit() and row[-1] != "total"
    }


def spent(pid: int) -> Counts:
    """Context switches and processor time of a process so far."""
    found = {"voluntary_switches": 0.0, "involuntary_switches": 0.0}
    for task in (process_tree.PROC / str(pid) / "task").iterdir():
        for line in (task / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "voluntary_ctxt_switches":
                found["voluntary_switches"] += int(value)
            elif name == "nonvoluntary_ctxt_switches":
                found["involuntary_switches"] += int(value)
    found["cpu_us"] = process_tree.cpu_s(pid) * 1e6
    return found


def slope(short: Counts, long: Counts, count: int) -> Counts:
    """What each of so many more messages has added; what is less than one in fifty is left out."""
    rows = {name: (long[name] - short.get(name, 0)) / count for name in long}
    return {name: round(value, 2) for name, value in sorted(rows.items()) if value >= 0.02}


def measure(server: Server, name: str, messages: int, rate_per_s: int) -> dict[str, list[Counts]]:
    """All counts of one shape: a list with an entry for each process."""
    if server.pid is None:
        raise RuntimeError("the server's process cannot be seen")
    pids = process_tree.members(server.pid)
    run(server, shape(name, messages))
    slow = rate_per_s if name == "latency_2000" else 0
    short, long = (
        calls(pids, lambda count=count: run(server, shape(name, count, slow)))  # type: ignore[misc]
        for count in (messages // 2, messages)
    )
    before = [spent(pid) for pid in pids]
    run(server, shape(name, messages))
    between = [spent(pid) for pid in pids]
    run(server, shape(name, 3 * messages))
    after = [spent(pid) for pid in pids]
    rounds = zip(before, between, after, strict=True)
    return {
        "system_calls": [
            slope(one, more, messages - messages // 2)
            for one, more in zip(short, long, strict=True)
        ],
        "spent": [
            slope(
                {each: b[each] - a[each] for each in a},
                {each: c[each] - b[each] for each in a},
                2 * messages,
            )
            for a, b, c in rounds
        ],
    }


def started(arguments: argparse.Namespace, directory: Path) -> AbstractContextManager[Server]:
    """The broker under test."""
    if arguments.lavinmq:
        return lavinmq(arguments.lavinmq, directory)
    program = "import sys; from vouchmq.store.sync import group_commit; "
    program += PATIENCE.get(arguments.syncs, "")
    program += "from vouchmq.server.cli.main import main; sys.exit(main())"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} serve --port 0"
    return vouchmq(f"{command} --data-dir {{data_dir}} --log-level warning", directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--syncs", choices=("own", "helper", "broker"), default="broker")
    parser.add_argument("--lavinmq", default="", help="measure this program instead of VouchMQ")
    parser.add_argument("--messages", type=int, default=400, help="in the longer round")
    parser.add_argument("--rate", type=int, default=50, help="messages a second under strace")
    parser.add_argument("--out", type=Path, help="where the counts go as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vouchmq-single-") as place:
        told: dict[str, object] = {
            "conditions": conditions(Path(place)),
            "program": "lavinmq" if arguments.lavinmq else f"vouchmq, syncs: {arguments.syncs}",
        }
        with started(arguments, Path(place)) as server:
            for name in SHAPES:
                told[name] = measure(server, name, arguments.messages, arguments.rate)
                sys.stdout.write(f"{name}: {json.dumps(told[name])}\n")
        told["load_average_after"] = list(os.getloadavg())
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
