"""However publishers and consumers behave, the disk holds at most twice what lives and three
segments once it has come to that."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from tests.simulation.sim_disk import SimDisk
from vouchmq.server.broker.events import EventBus
from vouchmq.server.runtime.alarms import Alarms
from vouchmq.server.runtime.compaction_scheduler import CompactionScheduler
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.journal.journal import Journal
from vouchmq.store.recovery.recover import open_journal
from vouchmq.store.sync.group_commit import GroupCommit
from vouchmq.store.sync.worker import SyncInline

SEGMENT = 256 * 1024
TICK_S = 0.002
# What a bit of compaction takes by this clock: several times what it does on a machine.
BIT_S = 100e-6
ROOM = 1 << 40


class Load:
    """A journal with upkeep, on a clock that goes on when compaction looks at it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.disk = SimDisk()
        self.journal: Journal = open_journal(
            self.disk, segment_size_bytes=SEGMENT, wall_ms=lambda: 0
        )[0]
        self.commit = GroupCommit(
            self.journal,
            SyncInline(),
            on_synced=lambda _: None,
            on_failed=lambda _: None,
            clock=lambda: 0.0,
        )
        self.now = 0.0
        self.count = 0
        self._jobs: list[tuple[float, Callable[[], None]]] = []
        alarms = Alarms(0, 0, lambda job: job(), EventBus())
        alarms.read(0, ROOM)
        self.compaction_scheduler = CompactionScheduler(
            Compactor(self.journal, self._segment_corrupt, self._clock),
            self.journal.chain,
            alarms,
            self,
            clock=lambda: self.now,
            later=lambda pause_s, job: self._jobs.append((self.now + pause_s, job)),
            is_refused=lambda: False,
            segment_octets=SEGMENT,
        )
        self.live: deque[int] = deque()
        self.body = bytes(1000)

    def _clock(self) -> float:
        self.now += BIT_S
        return self.now

    @staticmethod
    def _segment_corrupt(name: str, reason: str) -> None:
        raise AssertionError(f"{name}: {reason}")

    def wake(self) -> None:
        self.count += 1
        self.write()

    def write(self) -> None:
        generation = self.journal.chain.tail_generation
        self.journal.write()
        if self.journal.chain.tail_generation != generation:
            self.compaction_scheduler.look()
        if self.journal.wants_sync:
            self.commit.request()
            while not self.commit.is_idle:
                self.commit.on_readable()

    def tick(self, published: int, kept: int) -> None:
        """Publish so many messages, then settle by chance until so many are left."""
        for _ in range(published):
            self.live.append(self.journal.append_run((1,), b"", [self.body]))
        while len(self.live) > kept:
            self.live.rotate(self.draw.randrange(len(self.live)))
            self.journal.settle(1, [self.live.popleft()])
        self.count += 1
        self.write()
        self.now += TICK_S
        jobs, self._jobs = self._jobs, []
        for at, job in jobs:
            if at <= self.now:
                job()
            else:
                self._jobs.append((at, job))

    @property
    def used(self) -> int:
        return sum(len(self.disk.visible[name].visible) for name in self.disk.listdir())

    @property
    def bound(self) -> int:
        return 2 * len(self.live) * 1040 + 3 * SEGMENT


@pytest.mark.parametrize("kept", [3, 400, 2000])
@pytest.mark.parametrize("published", [4, 40])
def test_the_disk_stays_within_its_bound_under_load(published: int, kept: int) -> None:
    load = Load(published * kept)
    ticks = max(300, 4 * (kept + 2000) // published)
    over = 0
    for at in range(ticks):
        load.tick(published, kept)
        if at % 100 == 0:
            load.compaction_scheduler.look()
        over += at > ticks // 2 and load.used > load.bound
    assert over <= 0.02 * ticks
    for _ in range(2000):
        load.tick(0, kept)
        load.compaction_scheduler.look()
    assert load.used <= load.bound
