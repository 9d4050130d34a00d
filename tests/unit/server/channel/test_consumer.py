"""Consuming by its rules: prefetch, dispatch, cancel, get, recover, direct reply-to."""

from __future__ import annotations

from collections import Counter
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
    content,
    delivery,
    name_of,
)
from vouchmq.protocol.fields import Field, Table, encode_table, longstr

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channel 1 open and the queues q and r."""
    return prepared(world)


def prepared(world: World) -> Client:
    """A client with channel 1 open and the queues q and r."""
    client = world.connect()
    client.open()
    client.declare("q")
    client.declare("r")
    return client


def fill(client: Client, queue: str, *bodies: bytes) -> None:
    """Publish transient messages."""
    client.send(*(wire.publish(1, queue, body) for body in bodies))
    assert client.hear() == []


def numbers(first: int, last: int) -> list[bytes]:
    """Bodies that are numbers."""
    return [str(number).encode() for number in range(first, last + 1)]


def got(said: list[wire.Heard]) -> list[bytes]:
    """Bodies of the deliveries heard."""
    return [delivery(what)[2] for _, what in said]


class TestPrefetch:
    """QOS-01…23."""

    def test_limit_of_each_consumer_started_later(self, client: Client) -> None:
        fill(client, "q", *numbers(1, 9))
        client.consume("r", "before")
        client.qos(2)
        assert got(client.consume("q", "t")) == [b"1", b"2"]
        assert got(client.consume("q", "u")) == [b"3", b"4"]
        client.send(*(wire.publish(1, "r", body) for body in (b"a", b"b", b"c")))
        assert [tag for tag, *_ in client.deliveries()] == ["before"] * 3

    def test_settling_frees_room_at_once(self, client: Client) -> None:
        fill(client, "q", *numbers(1, 9))
        client.qos(3)
        client.consume("q", "t")
        client.send(wire.ack(1, 2))
        assert client.deliveries() == [("t", 4, b"4", False)]
        client.send(wire.ack(1, 3, multiple=True))
        assert [body for _, _, body, _ in client.deliveries()] == [b"5", b"6"]

    @pytest.mark.parametrize("global_first", [True, False])
    def test_both_limits_in_either_order(self, client: Client, global_first: bool) -> None:
        """QOS-03, QOS-04: 1, 2, 3 and 11, 12, never more than five together."""
        fill(client, "q", *numbers(1, 10))
        fill(client, "r", *numbers(11, 20))
        for is_global in (global_first, not global_first):
            client.qos(5 if is_global else 3, is_global=is_global)
        assert got(client.consume("q", "c1")) == numbers(1, 3)
        assert got(client.consume("r", "c2")) == numbers(11, 12)
        client.send(wire.ack(1, 1))
        assert len(client.deliveries()) == 1
        client.send(wire.ack(1, 0, multiple=True))
        again = client.deliveries()
        assert len(again) == 5
        assert max(Counter(tag for tag, *_ in again).values()) <= 3

    def test_global_limit_acts_at_once(self, client: Client) -> None:
        """QOS-06: raised, lowered, taken away."""
        fill(client, "q", *numbers(1, 9))
        client.qos(2, is_global=True)
        assert got(client.consume("q", "t")) == [b"1", b"2"]
        client.method(1, commands.Basic.Qos(0, 4, True))
        assert client.names() == ["Basic.QosOk", "Basic.Deliver", "Basic.Deliver"]
        client.method(1, commands.Basic.Qos(0, 1, True))
        assert client.names() == ["Basic.QosOk"]
        client.send(wire.ack(1, 3, multiple=True))
        assert client.hear() == []
        client.send(wire.ack(1, 4))
        assert got(client.hear()) == [b"5"]
        client.method(1, commands.Basic.Qos(0, 0, True))
        assert client.names() == ["Basic.QosOk", *["Basic.Deliver"] * 4]

    def test_gets_never_count(self, client: Client) -> None:
        """QOS-07."""
        fill(client, "q", *numbers(1, 5))
        client.ask(1, commands.Basic.Get(queue="q"))
        client.qos(2, is_global=True)
        assert got(client.consume("q", "t")) == [b"2", b"3"]
        client.send(wire.ack(1, 1))
        assert client.hear() == []

    def test_no_ack_ignores_every_limit(self, client: Client) -> None:
        """QOS-08."""
        client.qos(1)
        client.qos(1, size=1, is_global=True)
        fill(client, "q", *numbers(1, 5))
        assert got(client.consume("q", "t", no_ack=True)) == numbers(1, 5)

    def test_cancelled_consumers_deliveries_count_for_the_channel(self, client: Client) -> None:
        """QOS-10."""
        fill(client, "q", *numbers(1, 5))
        client.qos(2, is_global=True)
        client.consume("q", "t")
        client.ask(1, commands.Basic.Cancel("t"))
        assert client.consume("q", "u") == []
        client.send(wire.ack(1, 1))
        assert client.deliveries() == [("u", 3, b"3", False)]

    def test_largest_count(self, client: Client) -> None:
        client.qos(65535)
        client.consume("q", "t")
        assert client.connection.channels[1].consumers["t"].credit.limit == 65535

    def test_default_prefetch(self) -> None:
        """QOS-11."""
        client = prepared(World(replace(SETTINGS, default_consumer_prefetch=2)))
        fill(client, "q", *numbers(1, 5))
        assert len(client.consume("q", "t")) == 2

    def test_existing_consumers_when_configured(self) -> None:
        """QOS-05."""
        client = prepared(World(replace(SETTINGS, qos_apply_to_existing_consumers=True)))
        fill(client, "q", *numbers(1, 9))
        client.qos(2)
        client.consume("q", "t")
        client.method(1, commands.Basic.Qos(0, 5, False))
        assert client.names() == ["Basic.QosOk", *["Basic.Deliver"] * 3]

    def test_existing_consumers_keep_theirs(self, client: Client) -> None:
        fill(client, "q", *numbers(1, 9))
        client.qos(2)
        client.consume("q", "t")
        client.method(1, commands.Basic.Qos(0, 5, False))
        assert client.names() == ["Basic.QosOk"]

    def test_size_limit(self, client: Client) -> None:
        """QOS-20, QOS-21."""
        fill(client, "q", *[b"x" * 40] * 5)
        client.qos(0, size=100)
        assert len(client.consume("q", "t")) == 2
        client.send(wire.ack(1, 1))
        assert len(client.hear()) == 1

    @pytest.mark.parametrize("is_global", [True, False])
    def test_too_large_message_goes_alone(self, client: Client, is_global: bool) -> None:
        fill(client, "q", b"x" * 10, b"x" * 500, b"x" * 10)
        client.qos(0, size=100, is_global=is_global)
        assert len(client.consume("q", "t")) == 1
        client.send(wire.ack(1, 1))
        assert [len(body) for body in got(client.hear())] == [500]
        client.send(wire.ack(1, 2))
        assert [len(body) for body in got(client.hear())] == [10]

    def test_too_large_head_is_not_skipped_but_may_go_to_another(self, client: Client) -> None:
        """QOS-22."""
        fill(client, "q", b"x" * 60, b"x" * 60, b"x" * 10)
        client.qos(0, size=100)
        assert len(client.consume("q", "t")) == 1
        client.qos(0, size=0)
        assert [len(body) for body in got(client.consume("q", "u"))] == [60, 10]

    def test_count_and_size_both_apply(self, client: Client) -> None:
        fill(client, "q", *[b"x" * 10] * 9)
        client.qos(3, size=100)
        assert len(client.consume("q", "t")) == 3

    def test_size_limit_set_late_counts_what_is_outstanding(self, client: Client) -> None:
        fill(client, "q", *[b"x" * 40] * 9)
        client.qos(2, is_global=True)
        client.consume("q", "t")
        client.method(1, commands.Basic.Qos(130, 0, True))
        assert client.names() == ["Basic.QosOk", "Basic.Deliver"]
        client.send(wire.ack(1, 1))
        assert len(client.hear()) == 1

    def test_size_limit_can_be_refused(self) -> None:
        client = prepared(World(replace(SETTINGS, compat_reject_prefetch_size=True)))
        text = "NOT_IMPLEMENTED - prefetch_size!=0 (5)"
        with closes_connection(client, 540, text, (60, 10)):
            client.method(1, commands.Basic.Qos(5, 0, False))

    def test_requeue_and_recover_free_room(self, client: Client) -> None:
        fill(client, "q", *numbers(1, 5))
        client.qos(2)
        client.consume("q", "t")
        client.method(1, commands.Basic.Recover(True))
        (_, first), *rest = client.hear()
        assert name_of(first) == "Basic.RecoverOk"
        assert [delivery(what) for _, what in rest] == [
            ("t", 3, b"1", True),
            ("t", 4, b"2", True),
        ]
        client.send(wire.ack(1, 3), wire.ack(1, 4))
        assert got(client.hear()) == [b"3", b"4"]


class TestConsume:
    def test_empty_tag_is_made_up(self, client: Client) -> None:
        """CONS-01."""
        tags = set()
        for _ in range(2):
            _, what = client.ask(1, commands.Basic.Consume(queue="q"))
            assert isinstance(what, commands.Basic.ConsumeOk)
            tags.add(what.consumer_tag)
        assert len(tags) == 2
        assert all(tag.startswith("amq.ctag-") and len(tag) == 31 for tag in tags if tag)

    def test_nowait_has_deliveries_only(self, client: Client) -> None:
        fill(client, "q", b"a")
        client.method(1, commands.Basic.Consume(queue="q", consumer_tag="t", nowait=True))
        assert client.deliveries() == [("t", 1, b"a", False)]

    def test_deliveries_come_behind_consume_ok(self, client: Client) -> None:
        fill(client, "q", b"a")
        assert got(client.consume("q", "t")) == [b"a"]

    def test_deliveries_come_behind_a_consume_ok_that_waits(self, client: Client) -> None:
        """CONS-01, DURABLE-02: consume-ok waits for the disk, so deliveries wait, too."""
        fill(client, "q", b"a")
        client.method(1, commands.Queue.Declare(queue="d", durable=True, nowait=True))
        client.method(1, commands.Basic.Consume(queue="q", consumer_tag="t"))
        assert client.hear() == []
        client.world.sync()
        assert client.names() == ["Basic.ConsumeOk", "Basic.Deliver"]

    def test_redeliveries_come_behind_a_recover_ok_that_waits(self, client: Client) -> None:
        """ACK-22, DURABLE-02."""
        fill(client, "q", b"a")
        client.consume("q", "t")
        client.method(1, commands.Queue.Declare(queue="d", durable=True, nowait=True))
        client.send(recover_frame(commands.Basic.Recover, requeue=False))
        assert client.hear() == []
        client.world.sync()
        assert client.names() == ["Basic.RecoverOk", "Basic.Deliver"]

    def test_tag_in_use(self, client: Client) -> None:
        """CONS-02."""
        client.consume("q", "t")
        text = "NOT_ALLOWED - attempt to reuse consumer tag 't'"
        with closes_connection(client, 530, text, (60, 20)):
            client.method(1, commands.Basic.Consume(queue="q", consumer_tag="t"))

    def test_tag_is_free_after_cancel_and_on_other_channels(self, client: Client) -> None:
        client.open(2)
        client.consume("q", "t")
        client.consume("q", "t", channel=2)
        client.ask(1, commands.Basic.Cancel("t"))
        client.consume("q", "t")

    def test_missing_queue(self, client: Client) -> None:
        text = "NOT_FOUND - no queue 'none' in vhost '/'"
        with closes_channel(client, 404, text, (60, 20)):
            client.method(1, commands.Basic.Consume(queue="none"))

    def test_last_declared_queue(self, client: Client) -> None:
        """QUEUE-14."""
        client.consume("", "t")
        assert client.world.vhost.queues["r"].consumer_count == 1
        client.open(2)
        text = "NOT_FOUND - no previously declared queue"
        with closes_channel(client, 404, text, (60, 20), channel=2):
            client.method(2, commands.Basic.Consume(queue=""))

    def test_exclusive_queue_of_another_connection(self, client: Client) -> None:
        other = client.world.connect()
        other.open()
        other.declare("mine", exclusive=True)
        text = (
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost "
            "'/'. It could be originally declared on another connection or the exclusive "
            "property value does not match that of the original declaration."
        )
        with closes_channel(client, 405, text, (60, 20)):
            client.method(1, commands.Basic.Consume(queue="mine"))

    def test_exclusive_consumer(self, client: Client) -> None:
        """CONS-05."""
        client.consume("q", "t", exclusive=True)
        client.open(2)
        text = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
        with closes_channel(client, 403, text, (60, 20), channel=2):
            client.method(2, commands.Basic.Consume(queue="q"))

    def test_no_permission(self, world: World) -> None:
        prepared(world)
        poor = world.connect("poor")
        poor.open()
        text = "ACCESS_REFUSED - read access to queue 'q' in vhost '/' refused for user 'poor'"
        with closes_channel(poor, 403, text, (60, 20)):
            poor.method(1, commands.Basic.Consume(queue="q"))

    def test_priority_argument(self, client: Client) -> None:
        """CONS-20."""
        client.qos(2)
        for tag, priority in (("neg", -1), ("hi", 10), ("lo", 0)):
            client.send(consume_frame("q", tag, {"x-priority": Field("I", priority)}))
        client.hear()
        client.send(*(wire.publish(1, "q", body) for body in numbers(1, 6)))
        served: dict[str, list[bytes]] = {}
        for tag, _, body, _ in client.deliveries():
            served.setdefault(tag, []).append(body)
        assert served == {"hi": [b"1", b"2"], "lo": [b"3", b"4"], "neg": [b"5", b"6"]}

    def test_priority_of_the_wrong_type(self, client: Client) -> None:
        """CONS-21."""
        text = (
            "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': "
            '"expected integer, got longstr"'
        )
        with closes_channel(client, 406, text, (60, 20)):
            client.send(consume_frame("q", "t", {"x-priority": longstr("1")}))

    def test_consumers_per_channel(self) -> None:
        """CONS-07."""
        client = prepared(World(replace(SETTINGS, consumer_max_per_channel=1)))
        client.consume("q", "t")
        text = "NOT_ALLOWED - reached maximum (1) of consumers per channel"
        with closes_connection(client, 530, text, (60, 20)):
            client.method(1, commands.Basic.Consume(queue="q", consumer_tag="u"))

    def test_fairness_over_connections(self, client: Client) -> None:
        """CONS-10."""
        others = [client.world.connect() for _ in range(2)]
        clients = [client, *others]
        for other in others:
            other.open()
        for each in clients:
            each.consume("q", "t")
        client.send(*(wire.publish(1, "q", body) for body in numbers(1, 7)))
        assert [got(each.hear()) for each in clients] == [
            [b"1", b"4", b"7"],
            [b"2", b"5"],
            [b"3", b"6"],
        ]

    def test_full_socket_gets_nothing_until_it_drains(self, client: Client) -> None:
        """CONS-11, also without acks."""
        other = client.world.connect()
        other.open()
        client.consume("q", "t", no_ack=True)
        client.connection.outbox.hold()
        other.consume("q", "u")
        other.send(*(wire.publish(1, "q", body) for body in numbers(1, 4)))
        assert len(other.deliveries()) == 4
        other.method(1, commands.Basic.Cancel("u"))
        other.hear()
        other.send(wire.publish(1, "q", b"5"))
        assert client.hear() == []
        client.connection.outbox.release()
        assert got(client.hear()) == [b"5"]

    def test_one_turn_writes_no_more_than_the_high_water(self) -> None:
        world = World(replace(SETTINGS, deliver_high_water_bytes=100_000))
        client = prepared(world)
        fill(client, "q", *[b"x" * 1000] * 500)
        client.method(1, commands.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
        most = 0
        while world.scheduled:
            before = len(client.octets)
            job = world.scheduled.pop(0)
            job()
            most = max(most, len(client.octets) - before)
        assert len(client.hear()) == 501
        # A batch may go over it, and the estimate errs upwards.
        assert most < 100_000 + 300_000


class TestCancel:
    def test_nothing_is_delivered_after_cancel_ok(self, client: Client) -> None:
        """CONS-08."""
        client.consume("q", "t")
        client.send(wire.method(1, commands.Basic.Cancel("t")), wire.publish(1, "q", b"a"))
        assert client.names() == ["Basic.CancelOk"]
        assert client.message_count("q") == 1

    def test_what_was_published_before_is_delivered_first(self, client: Client) -> None:
        """CONS-52."""
        client.consume("q", "t")
        client.send(wire.publish(1, "q", b"a"), wire.method(1, commands.Basic.Cancel("t")))
        assert client.names() == ["Basic.Deliver", "Basic.CancelOk"]
        assert client.message_count("q") == 0

    def test_unknown_tag_is_fine(self, client: Client) -> None:
        _, what = client.ask(1, commands.Basic.Cancel("none"))
        assert isinstance(what, commands.Basic.CancelOk)
        assert what.consumer_tag == "none"
        client.method(1, commands.Basic.Cancel("none", nowait=True))
        assert client.hear() == []

    def test_outstanding_deliveries_stay_and_can_be_settled(self, client: Client) -> None:
        """ACK-41."""
        fill(client, "q", b"a", b"b")
        client.consume("q", "t")
        client.ask(1, commands.Basic.Cancel("t"))
        assert client.message_count("q") == 0
        client.send(wire.ack(1, 1), wire.nack(1, 2))
        assert client.message_count("q") == 1

    @pytest.mark.parametrize("deleter", ["same channel", "other channel", "other connection"])
    def test_deleted_queue_cancels(self, client: Client, deleter: str) -> None:
        """CONS-40, QUEUE-61: behind delete-ok on the deleting channel."""
        client.consume("q", "t")
        client.open(2)
        other = client.world.connect()
        other.open()
        deleting, channel = {
            "same channel": (client, 1),
            "other channel": (client, 2),
            "other connection": (other, 1),
        }[deleter]
        deleting.method(channel, commands.Queue.Delete(queue="q"))
        said = client.hear() + (other.hear() if deleting is other else [])
        names = [(number, name_of(what)) for number, what in said]
        if deleting is client:
            assert names == [(channel, "Queue.DeleteOk"), (1, "Basic.Cancel")]
        else:
            assert names == [(1, "Basic.Cancel"), (1, "Queue.DeleteOk")]
        cancel = next(what for _, what in said if isinstance(what, commands.Basic.Cancel))
        assert (cancel.consumer_tag, cancel.nowait) == ("t", True)
        assert client.connection.channels[1].consumers == {}

    def test_durable_queue_cancels_behind_the_delete_ok_that_waits(self, client: Client) -> None:
        client.declare("d", durable=True)
        client.consume("d", "t")
        client.method(1, commands.Queue.Delete(queue="d"))
        assert client.hear() == []
        client.world.sync()
        assert client.names() == ["Queue.DeleteOk", "Basic.Cancel"]

    def test_without_the_capability_nothing_is_said(self, world: World) -> None:
        client = world.connect(capabilities=())
        client.open()
        client.declare("q")
        client.consume("q", "t")
        client.method(1, commands.Queue.Delete(queue="q"))
        assert client.names() == ["Queue.DeleteOk"]

    def test_both_may_cancel(self, client: Client) -> None:
        """CONS-41."""
        client.consume("q", "t")
        client.method(1, commands.Queue.Delete(queue="q"))
        client.hear()
        client.method(1, commands.Basic.CancelOk("t"))
        client.method(1, commands.Basic.Cancel("t"))
        assert client.names() == ["Basic.CancelOk"]


class TestGet:
    def test_get_tells_what_is_left(self, client: Client) -> None:
        """CONS-50."""
        client.send(wire.publish(1, "q", b"a"), wire.publish(1, "q", b"b"))
        _, what = client.ask(1, commands.Basic.Get(queue="q"))
        get_ok = content(what).method
        assert isinstance(get_ok, commands.Basic.GetOk)
        assert (get_ok.delivery_tag, get_ok.redelivered, get_ok.message_count) == (1, False, 1)
        assert (get_ok.exchange, get_ok.routing_key, content(what).body) == ("", "q", b"a")

    def test_empty(self, client: Client) -> None:
        _, what = client.ask(1, commands.Basic.Get(queue="q"))
        assert isinstance(what, commands.Basic.GetEmpty)

    def test_no_ack_is_gone(self, client: Client) -> None:
        fill(client, "q", b"a")
        client.ask(1, commands.Basic.Get(queue="q", no_ack=True))
        assert client.world.vhost.queues["q"].unacked_count == 0
        client.ask(1, commands.Channel.Close(200, "", 0, 0))
        client.open()
        assert client.message_count("q") == 0

    def test_beside_an_exclusive_consumer(self, client: Client) -> None:
        """CONS-51."""
        client.qos(1)
        fill(client, "q", b"a", b"b")
        client.consume("q", "t", exclusive=True)
        client.open(2)
        _, what = client.ask(2, commands.Basic.Get(queue="q"))
        assert content(what).body == b"b"

    def test_requeued_get_is_redelivered(self, client: Client) -> None:
        fill(client, "q", b"a")
        client.ask(1, commands.Basic.Get(queue="q"))
        client.send(wire.nack(1, 1))
        _, what = client.ask(1, commands.Basic.Get(queue="q"))
        assert content(what).method.redelivered  # type: ignore[attr-defined]

    def test_body_is_cut_to_the_frames_of_the_client(self, client: Client) -> None:
        octets = b"x" * 9000
        client.send(wire.publish(1, "q", octets, sizes=(4000, 4000)))
        _, what = client.ask(1, commands.Basic.Get(queue="q"))
        assert content(what).body == octets
        assert max(content(what).body_sizes) <= wire.ONE_BODY


class TestRecover:
    @pytest.mark.parametrize("method", [commands.Basic.Recover, commands.Basic.RecoverAsync])
    def test_requeue(self, client: Client, method: type[base.Frame]) -> None:
        """ACK-20, ACK-21."""
        fill(client, "q", b"a", b"b", b"c")
        client.ask(1, commands.Basic.Get(queue="q"))
        client.consume("q", "t")
        client.send(recover_frame(method, requeue=True))
        said = client.hear()
        if method is commands.Basic.Recover:
            assert name_of(said.pop(0)[1]) == "Basic.RecoverOk"
        assert [delivery(what)[1:] for _, what in said] == [
            (4, b"a", True),
            (5, b"b", True),
            (6, b"c", True),
        ]
        with closes_channel(client, 406, "PRECONDITION_FAILED - unknown delivery tag 1", (60, 80)):
            client.send(wire.ack(1, 1))

    @pytest.mark.parametrize("method", [commands.Basic.Recover, commands.Basic.RecoverAsync])
    def test_same_consumer_again(self, client: Client, method: type[base.Frame]) -> None:
        """ACK-22: same tags, redelivered; gets and cancelled consumers' are requeued."""
        fill(client, "q", b"got", b"kept")
        fill(client, "r", b"left")
        client.ask(1, commands.Basic.Get(queue="q"))
        client.consume("q", "t")
        client.consume("r", "u")
        client.ask(1, commands.Basic.Cancel("u"))
        client.send(recover_frame(method, requeue=False))
        said = client.hear()
        if method is commands.Basic.Recover:
            assert name_of(said.pop(0)[1]) == "Basic.RecoverOk"
        assert [delivery(what) for _, what in said] == [
            ("t", 2, b"kept", True),
            ("t", 4, b"got", True),
        ]
        assert client.message_count("r") == 1
        client.send(wire.ack(1, 2), wire.ack(1, 4))
        assert client.hear() == []

    @pytest.mark.parametrize(
        ("method", "ids"),
        [(commands.Basic.Recover, (60, 110)), (commands.Basic.RecoverAsync, (60, 100))],
    )
    def test_same_consumer_again_can_be_refused(
        self, method: type[base.Frame], ids: tuple[int, int]
    ) -> None:
        client = prepared(World(replace(SETTINGS, compat_reject_recover=True)))
        client.send(recover_frame(commands.Basic.Recover, requeue=True))
        assert client.names() == ["Basic.RecoverOk"]
        with closes_connection(client, 540, "NOT_IMPLEMENTED - requeue=false", ids):
            client.send(recover_frame(method, requeue=False))

    def test_same_consumer_again_keeps_its_room(self, client: Client) -> None:
        client.qos(2)
        fill(client, "q", *numbers(1, 4))
        client.consume("q", "t")
        client.send(recover_frame(commands.Basic.Recover, requeue=False))
        assert client.names() == ["Basic.RecoverOk", "Basic.Deliver", "Basic.Deliver"]
        client.send(wire.ack(1, 1), wire.ack(1, 2))
        assert got(client.hear()) == [b"3", b"4"]


