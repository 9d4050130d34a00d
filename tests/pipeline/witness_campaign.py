"""Kills a broker under load, again and again, and lets the witnesses among its clients judge it.

    python -m tests.pipeline.witness_campaign --broker vouchmq --rounds 20 --out results.json
    python -m tests.pipeline.witness_campaign --broker rabbitmq --rounds 20 --out results.json

Three publishers and three consumers, each a process of its own, with the bulk client and with
aio-pika, use two durable queues with persistent, mandatory, confirmed messages. Each round ends
with SIGKILL of the broker (of the Erlang node, for RabbitMQ) and its start on the same data. At the
end the queues are emptied, and `vouchmq.spark.witness` judges what the clients have written; for
VouchMQ also against the broker's own ledger. With `--young` each round is one client that declares
a durable queue and publishes to it, and the broker is killed as soon as all is confirmed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from tests.integration.broker_process import PROJECT, BrokerProcess
from tools import referee
from vouchmq.kit.bulk import BulkClosed, BulkConnection, BulkError
from vouchmq.kit.witness import Witness

QUEUES: Final = ("witnessed.one", "witnessed.two")
CLIENTS: Final = (
    ("publish-bulk", "pbulk", QUEUES[0]),
    ("publish-aio", "paio", QUEUES[1]),
    ("publish-aio", "paio.one", QUEUES[0]),
    ("consume-bulk", "cbulk", QUEUES[0]),
    ("consume-aio", "caio", QUEUES[1]),
    ("consume-aio", "caio.one", QUEUES[0]),
)
PUBLISHERS: Final = 3
START_LIMIT_S: Final = 90.0
NOT_FOUND: Final = 404
QUIET_S: Final = 2.0
SETTLE_S: Final = 10.0
YOUNG_MESSAGES: Final = 100
RABBITMQ_PORT: Final = 26191


class Victim(Protocol):
    """A broker that is killed and started again."""

    @property
    def url(self) -> str:
        """Where it listens, the same all the time."""

    def start(self) -> None:
        """Start, on what data there is."""

    def kill9(self) -> None:
        """SIGKILL, and wait until it is gone."""

    def end(self) -> None:
        """No more of it."""


class Ours:
    """VouchMQ with a ledger that names messages."""

    def __init__(self, directory: Path, program: str = "vouchmq") -> None:
        self.ledger = directory / "ledger"
        flags = ("--ledger-enabled", "on", "--ledger-dir", str(self.ledger))
        self._process = BrokerProcess(
            directory, flags=(*flags, "--ledger-detail", "messages"), program=program
        )

    @property
    def url(self) -> str:
        return self._process.url

    def start(self) -> None:
        self._process.start(START_LIMIT_S)

    def kill9(self) -> None:
        self._process.kill9()

    def end(self) -> None:
        """Ends in order, so that the ledger has its last inventory."""
        self._process.stop(START_LIMIT_S)
        assert self._process.complaints() == [], self._process.complaints()


class Theirs:
    """RabbitMQ as Debian has it, with its defaults."""

    def __init__(self, directory: Path, port: int = RABBITMQ_PORT) -> None:
        self._directory = directory / "rabbitmq"
        self._port = port
        self.url = f"amqp://guest:guest@127.0.0.1:{port}/%2F"

    def start(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert referee.start(self._directory, self._port) == 0

    def kill9(self) -> None:
        leader = int((self._directory / "group").read_text())
        os.killpg(leader, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(leader, 0)
        while referee.speaks_amqp(self._port):
            time.sleep(0.05)

    def end(self) -> None:
        referee.stop(self._directory)


@contextlib.contextmanager
def clients(url: str, directory: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes of all clients, publishers first; ended at the end at the latest."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for role, name, queue in CLIENTS:
            command = [sys.executable, "-m", "tests.pipeline.witness_client", role]
            options = ("--url", url, "--queue", queue, "--witness", str(directory), "--name", name)
            started.append(
                subprocess.Popen([*command, *options], cwd=PROJECT, stdin=subprocess.PIPE)
            )
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Tell clients that it is over, and wait for their last word."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        assert process.wait(60) == 0


def declare(url: str) -> None:
    """Durable classic queues."""
    with BulkConnection.open(url) as connection:
        for queue in QUEUES:
            connection.channel().declare(queue)


@dataclass
class Left:
    """What was found at the end."""

    drained: int = 0
    queues_gone: list[str] = field(default_factory=list)


def drain(url: str, directory: Path, left: Left, queues: Sequence[str]) -> None:
    """Empty the queues before a witness."""
    with Witness(directory, "drain") as witness, BulkConnection.open(url) as connection:
        for queue in queues:
            try:
                connection.channel().declare_passive(queue)
            except BulkClosed as error:
                if error.code != NOT_FOUND:
                    raise
                left.queues_gone.append(queue)
                witness.emptied(queue)
                continue
            channel = connection.channel()
            channel.qos(1000)
            channel.consume(queue)
            while taken := channel.wait(1000, QUIET_S):
                left.drained += len(taken)
                witness.took(taken, queue, drained=True)
                channel.ack(taken[-1][0], multiple=True)
            channel.fence()
            assert connection.channel().declare_passive(queue)[0] == 0
            witness.emptied(queue)


def wait_for_a_confirm(directory: Path) -> None:
    """Until a publisher has just been told that messages are safe: the moment to kill."""
    began = time.monotonic()
    sizes = {path: path.stat().st_size for path in directory.glob("p*.jsonl")}
    while time.monotonic() - began < 3.0:
        for path, size in sizes.items():
            with path.open("rb") as file:
                file.seek(size)
                more = file.read()
            if b'"e":"confirmed"' in more:
                return
            sizes[path] = size + len(more)
        time.sleep(0.001)


def endure(victim: Victim, directory: Path, rounds: int, seed: int, settle_s: float) -> Left:
    """Kill the broker in so many rounds under load; what was left in the queues."""
    chance = random.Random(seed)
    victim.start()
    declare(victim.url)
    time.sleep(settle_s)
    with clients(victim.url, directory) as processes:
        for number in range(rounds):
            time.sleep(chance.uniform(0.8, 2.5))
            if number % 2 == 0:
                wait_for_a_confirm(directory)
            victim.kill9()
            victim.start()
            assert [process.poll() for process in processes] == [None] * len(processes)
        time.sleep(1.0)
        end(processes[:PUBLISHERS])
        time.sleep(1.0)
        end(processes[PUBLISHERS:])
    left = _patiently_drain(victim.url, directory, QUEUES)
    victim.end()
    return left


def endure_young(victim: Victim, directory: Path, rounds: int) -> Left:
    """Kill the broker right after it has confirmed messages in a queue that is just as new."""
    victim.start()
    queues = [f"young.{number}" for number in range(rounds)]
    for queue in queues:
        with Witness(directory, queue) as witness:
            connection = BulkConnection.open(victim.url)
            channel = connection.channel()
            channel.declare(queue)
            channel.confirm_select()
            rows = [
                ("", queue, {"delivery_mode": 2, "message_id": f"{queue}:{number}"}, b"x" * 100)
                for number in range(YOUNG_MESSAGES)
            ]
            channel.publish_many(rows, mandatory=True, watch=witness.watch())
            victim.kill9()
        victim.start()
    left = _patiently_drain(victim.url, directory, queues)
    victim.end()
    return left


def _patiently_drain(url: str, directory: Path, queues: Sequence[str]) -> Left:
    """A node that was just started may refuse a connection once more."""
    left = Left()
    for _ in range(20):
        with contextlib.suppress(BulkError):
            drain(url, directory, left, queues)
            return left
        time.sleep(0.5)
    raise AssertionError("the broker lets nobody in")


def judge(directory: Path, out: Path, ledger: Path | None) -> dict[str, Any]:
    """What the witnesses say, as plain data."""
    from vouchmq.spark.ledger import lines
    from vouchmq.spark.session import session
    from vouchmq.spark.witness import witness

    with session("witnesses", cores=2, memory="1g") as spark:
        told = None
        if ledger is not None:
            found = lines.find([ledger])
            staged, _ = lines.stage_open(found.open, out / "open")
            told = lines.read(spark, [*found.closed, *staged])
        result = witness.run(spark, [directory], out, told)
        for text in (*result.summary(), *result.worst):
            sys.stdout.write(text + "\n")
        return {
            "messages": result.messages,
            "states": dict(result.states),
            "findings": dict(result.findings),
            "seen": asdict(result.seen),
            "exit_code": result.exit_code(),
            "worst": list(result.worst),
        }


def campaign(
    broker: str, directory: Path, rounds: int, seed: int, settle_s: float | None
) -> dict[str, Any]:
    """One whole campaign; `settle_s` None: with young queues."""
    began = time.monotonic()
    ours = Ours(directory) if broker == "vouchmq" else None
    witnesses = directory / "witnesses"
    victim = ours or Theirs(directory)
    if settle_s is None:
        left = endure_young(victim, witnesses, rounds)
    else:
        left = endure(victim, witnesses, rounds, seed, settle_s)
    judged = judge(witnesses, directory / "out", ours.ledger if ours else None)
    return {
        "broker": broker,
        "rounds": rounds,
        "young_queues": settle_s is None,
        "seed": seed,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "duration_s": round(time.monotonic() - began, 1),
        "beside_the_ledger": ours is not None,
        "settle_s": settle_s,
        **asdict(left),
        **judged,
    }


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def main() -> int:
    """Parse the command line; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--broker", choices=("vouchmq", "rabbitmq"), required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--settle",
        type=float,
        default=SETTLE_S,
        help="seconds between the declaration of the queues and the first message",
    )
    parser.add_argument("--young", action="store_true", help="new queues, killed at once")
    parser.add_argument("--work", type=Path, help="keep everything in this directory")
    parser.add_argument("--out", type=Path, help="write what was found to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="witnesses-") as directory:
        settle_s = None if given.young else given.settle
        work = given.work or Path(directory)
        work.mkdir(parents=True, exist_ok=True)
        found = campaign(given.broker, work, given.rounds, given.seed, settle_s)
    text = json.dumps(found, indent=2, ensure_ascii=False)
    sys.stdout.write(text + "\n")
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    return int(found["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
