"""A long history, then each way of reading, counted in steps of the store rather than in seconds.

Four kinds of publishers and a consumer, compaction all the time, kills: what is kept has been moved
again and again by then. The same directory is compacted once more, as much as there is to it. Each
way of reading takes no more before than after, and no turn more than it may.

Spec: LIMIT-23, DURABLE-15
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pamqp import commands

from tests import wire
from tests.simulation.sim_disk import SimDisk
from tests.unit.server.admin.operating import begun
from tests.unit.server.in_memory import SETTINGS, Client, World
from vouchmq.server.broker.paging.paged_store import FETCH_STEPS
from vouchmq.server.broker.paging.pager import TURN_READS
from vouchmq.store.compaction import victim
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.compaction.victim import VictimSelector
from vouchmq.store.reading.reader import BLOCK_STEPS, Contents, Reader

# What is begun with one step left may take a whole read, and a get or a head that is looked at
# takes one in any case.
MOST_STEPS_A_TURN = TURN_READS + 2 * FETCH_STEPS
QUEUES: dict[str, Any] = {
    "classic": {},
    "dead": {},
    "quorum": {"x-queue-type": "quorum"},
    "stream": {"x-queue-type": "stream", "x-max-length-bytes": 10_000_000},
    "mortal": {
        "x-message-ttl": 100_000_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    },
}
MOST_TURNS = 2000
SLACK_SHARE = 1.5
SLACK_STEPS = 500


@dataclass
class Steps:
    """What something took of the store: in all, and in its longest turn."""

    total: int = 0
    longest: int = 0


class History:
    """Four kinds of publishers and a consumer, on a disk that stays when the broker is killed."""

    def __init__(self, seed: int, segment_bytes: int) -> None:
        self.draw = random.Random(seed)
        self.settings = replace(SETTINGS, segment_size_bytes=segment_bytes)
        self.disk = SimDisk(seed)
        self.moved = 0
        self.start()
        for name, arguments in QUEUES.items():
            asking = commands.Queue.Declare(queue=name, durable=True, arguments=arguments)
            self.client.ask(1, asking)

    def start(self) -> None:
        """Open what is on the disk; whoever was connected is gone."""
        self.world = World(self.settings, disk=self.disk)
        self.client = self.world.connect()
        self.client.open(1)
        self.client.open(2)
        self.client.ask(2, commands.Tx.Select())

    def compactor(self) -> Compactor:
        """Of the broker that runs now."""
        steps = self.world.runtime.compaction_scheduler._steps
        assert isinstance(steps, Compactor)
        return steps

    def kill(self) -> None:
        """End the broker where it is."""
        self.moved += self.compactor().counters.moved_messages
        self.start()

    def _bodies(self, most: int) -> list[bytes]:
        return [bytes(self.draw.randint(50, 400)) for _ in range(self.draw.randint(1, most))]

    def turn(self) -> None:
        """A turn of the broker: some of everything, of which most is gone soon."""
        properties = commands.Basic.Properties(delivery_mode=2)
        client = self.client
        for queue, most in (("classic", 8), ("quorum", 1), ("stream", 2), ("mortal", 1)):
            if self.draw.random() < 0.5:
                for body in self._bodies(most):
                    client.send(wire.publish(1, queue, body, properties))
        if self.draw.random() < 0.1:
            for queue in ("classic", "quorum"):
                for body in self._bodies(2):
                    client.send(wire.publish(2, queue, body, properties))
            client.method(2, commands.Tx.Commit())
        for _ in range(6):
            client.method(1, commands.Basic.Get(queue="classic", no_ack=True))
        if self.draw.random() < 0.3:
            client.method(1, commands.Basic.Get(queue="quorum", no_ack=True))
        self.compactor().step(16 * 1024)
        self.world.sync()
        client.octets.clear()


@contextmanager
def counted(world: World) -> Iterator[Steps]:
    """Count the steps that the block takes, turn by turn."""
    steps = Steps()
    journal = world.journal
    before = last = journal.read_steps
    run = world.turn.run

    def run_counted() -> None:
        nonlocal last
        run()
        steps.longest = max(steps.longest, journal.read_steps - last)
        last = journal.read_steps

    call_soon = world.turn._call_soon
    world.turn._call_soon = lambda job: call_soon(run_counted if job == run else job)
    try:
        yield steps
        turns = 0
        while world.scheduled and turns < MOST_TURNS:
            world.run_turn()
            turns += 1
        world.sync()
    finally:
        world.turn._call_soon = call_soon
    steps.longest = max(steps.longest, journal.read_steps - last)
    steps.total = journal.read_steps - before


def get(client: Client) -> None:
    client.method(1, commands.Basic.Get(queue="quorum", no_ack=False))


def prefetched(client: Client) -> None:
    client.qos(300)
    client.method(1, commands.Basic.Consume(queue="quorum", consumer_tag="q"))


def stream_from_first(client: Client) -> None:
    client.qos(1000)
    consume = commands.Basic.Consume(
        queue="stream", consumer_tag="s", arguments={"x-stream-offset": "first"}
    )
    client.method(1, consume)


def dead_letters(client: Client) -> None:
    client.world.now += 200_000
    client.method(1, commands.Basic.Consume(queue="mortal", consumer_tag="m"))


def peeked(client: Client) -> None:
    begun(client.world, "peek", name="quorum", count=200)


def moved(client: Client) -> None:
    begun(client.world, "move", name="quorum", to_queue="dead", count=200)


WAYS: tuple[Callable[[Client], None], ...] = (
    get,
    prefetched,
    stream_from_first,
    dead_letters,
    peeked,
    moved,
)


def taken(history: History, disk: SimDisk) -> dict[str, Steps]:
    """Each way of reading on a broker of its own."""
    found: dict[str, Steps] = {}
    for way in WAYS:
        # Nothing is compacted meanwhile, as no timer rings.
        world = World(history.settings, disk=deepcopy(disk), now=history.world.now)
        client = world.connect()
        client.open()
        with counted(world) as steps:
            way(client)
        assert steps.total, way.__name__
        found[way.__name__] = steps
    return found


def lived(turns: int, segment_bytes: int) -> History:
    """A history with six kills, after which what is kept has been moved several times."""
    history = History(turns, segment_bytes)
    for number in range(turns):
        history.turn()
        if number % (turns // 6) == turns // 6 - 1:
            history.kill()
    kept = history.world.vhost.queues["quorum"].ready_count
    assert kept > turns // 4
    assert history.moved > 2 * kept, "compaction had too little to do"
    return history


def compact(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty every segment that has anything dead in it."""
    monkeypatch.setattr(victim, "_MOST_NEEDED", 0.98)
    monkeypatch.setattr(VictimSelector, "_guess", staticmethod(lambda _: 0.0))
    history.world = World(history.settings, disk=history.disk, now=history.world.now)
    compactor = history.compactor()
    for _ in range(50_000):
        goes_on = compactor.step(16 * 1024)
        history.world.sync()
        if not goes_on:
            break
    assert compactor.counters.moved_messages, "there was nothing to compact"


