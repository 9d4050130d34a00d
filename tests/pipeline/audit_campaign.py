"""A real broker under load, killed again and again, or with a bug built in; then the audit.

    python -m tests.pipeline.audit_campaign --messages 2000000 --kills 20 --out audit.json
    python -m tests.pipeline.audit_campaign --bug overtake --messages 20000 --kills 0

An honest broker must have no finding, whatever was done to it; a dishonest one must be found out,
and by the finding that its bug deserves. Spec: DURABLE-16
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.fault.planted import VARIABLE
from tests.integration.broker_process import PROJECT, BrokerProcess
from vouchmq.kit.bulk import BulkChannel, BulkConnection, encode_properties
from vouchmq.kit.bulk.errors import BulkError

CAUGHT_BY: Final[Mapping[str, str]] = {
    "confirm-before-sync": "early_confirm",
    "lose-some": "LOST",
    "overtake": "order",
    "forget-redelivered": "redelivered_flag",
}
"""Which finding tells of which bug of `tests.fault.planted`."""
QUEUES: Final = ("audited.1", "audited.2", "audited.dying")
DEAD: Final = "audited.dead"
RUN: Final = 200
PREFETCH: Final = 1000
FLAGS: Final = (
    "--ledger-enabled",
    "on",
    "--disk-free-limit",
    "0",
    "--ledger-file-bytes",
    "8388608",
)


@dataclass
class Load:
    """Clients of one broker, which come back whenever it does."""

    url: str
    messages: int
    seed: int
    published: int = 0
    confirmed: int = 0
    delivered: int = 0
    acked: int = 0
    errors: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    drained: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, publishers: int, consumers: int) -> list[threading.Thread]:
        """Start them."""
        threads = [
            threading.Thread(target=self._forever, args=(self._publish, number), daemon=True)
            for number in range(publishers)
        ]
        threads += [
            threading.Thread(target=self._forever, args=(self._consume, number), daemon=True)
            for number in range(consumers)
        ]
        for thread in threads:
            thread.start()
        return threads

    def is_done(self) -> bool:
        """Whether so much has been confirmed as was wanted."""
        return self.confirmed >= self.messages or self.stopping.is_set()

    def _forever(self, act: Any, number: int) -> None:
        chance = random.Random(f"{self.seed}:{act.__name__}:{number}")
        while not self.stopping.is_set():
            try:
                with (
                    BulkConnection.open(self.url, connect_timeout_s=5.0) as connection,
                    connection.channel() as channel,
                ):
                    if act(channel, number, chance):
                        return
            except BulkError:
                time.sleep(0.05)
            except Exception as error:  # noqa: BLE001 - shown at the end
                self.errors.append(repr(error))
                return

    def _publish(self, channel: BulkChannel, number: int, chance: random.Random) -> bool:
        channel.confirm_select()
        lasting = encode_properties({"delivery_mode": 2})
        passing = encode_properties({"delivery_mode": 1})
        while not self.is_done():
            count = chance.randrange(1, 2 * RUN)
            rows = [
                (
                    "",
                    "nowhere" if chance.random() < 0.001 else QUEUES[chance.randrange(len(QUEUES))],
                    passing if chance.random() < 0.05 else lasting,
                    b"%d:%d" % (number, place),
                )
                for place in range(count)
            ]
            with self._lock:
                self.published += count
            result = channel.publish_many(rows, mandatory=True)
            with self._lock:
                self.confirmed += result.confirmed
        return True

    def _consume(self, channel: BulkChannel, number: int, chance: random.Random) -> bool:
        queue = (*QUEUES, DEAD)[number % (len(QUEUES) + 1)]
        channel.qos(PREFETCH)
        channel.consume(queue, no_ack=number >= 2 * (len(QUEUES) + 1))
        no_ack = number >= 2 * (len(QUEUES) + 1)
        silent = 0
        while not self.stopping.is_set():
            deliveries = channel.wait(RUN, 0.5)
            silent = 0 if deliveries else silent + 1
            if silent >= 3 and self.is_done():
                return True
            with self._lock:
                self.delivered += len(deliveries)
            tags = [delivery[0] for delivery in deliveries]
            if no_ack or not tags:
                continue
            drawn = chance.random()
            if drawn < 0.10:
                channel.nack(tags.pop(), requeue=True)
            elif drawn < 0.14 and queue == "audited.dying":
                channel.nack(tags.pop(), requeue=False)
            elif drawn < 0.15:
                # Away with all that is unacked: it goes back into the queue.
                channel.connection.close()
                return False
            channel.ack_many(tags)
            with self._lock:
                self.acked += len(tags)
        return True


def declare(url: str) -> None:
    """The queues of the load; one of them sends what dies to another."""
    with BulkConnection.open(url) as connection, connection.channel() as channel:
        channel.declare(DEAD, durable=True)
        for queue in QUEUES:
            dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
            arguments = dying if queue == "audited.dying" else {}
            channel.declare(queue, durable=True, arguments=arguments)


@dataclass
class Outcome:
    """What a campaign has seen."""

    bug: str
    kills: int
    published: int
    confirmed: int
    delivered: int
    load_s: float
    ledger_bytes: int
    exit: int
    summary: dict[str, Any]
    printed: str


def campaign(
    directory: Path,
    *,
    messages: int,
    kills: int,
    bug: str = "",
    seed: int = 1,
    environment: Mapping[str, str] | None = None,
    limit_s: float = 3600.0,
    memory: str = "2g",
) -> Outcome:
    """Load, kills, the end in order, the audit."""
    program = "tests.fault.planted" if bug else "vouchmq"
    settings = {**({VARIABLE: bug} if bug else {}), **(environment or {})}
    broker = BrokerProcess(directory, flags=FLAGS, program=program, environment=settings)
    broker.start(60.0)
    declare(broker.url)
    load = Load(broker.url, messages, seed)
    began = time.monotonic()
    threads = load.start(publishers=2, consumers=5)
    chance = random.Random(seed)
    done = 0
    try:
        while any(thread.is_alive() for thread in threads) and time.monotonic() - began < limit_s:
            time.sleep(0.05)
            due = (done + 1) * messages / (kills + 1)
            if done < kills and load.confirmed >= due * (0.9 + 0.1 * chance.random()):
                broker.kill9()
                done += 1
                broker.start(60.0)
        load.stopping.set()
        for thread in threads:
            thread.join(60)
        took_s = time.monotonic() - began
        assert not load.errors, load.errors
        broker.stop()
    finally:
        load.stopping.set()
        broker.kill9()
    ledger = broker.data_dir / "ledger"
    octets = sum(path.stat().st_size for path in ledger.glob("*.jsonl*"))
    code, summary, printed = audit(ledger, directory / "tables", memory)
    return Outcome(
        *(bug, done, load.published, load.confirmed, load.delivered),
        *(round(took_s, 1), octets, code, summary, printed),
    )


def audit(ledger: Path, out: Path, memory: str) -> tuple[int, dict[str, Any], str]:
    """`vouchmq audit` of a ledger: exit code, summary, output."""
    command = [sys.executable, "-m", "vouchmq", "audit", str(ledger), "--out", str(out)]
    # Every kind of finding counts here.
    kinds = "LOST,double_end,early_confirm,order,resurrected,orphan,redelivered_flag"
    kinds += ",confirm_twice,over_prefetch,unknown_consumer,nack_lost_in_returns"
    kinds += ",tampered,acked_undelivered,unanswered,clock"
    ran = subprocess.run(
        [*command, "--fail-on", kinds, "--memory", memory],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    path = out / "summary.json"
    if not path.exists():
        raise AssertionError(f"no audit: {ran.returncode} {ran.stdout} {ran.stderr}")
    return ran.returncode, json.loads(path.read_text(encoding="utf-8")), ran.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and keep its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--bug", choices=sorted(CAUGHT_BY), default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rare", type=int, default=1000, help="lose-some: one message in so many")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="audit-campaign-") as directory:
        outcome = campaign(
            Path(directory),
            messages=options.messages,
            kills=options.kills,
            bug=options.bug,
            seed=options.seed,
            environment={"PLANTED_RARE": str(options.rare)},
        )
    sys.stdout.write(outcome.printed)
    told = {
        "command": "python -m tests.pipeline.audit_campaign " + " ".join(arguments or sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **{name: value for name, value in asdict(outcome).items() if name != "printed"},
        "lines": outcome.printed.splitlines()[:12],
    }
    told["summary"].pop("paths", None)
    if options.out:
        kept = json.loads(options.out.read_text()) if options.out.exists() else []
        options.out.write_text(json.dumps([*kept, told], indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"published {outcome.published:,}, confirmed {outcome.confirmed:,}, ")
    sys.stdout.write(f"kills {outcome.kills}, {outcome.load_s:.0f} s\n")
    wanted = CAUGHT_BY.get(options.bug)
    is_right = wanted in outcome.summary["findings"] if wanted else outcome.exit == 0
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
