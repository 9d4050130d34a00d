"""Streams at random: publishers, readers, retention, full disks and power cuts in any order.

What readers have seen is held against what was published: an offset stands for one message for
good, nothing confirmed is missing unless retention took it, and each reader sees ascending
offsets without gaps, but for what retention took ahead of it.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field

import pytest
from pamqp import commands

import vouchmq.server.broker.streams.stream
from tests import wire
from tests.unit.server.in_memory import Client, confirms
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.broker.streams.stream import Stream

STEPS = 60


@dataclass
class Follower:
    """A consumer, and what it saw."""

    client: Client
    next_offset: int | None = None
    tags: list[int] = field(default_factory=list)


class History:
    """One broker's lives."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.world = DiskWorld()
        self.number = 0
        self.confirmed: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.meaning: dict[int, bytes] = {}  # what an offset that was seen stands for
        self.is_limited = self.draw.random() < 0.5
        table: dict[str, object] = {"x-queue-type": "stream"}
        table["x-stream-max-segment-size-bytes"] = self.draw.choice((300, 3000))
        if self.is_limited:
            table["x-max-length"] = self.draw.choice((5, 40))
        self.begin()
        arguments = dict(table)
        self.publisher.ask(
            1,
            commands.Queue.Declare(queue="s", durable=True, arguments=arguments),  # type: ignore[arg-type]
        )
        self.publisher.declare("d", durable=True)

    def begin(self) -> None:
        """Connect what a restart has cut off."""
        self.publisher = self.world.connect()
        self.publisher.open()
        self.publisher.method(1, commands.Confirm.Select())
        self.publisher.hear()
        self.followers: list[Follower] = []

    @property
    def stream(self) -> Stream:
        stream = self.world.vhost.queues["s"]
        assert isinstance(stream, Stream)
        return stream

    def publish(self, *, refuse: bool = False) -> None:
        """Some messages, to the stream and to another queue in between."""
        bodies = []
        octets = []
        for _ in range(self.draw.randint(1, 12)):
            self.number += 1
            body = (b"%d." % self.number).ljust(self.draw.choice((0, 50, 300)), b"x")
            mode = commands.Basic.Properties(delivery_mode=self.draw.choice((1, 2)))
            octets.append(wire.publish(1, "s", body, mode))
            bodies.append(body)
        if self.draw.random() < 0.3:
            at = self.draw.randrange(len(octets))
            octets.insert(at, wire.publish(1, "d", b"d", wire.persistent()))
        if refuse:
            at = self.world.disk.calls["write"] + 1
            self.world.disk.fail[("write", at)] = errno.ENOSPC
        self.publisher.send(*octets)
        self.world.sync()
        verdicts = {name for name, _, _ in confirms(self.publisher.hear())}
        if refuse:
            assert verdicts == {"Basic.Nack"}
            self.refused.update(bodies)
            self.world.check()
        else:
            assert verdicts == {"Basic.Ack"}
            self.confirmed.update(bodies)

    def follow(self) -> None:
        """A reader from anywhere."""
        client = self.world.connect()
        client.open()
        client.qos(self.draw.choice((1, 3, 50)))
        end = self.stream.index.next_offset
        start = self.draw.choice(("first", "next", "last", -3, self.draw.randint(0, end + 3)))
        table = {"x-stream-offset": start}
        client.method(1, commands.Basic.Consume(queue="s", arguments=table))  # type: ignore[arg-type]
        self.followers.append(Follower(client))

    def look(self, follower: Follower) -> bool:
        """Hear what came and settle some of it; False when nothing came."""
        self.world.run_turns()
        came = [what for _, what in follower.client.hear() if isinstance(what, wire.Content)]
        for what in came:
            deliver = what.method
            assert isinstance(deliver, commands.Basic.Deliver)
            assert not deliver.redelivered
            follower.tags.append(deliver.delivery_tag or 0)
            offset = (what.properties.headers or {})["x-stream-offset"]
            assert isinstance(offset, int)
            assert what.body not in self.refused
            assert self.meaning.setdefault(offset, what.body) == what.body
            if follower.next_offset is not None and offset != follower.next_offset:
                assert self.is_limited
                assert offset > follower.next_offset
            follower.next_offset = offset + 1
        tags = [tag for tag in follower.tags if self.draw.random() < 0.7]
        follower.tags = [tag for tag in follower.tags if tag not in tags]
        self.draw.shuffle(tags)
        follower.client.send(*(wire.ack(1, tag) for tag in tags))
        return bool(came)

    def cut(self) -> None:
        """The power goes; what nobody was told to be safe may be gone."""
        self.world = self.world.after_power_cut(self.draw.randrange(1 << 30))
        assert not self.world.fatal
        self.begin()
        self.meaning = {
            offset: body for offset, body in self.meaning.items() if body in self.confirmed
        }

    def step(self) -> None:
        deed = self.draw.random()
        if deed < 0.55:
            self.publish()
        elif deed < 0.63:
            self.publish(refuse=True)
        elif deed < 0.75:
            self.follow()
        elif deed < 0.93 and self.followers:
            self.look(self.draw.choice(self.followers))
        elif deed < 0.96 and self.followers:
            gone = self.followers.pop(self.draw.randrange(len(self.followers)))
            gone.client.method(1, commands.Basic.Cancel(consumer_tag=""))
        elif deed < 0.98:
            self.world.runtime.pager.total += 1 << 62
            self.world.runtime.pager.run()
            self.world.runtime.pager.total -= 1 << 62
        else:
            self.cut()

    def check(self) -> None:
        """Everything confirmed that retention left is there, once, in the order of publishing."""
        reader = self.world.connect()
        reader.open()
        reader.qos(60_000)
        table = {"x-stream-offset": "first"}
        reader.method(1, commands.Basic.Consume(queue="s", arguments=table))  # type: ignore[arg-type]
        self.world.run_turns()
        seen: list[tuple[int, bytes]] = []
        for _, what in reader.hear():
            if isinstance(what, wire.Content):
                seen.append(((what.properties.headers or {})["x-stream-offset"], what.body))  # type: ignore[arg-type]
        index = self.stream.index
        assert [offset for offset, _ in seen] == list(range(index.first_offset, index.next_offset))
        numbers = [int(body.split(b".")[0]) for _, body in seen]
        assert numbers == sorted(set(numbers))
        for offset, body in seen:
            assert self.meaning.get(offset, body) == body
        left = self.confirmed if not self.is_limited else set()
        assert left <= {body for _, body in seen}
        if numbers and self.is_limited:
            recent = {body for body in self.confirmed if int(body.split(b".")[0]) >= numbers[0]}
            assert recent <= {body for _, body in seen}


