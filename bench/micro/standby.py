"""How fast a new standby copies the log, and how long its take-over's recovery takes then.

    python -m bench.micro.standby --server PROGRAM [--messages N] [--data-dir DIR] [--json FILE]

One nats-server (2.14 or later) on this machine, with persistent 1 KiB messages of one queue in its
stream, as a leader has written them. The standby starts with an empty directory, in a process of
its own, and is done when it has everything and all of it is synced; then it makes the summaries of
full segments. "recovery" is what a take-over adds: `open_journal` on the directory that it made,
with these summaries, and by reading all of it.
"""

import argparse
import asyncio
import cProfile
import json
import os
import platform
import pstats
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import uvloop

from vouchmq.server.replication import jetstream
from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.log import NatsLog
from vouchmq.server.replication.standby import Standby
from vouchmq.store.disk import FileDisk
from vouchmq.store.journal.journal import Journal
from vouchmq.store.recovery.recover import open_journal
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import LogView, Position
from vouchmq.store.replication.log_writer import RECORD_BYTES, LogWriter
from vouchmq.store.replication.mirror import Mirror
from vouchmq.store.replication.record import Subjects

STREAM = "BENCH"
SUBJECTS = Subjects(STREAM)
LOG_ID = bytes(record.ID_SIZE)
SEGMENT_SIZE_BYTES = 64 * 1024 * 1024
RAW_BYTES = 1069
TURN = 100
# A leader does not go on while so much waits for the log.
WAITING_BYTES = 4 * 1024 * 1024
READY_S = 20.0
WRITTEN_FILES = 8


def server_of(port: int) -> Server:
    return Server("127.0.0.1", port, needs_tls=False)


