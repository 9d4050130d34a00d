"""A broker with a shared log, beside one without and beside three RabbitMQ nodes (quorum queues).

    python -m bench.replicated --rounds 3 --out bench/results/replicated.json
    python -m bench.replicated --rows confirm_window_100 latency_2000 --quick
    python -m bench.replicated --rows --pauses --messages 1000000

`--rows` without names plays none. A row is played in turn on all of them, as in the other benches,
and its figures are the medians. A pause (`--pauses`) lasts from the loss of the node that serves to
the first confirm of a client that has tried the others all the time; the queue holds `--messages`
persistent messages of 100 bytes, and has to hold them afterwards as well.

Exit codes: 0 done, 1 a round failed or, with --gate, a target was missed, 2 a server could not be
started.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from bench import frames, generator, servers
from bench.client import Address, BrokerError, Client
from bench.measure import Round, play
from bench.replicated.nodes import (
    LOG_SET,
    QUORUM_SET,
    LogSet,
    Nodes,
    QuorumSet,
    rabbitmq_quorum,
    vouchmq_log,
    wait_for,
)
from bench.run import await_quiet, conditions
from bench.scenarios import catalogue
from bench.scenarios.confirms import BODY_SIZE, MESSAGE_COUNT, QUEUE
from bench.servers import DEFAULT_VOUCHMQ, Server, ServerError
from bench.shape import DRAIN_MS, Mode, Publisher, Queue, Shape

ALONE: Final = "vouchmq"
QUORUM: Final = frames.text_entry("x-queue-type", "quorum")
SMALL_SIZE: Final = 100
FILL_WINDOW: Final = 5_000
FILL_LIMIT_MS: Final = 900_000
BASIC_ACK: Final = (60, 80)
PAUSE_QUEUE: Final = "bench-paused"
TOLD: Final = (
    *("rate_per_s", "cpu_us", "confirm_p50_ms", "confirm_p99_ms"),
    *("delivery_p50_ms", "delivery_p99_ms"),
)
Row = dict[str, object]


def _window_100() -> Shape:
    publisher = Publisher(
        (QUEUE,), BODY_SIZE, MESSAGE_COUNT, persistent=True, mode=Mode.WINDOW, window=100
    )
    return Shape(
        (Queue(QUEUE, durable=True),), (replace(publisher, fan_count=0),), duration_ms=4_000
    )


def _catalogued(name: str) -> Shape:
    (scenario,) = catalogue.chosen([name])
    return scenario.shape


ROWS: Final[dict[str, Shape]] = {
    "confirm_window_100": _window_100(),
    "confirm_window_1000": replace(_catalogued("confirm_window_1000"), duration_ms=6_000),
    "confirm_each": _catalogued("confirm_each"),
    "latency_2000": _catalogued("latency_2000"),
}


@dataclass(frozen=True, slots=True)
class Demand:
    """A bound on the quotient by the quorum queues' value, or on the value itself."""

    row: str
    value: str
    bound: float
    at_least: bool = False
    is_ratio: bool = True


DEMANDS: Final = (
    Demand("confirm_window_100", "rate_per_s", 2.0, at_least=True),
    Demand("confirm_window_1000", "rate_per_s", 2.0, at_least=True),
    Demand("confirm_each", "rate_per_s", 1.0, at_least=True),
    Demand("latency_2000", "delivery_p50_ms", 1.3),
    Demand("take_over", "pause_s", 8.0, is_ratio=False),
    Demand("hand_over", "pause_s", 2.0, is_ratio=False),
)


def shape_for(server: Server, shape: Shape) -> Shape:
    """The shape with the queues that this server replicates."""
    if server.name != QUORUM_SET:
        return shape
    queues = tuple(replace(each, arguments=QUORUM) for each in shape.queues)
    return replace(shape, queues=queues)


