"""A channel, octets in and octets out: settling, confirms, flow, errors and its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pamqp import base, commands

from tests import wire
from tests.unit.server.in_memory import (
    SETTINGS,
    Client,
    World,
    closes_channel,
    closes_connection,
    confirms,
    content,
    delivery,
)


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channel 1 open and a durable queue q."""
    return prepared(world)


def prepared(world: World) -> Client:
    """A client with channel 1 open and a durable queue q."""
    client = world.connect()
    client.open()
    client.declare("q", durable=True)
    return client


def publish(client: Client, *bodies: bytes, queue: str = "q", channel: int = 1) -> None:
    """Publish persistent messages."""
    for body in bodies:
        client.send(wire.publish(channel, queue, body, wire.persistent()))


def bodies(said: list[wire.Heard]) -> list[bytes]:
    """Bodies of the deliveries heard."""
    return [delivery(what)[2] for _, what in said]


class TestSettling:
    """ACK-01…06."""

    def test_tags_begin_at_one_and_grow_over_consumers_and_gets(self, client: Client) -> None:
        publish(client, b"a", b"b", b"c", b"d")
        client.method(1, commands.Basic.Get(queue="q"))
        client.method(1, commands.Basic.Get(queue="q", no_ack=True))
        first, second = client.hear()
        assert content(first[1]).method.delivery_tag == 1  # type: ignore[attr-defined]
        assert content(second[1]).method.delivery_tag == 2  # type: ignore[attr-defined]
        assert [delivery(what)[1] for _, what in client.consume("q", "t")] == [3, 4]

    def test_ack_settles_and_tells_the_journal(self, client: Client) -> None:
        publish(client, b"a", b"b", b"c")
        client.consume("q", "t")
        client.send(wire.ack(1, 1), wire.ack(1, 2))
        client.send(wire.ack(1, 3))
        queue = client.world.vhost.queues["q"]
        assert queue.unacked_count == 0
        lsns = [lsn for _, each in client.world.calls.settled for lsn in each]
        assert len(lsns) == 3
        assert {queue_id for queue_id, _ in client.world.calls.settled} == {queue.spec.queue_id}

    def test_multiple_settles_over_consumers_and_gets(self, client: Client) -> None:
        client.declare("r")
        publish(client, b"a", b"b")
        publish(client, b"c", b"d", queue="r")
        client.method(1, commands.Basic.Get(queue="q"))
        client.hear()
        client.consume("q", "t")
        client.consume("r", "u")
        client.send(wire.ack(1, 3, multiple=True))
        assert client.connection.channels[1].unacked.count == 1
        client.send(wire.ack(1, 0, multiple=True))
        assert client.connection.channels[1].unacked.count == 0
        client.send(wire.ack(1, 0, multiple=True))
        assert client.hear() == []

    def test_several_with_multiple_settle_what_the_last_one_says(self, client: Client) -> None:
        publish(client, *(b"x" for _ in range(9)))
        client.consume("q", "t")
        client.send(*(wire.ack(1, tag, multiple=True) for tag in (2, 3, 7)))
        assert [entry.tags for entry in client.connection.channels[1].unacked.live()] == [
            range(8, 10)
        ]
        assert client.connection.channels[1].counters.acked == 7
        assert sum(len(lsns) for _, lsns in client.world.calls.settled) == 7

    @pytest.mark.parametrize(("tags", "unknown", "left"), [((3, 5, 8), 5, 5), ((4, 4, 6), 4, 4)])
    def test_of_several_with_multiple_those_before_an_unknown_tag_count(
        self, client: Client, tags: tuple[int, ...], unknown: int, left: int
    ) -> None:
        publish(client, *(b"x" for _ in range(9)))
        client.consume("q", "t")
        client.send(wire.ack(1, 5))
        text = f"PRECONDITION_FAILED - unknown delivery tag {unknown}"
        with closes_channel(client, 406, text, (60, 80)):
            client.send(*(wire.ack(1, tag, multiple=True) for tag in tags))
        client.open()
        assert client.message_count("q") == left

    @pytest.mark.parametrize(
        ("method", "ids"),
        [
            (commands.Basic.Ack(0), (60, 80)),
            (commands.Basic.Ack(9), (60, 80)),
            (commands.Basic.Ack(9, True), (60, 80)),
            (commands.Basic.Nack(0, False, True), (60, 120)),
            (commands.Basic.Nack(9, False, True), (60, 120)),
            (commands.Basic.Nack(9, True, True), (60, 120)),
            (commands.Basic.Reject(9, True), (60, 90)),
            (commands.Basic.Reject(0, True), (60, 90)),
        ],
    )
    def test_unknown_tag(self, client: Client, method: base.Frame, ids: tuple[int, int]) -> None:
        publish(client, b"a")
        client.consume("q", "t")
        tag = method.delivery_tag  # type: ignore[attr-defined]
        text = f"PRECONDITION_FAILED - unknown delivery tag {tag}"
        with closes_channel(client, 406, text, ids):
            client.method(1, method)
        client.open()
        assert client.message_count("q") == 1

    def test_second_ack_of_a_tag(self, client: Client) -> None:
        publish(client, b"a", b"b")
        client.consume("q", "t")
        text = "PRECONDITION_FAILED - unknown delivery tag 1"
        with closes_channel(client, 406, text, (60, 80)):
            client.send(wire.ack(1, 1), wire.ack(1, 1), wire.ack(1, 2))
        client.open()
        assert client.message_count("q") == 1

    def test_multiple_with_a_settled_tag_settles_nothing(self, client: Client) -> None:
        publish(client, b"a", b"b")
        client.consume("q", "t")
        client.send(wire.ack(1, 2))
        text = "PRECONDITION_FAILED - unknown delivery tag 2"
        with closes_channel(client, 406, text, (60, 80)):
            client.send(wire.ack(1, 2, multiple=True))
        client.open()
        assert client.message_count("q") == 1

    def test_no_ack_delivery_cannot_be_settled(self, client: Client) -> None:
        publish(client, b"a")
        client.consume("q", "t", no_ack=True)
        with closes_channel(client, 406, "PRECONDITION_FAILED - unknown delivery tag 1", (60, 80)):
            client.send(wire.ack(1, 1))
        client.open()
        assert client.message_count("q") == 0

    def test_tag_of_another_channel(self, client: Client) -> None:
        publish(client, b"a")
        client.consume("q", "t")
        client.open(2)
        text = "PRECONDITION_FAILED - unknown delivery tag 1"
        with closes_channel(client, 406, text, (60, 80), channel=2):
            client.send(wire.ack(2, 1))

    def test_requeue_goes_back_in_order_and_redelivered(self, client: Client) -> None:
        publish(client, b"a", b"b", b"c", b"d")
        client.qos(3)
        client.consume("q", "t")
        for tag in (1, 3, 2):
            client.method(1, commands.Basic.Reject(tag, True))
        assert client.deliveries() == [
            ("t", 4, b"a", True),
            ("t", 5, b"b", True),
            ("t", 6, b"c", True),
        ]

    def test_reject_without_requeue_drops(self, client: Client) -> None:
        publish(client, b"a", b"b", b"c")
        client.consume("q", "t")
        client.method(1, commands.Basic.Reject(1, False))
        client.send(wire.nack(1, 3, multiple=True, requeue=False))
        assert client.hear() == []
        assert client.world.vhost.queues["q"].unacked_count == 0

    def test_settling_for_a_deleted_queue_is_accepted_once(self, client: Client) -> None:
        """QUEUE-63."""
        publish(client, b"a", b"b")
        client.consume("q", "t")
        client.method(1, commands.Queue.Delete(queue="q"))
        client.world.sync()
        client.hear()
        client.send(wire.ack(1, 1), wire.nack(1, 2))
        assert client.hear() == []
        with closes_channel(client, 406, "PRECONDITION_FAILED - unknown delivery tag 1", (60, 80)):
            client.send(wire.ack(1, 1))