class TestDirectReplyTo:
    def test_request_and_reply(self, client: Client) -> None:
        """CONS-60…63."""
        assert client.consume(REPLY_TO, "replies", no_ack=True) == []
        server = client.world.connect()
        server.open()
        server.consume("q", "requests")
        properties = commands.Basic.Properties(reply_to=REPLY_TO, correlation_id="7")
        client.send(wire.publish(1, "q", b"question", properties))
        ((_, asked),) = server.hear()
        name = content(asked).properties.reply_to or ""
        assert name.startswith(REPLY_TO + ".")
        assert len(name) >= len(REPLY_TO) + 1 + 22
        assert content(asked).properties.correlation_id == "7"
        server.send(wire.publish(1, name, b"answer", mandatory=True))
        assert server.hear() == []
        ((_, what),) = client.hear()
        assert delivery(what) == ("replies", 1, b"answer", False)
        deliver = content(what).method
        assert isinstance(deliver, commands.Basic.Deliver)
        assert (deliver.exchange, deliver.routing_key) == ("", name)

    def test_needs_no_ack(self, client: Client) -> None:
        text = "PRECONDITION_FAILED - reply consumer cannot acknowledge"
        with closes_channel(client, 406, text, (60, 20)):
            client.method(1, commands.Basic.Consume(queue=REPLY_TO))

    def test_once_per_channel(self, client: Client) -> None:
        client.consume(REPLY_TO, "t", no_ack=True)
        text = "PRECONDITION_FAILED - reply consumer already set"
        with closes_channel(client, 406, text, (60, 20)):
            client.method(1, commands.Basic.Consume(queue=REPLY_TO, no_ack=True))

    def test_request_without_a_consumer(self, client: Client) -> None:
        text = "PRECONDITION_FAILED - fast reply consumer does not exist"
        with closes_channel(client, 406, text, (60, 40)):
            client.send(wire.publish(1, "q", b"", commands.Basic.Properties(reply_to=REPLY_TO)))

    @pytest.mark.parametrize("end", ["cancel", "channel", "connection", "socket"])
    def test_name_dies_with_its_consumer(self, client: Client, end: str) -> None:
        """CONS-63, PUB-25."""
        client.consume(REPLY_TO, "t", no_ack=True)
        name = client.connection.channels[1].reply_consumer
        assert name is not None
        other = client.world.connect()
        other.open()
        _, alive = other.ask(1, commands.Queue.Declare(queue=name.name, passive=True))
        assert isinstance(alive, commands.Queue.DeclareOk)
        assert (alive.message_count, alive.consumer_count) == (0, 1)
        if end == "cancel":
            client.ask(1, commands.Basic.Cancel("t"))
        elif end == "channel":
            client.ask(1, commands.Channel.Close(200, "", 0, 0))
        elif end == "connection":
            client.method(0, commands.Connection.Close(200, "", 0, 0))
        else:
            client.connection.lost("reset")
        other.send(wire.publish(1, name.name, b"late", mandatory=True))
        other.send(wire.publish(1, name.name, b"dropped"))
        assert other.names() == ["Basic.Return"]
        text = f"NOT_FOUND - no queue '{name.name}' in vhost '/'"
        with closes_channel(other, 404, text, (50, 10)):
            other.method(1, commands.Queue.Declare(queue=name.name, passive=True))

    def test_declare_of_the_plain_name(self, client: Client) -> None:
        """CONS-61."""
        _, what = client.ask(1, commands.Queue.Declare(queue=REPLY_TO))
        assert isinstance(what, commands.Queue.DeclareOk)
        assert (what.message_count, what.consumer_count) == (0, 1)

    def test_get_from_it(self, client: Client) -> None:
        """CONS-64."""
        text = f"NOT_FOUND - no queue '{REPLY_TO}.x' in vhost '/'"
        with closes_channel(client, 404, text, (60, 70)):
            client.method(1, commands.Basic.Get(queue=REPLY_TO + ".x"))

    def test_reply_is_confirmed(self, client: Client) -> None:
        client.consume(REPLY_TO, "t", no_ack=True)
        consumer = client.connection.channels[1].reply_consumer
        assert consumer is not None
        client.open(2)
        client.ask(2, commands.Confirm.Select())
        client.send(wire.publish(2, consumer.name, b"x", wire.persistent()))
        assert client.names() == ["Basic.Deliver", "Basic.Ack"]


