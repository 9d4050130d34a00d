"""What being looked at costs: the same load with and without a management process at work.

    python -m bench.managed --rounds 5 --out bench/results/managed.json
    python -m bench.managed --only latency_2000 --page queues --gate

The broker has ten thousand queues beside the one that is used. In every other round a management
process runs, and visitors ask it: the page, as a browser with it open does (its view and what
surrounds it every five seconds, and a stream of events), and Prometheus, which scrapes every five
seconds. Both sides have the same broker process, so also the same disk and the same minute. Judged
are the medians of the quotients of neighbouring rounds: of the rate, and of the p99 of confirms.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from bench import frames, process_tree, servers
from bench.client import Client
from bench.features import FeatureError, Row, plain
from bench.measure import play
from bench.run import conditions
from bench.scenarios import catalogue
from bench.servers import DEFAULT_VOUCHMQ, Server
from bench.shape import Shape

QUEUE_COUNT: Final = 10_000
DURATION_MS: Final = 11_000
"""Long enough for two rounds of each visitor."""
EVERY_S: Final = 5.0
VISITS: Final = 20
"""Of which the CPU time is the mean."""
LEAST_RATE: Final = 0.95
MOST_P99: Final = 1.2
PATIENCE_S: Final = 60.0
READY: Final = re.compile(r"(metrics|management) ready on http://127\.0\.0\.1:(\d+)")
LOGIN: Final = {"authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"}
# As the page asks, see vouchmq/management/page/js.
AGES: Final = "lengths_age=300&lengths_incr=5&msg_rates_age=300&msg_rates_incr=5"
SURROUNDINGS: Final = "nodes?columns=name,running,mem_alarm,disk_free_alarm,storage_alarm"
PAGES: Final = {
    "overview": (f"overview?{AGES}&data_rates_age=300&data_rates_incr=5", "nodes", SURROUNDINGS),
    "queues": (
        "queues?page=1&page_size=100&columns=name,vhost,type,durable,auto_delete,exclusive,"
        "arguments,state,policy,operator_policy,consumers,messages,messages_ready,"
        "messages_unacknowledged,message_stats.publish_details.rate",
        SURROUNDINGS,
    ),
}


def _catalogued(name: str) -> Shape:
    (scenario,) = catalogue.chosen([name])
    return replace(scenario.shape, duration_ms=DURATION_MS)


SHAPES: Final[dict[str, tuple[str, Shape]]] = {
    "work_queue_1k": (
        "1 KiB, window 500, as fast as it goes",
        replace(plain(1024), duration_ms=DURATION_MS),
    ),
    "latency_2000": ("2,000 messages a second", _catalogued("latency_2000")),
}


def declare_many(server: Server) -> None:
    """Declare the queues that are there to be looked at."""
    with Client(server.address) as client:
        for number in range(QUEUE_COUNT):
            name = frames.shortstr(f"shown-{number}")
            client.socket.sendall(
                frames.method(1, (50, 10), b"\0\0" + name + b"\x10" + frames.longstr(b""))
            )
        client.call(frames.qos(0))
        client.close()


@contextmanager
def management(data_dir: Path, directory: Path) -> Iterator[tuple[int, dict[str, int]]]:
    """Run a management process; gives its id and its ports."""
    ports = ("--management-port", "0", "--prometheus-port", "0")
    command = [sys.executable, "-m", "vouchmq", "manage", "--broker", str(data_dir), *ports]
    log = directory / "management.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=servers.ROOT, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + PATIENCE_S
        found: dict[str, int] = {}
        while len(found) < 2:
            if process.poll() is not None or time.monotonic() > deadline:
                raise FeatureError(f"the management process does not start: {log.read_text()}")
            time.sleep(0.05)
            found = {name: int(port) for name, port in READY.findall(log.read_text())}
        yield process.pid, found
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _get(port: int, path: str) -> int:
    """Ask, on a connection of its own; the size of the answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers=LOGIN)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise FeatureError(f"{path}: {answer.status} {content[:200]!r}")
        return len(content)
    finally:
        connection.close()


def _visit(page: str, ports: dict[str, int], pipe: Connection) -> None:
    """Be a page and a Prometheus until told to stop; send how long each answer took."""
    events = HTTPConnection("127.0.0.1", ports["management"], timeout=PATIENCE_S)
    events.request("GET", "/api/events", headers=LOGIN)
    events.getresponse()
    paths = [(ports["management"], f"/api/{path}") for path in PAGES[page]]
    paths.append((ports["metrics"], "/metrics"))
    for port, path in paths:
        _get(port, path)  # What is made once is made.
    pipe.send(None)
    took_ms: dict[str, list[float]] = {}
    next_s = time.monotonic() + 1.0
    while not pipe.poll(max(0.0, next_s - time.monotonic())):
        next_s += EVERY_S
        for port, path in paths:
            began = time.perf_counter()
            _get(port, path)
            name = path.partition("?")[0]
            took_ms.setdefault(name, []).append((time.perf_counter() - began) * 1000)
    pipe.send({name: round(statistics.median(each), 1) for name, each in took_ms.items()})
    events.close()