def measured_row(name: str, playing: Sequence[Server], round_count: int, *, quick: bool) -> Row:
    """Play a row's rounds on all servers in turn."""
    shape = ROWS[name].quick() if quick else ROWS[name]
    rounds: list[Round] = []
    for _ in range(round_count):
        for server in playing:
            server.require_alive()
            await_quiet([other for other in playing if other is not server])
            rounds.append(play(server, shape_for(server, shape)))
    row: Row = {"name": name, "rounds": round_count}
    errors = [f"{one.server}: {one.error}" for one in rounds if one.error]
    if errors:
        row["errors"] = errors
    for server in playing:
        mine = [one.values for one in rounds if one.server == server.name and not one.error]
        row[server.name] = {
            value: {
                "median": round(statistics.median(one[value] for one in mine), 3),
                "all": [round(one[value], 3) for one in mine],
            }
            for value in TOLD
            if mine and value in mine[0]
        }
    return row


def fill(address: Address, count: int, arguments: bytes) -> None:
    """Have a durable queue hold so many messages, which nobody clears away."""
    publisher = Publisher(
        (PAUSE_QUEUE,), SMALL_SIZE, count, persistent=True, mode=Mode.WINDOW, window=FILL_WINDOW
    )
    shape = Shape(publishers=(replace(publisher, fan_count=0),), duration_ms=FILL_LIMIT_MS)
    with Client(address) as client:
        client.call(frames.queue_declare(PAUSE_QUEUE, durable=True, arguments=arguments))
        client.call(frames.confirm_select())
        descriptors = [client.socket.fileno()]
        plan = generator.plan_for(shape, address, descriptors, [])
        result = generator.run(plan, descriptors, (FILL_LIMIT_MS + DRAIN_MS) / 1000)
        if result["error"]:
            raise ServerError(f"while the queue was filled: {result['error']}")
        if result["publishers"][0]["confirmed"] != count:
            raise ServerError("the queue could not be filled in time")
        client.close()


def confirmed_at(serving: Callable[[], Address | None]) -> Address | None:
    """Publish one message where a node serves; None if that is nowhere yet."""
    address = serving()
    if address is None:
        return None
    message = frames.publish("", PAUSE_QUEUE, b"x" * SMALL_SIZE, persistent=True)
    try:
        with Client(address) as client:
            client.call(frames.confirm_select())
            said = client.call(message)
            client.close()
    except (OSError, BrokerError):
        return None
    # RabbitMQ refuses (basic.nack) while its queue has no leader.
    return address if said.ids == BASIC_ACK else None


def held(address: Address) -> int:
    """How many messages are in the queue."""
    with Client(address) as client:
        answer = client.call(frames.queue_declare(PAUSE_QUEUE, passive=True))
        client.close()
    return frames.queue_name_and_count(answer)[1]


def holds(address: Address, count: int) -> bool:
    """Whether there are so many, or more."""
    return held(address) >= count


def pauses(
    name: str, nodes: Nodes, lose: Callable[[], Callable[[], Address | None]], count: int, n: int
) -> Row:
    """Lose the node that serves, so many times, and see how long nobody confirms."""
    arguments = QUORUM if isinstance(nodes, QuorumSet) else b""
    address = nodes.server().address
    fill(address, count, arguments)
    took_s: list[float] = []
    expected = count
    for _ in range(n):
        began = time.monotonic()
        serving = lose()
        wait_for(partial(confirmed_at, serving), "a confirm of another node")
        took_s.append(round(time.monotonic() - began, 3))
        expected += 1
        # A new leader of a quorum queue counts from nothing. One message more: it was under way.
        found = nodes.server().address
        wait_for(partial(holds, found, expected), f"{expected} messages in {nodes.name}")
        expected = held(found)
        nodes.restore()
    with Client(nodes.server().address) as client:
        client.call(frames.queue_delete(PAUSE_QUEUE))
        client.close()
    median = round(statistics.median(took_s), 3)
    return {
        "name": name,
        "messages": count,
        nodes.name: {"pause_s": {"median": median, "all": took_s}},
    }


