"""Policies as clients feel them: in force at once, changed, gone, and there after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, confirms, declare, got, publish, reject
from tests.unit.server.broker.policy.laid_down import lay_down
from tests.unit.server.in_memory import World, closes_channel, delivery
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.broker.features.options import InvalidPolicy
from vouchmq.server.broker.policy.policies import Policy

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


def lay_down_as_operator(world: World, **definition: object) -> None:
    table = {key.replace("_", "-"): value for key, value in definition.items()}
    world.vhost.policy_engine.set_policy(Policy("o", "^q", table, is_operator=True))
    world.run_turns()


def lift(world: World, name: str = "p", *, is_operator: bool = False) -> None:
    """Delete it again."""
    assert world.vhost.policy_engine.delete_policy(name, is_operator=is_operator)
    world.run_turns()


def rooms(world: World) -> tuple[bool, bool]:
    """Whether the queue `q` has any, and whether it has a gate."""
    queue = world.vhost.queues["q"]
    return queue.hooks is not None, queue.publish_filter is not None


def declare_exchange(client: Client, name: str, kind: str = "fanout", **more: Any) -> None:
    client.ask(1, commands.Exchange.Declare(exchange=name, exchange_type=kind, **more))


def to(client: Client, exchange: str, body: bytes, **properties: Any) -> None:
    """Publish to an exchange."""
    block = commands.Basic.Properties(**properties)
    client.send(wire.publish(1, "q", body, block, exchange=exchange))
    client.world.run_turns()


class TestLife:
    """POLICY-04."""

    def test_governs_what_is_there_and_what_comes(self, world: World, client: Client) -> None:
        declare(client, "q1")
        lay_down(world, max_length=1)
        declare(client, "q2")
        declare(client, "other")
        for queue, kept in (("q1", [b"b"]), ("q2", [b"b"]), ("other", [b"a", b"b"])):
            publish(client, queue, b"a", b"b")
            assert bodies(client, queue) == kept

    def test_changed_then_gone(self, world: World, client: Client) -> None:
        declare(client, "q")
        lay_down(world, max_length=1)
        lay_down(world, max_length=2)
        publish(client, "q", b"a", b"b", b"c")
        assert bodies(client, "q") == [b"b", b"c"]
        lift(world)
        publish(client, "q", b"a", b"b", b"c")
        assert bodies(client, "q") == [b"a", b"b", b"c"]

    def test_deleting_what_is_not_there(self, world: World) -> None:
        assert world.vhost.policy_engine.delete_policy("none") is None

    def test_an_invalid_one_changes_nothing(self, world: World) -> None:
        lay_down(world, max_length=1)
        records = list(world.calls.records)
        with pytest.raises(InvalidPolicy):
            lay_down(world, max_length=-1)
        policy = world.vhost.policy_engine.policies.find("p")
        assert policy is not None
        assert policy.definition == {"max-length": 1}
        assert world.calls.records == records

    def test_the_same_once_more_is_not_logged(self, world: World) -> None:
        lay_down(world, max_length=1)
        records = list(world.calls.records)
        lay_down(world, max_length=1)
        assert world.calls.records == records

    def test_the_next_one_takes_over(self, world: World, client: Client) -> None:
        declare(client, "q")
        lay_down(world, "low", max_length=3)
        high = Policy("high", "^q", {"message-ttl": 0}, priority=1)
        world.vhost.policy_engine.set_policy(high)
        publish(client, "q", b"a")
        assert bodies(client, "q") == []
        lift(world, "high")
        publish(client, "q", b"a", b"b", b"c", b"d")
        assert bodies(client, "q") == [b"b", b"c", b"d"]

    def test_clients_that_declare_do_not_see_them(self, world: World, client: Client) -> None:
        """QUEUE-24."""
        lay_down(world, max_length=2)
        declare(client, "q", max_length=7)
        declare(client, "q", max_length=7)
        text = (
            "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': "
            "received '2' but current is '7'"
        )
        with closes_channel(client, 406, text, (50, 10)):
            table: Any = {"x-max-length": 2}
            client.method(1, commands.Queue.Declare(queue="q", arguments=table))

    def test_a_plain_queue_is_plain_again(self, world: World, client: Client) -> None:
        declare(client, "q")
        lay_down(
            world,
            max_length=1,
            message_ttl=1,
            expires=60_000,
            dead_letter_exchange="",
            delivery_limit=3,
            overflow="reject-publish",
        )
        assert rooms(world) == (True, True)
        lift(world)
        assert rooms(world) == (False, False)

    def test_forgets_deleted_queues(self, world: World, client: Client) -> None:
        lay_down(world, max_length=1)
        declare(client, "q")
        queue = world.vhost.queues["q"]
        assert world.vhost.policy_engine.policy_of_queue(queue).policy is not None
        client.ask(1, commands.Queue.Delete(queue="q"))
        assert world.vhost.policy_engine.policy_of_queue(queue).policy is None


class TestLength:
    """LEN-25, LEN-26."""

    def test_lowered_drops_heads_at_once(self, world: World, client: Client) -> None:
        declare(client, "q")
        publish(client, "q", b"a", b"b", b"c")
        lay_down(world, max_length=1)
        assert client.message_count("q") == 1
        assert bodies(client, "q") == [b"c"]

    def test_lowered_octets_drop_heads_at_once(self, world: World, client: Client) -> None:
        declare(client, "q")
        publish(client, "q", b"aaa", b"bbb", b"ccc")
        lay_down(world, max_length_bytes=7)
        assert bodies(client, "q") == [b"bbb", b"ccc"]

    def test_under_reject_publish_nothing_is_dropped(self, world: World, client: Client) -> None:
        declare(client, "q", overflow="reject-publish")
        client.ask(1, commands.Confirm.Select())
        publish(client, "q", b"a", b"b", b"c")
        world.sync()
        assert confirms(client)[-1][:2] == ("Basic.Ack", 3)
        lay_down(world, max_length=1)
        publish(client, "q", b"d")
        assert confirms(client) == [("Basic.Nack", 4, False)]
        assert bodies(client, "q") == [b"a", b"b", b"c"]

    def test_publishers_that_know_the_way_are_refused_too(
        self, world: World, client: Client
    ) -> None:
        """A route that is remembered is worked out anew: its queue has a gate now, or none."""
        declare(client, "q")
        client.ask(1, commands.Confirm.Select())
        publish(client, "q", b"a")
        lay_down(world, max_length=1, overflow="reject-publish")
        publish(client, "q", b"b")
        lift(world)
        publish(client, "q", b"c")
        world.sync()
        assert [name for name, _, _ in confirms(client)] == [
            *("Basic.Ack", "Basic.Nack", "Basic.Ack")
        ]
        assert bodies(client, "q") == [b"a", b"c"]

    def test_operators_have_the_last_word_on_overflow(self, world: World, client: Client) -> None:
        declare(client, "q", overflow="reject-publish", max_length=1)
        lay_down(world, overflow="reject-publish")
        lay_down_as_operator(world, overflow="drop-head")
        publish(client, "q", b"a", b"b")
        assert bodies(client, "q") == [b"b"]
        lift(world, "o", is_operator=True)
        publish(client, "q", b"a", b"b")
        assert bodies(client, "q") == [b"a"]

    def test_what_came_back_to_a_queue_that_refused_is_forgotten(
        self, world: World, client: Client
    ) -> None:
        """LEN-06: under other limits it is not what has just entered."""
        declare(client, "q")
        lay_down(world, max_length=1, overflow="reject-publish")
        client.consume("q", "c")
        publish(client, "q", b"a")
        client.hear()
        client.send(wire.nack(1, 1))
        client.hear()
        client.send(wire.ack(1, 2))
        client.hear()
        # Both in one turn: consumers come before the limit.
        world.vhost.policy_engine.set_policy(Policy("p", "^q", {"max-length": 1}))
        client.send(*(wire.publish(1, "q", body) for body in (b"b", b"c", b"d")))
        assert [delivery(what)[2] for _, what in client.hear()] == [b"b", b"c", b"d"]


class TestTime:
    """TTL-08, TTL-23."""

    def test_ttl_counts_from_arrival(self, world: World, client: Client) -> None:
        declare(client, "q")
        publish(client, "q", b"old")
        world.pass_time(1.5)
        publish(client, "q", b"new")
        lay_down(world, message_ttl=1000)
        assert client.message_count("q") == 1
        world.pass_time(0.9)
        assert client.message_count("q") == 1
        world.pass_time(0.2)
        assert client.message_count("q") == 0

    def test_longer_ttl_lets_live(self, world: World, client: Client) -> None:
        declare(client, "q")
        lay_down(world, message_ttl=1000)
        publish(client, "q", b"x")
        lay_down(world, message_ttl=5000)
        world.pass_time(4.0)
        assert client.message_count("q") == 1
        lift(world)
        world.pass_time(4.0)
        assert bodies(client, "q") == [b"x"]

    def test_own_expiration_holds_when_the_policy_is_gone(
        self, world: World, client: Client
    ) -> None:
        """TTL-01."""
        declare(client, "q")
        lay_down(world, message_ttl=5000)
        publish(client, "q", b"x", expiration="1000")
        lift(world)
        world.pass_time(1.1)
        assert client.message_count("q") == 0

    def test_expires(self, world: World, client: Client) -> None:
        declare(client, "q")
        world.pass_time(10)
        lay_down(world, expires=1000)
        world.pass_time(0.9)
        assert "q" in world.vhost.queues
        world.pass_time(0.2)
        assert "q" not in world.vhost.queues

    def test_the_smaller_queue_expiry_counts(self, world: World, client: Client) -> None:
        declare(client, "q", expires=1000)
        lay_down(world, expires=60_000)
        world.pass_time(1.1)
        assert "q" not in world.vhost.queues

    def test_a_lifted_queue_expiry_does_not_run_out(self, world: World, client: Client) -> None:
        declare(client, "q")
        lay_down(world, expires=1000)
        lift(world)
        world.pass_time(2)
        assert "q" in world.vhost.queues


class TestDeadLetters:
    """DLX-06, POLICY-06, REDELIVER-10."""

    def test_dead_letters_by_policy(self, world: World, client: Client) -> None:
        declare(client, "q")
        declare(client, "grave")
        publish(client, "q", b"early")
        lay_down(world, dead_letter_exchange="", dead_letter_routing_key="grave")
        reject(client, "q")
        assert bodies(client, "grave") == [b"early"]
        lift(world)
        publish(client, "q", b"late")
        reject(client, "q")
        assert bodies(client, "grave") == []

    def test_argument_beats_policy(self, world: World, client: Client) -> None:
        declare(client, "grave")
        lay_down(world, dead_letter_exchange="missing", dead_letter_routing_key="grave")
        declare(client, "q", dead_letter_exchange="")
        publish(client, "q", b"x")
        reject(client, "q")
        assert bodies(client, "grave") == [b"x"]

    def test_delivery_limit(self, world: World, client: Client) -> None:
        declare(client, "q", delivery_limit=9)
        lay_down_as_operator(world, delivery_limit=1)
        publish(client, "q", b"x")
        for _ in range(2):
            client.method(1, commands.Basic.Get(queue="q"))
            ((_, what),) = client.hear()
            assert isinstance(what, wire.Content)
            assert isinstance(what.method, commands.Basic.GetOk)
            client.method(1, commands.Basic.Reject(what.method.delivery_tag or 0, requeue=True))
            client.world.run_turns()
        assert bodies(client, "q") == []

    def test_safe_dead_letters_that_are_safe_no_more(self, world: World, client: Client) -> None:
        """DLX-09: what is kept goes on being tried, what dies later is not kept."""
        declare(client, "q")
        lay_down(world, dead_letter_exchange="x", dead_letter_strategy="at-least-once")
        publish(client, "q", b"kept")
        reject(client, "q")
        lay_down(world, dead_letter_exchange="x")
        publish(client, "q", b"dropped")
        reject(client, "q")
        declare_exchange(client, "x")
        declare(client, "grave")
        client.ask(1, commands.Queue.Bind(queue="grave", exchange="x"))
        world.pass_time(20)
        assert bodies(client, "grave") == [b"kept"]


class TestTimeouts:
    """CONS-70."""

    def test_the_smaller_of_policy_and_argument(self, world: World, client: Client) -> None:
        declare(client, "q1")
        declare(client, "q2", consumer_timeout=500)
        declare(client, "q3", consumer_timeout=100)
        lay_down(world, consumer_timeout=200)
        queues = world.vhost.queues
        found = [queues[name].features.consumer_timeout_ms for name in ("q1", "q2", "q3")]
        assert found == [200, 200, 100]
        lift(world)
        found = [queues[name].features.consumer_timeout_ms for name in ("q1", "q2", "q3")]
        assert found == [None, 500, 100]


class TestExchanges:
    """EXCH-63, DELAY-11."""

    def test_alternate_exchange(self, world: World, client: Client) -> None:
        declare_exchange(client, "qx")
        declare_exchange(client, "spare")
        declare(client, "behind")
        client.ask(1, commands.Queue.Bind(queue="behind", exchange="spare"))
        to(client, "qx", b"lost")
        lay_down(world, alternate_exchange="spare")
        to(client, "qx", b"found")
        lift(world)
        to(client, "qx", b"lost again")
        assert bodies(client, "behind") == [b"found"]

    def test_argument_beats_policy(self, world: World, client: Client) -> None:
        lay_down(world, alternate_exchange="missing")
        declare_exchange(client, "qx", arguments={"alternate-exchange": "spare"})
        assert world.vhost.exchanges["qx"].alternate == "spare"

    def test_delays_by_policy(self, world: World, client: Client) -> None:
        declare_exchange(client, "qx")
        declare(client, "behind")
        client.ask(1, commands.Queue.Bind(queue="behind", exchange="qx"))
        to(client, "qx", b"not delayed", headers={"x-delay": 1000})
        lay_down(world, delayed_message=True)
        to(client, "qx", b"delayed", headers={"x-delay": 1000})
        assert bodies(client, "behind") == [b"not delayed"]
        lift(world)
        to(client, "qx", b"not delayed", headers={"x-delay": 1000})
        assert bodies(client, "behind") == [b"not delayed"]
        world.pass_time(1.1)
        assert bodies(client, "behind") == [b"delayed"]
        assert "qx" in world.vhost.delay_queues
        # The next change finds the hold empty.
        lay_down(world, "another", "nothing", max_length=1)
        assert "qx" not in world.vhost.delay_queues

    def test_a_new_exchange_delays_at_once(self, world: World, client: Client) -> None:
        lay_down(world, delayed_message=True)
        declare_exchange(client, "qx")
        declare(client, "behind")
        client.ask(1, commands.Queue.Bind(queue="behind", exchange="qx"))
        to(client, "qx", b"x", headers={"x-delay": 1000})
        assert got(client, "behind") is None
        world.pass_time(1.1)
        assert bodies(client, "behind") == [b"x"]

    def test_neither_holds_nor_the_default_exchange_are_governed(
        self, world: World, client: Client
    ) -> None:
        lay_down(world, "p", ".*", delayed_message=True, max_length=1)
        assert not world.vhost.exchanges[""].delays
        declare_exchange(client, "x")
        declare(client, "behind")
        client.ask(1, commands.Queue.Bind(queue="behind", exchange="x"))
        for body in (b"a", b"b"):
            to(client, "x", body, headers={"x-delay": 1000})
        assert world.vhost.delay_queues["x"].ready_count == 2


class TestRestart:
    """DURABLE-01."""

    def test_policies_come_back_with_what_they_apply_to(self) -> None:
        world = DiskWorld()
        client = world.connect()
        client.open()
        client.declare("q", durable=True)
        declare_exchange(client, "qx", durable=True)
        lay_down(world, delayed_message=True, max_length=2, overflow="reject-publish")
        lay_down(world, "gone", "nothing", max_length=1)
        lay_down_as_operator(world, message_ttl=60_000)
        lift(world, "gone")
        world.sync()
        again = world.after_power_cut()
        policy_engine = again.vhost.policy_engine
        assert {each.name for each in policy_engine.policies} == {"p", "o"}
        features = again.vhost.queues["q"].features
        assert (features.number("max-length"), features.number("message-ttl")) == (2, 60_000)
        assert again.vhost.queues["q"].publish_filter is not None
        assert again.vhost.exchanges["qx"].delays
        assert "qx" in again.vhost.delay_queues

    def test_a_restart_counts_one_return_of_before_the_delivery_limit(self) -> None:
        """REDELIVER-13: nobody had counted, but that they have been out is known."""
        world = DiskWorld()
        client = world.connect()
        client.open()
        client.declare("q", durable=True)
        client.send(*(wire.publish(1, "q", body, wire.persistent()) for body in (b"a", b"b", b"c")))
        get = wire.method(1, commands.Basic.Get(queue="q"))
        # b stays out, a comes back twice, c has not been out.
        client.send(get, get, wire.nack(1, 1), get, wire.nack(1, 3))
        lay_down(world, delivery_limit=1)
        world.sync()
        client = world.after_power_cut().connect()
        client.open()
        client.send(get, get, get)
        got = [what for _, what in client.hear() if isinstance(what, wire.Content)]
        found = [
            (what.body, (what.properties.headers or {}).get("x-delivery-count")) for what in got
        ]
        assert found == [(b"a", 1), (b"b", 1), (b"c", None)]
        client.send(wire.nack(1, 0, multiple=True))
        client.world.sync()
        assert bodies(client, "q") == [b"c"]

    def test_deleted_ones_stay_away(self) -> None:
        world = DiskWorld()
        lay_down(world, max_length=2)
        lift(world)
        world.sync()
        assert not list(world.after_power_cut().vhost.policy_engine.policies)

    def test_streams_keep_their_limits(self) -> None:
        world = DiskWorld()
        client = world.connect()
        client.open()
        table: Any = {"x-queue-type": "stream"}
        client.ask(1, commands.Queue.Declare(queue="q", durable=True, arguments=table))
        lay_down(world, max_age="1h", max_length_bytes=1000)
        world.sync()
        for broker in (world, world.after_power_cut()):
            features = broker.vhost.queues["q"].features
            assert (features.text("max-age"), features.number("max-length-bytes")) == ("1h", 1000)
