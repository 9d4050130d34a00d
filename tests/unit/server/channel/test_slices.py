"""One method that settles, requeues or purges very much: in slices, others in between.

Spec: LIMIT-23
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import SETTINGS, World
from tests.unit.server.runtime.budgeted import GET, LOOKS, TICK_S, opened, said
from vouchmq.server.broker.paging import pager
from vouchmq.server.broker.queues import classic as queues
from vouchmq.server.broker.queues import ready_list
from vouchmq.server.channel import channel, consume, topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.unit.server.in_memory import Client

MESSAGES = 8000
PIECE = 300
# A run counts for a little itself, and whole runs are taken.
MOST = LOOKS * 2 * PIECE
LAST = MESSAGES + 1


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces."""
    monkeypatch.setattr(channel, "PIECE_MESSAGES", PIECE)
    monkeypatch.setattr(queues, "TURN_MESSAGES", PIECE)
    monkeypatch.setattr(topology, "PURGE_MESSAGES", PIECE)


@pytest.fixture
def world() -> World:
    """A broker with a durable queue `q` of 8,000 persistent messages, `other` is empty."""
    world = World()
    client = opened(world)
    client.declare("q", durable=True)
    client.declare("other")
    persistent = commands.Basic.Properties(delivery_mode=2)
    step = [wire.publish(1, "q", b"x", persistent)] * 1000
    for _ in range(MESSAGES // 1000):
        client.send(*step)
        world.run_turns()
    world.sync()
    return world


def holding(world: World) -> Client:
    """A client that everything has been delivered to, and one message of another queue."""
    client = opened(world)
    client.consume("q", "c")
    while world.vhost.queues["q"].ready_count:
        world.run_turns()
        client.octets.clear()
    client.method(1, commands.Basic.Cancel(consumer_tag="c"))
    client.send(wire.publish(1, "other", b"y"), wire.method(1, commands.Basic.Get(queue="other")))
    client.hear()
    return client


class TestSettling:
    """ACK-03 … ACK-06, ACK-20."""

    @pytest.mark.parametrize(
        ("method", "ready"),
        [
            (commands.Basic.Ack(delivery_tag=LAST, multiple=True), 0),
            (commands.Basic.Ack(delivery_tag=0, multiple=True), 0),
            (commands.Basic.Nack(delivery_tag=LAST, multiple=True, requeue=False), 0),
            (commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=True), MESSAGES),
            (commands.Basic.Recover(requeue=True), MESSAGES),
        ],
    )
    def test_others_come_in_between(
        self, world: World, method: commands.Basic.Ack, ready: int
    ) -> None:
        client, modest = holding(world), opened(world)
        world.vhost.delete_queue("other", None)
        modest.declare("empty")
        world.tick_s = TICK_S
        passive = wire.method(1, commands.Queue.Declare(queue="q", passive=True))
        client.send(wire.method(1, method), passive)
        queue = world.vhost.queues["q"]
        left = [queue.unacked_count]
        ask = wire.method(1, commands.Basic.Get(queue="empty"))
        while world.scheduled:
            modest.send(ask)
            world.run_turn()
            assert said(modest) == ["Basic.GetEmpty"]
            left.append(queue.unacked_count)
        steps = [before - after for before, after in zip([MESSAGES, *left], left, strict=False)]
        assert left[-1] == 0
        assert 0 < max(steps) <= MOST
        # What comes behind it sees all of it.
        (answer,) = [
            what for _, what in client.hear() if isinstance(what, commands.Queue.DeclareOk)
        ]
        assert answer.message_count == queue.ready_count == ready
        settled = sum(len(lsns) for _, lsns in world.calls.settled)
        assert settled == MESSAGES - ready

    def test_no_tag_beyond_the_one_that_was_named(self, world: World) -> None:
        client = holding(world)
        world.tick_s = TICK_S
        client.send(wire.ack(1, 5_300, multiple=True))
        world.run_turns()
        assert world.vhost.queues["q"].unacked_count == MESSAGES - 5_300
        client.send(wire.ack(1, 5_301), wire.ack(1, 5_300))
        assert client.names() == ["Channel.Close"]

    def test_several_come_one_after_the_other(self, world: World) -> None:
        client = holding(world)
        world.tick_s = TICK_S
        tags = (5, 1_000, 5_300, 5_299 + PIECE)
        client.send(*(wire.ack(1, tag, multiple=True) for tag in tags))
        queue = world.vhost.queues["q"]
        left = [queue.unacked_count]
        while world.scheduled:
            world.run_turn()
            left.append(queue.unacked_count)
        assert left[-1] == MESSAGES - tags[-1]
        assert 0 < max(before - after for before, after in pairwise([MESSAGES, *left])) <= MOST
        assert sum(len(lsns) for _, lsns in world.calls.settled) == tags[-1]

    def test_those_before_an_unknown_tag_count(self, world: World) -> None:
        client = holding(world)
        world.tick_s = TICK_S
        client.send(wire.ack(1, 3_000))
        client.send(*(wire.ack(1, tag, multiple=True) for tag in (2_000, 3_000, 4_000)))
        assert client.names() == ["Channel.Close"]
        assert world.vhost.queues["q"].ready_count == MESSAGES - 2_001

    def test_what_is_delivered_meanwhile_is_not_settled(self, world: World) -> None:
        client = opened(world)
        client.ask(1, commands.Basic.Qos(prefetch_count=2000))
        client.consume("q", "c")
        client.hear()
        world.tick_s = TICK_S
        client.send(wire.ack(1, 0, multiple=True))
        world.run_turns()
        queue = world.vhost.queues["q"]
        assert queue.unacked_count == 2000
        assert queue.ready_count == MESSAGES - 4_000

    def test_a_tag_that_is_not_outstanding_settles_nothing(self, world: World) -> None:
        client = holding(world)
        client.send(wire.ack(1, LAST + 1, multiple=True))
        assert client.names() == ["Channel.Close"]
        assert world.vhost.queues["q"].ready_count == MESSAGES

    def test_who_is_lost_meanwhile_has_settled_a_part(self, world: World) -> None:
        client = holding(world)
        world.tick_s = TICK_S
        client.send(wire.ack(1, LAST, multiple=True))
        client.connection.lost("reset")
        world.run_turns()
        queue = world.vhost.queues["q"]
        assert queue.unacked_count == 0
        assert MESSAGES - MOST <= queue.ready_count < MESSAGES
        settled = sum(len(lsns) for _, lsns in world.calls.settled)
        assert settled == MESSAGES - queue.ready_count

    def test_a_transaction_holds_all_of_it(self, world: World) -> None:
        client = opened(world)
        client.ask(1, commands.Tx.Select())
        client.consume("q", "c")
        while world.vhost.queues["q"].ready_count:
            world.run_turns()
            client.octets.clear()
        world.tick_s = TICK_S
        client.send(wire.ack(1, 0, multiple=True), wire.method(1, commands.Tx.Commit()))
        world.run_turns()
        world.sync()
        assert "Tx.CommitOk" in client.names()
        assert world.vhost.queues["q"].unacked_count == 0


