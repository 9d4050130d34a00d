"""A broker with every feature in use starts from damaged files, whatever the damage took.

Definitions, notes, times, keys and delivery marks may be gone as well as messages. Nothing that
is left may keep the rest from being served. Spec: DURABLE-14
"""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from tests.simulation import crashes
from tests.simulation.feature_listing import messages_of
from tests.simulation.feature_queues import OpenBooks, watched_queues
from tests.simulation.feature_world import FeatureWorld
from tests.simulation.history import quiet_logs, small_pages, step
from tests.simulation.sim_disk import PowerCut, SimDisk
from tests.unit.store.journals import corrupt, segments_on
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.runtime.runtime import BrokerRuntime
from vouchmq.store.errors import ReadFailed
from vouchmq.store.sync.worker import SyncInline

SEEDS_AT_ONCE = 10
SPOILT_PER_WORLD = 4


def lived(seed: int, bugs: list[BaseException], draw: random.Random) -> FeatureWorld:
    """A broker that has seen some things, and has come to rest."""
    world = FeatureWorld(seed, bugs, crash_rate=0)
    for _ in range(draw.choice((40, 120, 250))):
        try:
            step(world)
        except PowerCut:
            world.crash(is_cut=True)
    world.disk.crash_after = None
    world.settle_down()
    world.disk.watcher = None
    # Nobody keeps books of what follows.
    OpenBooks.books = None
    return world


def hit(disk: SimDisk, draw: random.Random) -> str:
    """Change an octet or a few where something is written."""
    name = draw.choice(segments_on(disk))
    used = len(bytes(disk.visible[name].visible).rstrip(b"\0"))
    at = draw.randrange(used)
    size = min(draw.choice((1, 1, 8, 300)), used - at)
    corrupt(disk, name, at, size)
    return f"{size} octets at {at} of {name}"


def read_all(runtime: BrokerRuntime) -> None:
    """Look at every message, also at those that are paged."""
    for queue in runtime.broker.vhosts["/"].every_queue():
        assert list(messages_of(queue)) is not None
        for line in queue.lines if isinstance(queue, ClassicQueue) else ():
            while line.refill(at_once=True) and line.ready:
                line.ready.clear()


def serve(world: FeatureWorld, disk: SimDisk) -> bool:
    """Start, again where a start comes upon damage in what it need not read; was damage told?"""
    is_told = False
    for _ in range(len(segments_on(disk)) + 1):
        runtime: BrokerRuntime | None = None
        try:
            runtime = world.assemble(disk, SyncInline(), world.new_loop())
            is_told |= bool(runtime.report.damaged)
            read_all(runtime)
        except ReadFailed:
            assert runtime is None or runtime.report.unread_segments
        else:
            return is_told
        finally:
            if runtime is not None:
                runtime.close()
            disk.kill()
    raise AssertionError("segments that were found damaged are still believed")


def check(seed: int) -> int:
    """Spoil copies of one broker's disk; returns how often that was damage."""
    bugs: list[BaseException] = []
    draw = random.Random(seed)
    told = 0
    with quiet_logs(bugs), ExitStack() as around:
        around.enter_context(watched_queues())
        if seed % 2:
            around.enter_context(small_pages())
        world = lived(seed, bugs, draw)
        for _ in range(SPOILT_PER_WORLD):
            disk = crashes.fork(world.disk)
            disk.kill()
            what = hit(disk, draw)
            told += serve(world, disk)
            assert not bugs, (what, bugs)
            assert not serve(world, disk), f"told twice: {what}"
    return told


@pytest.mark.parametrize("first", range(0, 40, SEEDS_AT_ONCE))
def test_a_broker_starts_whatever_the_damage_took(first: int) -> None:
    told = sum(check(seed) for seed in range(first, first + SEEDS_AT_ONCE))
    assert told > SEEDS_AT_ONCE