@contextmanager
def engine(program: str, directory: Path) -> Iterator[int]:
    """One server with an empty store; gives its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    configuration = directory / "nats.conf"
    # The messages are only read here: they need not be synced one by one.
    configuration.write_text(
        f'listen: 127.0.0.1:{port}\njetstream {{ store_dir: "{directory}", sync_interval: "2m" }}\n'
    )
    with (directory / "log").open("wb") as output:
        process = subprocess.Popen([program, "-c", str(configuration)], stderr=output)
    try:
        deadline = time.monotonic() + READY_S
        while True:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            if time.monotonic() > deadline or process.poll() is not None:
                sys.exit(f"{program} does not start: {(directory / 'log').read_text()}")
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


class Leader:
    """Claims, and writes messages; everything else is not its business."""

    def __init__(self, port: int, directory: str) -> None:
        loop = asyncio.get_running_loop()
        self._disk = FileDisk(directory)
        self._engine = NatsLog(STREAM, [server_of(port)], Options(), loop, random.Random())
        self._changed = asyncio.Event()
        self._journal: Journal | None = None
        view = LogView(log_id=LOG_ID)
        view.found(1, record.origin(LOG_ID))
        self._writer = LogWriter(self._engine, self, SUBJECTS, view.at)

    async def fill(self, count: int) -> int:
        """Make the stream and write so many messages; return the size of the log."""
        self._engine.start(self._writer)
        client = self._engine.client
        while not client.is_up:  # noqa: ASYNC110 - it tells nobody else
            await asyncio.sleep(0.01)
        settings = jetstream.stream_settings(
            STREAM, f"vq.{STREAM}.>", replicas=1, max_bytes=-1, max_message_bytes=-1
        )
        create = jetstream.settings_request(settings)
        await self._ask(f"{jetstream.API}STREAM.CREATE.{STREAM}", create)
        await self._ask(SUBJECTS.lasting, record.origin(LOG_ID))
        self._writer.claim("bench", bytes(record.NONCE_SIZE))
        while not self._writer.is_leading:
            await self._change()
        journal, _ = open_journal(
            self._disk, segment_size_bytes=SEGMENT_SIZE_BYTES, wall_ms=lambda: 1, tap=self._writer
        )
        self._journal = journal
        raws = [bytes(RAW_BYTES)] * TURN
        for _ in range(count // TURN):
            journal.append_run((1,), b"\0\1a", raws)
            journal.write()
            while self._writer.waiting_bytes > WAITING_BYTES:
                await self._change()
            if journal.unsynced_bytes > SEGMENT_SIZE_BYTES:
                ticket = journal.begin_sync()
                for target in ticket.targets:
                    target.sync()
                for file in journal.end_sync(ticket):
                    file.close()
                self._writer.request()
        self._writer.request()
        while self._writer.waiting_bytes:
            await self._change()
        journal.close()
        self._disk.close()
        self._engine.stop()
        return count * RAW_BYTES

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _ask(self, subject: str, payload: bytes) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(message: object) -> bool:
            del message
            done.set_result(None)
            return True

        self._engine.client.request(subject, [payload], answered, sys.exit, limit_s=5.0)
        await done

    def claimed(self) -> None:
        self._changed.set()

    def committed(self, block: int, lsn: int) -> None:
        del lsn
        if self._journal is not None:
            self._journal.committed(block)
        self._changed.set()

    def deposed(self, epoch: int) -> None:
        sys.exit(f"deposed by epoch {epoch}")

    def handed_over(self) -> None:
        """Nobody asks for that."""

    def broken(self, reason: str) -> None:
        sys.exit(reason)


class Follower:
    """A new standby, until it has everything."""

    def __init__(self, port: int, directory: str) -> None:
        loop = asyncio.get_running_loop()
        self._mirror = Mirror(FileDisk(directory), LOG_ID)
        self._engine = NatsLog(STREAM, [server_of(port)], Options(), loop, random.Random())
        self._executor = ThreadPoolExecutor(2)
        self._standby = Standby(self._engine, self._mirror, SUBJECTS, self, loop, self._executor)
        self._done = asyncio.Event()
        self._longest_stall_s = 0.0

    async def follow(self) -> dict[str, float]:
        """Follow until the end, and tell how long that took."""
        watch = asyncio.create_task(self._watch())
        began = time.perf_counter()
        self._engine.start(self._standby)
        self._standby.follow()
        await self._done.wait()
        seconds = time.perf_counter() - began
        watch.cancel()
        progress = self._standby.progress
        mb = progress.read_bytes / 1e6
        began = time.perf_counter()
        self._standby.follow()
        while self._mirror.lacks_summary:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        summaries_s = time.perf_counter() - began
        self._standby.stop(self._done.set)
        await self._done.wait()
        self._engine.stop()
        self._executor.shutdown()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "seconds": round(seconds, 3),
            "mb": round(mb, 1),
            "mb_per_s": round(mb / seconds, 1),
            "summaries_s": round(summaries_s, 2),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
            "longest_stall_ms": round(self._longest_stall_s * 1000, 1),
            "peak_mib": round(usage.ru_maxrss / 1024, 1),
        }

    async def _watch(self) -> None:
        """How long the event loop was busy, or waited for the interpreter."""
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            self._longest_stall_s = max(self._longest_stall_s, now - before - 0.005)
            before = now

    def record_read(self, *, is_handover: bool) -> None:
        """Counted by the standby itself."""

    def end_read(self, last: int, *, is_complete: bool) -> None:
        del last
        if is_complete and not self._done.is_set():
            self._standby.pause(self._synced)

    def synced(self) -> None:
        """Nobody waits for a sync before the end."""

    def _synced(self, at: Position) -> None:
        del at
        self._done.set()

    def broken(self, reason: str) -> None:
        sys.exit(reason)

    def failed(self, error: OSError) -> None:
        sys.exit(str(error))


async def fill(port: int, directory: str, count: int) -> int:
    return await Leader(port, directory).fill(count)


async def follow(port: int, directory: str) -> dict[str, float]:
    return await Follower(port, directory).follow()


def write(directory: str) -> dict[str, float]:
    """What this disk takes without anything else: as much in one file as the standby syncs at once.

    A few times over, as it does.
    """
    disk = FileDisk(directory)
    raw = random.randbytes(RECORD_BYTES)
    began = time.perf_counter()
    for number in range(WRITTEN_FILES):
        file = disk.create(f"written{number}", 0)
        for at in range(0, SEGMENT_SIZE_BYTES, RECORD_BYTES):
            file.write([raw], at)
        file.sync()
        file.close()
    seconds = time.perf_counter() - began
    for number in range(WRITTEN_FILES):
        disk.unlink(f"written{number}")
    return {"mb_per_s": round(WRITTEN_FILES * SEGMENT_SIZE_BYTES / 1e6 / seconds, 1)}


def in_another_process(*arguments: str) -> dict[str, float]:
    """Run this module, or another one, and return what it prints."""
    command = [sys.executable, "-m", *arguments]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return found


def measure(options: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=options.data_dir) as base:
        directory = Path(base)
        for name in ("engine", "leader"):
            (directory / name).mkdir()
        with engine(options.server, directory / "engine") as port:
            leader = directory / "leader"
            asyncio.run(fill(port, str(leader), options.messages))
            rounds = []
            for number in range(options.rounds):
                mirror = directory / f"mirror{number}"
                this = ("bench.micro.standby", "--follow", str(port), str(mirror))
                profile = ("--profile",) if options.profile else ()
                found = in_another_process(*this, *profile)
                for name, mode in (("recovery_s", "summaries"), ("recovery_all_read_s", "whole")):
                    found[name] = in_another_process(
                        "bench.micro.recovery", "--start", str(mirror), mode
                    )["seconds"]
                found["disk_mb_per_s"] = in_another_process(
                    "bench.micro.standby", "--write", str(directory / "written")
                )["mb_per_s"]
                print(json.dumps(found), flush=True)
                rounds.append(found)
                for path in mirror.iterdir():
                    path.unlink()
    rounds.sort(key=lambda each: each["mb_per_s"])
    return {
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "messages": options.messages,
        "servers": 1,
        "median": rounds[len(rounds) // 2],
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.standby")
    parser.add_argument("--server", default=str(Path(sys.executable).parent / "nats-server"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="print where the loop's time goes")
    parser.add_argument("--follow", nargs=2, metavar=("PORT", "DIR"), help=argparse.SUPPRESS)
    parser.add_argument("--write", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        print(json.dumps(write(options.write)))
        return
    if options.follow:
        port, directory = options.follow
        profile = cProfile.Profile() if options.profile else None
        if profile is not None:
            profile.enable()
        found = uvloop.run(follow(int(port), directory))
        if profile is not None:
            profile.disable()
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
        print(json.dumps(found))
        return
    results = measure(options)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
