"""Nobody keeps the loop: work is cut by the clock, others go on in between, order stays (LIMIT-23).

Time passes only when somebody looks at the clock, a millisecond each time, so that what is counted
is work and not how fast the machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import SETTINGS, World, confirms, content
from tests.unit.server.runtime.budgeted import GET, LOOKS, TICK_S, opened, said
from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.server.edge.starting import definitions_file
from vouchmq.server.edge.starting.definitions_file import in_slices
from vouchmq.server.runtime.work_budget import SLICE_S, TURN_S, WorkBudget

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


@pytest.fixture
def world() -> World:
    """A broker with the queue `q`."""
    world = World()
    client = world.connect()
    client.open()
    client.declare("q")
    return world


class TestBetweenSockets:
    """Reads of many sockets, of which the last come when the turn's time has gone."""

    def test_what_comes_late_is_done_in_a_later_turn(self, world: World) -> None:
        late, modest = opened(world), opened(world)
        late.connection.receive(GET, is_late=True)
        late.connection.receive(GET * 2)
        assert late.paused
        modest.send(GET)
        world.run_turn()
        assert said(modest) == ["Basic.GetEmpty"]
        assert said(late) == []
        world.run_turns()
        assert said(late) == ["Basic.GetEmpty"] * 3
        assert not late.paused

    def test_the_end_of_a_connection_forgets_it(self, world: World) -> None:
        late = opened(world)
        late.connection.receive(GET, is_late=True)
        late.connection.lost("gone")
        world.run_turns()
        assert said(late) == []
        assert world.bugs == []


class TestBetweenMethods:
    """A read that holds more than there is time for."""

    def test_others_are_served_in_between(self, world: World) -> None:
        greedy, modest = opened(world), opened(world)
        world.tick_s = TICK_S
        greedy.send(GET * 100)
        assert greedy.paused
        modest.send(GET)
        world.run_turn()
        assert said(modest) == ["Basic.GetEmpty"]
        assert 0 < len(said(greedy)) <= 2 * LOOKS
        world.run_turns()
        assert not greedy.paused

    def test_no_turn_does_more_than_a_slice(self, world: World) -> None:
        greedy = opened(world)
        world.tick_s = TICK_S
        greedy.send(GET * 100)
        counts = []
        while world.scheduled:
            world.run_turn()
            counts.append(len(said(greedy)))
        assert sum(counts) == 100
        assert max(counts) <= 2 * LOOKS
        assert len(counts) > 100 // (2 * LOOKS)

    def test_order_stays(self, world: World) -> None:
        client = opened(world)
        client.method(1, commands.Confirm.Select())
        client.hear()
        world.tick_s = TICK_S
        both = [wire.publish(1, "q", b"%d" % number) + GET for number in range(20)]
        client.send(*both[:15])
        assert client.paused
        # What comes while the rest waits stands behind it.
        client.send(*both[15:])
        heard = client.hear()
        bodies = [what.body for _, what in heard if isinstance(what, wire.Content)]
        assert bodies == [b"%d" % number for number in range(20)]
        assert [number for _, number, _ in confirms(heard)][-1] == 20

    def test_many_greedy_ones_take_turns(self, world: World) -> None:
        clients = [opened(world) for _ in range(5)]
        world.tick_s = TICK_S
        for client in clients:
            client.send(GET * 40)
        most = round(TURN_S / TICK_S) + LOOKS
        done = [len(said(client)) for client in clients]
        world.run_turn()
        done = [len(said(client)) for client in clients]
        for _ in range(100):
            if not world.scheduled:
                break
            world.run_turn()
            more = [len(said(client)) for client in clients]
            assert sum(more) <= most
            done = [one + other for one, other in zip(done, more, strict=True)]
            # Nobody is a whole round ahead of another.
            assert max(done) - min(done) <= 2 * LOOKS
        assert done == [40] * 5

    def test_a_lost_connection_does_nothing_more(self, world: World) -> None:
        client = opened(world)
        world.tick_s = TICK_S
        publish = wire.publish(1, "q", b"x")
        client.send(*(publish + GET for _ in range(50)))
        client.connection.lost("reset")
        world.run_turns()
        other = opened(world)
        assert other.message_count("q") < 50

    def test_a_channel_closed_meanwhile_takes_nothing_more(self, world: World) -> None:
        client = opened(world)
        world.tick_s = TICK_S
        client.send(*(wire.publish(1, "q", b"x") + GET for _ in range(50)))
        client.connection.fail_channel(1, PreconditionFailed("for a test"))
        names = client.names()
        assert names[-1] == "Channel.Close"
        assert names.count("Basic.GetOk") <= 2 * LOOKS


