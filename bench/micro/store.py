"""What the store costs, without a broker around it.

    python -m bench.micro.store [--data-dir DIR]

Three tables: CPU of buffering and writing a run of 1 KiB contents, the time until a lone
write is durable with each kind of sync worker, and how fast a journal is recovered.
"""

import argparse
import gc
import select
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vouchmq.store.disk import FileDisk
from vouchmq.store.journal.journal import Journal
from vouchmq.store.recovery.recover import open_journal
from vouchmq.store.sync.group_commit import GroupCommit
from vouchmq.store.sync.worker import HelperProcess, SyncInline, SyncWorker, ThreadWorker

SEGMENT_SIZE_BYTES = 64 * 1024 * 1024
TAIL = b"\x00\x09some.key.and"
RUNS = (1, 10, 60, 240)
REPEATS = 7


def open_empty(directory: str, worker: SyncWorker) -> tuple[Journal, GroupCommit]:
    journal, _ = open_journal(
        FileDisk(directory),
        segment_size_bytes=SEGMENT_SIZE_BYTES,
        wall_ms=lambda: time.time_ns() // 1_000_000,
    )
    commit = GroupCommit(
        journal,
        worker,
        on_synced=lambda _: None,
        on_failed=lambda errno: print(f"sync failed: errno {errno}"),
        clock=time.monotonic,
    )
    return journal, commit


def sync(journal: Journal, commit: GroupCommit) -> None:
    journal.write()
    commit.request()
    commit.on_readable()


def cost_us(action: Callable[[], None], count: int) -> float:
    """Least CPU time of one of `count` actions over some repeats, in microseconds."""
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        for _ in range(count):
            action()
        best = min(best, time.process_time() - started)
    return best / count * 1e6


def measure_run(directory: str, run: int, settles: bool) -> tuple[float, float]:
    """Return us per message of buffering alone and of buffering and writing."""
    journal, commit = open_empty(directory, SyncInline())
    raws = [bytes([n % 256]) * 1060 for n in range(run)]
    count = max(20, 4000 // run)

    def buffer() -> None:
        journal.append_run((1,), TAIL, raws)

    def write() -> None:
        first = journal.append_run((1,), TAIL, raws)
        if settles:
            journal.settle(1, range(first, first + run))
        journal.write()

    buffering = cost_us(buffer, max(1, 2000 // run))
    sync(journal, commit)
    writing = []
    for _ in range(REPEATS):
        started = time.process_time()
        for _ in range(count):
            write()
        writing.append((time.process_time() - started) / count * 1e6)
        sync(journal, commit)
    journal.close()
    return buffering / run, min(writing) / run


def measure_commit(directory: str, worker: SyncWorker, rounds: int) -> tuple[float, float]:
    """Return p50 and p99 in us of append, write, sync for one message at a time."""
    journal, commit = open_empty(directory, worker)
    raw = [bytes(1060)]
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        lsn = journal.append_run((1,), TAIL, raw)
        journal.write()
        commit.request()
        while commit.watermark < lsn:
            select.select([commit.fileno], [], [])
            commit.on_readable()
        times.append(time.perf_counter() - started)
    journal.close()
    times.sort()
    return times[rounds // 2] * 1e6, times[rounds * 99 // 100] * 1e6


def measure_recovery(directory: str, count: int) -> tuple[float, int]:
    """Return seconds to recover `count` messages of 1 KiB, and how many came back."""
    journal, commit = open_empty(directory, SyncInline())
    raws = [bytes(1060)] * 100
    for _ in range(count // 100):
        journal.append_run((1,), TAIL, raws)
        journal.write()
    sync(journal, commit)
    journal.close()
    journal.disk.close()  # type: ignore[attr-defined]
    gc.collect()
    started = time.perf_counter()
    journal, recovered = open_journal(
        FileDisk(directory),
        segment_size_bytes=SEGMENT_SIZE_BYTES,
        wall_ms=lambda: time.time_ns() // 1_000_000,
    )
    seconds = time.perf_counter() - started
    journal.close()
    return seconds, recovered.report.messages


@contextmanager
def new_directory(parent: str | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        yield str(Path(directory) / "data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", help="where to put the journals (a real disk)")
    parser.add_argument("--rounds", type=int, default=3000, help="lone writes to time")
    parser.add_argument("--recover", type=int, default=200_000, help="messages to recover")
    arguments = parser.parse_args()
    parent = arguments.data_dir
    # Before the heap grows and before the thread below is started.
    workers: list[SyncWorker] = [HelperProcess()]
    print(f"{'run':>6} {'append us/msg':>15} {'and write':>10} {'and settle':>10}")
    for run in RUNS:
        with new_directory(parent) as directory:
            append, write = measure_run(directory, run, settles=False)
        with new_directory(parent) as directory:
            _, settle = measure_run(directory, run, settles=True)
        print(f"{run:>6} {append:>15.3f} {write:>10.3f} {settle:>10.3f}")
    print(f"\n{'worker':>14} {'p50 us':>8} {'p99 us':>8}   one write, one sync at a time")
    workers.append(ThreadWorker())
    for worker in workers:
        with new_directory(parent) as directory:
            p50, p99 = measure_commit(directory, worker, arguments.rounds)
        print(f"{type(worker).__name__:>14} {p50:>8.0f} {p99:>8.0f}")
        worker.close()
    with new_directory(parent) as directory:
        seconds, count = measure_recovery(directory, arguments.recover)
    print(f"\n{count} messages of 1 KiB recovered in {seconds:.2f} s")


if __name__ == "__main__":
    main()
