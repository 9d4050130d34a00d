"""What one step of compaction costs the loop, without a broker around it.

    python -m bench.micro.compaction [--data-dir DIR] [--segments N]

Segments full of 1 KiB messages of three queues, two of which are dropped. The steps that empty
them are timed one by one, in CPU time and by the clock, with the writes that follow them.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.disk import FileDisk
from vouchmq.store.journal.journal import Journal
from vouchmq.store.recovery.recover import open_journal
from vouchmq.store.sync.group_commit import GroupCommit
from vouchmq.store.sync.worker import SyncInline

SEGMENT_SIZE_BYTES = 64 * 1024 * 1024
RAW = bytes(1069)
OCTETS = 32 * 1024
# How messages lie: how many of a queue in a row, and how many in a block.
LAYOUTS = {"alternating": (1, 500), "in_runs_of_100": (100, 500), "one_in_a_block": (1, 1)}


def fill(journal: Journal, commit: GroupCommit, segments: int, row: int, block: int) -> None:
    count = segments * SEGMENT_SIZE_BYTES // (len(RAW) + (300 if block == 1 else 10))
    queue_id = at = 0
    raws = [RAW] * row
    while at < count:
        for _ in range(0, block, row):
            queue_id = queue_id % 3 + 1
            journal.append_run((queue_id,), b"\0\1a", raws)
        at += block
        journal.write()
    sync(journal, commit)


def sync(journal: Journal, commit: GroupCommit) -> None:
    journal.write()
    commit.request()
    commit.on_readable()
    while not commit.is_idle:
        commit.on_readable()


@contextmanager
def timed(cpu: list[float], wall: list[float]) -> Iterator[None]:
    began, ticked = time.perf_counter(), time.process_time()
    yield
    cpu.append((time.process_time() - ticked) * 1000)
    wall.append((time.perf_counter() - began) * 1000)


def measure(directory: Path, segments: int, row: int, block: int) -> dict[str, float]:
    disk = FileDisk(directory)
    journal, _ = open_journal(disk, segment_size_bytes=SEGMENT_SIZE_BYTES, wall_ms=lambda: 0)
    commit = GroupCommit(
        journal,
        SyncInline(),
        on_synced=lambda _: None,
        on_failed=lambda errno: print(f"sync failed: errno {errno}"),
        clock=time.monotonic,
    )
    fill(journal, commit, segments, row, block)
    compactor = Compactor(journal, lambda name, why: print(f"{name}: {why}"))
    journal.drop_queue(2)
    journal.drop_queue(3)
    sync(journal, commit)
    cpu: list[float] = []
    wall: list[float] = []
    compactor.look()
    is_going_on = True
    while is_going_on:
        with timed(cpu, wall):
            is_going_on = compactor.step(OCTETS)
            journal.write()
        if journal.unsynced_bytes > 8 * 1024 * 1024 or journal.wants_sync:
            sync(journal, commit)
    counters = compactor.counters
    journal.close()
    disk.close()
    return {
        "rounds": counters.rounds,
        "moved_mib": round(counters.moved_bytes / 1024**2, 1),
        "steps": len(cpu),
        "cpu_ms_p50": percentile(cpu, 50),
        "cpu_ms_p99": percentile(cpu, 99),
        "cpu_ms_max": round(max(cpu), 2),
        "wall_ms_p99": percentile(wall, 99),
        "cpu_s": round(sum(cpu) / 1000, 2),
    }


def percentile(values: list[float], share: int) -> float:
    return round(statistics.quantiles(values, n=100)[share - 1], 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.compaction")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--segments", type=int, default=3)
    options = parser.parse_args()
    for name, (row, block) in LAYOUTS.items():
        with tempfile.TemporaryDirectory(dir=options.data_dir) as directory:
            print(name, measure(Path(directory), options.segments, row, block), flush=True)


if __name__ == "__main__":
    main()