def consume_frame(queue: str, tag: str, arguments: Table) -> bytes:
    """basic.consume with typed arguments."""
    names = b"".join(bytes((len(text),)) + text.encode() for text in (queue, tag))
    payload = b"\x00\x3c\x00\x14\x00\x00" + names + b"\x00" + encode_table(arguments)
    return wire.frame(1, 1, payload)


def recover_frame(method: type[base.Frame], *, requeue: bool) -> bytes:
    """basic.recover or recover-async; pamqp warns of the latter."""
    return wire.frame(1, 1, method.index.to_bytes(4, "big") + bytes((requeue,)))


def test_room_that_comes_back_goes_round_the_channel(client: Client) -> None:
    """QOS-09: no queue starves, though the one whose delivery was acked is at hand."""
    queues = ["q1", "q2", "q3"]
    for queue in queues:
        client.declare(queue)
        for _ in range(8):
            client.send(wire.publish(1, queue, queue.encode()))
    client.qos(1, is_global=True)
    for queue in queues:
        client.method(1, commands.Basic.Consume(queue=queue, consumer_tag=queue))
    seen: list[str] = []
    tags = [tag for tag, _, _, _ in map(delivery, [w for _, w in client.hear()][3:])]
    while len(seen) < 12:
        assert len(tags) == 1
        seen += tags
        client.send(wire.ack(1, len(seen)))
        tags = [tag for tag, _, _, _ in client.deliveries()]
    assert seen == queues * 4