def judged(rows: Sequence[Row]) -> list[Row]:
    """Every demand that the rows can be held against."""
    found: list[Row] = []
    for demand in DEMANDS:
        ours = _median(rows, demand, LOG_SET)
        theirs = _median(rows, demand, QUORUM_SET) if demand.is_ratio else 1.0
        if ours is None or not theirs:
            continue
        value = round(ours / theirs, 3)
        is_met = value >= demand.bound if demand.at_least else value <= demand.bound
        sign = ">=" if demand.at_least else "<="
        unit = " x quorum queues" if demand.is_ratio else ""
        must = f"{sign} {demand.bound:g}{unit}"
        found.append(
            {
                "row": demand.row,
                "value": demand.value,
                "must": must,
                "measured": value,
                "is_met": is_met,
            }
        )
    return found


def _median(rows: Sequence[Row], demand: Demand, server: str) -> float | None:
    for row in rows:
        values = row.get(server)
        if row["name"] == demand.row and isinstance(values, dict) and demand.value in values:
            return float(values[demand.value]["median"])
    return None


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(prog="python -m bench.replicated", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    made.add_argument("--rounds", type=int, default=3, help="of each row and each pause (3)")
    made.add_argument("--quick", action="store_true", help="a fifth of the time and messages")
    made.add_argument("--pauses", action="store_true", help="measure pauses as well")
    made.add_argument("--messages", type=int, default=1_000_000, help="in the queue (1,000,000)")
    made.add_argument(
        "--confirm", choices=("log", "log+standby"), default="log", help="ha_confirm (log)"
    )
    made.add_argument("--no-rabbitmq", action="store_true", help="without quorum queues")
    made.add_argument("--vouchmq", default=DEFAULT_VOUCHMQ, metavar="CMD", help="starts a broker")
    made.add_argument("--work-dir", type=Path, help="where the data goes (a new one)")
    made.add_argument("--out", type=Path, metavar="FILE", help="write the results there, as JSON")
    made.add_argument("--gate", action="store_true", help="exit 1 when a target is missed")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    directory = Path(tempfile.mkdtemp(prefix="vouchmq-bench-", dir=options.work_dir))
    rows: list[Row] = []
    flags = ("--ha-confirm", options.confirm)
    try:
        with ExitStack() as stack:
            alone = stack.enter_context(servers.vouchmq(options.vouchmq, directory / "alone"))
            log_set = stack.enter_context(vouchmq_log(options.vouchmq, directory / "set", flags))
            sets: list[Nodes] = [log_set]
            if not options.no_rabbitmq:
                sets.append(stack.enter_context(rabbitmq_quorum(directory / "quorum")))
            playing = [replace(alone, name=ALONE), *(each.server() for each in sets)]
            for name in options.rows:
                rows.append(measured_row(name, playing, options.rounds, quick=options.quick))
                print(json.dumps(rows[-1]), flush=True)
            if options.pauses:
                for row in all_pauses(log_set, sets, options.messages, options.rounds):
                    rows.append(row)
                    print(json.dumps(row), flush=True)
            where = conditions(directory)
    except ServerError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    verdicts = judged(rows)
    for verdict in verdicts:
        print(json.dumps(verdict), flush=True)
    if options.out:
        store(options.out, "bench.replicated", given, where, rows=rows, targets=verdicts)
    is_missed = options.gate and not all(each["is_met"] for each in verdicts)
    return int(is_missed or any("errors" in row for row in rows))


def store(
    out: Path, module: str, given: Sequence[str], where: dict[str, object], **found: object
) -> None:
    """Write what was found, with the command and the conditions."""
    command = " ".join(("python -m", module, *given))
    results = {"command": command, "conditions": where, **found}
    out.write_text(json.dumps(results, indent=1) + "\n")


def all_pauses(log_set: LogSet, sets: Sequence[Nodes], count: int, n: int) -> list[Row]:
    """Take-overs of every set, and hand-overs of the one that has them."""
    rows = [pauses("take_over", each, each.kill, count, n) for each in sets]
    first, *others = rows
    for row in others:
        first.update({name: value for name, value in row.items() if name not in first})
    return [first, pauses("hand_over", log_set, log_set.hand_over, count, n)]


if __name__ == "__main__":
    sys.exit(main())