class TestLostTogether:
    """Connections that are lost in one go."""

    def test_they_are_cleaned_up_in_slices(self, world: World) -> None:
        clients = [opened(world) for _ in range(40)]
        for number, client in enumerate(clients):
            client.declare(f"own {number}", exclusive=True)
        modest = opened(world)
        world.tick_s = TICK_S
        for client in clients:
            client.connection.lost("reset")
        left = [len(world.connections)]
        assert left[0] > 2
        modest.send(GET)
        world.run_turn()
        assert said(modest) == ["Basic.GetEmpty"]
        while world.scheduled:
            world.run_turn()
            left.append(len(world.connections))
        # Those that are left are `modest` and the one that the fixture has opened.
        assert left[-1] == 2
        assert len(left) > 3
        assert set(world.vhost.queues) == {"q"}

    def test_nothing_is_delivered_to_one_that_waits_for_its_clean_up(self, world: World) -> None:
        clients = [opened(world) for _ in range(40)]
        world.tick_s = TICK_S
        clients[-1].consume("q", "c", no_ack=True)
        modest = opened(world)
        for client in clients:
            client.connection.lost("reset")
        modest.send(wire.publish(1, "q", b"x"))
        world.run_turns()
        assert world.vhost.queues["q"].ready_count == 1

    def test_one_alone_is_gone_at_once(self, world: World) -> None:
        client = opened(world)
        client.declare("own", exclusive=True)
        world.tick_s = TICK_S
        client.connection.lost("reset")
        assert "own" not in world.vhost.queues


CHANNELS = range(1, 11)


def with_much(world: World) -> Client:
    """A client with ten channels, each with a consumer of `q`, and forty exclusive queues."""
    client = opened(world)
    for channel in CHANNELS:
        if channel > 1:
            client.ask(channel, commands.Channel.Open())
        client.consume("q", f"c{channel}", channel, no_ack=True)
    for number in range(40):
        client.declare(f"own {number}", exclusive=True)
    return client


class TestEnds:
    """A connection that holds more than one slice can let go of."""

    def left(self, world: World) -> tuple[int, int]:
        """Its consumers and queues that are there still."""
        return world.vhost.queues["q"].consumer_count, len(world.vhost.queues) - 1

    def test_lost(self, world: World) -> None:
        client, modest = with_much(world), opened(world)
        world.tick_s = TICK_S
        client.connection.lost("reset")
        left = [self.left(world)]
        while client.connection in world.connections:
            modest.send(GET)
            world.run_turn()
            assert said(modest) == ["Basic.GetEmpty"]
            left.append(self.left(world))
        assert left[0][0] > 0
        # A slice of them in each turn, channels first.
        assert len({consumers for consumers, _ in left}) > 1
        assert len({queues for _, queues in left}) > 2
        assert left[-1] == (0, 0)

    def test_close_ok_comes_when_all_is_gone(self, world: World) -> None:
        """CONN-53."""
        client = with_much(world)
        world.tick_s = TICK_S
        client.send(wire.method(0, commands.Connection.Close(200, "", 0, 0)))
        turns = 0
        while not (names := said(client)):
            world.run_turn()
            turns += 1
        assert names == ["Connection.CloseOk"]
        assert self.left(world) == (0, 0)
        assert turns > 2

    def test_what_follows_a_close_is_not_taken(self, world: World) -> None:
        client = with_much(world)
        world.tick_s = TICK_S
        client.send(
            wire.method(0, commands.Connection.Close(200, "", 0, 0)), wire.publish(10, "q", b"x")
        )
        world.run_turns()
        assert world.vhost.queues["q"].ready_count == 0

    def test_lost_while_it_closes(self, world: World) -> None:
        client = with_much(world)
        world.tick_s = TICK_S
        client.send(wire.method(0, commands.Connection.Close(200, "", 0, 0)))
        client.connection.lost("reset")
        world.run_turns()
        assert client.connection not in world.connections
        assert self.left(world) == (0, 0)

    def test_closed_by_the_broker(self, world: World) -> None:
        """CONN-54: it says so at once."""
        client = with_much(world)
        world.tick_s = TICK_S
        client.connection.shut_down("for a test")
        assert self.left(world) != (0, 0)
        world.run_turn()
        assert client.names() == ["Connection.Close"]
        world.run_turns()
        assert self.left(world) == (0, 0)

    @pytest.mark.parametrize("how", ["closes", "is closed"])
    def test_nothing_is_delivered_to_channels_that_are_left(self, world: World, how: str) -> None:
        client, modest = with_much(world), opened(world)
        world.tick_s = TICK_S
        if how == "closes":
            client.send(wire.method(0, commands.Connection.Close(200, "", 0, 0)))
        else:
            client.connection.shut_down("for a test")
        assert self.left(world)[0]
        modest.send(wire.publish(1, "q", b"x"))
        world.run_turns()
        assert "Basic.Deliver" not in client.names()
        assert world.vhost.queues["q"].ready_count == 1


