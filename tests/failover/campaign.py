"""Leaders that are lost under load, and the judgement of everything that clients were told.

    python -m tests.failover.campaign --kills 100 --audit --out docs/internals/results/failover.json

Three brokers and three servers of the log run on loopback. In each round the clients of
`tests.fault` work, the leader is lost in one of several ways, another one takes over, and what it
has is compared with what the clients know, by the same judges as after a kill of a single broker.
Three more clients live through all rounds: a publisher that repeats what was not confirmed, and two
consumers of a queue with a single active consumer. At the end the ledgers of all brokers are
audited as one.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

from tests.engine import servers
from tests.failover import ledgers
from tests.failover.clients import Consumer, History, Publisher, declare, left_in
from tests.failover.judge import judge
from tests.failover.sites import SiteBroker, Sites
from tests.fault.campaign import FLAGS, LEDGER_FLAGS, Campaign, git
from tests.fault.ledger import Ledger
from tests.fault.special_judge import Specials
from tests.integration.broker_process import PROJECT
from tests.pipeline.audit_reference import Reference
from tests.waiting import wait_until

MODULE: Final = "tests.failover.campaign"
QUEUE: Final = "roaming.single"
# So often each way to lose a leader is drawn.
WAYS: Final = {"kill": 10, "pause": 5, "handover": 3, "stop": 3, "machine": 1}

Tell = Callable[[str], None]


@dataclass
class Outcome:
    """What a campaign has seen, beside what the judges of `tests.fault` count."""

    ways: Counter[str] = field(default_factory=Counter)
    leaders: Counter[str] = field(default_factory=Counter)
    take_over_s: list[float] = field(default_factory=list)
    roaming_confirmed: int = 0
    roaming_repeated: int = 0
    roaming_deliveries: int = 0
    roaming_redelivered: int = 0
    roaming_connections: int = 0
    epochs_audited: int = 0
    copies_audited: int = 0
    audit: str = ""
    violations: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """For a file: of the times the middle one and the longest."""
        found: dict[str, object] = vars(self).copy()
        times = found.pop("take_over_s")
        assert isinstance(times, list)
        if times:
            found["take_over_median_s"] = round(median(times), 1)
            found["take_over_longest_s"] = round(max(times), 1)
        return found


class Roaming:
    """The clients that live through all rounds."""

    def __init__(self, sites: Sites) -> None:
        urls = {each.name: each.url for each in sites.brokers}
        self.history = History()
        self.publisher = Publisher(urls, self.history, QUEUE)
        self.consumers = [Consumer(urls, self.history, QUEUE) for _ in range(2)]

    def start(self) -> None:
        """Begin."""
        for each in (self.publisher, *self.consumers):
            each.start()

    def end(self) -> None:
        """Finish, the publisher first: it has to have all of its confirms."""
        for each in (self.publisher, *self.consumers):
            each.end()

    def judge(self, leader: SiteBroker, outcome: Outcome) -> list[str]:
        """What is wrong with what they have seen."""
        events, history = self.history.events, self.history
        outcome.roaming_confirmed = len(history.confirmed)
        outcome.roaming_repeated = self.publisher.repeated_count
        outcome.roaming_connections = len(history.connections)
        marks = [each.redelivered for each in events if hasattr(each, "redelivered")]
        outcome.roaming_deliveries, outcome.roaming_redelivered = len(marks), sum(marks)
        found = judge(history, left_in(leader.url, QUEUE), is_single=True)
        return [f"roaming: {each}" for each in found]


class Failovers(Campaign):
    """Rounds in which the leader of three brokers is lost."""

    def __init__(self, sites: Sites, ledger: Ledger, seed: int, specials: Specials) -> None:
        super().__init__(sites.wait_for_leader(), ledger, seed, "kill", specials)
        self.seen = Outcome()
        self._sites = sites
        self._chance = random.Random(seed)

    def lose(self, way: str) -> list[str]:
        """One round in which the leader is lost; the violations."""
        return self.strike(way, lambda leader: self._lose(way, leader))

    def strike(self, name: str, blow: Callable[[SiteBroker], SiteBroker]) -> list[str]:
        """One round; the violations.

        Args:
            name: it is counted under that
            blow: told the leader, whose clients have ended when this gives who leads then
        """
        self.broker = leader = self.leader
        self.seen.ways[name] += 1
        self.seen.leaders[leader.name] += 1

        def strike(_: random.Random) -> None:
            self.broker = blow(leader)

        found = self.round(strike)
        self.seen.violations = self.outcome.violations
        return found

    @property
    def leader(self) -> SiteBroker:
        """Who serves, as soon as somebody does."""
        leader = self._sites.leader
        return leader if leader is not None else self._sites.wait_for_leader()

    def _lose(self, way: str, leader: SiteBroker) -> SiteBroker:
        sites = self._sites
        began = time.monotonic()
        server = sites.site_of_broker(leader).server
        epoch = sites.epoch()
        match way:
            case "kill":
                leader.kill9()
            case "pause":
                leader.signal(signal.SIGSTOP)
            case "handover":
                leader.hand_over()
            case "stop":
                code = leader.stop()
                if code:
                    self.ledger.complaints.append(f"{leader.name} has ended with {code}")
            case "machine":
                server.signal(signal.SIGKILL)
                leader.kill9()
                server.kill()
        if way == "handover":
            # On a slow machine others may be passed over until the same one claims again.
            following = sites.wait_for_claim(epoch)
        else:
            following = sites.wait_for_leader(but=leader)
        self.seen.take_over_s.append(time.monotonic() - began)
        if way == "pause":
            leader.signal(signal.SIGCONT)
            wait_until(lambda: leader.status().get("role") == "standby", sites.evidence)
        elif way == "machine":
            server.start()
        if not leader.is_running:
            leader.begin()
        return following

    def _start(self, chance: random.Random) -> None:
        """Another one has taken over; before it is judged the lost one follows it."""
        del chance
        self._sites.wait_for_standbys(1)


def audit(sites: Sites, place: Path, outcome: Outcome, *, runs_spark: bool) -> list[str]:
    """End all brokers, and judge by their ledgers."""
    # The leader last, so that nobody takes over once more.
    for each in sorted(sites.brokers, key=lambda each: each.is_serving):
        code = each.stop()
        if code:
            outcome.violations.append(f"{each.name} has ended with {code}")
    lines = ledgers.merged(ledgers.read_all(each.data_dir / "ledger" for each in sites.brokers))
    outcome.epochs_audited = len({line["o"] for line in lines})
    found: list[str] = []
    if not runs_spark:
        # Of some ten thousand copies; it takes minutes for more.
        reference = Reference(lines)
        outcome.copies_audited = len(reference.copies)
        found += [f"audit: {kind}: {where}" for *where, kind in sorted(reference.findings, key=str)]
    else:
        there = [each.data_dir / "ledger" for each in sites.brokers]
        paths = [str(each) for each in there if each.exists()]
        command = ["audit", *paths, "--shared-log", "--out", str(place / "audit")]
        done = subprocess.run(
            [sys.executable, "-m", "vouchmq", *command],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        said = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
        outcome.audit = said.get("verdict", done.stderr).strip()
        outcome.copies_audited = int(said.get("copies", "0").replace(",", ""))
        if done.returncode:
            found.append(f"vouchmq audit: {done.returncode}: {done.stdout}{done.stderr[-2000:]}")
    return found


Play = Callable[[Failovers, Roaming, Sites, Tell], list[str]]


@contextmanager
def failovers(
    directory: Path,
    *,
    seed: int,
    programs: Sequence[str] = ("vouchmq",) * 3,
    confirm: str = "log",
) -> Iterator[tuple[Failovers, Roaming, Sites]]:
    """Three brokers that run, and clients that know them all."""
    flags = (*FLAGS, *LEDGER_FLAGS, "--ha-confirm", confirm)
    with (
        Sites(directory, flags=flags, programs=programs) as sites,
        Ledger(directory / "ledger.log") as ledger,
    ):
        leader = sites.start()
        declare(leader.url, QUEUE, {"x-single-active-consumer": True})
        specials = Specials(directory)
        roaming = Roaming(sites)
        roaming.start()
        try:
            yield Failovers(sites, ledger, seed, specials), roaming, sites
        finally:
            specials.close()


def ways_of(count: int, seed: int) -> list[str]:
    """So many ways to lose a leader, each as often as its weight says, in a drawn order."""
    chance = random.Random(seed)
    names = [name for name, weight in WAYS.items() for _ in range(weight)]
    chance.shuffle(names)
    drawn = [names[at % len(names)] for at in range(count)]
    chance.shuffle(drawn)
    return drawn


def run(
    one: Failovers,
    roaming: Roaming,
    ways: Sequence[str],
    tell: Tell,
    lose: Callable[[str], list[str]] | None = None,
) -> list[str]:
    """Rounds, until one shows a violation; all that were found.

    Args:
        one: what is lost
        roaming: clients of all rounds, which end
        ways: a round for each
        tell: told how far it is
        lose: plays a round, instead of `Failovers.lose`
    """
    for number, way in enumerate(ways, 1):
        found = (lose or one.lose)(way)
        # None if the machine was too busy: then another one led before the leader was killed.
        took = (one.seen.take_over_s or [0.0])[-1]
        tell(f"round {number}: {way}, {took:.1f} s, {one.outcome.confirmed} confirmed")
        for each in found:
            tell(f"  {each}")
        if found:
            break
    roaming.end()
    found = roaming.judge(one.leader, one.seen)
    one.seen.violations += found
    return one.seen.violations


def report(
    module: str, options: argparse.Namespace, one: Failovers, began: float
) -> dict[str, object]:
    """What is kept of a campaign, with what is needed to run it again."""
    rounds = vars(one.outcome).copy()
    del rounds["audited"], rounds["ends_during_start"], rounds["violations"]
    return {
        "command": f"python -m {module} {' '.join(sys.argv[1:])}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "changed_files": git("status", "--short", "protocol", "store", "server").splitlines(),
        "seed": options.seed,
        "duration_s": round(time.monotonic() - began, 1),
        **rounds,
        **one.seen.as_json(),
    }


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """The options that campaigns share."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--audit", action="store_true", help="by vouchmq audit (Spark), for many")
    parser.add_argument("--confirm", choices=("log", "log+standby"), default="log", help="(log)")
    parser.add_argument("--directory", type=Path, help="for the data; kept after a violation")
    parser.add_argument("--out", type=Path, help="JSON file that the result is written to")
    return parser


