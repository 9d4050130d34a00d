"""Outstanding deliveries against a dict: every order of acks, nacks and rollbacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.server.queues import silent_channel
from vouchmq.server.broker.message import Message
from vouchmq.server.broker.queues.api import Queue
from vouchmq.server.channel.consumer import Consumer, Credit
from vouchmq.server.channel.unacked import Unacked, UnackedBatch

QUEUES = [cast("Queue", SimpleNamespace(name=name)) for name in "qr"]
CONSUMERS = [
    Consumer(
        silent_channel(),
        QUEUES[0],
        name,
        no_ack=False,
        priority=0,
        credit=Credit(),
    )
    for name in "ab"
]
OWNERS: list[tuple[Consumer | None, Queue]] = [
    (CONSUMERS[0], QUEUES[0]),
    (CONSUMERS[0], QUEUES[0]),
    (CONSUMERS[1], QUEUES[1]),
    (None, QUEUES[0]),
    (None, QUEUES[1]),
]
Entry = tuple[Message, "Consumer | None", Queue, int]


class UnackedMachine(RuleBasedStateMachine):
    """A dict from tag to delivery says what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.unacked = Unacked()
        self.model: dict[int, Entry] = {}
        self.held: list[UnackedBatch] = []
        self.next_tag = 1

    @rule(
        count=st.one_of(st.integers(1, 5), st.just(300)),
        owner=st.sampled_from(OWNERS),
        skipped=st.sampled_from([0, 0, 0, 1]),
        since_ms=st.sampled_from([0, 1, 1, 2]),
    )
    def deliver(
        self, count: int, owner: tuple[Consumer | None, Queue], skipped: int, since_ms: int
    ) -> None:
        first = self.next_tag + skipped  # a no-ack delivery uses a tag, too
        messages: list[Message] = [(b"", b"", tag, 0) for tag in range(first, first + count)]
        self.unacked.add(first, messages, *owner, since_ms)
        self.model |= {message[2]: (message, *owner, since_ms) for message in messages}
        self.next_tag = first + count

    def near(self, place: float) -> int:
        """A tag, outstanding or not, over the whole span."""
        low = min(self.model, default=1)
        return max(0, low - 1 + round(place * (self.next_tag - low + 2)))

    @rule(place=st.floats(0, 1), length=st.integers(1, 12))
    def ack_range(self, place: float, length: int) -> None:
        first = self.near(place)
        last = first + length - 1
        expected: list[int] = []
        while first + len(expected) <= last and first + len(expected) in self.model:
            expected.append(first + len(expected))
        taken, unknown = self.unacked.take_range(first, last)
        stopped = first + len(expected)
        assert unknown == (0 if stopped > last else stopped)
        self.check(taken, expected)

    @rule(place=st.floats(0, 1))
    def ack_up_to(self, place: float) -> None:
        tag = self.near(place)
        taken = self.unacked.take_up_to(tag)
        if tag not in self.model:
            assert taken is None
        else:
            assert taken is not None
            self.check(taken, sorted(each for each in self.model if each <= tag))

    @rule(place=st.floats(0, 1), work=st.integers(1, 60))
    def ack_up_to_in_pieces(self, place: float, work: int) -> None:
        tag = self.near(place)
        assert self.unacked.is_outstanding(tag) == (tag in self.model)
        assert self.unacked.last_tag == max(self.model, default=0)
        if tag not in self.model:
            return
        expected = sorted(each for each in self.model if each <= tag)
        taken: list[UnackedBatch] = []
        while some := self.unacked.take_first(tag, work):
            taken += some
        self.check(taken, expected)

    @rule(keep=st.booleans())
    def ack_all(self, keep: bool) -> None:
        taken = self.unacked.take_all()
        expected = sorted(self.model)
        if keep:
            self.unacked.restore(taken)
        else:
            self.check(taken, expected)

    @rule(consumer=st.sampled_from(CONSUMERS))
    def take_of(self, consumer: Consumer) -> None:
        mine = sorted(tag for tag, entry in self.model.items() if entry[1] is consumer)
        self.check(self.unacked.take_of(consumer), mine)

    @rule()
    def roll_back(self) -> None:
        self.unacked.restore(self.held)
        for entry in self.held:
            for tag, message in zip(entry.tags, entry.messages, strict=True):
                self.model[tag] = (message, entry.consumer, entry.queue, entry.since_ms)
        self.held = []

    @rule()
    def commit(self) -> None:
        self.held = []

    def check(self, taken: list[UnackedBatch], expected: list[int]) -> None:
        """What was taken is what the model says, in order, each with its own owner."""
        found = [
            (tag, (message, entry.consumer, entry.queue, entry.since_ms))
            for entry in taken
            for tag, message in zip(entry.tags, entry.messages, strict=True)
        ]
        assert found == [(tag, self.model.pop(tag)) for tag in expected]
        self.held += taken

    @invariant()
    def nothing_else_is_there(self) -> None:
        live = [
            (tag, (message, entry.consumer, entry.queue, entry.since_ms))
            for entry in self.unacked.live()
            for tag, message in zip(entry.tags, entry.messages, strict=True)
        ]
        assert live == sorted(self.model.items(), key=lambda item: item[0])
        assert self.unacked.count == len(self.model)


UnackedMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestUnacked = UnackedMachine.TestCase
