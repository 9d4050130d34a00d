"""How the audit grows: ledgers of growing size, time, memory, and reading them as JSON beside it.

    python -m bench.audit --steps 1000000 5000000 10000000 --out bench/results/audit.json
    python -m bench.audit --steps 10000000 --queues 5000

A step is what happens to one message once: published, confirmed, delivered, acknowledged. Each
audit is a process of its own with the heap that is given; reading the same lines into nothing, in
a process of the same kind, says how fast the machine is just now.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from bench.pipeline.ledger_lines import Ledger

STEPS_A_MESSAGE: Final = 4
POLL_S: Final = 0.1
READ: Final = """
import sys, time
from vouchmq.spark import ledger
from vouchmq.spark.session import session
with session("reading", cores=2, memory=sys.argv[2]) as spark:
    for _ in range(2):
        began = time.monotonic()
        lines = spark.read.schema(ledger.SCHEMA_DDL).json(sys.argv[1])
        lines.write.format("noop").mode("overwrite").save()
        print(time.monotonic() - began, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One audit, and reading its lines."""

    steps: int
    lines: int
    queues: int
    run: int
    bytes: int
    audit_s: float
    steps_per_s: int
    peak_pss_mib: int
    read_lines_per_s: int
    exit: int
    states: dict[str, int]


def watched(command: list[str]) -> tuple[str, int, float]:
    """Run a command; its output, the most memory that it and its children had (MiB), seconds.

    Pages that several processes share count once: a JVM that starts a child is there twice for a
    moment, with the same pages.
    """
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    seen = psutil.Process(process.pid)
    peak = 0
    while process.poll() is None:
        try:
            every = [seen, *seen.children(recursive=True)]
            peak = max(peak, sum(each.memory_full_info().pss for each in every))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            pass
        time.sleep(POLL_S)
    output = process.stdout.read() if process.stdout else ""
    return output, peak >> 20, time.monotonic() - began


def measure(steps: int, run: int, queues: int, memory: str, directory: Path) -> Measured:
    """Write a ledger of so many steps, read it, audit it."""
    place, out = directory / "ledger", directory / "out"
    lines = Ledger(place, steps // STEPS_A_MESSAGE, run=run, queue_count=queues).write()
    size = sum(path.stat().st_size for path in place.iterdir())
    read, _, _ = watched([sys.executable, "-c", READ, str(place), memory])
    read_s = min(map(float, read.split()))
    command = [sys.executable, "-m", "vouchmq", "audit", str(place), "--out", str(out)]
    _, peak, _ = watched([*command, "--memory", memory])
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return Measured(
        *(steps, lines, queues, run, size, summary["took_s"]),
        *(round(steps / summary["took_s"]), peak, round(lines / read_s)),
        *(summary["exit"], summary["states"]),
    )


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000_000, 5_000_000, 10_000_000])
    parser.add_argument("--run", type=int, default=16)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for steps in options.steps:
        with tempfile.TemporaryDirectory(prefix="bench-audit-") as directory:
            rows.append(
                measure(steps, options.run, options.queues, options.memory, Path(directory))
            )
        told = rows[-1]
        print(
            f"{told.steps:>12,} steps, {told.queues} queues: {told.audit_s} s, "
            f"{told.steps_per_s:,} steps/s, {told.peak_pss_mib:,} MiB; JSON alone "
            f"{told.read_lines_per_s:,} lines/s; exit {told.exit} {told.states}",
            flush=True,
        )
    if options.out:
        kept = json.loads(options.out.read_text())["runs"] if options.out.exists() else []
        kept.append(
            {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "cores": os.cpu_count(),
                "load": os.getloadavg()[0],
                "memory": options.memory,
                "rows": [asdict(row) for row in rows],
            }
        )
        options.out.write_text(json.dumps({"runs": kept}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
