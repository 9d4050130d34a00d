"""Random schedules of the shared log: `python -m tests.replication --schedules 1000000`.

    --schedules N   so many, from consecutive seeds
    --from N        the first seed; by default one that the clock gives
    --seed N        one schedule, and what came of it
    --patience      of the model of patience: who waits for whom (`patience_world.py`)

Prints the first seed at the beginning and totals at the end; exit code 1 after a failure, of which
the line that brings it back is printed at once.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.replication.patience_world import PatienceWorld
from tests.replication.schedules import ScheduleError, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replication")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--from", type=int, dest="first", default=time.time_ns() >> 10)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--patience", action="store_true")
    given = parser.parse_args()
    if given.patience:
        first, count = (given.first, given.schedules) if given.seed is None else (given.seed, 1)
        return _many_of_patience(range(first, first + count))
    if given.seed is not None:
        world = run(given.seed)
        sys.stdout.write(
            f"{len(world.nodes)} nodes, {len(world.log.messages)} messages,"
            f" {len(world.take_overs)} claims, {len(world.promised)} blocks promised\n"
        )
        return 0
    return _many(range(given.first, given.first + given.schedules))


def _many(seeds: range) -> int:
    sys.stdout.write(f"from seed {seeds.start}\n")
    sys.stdout.flush()
    began = time.perf_counter()
    claims = messages = promises = strays = failures = readings = 0
    for seed in seeds:
        try:
            world = run(seed)
        except ScheduleError as failure:
            failures += 1
            sys.stdout.write(f"FAILED {failure}\n")
            sys.stdout.flush()
            continue
        claims += len(world.take_overs)
        messages += len(world.log.messages)
        promises += len(world.promised)
        strays += world.stray_count
        readings += world.reading_count
    took = time.perf_counter() - began
    sys.stdout.write(
        f"{len(seeds)} schedules in {took:.0f} s, {len(seeds) / took:.0f} a second:"
        f" {claims} claims, {messages} messages, {promises} blocks promised,"
        f" {readings} readings after a doubt, {strays} strays, {failures} failures\n"
    )
    return 1 if failures else 0


def _many_of_patience(seeds: range) -> int:
    sys.stdout.write(f"from seed {seeds.start}\n")
    sys.stdout.flush()
    claims = signs = failures = 0
    for seed in seeds:
        world = PatienceWorld(seed)
        try:
            world.run()
        except AssertionError as failure:
            failures += 1
            sys.stdout.write(f"FAILED python -m tests.replication --patience --seed {seed}: ")
            sys.stdout.write(f"{failure}\n")
            sys.stdout.flush()
        claims += sum(entry.is_claim for entry in world.log)
        signs += world.sign_count
    sys.stdout.write(
        f"{len(seeds)} schedules: {claims} claims, {signs} signs, {failures} failures\n"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
