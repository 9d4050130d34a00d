"""What the ledger costs: the same rounds with it off and on, in turn, in one process of the broker.

    python -m bench.ledger --rounds 7 --out bench/results/ledger.json
    python -m bench.ledger --only work_queue_1k --rounds 9 --gate

Between two rounds `vouchmq ledger on` or `off` switches the broker that is being measured, so both
sides have the same process, the same disk and the same minute. Judged is the median of the
quotients of neighbouring rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench import servers
from bench.features import FeatureError, Figures, Row, plain
from bench.measure import play
from bench.run import conditions
from bench.scenarios import catalogue
from bench.servers import DEFAULT_VOUCHMQ, Server
from bench.shape import Consumer, Shape

LEAST_SHARE: Final = 0.9
"""Of the rate without a ledger, for persistent messages that are confirmed."""
DURATION_MS: Final = 3000


def _catalogued(name: str) -> Shape:
    (scenario,) = catalogue.chosen([name])
    return replace(scenario.shape, duration_ms=DURATION_MS)


def _five_consumers() -> Shape:
    made = plain(1024)
    consumer = made.consumers[0]
    each = Consumer(consumer.queue, consumer.body_size, ack_every=1, prefetch_count=200)
    return replace(made, consumers=(each,) * 5)


SHAPES: Final[dict[str, tuple[str, Shape, bool]]] = {
    "work_queue_1k": (
        "1 KiB, window 500, an ack for each",
        replace(plain(1024), duration_ms=DURATION_MS),
        True,
    ),
    "work_queue_100": (
        "100 B, window 1000, an ack for each",
        replace(plain(100), duration_ms=DURATION_MS),
        True,
    ),
    "confirm_window_1000": (
        "1 KiB, window 1000, nobody consumes",
        _catalogued("confirm_window_1000"),
        True,
    ),
    "p8c8q8": ("eight of each, window 100", _catalogued("p8c8q8"), True),
    "one_producer_10_queues": (
        "another queue with each message: a line for each",
        _catalogued("one_producer_10_queues_persistent"),
        False,
    ),
    "unlike_persistent": (
        "no two alike: another key, id and size with each message: a line for each",
        _catalogued("unlike_persistent"),
        False,
    ),
    "transient_16b_autoack": (
        "16 B, no confirms, no acks",
        _catalogued("transient_16b_autoack"),
        False,
    ),
    "confirm_each": ("1 KiB, each waits for its own confirm", _catalogued("confirm_each"), True),
}
"""What it is, its shape, and whether the target is for it."""


def switch(data_dir: Path, verb: str) -> None:
    """Switch the ledger of the broker on a data directory."""
    command = [sys.executable, "-m", "vouchmq", "ledger", verb, "--data-dir", str(data_dir)]
    subprocess.run(command, cwd=servers.ROOT, check=True, capture_output=True)


def played(server: Server, shape: Shape) -> Figures:
    """Play one round.

    Raises:
        FeatureError: a message is missing, doubled or left over.
    """
    server.require_alive()
    one = play(server, shape)
    if one.error:
        raise FeatureError(one.error)
    return Figures(one.values["rate_per_s"], one.values.get("cpu_us", 0.0))


def measured(server: Server, data_dir: Path, name: str, round_count: int) -> Row:
    """Play a shape's rounds in pairs."""
    what, shape, is_judged = SHAPES[name]
    pairs: list[tuple[Figures, Figures]] = []
    play(server, shape.quick())
    for number in range(round_count):
        found: dict[str, Figures] = {}
        for verb in ("on", "off") if number % 2 else ("off", "on"):
            switch(data_dir, verb)
            found[verb] = played(server, shape)
        switch(data_dir, "off")
        pairs.append((found["off"], found["on"]))
    shares = [with_it.rate_per_s / without.rate_per_s for without, with_it in pairs]
    cpu_shares = [without.cpu_us / with_it.cpu_us for without, with_it in pairs if with_it.cpu_us]
    return {
        "name": name,
        "what": what,
        "is_judged": is_judged,
        "rounds": round_count,
        "share": round(statistics.median(shares), 3),
        "share_low_high": [round(min(shares), 3), round(max(shares), 3)],
        "off_per_s": round(statistics.median(one.rate_per_s for one, _ in pairs)),
        "on_per_s": round(statistics.median(one.rate_per_s for _, one in pairs)),
        "off_cpu_us": round(statistics.median(one.cpu_us for one, _ in pairs), 2),
        "on_cpu_us": round(statistics.median(one.cpu_us for _, one in pairs), 2),
        "cpu_share": round(statistics.median(cpu_shares), 3) if cpu_shares else None,
    }


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(prog="python -m bench.ledger", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES))
    made.add_argument("--rounds", type=int, default=5, help="pairs of rounds of each (5)")
    made.add_argument("--vouchmq", default=DEFAULT_VOUCHMQ, metavar="CMD", help="starts the broker")
    made.add_argument("--out", type=Path, metavar="FILE", help="JSON")
    made.add_argument("--gate", action="store_true", help="exit 1 when a share is below 0.9")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a round failed or, with --gate, a target."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    rows: list[Row] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="vouchmq-bench-") as directory:
        work_dir = Path(directory)
        with servers.vouchmq(options.vouchmq, work_dir) as server:
            for name in options.only:
                try:
                    row = measured(server, work_dir / "vouchmq", name, options.rounds)
                except FeatureError as error:
                    row, failed = {"name": name, "error": str(error)}, True
                rows.append(row)
                print(json.dumps(row), flush=True)
            where = conditions(work_dir)
    if options.out:
        command = "python -m bench.ledger " + " ".join(given)
        results = {"command": command, "conditions": where, "rows": rows}
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return int(failed or (options.gate and any(map(is_missed, rows))))


def is_missed(row: Row) -> bool:
    """Whether it costs more than it may."""
    share = row.get("share")
    return bool(row.get("is_judged")) and isinstance(share, float) and share < LEAST_SHARE


if __name__ == "__main__":
    sys.exit(main())
