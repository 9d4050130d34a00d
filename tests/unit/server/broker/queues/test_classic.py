"""A queue by its rules: fairness, priorities, requeue, redelivery, and what the journal hears."""

from __future__ import annotations

import time

import pytest

from tests.unit.server.queues import QUEUE_ID, FakeConsumer, Shared, Stage
from vouchmq.protocol.errors import AccessRefused
from vouchmq.server.broker.message import Message
from vouchmq.server.broker.paging.pager import TURN_READS
from vouchmq.server.broker.queues.api import TURN_MESSAGES
from vouchmq.server.broker.queues.classic import RETURNS_PER_READ
from vouchmq.server.broker.queues.ready_list import BATCH_OCTETS
from vouchmq.server.broker.queues.requeued import Requeued
from vouchmq.server.broker.queues.settlement import Outcome


@pytest.fixture
def stage() -> Stage:
    """A durable queue."""
    return Stage()


def served(port: FakeConsumer) -> list[int]:
    """Seqs in the order of their deliveries."""
    return [seq for seq, _ in port.served]


class TestDispatch:
    def test_nothing_is_delivered_from_within_a_publish(self, stage: Stage) -> None:
        alice = stage.consume("alice")
        stage.enqueue(3)
        assert alice.served == []
        assert stage.turn.asked == [stage.queue]
        stage.enqueue(1)
        assert stage.turn.asked == [stage.queue]

    def test_round_robin_over_idle_consumers(self, stage: Stage) -> None:
        """CONS-10, as measured: a, b, c, a, b, c."""
        outlets = [stage.consume(name) for name in "abc"]
        seqs = stage.enqueue(7)
        stage.turn.run()
        assert [served(port) for port in outlets] == [seqs[0::3], seqs[1::3], seqs[2::3]]

    def test_round_robin_goes_on_over_turns(self, stage: Stage) -> None:
        outlets = [stage.consume(name) for name in "abc"]
        for _ in range(6):
            stage.enqueue(1)
            stage.turn.run()
        assert [len(port.served) for port in outlets] == [2, 2, 2]
        assert served(outlets[0]) == [2, 8]

    def test_whoever_acks_gets_the_next(self, stage: Stage) -> None:
        alice, bob = stage.consume("alice", 1), stage.consume("bob", 1)
        seqs = stage.enqueue(4)
        stage.turn.run()
        bob.give(1)
        stage.queue.settle([bob.held.pop()])
        stage.queue.wake()
        stage.turn.run()
        assert served(alice) == seqs[:1]
        assert served(bob) == seqs[1:3]

    def test_backlog_goes_to_the_first_without_limit(self, stage: Stage) -> None:
        seqs = stage.enqueue(5)
        alice = stage.consume("alice")
        stage.turn.run()
        bob = stage.consume("bob")
        stage.turn.run()
        assert (served(alice), served(bob)) == (seqs, [])

    def test_blocked_consumer_is_first_when_it_has_room_again(self, stage: Stage) -> None:
        alice, bob, carol = (stage.consume(name) for name in "abc")
        alice.give(0)
        stage.enqueue(2)
        stage.turn.run()
        alice.give(None)
        seqs = stage.enqueue(3)
        stage.turn.run()
        assert served(alice) == seqs[:1]
        assert served(bob)[1:] == seqs[1:2]
        assert served(carol)[1:] == seqs[2:]

    @pytest.mark.parametrize("left", [None, 1])
    def test_a_message_costs_no_more_with_many_consumers(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, left: int | None
    ) -> None:
        """Who has no room is not asked each time, and who has is not asked before its turn."""
        outlets = [stage.consume(str(number), left) for number in range(200)]
        asked: list[FakeConsumer] = []
        room = FakeConsumer.capacity

        def counted(self: FakeConsumer, head: bytes) -> int:
            asked.append(self)
            return room(self, head)

        monkeypatch.setattr(FakeConsumer, "capacity", counted)
        stage.enqueue(3)
        stage.turn.run()
        for number in range(600):
            if left is not None and number % 200 < 197:
                outlets[number % 200].give(1)
            stage.enqueue(1 + number % 2)
            stage.turn.run()
        assert sum(len(port.served) for port in outlets) > 700
        assert len(asked) < 4 * 900

    def test_higher_priority_first_and_lower_only_when_it_is_blocked(self, stage: Stage) -> None:
        """CONS-20, as measured: hi, hi, lo, lo, neg, neg."""
        neg, hi, lo = (
            stage.consume(name, 2, priority=priority)
            for name, priority in (("neg", -1), ("hi", 10), ("lo", 0))
        )
        seqs = stage.enqueue(7)
        stage.turn.run()
        assert [served(port) for port in (hi, lo, neg)] == [seqs[:2], seqs[2:4], seqs[4:6]]
        assert stage.queue.ready_count == 1

    def test_shared_room_is_not_promised_twice(self, stage: Stage) -> None:
        shared = Shared(5)
        alice, bob = (stage.consume(name, 3, shared=shared) for name in "ab")
        stage.enqueue(10)
        stage.turn.run()
        assert (len(alice.served), len(bob.served)) == (3, 2)

    def test_one_turn_is_bounded(self, stage: Stage) -> None:
        alice = stage.consume("alice")
        stage.enqueue(TURN_MESSAGES + 10)
        stage.turn.asked.clear()
        stage.queue.dispatch()
        assert len(alice.served) == TURN_MESSAGES
        assert stage.turn.asked == [stage.queue]

    def test_one_turn_is_bounded_for_many_consumers(self, stage: Stage) -> None:
        outlets = [stage.consume(str(number)) for number in range(10)]
        stage.enqueue(2 * TURN_MESSAGES)
        stage.turn.asked.clear()
        stage.queue.dispatch()
        count = sum(len(port.served) for port in outlets)
        assert TURN_MESSAGES <= count < TURN_MESSAGES + len(outlets)
        assert stage.turn.asked == [stage.queue]

    @pytest.mark.parametrize("consumer_count", [1, 3])
    def test_batches_are_bounded_in_octets(self, stage: Stage, consumer_count: int) -> None:
        batches: list[int] = []
        for number in range(consumer_count):
            port = stage.consume(str(number))
            port.on_served = lambda _, messages: batches.append(len(messages))
        stage.enqueue(40, size=BATCH_OCTETS // 8)
        stage.turn.run()
        assert sum(batches) == 40
        assert max(batches) * consumer_count <= 8 + consumer_count

    def test_room_for_nobody_leaves_everything(self, stage: Stage) -> None:
        stage.consume("alice", 0)
        stage.consume("bob", 0)
        stage.enqueue(3)
        stage.turn.run()
        assert stage.queue.ready_count == 3


class TestRedelivery:
    def test_requeued_message_returns_to_its_place(self, stage: Stage) -> None:
        """ACK-10, as measured: 1, 3, 2 come back as 1, 2, 3, ahead of everything younger."""
        alice = stage.consume("alice", 3)
        seqs = stage.enqueue(5)
        stage.turn.run()
        first, second, third = alice.held
        for message in (first, third, second):
            stage.queue.requeue([message], Outcome.NACKED)
        alice.give(5)
        stage.turn.run()
        assert alice.served[3:] == [
            *((seq, True) for seq in seqs[:3]),
            *((seq, False) for seq in seqs[3:]),
        ]

    def test_requeue_of_a_mixed_batch(self, stage: Stage) -> None:
        seqs = stage.enqueue(6)
        got = [stage.queue.get(no_ack=False) for _ in range(5)]
        messages = [each[0] for each in got if each is not None]
        stage.queue.requeue([messages[3], messages[0]], Outcome.NACKED)
        stage.queue.requeue([messages[4], messages[2], messages[1]], Outcome.NACKED)
        assert stage.ready_seqs() == seqs

    @pytest.mark.parametrize("count", [10, 200])
    def test_requeue_between_ready_messages(self, stage: Stage, count: int) -> None:
        seqs = stage.enqueue(3 * count)
        got = [stage.queue.get(no_ack=False) for _ in range(2 * count)]
        messages = [each[0] for each in got if each is not None]
        stage.queue.requeue(messages[0::2], Outcome.NACKED)
        stage.queue.requeue(messages[1::2], Outcome.NACKED)
        assert stage.ready_seqs() == seqs

    def test_long_backlog_given_back_one_by_one_takes_no_second(self, stage: Stage) -> None:
        count = 10_000
        seqs = stage.enqueue(count + 100)
        got = [stage.queue.get(no_ack=False) for _ in range(count)]
        messages = [each[0] for each in got if each is not None]
        begun = time.process_time()
        for message in messages:
            stage.queue.requeue([message], Outcome.NACKED)
        # Walking over the ones before each took 3.5 s.
        assert time.process_time() - begun < 1.0
        assert stage.ready_seqs() == seqs

    def test_consumers_that_leave_together_cost_their_messages(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What they had interleaves to the message; it is merged once, not once for each run."""
        count, consumers = 80 * 512, 40
        seqs = stage.enqueue(count, stored=True)
        messages = stage.queue.take(stage.queue.ready, count)
        moved: list[int] = []
        give_back = Requeued._give_back

        def counted(self: Requeued, piece: list[Message]) -> None:
            moved.append(len(piece))
            give_back(self, piece)

        monkeypatch.setattr(Requeued, "_give_back", counted)
        for consumer in range(consumers):
            mine = messages[consumer::consumers]
            for at in range(0, len(mine), 512):
                stage.queue.requeue(mine[at : at + 512], Outcome.LOST)
        more = stage.enqueue(10)
        alice = stage.consume("alice")
        while stage.queue.ready_count:
            stage.turn.asked.clear()
            stage.queue.dispatch()
            stage.pager.run()
        assert served(alice) == seqs + more
        assert sum(moved) < 2 * count

    def test_a_large_return_takes_several_turns(self, stage: Stage) -> None:
        """LIMIT-23; nobody is served before all of it is at its place."""
        count = 5 * TURN_READS * RETURNS_PER_READ // 2
        seqs = stage.enqueue(count)
        messages = stage.queue.take(stage.queue.ready, count)
        alice = stage.consume("alice", left=10)
        for at in reversed(range(0, count, 4096)):
            stage.queue.requeue(messages[at : at + 4096], Outcome.LOST)
        placed: list[int] = []
        while not alice.served:
            assert stage.queue.ready_count == count
            before = stage.queue.ready.count
            assert stage.turn.asked == [stage.queue]
            stage.turn.asked.clear()
            stage.queue.dispatch()
            stage.pager.run()
            placed.append(stage.queue.ready.count + len(alice.served) - before)
        assert sum(placed) == count
        assert len(placed) == 3
        assert max(placed) <= TURN_READS * RETURNS_PER_READ + 4096
        assert served(alice) == seqs[:10]

    def test_a_large_return_is_seen_at_once_by_who_looks(self, stage: Stage) -> None:
        count = 2 * TURN_READS * RETURNS_PER_READ
        seqs = stage.enqueue(count, stored=True)
        messages = stage.queue.take(stage.queue.ready, count)
        for at in reversed(range(0, count, 4096)):
            stage.queue.requeue(messages[at : at + 4096], Outcome.LOST)
        stage.queue.dispatch()
        found = stage.queue.get(no_ack=True)
        assert found is not None
        assert found[0][2] == seqs[0]
        stage.queue.settle([found[0]])
        stage.queue.requeue(stage.queue.take(stage.queue.ready, 1), Outcome.LOST)
        assert stage.queue.purge() == count - 1
        assert sorted(stage.log.settled) == [seq >> 1 for seq in seqs]

    def test_deleted_with_what_has_just_come_back(self, stage: Stage) -> None:
        stage.enqueue(9)
        stage.queue.requeue(stage.queue.take(stage.queue.ready, 9), Outcome.LOST)
        stage.queue.deleted()
        assert stage.queue.ready_count == 0
        assert stage.pager.total == 0
        stage.turn.run()

    def test_get_takes_the_head_and_tells_redelivery(self, stage: Stage) -> None:
        stage.enqueue(2)
        found = stage.queue.get(no_ack=False)
        assert found is not None
        message, _, redelivered = found
        assert not redelivered
        assert stage.queue.unacked_count == 1
        stage.queue.requeue([message], Outcome.NACKED)
        assert stage.queue.get(no_ack=False) == (message, message, True)
        second = stage.queue.get(no_ack=False)
        assert second is not None
        assert not second[2]
        assert stage.queue.get(no_ack=False) is None

    def test_recovered_messages_know_who_was_delivered(self, stage: Stage) -> None:
        """DURABLE-12."""
        stage.store.stored.update(dict.fromkeys((3, 4, 9), (b"raw", b"tail")))
        stage.queue.restore(QUEUE_ID, [range(3, 5), (9,)], 4)
        assert stage.queue.ready_count == 3
        assert stage.store.fetched == []
        alice = stage.consume("alice")
        stage.turn.run()
        assert alice.served == [(7, True), (9, True), (19, False)]
        assert stage.log.mark == 9
        stage.queue.settle(alice.held)
        assert stage.log.settled == [3, 4, 9]

    def test_recovery_with_nothing_delivered(self, stage: Stage) -> None:
        stage.store.stored[1] = (b"raw", b"tail")
        stage.queue.restore(QUEUE_ID, [(1,)], 0)
        alice = stage.consume("alice")
        stage.turn.run()
        assert alice.served == [(3, False)]


class TestJournal:
    @pytest.mark.parametrize(
        ("count", "rooms", "marked"),
        [
            pytest.param(1, [None], 1, id="alone"),
            pytest.param(1, [0, 1], 1, id="for one of several consumers"),
            pytest.param(3, [1], 1, id="as much as there is room for"),
            pytest.param(3, [None], 0, id="not the first of many"),
            pytest.param(2, [1, 1], 0, id="not the first of several"),
            pytest.param(1, [0], 0, id="no room"),
            pytest.param(1, [0, 0], 0, id="nobody with room"),
            pytest.param(1, [], 0, id="nobody"),
        ],
    )
    def test_a_certain_delivery_is_logged_before_it_is_made(
        self, stage: Stage, count: int, rooms: list[int | None], marked: int
    ) -> None:
        """Then the block of the message says it, and none is needed for that alone."""
        ports = [stage.consume(str(number), left) for number, left in enumerate(rooms)]
        stage.enqueue(count, stored=True)
        stage.queue.mark_ahead()
        assert stage.log.mark == marked
        stage.turn.run()
        assert stage.log.mark == sum(len(served(port)) for port in ports)
        assert not any(redelivered for port in ports for _, redelivered in port.served)

    def test_what_needs_no_ack_is_not_logged_before(self, stage: Stage) -> None:
        stage.consume("alice", no_ack=True)
        stage.enqueue(1, stored=True)
        stage.queue.mark_ahead()
        assert stage.log.mark == 0

    def test_nor_what_is_to_come_behind_something_that_came_back(self, stage: Stage) -> None:
        alice = stage.consume("alice")
        stage.enqueue(1, stored=True)
        stage.turn.run()
        alice.give(1)
        stage.queue.requeue([alice.held.pop()], Outcome.NACKED)
        stage.enqueue(1, stored=True)
        stage.queue.mark_ahead()
        assert stage.log.mark == 1

    @pytest.mark.parametrize("consumer_count", [1, 2, 3])
    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    def test_no_ack_deliveries_are_settled(
        self, stage: Stage, consumer_count: int, count: int
    ) -> None:
        """ACK-02: what has been written to no-ack consumers must not come back by a restart."""
        for number in range(consumer_count):
            stage.consume(str(number), no_ack=True)
        stage.enqueue(count, stored=True)
        stage.turn.run()
        assert sorted(stage.log.settled) == list(range(1, count + 1))
        assert stage.queue.unacked_count == 0

    def test_transient_messages_are_never_told(self, stage: Stage) -> None:
        alice = stage.consume("alice")
        stage.enqueue(2)
        stage.enqueue(2, stored=True)
        stage.turn.run()
        stage.queue.settle(alice.held)
        assert stage.log.settled == [3, 4]

    def test_transient_queue_tells_nothing(self) -> None:
        stage = Stage(durable=False)
        alice = stage.consume("alice")
        stage.enqueue(2, stored=True)
        stage.turn.run()
        stage.queue.settle(alice.held)
        assert (stage.log.settled, stage.log.mark) == ([], 0)

    def test_purge_settles_what_was_ready_only(self, stage: Stage) -> None:
        stage.consume("alice", 1)
        stage.enqueue(3, stored=True)
        stage.turn.run()
        assert stage.queue.purge() == 2
        assert stage.log.settled == [2, 3]
        assert stage.queue.unacked_count == 1

    def test_mark_is_told_before_an_ack_can_come(self, stage: Stage) -> None:
        alice = stage.consume("alice", 2)
        told: list[int] = []
        alice.on_served = lambda *_: told.append(stage.log.mark)
        stage.enqueue(3, stored=True)
        stage.turn.run()
        assert told == [2]


class TestConsumers:
    def test_exclusive_beside_others(self, stage: Stage) -> None:
        """CONS-05."""
        stage.consume("alice")
        with pytest.raises(AccessRefused) as error:
            stage.queue.add_consumer(FakeConsumer("bob"), exclusive=True)
        assert error.value.reply_text == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"

    def test_quorum_type_ignores_the_flag(self, stage: Stage) -> None:
        """QUORUM-05."""
        stage.queue.keeps_all = True
        for name in ("alice", "bob"):
            stage.queue.add_consumer(FakeConsumer(name), exclusive=True)

    def test_others_beside_an_exclusive(self, stage: Stage) -> None:
        alice = FakeConsumer("alice", queue=stage.queue)
        stage.queue.add_consumer(alice, exclusive=True)
        for exclusive in (True, False):
            with pytest.raises(AccessRefused):
                stage.queue.add_consumer(FakeConsumer("bob"), exclusive=exclusive)
        stage.queue.remove_consumer(alice)
        stage.queue.add_consumer(FakeConsumer("bob"), exclusive=False)
        assert stage.queue.consumer_count == 1

    def test_last_consumer_leaving_is_told(self, stage: Stage) -> None:
        alice, bob = stage.consume("alice"), stage.consume("bob", priority=3)
        stage.queue.remove_consumer(bob)
        stage.queue.remove_consumer(bob)
        assert stage.unused == []
        assert stage.queue.consumer_count == 1
        stage.queue.remove_consumer(alice)
        assert stage.unused == [stage.queue]

    def test_removed_consumer_gets_nothing(self, stage: Stage) -> None:
        alice, bob = stage.consume("alice"), stage.consume("bob")
        stage.enqueue(4)
        stage.queue.remove_consumer(alice)
        stage.turn.run()
        assert (len(alice.served), len(bob.served)) == (0, 4)

    def test_deletion_tells_consumers_and_forgets_deliveries(self, stage: Stage) -> None:
        alice = stage.consume("alice", 1)
        stage.enqueue(3, stored=True)
        stage.turn.run()
        stage.queue.wake()
        stage.queue.deleted()
        assert alice.is_told_of_deletion
        assert stage.queue.ready_count == stage.queue.consumer_count == 0
        stage.queue.settle(alice.held)
        stage.queue.requeue(alice.held, Outcome.NACKED)
        stage.turn.run()
        assert stage.log.settled == []
        assert stage.queue.ready_count == 0

    def test_can_take_now(self, stage: Stage) -> None:
        """PUB-30."""
        message = (b"raw", b"tail", 1, 0)
        assert not stage.queue.can_take_now(message)
        alice = stage.consume("alice", 0)
        assert not stage.queue.can_take_now(message)
        alice.give(1)
        assert stage.queue.can_take_now(message)
        stage.enqueue(1)
        assert not stage.queue.can_take_now(message)
