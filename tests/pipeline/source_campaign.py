"""Kills everything that a query from a queue consists of, again and again, and counts what arrived.

    python -m tests.pipeline.source_campaign --mode queue+seq --rounds 20 --out results.json

A history is one query on one checkpoint (`source_job`), a publisher that goes on all the time, and
a number of rounds. In each round something is killed with SIGKILL, at a random moment or at a
marked point (`source_hooks`), and started again. At the end the queue is drained and the ids that
were confirmed to the publisher are compared with those in the files that the sink's log names.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
import pyarrow.parquet as pq

from tests.integration.broker_process import BrokerProcess
from tests.pipeline.source_world import channel_to, declare, ready
from tools import referee
from vouchmq.kit import bulk

PROJECT = Path(__file__).resolve().parents[2]
QUEUE = "source"
COLUMNS = "message_id string, offset bigint, redelivered boolean"
BATCH = 2000
PER_SECOND = 400
# More need not wait: a machine that has other things to do must not take hours to catch up.
BACKLOG = 10_000
STEP_LIMIT_S = 600.0

MODES: dict[str, dict[str, str]] = {
    "queue": {"dedupe": "none"},
    "queue+seq": {"dedupe": "seq"},
    "spool": {"dedupe": "none"},
    "spool+seq": {"dedupe": "seq"},
    "spool+messageId": {"dedupe": "messageId"},
}
# What may be seen twice, by the table of guarantees.
NEVER_TWICE = ("queue+seq", "spool+seq", "spool+messageId")
TARGETS = ("source", "jvm", "driver", "worker", "broker", "all")


class Stalled(Exception):  # noqa: N818 - what happened
    """Something did not happen in time; the text says what."""


class Broker(Protocol):
    """What a history needs of a broker."""

    url: str

    def strike(self) -> None:
        """Take it, or all its connections, away."""

    def come_back(self) -> None:
        """As it was."""

    def end(self) -> None:
        """For good."""


class Ours:
    """A VouchMQ that is killed."""

    def __init__(self, directory: Path) -> None:
        self._process = BrokerProcess(directory)
        self._process.start()
        self.url = self._process.url

    def strike(self) -> None:
        self._process.kill9()

    def come_back(self) -> None:
        self._process.start(limit_s=60)

    def end(self) -> None:
        self._process.kill9()


class Theirs:
    """A RabbitMQ whose connections are closed: its restart is a test of its own programs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "rabbit"
        self._port = 26737
        assert referee.start(self._directory, self._port) == 0
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}/%2F"

    def strike(self) -> None:
        words = ("close_all_connections", "a test")
        assert referee.control(self._directory, self._port, words) == 0

    def come_back(self) -> None:
        pass

    def end(self) -> None:
        referee.stop(self._directory)
        shutil.rmtree(self._directory, ignore_errors=True)


