"""Each broker and each server of the log is killed or paused, alone and in pairs, under load.

    python -m tests.failover.pairs --audit --out docs/internals/results/failover-pairs.json

A process is named by what it does when its round begins: the leader, a standby, the server that
leads the stream, a follower of it. With each signal for each of them that is 72 rounds: 12 of one
process, 60 of two. Load, judges and audit are those of `tests.failover.campaign`. When the leader
has survived, it is killed at the end of the round, so that a standby that was hit before, or that
reads from servers that were, has to show what it has.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

from tests.engine.servers import NatsServer
from tests.failover.campaign import Failovers, Roaming, Tell, parser_of, perform, run
from tests.failover.sites import SiteBroker, Sites
from tests.failover.watched import Alarms
from tests.waiting import wait_until

MODULE: Final = "tests.failover.pairs"
BROKERS: Final = ("leader", "standby", "other standby")
SERVERS: Final = ("stream leader", "follower", "other follower")
SIGNALS: Final = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP}
# Confirms that show that the log goes on.
GOES_ON: Final = 20
AND: Final = " and "


@dataclass(frozen=True)
class Blow:
    """One process, and what is done to it; `kill leader`."""

    how: str
    role: str

    def __str__(self) -> str:
        return f"{self.how} {self.role}"

    @classmethod
    def parse(cls, text: str) -> Blow:
        """The blow of a name."""
        how, _, role = text.partition(" ")
        return cls(how, role)


def all_ways() -> list[str]:
    """Each process and each pair, with each signal for each of them."""
    roles = (*BROKERS, *SERVERS)
    chosen = [*((each,) for each in roles), *combinations(roles, 2)]
    return [
        AND.join(str(Blow(how, role)) for how, role in zip(hows, pair, strict=True))
        for pair in chosen
        for hows in product(SIGNALS, repeat=len(pair))
    ]


class Pairs:
    """Rounds in which processes are lost, one or two at a time."""

    def __init__(self, one: Failovers, roaming: Roaming, sites: Sites) -> None:
        self._one = one
        self._roaming = roaming
        self._sites = sites

    def lose(self, way: str) -> list[str]:
        """One round; the violations."""
        # Everybody is there, so that what is lost in it is what the round says.
        self._sites.wait_for_standbys(2)
        self._sites.wait_until_current()
        blows = [Blow.parse(each) for each in way.split(AND)]
        return self._one.strike(way, lambda leader: self._strike(blows, leader))

    def _roles(self, leader: SiteBroker) -> Mapping[str, SiteBroker | NatsServer]:
        sites = self._sites
        first = sites.stream_leader()
        followers = [each for each in sites.cluster.servers if each is not first]
        return {
            **dict(zip(BROKERS, (leader, *sites.others(leader)), strict=True)),
            **dict(zip(SERVERS, (first, *followers), strict=True)),
        }

    def _strike(self, blows: Sequence[Blow], leader: SiteBroker) -> SiteBroker:
        sites, roles = self._sites, self._roles(leader)
        alarms, began = Alarms(sites), time.monotonic()
        for each in blows:
            hit(roles[each.role], each.how)
        is_lost = any(each.role == "leader" for each in blows)
        following: SiteBroker | None = None
        if sum(each.role in SERVERS for each in blows) > 1:
            # Nothing is confirmed, and nobody can take over.
            alarms.wait_until_raised()
        else:
            following = sites.wait_for_leader(but=leader if is_lost else None)
            if is_lost:
                self._one.seen.take_over_s.append(time.monotonic() - began)
            # A client of one that is paused waits for it.
            if Blow("pause", "leader") not in blows:
                self._roaming.publisher.wait(GOES_ON)
        for each in blows:
            mend(roles[each.role], each.how)
        if Blow("pause", "leader") in blows:
            wait_until(lambda: leader.status().get("role") == "standby", sites.evidence)
        self._roaming.publisher.wait(GOES_ON)
        if following is None or following is leader:
            following = self._end_of(leader)
        return following

    def _end_of(self, leader: SiteBroker) -> SiteBroker:
        """Kill the leader that has survived; whoever takes over is judged."""
        sites = self._sites
        sites.wait_for_standbys(1)
        following = sites.wait_for_leader()
        # On a busy machine it may have been silent for long enough to be replaced.
        if following is leader:
            began = time.monotonic()
            leader.kill9()
            following = sites.wait_for_leader(but=leader)
            self._one.seen.take_over_s.append(time.monotonic() - began)
            leader.begin()
        return following


def hit(process: SiteBroker | NatsServer, how: str) -> None:
    """Kill or pause it."""
    if how == "kill" and isinstance(process, SiteBroker):
        process.kill9()
    else:
        process.signal(SIGNALS[how])


def mend(process: SiteBroker | NatsServer, how: str) -> None:
    """Have it run again."""
    if how == "pause":
        process.signal(signal.SIGCONT)
    elif isinstance(process, SiteBroker):
        process.begin()
    else:
        process.kill()
        process.start()


def main() -> int:
    """Play each of them once, in an order that the seed draws."""
    parser = parser_of(MODULE, __doc__)
    parser.add_argument("--only", default="", help="ways whose names contain this")
    options = parser.parse_args()
    ways = [each for each in all_ways() if options.only in each]
    random.Random(options.seed).shuffle(ways)

    def play(one: Failovers, roaming: Roaming, sites: Sites, tell: Tell) -> list[str]:
        return run(one, roaming, ways, tell, Pairs(one, roaming, sites).lose)

    return perform(MODULE, options, play)


if __name__ == "__main__":
    sys.exit(main())
