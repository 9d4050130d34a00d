"""A queue and a model of it, driven side by side."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.server.queues import FakeConsumer, Shared, Stage
from vouchmq.server.broker.message import Message
from vouchmq.server.broker.queues import ready_list, requeued
from vouchmq.server.broker.queues.settlement import Outcome

places = st.floats(0, 0.999)


class QueueMachine(RuleBasedStateMachine):
    """The model deals message by message; the queue deals in batches."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.patch = pytest.MonkeyPatch()
        self.ready: list[int] = []
        self.served_order: list[FakeConsumer] = []  # longest not served first
        self.unacked: dict[int, tuple[Message, FakeConsumer | None]] = {}
        self.delivered: set[int] = set()
        self.stored: set[int] = set()
        self.ever_stored: set[int] = set()
        self.marked: set[int] = set()
        self.shared = Shared(3)
        self.kinds = ["plain"]
        self.consumer_number = 0

    def teardown(self) -> None:
        self.patch.undo()

    # The model

    def next_consumer(self) -> FakeConsumer | None:
        """CONS-10, CONS-20: highest priority with room, then longest not served."""
        able = [consumer for consumer in self.served_order if self.room(consumer) > 0]
        assert all(consumer.capacity(b"") > 0 for consumer in able)
        return max(able, key=lambda consumer: consumer.priority, default=None)

    def room(self, consumer: FakeConsumer) -> int:
        rooms = [consumer.left, consumer.shared.left if consumer.shared else None]
        return min((room for room in rooms if room is not None), default=1 << 30)

    def deal(self) -> dict[str, list[tuple[int, bool]]]:
        """What every outlet must be served by a dispatch."""
        lefts = {consumer.name: consumer.left for consumer in self.served_order}
        shared_left = self.shared.left
        dealt: dict[str, list[tuple[int, bool]]] = {name: [] for name in lefts}
        while self.ready and (consumer := self.next_consumer()) is not None:
            seq = self.ready.pop(0)
            dealt[consumer.name].append((seq, seq in self.delivered))
            self.served_order.remove(consumer)
            self.served_order.append(consumer)
            if consumer.left is not None:
                consumer.left -= 1
            if consumer.shared is not None and consumer.shared.left is not None:
                consumer.shared.left -= 1
        for consumer in self.served_order:
            consumer.left = lefts[consumer.name]
        self.shared.left = shared_left
        return dealt

    # What happens

    @initialize(
        kinds=st.sampled_from(
            [["plain"], ["no_ack"], ["shared"], ["plain", "no_ack"], ["plain", "shared", "no_ack"]]
        ),
        rooms=st.lists(st.sampled_from([None, None, 1, 2, 5]), max_size=4),
        piece=st.sampled_from([1, 2, 3, ready_list.PIECE_MESSAGES]),
        stride=st.sampled_from([1, 2, requeued.FIRST_STRIDE]),
        few=st.sampled_from([(0, 1), (2, 2), (ready_list.FEW_MESSAGES, ready_list.NEAR)]),
    )
    def begin(
        self,
        kinds: list[str],
        rooms: list[int | None],
        piece: int,
        stride: int,
        few: tuple[int, int],
    ) -> None:
        """Some bugs show only among several consumers, or consumers of one kind.

        What comes back is merged in small pieces, too, or there would never be more than one.
        """
        self.patch.setattr(ready_list, "PIECE_MESSAGES", piece)
        self.patch.setattr(requeued, "FIRST_STRIDE", stride)
        self.patch.setattr(ready_list, "FEW_MESSAGES", few[0])
        self.patch.setattr(ready_list, "NEAR", few[1])
        self.kinds = kinds
        for number, left in enumerate(rooms):
            self.consume(left, 0, number / len(rooms))

    @rule(count=st.integers(1, 9), stored=st.booleans())
    def publish(self, count: int, stored: bool) -> None:
        seqs = self.stage.enqueue(count, stored=stored)
        self.ready += seqs
        if stored:
            self.stored |= set(seqs)
            self.ever_stored |= set(seqs)

    @precondition(lambda self: len(self.served_order) < 5)
    @rule(
        left=st.sampled_from([None, 0, 1, 2, 5]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        choice=places,
    )
    def consume(self, left: int | None, priority: int, choice: float) -> None:
        self.consumer_number += 1
        kind = self.kinds[int(choice * len(self.kinds))]
        consumer = self.stage.consume(
            str(self.consumer_number),
            None if kind == "no_ack" else left,
            priority=priority,
            no_ack=kind == "no_ack",
            shared=self.shared if kind == "shared" else None,
        )
        self.served_order.append(consumer)

    @precondition(lambda self: self.served_order)
    @rule(place=places)
    def cancel(self, place: float) -> None:
        consumer = self.served_order.pop(int(place * len(self.served_order)))
        self.stage.queue.remove_consumer(consumer)

    @precondition(lambda self: self.served_order)
    @rule(place=places, left=st.sampled_from([0, 1, 3, 8]), shared=st.integers(0, 6))
    def give_room(self, place: float, left: int, shared: int) -> None:
        consumer = self.served_order[int(place * len(self.served_order))]
        if consumer.left is not None:
            consumer.give(left)
        self.shared.left = shared
        for each in self.served_order:
            if each.shared is not None:
                self.stage.queue.credit_available(each)

    @rule(count=st.integers(1, 9), stored=st.booleans())
    def publish_for_a_turn(self, count: int, stored: bool) -> None:
        self.publish(count, stored)
        self.dispatch()

    @rule()
    def dispatch(self) -> None:
        asked = bool(self.stage.turn.asked)
        before = {consumer.name: len(consumer.served) for consumer in self.served_order}
        held = {consumer.name: len(consumer.held) for consumer in self.served_order}
        dealt = self.deal() if asked else {consumer.name: [] for consumer in self.served_order}
        if asked:
            # As the turn does: what it logs ahead of the dispatch must come true.
            self.stage.queue.mark_ahead()
        self.stage.turn.run()
        for consumer in self.served_order:
            mine = consumer.served[before[consumer.name] :]
            assert mine == dealt[consumer.name]
            self.delivered |= {seq for seq, _ in mine}
            for message in consumer.held[held[consumer.name] :]:
                self.unacked[message[2]] = (message, consumer)
                self.marked.add(message[2])
            if consumer.no_ack:
                self.stored -= {seq for seq, _ in mine}

    @rule(no_ack=st.booleans())
    def get(self, no_ack: bool) -> None:
        found = self.stage.queue.get(no_ack=no_ack)
        if not self.ready:
            assert found is None
            return
        seq = self.ready.pop(0)
        assert found is not None
        message, _, redelivered = found
        assert message[2] == seq
        assert redelivered == (seq in self.delivered)
        self.delivered.add(seq)
        if no_ack:
            self.stage.queue.settle([message])
            self.stored.discard(seq)
        else:
            self.unacked[seq] = (message, None)
            self.marked.add(seq)

    @precondition(lambda self: self.unacked)
    @rule(chosen=st.lists(places, min_size=1, max_size=6), requeue=st.booleans())
    def settle(self, chosen: list[float], requeue: bool) -> None:
        taken: list[Message] = []
        for place in chosen:
            if not self.unacked:
                break
            seq = sorted(self.unacked)[int(place * len(self.unacked))]
            message, consumer = self.unacked.pop(seq)
            taken.append(message)
            if consumer is not None and consumer.left is not None:
                consumer.give(consumer.left + 1)
        if requeue:
            self.stage.queue.requeue(taken, Outcome.NACKED)
            self.ready = sorted(self.ready + [message[2] for message in taken])
        else:
            self.stage.queue.settle(taken)
            self.stored -= {message[2] for message in taken}
        self.stage.queue.wake()

    @rule()
    def purge(self) -> None:
        assert self.stage.queue.purge() == len(self.ready)
        self.stored -= set(self.ready)
        self.ready = []

    @rule()
    def look(self) -> None:
        """What came back is at its place now, without anybody being served."""
        assert self.ready_seqs() == self.ready

    def ready_seqs(self) -> list[int]:
        """All ready messages in order."""
        return self.stage.ready_seqs()

    # What is always true

    @invariant()
    def contents_agree(self) -> None:
        queue = self.stage.queue
        assert queue.ready_count == len(self.ready)
        assert queue.unacked_count == len(self.unacked)
        assert queue.consumer_count == len(self.served_order)

    @invariant()
    def nobody_with_room_is_forgotten(self) -> None:
        """A queue with ready messages and room somewhere has asked for its turn."""
        if self.ready and self.next_consumer() is not None:
            assert self.stage.turn.asked

    @invariant()
    def journal_knows_what_is_left(self) -> None:
        settled = self.stage.log.settled
        assert len(settled) == len(set(settled)), "a copy was settled twice"
        assert set(settled) == {seq >> 1 for seq in self.ever_stored - self.stored}
        alive = set(self.ready) | set(self.unacked)
        assert self.stored == {seq for seq in alive if seq & 1}

    @invariant()
    def journal_knows_who_was_delivered(self) -> None:
        """DURABLE-12: never shown as 0 if it was handed out, never as 1 if it was not."""
        for seq in self.stored:
            if seq in self.marked:
                assert seq >> 1 <= self.stage.log.mark
            if seq not in self.delivered:
                assert seq >> 1 > self.stage.log.mark