class TestWithinARun:
    """One run of publishes that takes long."""

    def test_every_message_is_looked_at_for_itself(self, world: World) -> None:
        client, modest = opened(world), opened(world)
        client.ask(1, commands.Queue.Bind(queue="q", exchange="amq.headers", routing_key=""))
        client.method(1, commands.Confirm.Select())
        client.hear()
        world.tick_s = TICK_S
        client.send(
            *(
                wire.publish(
                    1,
                    "",
                    b"%d" % number,
                    commands.Basic.Properties(headers={"number": number}),
                    exchange="amq.headers",
                )
                for number in range(60)
            )
        )
        assert world.vhost.queues["q"].ready_count <= LOOKS
        modest.send(GET)
        world.run_turn()
        assert said(modest) == ["Basic.GetOk"]
        world.run_turns()
        queue = world.vhost.queues["q"]
        assert queue.ready_count == 59
        assert [number for _, number, _ in confirms(client.hear())][-1] == 60
        modest.send(GET * 59)
        bodies = [content(what).body for _, what in modest.hear()]
        assert bodies == [b"%d" % number for number in range(1, 60)]

    def test_a_fault_in_the_rest_keeps_what_came_before_it(self, world: World) -> None:
        client = opened(world)
        client.ask(1, commands.Queue.Bind(queue="q", exchange="amq.headers", routing_key=""))
        world.tick_s = TICK_S
        runs = [
            wire.publish(
                1,
                "",
                b"x",
                commands.Basic.Properties(headers={"number": number}, expiration=expiration),
                exchange="amq.headers",
            )
            for number, expiration in enumerate(["1000"] * 20 + ["never"] + ["1000"] * 20)
        ]
        client.send(*runs)
        assert client.names() == ["Channel.Close"]
        assert world.vhost.queues["q"].ready_count == 20