def numbered(queue: str, number: int) -> bytes:
    """A persistent message with a deduplication key of its own and one of four priorities."""
    properties = commands.Basic.Properties(
        delivery_mode=2,
        priority=number % 4,
        headers={"x-deduplication-header": f"key-{number}"},
    )
    return wire.publish(1, queue, b"x", properties)


def purged_in_slices(
    world: World,
    client: Client,
    modest: Client,
    arguments: dict[str, Any],
    *,
    is_paged: bool = False,
) -> None:
    """Fill a queue with these arguments and purge it; others are served in between."""
    client.ask(1, commands.Queue.Declare(queue="featured", durable=True, arguments=arguments))
    modest.declare("other")
    for first in range(0, MESSAGES, 1000):
        client.send(*(numbered("featured", number) for number in range(first, first + 1000)))
        world.run_turns()
        world.sync()
    world.tick_s = TICK_S
    queue = world.vhost.queues["featured"]
    assert any(line.backlog is not None for line in queue.lines) == is_paged
    counts = [queue.ready_count]
    client.send(wire.method(1, commands.Queue.Purge(queue="featured")))
    while world.scheduled:
        modest.send(wire.method(1, commands.Basic.Get(queue="other")))
        world.run_turn()
        assert said(modest) == ["Basic.GetEmpty"]
        counts.append(queue.ready_count)
    steps = [before - after for before, after in pairwise(counts)]
    assert counts[0] == MESSAGES
    assert 0 < max(steps) <= LOOKS * PIECE
    (answer,) = [what for _, what in client.hear()]
    assert isinstance(answer, commands.Queue.PurgeOk)
    assert answer.message_count == MESSAGES
    settled = [lsn for _, lsns in world.calls.settled for lsn in lsns]
    assert len(settled) == len(set(settled)) == MESSAGES
    world.tick_s = 0.0


