"""Publishers and consumers at full speed, as many and as fast as they like (LIMIT-29).

A small world of rounds: whoever may be read sends what its window allows, prompt consumers
acknowledge all that they have got, the broker turns and syncs. What is asserted are counts of
messages and rounds, and time is what the turns are said to take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import Client, World

LEAST = 64
TURN_S = 0.0005
WINDOWS = st.lists(st.integers(1, 150), min_size=1, max_size=6)
PREFETCHES = st.lists(st.integers(1, 60), min_size=1, max_size=6)


@dataclass
class Sender:
    """A publisher with so many unconfirmed messages at most."""

    client: Client
    window: int
    confirmed: int = 0
    sent: int = 0
    waits: int = 0  # rounds, in a row
    longest_wait: int = 0

    def send(self) -> None:
        """Publish what the window allows, if the broker reads it."""
        if self.client.paused:
            self.waits += 1
            self.longest_wait = max(self.longest_wait, self.waits)
            return
        self.waits = 0
        count = self.window - (self.sent - self.confirmed)
        self.sent += count
        self.client.send(*[wire.publish(1, "q", b"x", wire.persistent())] * count)

    def hear(self) -> None:
        for _, what in self.client.hear():
            assert isinstance(what, commands.Basic.Ack), what
            tag = what.delivery_tag or 0
            self.confirmed = tag if what.multiple else self.confirmed + 1


@dataclass
class Receiver:
    """A consumer that acknowledges at once, or never."""

    client: Client
    received: int = 0
    tags: list[int] = field(default_factory=list)

    def hear(self) -> None:
        tags = [tag for _, tag, _, _ in self.client.deliveries()]
        self.received += len(tags)
        self.tags += tags

    def acknowledge(self) -> None:
        if self.tags:
            self.client.send(wire.ack(1, self.tags[-1], multiple=True))
            self.tags.clear()


class Traffic:
    """Publishers with these windows, and consumers with these prefetches, of one queue."""

    def __init__(self, windows: list[int], prefetches: list[int]) -> None:
        self.world = World()
        self.senders = [Sender(self._client(), window) for window in windows]
        for sender in self.senders:
            sender.client.ask(1, commands.Confirm.Select())
        self.receivers = [Receiver(self._client()) for _ in prefetches]
        self.receivers[0].client.declare("q", durable=True)
        for number, (receiver, prefetch) in enumerate(zip(self.receivers, prefetches, strict=True)):
            receiver.client.qos(prefetch)
            receiver.client.consume("q", f"c{number}")
        self.queue = self.world.vhost.queues["q"]

    def _client(self) -> Client:
        client = self.world.connect()
        client.open()
        return client

    def round(self, *, is_prompt: bool = True) -> None:
        """Everybody once; then a turn that takes its time, with a sync behind it."""
        if is_prompt:
            for receiver in self.receivers:
                receiver.acknowledge()
        for sender in self.senders:
            sender.send()
        self.world.turn.later(self._work)
        self.world.sync()
        self.world.pass_time(0)
        for sender in self.senders:
            sender.hear()
        for receiver in self.receivers:
            receiver.hear()

    def _work(self) -> None:
        self.world.now += TURN_S


@settings(max_examples=30, deadline=None)
@given(windows=WINDOWS, prefetches=PREFETCHES)
@example(windows=[107, 28, 72, 24], prefetches=[6, 30, 43, 46])
@example(windows=[1, 48, 48, 111, 33], prefetches=[16, 28, 29, 39, 58])
@example(windows=[108, 105], prefetches=[42, 35, 24, 30, 10])
def test_backlog_before_prompt_consumers_is_bounded_and_no_publisher_starves(
    windows: list[int], prefetches: list[int]
) -> None:
    traffic = Traffic(windows, prefetches)
    credit = sum(prefetches)
    mark = max(LEAST, credit // 2)
    rounds = 60
    backlogs: list[int] = []
    received: list[int] = []
    for number in range(rounds):
        before = sum(receiver.received for receiver in traffic.receivers)
        traffic.round()
        backlogs.append(traffic.queue.ready_count)
        # In the first two rounds publishers and consumers begin.
        if number >= 2:
            received.append(sum(receiver.received for receiver in traffic.receivers) - before)
    # All may bring their windows to pass the mark, and once more before they wait.
    most = mark + 2 * sum(windows)
    assert max(backlogs) <= most
    # Consumers hardly idle. Publishers go on when less than half of what consumers hold is ready:
    # then a round may find less than consumers could take, but the next one does not.
    full = min(credit, sum(windows))
    assert all(count >= min(full, mark) for count in received)
    assert not any(here < full and there < full for here, there in pairwise(received))
    # Whoever waits has its turn when consumers have taken twice what all have brought.
    patience = 2 + 2 * (most + sum(windows)) // credit
    assert max(sender.longest_wait for sender in traffic.senders) <= patience
    for sender in traffic.senders:
        assert sender.sent >= sender.window * (rounds // (patience + 1))


@settings(max_examples=15, deadline=None)
@given(windows=WINDOWS, prefetches=PREFETCHES)
def test_nobody_waits_for_consumers_that_acknowledge_nothing(
    windows: list[int], prefetches: list[int]
) -> None:
    traffic = Traffic(windows, prefetches)
    for _ in range(20):
        traffic.round(is_prompt=False)
        for _ in range(10):
            traffic.world.pass_time(0.001)
    for sender in traffic.senders:
        sender.hear()
        assert sender.longest_wait <= 1
        assert sender.confirmed == sender.sent >= 10 * sender.window