def test_consumers_without_ack_wait_while_the_channel_is_full(client: Client) -> None:
    """QOS-08: they obey a limit that others have filled, and fill up none."""
    client.declare("q1")
    client.declare("q2")
    client.qos(1, is_global=True)
    client.consume("q1", "acks")
    client.consume("q2", "never", no_ack=True)
    client.send(wire.publish(1, "q2", b"1"), wire.publish(1, "q2", b"2"))
    assert [body for _, _, body, _ in client.deliveries()] == [b"1", b"2"]
    client.send(wire.publish(1, "q1", b"3"))
    assert [body for _, _, body, _ in client.deliveries()] == [b"3"]
    client.send(wire.publish(1, "q2", b"4"), wire.publish(1, "q2", b"5"))
    assert client.deliveries() == []
    client.send(wire.ack(1, 3))
    assert [body for _, _, body, _ in client.deliveries()] == [b"4", b"5"]


LOOKS: list[tuple[base.Frame, int]] = [
    (commands.Queue.Declare(queue="q", passive=True), 1),
    (commands.Queue.Purge(queue="q"), 1),
    (commands.Queue.Delete(queue="q"), 1),
]


@pytest.mark.parametrize(("what", "left"), LOOKS)
def test_commands_leave_to_consumers_what_is_theirs(
    client: Client, what: base.Frame, left: int
) -> None:
    """CONS-52: in one piece of octets, so that no turn comes between; what nobody wants counts."""
    client.declare("q")
    client.qos(2)
    client.consume("q", "t")
    client.send(*(wire.publish(1, "q", body) for body in (b"1", b"2", b"3")), wire.method(1, what))
    said = [each for _, each in client.hear()]
    assert [content(each).body for each in said[:2]] == [b"1", b"2"]
    assert said[2].message_count == left  # type: ignore[union-attr]


def test_get_leaves_to_consumers_what_is_theirs(client: Client) -> None:
    """CONS-52."""
    client.declare("q")
    client.qos(1)
    client.consume("q", "t")
    get = wire.method(1, commands.Basic.Get(queue="q", no_ack=True))
    client.send(wire.publish(1, "q", b"1"), get, wire.publish(1, "q", b"2"), get, get)
    assert client.names() == ["Basic.Deliver", "Basic.GetEmpty", "Basic.GetOk", "Basic.GetEmpty"]


def test_a_queue_is_empty_when_its_messages_are_on_their_way(client: Client) -> None:
    """CONS-52, QUEUE-62."""
    client.declare("q")
    client.consume("q", "t")
    client.send(
        wire.publish(1, "q", b"1"),
        wire.method(1, commands.Queue.Delete(queue="q", if_empty=True)),
    )
    assert client.names() == ["Basic.Deliver", "Queue.DeleteOk", "Basic.Cancel"]
