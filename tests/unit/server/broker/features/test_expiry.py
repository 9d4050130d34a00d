"""Expiry as clients see it: messages leave at the head, in time, and nobody gets a dead one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, declare, publish
from tests.unit.server.in_memory import World, delivery
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.broker.features.expiry import Expiry

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channel 1 open."""
    client = world.connect()
    client.open()
    return client


class TestQueueTtl:
    """One time to live for a whole queue."""

    def test_message_leaves_at_its_deadline_without_a_client(self, client: Client) -> None:
        """TTL-04."""
        declare(client, "q", message_ttl=100)
        publish(client, "q", b"a")
        client.world.pass_time(0.05)
        publish(client, "q", b"b")
        queue = client.world.vhost.queues["q"]
        client.world.pass_time(0.0495)
        assert queue.ready_count == 2
        client.world.pass_time(0.002)
        assert queue.ready_count == 1
        client.world.pass_time(0.05)
        assert queue.ready_count == 0

    def test_expired_one_is_never_got(self, client: Client) -> None:
        """TTL-02: also when no timer has rung yet."""
        declare(client, "q", message_ttl=100)
        publish(client, "q", b"a")
        client.world.now += 0.2
        assert bodies(client, "q") == []

    def test_one_that_a_get_makes_the_head_leaves_at_its_deadline(self, client: Client) -> None:
        """TTL-03: it had expired before, or it does so later."""
        declare(client, "q")
        publish(client, "q", b"long")
        publish(client, "q", b"short", expiration="10")
        publish(client, "q", b"longer", expiration="100")
        client.world.pass_time(0.02)
        queue = client.world.vhost.queues["q"]
        assert queue.ready_count == 3
        client.method(1, commands.Basic.Get(queue="q", no_ack=True))
        client.hear()
        client.world.pass_time(0.01)
        assert queue.ready_count == 1
        client.world.pass_time(0.1)
        assert queue.ready_count == 0

    def test_one_that_the_limit_makes_the_head_is_never_got(self, client: Client) -> None:
        """TTL-02: also when nobody has had a turn yet."""
        declare(client, "q", max_length=2)
        short = commands.Basic.Properties(expiration="0")
        messages = [(b"a", None), (b"b", short), (b"c", None)]
        client.send(*(wire.publish(1, "q", body, block) for body, block in messages))
        assert bodies(client, "q") == [b"c"]

    def test_one_that_the_limit_makes_the_head_leaves_at_once(self, client: Client) -> None:
        """TTL-03: behind a longer one it counted, in front it does not."""
        declare(client, "q", max_length=2)
        publish(client, "q", b"long")
        publish(client, "q", b"short", expiration="10")
        client.world.pass_time(0.02)
        publish(client, "q", b"new")
        client.world.pass_time(0.01)
        assert client.world.vhost.queues["q"].ready_count == 1
        assert bodies(client, "q") == [b"new"]

    def test_ttl_zero_reaches_a_consumer_that_waits(self, client: Client) -> None:
        """TTL-06."""
        declare(client, "q", message_ttl=0)
        publish(client, "q", b"lost")
        assert client.world.vhost.queues["q"].ready_count == 0
        client.qos(1)
        assert client.consume("q", "t") == []
        publish(client, "q", b"a", b"b")
        assert [delivery(what)[2] for _, what in client.hear()] == [b"a"]
        assert client.message_count("q") == 0

    def test_ttl_zero_reaches_a_consumer_however_long_the_turn_is(self, client: Client) -> None:
        """TTL-06: the clock goes on between a publish and the end of its turn."""
        declare(client, "q", message_ttl=0)
        client.qos(1)
        assert client.consume("q", "t") == []
        client.send(wire.publish(1, "q", b"a"), wire.publish(1, "q", b"b"))
        client.world.now += 0.5
        assert [delivery(what)[2] for _, what in client.hear()] == [b"a"]
        assert client.message_count("q") == 0

    def test_ttl_zero_reaches_a_consumer_although_somebody_looks(self, client: Client) -> None:
        """TTL-06: a declare in the same turn expires what no consumer has room for, no more."""
        declare(client, "q", message_ttl=0)
        client.qos(1)
        assert client.consume("q", "t") == []
        look = wire.method(1, commands.Queue.Declare(queue="q", passive=True))
        client.send(wire.publish(1, "q", b"a"), look)
        said = [what for _, what in client.hear()]
        assert [delivery(what)[2] for what in said if isinstance(what, wire.Content)] == [b"a"]
        client.send(wire.publish(1, "q", b"b"))
        assert client.message_count("q") == 0

    def test_unacked_one_does_not_expire_until_it_comes_back(self, client: Client) -> None:
        """TTL-05."""
        declare(client, "q", message_ttl=100)
        publish(client, "q", b"a")
        client.method(1, commands.Basic.Get(queue="q"))
        assert len(client.hear()) == 1
        client.world.pass_time(1.0)
        assert client.world.vhost.queues["q"].unacked_count == 1
        client.send(wire.nack(1, 1))
        client.world.run_turns()
        assert client.world.vhost.queues["q"].unacked_count == 0
        assert client.message_count("q") == 0

    def test_requeue_in_time_keeps_the_deadline(self, client: Client) -> None:
        """TTL-05."""
        declare(client, "q", message_ttl=100)
        publish(client, "q", b"a")
        client.method(1, commands.Basic.Get(queue="q"))
        client.hear()
        client.world.pass_time(0.09)
        client.send(wire.nack(1, 1))
        assert client.message_count("q") == 1
        client.world.pass_time(0.02)
        assert client.message_count("q") == 0

    def test_many_at_once_go_in_several_turns(self, client: Client) -> None:
        """LIMIT-23."""
        declare(client, "q", message_ttl=100)
        for _ in range(10):
            publish(client, "q", *[b"x"] * 1000)
        client.world.pass_time(0.2)
        assert client.world.vhost.queues["q"].ready_count == 0