class TestConfirms:
    def test_select_is_answered_and_repeatable(self, client: Client) -> None:
        for _ in range(2):
            assert isinstance(
                client.ask(1, commands.Confirm.Select())[1], commands.Confirm.SelectOk
            )
        client.method(1, commands.Confirm.Select(nowait=True))
        assert client.hear() == []

    def test_persistent_waits_for_the_disk_transient_does_not(self, client: Client) -> None:
        """CONF-03, CONF-06."""
        publish(client, b"not counted")
        client.world.sync()
        client.ask(1, commands.Confirm.Select())
        client.send(wire.publish(1, "q", b"a"))
        publish(client, b"b", b"c")
        assert confirms(client.hear()) == [("Basic.Ack", 1, False)]
        client.world.sync()
        assert confirms(client.hear()) == [("Basic.Ack", 3, True)]

    def test_persistent_to_a_transient_queue_waits_for_nothing(self, client: Client) -> None:
        client.declare("t")
        client.ask(1, commands.Confirm.Select())
        publish(client, b"a", queue="t")
        assert confirms(client.hear()) == [("Basic.Ack", 1, False)]
        assert client.world.calls.runs == []

    def test_unroutable_is_returned_then_confirmed(self, client: Client) -> None:
        """CONF-05, PUB-21."""
        client.ask(1, commands.Confirm.Select())
        client.send(wire.publish(1, "nowhere", b"a", wire.persistent(), mandatory=True))
        client.send(wire.publish(1, "nowhere", b"b", wire.persistent()))
        assert client.names() == ["Basic.Return", "Basic.Ack"]

    def test_failed_storage_nacks_what_waits(self, client: Client) -> None:
        """CONF-12."""
        client.ask(1, commands.Confirm.Select())
        client.send(wire.publish(1, "q", b"a"))
        publish(client, b"b", b"c")
        client.hear()
        client.world.context.storage_failed()
        assert confirms(client.hear()) == [("Basic.Nack", 3, True)]
        publish(client, b"d")
        assert confirms(client.hear()) == [("Basic.Nack", 4, False)]

    def test_closed_channel_says_no_confirm(self, client: Client) -> None:
        """CONF-11."""
        client.ask(1, commands.Confirm.Select())
        publish(client, b"a")
        client.send(wire.publish(1, "q", b"b"))
        client.method(1, commands.Channel.Close(200, "", 0, 0))
        assert client.names() == ["Channel.CloseOk"]
        client.world.sync()
        assert client.hear() == []

    def test_reopened_channel_counts_anew(self, client: Client) -> None:
        """CHAN-10."""
        client.ask(1, commands.Confirm.Select())
        publish(client, b"a", b"b")
        client.ask(1, commands.Channel.Close(200, "", 0, 0))
        client.open()
        client.ask(1, commands.Confirm.Select())
        publish(client, b"c")
        client.world.sync()
        assert confirms(client.hear()) == [("Basic.Ack", 1, False)]

    def test_confirm_waits_for_a_nowait_declare_on_its_channel(self, client: Client) -> None:
        """DURABLE-02."""
        client.ask(1, commands.Confirm.Select())
        client.method(1, commands.Queue.Declare(queue="d", durable=True, nowait=True))
        client.send(wire.publish(1, "d", b"transient"))
        assert client.hear() == []
        client.world.sync()
        assert confirms(client.hear()) == [("Basic.Ack", 1, False)]

    def test_confirms_of_two_channels_are_their_own(self, client: Client) -> None:
        client.open(2)
        for channel in (1, 2):
            client.ask(channel, commands.Confirm.Select())
        publish(client, b"a", b"b")
        publish(client, b"c", channel=2)
        client.world.sync()
        said = client.hear()
        assert sorted((channel, what.delivery_tag) for channel, what in said) == [(1, 2), (2, 1)]  # type: ignore[union-attr]

    def test_tx_and_confirm_exclude_each_other(self, client: Client) -> None:
        """CONF-02, TX-01."""
        client.ask(1, commands.Confirm.Select())
        text = "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
        with closes_channel(client, 406, text, (90, 10)):
            client.method(1, commands.Tx.Select())
        client.open()
        client.ask(1, commands.Tx.Select())
        text = "PRECONDITION_FAILED - cannot switch from tx to confirm mode"
        with closes_channel(client, 406, text, (85, 10)):
            client.method(1, commands.Confirm.Select())


