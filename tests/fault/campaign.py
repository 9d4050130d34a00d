"""Rounds of load, an end without warning, a restart, and a judgement; as a program, many of them.

    python -m tests.fault.campaign sigkill --rounds 100 --out docs/internals/results/sigkill.json
    python -m tests.fault.campaign power --file-system xfs --rounds 30

The data directory is the same in all rounds, so every recovery reads what recoveries before it
have left. The tests run a few rounds, a release many. Spec: DURABLE-16, DURABLE-17
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pamqp.commands as amqp
import psutil

from tests.fault.clients import (
    MARKS,
    QUEUES,
    Client,
    ConfirmingChannel,
    Scene,
    declare_all,
    everybody,
    load,
)
from tests.fault.ledger import End, Ledger, name_of
from tests.fault.loop_disk import (
    LOG_FLUSHED,
    NOTHING_FLUSHED,
    FileSystem,
    LoopDisk,
    kill_all,
    loop_disk,
    stop_whole,
    why_not,
)
from tests.fault.special_clients import declare_specials
from tests.fault.special_judge import Specials
from tests.integration.broker_process import PROJECT, BrokerProcess, StartError
from tests.integration.raw_client import RawClient, method
from tests.ledger_reader import lines_in
from tests.pipeline.audit_reference import Reference

# Small segments, so that a round of a second begins, recycles and removes several.
FLAGS: Final = ("--segment-size-bytes", str(1024 * 1024), "--disk-free-limit", "0")
DISK_BYTES: Final = 2 * 1024**3
# Small files, so that a round begins several.
LEDGER_FLAGS: Final = ("--ledger-enabled", "on", "--ledger-file-bytes", str(1024 * 1024))
LARGEST_BACKLOG: Final = 15_000
CUT_SHORT: Final = "no ready line"
START_LIMIT_S: Final = 60.0
END_CHECK: Final = "judge"
PROBE: Final = 2
NOT_FOUND: Final = 404

Strike = Callable[[random.Random], None]


@dataclass
class Outcome:
    """What a campaign has seen."""

    rounds: int = 0
    ends_during_start: int = 0
    confirmed: int = 0
    judged: int = 0
    transactions: int = 0
    definitions: int = 0
    dead_letters: int = 0
    delayed: int = 0
    repeats: int = 0
    stream_offsets: int = 0
    audited: int = 0
    violations: list[str] = field(default_factory=list)


class Campaign:
    """One broker, its ledger, and the rounds they go through."""

    def __init__(
        self,
        broker: BrokerProcess,
        ledger: Ledger,
        seed: int,
        end: End,
        specials: Specials | None = None,
    ) -> None:
        self.broker = broker
        self.ledger = ledger
        self.specials = specials
        self.outcome = Outcome()
        self._seed = seed
        self._end = end
        self._said = 0

    def round(self, strike: Strike) -> list[str]:
        """Load, `strike` in the middle of it, restart, judge; returns the violations.

        `strike` ends the broker and sees to it that it can be started again.
        """
        number = self.outcome.rounds
        chance = random.Random(f"{self._seed}:{number}")
        declare_all(self.broker.url)
        if self.specials is not None:
            declare_specials(self.broker.url)
        scene = Scene(
            self.broker.url, self.ledger, str(number), self._seed, stopping=threading.Event()
        )
        before = self.ledger.confirmed_count
        with load(scene, self._everybody):
            time.sleep(chance.uniform(0.15, 0.9))
            strike(chance)
        self._start(chance)
        self.outcome.rounds += 1
        self.outcome.confirmed += self.ledger.confirmed_count - before
        self.outcome.transactions += len(self.ledger.groups)
        found = self.judge(chance)
        if self.specials is not None:
            found += self._judge_specials(self.specials, chance)
        violations = [f"round {number}: {what}" for what in found]
        self.outcome.violations += violations
        return violations

    def _everybody(self, scene: Scene) -> tuple[Client, ...]:
        more = () if self.specials is None else self.specials.clients(scene)
        return (*everybody(scene), *more)

    def _judge_specials(self, specials: Specials, chance: random.Random) -> list[str]:
        violations = specials.judge(self.broker.url, chance)
        self.outcome.dead_letters = sum(each.died for each in specials.dead_letters.values())
        self.outcome.delayed = len(specials.delays.gone)
        self.outcome.repeats = specials.keys.repeats
        self.outcome.stream_offsets = len(specials.offsets.names)
        return violations

    def _start(self, chance: random.Random) -> None:
        """Start again; sometimes recovery itself is cut short first."""
        while self._end == "kill" and chance.random() < 0.3:
            try:
                self.broker.start(chance.uniform(0.05, 0.6))
            except StartError as error:
                if not str(error).startswith(CUT_SHORT):
                    raise
                self.outcome.ends_during_start += 1
            else:
                self.broker.kill9()
        self.broker.start(START_LIMIT_S)

    def judge(self, chance: random.Random) -> list[str]:
        """Compare broker and ledger; leaves what is there, or empties the queues."""
        ledger = self.ledger
        with RawClient(self.broker.url).handshake() as client:
            scene = Scene(self.broker.url, ledger, "", 0, threading.Event())
            name = f"{END_CHECK}{self.outcome.rounds}"
            channel = ConfirmingChannel(client, scene, name)
            there = [queue for queue in QUEUES if exists(client, queue)]
            found = {queue: take_all(client, queue) if queue in there else [] for queue in QUEUES}
            violations = [
                f"durable queue {queue} is gone" for queue in QUEUES if queue not in there
            ]
            violations += ledger.judge(found, end=self._end)
            violations += self._judge_definitions()
            complaints = self.broker.complaints()
            violations += complaints[self._said :]
            self._said = len(complaints)
            ledger.turn_page(found)
            count = sum(map(len, found.values()))
            self.outcome.judged += count
            if not violations and (count > LARGEST_BACKLOG or chance.random() < 0.5):
                for queue, messages in found.items():
                    ledger.acking(queue, [body for body, _ in messages], name)
                # A tag of 0 and `multiple` ack everything; the publish behind it makes that sure.
                client.send(method(1, amqp.Basic.Ack(delivery_tag=0, multiple=True)))
                client.send(channel.publish("", MARKS, (MARKS,)))
                while channel.pending:
                    channel.take_confirm(client.read()[1])
        return violations

    def audit(self) -> list[str]:
        """Stop the broker, and judge all of its lives by its own ledger."""
        self.broker.stop()
        reference = Reference(lines_in(self.broker.data_dir / "ledger"))
        self.outcome.audited = len(reference.copies)
        return [f"audit: {kind}: {place}" for *place, kind in sorted(reference.findings, key=str)]

    def _judge_definitions(self) -> Iterator[str]:
        ledger = self.ledger
        with RawClient(self.broker.url).handshake() as client:
            client.open_channel()
            for name, state in list(ledger.definitions.items()):
                self.outcome.definitions += 1
                is_there = exists(client, name)
                if is_there and state == "gone":
                    yield f"queue {name} was deleted and is there"
                if not is_there and state == "there":
                    yield f"queue {name} was declared and is gone"
                if is_there:
                    ledger.defining(name, delete=True)
                    client.call(1, amqp.Queue.Delete(queue=name), amqp.Queue.DeleteOk)
                    ledger.defined(name)
                else:
                    del ledger.definitions[name]


def take_all(client: RawClient, queue: str) -> list[tuple[bytes, bool]]:
    """Everything in a queue, in order, left unacked: body and redelivered."""
    count = client.ready_count(queue)
    tag = f"take.{queue}"
    client.call(1, amqp.Basic.Consume(queue=queue, consumer_tag=tag), amqp.Basic.ConsumeOk)
    found = [(name_of(body), bool(sent.redelivered)) for sent, body in client.deliveries(count)]
    client.call(1, amqp.Basic.Cancel(consumer_tag=tag), amqp.Basic.CancelOk)
    return found


def exists(client: RawClient, queue: str) -> bool:
    """True when the queue is there; asked on a channel that ends when it is not."""
    client.open_channel(PROBE)
    client.send(method(PROBE, amqp.Queue.Declare(queue=queue, passive=True)))
    _, answer = client.read()
    if isinstance(answer, amqp.Channel.Close):
        assert answer.reply_code == NOT_FOUND, answer.reply_text
        client.send(method(PROBE, amqp.Channel.CloseOk()))
        return False
    assert isinstance(answer, amqp.Queue.DeclareOk)
    client.call(
        PROBE, amqp.Channel.Close(reply_code=200, class_id=0, method_id=0), amqp.Channel.CloseOk
    )
    return True


@contextmanager
def campaign(
    directory: Path,
    *,
    seed: int,
    end: End,
    data_dir: Path | None = None,
    program: str = "vouchmq",
    flags: Sequence[str] = FLAGS,
) -> Iterator[Campaign]:
    """A broker that runs, and its ledger."""
    broker = BrokerProcess(directory, flags=flags, program=program)
    if data_dir is not None:
        broker.data_dir = data_dir
    with Ledger(directory / "ledger.log") as ledger:
        broker.start(START_LIMIT_S)
        specials = Specials(directory)
        try:
            yield Campaign(broker, ledger, seed, end, specials)
        finally:
            broker.kill9()
            specials.close()


@contextmanager
def kill_campaign(
    directory: Path, *, seed: int, program: str = "vouchmq"
) -> Iterator[tuple[Campaign, Strike]]:
    """A campaign of SIGKILLs on a broker with a ledger, and the strike."""
    flags = (*FLAGS, *LEDGER_FLAGS)
    with campaign(directory, seed=seed, end="kill", program=program, flags=flags) as one:
        yield one, lambda _: one.broker.kill9()


@contextmanager
def power_campaign(
    directory: Path, kind: FileSystem, *, seed: int, program: str = "vouchmq"
) -> Iterator[tuple[Campaign, Strike]]:
    """The same on a file system whose power can be cut: the campaign and the strike."""
    with loop_disk(directory, kind, DISK_BYTES) as disk:
        data_dir = disk.mount_point / "data"
        with campaign(directory, seed=seed, end="power", data_dir=data_dir, program=program) as one:
            yield one, lambda chance: cut_power(one.broker, disk, chance)


def cut_power(broker: BrokerProcess, disk: LoopDisk, chance: random.Random) -> None:
    """Stop every thread, cut the power, end the processes, mount again."""
    family = stop_whole(psutil.Process(broker.pid))
    disk.cut_power(chance.choice((LOG_FLUSHED, NOTHING_FLUSHED)))
    kill_all(family)
    broker.kill9()
    disk.unmount()
    disk.mount()


def git(*arguments: str) -> str:
    """What git says, or nothing outside of a checkout."""
    done = subprocess.run(
        ["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def report(options: argparse.Namespace, outcome: Outcome, began: float) -> dict[str, object]:
    """What is kept of a campaign, with what is needed to run it again."""
    return {
        "command": f"python -m tests.fault.campaign {' '.join(sys.argv[1:])}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "changed_files": git("status", "--short", "protocol", "store", "server").splitlines(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "kind": options.kind,
        "file_system": options.file_system if options.kind == "power" else "",
        "seed": options.seed,
        "duration_s": round(time.monotonic() - began, 1),
        **asdict(outcome),
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.campaign", description=__doc__)
    parser.add_argument("kind", choices=("sigkill", "power"))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--file-system", choices=("ext4", "xfs"), default="ext4")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--program", default="vouchmq", help="module that is run as the broker")
    parser.add_argument("--out", type=Path, help="JSON file that the result is written to")
    return parser.parse_args(arguments)


def run_rounds(one: Campaign, strike: Strike, rounds: int) -> Iterator[list[str]]:
    """So many rounds; each gives its violations, the first of which ends the campaign."""
    for _ in range(rounds):
        violations = one.round(strike)
        yield violations
        if violations:
            return


def hunt(one: Campaign, strike: Strike, rounds: int, sign: str) -> list[str]:
    """Rounds until a violation says `sign`; gives all that were seen.

    One bug breaks several promises, and what a single kill shows of it is chance.
    """
    caught: list[str] = []
    for _ in range(rounds):
        caught += one.round(strike)
        if any(sign in what for what in caught):
            break
    return caught


def main() -> int:
    """Run a campaign; exit 0 without a violation, 1 with one, 2 when it cannot be run here."""
    options = parse()
    # aiormq logs a traceback for every connection that ends, as all of these do.
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    missing = why_not(options.file_system) if options.kind == "power" else ""
    if missing:
        sys.stderr.write(f"cannot be run here: {missing}\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="vouchmq-campaign-") as made:
        place = Path(made)
        if options.kind == "power":
            kind: FileSystem = options.file_system
            stage = power_campaign(place, kind, seed=options.seed, program=options.program)
        else:
            stage = kill_campaign(place, seed=options.seed, program=options.program)
        with stage as (one, strike):
            for violations in run_rounds(one, strike, options.rounds):
                sys.stdout.write(f"round {one.outcome.rounds}: {one.outcome.confirmed} confirmed\n")
                sys.stdout.writelines(f"  {what}\n" for what in violations)
                sys.stdout.flush()
            if options.kind == "sigkill" and not one.outcome.violations:
                one.outcome.violations += one.audit()
        if one.outcome.violations:
            keep(place)
    result = report(options, one.outcome, began)
    text = json.dumps(result, indent=2) + "\n"
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 1 if one.outcome.violations else 0


def keep(place: Path) -> None:
    """Save the clients' record and the broker's output from being removed."""
    target = Path(tempfile.mkdtemp(prefix="vouchmq-violation-"))
    for record in place.glob("*.log"):
        shutil.copy(record, target)
    if (place / "data").exists():
        # The socket of a broker that was killed is no file to copy.
        sockets = shutil.ignore_patterns("control.sock")
        shutil.copytree(place / "data", target / "data", ignore=sockets)
    sys.stdout.write(f"evidence: {target}\n")


if __name__ == "__main__":
    sys.exit(main())