class Publisher:
    """Publishes all the time; knows which ids were confirmed, and which perhaps."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.confirmed: set[str] = set()
        self.uncertain: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(60)

    def _run(self) -> None:
        number = 0
        while not self._ending.is_set():
            with contextlib.suppress(bulk.BulkError), channel_to(self._url) as channel:
                channel.confirm_select()
                while not self._ending.wait(0.25):
                    if channel.declare_passive(QUEUE)[0] > BACKLOG:
                        continue
                    ids = [str(number + at) for at in range(PER_SECOND // 4)]
                    number += len(ids)
                    # An id is never published twice, so that none may be seen twice.
                    self.uncertain.update(ids)
                    result = channel.publish_many(
                        [("", QUEUE, _properties(each), each.encode() * 20) for each in ids]
                    )
                    if result.confirmed == len(ids):
                        self.uncertain.difference_update(ids)
                        self.confirmed.update(ids)
            self._ending.wait(0.2)


def _properties(message_id: str) -> bytes:
    return bulk.encode_properties({"delivery_mode": 2, "message_id": message_id})


@dataclass
class Job:
    """The Spark program, as processes."""

    work: Path
    options: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def point(self) -> Path:
        return self.work / "point"

    def start(self) -> None:
        job = {"options": self.options, "columns": COLUMNS, "work": str(self.work)}
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), "SOURCE_POINT": str(self.point)}
        with (self.work / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.source_job", json.dumps(job)],
                env=environment,
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def processes(self, kind: str) -> list[psutil.Process]:
        """By what they are: source, jvm, driver, worker, all."""
        assert self.process is not None
        try:
            driver = psutil.Process(self.process.pid)
            below = driver.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        if kind == "driver":
            return [driver]
        if kind == "all":
            return [driver, *below]
        signs = {
            "jvm": "java",
            "source": "python_streaming_source_runner",
            "worker": "pyspark.worker",
        }
        found = []
        for each in below:
            with contextlib.suppress(psutil.Error):
                words = each.cmdline()
                text = words[0] if kind == "jvm" and words else " ".join(words)
                is_java = bool(words) and words[0].endswith("java")
                if signs[kind] in text and is_java == (kind == "jvm"):
                    found.append(each)
        # The daemon comes first, those that work for it behind.
        return found[-1:] if kind == "worker" else found

    def kill(self, kind: str) -> int:
        """SIGKILL; how many processes that were."""
        victims = self.processes(kind)
        rest = self.processes("all")
        for each in victims:
            with contextlib.suppress(psutil.Error):
                each.kill()
        if kind in ("jvm", "driver", "all"):
            # What is left of a query whose JVM or program is gone ends by itself.
            psutil.wait_procs(rest, timeout=15)
            for each in rest:
                with contextlib.suppress(psutil.Error):
                    each.kill()
            assert self.process is not None
            self.process.wait(10)
        return len(victims)

    def note(self) -> str:
        """Of the last batch that was finished."""
        try:
            return (self.work / "running").read_text()
        except FileNotFoundError:
            return ""

    def failures(self) -> list[str]:
        """Of queries, in the words Spark had for them."""
        try:
            return (self.work / "failures").read_text().splitlines()
        except FileNotFoundError:
            return []


@dataclass
class History:
    """One query and what happened to it."""

    mode: str
    broker_name: str
    seed: int
    rounds: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)

    def run(self, directory: Path, count: int) -> None:
        """Rounds, then the end, then the judgement."""
        chance = random.Random(self.seed)
        broker: Broker = (Ours if self.broker_name == "vouchmq" else Theirs)(directory)
        work = directory / "work"
        work.mkdir(exist_ok=True)
        options = {
            "url": broker.url,
            "queue": QUEUE,
            "maxMessagesPerTrigger": str(BATCH),
            **MODES[self.mode],
        }
        if self.mode.startswith("spool"):
            options["spoolLocation"] = str(work / "spool")
        job = Job(work, options)
        began = time.monotonic()
        try:
            declare(broker.url, QUEUE)
            publisher = Publisher(broker.url)
            job.start()
            for number, (target, point) in enumerate(plan(self.mode, count, chance)):
                self._round(number, job, broker, target, point, chance)
            publisher.end()
            self._finish(job, broker, publisher)
        finally:
            if job.is_running:
                job.kill("all")
            broker.end()
        self.result["seconds"] = round(time.monotonic() - began)

    def _round(
        self, number: int, job: Job, broker: Broker, target: str, point: str, chance: random.Random
    ) -> None:
        began = time.monotonic()
        if not job.is_running:
            job.start()
        before = job.note()
        _wait(lambda: job.note() != before, "no batch was finished", job)
        if point:
            reached = Path(f"{job.point}.reached")
            reached.unlink(missing_ok=True)
            job.point.write_text(point)
            _wait(reached.exists, f"point {point} was not reached", job)
        else:
            time.sleep(chance.uniform(0, 1.5))
        if target == "broker":
            broker.strike()
            killed = 1
            time.sleep(chance.uniform(0, 1))
            broker.come_back()
        else:
            killed = job.kill(target)
        job.point.unlink(missing_ok=True)
        if target == "broker" and point:
            # What stands at the point would stand there for ever.
            killed += job.kill("source")
        self.rounds.append(
            {
                "kill": target,
                "at": point or "random",
                "killed": killed,
                "seconds": round(time.monotonic() - began, 1),
            }
        )
        say(f"{self.mode} {self.broker_name} {number} {self.rounds[-1]}")

    def _finish(self, job: Job, broker: Broker, publisher: Publisher) -> None:
        out = job.work / "out"
        _wait(lambda: publisher.confirmed <= set(_ids(out)), "not all has arrived", job, pause_s=1)
        # The last batch is acked by the trigger after it; and copies would come now.
        for _ in range(3):
            time.sleep(2)
            if job.is_running:
                job.kill("all")
            time.sleep(0.5)
            if not ready(broker.url, QUEUE):
                break
            job.start()
            _wait(lambda: not ready(broker.url, QUEUE), "the queue does not get empty", job)
        seen = Counter(_ids(out))
        self.result = {
            "mode": self.mode,
            "broker": self.broker_name,
            "seed": self.seed,
            "rounds": len(self.rounds),
            "kills": dict(Counter(f"{each['kill']} {each['at']}" for each in self.rounds)),
            "confirmed": len(publisher.confirmed),
            "uncertain": len(publisher.uncertain),
            "rows": sum(seen.values()),
            "lost": len(publisher.confirmed - seen.keys()),
            "never_published": len(seen.keys() - publisher.confirmed - publisher.uncertain),
            "twice": sum(count > 1 for count in seen.values()),
            "left_in_queue": ready(broker.url, QUEUE),
            "failed_queries": len(job.failures()),
        }


# A new JVM takes longer than all else, so its end comes less often.
ANY_MODE = (
    *[("source", "")] * 4,
    *[("worker", "")] * 3,
    *[("broker", "")] * 4,
    *[("source", "logged")] * 2,
    *[("source", "acking")] * 2,
)
OF_SPARK = ("jvm", "driver")
QUEUE_MODE = (("source", "acking"), ("source", "logged"), ("broker", "acking"), ("all", "acking"))
SPOOL_MODE = (*[("source", "spooled")] * 2, ("source", "spooling"), ("all", "spooled"))


def plan(mode: str, count: int, chance: random.Random) -> list[tuple[str, str]]:
    """What is killed in each round, and at which point; twenty rounds have all."""
    kinds = [*ANY_MODE, *(SPOOL_MODE if "spool" in mode else QUEUE_MODE)]
    kinds.append((chance.choice(OF_SPARK), ""))
    chance.shuffle(kinds)
    return [kinds[number % len(kinds)] for number in range(count)]


def _wait(is_so: Callable[[], bool], what: str, job: Job, pause_s: float = 0.05) -> None:
    deadline = time.monotonic() + STEP_LIMIT_S
    while not is_so():
        if not job.is_running:
            job.start()
        if time.monotonic() > deadline:
            tail = (job.work / "output.log").read_text(errors="replace")[-3000:]
            raise Stalled(
                f"{what} in {STEP_LIMIT_S:.0f} s; failures: {job.failures()[-2:]}\n{tail}"
            )
        time.sleep(pause_s)


def _ids(out: Path) -> Iterator[str]:
    """The ids in the files that the sink's log has: its directory may hold others too."""
    for path in committed_files(out):
        yield from pq.read_table(path, columns=["message_id"]).column(0).to_pylist()