class TestFlow:
    """CHAN-20."""

    def test_deliveries_stop_and_go(self, client: Client) -> None:
        client.consume("q", "t")
        _, said = client.ask(1, commands.Channel.Flow(False))
        assert isinstance(said, commands.Channel.FlowOk)
        assert not said.active
        publish(client, b"a")
        assert client.hear() == []
        _, got = client.ask(1, commands.Basic.Get(queue="q"))
        assert content(got).body == b"a"
        publish(client, b"b")
        client.method(1, commands.Channel.Flow(True))
        assert client.names() == ["Channel.FlowOk", "Basic.Deliver"]

    def test_other_channels_go_on(self, client: Client) -> None:
        client.open(2)
        client.consume("q", "t")
        client.ask(1, commands.Channel.Flow(False))
        client.consume("q", "u", channel=2)
        publish(client, b"a", b"b")
        assert [tag for tag, *_ in client.deliveries()] == ["u", "u"]

    def test_it_can_be_refused(self) -> None:
        client = World(replace(SETTINGS, compat_reject_flow=True)).connect()
        client.open()
        _, said = client.ask(1, commands.Channel.Flow(True))
        assert isinstance(said, commands.Channel.FlowOk)
        with closes_connection(client, 540, "NOT_IMPLEMENTED - active=false", (20, 20)):
            client.method(1, commands.Channel.Flow(False))

    def test_flow_ok_is_not_for_clients(self, client: Client) -> None:
        text = "COMMAND_INVALID - unimplemented method"
        with closes_connection(client, 503, text, (20, 21)):
            client.method(1, commands.Channel.FlowOk(True))


