"""Publishers wait for consumers that keep up, for nobody else, and never for long (LIMIT-29).

The loop is idle while `World.pass_time` runs, and busy while time goes by in a turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import listed
from tests.unit.server.amqp_client import declare
from tests.unit.server.in_memory import SETTINGS, Client, World, closes_connection
from vouchmq.server.connection.backpressure import SHOWN_S
from vouchmq.server.connection.wire import BLOCKED, FLOW, STALLED
from vouchmq.server.runtime.flow import (
    IDLE_S,
    LONGEST_S,
    LONGEST_SLOW_S,
    LOOK_S,
    SHORTEST_SLOW_S,
)

if TYPE_CHECKING:
    from vouchmq.server.broker.queues.classic import ClassicQueue

LEAST = 64
PREFETCH = 10
MOST_IDLE_S = 2 * (IDLE_S + LOOK_S)


@pytest.fixture
def world() -> World:
    return World()


def publisher(world: World) -> Client:
    client = world.connect()
    client.open()
    return client


def publish(client: Client, count: int, queue: str = "q") -> None:
    """Publish in one read; a turn follows."""
    client.send(*[wire.publish(1, queue, b"x")] * count)
    client.world.run_turns()


class Worker:
    """A consumer that acknowledges when it is told to."""

    def __init__(self, world: World, queue: str = "q", prefetch: int = PREFETCH) -> None:
        self.left: list[int] = []
        self.client = world.connect()
        self.client.open()
        self.client.declare(queue)
        self.client.qos(prefetch)
        self.client.consume(queue, "c")

    def work(self, most: int = 1 << 30) -> int:
        """Acknowledge what has come, at most so much of it; gives how much that was."""
        tags = self.left + [tag for _, tag, _, _ in self.client.deliveries()]
        self.left = tags[most:]
        self.client.send(*[wire.ack(1, tag) for tag in tags[:most]])
        self.client.world.run_turns()
        return len(tags[:most])


def queue_of(world: World, name: str = "q") -> ClassicQueue:
    return world.vhost.queues[name]


def with_enough(world: World) -> tuple[Client, Worker]:
    """A publisher that has just been made to wait, and the worker behind it."""
    worker, client = Worker(world), publisher(world)
    publish(client, LEAST + PREFETCH + 1)
    assert client.paused == set()
    publish(client, 20)
    assert client.paused == {FLOW}
    return client, worker


def idle(world: World, seconds: float) -> None:
    """Nothing happens for so long but that timers ring."""
    end = world.now + seconds
    while world.now < end:
        world.pass_time(min(LOOK_S / 2, max(end - world.now, 1e-6)))


class TestWhoWaits:
    def test_publisher_waits_behind_what_it_has_brought(self, world: World) -> None:
        client, worker = with_enough(world)
        taken = 0
        while FLOW in client.paused:
            assert taken < 2 * 20
            taken += worker.work()
        assert queue_of(world).ready_count + PREFETCH >= LEAST

    def test_nothing_it_is_told_waits(self, world: World) -> None:
        worker, client = Worker(world), publisher(world)
        client.ask(1, commands.Confirm.Select())
        publish(client, LEAST + PREFETCH + 1)
        publish(client, 20)
        assert client.paused == {FLOW}
        assert "Basic.Ack" in client.names()
        assert worker.work()

    def test_queue_without_consumers_takes_everything(self, world: World) -> None:
        client = publisher(world)
        client.declare("q")
        for _ in range(50):
            publish(client, 100)
            assert client.paused == set()
        assert queue_of(world).flow is None

    def test_consumers_without_acknowledgements_hold_nobody(self, world: World) -> None:
        reader, client = world.connect(), publisher(world)
        reader.open()
        reader.declare("q")
        reader.consume("q", "c", no_ack=True)
        reader.connection.outbox.hold()
        for _ in range(50):
            publish(client, 100)
            assert client.paused == set()

    def test_who_returns_credit_at_once_lets_everything_in(self, world: World) -> None:
        """What consumers have given back by the end of a read is theirs to fill."""
        worker, client = Worker(world, prefetch=100), publisher(world)
        publish(client, LEAST + 100 + 1)
        worker.client.send(*[wire.ack(1, tag) for _, tag, _, _ in worker.client.deliveries()])
        publish(client, 80)
        assert client.paused == set()
        publish(client, 80)
        assert client.paused == {FLOW}

    def test_connection_with_consumers_never_waits(self, world: World) -> None:
        worker = Worker(world)
        for _ in range(20):
            publish(worker.client, 100)
            assert worker.client.paused == set()
        queue = queue_of(world)
        assert queue.flow is not None
        assert queue.ready_count == 2000 - PREFETCH

    def test_dead_letters_are_charged_to_nobody(self, world: World) -> None:
        """The bound is of "q"; who rejects into it, and who publishes elsewhere, go on."""
        _, _ = with_enough(world)
        other = publisher(world)
        declare(other, "source", dead_letter_exchange="", dead_letter_routing_key="q")
        other.declare("elsewhere")
        publish(other, 30, "source")
        other.method(1, commands.Basic.Get(queue="source"))
        assert other.names() == ["Basic.GetOk"]
        reader = world.connect()
        reader.open()
        assert len(reader.consume("source", "c")) == 29
        ready = queue_of(world).ready_count
        reader.send(wire.nack(1, 29, multiple=True, requeue=False))
        publish(other, 30, "elsewhere")
        assert reader.paused == other.paused == set()
        assert queue_of(world).ready_count > ready

    def test_commit_is_answered_before_its_publisher_waits(self, world: World) -> None:
        client, _ = publisher(world), Worker(world)
        client.ask(1, commands.Tx.Select())
        publish(client, LEAST + PREFETCH + 1)
        client.ask(1, commands.Tx.Commit())
        publish(client, 20)
        assert client.paused == set()
        client.ask(1, commands.Tx.Commit())
        assert client.paused == {FLOW}

    def test_publishes_behind_a_held_reply_are_charged(self, world: World) -> None:
        client, worker = publisher(world), Worker(world)
        publish(client, LEAST + PREFETCH + 1)
        declare = wire.method(1, commands.Queue.Declare(queue="d", durable=True))
        client.send(declare, *[wire.publish(1, "q", b"x")] * 20)
        assert client.paused == {STALLED}
        world.sync()
        assert client.paused == {FLOW}
        assert worker.work()

    def test_priority_queues_are_bounded_too(self, world: World) -> None:
        reader, client = world.connect(), publisher(world)
        reader.open()
        declare(reader, "q", max_priority=5)
        reader.qos(PREFETCH)
        reader.consume("q", "c")
        publish(client, LEAST + PREFETCH + 1)
        publish(client, 20)
        assert client.paused == {FLOW}

    def test_setting_turns_it_off(self) -> None:
        world = World(replace(SETTINGS, publisher_flow_messages=0))
        _, client = Worker(world), publisher(world)
        for _ in range(20):
            publish(client, 100)
        assert client.paused == set()

    def test_nobody_waits_where_no_timer_rings(self) -> None:
        world = World(rings=False)
        _, client = Worker(world), publisher(world)
        for _ in range(20):
            publish(client, 100)
        assert client.paused == set()


class TestWhoGoesOn:
    def test_first_who_came_to_wait(self, world: World) -> None:
        worker = Worker(world, prefetch=20)
        clients = [publisher(world) for _ in range(4)]
        publish(clients[0], LEAST + 20 + 1)
        for client in clients:
            publish(client, 20)
        gone_on: list[int] = []
        while len(gone_on) < len(clients):
            assert worker.work()
            gone_on += [
                number
                for number, client in enumerate(clients)
                if not client.paused and number not in gone_on
            ]
        assert gone_on == [0, 1, 2, 3]

    def test_all_once_nothing_is_ready(self, world: World) -> None:
        worker = Worker(world, prefetch=200)
        clients = [publisher(world) for _ in range(4)]
        publish(clients[0], 200 + 101)
        for client in clients:
            publish(client, 20)
            assert client.paused == {FLOW}
        worker.work()
        assert queue_of(world).ready_count == 0
        assert all(not client.paused for client in clients)

    def test_when_no_queue_keeps_it_waiting(self, world: World) -> None:
        one, two = Worker(world, "one"), Worker(world, "two")
        client = publisher(world)
        for name in ("one", "two"):
            client.ask(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"))
        client.send(*[wire.publish(1, "", b"x", exchange="amq.fanout")] * (LEAST + PREFETCH + 1))
        world.run_turns()
        client.send(*[wire.publish(1, "", b"x", exchange="amq.fanout")] * 20)
        world.run_turns()
        assert client.paused == {FLOW}
        while queue_of(world, "one").ready_count:
            one.work()
        assert client.paused == {FLOW}
        while queue_of(world, "two").ready_count:
            two.work()
        assert client.paused == set()

    @pytest.mark.parametrize(
        "end",
        [
            commands.Queue.Purge(queue="q"),
            commands.Queue.Delete(queue="q"),
            commands.Basic.Cancel(consumer_tag="c"),
            commands.Channel.Close(200, "", 0, 0),
        ],
        ids=lambda method: method.name,
    )
    def test_when_there_is_nothing_to_wait_for(
        self, world: World, end: commands.Queue.Purge
    ) -> None:
        client, worker = with_enough(world)
        worker.client.hear()
        worker.client.method(1, end)
        assert worker.client.hear()
        idle(world, MOST_IDLE_S)
        assert client.paused == set()
        publish(client, 20)
        assert client.paused == set()

    def test_when_it_leaves(self, world: World) -> None:
        client, worker = with_enough(world)
        client.connection.lost("gone")
        while queue_of(world).ready_count:
            worker.work()
        idle(world, MOST_IDLE_S)
        assert world.turn.flow.waiting == {}

    def test_when_it_is_closed_its_close_ok_is_heard(self, world: World) -> None:
        client, _ = with_enough(world)
        with closes_connection(client, 320, "CONNECTION_FORCED - shutdown", (0, 0)):
            client.connection.shut_down("shutdown")
            assert client.paused == set()

    def test_one_that_errs_in_the_same_read_is_heard(self, world: World) -> None:
        client, _ = publisher(world), Worker(world)
        publish(client, LEAST + PREFETCH + 1)
        with closes_connection(client, 504, "CHANNEL_ERROR - expected 'channel.open'", (60, 40)):
            client.send(*[wire.publish(1, "q", b"x")] * 20, wire.publish(7, "q", b"x"))
            assert client.paused == set()

    def test_an_alarm_is_another_reason(self, world: World) -> None:
        client, worker = with_enough(world)
        world.context.alarms.memory_limit_octets = 1000
        world.context.alarms.read(2000, 1 << 40)
        while queue_of(world).ready_count:
            worker.work()
        assert client.paused == set()
        publish(client, 1)
        assert client.paused == {BLOCKED}


class TestSlowConsumers:
    """Whoever does not keep up holds nobody: bursts are absorbed."""

    def test_who_acknowledges_nothing_holds_nobody(self, world: World) -> None:
        client, _ = with_enough(world)
        idle(world, MOST_IDLE_S)
        assert client.paused == set()
        for _ in range(100):
            publish(client, 100)
        assert client.paused == set()

    def test_that_is_tried_again_less_and_less(self, world: World) -> None:
        client, _ = with_enough(world)
        idle(world, MOST_IDLE_S)
        free: list[float] = []
        for _ in range(10):
            began = world.now
            while not client.paused:
                world.pass_time(0.001)
                publish(client, 1)
            free.append(world.now - began)
            idle(world, MOST_IDLE_S)
            assert client.paused == set()
        assert free[0] <= SHORTEST_SLOW_S
        assert free == sorted(free)
        assert free[-1] > 0.9 * LONGEST_SLOW_S

    def test_a_loop_that_is_mostly_idle_shows_them(self, world: World) -> None:
        """Credit comes back all the time, and yet it is the consumer that is waited for."""
        client, worker = with_enough(world)
        for _ in range(40):
            world.pass_time(0.001)
            worker.work(1)
            if not client.paused:
                break
        assert client.paused == set()
        assert queue_of(world).ready_count > LEAST

    def test_a_busy_loop_does_not(self, world: World) -> None:
        """The same pace, but it is the broker that has no time."""
        client, worker = with_enough(world)
        for _ in range(20):
            busy(world, 0.001)
            worker.work(1)
            assert client.paused == {FLOW}

    def test_nobody_waits_longer_than_others_may_delay_it(self, world: World) -> None:
        """LIMIT-23: however busy the loop is."""
        client, _ = with_enough(world)
        began = world.now
        while client.paused:
            busy(world, 0.001)
            idle(world, 0.0001)
        assert LONGEST_S <= world.now - began <= LONGEST_S + 2 * LOOK_S

    def test_those_that_keep_up_again_are_found_out(self, world: World) -> None:
        client, worker = with_enough(world)
        for _ in range(5):
            idle(world, MOST_IDLE_S + LONGEST_SLOW_S)
            publish(client, 20)
        while queue_of(world).ready_count:
            worker.work()
        publish(client, LEAST + PREFETCH + 1)
        publish(client, 20)
        assert client.paused == {FLOW}

    def test_publishers_and_consumers_that_wait_for_each_other_go_on(self, world: World) -> None:
        """A publisher that acknowledges what it got itself is read again, whatever stands there."""
        client, worker = publisher(world), Worker(world)
        client.declare("mine")
        publish(client, 5, "mine")
        for _ in range(5):
            client.method(1, commands.Basic.Get(queue="mine"))
        client.hear()
        publish(client, LEAST + PREFETCH + 1)
        publish(client, 20)
        assert client.paused == {FLOW}
        # Its acknowledgements are not read, and the worker waits for them before it goes on.
        idle(world, MOST_IDLE_S)
        assert client.paused == set()
        client.send(wire.ack(1, 5, multiple=True))
        assert worker.work()


class TestShown:
    def test_state_is_flow_for_some_seconds(self, world: World) -> None:
        client, worker = with_enough(world)
        assert states(world).count("flow") == 1
        while queue_of(world).ready_count:
            worker.work()
        assert client.paused == set()
        assert states(world).count("flow") == 1
        world.pass_time(SHOWN_S)
        assert set(states(world)) == {"running"}

    def test_a_queue_is_shown_while_publishers_wait_for_it_and_for_some_seconds(
        self, world: World
    ) -> None:
        client, worker = with_enough(world)
        assert not is_shown(world), "it has only just begun"
        # Consumers that keep up behind a publisher that is faster.
        for _ in range(50):
            busy(world, 0.01)
            worker.work(5)
            if not client.paused:
                publish(client, 20)
        assert is_shown(world)
        while queue_of(world).ready_count:
            worker.work()
        assert is_shown(world)
        world.pass_time(SHOWN_S)
        assert not is_shown(world)

    def test_a_queue_that_is_left_alone_with_its_backlog_is_not_shown(self, world: World) -> None:
        """It has enough for as long as the backlog is there; nobody waits."""
        client, worker = with_enough(world)
        busy(world, 0.04)
        assert client.paused == {FLOW}
        worker.work(5)
        worker.client.connection.lost("gone")
        world.run_turns()
        assert queue_of(world).ready_count > LEAST
        world.pass_time(SHOWN_S)
        assert not is_shown(world)

    def test_a_slow_publisher_is_not_shown_though_it_waits_for_moments(self, world: World) -> None:
        client, _ = with_enough(world)
        idle(world, LONGEST_S)
        world.pass_time(SHOWN_S)
        waits = 0
        for _ in range(30):
            publish(client, 1)
            waits += client.paused == {FLOW}
            idle(world, LONGEST_S)
            assert client.paused == set()
            assert not is_shown(world)
            world.pass_time(0.8)
        assert waits, "or else there is nothing to show"

    def test_a_flood_is_shown_too(self) -> None:
        """LIMIT-20."""
        world = World(replace(SETTINGS, unsynced_limit_bytes=100))
        client = publisher(world)
        client.declare("d", durable=True)
        client.send(wire.publish(1, "d", b"x" * 1000, wire.persistent()))
        world.run_turns()
        client.send(wire.publish(1, "d", b"x", wire.persistent()))
        assert states(world) == ["flow"]
        world.sync()
        world.pass_time(SHOWN_S)
        assert states(world) == ["running"]


def is_shown(world: World) -> bool:
    return bool(listed(world, "queue-details")[0]["flow"])


def states(world: World) -> list[object]:
    return [row["state"] for row in listed(world, "connections")]


def busy(world: World, seconds: float) -> None:
    """A turn has so much to do, and timers ring behind it."""

    def work() -> None:
        world.now += seconds

    world.turn.later(work)
    world.pass_time(0)
