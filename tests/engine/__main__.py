"""Faults of real servers, as many as you like: `python -m tests.engine --kills 100 --pauses 100`.

Prints each round, and a summary at the end; exits with 1 if a promise was broken. The directory of
a chapter in which something was wrong is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import structlog

from tests.engine import networks, servers
from tests.engine.campaign import Report, run_faults, run_partition
from tests.engine.take_overs import WAYS, run_take_overs


async def run(options: argparse.Namespace, base: Path) -> Report:
    """All chapters, one after the other, with their data below this directory."""
    chance = random.Random(options.seed)
    report = Report()
    began = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.1f} s  {text}\n")
        sys.stdout.flush()

    rounds = ["kill"] * options.kills + ["pause"] * options.pauses
    chance.shuffle(rounds)
    for number, first in enumerate(range(0, len(rounds), options.chapter)):
        kinds = rounds[first : first + options.chapter]
        # Each second chapter gives up its oldest records as it goes.
        purges = bool(number % 2)
        await run_faults(base / f"faults-{number}", kinds, report, chance, tell, purges=purges)
        tell(f"chapter {report.chapters}: {report.records} records, wrong: {report.wrong or 0}")
    if options.take_overs:
        ways = [WAYS[number % len(WAYS)] for number in range(options.take_overs)]
        done = await run_take_overs(base / "take-overs", ways, chance, tell)
        report.take_overs = vars(done)
        report.wrong += done.wrong
        if not done.wrong:
            shutil.rmtree(base / "take-overs")
    if options.partitions and networks.why_not():
        tell(f"no partitions: {networks.why_not()}")
    elif options.partitions:
        for number in range(options.partitions):
            partition = networks.PARTITIONS[number % len(networks.PARTITIONS)]
            await run_partition(base / f"partition-{number}", partition, report, chance, tell)
    return report


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine", description=__doc__)
    parser.add_argument("--kills", type=int, default=6, help="rounds with SIGKILL")
    parser.add_argument("--pauses", type=int, default=6, help="rounds with SIGSTOP")
    parser.add_argument("--partitions", type=int, default=0, help="partitions, one of each in turn")
    parser.add_argument("--take-overs", type=int, default=0, help="leaders that are lost")
    parser.add_argument("--chapter", type=int, default=12, help="rounds before an audit")
    parser.add_argument("--seed", type=int, default=None, help="of victims' order and durations")
    parser.add_argument("--directory", type=Path, default=None, help="for the servers' data")
    parser.add_argument("--out", type=Path, default=None, help="a file for the summary, as JSON")
    options = parser.parse_args()
    if servers.program() is None:
        sys.stderr.write(servers.MISSING + "\n")
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    base = Path(tempfile.mkdtemp(prefix="engine-", dir=options.directory))
    report = asyncio.run(run(options, base))
    if not report.wrong:
        base.rmdir()
    summary = json.dumps(report.as_json(), indent=2) + "\n"
    sys.stdout.write(summary)
    if options.out is not None:
        options.out.write_text(summary)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