class TestEnds:
    def test_unacked_return_to_their_place_redelivered(self, client: Client) -> None:
        """ACK-40."""
        publish(client, b"a", b"b", b"c")
        client.qos(2)
        client.consume("q", "t")
        client.ask(1, commands.Channel.Close(200, "", 0, 0))
        client.open()
        assert [delivery(what)[2:] for _, what in client.consume("q", "t")] == [
            (b"a", True),
            (b"b", True),
            (b"c", False),
        ]

    def test_its_consumers_do_not_get_their_messages_back(self, client: Client) -> None:
        publish(client, b"a")
        client.consume("q", "t")
        client.consume("q", "u")
        client.method(1, commands.Channel.Close(200, "", 0, 0))
        assert client.names() == ["Channel.CloseOk"]
        assert client.world.vhost.queues["q"].ready_count == 1
        assert client.world.vhost.queues["q"].consumer_count == 0

    def test_others_get_them_at_once(self, client: Client) -> None:
        client.open(2)
        publish(client, b"a", b"b")
        client.consume("q", "t")
        client.consume("q", "u", channel=2)
        client.method(1, commands.Channel.Close(200, "", 0, 0))
        (_, close_ok), *rest = client.hear()
        assert isinstance(close_ok, commands.Channel.CloseOk)
        assert [delivery(what) for _, what in rest] == [("u", 1, b"a", True), ("u", 2, b"b", True)]

    def test_auto_delete_queue_goes_with_its_last_consumer(self, client: Client) -> None:
        client.declare("gone", auto_delete=True)
        client.consume("gone", "t")
        client.ask(1, commands.Channel.Close(200, "", 0, 0))
        assert "gone" not in client.world.vhost.queues

    def test_soft_error_leaves_other_channels_alone(self, client: Client) -> None:
        """CHAN-13."""
        client.open(2)
        client.consume("q", "t", channel=2)
        text = "NOT_FOUND - no queue 'none' in vhost '/'"
        with closes_channel(client, 404, text, (50, 10)):
            client.method(1, commands.Queue.Declare(queue="none", passive=True))
        publish(client, b"a", channel=2)
        assert client.deliveries() == [("t", 1, b"a", False)]

    def test_clean_up_comes_before_the_close(self, client: Client) -> None:
        """CHAN-11."""
        publish(client, b"a")
        client.consume("q", "t")
        client.send(wire.ack(1, 9))
        assert client.world.vhost.queues["q"].ready_count == 1
        assert client.names() == ["Channel.Close"]

    def test_closing_channel_discards_all_but_close_and_close_ok(self, client: Client) -> None:
        """CHAN-11: exactly one channel.close, content included in what is discarded."""
        client.send(
            wire.ack(1, 9),
            wire.ack(1, 9),
            wire.publish(1, "q", b"x" * 9000, sizes=(4000, 4000)),
            wire.method(1, commands.Queue.Declare(queue="none", passive=True)),
            wire.method(1, commands.Channel.Close(200, "", 0, 0)),
            wire.method(1, commands.Basic.Qos(0, 1, False)),
        )
        assert client.names() == ["Channel.Close", "Channel.CloseOk"]
        with closes_connection(client, 504, "CHANNEL_ERROR - second 'channel.open' seen", (20, 10)):
            client.method(1, commands.Channel.CloseOk())
            client.method(1, commands.Channel.Open())
            assert client.names() == ["Channel.OpenOk"]
            client.method(1, commands.Channel.Open())

    def test_open_while_close_ok_is_owed(self, client: Client) -> None:
        """CHAN-03. The reader discards what comes before close-ok, channel.open must be judged."""
        client.send(wire.ack(1, 9))
        assert client.names() == ["Channel.Close"]
        text = "CHANNEL_ERROR - second 'channel.open' seen"
        with closes_connection(client, 504, text, (20, 10)):
            client.method(1, commands.Channel.Open())

    @pytest.mark.parametrize(
        "late",
        [
            wire.ack(1, 1),
            wire.ack(1, 1, multiple=True),
            wire.nack(1, 1),
            wire.method(1, commands.Basic.Reject(1, True)),
            wire.method(1, commands.Basic.Cancel("t", False)),
        ],
    )
    @pytest.mark.parametrize("by_client", [True, False])
    def test_late_settlements_are_forgiven(
        self, client: Client, late: bytes, by_client: bool
    ) -> None:
        """CHAN-12."""
        if by_client:
            client.ask(1, commands.Channel.Close(200, "", 0, 0))
        else:
            with closes_channel(
                client, 406, "PRECONDITION_FAILED - unknown delivery tag 9", (60, 80)
            ):
                client.send(wire.ack(1, 9))
        client.send(late, late)
        assert client.hear() == []
        client.world.now += 11
        with closes_connection(
            client, 504, "CHANNEL_ERROR - expected 'channel.open'", late_ids(late)
        ):
            client.send(late)

    def test_only_settlements_are_forgiven(self, client: Client) -> None:
        client.ask(1, commands.Channel.Close(200, "", 0, 0))
        with closes_connection(client, 504, "CHANNEL_ERROR - expected 'channel.open'", (60, 40)):
            publish(client, b"a")

    @pytest.mark.parametrize(
        ("octets", "ids"),
        [
            (wire.ack(7, 1), (60, 80)),
            (wire.publish(7, "q", b"a"), (60, 40)),
            (wire.method(7, commands.Queue.Declare(queue="q")), (50, 10)),
            (wire.method(7, commands.Channel.Close(200, "", 0, 0)), (20, 40)),
            (wire.method(7, commands.Channel.CloseOk()), (20, 41)),
        ],
    )
    def test_channel_never_opened(
        self, client: Client, octets: bytes, ids: tuple[int, int]
    ) -> None:
        """CHAN-02."""
        with closes_connection(client, 504, "CHANNEL_ERROR - expected 'channel.open'", ids):
            client.send(octets)

    def test_error_is_answered_behind_a_reply_that_waits(self, client: Client) -> None:
        """GEN-08."""
        client.send(wire.method(1, commands.Queue.Declare(queue="d", durable=True)), wire.ack(1, 9))
        assert client.hear() == []
        client.world.sync()
        assert client.names() == ["Queue.DeclareOk", "Channel.Close"]

    def test_close_ok_waits_for_a_nowait_declare(self, client: Client) -> None:
        """DURABLE-02."""
        client.method(1, commands.Queue.Declare(queue="d", durable=True, nowait=True))
        client.method(1, commands.Channel.Close(200, "", 0, 0))
        assert client.hear() == []
        client.world.sync()
        assert client.names() == ["Channel.CloseOk"]


