"""Look for seeds that break the broker or the store: `python -m tests.simulation --seconds 60`.

    --seconds S          live histories from fresh seeds for so long
    --states N           or until so many crash states were judged
    --seed N [--steps M] one history again, with every step of its end shown
    --jobs J             processes (default: one per core)
    --rough              with a disk that is full, and a power that goes, every few steps

Every other share of the time goes to the store alone (`store_model.run_random`), whose
histories are shorter; those of the broker are in turn plain, with every feature in use
(`--features`), with features and operations of which any two meet (`--pairs`), the same where
pages, segments, restarts, disk, clock and ledger are drawn, too (`--surrounded`), with a ledger
that is audited in the end (`--ledger`; every other one of these is rough), and with an
administrator who changes users, virtual hosts and policies (`--admin`). Prints crash states
per second and totals; exit code 1 after a failure, of which the line that brings it back is
printed at once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.queues import Queue

from tests.simulation import history, store_model

STORE_SHARE = 0.4
SHOWN_STEPS = 60
# Histories of a broker by what it has in use, and how they are asked for.
RUNS: dict[str, Callable[..., history.Outcome]] = {
    "": history.run,
    "--features ": history.run_features,
    "--pairs ": history.run_pairs,
    "--surrounded ": history.run_surrounded,
    "--ledger ": history.run_ledger,
    "--admin ": history.run_admin,
}
KINDS = tuple(RUNS)


@dataclass(slots=True)
class Totals:
    """What all histories of one process came to."""

    histories: int = 0
    broker_histories: int = 0
    broker_states: int = 0
    store_states: int = 0
    broker_seconds: float = 0.0
    store_seconds: float = 0.0
    confirms: int = 0
    deliveries: int = 0
    failures: int = 0

    def failed(self, what: str) -> None:
        """Say it at once: a run may go on for an hour."""
        self.failures += 1
        sys.stdout.write(f"FAILED python -m tests.simulation {what}\n")
        sys.stdout.flush()

    def add(self, other: Totals) -> None:
        self.histories += other.histories
        self.broker_histories += other.broker_histories
        self.broker_states += other.broker_states
        self.store_states += other.store_states
        self.broker_seconds += other.broker_seconds
        self.store_seconds += other.store_seconds
        self.confirms += other.confirms
        self.deliveries += other.deliveries
        self.failures += other.failures


def live_broker(seed: int, totals: Totals, kind: str, *, is_rough: bool) -> None:
    began = time.perf_counter()
    outcome = RUNS[kind](seed, is_rough=is_rough)
    totals.broker_seconds += time.perf_counter() - began
    totals.histories += 1
    totals.broker_histories += 1
    totals.broker_states += outcome.states
    totals.confirms += outcome.confirms
    totals.deliveries += outcome.deliveries
    if outcome.failure is not None:
        name = type(outcome.failure).__name__
        what = kind + ("--rough " if is_rough else "")
        totals.failed(f"{what}--seed {seed} --steps {outcome.steps}  # {name}: {outcome.failure}")


def live_store(seed: int, totals: Totals) -> None:
    began = time.perf_counter()
    try:
        totals.store_states += store_model.run_random(seed).recoveries
    except history.BROKEN as error:
        totals.failed(f"--store --seed {seed}  # {type(error).__name__}: {error}")
    totals.store_seconds += time.perf_counter() - began
    totals.histories += 1


def live(first_seed: int, seconds: float, states: int, is_rough: bool = False) -> Totals:
    """Fresh seeds from `first_seed` on, until the time or the number of states is reached."""
    totals = Totals()
    deadline = time.perf_counter() + seconds
    seed = first_seed
    while time.perf_counter() < deadline and totals.failures < 10:
        if 0 < states <= totals.broker_states + totals.store_states:
            break
        spent = totals.broker_seconds + totals.store_seconds
        if totals.store_seconds < STORE_SHARE * spent:
            live_store(seed, totals)
        else:
            kind = KINDS[totals.broker_histories % len(KINDS)]
            # A ledger has most to tell of blocks that were refused.
            is_strained = kind == "--ledger " and totals.broker_histories // len(KINDS) % 2 == 0
            live_broker(seed, totals, kind, is_rough=is_rough or is_strained)
        seed += 1
    return totals


def in_process(
    results: Queue[Totals], first_seed: int, seconds: float, states: int, is_rough: bool
) -> None:
    results.put(live(first_seed, seconds, states, is_rough))


def live_all(
    first_seed: int, seconds: float, states: int, jobs: int, *, is_rough: bool = False
) -> Totals:
    """The same in several processes, each with seeds of its own."""
    if jobs <= 1:
        return live(first_seed, seconds, states, is_rough)
    context = multiprocessing.get_context("fork")
    results: Queue[Totals] = context.Queue()
    processes = [
        context.Process(
            target=in_process,
            args=(results, first_seed + job * 10_000_000, seconds, -(-states // jobs), is_rough),
        )
        for job in range(jobs)
    ]
    for process in processes:
        process.start()
    totals = Totals()
    for _ in processes:
        totals.add(results.get(timeout=seconds + 120))
    for process in processes:
        process.join()
    return totals


def show(seed: int, steps: int | None, kind: str, *, is_rough: bool) -> int:
    """One history again, with what led to its end."""
    lines: deque[str] = deque(maxlen=SHOWN_STEPS)
    run = RUNS[kind]
    if steps is None:
        outcome = run(seed, is_rough=is_rough, trace=lines.append)
    else:
        outcome = run(seed, steps, is_rough=is_rough, trace=lines.append)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    if outcome.failure is None:
        sys.stdout.write(f"seed {seed}: {outcome.steps} steps, {outcome.states} states, fine\n")
        return 0
    traceback.print_exception(outcome.failure)
    return 1


def show_store(seed: int) -> int:
    try:
        model = store_model.run_random(seed)
    except history.BROKEN as error:
        traceback.print_exception(error)
        return 1
    sys.stdout.write(f"store seed {seed}: {model.recoveries} states, fine\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--states", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--store", action="store_true", help="with --seed: a history of the store")
    parser.add_argument("--features", action="store_true", help="with --seed: with all features")
    parser.add_argument("--pairs", action="store_true", help="with --seed: where any two meet")
    parser.add_argument("--surrounded", action="store_true", help="with --seed: and surroundings")
    parser.add_argument("--ledger", action="store_true", help="with --seed: and with a ledger")
    parser.add_argument("--admin", action="store_true", help="with --seed: with an administrator")
    parser.add_argument("--rough", action="store_true", help="a disk that is often full")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    chosen = parser.parse_args()
    if chosen.seed is not None and not (chosen.seconds or chosen.states):
        if chosen.store:
            return show_store(chosen.seed)
        asked = {
            "--features ": chosen.features,
            "--pairs ": chosen.pairs,
            "--surrounded ": chosen.surrounded,
            "--ledger ": chosen.ledger,
            "--admin ": chosen.admin,
        }
        kind = next((kind for kind, is_asked in asked.items() if is_asked), "")
        return show(chosen.seed, chosen.steps, kind, is_rough=chosen.rough)
    fresh = random.SystemRandom().randrange(1 << 40)
    first_seed = chosen.seed if chosen.seed is not None else fresh
    began = time.perf_counter()
    seconds = chosen.seconds or (86400.0 if chosen.states else 10.0)
    totals = live_all(first_seed, seconds, chosen.states, chosen.jobs, is_rough=chosen.rough)
    report(totals, first_seed, time.perf_counter() - began)
    return 1 if totals.failures else 0


def report(totals: Totals, first_seed: int, seconds: float) -> None:
    states = totals.broker_states + totals.store_states
    sys.stdout.write(
        f"{totals.histories} histories from seed {first_seed}: {states} crash states in "
        f"{seconds:.0f} s, {states / seconds:.0f}/s\n"
        f"  broker {totals.broker_states} "
        f"({totals.broker_states / (totals.broker_seconds or 1):.0f}/s per process), "
        f"{totals.confirms} confirms, {totals.deliveries} deliveries\n"
        f"  store  {totals.store_states} "
        f"({totals.store_states / (totals.store_seconds or 1):.0f}/s per process)\n"
    )
    if totals.failures:
        sys.stdout.write(f"  {totals.failures} failed, above\n")


if __name__ == "__main__":
    sys.exit(main())