@contextmanager
def visitors(page: str, ports: dict[str, int]) -> Iterator[dict[str, float]]:
    """Have the page open and Prometheus scrape; what that took is filled in at the end."""
    fresh = multiprocessing.get_context("spawn")
    ours, theirs = fresh.Pipe()
    process = fresh.Process(target=_visit, args=(page, ports, theirs))
    process.start()
    found: dict[str, float] = {}
    try:
        if not ours.poll(PATIENCE_S):
            raise FeatureError("the visitors do not start")
        ours.recv()
        yield found
        ours.send(None)
        if not ours.poll(PATIENCE_S):
            raise FeatureError("the visitors get no answer")
        found.update(ours.recv())
    finally:
        process.kill()
        process.join()


def visit_costs(server: Server, directory: Path) -> Row:
    """CPU time of the broker for a visit of each page and for a scrape, while it does no more."""
    found: Row = {}
    with management(directory / "vouchmq", directory) as (_, ports):
        asked = {
            page: [(ports["management"], f"/api/{path}") for path in PAGES[page]] for page in PAGES
        }
        asked["scrape"] = [(ports["metrics"], "/metrics")]
        for name, paths in asked.items():
            for port, path in paths:
                _get(port, path)
            before = server.cpu_s() or 0.0
            for port, path in paths * VISITS:
                _get(port, path)
            spent_s = (server.cpu_s() or 0.0) - before
            found[f"{name}_cpu_ms"] = round(spent_s / VISITS * 1000, 1)
    return found


def played(server: Server, shape: Shape) -> dict[str, float]:
    """Play one round.

    Raises:
        FeatureError: a message is missing, doubled or left over.
    """
    server.require_alive()
    one = play(server, shape)
    if one.error:
        raise FeatureError(one.error)
    return one.values


def watched(
    server: Server, shape: Shape, page: str, data_dir: Path, directory: Path
) -> tuple[dict[str, float], dict[str, float]]:
    """The same beside visitors; what they waited, and the CPU time of the management process."""
    with management(data_dir, directory) as (pid, ports), visitors(page, ports) as waits:
        before = process_tree.cpu_s(pid)
        values = played(server, shape)
        waits["management_cpu_s"] = round(process_tree.cpu_s(pid) - before, 2)
    return values, waits


def measured(server: Server, name: str, page: str, round_count: int, directory: Path) -> Row:
    """Play a shape's rounds in pairs."""
    what, shape = SHAPES[name]
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    waits: dict[str, float] = {}
    play(server, shape.quick())
    for number in range(round_count):
        found: dict[bool, dict[str, float]] = {}
        for is_watched in (True, False) if number % 2 else (False, True):
            if is_watched:
                found[True], waits = watched(
                    *(server, shape, page, directory / "vouchmq", directory)
                )
            else:
                found[False] = played(server, shape)
        pairs.append((found[False], found[True]))
    row: Row = {"name": name, "what": what, "page": page, "rounds": round_count}
    for key in ("rate_per_s", "confirm_p50_ms", "confirm_p99_ms", "confirm_max_ms", "cpu_us"):
        row[f"off_{key}"] = round(statistics.median(one[key] for one, _ in pairs), 3)
        row[f"on_{key}"] = round(statistics.median(one[key] for _, one in pairs), 3)
        shares = [with_it[key] / without[key] for without, with_it in pairs]
        row[f"{key}_share"] = round(statistics.median(shares), 3)
        row[f"{key}_share_low_high"] = [round(min(shares), 3), round(max(shares), 3)]
    row["last_answers_ms"] = waits
    return row


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(prog="python -m bench.managed", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--only", nargs="*", choices=SHAPES, default=list(SHAPES))
    made.add_argument("--page", choices=PAGES, default="overview", help="which is open (overview)")
    made.add_argument("--rounds", type=int, default=5, help="pairs of rounds of each (5)")
    made.add_argument("--vouchmq", default=DEFAULT_VOUCHMQ, metavar="CMD", help="starts the broker")
    made.add_argument("--out", type=Path, metavar="FILE", help="JSON; other rows are kept")
    made.add_argument("--gate", action="store_true", help="exit 1 when it costs too much")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a round failed or, with --gate, a target."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    rows: list[Row] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="vouchmq-bench-") as name:
        directory = Path(name)
        with servers.vouchmq(options.vouchmq, directory) as server:
            declare_many(server)
            costs = visit_costs(server, directory)
            print(json.dumps(costs), flush=True)
            for shape in options.only:
                try:
                    row = measured(server, shape, options.page, options.rounds, directory)
                except FeatureError as error:
                    row, failed = {"name": shape, "page": options.page, "error": str(error)}, True
                rows.append(row)
                print(json.dumps(row), flush=True)
            where = conditions(directory)
    if options.out:
        kept = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
        played_now = {(row["name"], row["page"]) for row in rows}
        rows = [row for row in kept if (row["name"], row["page"]) not in played_now] + rows
        command = "python -m bench.managed " + " ".join(given)
        results = {"command": command, "conditions": where, "visits": costs, "rows": rows}
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return int(failed or (options.gate and any(map(is_missed, rows))))


def is_missed(row: Row) -> bool:
    """Whether it costs more than it may."""
    rate, p99 = row.get("rate_per_s_share"), row.get("confirm_p99_ms_share")
    is_slow = isinstance(rate, float) and rate < LEAST_RATE
    return is_slow or (isinstance(p99, float) and p99 > MOST_P99)


if __name__ == "__main__":
    sys.exit(main())