class TestOddMethods:
    def test_access_request(self, client: Client) -> None:
        """CHAN-30."""
        octets = b"\x00\x1e\x00\x0a\x05/data\x1f"
        client.send(wire.frame(1, 1, octets))
        client.world.run_turns()
        assert bytes(client.octets) == wire.frame(1, 1, b"\x00\x1e\x00\x0b\x00\x01")

    @pytest.mark.parametrize(
        "method",
        [
            commands.Queue.DeclareOk("q", 0, 0),
            commands.Basic.Deliver("t", 1, False, "", "q"),
            commands.Basic.ConsumeOk("t"),
            commands.Channel.OpenOk(),
        ],
    )
    def test_methods_only_the_broker_may_send(self, client: Client, method: base.Frame) -> None:
        """FRAME-17."""
        ids = divmod(method.index, 65536)
        with closes_connection(client, 503, "COMMAND_INVALID - unimplemented method", ids):
            client.method(1, method)

    def test_close_ok_on_an_open_channel(self, client: Client) -> None:
        with closes_connection(client, 503, "COMMAND_INVALID - unimplemented method", (20, 41)):
            client.method(1, commands.Channel.CloseOk())

    def test_cancel_ok_is_accepted(self, client: Client) -> None:
        """CONS-41."""
        client.method(1, commands.Basic.CancelOk("t"))
        assert client.hear() == []

    def test_channel_limit_of_a_user(self, world: World) -> None:
        """CHAN-04."""
        client = world.connect("few")
        client.open(1)
        client.open(2)
        client.ask(1, commands.Channel.Close(200, "", 0, 0))
        client.open(3)
        text = (
            "NOT_ALLOWED - number of channels opened for user 'few' has reached the maximum "
            "allowed user limit of (2)"
        )
        with closes_connection(client, 530, text, (0, 0)):
            client.method(4, commands.Channel.Open())
        other = world.connect("few")
        other.open(1)
        other.open(2)

    def test_channel_limit_of_the_node(self) -> None:
        client = World(replace(SETTINGS, channel_max_per_node=1)).connect()
        client.open()
        text = (
            "NOT_ALLOWED - number of channels opened on node 'n@h' has reached the maximum "
            "allowed limit of (1)"
        )
        with closes_connection(client, 530, text, (0, 0)):
            client.method(2, commands.Channel.Open())


def late_ids(octets: bytes) -> tuple[int, int]:
    """Class and method of a method frame."""
    return int.from_bytes(octets[7:9], "big"), int.from_bytes(octets[9:11], "big")
