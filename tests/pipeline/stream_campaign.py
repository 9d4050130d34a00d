"""Kills at random against stream mode: what was published is compared with what the table holds.

    python -m tests.pipeline.stream_campaign --rounds 24 --json FILE [--url amqp://…] [--seed N]

Without `--url` a VouchMQ is started, which is killed like all the others. In each round a victim is
killed with SIGKILL while messages are published and read: the driver (Python), the JVM, a worker,
the driver-side process of the stream, the broker, or all of them at once. At the end the
stream is read without Spark, and each of its messages must be in the table once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow.parquet as pq

from tests.integration.broker_process import PROJECT, BrokerProcess, clean_environment
from tests.pipeline.streams import declare, options
from tests.waiting import wait_until
from vouchmq.kit.bulk import BulkConnection, BulkError
from vouchmq.spark.archive.files import files_of_log
from vouchmq.spark.source.streams.bounds import Probe
from vouchmq.spark.source.streams.range_reader import RangeReader
from vouchmq.spark.source.streams.ranges import Range

# What costs a new JVM comes less often.
VICTIMS: Final = (
    *("worker", "broker", "planner", "jvm", "worker", "broker", "planner", "driver", "broker"),
    "all",
)
STREAM: Final = "campaign"
PER_S: Final = 300
RUN: Final = 30
PATIENCE_S: Final = 400.0


class Publisher(threading.Thread):
    """Publishes numbered messages, and again those that were not confirmed when a broker died."""

    def __init__(self, url: str, stream: str) -> None:
        super().__init__()
        self.url = url
        self.confirmed = 0
        self.sent_again = 0
        self.done = threading.Event()
        self._stream = stream

    def run(self) -> None:
        while not self.done.is_set():
            with suppress(BulkError, OSError), BulkConnection.open(self.url) as connection:
                self._publish(connection)
            if not self.done.is_set():
                time.sleep(0.2)

    def _publish(self, connection: BulkConnection) -> None:
        channel = connection.channel()
        channel.confirm_select()
        while not self.done.is_set():
            began = time.monotonic()
            first = self.confirmed
            rows = [
                ("", self._stream, {"message_id": str(n), "delivery_mode": 2}, b"%d" % n)
                for n in range(first, first + RUN)
            ]
            try:
                result = channel.publish_many(rows)
            except BulkError:
                # Some of them may have been stored: those are there twice, at two offsets.
                self.sent_again += 1
                raise
            assert result.confirmed == RUN
            self.confirmed = first + RUN
            time.sleep(max(0.0, RUN / PER_S - (time.monotonic() - began)))


class Job:
    """The Spark program and its processes."""

    def __init__(self, url: str, directory: Path) -> None:
        self.directory = directory
        self.starts = 0
        asked = {"url": url, "queue": STREAM, "mode": "stream", "minPartitions": "2"}
        more = {"maxMessagesPerTrigger": "3000", "readTimeoutMs": "20000"}
        self._job = {
            "options": {**asked, **more},
            "directory": str(directory),
            "interval": "200 milliseconds",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it on its checkpoint."""
        self.starts += 1
        with (self.directory / "job.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.stream_job", json.dumps(self._job)],
                cwd=PROJECT,
                env={**clean_environment(), "PYTHONPATH": str(PROJECT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def batch(self) -> str:
        """The last batch that was seen to end, with its process."""
        path = self.directory / "progress"
        return path.read_text() if path.exists() else ""

    def tree(self) -> list[psutil.Process]:
        """The driver and all below it."""
        assert self._process is not None
        try:
            driver = psutil.Process(self._process.pid)
            return [driver, *driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def victims(self, which: str) -> list[psutil.Process]:
        """The processes of a kind."""
        tree = self.tree()
        if which == "driver":
            return tree[:1]
        if which == "all":
            return tree
        found = []
        for process in tree[1:]:
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                is_planner = "streaming_source_runner" in words
                kind = "jvm" if process.name() == "java" else "planner" if is_planner else "worker"
                if kind == which and ("pyspark" in words or kind == "jvm"):
                    found.append(process)
        return found

    def end(self) -> None:
        """Whatever is left of it goes: the next one may not meet it."""
        left = self.tree()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def finish(self) -> None:
        """Let it read what is left and end."""
        (self.directory / "stop").touch()
        assert self._process is not None
        if self._process.wait(PATIENCE_S) != 0:
            raise AssertionError(f"the job failed: {self.tail()}")

    def tail(self) -> str:
        """The end of what it has said."""
        return (self.directory / "job.log").read_text("utf-8", "replace")[-3000:]


def kill(which: str, job: Job, broker: BrokerProcess | None, lot: random.Random) -> int:
    """Kill a victim; how many processes it was."""
    count = 0
    if which in ("broker", "all") and broker is not None:
        broker.kill9()
        count += 1
    if which != "broker":
        found = job.victims(which)
        if which in ("worker", "planner"):
            found = lot.sample(found, min(1, len(found)))
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
                count += 1
    return count


def campaign(
    rounds: int, directory: Path, url: str | None, seed: int, victims: Sequence[str] = VICTIMS
) -> dict[str, Any]:
    """Run it; what it has found."""
    lot = random.Random(seed)
    broker = None
    if url is None:
        (directory / "broker").mkdir()
        broker = BrokerProcess(directory / "broker")
        broker.start(60)
        url = broker.url
        victims = list(victims)
    else:
        victims = [each for each in victims if each != "broker"]
    declare(url, STREAM)
    job = Job(url, directory)
    publisher = Publisher(url, STREAM)
    log: list[dict[str, Any]] = []
    try:
        job.start()
        publisher.start()
        for number in range(rounds):
            log.append(one_round(victims[number % len(victims)], job, broker, lot))
            sys.stderr.write(f"round {number + 1} of {rounds}: {log[-1]}\n")
        publisher.done.set()
        publisher.join()
        job.finish()
        return {**compare(url, directory, publisher), "rounds": log, "job_starts": job.starts}
    finally:
        publisher.done.set()
        publisher.join()
        job.end()
        if broker is not None:
            broker.kill9()


def one_round(
    which: str, job: Job, broker: BrokerProcess | None, lot: random.Random
) -> dict[str, Any]:
    """Wait for a batch, kill, and set up again what does not come back by itself."""
    before = job.batch()
    wait_until(lambda: job.batch() != before, job.tail, limit_s=PATIENCE_S)
    pause_s = round(lot.uniform(0.0, 2.5), 2)
    time.sleep(pause_s)
    killed = kill(which, job, broker, lot)
    if broker is not None and not broker.is_running:
        broker.start(60)
    if which in ("driver", "jvm", "all"):
        # What the death of one leaves of the others goes by itself, or is made to.
        time.sleep(1.0)
        job.end()
        job.start()
    return {"victim": which, "after_s": pause_s, "killed": killed}


def compare(url: str, directory: Path, publisher: Publisher) -> dict[str, Any]:
    """What the stream holds against what the sink's log holds."""
    asked = options(url, STREAM)
    with Probe(asked) as probe:
        whole = Range(STREAM, probe.oldest(STREAM) or 0, probe.newest(STREAM).next)
    held: dict[int, str] = {}
    for batch in RangeReader(asked, ("offset", "message_id"), whole).batches():
        columns = batch.to_pydict()
        held.update(zip(columns["offset"], columns["message_id"], strict=True))
    log = directory / "out" / "_spark_metadata"
    names = files_of_log({p.name: p.read_text() for p in log.iterdir() if p.suffix != ".crc"})
    rows: list[tuple[int, str]] = []
    for name in names:
        columns = pq.read_table(
            directory / "out" / name, columns=["offset", "message_id"]
        ).to_pydict()
        rows += zip(columns["offset"], columns["message_id"], strict=True)
    seen = Counter(rows)
    ids = {identity for _, identity in rows}
    return {
        "confirmed": publisher.confirmed,
        "in_stream": len(held),
        "in_table": len(rows),
        "lost": len(set(held.items()) - set(seen)),
        "twice": sum(seen.values()) - len(seen),
        "strange": len(set(seen) - set(held.items())),
        "confirmed_not_in_table": sum(str(n) not in ids for n in range(publisher.confirmed)),
        "files_in_log": len(names),
        "files_in_directory": len(list((directory / "out").glob("*.parquet"))),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--url", help="of a broker that is not to be killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = campaign(given.rounds, Path(directory), given.url, given.seed)
    found = {"seed": given.seed, "broker": "vouchmq" if given.url is None else "other", **found}
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    sums = {name: value for name, value in found.items() if name != "rounds"}
    sys.stdout.write(json.dumps(sums) + "\n")
    return 0 if not found["lost"] + found["twice"] + found["confirmed_not_in_table"] else 1


if __name__ == "__main__":
    sys.exit(main())
