"""How long a start takes against the number of stored messages, with and without checkpoints.

    python -m bench.micro.recovery [--data-dir DIR] [--counts 10000 …] [--json FILE]

Persistent 1 KiB messages of one queue, without a broker around it. "warm": what is read is in the
page cache; "cold": it is not (dropped file by file before each start). "whole" reads all segments,
as a start without checkpoints does. Each start is a process of its own, as memory is measured too.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vouchmq.store.disk import FileDisk
from vouchmq.store.recovery.recover import WHOLE_BYTES, open_journal
from vouchmq.store.sync.group_commit import GroupCommit
from vouchmq.store.sync.worker import SyncInline

SEGMENT_SIZE_BYTES = 64 * 1024 * 1024
RAW = bytes(1069)
TURN = 100
SYNC_BYTES = 64 * 1024 * 1024
COUNTS = (10_000, 100_000, 1_000_000, 10_000_000)
REPEATS = 3
MODES = ("summaries", "whole")


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def fill(directory: str, count: int) -> None:
    """Publish in turns of 100, with a settle of something else in each tenth."""
    disk = FileDisk(directory)
    journal, _ = open_journal(disk, segment_size_bytes=SEGMENT_SIZE_BYTES, wall_ms=wall_ms)
    commit = GroupCommit(
        journal,
        SyncInline(),
        on_synced=lambda _: None,
        on_failed=lambda errno: sys.exit(f"sync failed: errno {errno}"),
        clock=time.monotonic,
    )
    raws = [RAW] * TURN
    for turn in range(count // TURN):
        journal.append_run((1,), b"\0\1a", raws)
        if turn % 10 == 0:
            other = journal.append_run((2,), b"\0\1b", [RAW])
            journal.settle(2, [other])
        journal.write()
        if journal.unsynced_bytes > SYNC_BYTES:
            commit.request()
            commit.on_readable()
    while journal.wants_sync or not commit.is_idle:
        commit.request()
        commit.on_readable()
    journal.close()
    disk.close()


def start(directory: str, mode: str) -> dict[str, float]:
    """Start once in this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    disk = FileDisk(directory)
    journal, recovered = open_journal(
        disk,
        segment_size_bytes=SEGMENT_SIZE_BYTES,
        wall_ms=wall_ms,
        whole_bytes=WHOLE_BYTES if mode == "summaries" else 1 << 62,
    )
    first = journal.fetch(recovered.queues[1].spans[0][:1])
    seconds = time.perf_counter() - began
    assert first[0][0] == RAW
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {
        "seconds": round(seconds, 3),
        "messages": recovered.report.messages,
        "segments": recovered.report.segments,
        "unread_segments": recovered.report.unread_segments,
        "grown_mib": round((peak - before) / 1024, 1),
    }
    journal.close()
    disk.close()
    return found


def drop_cache(directory: str) -> None:
    for path in Path(directory).iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def measure(directory: str, mode: str, *, is_cold: bool) -> dict[str, object]:
    results = []
    for _ in range(REPEATS):
        if is_cold:
            drop_cache(directory)
        command = [sys.executable, "-m", "bench.micro.recovery", "--start", directory, mode]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        results.append(json.loads(answer.stdout))
    seconds = sorted(result["seconds"] for result in results)
    return {
        **results[-1],
        "seconds": {"min": seconds[0], "median": seconds[len(seconds) // 2], "max": seconds[-1]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.recovery")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--start", nargs=2, metavar=("DIR", "MODE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(json.dumps(start(*options.start)))
        return
    curve: dict[str, object] = {}
    for count in options.counts:
        with tempfile.TemporaryDirectory(dir=options.data_dir) as directory:
            fill(directory, count)
            curve[str(count)] = {
                f"{mode}_{'cold' if is_cold else 'warm'}": measure(directory, mode, is_cold=is_cold)
                for is_cold in (False, True)
                for mode in MODES
            }
        print(count, json.dumps(curve[str(count)], indent=1), flush=True)
    if options.json is not None:
        facts = {"machine": platform.platform(), "cpus": os.cpu_count(), "messages": curve}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