class TestLongWay:
    """One message whose way through the exchanges is longer than a turn."""

    LENGTH = 3000

    @pytest.fixture
    def chain(self, world: World) -> World:
        """Exchanges that pass on to each other, the last one to `q`."""
        for number in range(self.LENGTH):
            world.vhost.declare_exchange(
                f"e{number}",
                "fanout",
                durable=False,
                auto_delete=False,
                internal=False,
                arguments={},
            )
            if number:
                world.vhost.bind(f"e{number - 1}", "exchange", f"e{number}", "", {}, None)
        world.vhost.bind(f"e{self.LENGTH - 1}", "queue", "q", "", {}, None)
        return world

    def test_others_are_served_meanwhile(self, chain: World) -> None:
        client, modest = opened(chain), opened(chain)
        chain.tick_s = TICK_S
        client.send(wire.publish(1, "k", b"x", exchange="e0"), wire.publish(1, "q", b"y"))
        queue = chain.vhost.queues["q"]
        assert queue.ready_count == 0
        modest.send(GET)
        chain.run_turn()
        assert said(modest) == ["Basic.GetEmpty"]
        chain.run_turns()
        modest.send(GET * 3)
        heard = modest.hear()
        assert [what.body for _, what in heard if isinstance(what, wire.Content)] == [b"x", b"y"]

    def test_headers_go_the_same_way(self, chain: World) -> None:
        client = opened(chain)
        client.ask(
            1, commands.Exchange.Bind(source="amq.headers", destination="e0", routing_key="")
        )
        chain.tick_s = TICK_S
        properties = commands.Basic.Properties(headers={"a": 1})
        client.send(*[wire.publish(1, "", b"x", properties, exchange="amq.headers")] * 3)
        assert chain.vhost.queues["q"].ready_count == 0
        chain.run_turns()
        assert chain.vhost.queues["q"].ready_count == 3

    def test_bindings_that_change_meanwhile_do_not_keep_it_from_its_end(self, chain: World) -> None:
        client = opened(chain)
        chain.tick_s = TICK_S
        client.send(wire.publish(1, "k", b"x", exchange="e0"))
        queue = chain.vhost.queues["q"]
        turns = 0
        while not queue.ready_count:
            chain.vhost.bind("amq.direct", "queue", "q", f"k{turns}", {}, None)
            chain.run_turn()
            turns += 1
            assert turns < 10
        chain.run_turns()
        assert queue.ready_count == 1


class TestUnsentAnswers:
    """A client that asks and does not read."""

    @pytest.fixture
    def client(self) -> Client:
        """Its outbox is full at 1,000 octets; `q` holds fifty messages of 600."""
        client = opened(World(replace(SETTINGS, deliver_high_water_bytes=1000)))
        client.declare("q")
        client.send(*[wire.publish(1, "q", b"x" * 600)] * 50)
        assert client.hear() == []
        return client

    def test_a_turn_answers_no_more_than_the_mark(self, client: Client) -> None:
        client.send(GET * 50)
        counts = []
        while client.world.scheduled:
            client.world.run_turn()
            counts.append(len(said(client)))
        assert sum(counts) == 50
        assert max(counts) == 2

    def test_nothing_is_answered_until_the_socket_has_drained(self, client: Client) -> None:
        client.connection.outbox.hold()
        client.send(GET * 2, wire.method(1, commands.Queue.Declare(queue="q", passive=True)))
        assert client.names() == []
        assert client.paused
        client.connection.outbox.release()
        assert client.names() == ["Basic.GetOk", "Basic.GetOk", "Queue.DeclareOk"]
        assert not client.paused

    def test_settling_and_publishing_go_on(self, client: Client) -> None:
        """A client that writes before it reads must not wait for itself."""
        client.send(GET * 2)
        assert client.names() == ["Basic.GetOk"] * 2
        client.connection.outbox.hold()
        client.send(wire.ack(1, 1), wire.ack(1, 2, multiple=True), wire.publish(1, "q", b"y"))
        client.send(wire.method(1, commands.Channel.Close(200, "", 0, 0)))
        client.world.run_turns()
        queue = client.world.vhost.queues["q"]
        assert (queue.unacked_count, queue.ready_count) == (0, 49)
        assert not client.connection.channels

    def test_deliveries_and_what_was_asked_behind_them_go_on_together(self, client: Client) -> None:
        client.consume("q", "c", no_ack=True)
        client.connection.outbox.hold()
        client.send(GET)
        client.world.run_turns()
        client.connection.outbox.release()
        assert "Basic.GetEmpty" in client.names() or not client.paused