class TestPurge:
    """QUEUE-60."""

    def test_others_come_in_between(self, world: World) -> None:
        client, modest = opened(world), opened(world)
        world.tick_s = TICK_S
        client.send(wire.method(1, commands.Queue.Purge(queue="q")), GET)
        queue = world.vhost.queues["q"]
        counts = [MESSAGES, queue.ready_count]
        while world.scheduled:
            modest.send(wire.method(1, commands.Basic.Get(queue="other")))
            world.run_turn()
            assert said(modest) == ["Basic.GetEmpty"]
            counts.append(queue.ready_count)
        steps = [before - after for before, after in pairwise(counts)]
        assert 0 < max(steps) <= LOOKS * PIECE
        said_then = [what for _, what in client.hear()]
        assert [type(what) for what in said_then] == [
            commands.Queue.PurgeOk,
            commands.Basic.GetEmpty,
        ]
        assert said_then[0].message_count == MESSAGES  # type: ignore[union-attr]
        assert sum(len(lsns) for _, lsns in world.calls.settled) == MESSAGES

    @pytest.mark.parametrize(
        "arguments",
        [
            {"x-max-length": 2 * MESSAGES},
            {"x-max-length-bytes": 2 * MESSAGES},
            {"x-message-ttl": 3_600_000},
            {"x-max-priority": 3},
            {"x-message-deduplication": True},
            {"x-queue-type": "quorum"},
        ],
        ids=lambda arguments: next(iter(arguments)),
    )
    def test_queues_with_features_are_purged_in_slices(self, arguments: dict[str, Any]) -> None:
        world = World()
        client, modest = opened(world), opened(world)
        purged_in_slices(world, client, modest, arguments)
        queue = world.vhost.queues["featured"]
        # What a feature has kept about the messages has gone with them.
        client.send(numbered("featured", 0))
        world.run_turns()
        assert queue.ready_count == 1
        client.send(wire.method(1, commands.Queue.Delete(queue="featured")))
        world.run_turns()

    @pytest.mark.parametrize(
        "arguments", [{}, {"x-message-ttl": 3_600_000}, {"x-max-length": 2 * MESSAGES}], ids=str
    )
    def test_what_is_on_disk_is_purged_in_slices_and_not_read(
        self, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
    ) -> None:
        monkeypatch.setattr(ready_list, "PURGE_SPANS", 1)
        monkeypatch.setattr(pager, "SPAN_MESSAGES", PIECE // 2)
        little = replace(SETTINGS, queue_memory_bytes=1 << 16)
        world = World(little)
        client, modest = opened(world), opened(world)
        read: list[int] = []
        fetch_runs = world.journal.fetch_runs

        def watched(lsns: Sequence[int], *limits: Any) -> Any:
            read.extend(lsns)
            return fetch_runs(lsns, *limits)

        monkeypatch.setattr(world.journal, "fetch_runs", watched)
        purged_in_slices(world, client, modest, arguments, is_paged=True)
        assert len(read) <= PIECE

    def test_what_came_back_is_purged_in_slices(self, world: World) -> None:
        client, modest = holding(world), opened(world)
        queue = world.vhost.queues["q"]
        client.send(wire.method(1, commands.Channel.Close(0, "", 0, 0)))
        world.run_turn()
        world.tick_s = TICK_S
        counts = [queue.ready_count]
        modest.send(wire.method(1, commands.Queue.Purge(queue="q")))
        counts.append(queue.ready_count)
        while world.scheduled:
            world.run_turn()
            counts.append(queue.ready_count)
        assert counts[-1] == 0
        steps = [before - after for before, after in pairwise(counts)]
        assert 0 < max(steps) <= LOOKS * 2 * PIECE
        (answer,) = [what for _, what in modest.hear()]
        assert isinstance(answer, commands.Queue.PurgeOk)
        assert answer.message_count == MESSAGES

    def test_counts_what_it_has_dropped_when_others_take_and_delete(self, world: World) -> None:
        client, modest = opened(world), opened(world)
        world.tick_s = TICK_S
        client.send(wire.method(1, commands.Queue.Purge(queue="q")))
        modest.send(GET)
        world.run_turn()
        assert said(modest) == ["Basic.GetOk"]
        assert world.vhost.queues["q"].ready_count
        world.vhost.delete_queue("q", None)
        world.run_turns()
        (answer,) = [what for _, what in client.hear()]
        assert isinstance(answer, commands.Queue.PurgeOk)
        assert 0 < (answer.message_count or 0) < MESSAGES

    def test_what_is_unacked_stays(self, world: World) -> None:
        client = opened(world)
        client.ask(1, commands.Basic.Qos(prefetch_count=3))
        assert len(client.consume("q", "c")) == 3
        world.tick_s = TICK_S
        client.send(wire.method(1, commands.Queue.Purge(queue="q")))
        world.run_turns()
        queue = world.vhost.queues["q"]
        assert (queue.ready_count, queue.unacked_count) == (0, 3)


class TestDeliveredAgain:
    """ACK-22: what is outstanding is sent again, oldest first, each delivery once."""

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(consume, "TURN_REDELIVERIES", PIECE)

    def test_others_come_in_between(self, world: World) -> None:
        client, modest = opened(world), opened(world)
        modest.declare("empty")
        client.consume("q", "c")
        while world.vhost.queues["q"].ready_count:
            world.run_turns()
        client.hear()
        world.tick_s = TICK_S
        client.send(wire.method(1, commands.Basic.Recover(requeue=False)))
        heard: list[Any] = []
        most = 0
        while world.scheduled:
            modest.send(wire.method(1, commands.Basic.Get(queue="empty")))
            world.run_turn()
            assert said(modest) == ["Basic.GetEmpty"]
            octets, client.octets = bytes(client.octets), bytearray()
            some = [what for _, what in wire.hear(octets) if isinstance(what, wire.Content)]
            most = max(most, len(some))
            heard += some
        assert 0 < most <= MOST
        assert [what.method.delivery_tag for what in heard] == list(range(1, MESSAGES + 1))
        assert all(what.method.redelivered for what in heard)
        assert client.connection.channels[1].unacked.count == MESSAGES

    def test_what_is_delivered_meanwhile_is_not_sent_again(self, world: World) -> None:
        client, other = opened(world), opened(world)
        client.consume("q", "c")
        while world.vhost.queues["q"].ready_count:
            world.run_turns()
        client.hear()
        world.tick_s = TICK_S
        client.send(wire.method(1, commands.Basic.Recover(requeue=False)))
        turns = 0
        while world.scheduled:
            turns += 1
            if turns <= 10:
                other.send(wire.publish(1, "q", b"new"))
            world.run_turn()
        contents: list[Any] = [w for _, w in client.hear() if isinstance(w, wire.Content)]
        again = [w.method.delivery_tag for w in contents if w.method.redelivered]
        fresh = [w.method.delivery_tag for w in contents if not w.method.redelivered]
        assert again == list(range(1, MESSAGES + 1))
        assert turns > 3
        assert fresh == list(range(MESSAGES + 1, MESSAGES + 1 + min(turns, 10)))
        assert client.connection.channels[1].unacked.count == MESSAGES + min(turns, 10)
