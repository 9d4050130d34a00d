"""What a sync costs in a file whose blocks are reserved, and in one that was filled with zeros.

    python -m bench.micro.fill [--data-dir DIR] [--rounds N]

A block of 3,000 bytes is appended and synced again and again, in files of either kind in turn,
with nothing beside it and while the helper process prepares more files of that kind. Then files
are filled by calls of several sizes, and what a write of such a block costs the writer is measured
in each of them in turn. What is measured depends on the file system and the disk below it.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vouchmq.store.disk import FileDisk
from vouchmq.store.sync.worker import HelperProcess

SIZE_BYTES = 64 * 1024 * 1024
BLOCK = b"x" * 3000
SYNCS = 1000
SPARE = "prepared"
LIMIT_S = 60.0
# What one call fills; 0: nothing is filled. The page cache keeps it in units of up to that size.
CALL_SIZES = (0, 64 * 1024, 256 * 1024, 1024 * 1024)
CALLS_BYTES = 16 * 1024 * 1024
WRITES = 300


class Cost(NamedTuple):
    """Of one round, times in microseconds."""

    p50: float
    p99: float
    cpu: float


def percentile(sample: list[float], share: float) -> float:
    return sorted(sample)[int(len(sample) * share)]


def prepared(worker: HelperProcess, disk: FileDisk, name: str) -> float:
    """Have a file made; return how long it took, in milliseconds."""
    began = time.perf_counter()
    worker.prepare(disk, name, SIZE_BYTES)
    while not (disk.path / name).exists():
        if time.perf_counter() - began > LIMIT_S:
            raise TimeoutError(f"{name} was not made")
        time.sleep(0.0002)
    return 1000 * (time.perf_counter() - began)


def cost(disk: FileDisk, name: str, between: Callable[[], object]) -> Cost:
    """What appending and syncing costs in that file."""
    file = disk.open(name)
    took: list[float] = []
    cpu = time.process_time()
    for number in range(SYNCS):
        between()
        began = time.perf_counter()
        file.write([BLOCK], number * len(BLOCK))
        file.sync()
        took.append(1e6 * (time.perf_counter() - began))
    cpu = time.process_time() - cpu
    file.close()
    return Cost(percentile(took, 0.5), percentile(took, 0.99), 1e6 * cpu / SYNCS)


def play(disk: FileDisk, worker: HelperProcess, rounds: int) -> None:
    """Both kinds in turn, and their medians."""

    def prepare_more() -> None:
        """One file after the other."""
        if (disk.path / SPARE).exists():
            disk.unlink(SPARE)
            worker.prepare(disk, SPARE, SIZE_BYTES)

    kinds = {"reserved": False, "filled": True}
    alone: dict[str, list[Cost]] = {kind: [] for kind in kinds}
    beside: dict[str, list[Cost]] = {kind: [] for kind in kinds}
    made_ms: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, is_filled in kinds.items():
            worker.writes_zeros = is_filled
            made_ms[kind].append(prepared(worker, disk, "file"))
            alone[kind].append(cost(disk, "file", lambda: None))
            disk.unlink("file")
            prepared(worker, disk, "file")
            prepared(worker, disk, SPARE)
            beside[kind].append(cost(disk, "file", prepare_more))
            while not (disk.path / SPARE).exists():
                time.sleep(0.001)
            disk.unlink("file")
            disk.unlink(SPARE)
    for kind in kinds:
        took_ms = statistics.median(made_ms[kind])
        print(f"{kind}: {SIZE_BYTES >> 20} MiB are there after {took_ms:.1f} ms")
        for what, costs in (("alone", alone[kind]), ("beside more of them", beside[kind])):
            p50, p99, cpu = (statistics.median(each) for each in zip(*costs, strict=True))
            print(f"  sync, {what}: p50 {p50:.0f} us, p99 {p99:.0f} us, CPU {cpu:.0f} us")


def filled_by(path: Path, call_bytes: int) -> int:
    """The descriptor of a new file that was filled by calls of this size."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.posix_fallocate(descriptor, 0, CALLS_BYTES)
    for offset in range(0, CALLS_BYTES, call_bytes) if call_bytes else ():
        os.pwrite(descriptor, bytes(call_bytes), offset)
    os.fsync(descriptor)
    return descriptor


def play_writes(directory: Path) -> None:
    """What a write into the page cache costs, by how the file was filled; a sync follows each."""
    files = {size: filled_by(directory / f"calls-{size}", size) for size in CALL_SIZES}
    took: dict[int, list[float]] = {size: [] for size in CALL_SIZES}
    for number in range(WRITES):
        for size, descriptor in files.items():
            began = time.thread_time_ns()
            os.pwrite(descriptor, BLOCK, number * len(BLOCK))
            took[size].append((time.thread_time_ns() - began) / 1000)
            os.fdatasync(descriptor)
    for size, descriptor in files.items():
        os.close(descriptor)
        how = f"filled by calls of {size >> 10} KiB" if size else "reserved"
        p25, p50 = percentile(took[size], 0.25), percentile(took[size], 0.5)
        print(f"{how}: CPU of a write p25 {p25:.0f} us, p50 {p50:.0f} us")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.fill")
    parser.add_argument("--data-dir", type=Path, help="where to work; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    worker = HelperProcess()
    with tempfile.TemporaryDirectory(dir=chosen.data_dir) as directory:
        disk = FileDisk(directory)
        try:
            play(disk, worker, chosen.rounds)
            play_writes(disk.path)
        finally:
            worker.close()
            disk.close()


if __name__ == "__main__":
    main()
