"""A connection, octets in and octets out: header, order, stalls, heartbeats and every end."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace

import pytest
from pamqp import base, commands
from structlog.testing import capture_logs

from tests import wire
from tests.unit.server.in_memory import (
    HEADER,
    SETTINGS,
    Client,
    World,
    closes_channel,
    closes_connection,
    confirms,
    delivery,
    name_of,
)
from vouchmq.protocol.states import ConnectionState
from vouchmq.server.channel.channel import Channel
from vouchmq.server.connection.connection import Connection
from vouchmq.server.connection.handshake import Offer
from vouchmq.server.connection.wire import FLOODED, REASONS, STALLED

CLOSE = wire.method(0, commands.Connection.Close(200, "", 0, 0))
CLOSE_OK = wire.method(0, commands.Connection.CloseOk())


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


def beating(world: World, interval: int = 10) -> Client:
    """A client with heartbeats."""
    client = world.client()
    client.send(HEADER)
    client.log_in("guest")
    client.send(wire.method(0, commands.Connection.TuneOk(10, wire.FRAME_MAX, interval)))
    client.send(wire.method(0, commands.Connection.Open("/")))
    client.hear()
    return client


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_connection_is_logged_unless_the_log_shows_warnings_only(
    world: World, is_logged: bool
) -> None:
    world.context.logs_connections = is_logged
    with capture_logs() as logs:
        client = world.connect()
        client.send(CLOSE)
    assert client.ends
    lines = [(each["event"], each.get("user")) for each in logs]
    opened_and_closed = [("connection.opened", "guest"), ("connection.closed", None)]
    assert lines == (opened_and_closed if is_logged else [])


class TestHeader:
    """CONN-01…06."""

    @pytest.mark.parametrize("header", [HEADER, b"AMQP\x01\x01\x00\x09"])
    def test_start_follows_the_header_in_any_cut(self, world: World, header: bytes) -> None:
        client = world.client()
        for at in range(8):
            assert client.hear() == []
            client.send(header[at : at + 1])
        assert client.names() == ["Connection.Start"]

    @pytest.mark.parametrize(
        "header",
        [
            b"AMQP\x00\x00\x08\x00",
            b"AMQP\x00\x01\x00\x00",
            b"AMQP\x03\x01\x00\x00",
            b"GET / HT",
            b"\x16\x03\x01\x02\x00\x01\x00\x01",
        ],
    )
    def test_bad_header_is_answered_with_ours(self, world: World, header: bytes) -> None:
        """CONN-03: and what follows it is not interpreted."""
        client = world.client()
        client.send(header + b"junk", wire.heartbeat())
        assert bytes(client.octets) == HEADER
        assert client.ends == ["finished"]
        client.send(wire.frame(9, 9, b"x"))
        client.sleep(100)
        assert bytes(client.octets) == HEADER

    @pytest.mark.parametrize("octets", [b"", b"AMQP"])
    def test_silent_client_is_dropped(self, world: World, octets: bytes) -> None:
        """CONN-04, CONN-06."""
        client = world.client()
        client.send(octets)
        client.sleep(9.9)
        assert client.ends == []
        client.sleep(0.2)
        assert client.ends == ["aborted"]
        assert client.octets == b""

    @pytest.mark.parametrize("heartbeat", [0, 1])
    def test_handshake_timeout_lasts_until_open(self, world: World, heartbeat: int) -> None:
        """CONN-06: heartbeats do not keep an unopened connection alive."""
        client = world.client()
        client.send(HEADER)
        client.log_in("guest")
        client.send(wire.method(0, commands.Connection.TuneOk(10, 4096, heartbeat)))
        for _ in range(9):
            client.send(wire.heartbeat())
            client.sleep(1)
        assert client.ends == []
        client.sleep(1.1)
        assert client.ends == ["aborted"]

    def test_the_handshake_needs_no_turn(self, world: World) -> None:
        """What is said before open-ok rests on nothing that a turn has still to write."""
        client = world.client()
        client.send(HEADER)
        client.log_in("guest")
        client.send(wire.method(0, commands.Connection.TuneOk(10, 4096, 0)))
        assert world.scheduled == []
        assert client.names() == ["Connection.Start", "Connection.Tune"]
        client.send(wire.method(0, commands.Connection.Open("/")))
        assert b"\x00\x0a\x00\x29" in client.octets

    def test_a_whole_handshake_in_one_piece_is_answered_in_order(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = world.client()
        octets = bytearray(HEADER)
        with monkeypatch.context() as patch:
            patch.setattr(client, "send", octets.extend)
            client.log_in("guest")
        octets += wire.method(0, commands.Connection.TuneOk(10, 4096, 0))
        octets += wire.method(0, commands.Connection.Open("/"))
        octets += wire.method(1, commands.Channel.Open())
        client.send(bytes(octets))
        names = ["Connection.Start", "Connection.Tune", "Connection.OpenOk", "Channel.OpenOk"]
        assert client.names() == names

    def test_opened_connection_has_no_timeout(self, client: Client) -> None:
        client.sleep(1000)
        assert client.ends == []


class TestOrder:
    """CONN-34, CONN-35, CONN-50…52."""

    STATES = ("starting", "tuning", "opening")

    def in_state(self, world: World, state: str) -> Client:
        """A client whose connection is in this state."""
        client = world.client()
        client.send(HEADER)
        if state != "starting":
            client.log_in("guest")
        if state == "opening":
            client.send(wire.method(0, commands.Connection.TuneOk(10, 4096, 0)))
        client.hear()
        assert client.connection.state == state
        return client

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize(
        "octets",
        [
            wire.method(1, commands.Channel.Open()),
            wire.ack(1, 1),
            wire.publish(1, "q", b"x"),
            wire.header(1, 1),
        ],
    )
    def test_channel_before_open(self, world: World, state: str, octets: bytes) -> None:
        client = self.in_state(world, state)
        client.send(octets)
        ((channel, close),) = client.hear()
        assert isinstance(close, commands.Connection.Close)
        assert (channel, close.reply_code) == (0, 505)
        assert (close.reply_text or "").startswith("UNEXPECTED_FRAME - ")

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize(
        "method",
        [
            commands.Connection.SecureOk("x"),
            commands.Connection.Close(200, "", 0, 0),
            commands.Connection.CloseOk(),
            commands.Channel.Open(),
            commands.Basic.Ack(1),
            commands.Queue.Declare(queue="q"),
        ],
    )
    def test_channel_zero_out_of_turn(self, world: World, state: str, method: base.Frame) -> None:
        client = self.in_state(world, state)
        text = f"CHANNEL_ERROR - unexpected method in connection state {state}"
        with closes_connection(client, 504, text, divmod(method.index, 65536)):
            client.method(0, method)

    @pytest.mark.parametrize(
        "method",
        [
            commands.Channel.Open(),
            commands.Connection.TuneOk(0, 0, 0),
            commands.Connection.Open("/"),
            commands.Connection.CloseOk(),
            commands.Connection.Blocked("x"),
            commands.Connection.Start(),
            commands.Basic.Ack(1),
            commands.Basic.Publish(exchange="", routing_key="q"),
            commands.Basic.Deliver("t", 1, False, "", "q"),
        ],
    )
    def test_channel_zero_while_running(self, client: Client, method: base.Frame) -> None:
        """CONN-51."""
        text = "CHANNEL_ERROR - unexpected method in connection state running"
        with closes_connection(client, 504, text, divmod(method.index, 65536)):
            client.method(0, method)

    @pytest.mark.parametrize(
        "method", [commands.Connection.Close(200, "", 0, 0), commands.Connection.Open("/")]
    )
    def test_class_ten_on_a_channel(self, client: Client, method: base.Frame) -> None:
        """CONN-52."""
        text = "COMMAND_INVALID - unimplemented method"
        with closes_connection(client, 503, text, divmod(method.index, 65536)):
            client.method(1, method)

    def test_unknown_method(self, client: Client) -> None:
        """FRAME-16."""
        with closes_connection(client, 540, "NOT_IMPLEMENTED - unknown method 60.99", (60, 99)):
            client.send(wire.frame(1, 1, b"\x00\x3c\x00\x63"))

    def test_undecodable_arguments(self, client: Client) -> None:
        """FRAME-15."""
        client.send(wire.frame(1, 1, b"\x00\x32\x00\x0a\x00\x00\x09q"))
        ((_, close),) = client.hear()
        assert isinstance(close, commands.Connection.Close)
        assert (close.reply_code, close.class_id, close.method_id) == (501, 50, 10)
        assert (close.reply_text or "").startswith("FRAME_ERROR - cannot decode ")

    def test_frame_limit_before_and_after_tuning(self, world: World) -> None:
        """CONN-34."""
        client = world.client()
        client.send(HEADER)
        client.hear()
        client.send(wire.frame(1, 0, bytes(8193))[:7])
        assert client.names() == ["Connection.Close"]
        client = world.connect()
        client.send(wire.frame(1, 0, bytes(wire.FRAME_MAX + 1))[:7])
        assert client.names() == ["Connection.Close"]

    def test_too_many_channels(self, client: Client) -> None:
        """CONN-33: counted, not numbered."""
        for number in range(2, 10):
            client.open(number)
        client.open(65535)
        text = (
            "NOT_ALLOWED - number of channels opened (10) has reached the negotiated "
            "channel_max (10)"
        )
        with closes_connection(client, 530, text, (0, 0)):
            client.method(77, commands.Channel.Open())

    def test_second_open_of_a_channel(self, client: Client) -> None:
        with closes_connection(client, 504, "CHANNEL_ERROR - second 'channel.open' seen", (20, 10)):
            client.method(1, commands.Channel.Open())

    def test_a_bug_is_541_without_detail(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError("secret")

        other = client.world.connect()
        other.open()
        monkeypatch.setattr("vouchmq.server.connection.connection.handle", broken)
        client.method(1, commands.Basic.Qos(0, 1, False))
        ((_, close),) = client.hear()
        assert isinstance(close, commands.Connection.Close)
        assert close.reply_code == 541
        assert "secret" not in (close.reply_text or "")
        monkeypatch.undo()
        other.method(1, commands.Basic.Qos(0, 1, False))
        assert other.names() == ["Basic.QosOk"]


def test_each_reason_not_to_read_is_a_bit_of_its_own() -> None:
    assert sorted(REASONS) == [1 << at for at in range(len(REASONS))]


class TestStalls:
    """GEN-08, DURABLE-02."""

    def test_durable_declare_waits_and_everything_behind_it(self, client: Client) -> None:
        client.open(2)
        client.send(
            wire.method(1, commands.Queue.Declare(queue="d", durable=True)),
            wire.method(1, commands.Queue.Declare(queue="t")),
            wire.method(2, commands.Queue.Declare(queue="u")),
            wire.publish(1, "t", b"x"),
        )
        assert client.hear() == []
        assert client.paused == {STALLED}
        client.send(wire.method(1, commands.Basic.Get(queue="t")))
        client.send(wire.heartbeat()[:3])
        client.send(wire.heartbeat()[3:])
        assert client.hear() == []
        client.world.sync()
        assert client.names() == ["Queue.DeclareOk"] * 3 + ["Basic.GetOk"]
        assert client.paused == set()

    def test_publishes_behind_it_are_written_although_nobody_else_asks_for_a_turn(
        self, client: Client
    ) -> None:
        client.declare("d", durable=True)
        client.ask(1, commands.Confirm.Select())
        client.send(
            wire.method(1, commands.Queue.Declare(queue="e", durable=True)),
            wire.publish(1, "d", b"x", wire.persistent()) * 3,
        )
        client.world.sync()
        client.world.sync()
        assert client.names() == ["Queue.DeclareOk", "Basic.Ack"]

    def test_two_durable_declares_wait_one_by_one(self, client: Client) -> None:
        for queue in "ab":
            client.send(wire.method(1, commands.Queue.Declare(queue=queue, durable=True)))
        client.world.run_turns()
        client.world.sync_once()
        assert client.names() == ["Queue.DeclareOk"]
        assert client.paused == {STALLED}
        client.world.sync_once()
        assert client.names() == ["Queue.DeclareOk"]
        assert client.paused == set()

    def test_watermark_short_of_it_is_not_enough(self, client: Client) -> None:
        client.method(1, commands.Queue.Declare(queue="d", durable=True))
        client.world.context.synced(client.world.journal.written_lsn - 1)
        assert client.hear() == []

    def test_other_connections_go_on(self, client: Client) -> None:
        other = client.world.connect()
        other.open()
        client.method(1, commands.Queue.Declare(queue="d", durable=True))
        other.method(1, commands.Queue.Declare(queue="t"))
        assert other.names() == ["Queue.DeclareOk"]

    def test_close_behind_a_stall(self, client: Client) -> None:
        client.send(
            wire.method(1, commands.Queue.Declare(queue="d", durable=True)),
            CLOSE,
            wire.method(1, commands.Queue.Declare(queue="never")),
        )
        client.send(wire.method(1, commands.Queue.Declare(queue="never")))
        assert client.hear() == []
        client.world.sync()
        assert client.names() == ["Queue.DeclareOk", "Connection.CloseOk"]
        assert client.ends == ["finished"]
        assert "never" not in client.world.vhost.queues

    def test_lost_while_stalled(self, client: Client) -> None:
        client.send(
            wire.method(1, commands.Queue.Declare(queue="d", durable=True)),
            wire.method(1, commands.Queue.Declare(queue="never")),
        )
        client.connection.lost("reset")
        client.world.sync()
        assert client.octets == b""
        assert "never" not in client.world.vhost.queues

    def test_failed_storage_ends_the_connection(self, client: Client) -> None:
        client.send(
            wire.method(1, commands.Queue.Declare(queue="d", durable=True)),
            wire.method(1, commands.Queue.Declare(queue="never")),
        )
        with closes_connection(client, 320, "CONNECTION_FORCED - storage has failed", (0, 0)):
            client.world.context.storage_failed()
        assert client.paused == set()
        assert "never" not in client.world.vhost.queues

    def test_forced_close_while_stalled_hears_close_ok(self, client: Client) -> None:
        client.send(
            wire.method(1, commands.Queue.Declare(queue="d", durable=True)),
            wire.publish(1, "q", b"x" * 100)[:-20],
        )
        with closes_connection(client, 320, "CONNECTION_FORCED - shutdown", (0, 0)):
            client.connection.shut_down("shutdown")
            client.send(wire.publish(1, "q", b"x" * 100)[-20:])
        assert client.paused == set()

    def test_flood_stops_reading_until_the_disk_has_caught_up(self) -> None:
        """LIMIT-20."""
        world = World(replace(SETTINGS, unsynced_limit_bytes=10_000))
        client = world.connect()
        client.open()
        client.declare("d", durable=True)
        for _ in range(3):
            client.send(wire.publish(1, "d", b"x" * 4000, wire.persistent()))
            assert client.paused == set()
            world.run_turns()
        client.send(wire.publish(1, "d", b"y", wire.persistent()))
        assert client.paused == {FLOODED}
        world.sync()
        assert client.paused == set()


class TestHeartbeats:
    """CONN-60…63."""

    def test_beats_when_it_has_said_nothing(self, world: World) -> None:
        client = beating(world)
        for _ in range(5):
            client.send(wire.heartbeat())
            client.sleep(5)
        assert client.names() == ["heartbeat"] * 5

    def test_speech_is_a_beat(self, world: World) -> None:
        client = beating(world)
        client.open()
        for _ in range(9):
            client.method(1, commands.Basic.Qos(0, 1, False))
            assert "heartbeat" not in client.names()
            client.sleep(3)
        assert client.names() == []

    def test_silent_peer_is_dropped_without_a_word(self, world: World) -> None:
        """CONN-61."""
        client = beating(world)
        client.sleep(19.9)
        assert client.ends == []
        client.sleep(10.2)
        assert client.ends == ["aborted"]
        assert set(client.names()) == {"heartbeat"}

    def test_peer_that_could_not_be_heard_is_not_silent(self, world: World) -> None:
        """CONN-61: the loop stood still, on a disk that hung; what has come is read after that."""
        client = beating(world)
        client.sleep(4)
        world.now += 100
        client.sleep(1)
        assert client.ends == []
        # From then on it is listened to again.
        client.sleep(30)
        assert client.ends == ["aborted"]

    def test_any_octet_is_a_sign_of_life(self, world: World) -> None:
        client = beating(world)
        octets = wire.heartbeat()
        for at in range(8):
            client.send(octets[at : at + 1])
            client.sleep(15)
        assert client.ends == []

    @pytest.mark.parametrize("reason", ["stalled", "flooded"])
    def test_peer_we_do_not_read_is_not_silent(self, reason: str) -> None:
        """CONN-62."""
        world = World(replace(SETTINGS, unsynced_limit_bytes=100))
        client = beating(world)
        client.open()
        client.declare("d", durable=True)
        if reason == "stalled":
            client.method(1, commands.Queue.Declare(queue="e", durable=True))
        else:
            client.send(wire.publish(1, "d", b"x" * 1000, wire.persistent()))
            world.run_turns()
            client.send(wire.publish(1, "d", b"y", wire.persistent()))
        assert client.paused
        client.sleep(100)
        assert client.ends == []
        assert len(client.hear()) == 20

    def test_peer_has_time_to_speak_once_it_is_read_again(self) -> None:
        """CONN-62: what it said meanwhile has only not been read."""
        world = World()
        client = beating(world)
        client.open()
        client.method(1, commands.Queue.Declare(queue="e", durable=True))
        client.sleep(100)
        world.sync()
        client.sleep(6)
        assert client.ends == []

    def test_no_heartbeats(self, client: Client) -> None:
        client.sleep(10_000)
        assert client.hear() == []
        assert client.ends == []
        client.send(wire.heartbeat())
        assert client.hear() == []

    @pytest.mark.parametrize(
        ("octets", "code"), [(wire.frame(8, 1, b""), 505), (wire.frame(8, 0, b"x"), 501)]
    )
    def test_wrong_heartbeat(self, client: Client, octets: bytes, code: int) -> None:
        """CONN-63."""
        client.send(octets)
        ((_, close),) = client.hear()
        assert isinstance(close, commands.Connection.Close)
        assert close.reply_code == code


def opened_kinds() -> Counter[type]:
    """How many connections and channels there are, alive or waiting for the collector."""
    found = (type(each) for each in gc.get_objects())
    return Counter(kind for kind in found if kind in {Connection, Channel})


class TestEnds:
    """CONN-53…56."""

    def test_client_close_frees_everything_before_close_ok(self, client: Client) -> None:
        client.declare("mine", exclusive=True)
        client.declare("q")
        client.send(wire.publish(1, "q", b"a"), wire.publish(1, "q", b"b"))
        client.consume("q", "t")
        client.method(0, commands.Connection.Close(200, "", 0, 0))
        queue = client.world.vhost.queues["q"]
        assert "mine" not in client.world.vhost.queues
        assert (queue.ready_count, queue.consumer_count, queue.unacked_count) == (2, 0, 0)
        assert client.names() == ["Connection.CloseOk"]
        assert client.ends == ["finished"]

    def test_who_has_said_its_close_may_send_on(self, client: Client) -> None:
        """CONN-07: what stood behind its close, and behind its answer to ours."""
        client.method(0, commands.Connection.Close(200, "", 0, 0))
        failed = beating(client.world)
        failed.method(0, commands.Channel.Open())
        assert failed.ends == []
        failed.send(CLOSE_OK)
        assert (client.is_orderly_end, failed.is_orderly_end) == (True, True)
        silent = beating(client.world)
        silent.method(0, commands.Channel.Open())
        silent.sleep(11)
        assert silent.ends == ["finished"]
        assert not silent.is_orderly_end
        other = client.world.connect()
        other.open()
        other.declare("mine", exclusive=True)

    @pytest.mark.parametrize(
        "more",
        [
            wire.method(1, commands.Queue.Declare(queue="never")),
            wire.method(2, commands.Channel.Open()),
            wire.publish(1, "q", b"never"),
            wire.publish(2, "q", b"never"),
            wire.ack(1, 1),
            wire.heartbeat(),
        ],
        ids=["method", "open", "publish", "no channel", "ack", "heartbeat"],
    )
    def test_what_comes_behind_our_close_is_discarded_until_its_answer(
        self, client: Client, more: bytes
    ) -> None:
        """CONN-54: the client may not have read it yet."""
        client.declare("q")
        client.method(0, commands.Connection.Blocked("not for us"))
        assert client.names() == ["Connection.Close"]
        client.send(more, more)
        assert client.hear() == []
        assert client.ends == []
        client.send(CLOSE_OK)
        assert client.ends == ["finished"]
        assert list(client.world.vhost.queues) == ["q"]
        assert client.world.vhost.queues["q"].ready_count == 0

    def test_octets_after_close_are_discarded(self, client: Client) -> None:
        client.send(CLOSE, wire.method(1, commands.Queue.Declare(queue="never")), b"\xff" * 50)
        assert client.names() == ["Connection.CloseOk"]
        assert client.world.vhost.queues == {}

    def test_own_close_then_close_ok(self, client: Client) -> None:
        """CONN-54."""
        client.method(0, commands.Channel.Open())
        assert client.names() == ["Connection.Close"]
        assert client.ends == []
        client.send(
            wire.publish(1, "q", b"x"),
            wire.ack(1, 1),
            wire.ack(77, 1),
            wire.method(1, commands.Channel.Open()),
            wire.method(0, commands.Connection.Open("/")),
            wire.heartbeat(),
        )
        assert client.hear() == []
        client.send(CLOSE)
        assert client.names() == ["Connection.CloseOk"]
        assert client.ends == []
        client.send(CLOSE_OK)
        assert client.ends == ["finished"]
        assert client.hear() == []

    def test_close_ok_does_not_come(self, client: Client) -> None:
        client.method(0, commands.Channel.Open())
        client.sleep(29)
        assert client.ends == []
        client.sleep(2)
        assert client.ends == ["finished"]

    def test_close_ok_does_not_come_with_heartbeats(self, world: World) -> None:
        """CONN-54: min(30 s, heartbeat), and heartbeats go on meanwhile."""
        client = beating(world)
        client.method(0, commands.Channel.Open())
        client.sleep(9)
        assert client.names() == ["Connection.Close", "heartbeat"]
        assert client.ends == []
        client.sleep(2)
        assert client.ends == ["finished"]

    def test_lost_synchronisation_ends_at_once(self, client: Client) -> None:
        """FRAME-11: the close is said, then the socket is closed with grace."""
        client.send(wire.frame(1, 1, b"\x00\x3c\x00\x0a" + bytes(7), 0))
        assert client.names() == ["Connection.Close"]
        assert client.ends == ["finished"]

    def test_junk_after_our_close_ends_at_once(self, client: Client) -> None:
        client.method(0, commands.Channel.Open())
        client.hear()
        client.send(wire.frame(9, 0, b"junk"))
        assert client.ends == ["finished"]

    def test_lost_socket_requeues_and_frees(self, client: Client) -> None:
        """CONN-55."""
        client.declare("mine", exclusive=True)
        client.declare("q")
        client.send(wire.publish(1, "q", b"a"))
        client.consume("q", "t")
        client.connection.lost("reset")
        assert "mine" not in client.world.vhost.queues
        other = client.world.connect()
        other.open()
        assert [delivery(what) for _, what in other.consume("q", "u")] == [("u", 1, b"a", True)]
        client.sleep(1000)
        assert client.octets == b""

    def test_lost_in_every_state(self, world: World) -> None:
        client = world.client()
        client.connection.lost("gone")
        client = world.client()
        client.send(HEADER)
        client.connection.lost("gone")
        client = world.connect()
        client.method(0, commands.Channel.Open())
        client.connection.lost("gone")
        assert client.connection.state is ConnectionState.CLOSED

    def test_lost_after_a_close_counts_once(self, world: World) -> None:
        client = world.connect()
        client.send(CLOSE)
        client.connection.lost("gone")
        assert world.connection_limits.connection_count == 0

    def test_forced_close(self, client: Client) -> None:
        """CONN-56, CONN-57."""
        client.declare("d", durable=True)
        client.ask(1, commands.Confirm.Select())
        client.send(wire.publish(1, "d", b"x", wire.persistent()))
        client.world.sync()
        with closes_connection(client, 320, "CONNECTION_FORCED - reason", (0, 0)):
            client.connection.shut_down("reason")

    def test_forced_close_says_confirms_first(self, client: Client) -> None:
        client.declare("d", durable=True)
        client.ask(1, commands.Confirm.Select())
        client.send(wire.publish(1, "d", b"x", wire.persistent()))
        client.world.sync()
        client.connection.shut_down("reason")
        said = client.hear()
        assert confirms(said[:1]) == [("Basic.Ack", 1, False)]
        assert name_of(said[1][1]) == "Connection.Close"

    def test_forced_close_before_open(self, world: World) -> None:
        client = world.client()
        client.connection.shut_down("reason")
        assert client.ends == ["aborted"]

    def test_hard_error_cleans_up_first(self, client: Client) -> None:
        client.declare("mine", exclusive=True)
        client.method(0, commands.Channel.Open())
        assert client.world.vhost.queues == {}

    def test_long_text_is_cut_at_a_character(self, client: Client) -> None:
        """GEN-03."""
        name = "ä" * 127
        text = f"NOT_FOUND - no queue '{name}' in vhost '/'".encode()[:255].decode(errors="ignore")
        with closes_channel(client, 404, text, (50, 10)):
            octets = b"\x00\x32\x00\x0a\x00\x00\xfe" + name.encode() + b"\x01" + bytes(4)
            client.send(wire.frame(1, 1, octets))

    @pytest.mark.parametrize("is_polite", [True, False])
    def test_what_has_gone_leaves_nothing_to_the_garbage_collector(
        self, world: World, *, is_polite: bool
    ) -> None:
        """A ring between a connection and its parts would keep each until the next collection."""
        client = world.connect()
        client.open()
        client.declare("q")
        client.method(1, commands.Confirm.Select())
        client.send(wire.publish(1, "q", b"x", wire.persistent()))
        client.send(wire.publish(1, "q", b"y"))
        world.sync()
        client.method(1, commands.Basic.Consume(0, "q", "t"))
        client.hear()
        if is_polite:
            client.send(CLOSE)
            client.hear()
        gc.collect()
        there = opened_kinds()
        ended = Counter([Connection] if is_polite else [Connection, Channel])
        assert there >= ended
        client.timers.clear()
        gc.disable()
        try:
            client.connection.lost("gone")
            del client.connection
            world.run_turns()
            assert opened_kinds() == there - ended
        finally:
            gc.enable()


class TestLogin:
    """CONN-22…24, CONN-40…44."""

    def log_in(self, world: World, password: str, capabilities: tuple[str, ...]) -> Client:
        client = world.client()
        client.send(HEADER)
        client.hear()
        client.log_in(password, capabilities)
        return client

    def test_refused_login_is_told_to_those_who_can_hear_it(self, world: World) -> None:
        client = self.log_in(world, "nobody", ("authentication_failure_close",))
        text = (
            "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details "
            "see the broker logfile."
        )
        with closes_connection(client, 403, text, (0, 0)):
            pass

    def test_refused_login_is_silence_for_others(self, world: World) -> None:
        """CONN-23."""
        client = self.log_in(world, "nobody", ())
        client.sleep(2.9)
        assert client.ends == []
        client.sleep(0.2)
        assert client.ends == ["finished"]
        assert client.octets == b""

    def test_missing_vhost(self, world: World) -> None:
        client = world.client()
        client.send(HEADER)
        client.log_in("guest")
        client.send(wire.method(0, commands.Connection.TuneOk(10, 4096, 0)))
        with closes_connection(client, 530, "NOT_ALLOWED - vhost none not found", (10, 40)):
            client.method(0, commands.Connection.Open("none"))

    @pytest.mark.parametrize("frame_max", [0, 131072])
    def test_frame_max_of_the_client_is_kept(self, frame_max: int) -> None:
        """FRAME-12, FRAME-19."""
        offer = Offer("n@h", "VouchMQ", "1", "test", frame_max=0)
        world = World(offer=offer)
        client = world.client()
        client.send(HEADER)
        client.log_in("guest")
        client.send(wire.method(0, commands.Connection.TuneOk(10, frame_max, 0)))
        client.send(wire.method(0, commands.Connection.Open("/")))
        client.hear()
        client.open()
        client.declare("q")
        octets = b"x" * 300_000
        sizes = [131064, 131064] if frame_max else [300_000]
        client.send(wire.publish(1, "q", octets, sizes=sizes))
        ((_, what),) = client.consume("q", "t")
        assert isinstance(what, wire.Content)
        assert what.body == octets
        assert list(what.body_sizes) == ([131064, 131064, 37872] if frame_max else [300_000])