class TestMessageTtl:
    """A time to live of its own."""

    def test_smaller_one_counts(self, client: Client) -> None:
        """TTL-01."""
        declare(client, "q", message_ttl=100)
        publish(client, "q", b"short", expiration="50")
        client.world.pass_time(0.06)
        assert client.message_count("q") == 0
        publish(client, "q", b"long", expiration="1000")
        client.world.pass_time(0.11)
        assert client.message_count("q") == 0

    def test_only_the_head_expires(self, client: Client) -> None:
        """TTL-03: what is behind an unexpired one counts as ready, but is never handed out."""
        declare(client, "q")
        publish(client, "q", b"long", expiration="1000")
        publish(client, "q", b"short", expiration="50")
        publish(client, "q", b"for ever")
        client.world.pass_time(0.5)
        assert client.message_count("q") == 3
        assert [delivery(what)[2] for _, what in client.consume("q", "t")] == [b"long", b"for ever"]

    def test_each_queue_has_its_own_clock(self, client: Client) -> None:
        """TTL-01."""
        declare(client, "q")
        declare(client, "fast", message_ttl=10)
        for name in ("q", "fast"):
            client.ask(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"))
        client.send(wire.publish(1, "", b"x", exchange="amq.fanout"))
        client.world.pass_time(0.05)
        assert client.message_count("q") == 1
        assert client.message_count("fast") == 0


class TestQueueExpiry:
    """x-expires."""

    def is_there(self, client: Client, name: str = "q") -> bool:
        """Whether the queue exists, without using it."""
        client.world.run_turns()
        return name in client.world.vhost.queues

    def test_unused_queue_goes_and_publishing_is_no_use(self, client: Client) -> None:
        """TTL-20, TTL-21."""
        declare(client, "q", expires=100)
        client.world.pass_time(0.05)
        publish(client, "q", b"x")
        client.world.pass_time(0.04)
        assert self.is_there(client)
        client.world.pass_time(0.02)
        assert not self.is_there(client)

    @pytest.mark.parametrize("use", ["declare", "passive", "get"])
    def test_use_renews_it(self, client: Client, use: str) -> None:
        """TTL-20, TTL-23."""
        declare(client, "q", expires=100)
        client.world.pass_time(0.08)
        if use == "declare":
            declare(client, "q", expires=100)
        elif use == "passive":
            client.message_count("q")
        else:
            client.method(1, commands.Basic.Get(queue="q"))
            client.hear()
        client.world.pass_time(0.08)
        assert self.is_there(client)
        client.world.pass_time(0.03)
        assert not self.is_there(client)

    def test_a_consumer_holds_it(self, client: Client) -> None:
        """TTL-20: it begins with the end of the last one."""
        declare(client, "q", expires=100)
        client.consume("q", "t")
        client.world.pass_time(0.35)
        assert self.is_there(client)
        client.ask(1, commands.Basic.Cancel("t"))
        client.world.pass_time(0.09)
        assert self.is_there(client)
        client.world.pass_time(0.02)
        assert not self.is_there(client)


def test_what_waits_behind_dead_letters_that_are_held_is_late(client: Client) -> None:
    """TTL-06, DLX-12: a turn that serves nobody for want of room on the disk is over as well."""
    declare(client, "dead")
    declare(client, "q", message_ttl=0, dead_letter_exchange="", dead_letter_routing_key="dead")
    queue = client.world.vhost.queues["q"]
    client.world.dead_letter_publisher.pace._is_held = lambda: True
    publish(client, "q", b"a")
    publish(client, "q", b"b")
    assert queue.ready_count == 2
    client.world.pass_time(0.1)
    assert client.consume("q", "t") == []


def test_what_stood_behind_others_when_its_turn_ended_is_late(client: Client) -> None:
    """TTL-02, TTL-06: no time is none later, also for one that is the head only then."""
    declare(client, "q")
    publish(client, "q", b"first")
    publish(client, "q", b"second", expiration="0")
    assert bodies(client, "q") == [b"first"]


def test_settles_are_logged_behind_one_that_expired(client: Client) -> None:
    """What expires of a batch leaves the queue looking empty while the rest is on its way."""
    client.ask(1, commands.Queue.Declare(queue="q", durable=True))
    client.send(
        wire.publish(1, "q", b"kept", wire.persistent()),
        wire.publish(1, "q", b"late", wire.persistent(expiration="10")),
    )
    client.world.run_turns()
    client.world.pass_time(0.02)
    client.ask(1, commands.Basic.Qos(prefetch_count=10))
    client.consume("q", "c")
    client.method(1, commands.Basic.Ack(1))
    client.world.run_turns()
    assert len(client.world.calls.settled) == 2


def test_immediate_message_that_comes_back_has_its_own_time_to_live(client: Client) -> None:
    """TTL-01: also where nothing else had one before."""
    declare(client, "q")
    client.consume("q", "t")
    block = commands.Basic.Properties(expiration="10")
    client.send(wire.publish(1, "q", b"a", block, immediate=True))
    client.world.pass_time(0.02)
    client.method(1, commands.Basic.Cancel("t"))
    client.method(1, commands.Basic.Nack(1))
    client.world.run_turns()
    assert client.world.vhost.queues["q"].ready_count == 0


def test_no_time_at_all_and_a_restart_in_the_same_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TTL-02, TTL-06: what was there before is late."""
    world = DiskWorld()
    client = world.connect()
    client.open()
    arguments = {"x-message-ttl": 0}
    client.ask(1, commands.Queue.Declare(queue="q", durable=True, arguments=arguments))  # type: ignore[arg-type]
    client.send(wire.publish(1, "q", b"x", wire.persistent()))
    world.runtime.journal.write()
    world.runtime.commit.request()
    while not world.runtime.commit.is_idle:
        world.runtime.commit.on_readable()
    monkeypatch.setattr(DiskWorld, "sync", lambda _: None)  # no turn has been run
    again = world.after_power_cut()
    queue = again.vhost.queues["q"]
    assert (queue.ready_count, again.now) == (1, world.now)
    expiry = queue.feature(Expiry)
    assert expiry is not None
    expiry.run()
    assert queue.ready_count == 0


class TestClockSetBack:
    """DURABLE-20: a clock that went back while the broker was down keeps nothing any longer."""

    TTL_S = 9.0

    @pytest.mark.parametrize("back_s", [0.0, 60.0])
    @pytest.mark.parametrize("has_own", [False, True], ids=["of the queue", "own"])
    def test_nothing_lives_longer_than_once_more(
        self, client: Client, back_s: float, has_own: bool
    ) -> None:
        """Wherever it is read: what stands behind is paged, and read when it comes to the head."""
        ttl_ms = int(1000 * self.TTL_S)
        world = client.world
        table: dict[str, object] = {} if has_own else {"x-message-ttl": ttl_ms}
        client.ask(1, commands.Queue.Declare(queue="q", durable=True, arguments=table))  # type: ignore[arg-type]
        own = {"expiration": str(ttl_ms)} if has_own else {}
        properties = commands.Basic.Properties(delivery_mode=2, **own)  # type: ignore[arg-type]
        for _ in range(20):
            client.send(*[wire.publish(1, "q", bytes(3500), properties)] * 50)
            world.sync()
            world.now += 0.1
        reborn = World(disk=world.disk, now=world.now - back_s)
        queue = reborn.vhost.queues["q"]
        assert queue.ready_count == 1000
        reborn.pass_time(self.TTL_S / 2)
        reborn.sync()
        assert queue.ready_count == 1000
        reborn.pass_time(self.TTL_S / 2 + 0.001)
        for _ in range(20):
            reborn.run_turns()
        assert queue.ready_count == 0