@pytest.mark.parametrize("seed", range(24))
def test_offsets_mean_one_message_for_good(seed: int) -> None:
    """STREAM-02, STREAM-03, STREAM-15, STREAM-16, STREAM-21, STREAM-23, CONF-12."""
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.check()
    history.cut()
    history.check()


@pytest.mark.parametrize("seed", range(12))
def test_whoever_lags_goes_on_within_a_few_turns(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIMIT-23: a turn has room for some readers only, and they take turns."""
    draw = random.Random(seed)
    most, slice_size = draw.choice(((8, 2), (6, 3), (5, 5)))
    monkeypatch.setattr(vouchmq.server.broker.streams.stream, "TURN_MESSAGES", most)
    monkeypatch.setattr(vouchmq.server.broker.streams.stream, "SLICE_MESSAGES", slice_size)
    history = History(seed)
    history.is_limited = False
    declared = commands.Queue.Declare(
        queue="long", durable=True, arguments={"x-queue-type": "stream"}
    )
    history.publisher.ask(1, declared)
    bodies = [b"%d" % number for number in range(60)]
    history.publisher.send(*(wire.publish(1, "long", body, wire.persistent()) for body in bodies))
    history.world.sync()
    readers = [history.world.connect() for _ in range(draw.randint(3, 9))]
    for reader in readers:
        reader.open()
        reader.qos(1000)
    for reader in readers:
        table = {"x-stream-offset": "first"}
        reader.method(1, commands.Basic.Consume(queue="long", arguments=table))  # type: ignore[arg-type]
    seen: list[list[bytes]] = [[] for _ in readers]
    waits = [0] * len(readers)
    while history.world.scheduled:
        history.world.run_turn()
        for at, reader in enumerate(readers):
            octets, reader.octets = bytes(reader.octets), bytearray()
            came = [what.body for _, what in wire.hear(octets) if isinstance(what, wire.Content)]
            waits[at] = 0 if came or len(seen[at]) == len(bodies) else waits[at] + 1
            seen[at] += came
            # Who has consumed, but was not dispatched yet, has waited for one turn more.
            assert waits[at] <= len(readers) + 1, [len(each) for each in seen]
    assert seen == [bodies] * len(readers)