def committed_files(out: Path) -> list[Path]:
    """What the log of a file sink names: its newest compact file, and those after it."""
    log = out / "_spark_metadata"
    batches = {int(path.name.split(".")[0]): path for path in log.glob("[0-9]*")}
    compacts = {number for number in batches if (log / f"{number}.compact").exists()}
    first = max(compacts, default=-1)
    files: list[Path] = []
    for number in sorted(batches):
        if number < first:
            continue
        path = log / f"{number}.compact" if number == first else batches[number]
        for line in path.read_text().splitlines()[1:]:
            entry = json.loads(line)
            if entry["action"] == "add":
                files.append(Path(entry["path"].removeprefix("file://")))
    return files


def verdict(result: dict[str, Any]) -> list[str]:
    """What is wrong with a history, by the table of guarantees."""
    wrong = [name for name in ("lost", "never_published", "left_in_queue") if result[name]]
    if result["mode"] in NEVER_TWICE and result["twice"]:
        wrong.append("twice")
    return wrong


def say(line: str) -> None:
    """On standard output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run one history and add it to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--broker", choices=("vouchmq", "rabbitmq"), default="vouchmq")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="directory that stays, to look into")
    arguments = parser.parse_args()
    history = History(arguments.mode, arguments.broker, arguments.seed)
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        history.run(directory, arguments.rounds)
    result = history.result | {"python": platform.python_version(), "each": history.rounds}
    if arguments.out is not None:
        known = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
        known.append(result)
        arguments.out.write_text(json.dumps(known, indent=1) + "\n")
    say(json.dumps({name: value for name, value in result.items() if name != "each"}))
    wrong = verdict(result)
    say("WRONG: " + ", ".join(wrong) if wrong else "as promised")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
