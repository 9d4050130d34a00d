"""A connection that publishes while an alarm is up: what waits, what goes on, what comes after."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import (
    HEADER,
    NOTIFIED,
    SETTINGS,
    Client,
    World,
    closes_channel,
    confirms,
    name_of,
)
from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.server.connection.handshake import Offer
from vouchmq.server.connection.wire import BLOCKED

HEARING = (*NOTIFIED, "connection.blocked")
PLENTY = 1 << 40
CLOSE = wire.method(0, commands.Connection.Close(200, "", 0, 0))
CLOSE_OK = wire.method(0, commands.Connection.CloseOk())


@pytest.fixture
def world() -> World:
    """A broker whose memory alarm goes off above 1000."""
    world = World(replace(SETTINGS, blocked_connection_log_after_s=30.0))
    world.context.alarms.memory_limit_octets = 1000
    world.context.alarms.disk_limit_octets = 100
    return world


@pytest.fixture
def client(world: World) -> Client:
    """A client that wants to hear of it, with channel 1 open and queue q."""
    client = world.connect(capabilities=HEARING)
    client.open()
    client.declare("q")
    return client


def raise_alarm(world: World) -> None:
    """Memory is low."""
    world.context.alarms.read(2000, PLENTY)


def clear_alarm(world: World) -> None:
    """All is well."""
    world.context.alarms.read(0, PLENTY)


def reasons(said: list[wire.Heard]) -> list[str]:
    """The reasons of connection.blocked among what was heard, `-` for unblocked."""
    heard = []
    for channel, what in said:
        if isinstance(what, commands.Connection.Blocked):
            assert channel == 0
            heard.append(what.reason or "")
        elif isinstance(what, commands.Connection.Unblocked):
            heard.append("-")
    return heard


def queued(client: Client, queue: str = "q") -> int:
    """Ready messages as another connection sees them."""
    other = client.world.connect()
    other.open()
    return other.message_count(queue)


class TestBlocking:
    """LIMIT-10, LIMIT-13."""

    def test_nothing_happens_to_who_does_not_publish(self, world: World, client: Client) -> None:
        raise_alarm(world)
        assert client.hear() == []
        client.declare("other")
        client.open(2)
        assert client.consume("q", "c") == []
        late = world.connect(capabilities=HEARING)
        late.open()
        assert client.paused == late.paused == set()

    def test_first_publish_blocks(self, world: World, client: Client) -> None:
        raise_alarm(world)
        client.send(wire.publish(1, "q", b"x"), wire.method(1, commands.Basic.Qos(0, 1)))
        assert reasons(client.hear()) == ["low on memory"]
        assert client.paused == {BLOCKED}
        assert queued(client) == 0

    def test_a_publish_in_pieces_blocks_once(self, world: World, client: Client) -> None:
        raise_alarm(world)
        octets = wire.publish(1, "q", b"x" * 100, sizes=(40,))
        client.send(octets[:-70])
        assert reasons(client.hear()) == ["low on memory"]
        client.send(octets[-70:-30])
        client.send(octets[-30:])
        assert client.hear() == []
        assert queued(client) == 0
        clear_alarm(world)
        assert reasons(client.hear()) == ["-"]
        assert queued(client) == 1

    def test_a_message_that_was_on_its_way_waits_at_its_end(
        self, world: World, client: Client
    ) -> None:
        octets = wire.publish(1, "q", b"x" * 100)
        client.send(octets[:-50])
        raise_alarm(world)
        client.send(octets[-50:])
        assert reasons(client.hear()) == ["low on memory"]
        clear_alarm(world)
        assert reasons(client.hear()) == ["-"]
        assert queued(client) == 1

    def test_who_cannot_hear_is_not_told(self, world: World) -> None:
        deaf = world.connect()
        deaf.open()
        raise_alarm(world)
        deaf.send(wire.publish(1, "nowhere", b"x"))
        assert deaf.hear() == []
        assert deaf.paused == {BLOCKED}
        clear_alarm(world)
        assert deaf.hear() == []
        assert deaf.paused == set()

    def test_second_alarm_is_silent_and_the_last_one_ends_it(
        self, world: World, client: Client
    ) -> None:
        raise_alarm(world)
        client.send(wire.publish(1, "q"))
        world.context.alarms.read(2000, 0)
        assert reasons(client.hear()) == ["low on memory"]
        world.context.alarms.read(0, 0)
        assert client.hear() == []
        clear_alarm(world)
        assert reasons(client.hear()) == ["-"]

    def test_two_alarms_at_once(self, world: World, client: Client) -> None:
        world.context.alarms.read(2000, 0)
        client.send(wire.publish(1, "q"))
        assert reasons(client.hear()) == ["low on memory & disk"]

    def test_again_and_again(self, world: World, client: Client) -> None:
        for _ in range(3):
            raise_alarm(world)
            client.send(wire.publish(1, "q"))
            assert reasons(client.hear()) == ["low on memory"]
            clear_alarm(world)
            assert reasons(client.hear()) == ["-"]
        assert queued(client) == 3

    def test_an_unknown_channel_is_an_error_before_all(self, world: World, client: Client) -> None:
        raise_alarm(world)
        client.send(wire.publish(7, "q"))
        assert [name_of(what) for _, what in client.hear()] == ["Connection.Close"]

    def test_publishes_to_a_closing_channel_do_not_block(
        self, world: World, client: Client
    ) -> None:
        client.method(1, commands.Basic.Ack(99))
        assert client.names() == ["Channel.Close"]
        raise_alarm(world)
        client.send(wire.publish(1, "q"), wire.method(1, commands.Channel.CloseOk()))
        assert client.paused == set()
        client.open(1)

    def test_a_transaction_blocks_too(self, world: World, client: Client) -> None:
        client.method(1, commands.Tx.Select())
        assert client.names() == ["Tx.SelectOk"]
        raise_alarm(world)
        client.send(wire.publish(1, "q"), wire.method(1, commands.Tx.Commit()))
        assert reasons(client.hear()) == ["low on memory"]
        clear_alarm(world)
        assert client.names() == ["Connection.Unblocked", "Tx.CommitOk"]


class TestBlocked:
    """LIMIT-11, LIMIT-12, CONN-62, LIMIT-16."""

    def test_nothing_behind_the_publish_is_done(self, world: World, client: Client) -> None:
        client.send(wire.publish(1, "q", b"1"))
        client.consume("q", "c")
        raise_alarm(world)
        client.send(
            wire.publish(1, "q", b"2"),
            wire.ack(1, 1),
            wire.method(3, commands.Channel.Open()),
            CLOSE,
        )
        client.send(wire.heartbeat())
        assert client.names() == ["Connection.Blocked"]
        clear_alarm(world)
        said = client.names()
        assert said[0] == "Connection.Unblocked"
        assert said[-2:] == ["Channel.OpenOk", "Connection.CloseOk"]
        assert queued(client) == 1

    def test_order_is_kept_over_all_that_waited(self, world: World, client: Client) -> None:
        client.method(1, commands.Confirm.Select())
        assert client.names() == ["Confirm.SelectOk"]
        raise_alarm(world)
        client.send(*(wire.publish(1, "q", b"%d" % number) for number in range(10)))
        for number in range(10, 20):
            client.send(wire.publish(1, "q", b"%d" % number))
        assert reasons(client.hear()) == ["low on memory"]
        clear_alarm(world)
        assert confirms(client.hear()) == [("Basic.Ack", 20, True)]
        client.method(1, commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True))
        _, *bodies = client.hear()
        assert [what.body for _, what in bodies if isinstance(what, wire.Content)] == [
            b"%d" % number for number in range(20)
        ]

    def test_deliveries_go_on(self, world: World, client: Client) -> None:
        client.consume("q", "c")
        raise_alarm(world)
        client.send(wire.publish(1, "nowhere"))
        assert client.names() == ["Connection.Blocked"]
        world.context.alarms.is_raised = False  # for the other one's publish
        feeder = world.connect()
        feeder.open()
        feeder.send(wire.publish(1, "q", b"for you"))
        assert [body for _, _, body, _ in client.deliveries()] == [b"for you"]
        assert client.paused == {BLOCKED}

    def test_heartbeats_go_on_and_silence_is_forgiven(self, world: World) -> None:
        world.offer = Offer("n@h", "VouchMQ", "1", "test", channel_max=10, heartbeat_s=10)
        client = world.client()
        client.send(HEADER)
        client.log_in("guest", HEARING)
        client.send(wire.method(0, commands.Connection.TuneOk(10, wire.FRAME_MAX, 10)))
        client.send(wire.method(0, commands.Connection.Open("/")))
        client.send(wire.method(1, commands.Channel.Open()))
        client.hear()
        raise_alarm(world)
        client.send(wire.publish(1, "nowhere"))
        assert client.names() == ["Connection.Blocked"]
        client.sleep(60)
        assert client.names().count("heartbeat") >= 10
        assert client.ends == []
        clear_alarm(world)
        client.sleep(15)
        assert client.ends == []
        client.sleep(15)
        assert client.ends == ["aborted"]

    def test_it_is_logged_after_a_while(
        self, world: World, client: Client, capsys: pytest.CaptureFixture[str]
    ) -> None:
        raise_alarm(world)
        client.send(wire.publish(1, "q"))
        client.sleep(29)
        assert "connection.blocked" not in capsys.readouterr().out
        client.sleep(2)
        told = capsys.readouterr().out
        assert "connection.blocked" in told
        assert client.name in told
        clear_alarm(world)
        client.sleep(100)
        assert "connection.blocked" not in capsys.readouterr().out


class TestEnds:
    """Connections that end while they are blocked."""

    @pytest.fixture
    def blocked(self, world: World, client: Client) -> Client:
        """A blocked client with an exclusive queue and more behind its publish."""
        client.declare("mine", exclusive=True)
        raise_alarm(world)
        client.send(wire.publish(1, "q", b"1"), wire.publish(1, "q", b"2"))
        assert client.names() == ["Connection.Blocked"]
        return client

    def test_lost(self, world: World, blocked: Client) -> None:
        blocked.connection.lost("reset")
        assert world.context.alarms.blocked_count == 0
        assert blocked.connection not in world.connections
        clear_alarm(world)
        world.run_turns()
        assert bytes(blocked.octets) == b""
        other = world.connect()
        other.open()
        assert other.message_count("q") == 0
        with closes_channel(other, 404, "NOT_FOUND - no queue 'mine' in vhost '/'", (50, 10)):
            other.method(1, commands.Queue.Declare(queue="mine", passive=True))

    def test_shut_down(self, world: World, blocked: Client) -> None:
        """What it had published is not taken any more; its close-ok is found behind that."""
        blocked.connection.shut_down("bye")
        assert blocked.names() == ["Connection.Close"]
        assert blocked.paused == set()
        blocked.send(wire.publish(1, "q", b"3"), CLOSE_OK)
        assert blocked.ends == ["finished"]
        assert world.context.alarms.blocked_count == 0
        clear_alarm(world)
        assert queued(blocked) == 0
        assert all(timer.is_cancelled for timer in blocked.timers)

    def test_channel_error_from_outside(self, world: World, blocked: Client) -> None:
        """Its channel is gone when it goes on: the rest is dropped, the connection lives."""
        blocked.connection.fail_channel(1, PreconditionFailed("partial tx completion"))
        assert blocked.names() == ["Channel.Close"]
        clear_alarm(world)
        assert blocked.names() == ["Connection.Unblocked"]
        blocked.method(1, commands.Channel.CloseOk())
        blocked.open(1)
        assert queued(blocked) == 0