def check(before: dict[str, Steps], after: dict[str, Steps]) -> None:
    """No way takes more than in the directory that was compacted, and no turn more than it may."""
    for name, steps in before.items():
        assert steps.total <= SLACK_SHARE * after[name].total + SLACK_STEPS, name
        assert steps.longest <= MOST_STEPS_A_TURN, name


@pytest.mark.parametrize(
    ("turns", "segment_bytes"),
    [
        pytest.param(1200, 32 * 1024, id="short"),
        pytest.param(12_000, 128 * 1024, id="long", marks=pytest.mark.slow),
    ],
)
def test_a_long_history_makes_nothing_slower(
    turns: int, segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = lived(turns, segment_bytes)
    before = taken(history, history.disk)
    compact(history, monkeypatch)
    check(before, taken(history, history.disk))


def test_it_finds_a_look_up_that_tries_block_after_block(monkeypatch: pytest.MonkeyPatch) -> None:
    find_moved = Reader._find_moved

    def try_all(reader: Reader, lsn: int) -> Contents:
        for segment in reader._index._segments:
            _, _, moves = segment.rows()
            reader.steps += BLOCK_STEPS * len(set(moves[2::3]))
        return find_moved(reader, lsn)

    history = lived(1200, 32 * 1024)
    disk = deepcopy(history.disk)
    compact(history, monkeypatch)
    after = taken(history, history.disk)
    monkeypatch.setattr(Reader, "_find_moved", try_all)
    # So many steps that a way takes too many of them, or too many turns.
    with pytest.raises(AssertionError):
        check(taken(history, disk), after)