def perform(module: str, options: argparse.Namespace, play: Play) -> int:
    """Run a campaign; exit 0 without a violation, 1 with one, 2 when it cannot be run here."""
    if servers.program() is None:
        sys.stderr.write(servers.MISSING + "\n")
        return 2
    # aiormq logs a traceback for every connection that ends, as all of these do.
    logging.disable(logging.CRITICAL)
    began = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.1f} s  {text}\n")
        sys.stdout.flush()

    place = Path(tempfile.mkdtemp(prefix="vouchmq-failover-", dir=options.directory))
    with failovers(place, seed=options.seed, confirm=options.confirm) as (one, roaming, sites):
        violations = play(one, roaming, sites, tell)
        violations += audit(sites, place, one.seen, runs_spark=options.audit)
        one.seen.violations = violations
        result = report(module, options, one, began)
    if not violations:
        shutil.rmtree(place)
    text = json.dumps(result, indent=2) + "\n"
    sys.stdout.write(text)
    if options.out is not None:
        options.out.write_text(text)
    return 1 if violations else 0


def main() -> int:
    """Lose leaders; see `perform`."""
    parser = parser_of(MODULE, __doc__)
    parser.add_argument("--kills", type=int, default=10, help="leaders that are lost")
    options = parser.parse_args()

    def play(one: Failovers, roaming: Roaming, sites: Sites, tell: Tell) -> list[str]:
        del sites
        return run(one, roaming, ways_of(options.kills, options.seed), tell)

    return perform(MODULE, options, play)


if __name__ == "__main__":
    sys.exit(main())