class Jobs:
    """A budget by itself, and what it has done."""

    def __init__(self) -> None:
        self.now = 0.0
        self.scheduled: list[Callable[[], None]] = []
        self.done: list[str] = []
        self.budget = WorkBudget(lambda: self.now, self.scheduled.append)

    def job(self, name: str, *, takes_s: float = 0.0, fails: bool = False) -> Callable[[], None]:
        """Some work."""

        def work() -> None:
            self.done.append(name)
            self.now += takes_s
            if fails:
                raise ValueError(name)

        return work

    def steps(self, names: str, *, takes_s: float) -> Iterator[None]:
        """Work in steps."""
        for name in names:
            self.job(name, takes_s=takes_s)()
            yield

    def turn(self) -> list[str]:
        """What is done in the next turn that does anything."""
        self.done.clear()
        while self.scheduled and not self.done:
            self._turn()
        return list(self.done)

    def _turn(self) -> None:
        scheduled, self.scheduled[:] = list(self.scheduled), []
        for work in scheduled:
            work()


def test_what_is_put_off_has_a_bounded_share_of_each_turn() -> None:
    jobs = Jobs()
    for name in "abcd":
        jobs.budget.put_off(jobs.job(name, takes_s=TURN_S / 2))
    assert jobs.turn() == ["a", "b"]
    jobs.budget.put_off(jobs.job("e"))
    assert jobs.turn() == ["c", "d"]
    assert jobs.turn() == ["e"]
    assert jobs.turn() == []


def test_sockets_are_read_before_anything_goes_on() -> None:
    """A turn that has been asked for begins before the sockets are looked at."""
    jobs = Jobs()
    jobs.budget.put_off(jobs.job("a"))
    (first,) = jobs.scheduled
    jobs.scheduled.clear()
    first()
    assert jobs.done == []
    (second,) = jobs.scheduled
    second()
    assert jobs.done == ["a"]


class TestSteps:
    """Work that goes through very many things."""

    def test_a_slice_of_them_in_each_turn(self) -> None:
        jobs = Jobs()
        jobs.budget.go_through(jobs.steps("abcdef", takes_s=SLICE_S / 2))
        assert jobs.done == ["a", "b"]
        assert [jobs.turn(), jobs.turn(), jobs.turn()] == [["c", "d"], ["e", "f"], []]

    def test_others_go_on_in_between(self) -> None:
        jobs = Jobs()
        jobs.budget.go_through(jobs.steps("abc", takes_s=SLICE_S))
        jobs.budget.put_off(jobs.job("other"))
        assert jobs.turn() == ["b", "other"]
        assert jobs.turn() == ["c"]

    def test_who_takes_them_in_its_own_slice_keeps_what_is_left_of_that(self) -> None:
        """Or a list of such tasks would never be interrupted."""
        jobs = Jobs()
        jobs.budget.begin()
        jobs.budget.go_through(jobs.steps("a", takes_s=SLICE_S / 2))
        assert not jobs.budget.is_over()
        jobs.budget.go_through(jobs.steps("b", takes_s=SLICE_S / 2))
        assert jobs.budget.is_over()


def test_what_takes_too_long_is_done_all_the_same() -> None:
    jobs = Jobs()
    jobs.budget.put_off(jobs.job("a", takes_s=1.0))
    jobs.budget.put_off(jobs.job("b"))
    assert jobs.turn() == ["a"]
    assert jobs.turn() == ["b"]


def test_a_bug_in_one_job_stops_no_other() -> None:
    jobs = Jobs()
    jobs.budget.put_off(jobs.job("a", fails=True))
    jobs.budget.put_off(jobs.job("b"))
    with pytest.raises(ValueError, match="a"):
        jobs.turn()
    assert jobs.turn() == ["b"]


async def test_work_in_slices_lets_others_go_between_and_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIMIT-23: each of these steps takes longer than a slice."""
    now = iter(range(1000))
    monkeypatch.setattr(
        definitions_file, "time", SimpleNamespace(monotonic=lambda: float(next(now)))
    )
    order: list[str] = []

    async def bystander() -> None:
        while len(order) < 8:
            order.append("other")
            await asyncio.sleep(0)

    def steps() -> Iterator[None]:
        for number in range(4):
            order.append(f"step {number}")
            yield

    other = asyncio.create_task(bystander())
    await in_slices(steps())
    await other
    assert order == ["step 0", "other", "step 1", "other", "step 2", "other", "step 3", "other"]
