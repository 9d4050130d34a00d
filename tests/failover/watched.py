"""Load on three machines while something happens to them, judged when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.engine.servers import PATIENCE_S
from tests.failover.clients import Consumer, History, Publisher, declare, left_in
from tests.failover.judge import judge
from tests.failover.sites import Sites
from tests.waiting import wait_until

# Clients that hear nothing so long try another address.
SILENCE_S: Final = 4.0


class Watched:
    """One queue with a publisher and two consumers, of which one is active."""

    def __init__(self, sites: Sites, queue: str, *, silence_s: float, size_bytes: int) -> None:
        urls = {each.name: each.url for each in sites.brokers}
        self.sites = sites
        self.queue = queue
        self.history = History()
        self.publisher = Publisher(
            urls, self.history, queue, silence_s=silence_s, size_bytes=size_bytes
        )
        self._consumers = [Consumer(urls, self.history, queue) for _ in range(2)]
        self.epoch = sites.epoch()
        declare(sites.wait_for_leader().url, queue, {"x-single-active-consumer": True})

    def start(self) -> None:
        """Begin, and wait until it goes."""
        for each in (self.publisher, *self._consumers):
            each.start()
        self.publisher.wait(50)

    def end(self) -> None:
        """Finish; a broker that no longer leads must have said so."""
        for each in (self.publisher, *self._consumers):
            each.end()

    def abandon(self) -> None:
        """Finish whatever waits for an answer."""
        for each in (self.publisher, *self._consumers):
            each.abandon()

    def judge(self) -> None:
        """Nothing is lost, nothing came back, marks and order are right."""
        leader = self.sites.wait_for_leader()
        left = left_in(leader.url, self.queue)
        wrong = judge(self.history, left, is_single=True) + self.sites.complaints()
        assert wrong == [], wrong

    def goes_on(self, *, claims: int) -> None:
        """It is served again, after so many claims since the start; more where that is some.

        On a busy machine a leader may be silent for long enough to be replaced.
        """
        self.publisher.wait(50)
        made = self.sites.epoch() - self.epoch
        assert made == claims or made > claims > 0, f"{made} claims"


class Alarms:
    """The alarm of brokers that can commit nothing, from now on."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._known = self._counts()

    def _counts(self) -> tuple[int, int]:
        lines = [line for each in self._sites.brokers for line in each.output().splitlines()]
        told = [line for line in lines if '"resource": "replication"' in line]
        raised = sum('"alarm.raised"' in line for line in told)
        return raised, sum('"alarm.cleared"' in line for line in told)

    def wait_until_raised(self) -> None:
        """Publishers are blocked."""
        wait_until(lambda: self._counts()[0] > self._known[0], self._sites.evidence)

    def wait_until_cleared(self) -> None:
        """They are not any more."""
        wait_until(lambda: self._counts()[1] > self._known[1], self._sites.evidence)


@contextmanager
def watched(
    sites: Sites, queue: str, *, silence_s: float = PATIENCE_S, size_bytes: int = 100
) -> Iterator[Watched]:
    """Load, and the judgement when the block is over."""
    load = Watched(sites, queue, silence_s=silence_s, size_bytes=size_bytes)
    load.start()
    try:
        yield load
    except BaseException:
        load.abandon()
        raise
    load.end()
    load.judge()
