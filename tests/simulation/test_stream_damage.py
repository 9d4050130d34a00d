"""What damage leaves of a stream keeps its offsets, wherever the damage is.

Brokers with streams and busy plain queues live a while: segments are emptied, retention takes the
oldest, the disk refuses, the power fails. Then octets of their journals are others. Every message
that a start still finds has the offset that it had, also after more starts and more damage, and new
messages get offsets behind all that are there. Spec: STREAM-02
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from pamqp import commands

from tests import wire
from tests.simulation import crashes
from tests.simulation.history import quiet_logs
from tests.simulation.sim_disk import SimDisk
from tests.unit.server.in_memory import Client
from tests.unit.server.on_disk import DiskWorld
from tests.unit.store.journals import corrupt, segments_on
from vouchmq.server.broker.streams.stream import Stream
from vouchmq.server.settings.settings import Settings
from vouchmq.store.errors import ReadFailed, UnsupportedFormat

SEEDS_AT_ONCE = 5
STREAMS = ("s", "t")
PERSISTENT = commands.Basic.Properties(delivery_mode=2)

Offsets = dict[tuple[str, int], int]


class Life:
    """One broker on a disk, and who publishes to it."""

    def __init__(self, draw: random.Random, settings: Settings) -> None:
        self.draw = draw
        self.world = DiskWorld(settings=settings)
        # Also of what retention has taken: damage may bring it back.
        self.known: Offsets = {}
        self.client = self.connect()
        limits = draw.choice(({}, {"x-max-length": 400}, {"x-max-length-bytes": 40_000}))
        for name in STREAMS:
            table = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 9000, **limits}
            self.declare(name, table)
        self.declare("plain", {})

    def connect(self) -> Client:
        client = self.world.connect()
        client.open()
        client.qos(0)
        return client

    def declare(self, name: str, table: dict[str, object]) -> None:
        declare = commands.Queue.Declare(queue=name, durable=True, arguments=table)  # type: ignore[arg-type]
        self.client.ask(1, declare)

    def step(self) -> None:
        draw = self.draw
        for _ in range(draw.choice((1, 1, 3))):
            name = draw.choice((*STREAMS, "plain", "plain"))
            body = draw.randbytes(draw.choice((10, 100, 1500)))
            count = draw.choice((1, 1, 2, 9))
            self.client.send(*[wire.publish(1, name, body, PERSISTENT)] * count)
        deed = draw.random()
        if deed < 0.02:
            self.world.disk.fail_next("write", errno.ENOSPC)
        self.world.sync()
        if deed > 0.8:
            # Segments become sparse, and are emptied.
            self.client.method(1, commands.Queue.Purge(queue="plain", nowait=True))
            self.world.sync()
            self.world.check()
        if 0.02 < deed < 0.04:
            self.world = self.world.after_power_cut(draw.randrange(1000))
            self.client = self.connect()
            self.known = still_true(self.known, self.world)
        self.known |= offsets_of(self.world)


def still_true(known: Offsets, world: DiskWorld) -> Offsets:
    """LSNs that a crash or damage took at the end are given to others."""
    lsn = world.runtime.journal.next_lsn
    return {key: offset for key, offset in known.items() if key[1] < lsn}


def streams_of(world: DiskWorld) -> Iterator[tuple[str, Stream]]:
    for name in STREAMS:
        stream: object = world.vhost.queues.get(name)
        if isinstance(stream, Stream):
            yield name, stream


def offsets_of(world: DiskWorld) -> Offsets:
    """The offset of each message, which is known by its stream and LSN."""
    found: Offsets = {}
    for name, stream in streams_of(world):
        for chunk in stream.index.chunks:
            lsns = chunk.rows.take(0, chunk.rows.count)
            found |= {(name, lsn): chunk.first_offset + n for n, lsn in enumerate(lsns)}
    return found


def start(disk: SimDisk, settings: Settings) -> DiskWorld:
    """Start until all that is left can be read."""
    for _ in range(len(segments_on(disk)) + 1):
        with suppress(ReadFailed):
            world = DiskWorld(disk, settings=settings)
            read_all(world)
            if not world.fatal:
                return world
        disk.kill()
    raise AssertionError("segments that were found damaged are still believed")


def read_all(world: DiskWorld) -> None:
    """Look at every message, of which a start may have read summaries only."""
    for _, stream in streams_of(world):
        for chunk in stream.index.chunks:
            lsns = chunk.rows.take(0, chunk.rows.count)
            while lsns:
                lsns = lsns[len(world.runtime.journal.fetch(lsns, 1 << 16)) :]


def go_on(world: DiskWorld, draw: random.Random) -> None:
    """Publish to what is left of the streams."""
    client = world.connect()
    client.open()
    for name, _ in streams_of(world):
        client.send(*[wire.publish(1, name, b"new", PERSISTENT)] * draw.choice((1, 5)))
    world.sync()


def hit(disk: SimDisk, draw: random.Random) -> None:
    name = draw.choice(segments_on(disk))
    used = len(bytes(disk.visible[name].visible).rstrip(b"\0"))
    if used:
        at = draw.randrange(used)
        corrupt(disk, name, at, min(draw.choice((1, 8, 300, 3000)), used - at))


def check(seed: int) -> int:
    """Live, be damaged again and again; returns how many messages were lost in a stream's midst."""
    draw = random.Random(seed)
    settings = Settings(
        segment_size_bytes=draw.choice((16384, 65536)),
        disk_free_limit="0",
        recovery_read_bytes=draw.choice((1, 20_000, 1 << 20)),
    )
    life = Life(draw, settings)
    for _ in range(draw.choice((30, 100, 250))):
        life.step()
    disk, holes = life.world.disk, 0
    known = life.known
    for _ in range(3):
        disk.kill()
        disk = crashes.fork(disk)
        for _ in range(draw.choice((1, 2, 4))):
            hit(disk, draw)
        try:
            world = start(disk, settings)
        except UnsupportedFormat:
            # Not one block of that segment is left, and its first octets tell of another version.
            return holes
        found = offsets_of(world)
        assert found.items() <= known.items()
        for name, _ in streams_of(world):
            old = [offset for (stream, _), offset in known.items() if stream == name]
            new = [offset for (stream, _), offset in found.items() if stream == name]
            holes += bool(new) and len([o for o in old if min(new) < o < max(new)]) - len(new) + 2
            assert len({*new}) == len(new)
        for name, stream in streams_of(world):
            # What damage has taken is not counted (STREAM-02).
            assert stream.ready_count == sum(each == name for each, _ in found)
        known = still_true(known, world)
        go_on(world, draw)
        known |= offsets_of(world)
        assert found.items() <= known.items()
    return holes


@pytest.mark.parametrize("first", range(0, 20, SEEDS_AT_ONCE))
def test_what_damage_leaves_of_a_stream_keeps_its_offsets(first: int) -> None:
    with quiet_logs([]):
        assert sum(check(seed) for seed in range(first, first + SEEDS_AT_ONCE)) > 0
