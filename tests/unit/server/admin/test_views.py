"""What views show of a broker, and that a listing of many never keeps the loop for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec import Struct
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import Reader, listed, views_of
from tests.unit.server.amqp_client import declare, publish
from tests.unit.server.in_memory import Client
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.admin.commands import ControlCommands
from vouchmq.server.admin.listing import ListingCommands, RowSender
from vouchmq.server.admin.views import KINDS
from vouchmq.server.broker.policy.policies import Policy


@pytest.fixture
def world() -> DiskWorld:
    return DiskWorld()


@pytest.fixture
def client(world: DiskWorld) -> Client:
    client = world.connect()
    client.ask(1, commands.Channel.Open())
    return client


def test_a_queue_with_its_messages_and_policies(world: DiskWorld, client: Client) -> None:
    client.ask(1, commands.Queue.Declare(queue="q", durable=True, arguments={"x-max-length": 9}))
    publish(client, "q", b"1", b"2", b"3", delivery_mode=2)
    world.vhost.policy_engine.set_policy(Policy("limits", "^q", {"max-length": 5}))
    world.vhost.policy_engine.set_policy(Policy("ours", "", {"expires": 9}, is_operator=True))
    client.ask(1, commands.Basic.Qos(prefetch_count=2))
    client.method(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    world.sync()
    [row] = listed(world, "queues")
    assert row == {
        "vhost": "/",
        "name": "q",
        "type": "classic",
        "durable": True,
        "exclusive": False,
        "auto_delete": False,
        "arguments": {"x-max-length": 9},
        "policy": "limits",
        "operator_policy": "ours",
        "paused": False,
        "messages": 3,
        "messages_ready": 1,
        "messages_unacknowledged": 2,
        "consumers": 1,
        "published": 3,
        "delivered": 2,
        **dict.fromkeys(("redelivered", "acked", "rejected"), 0),
        **dict.fromkeys(("dead_lettered", "dead_letters_dropped", "expired", "dropped"), 0),
    }
    [consumer] = listed(world, "consumers")
    assert (consumer["queue"], consumer["tag"], consumer["unacknowledged"]) == ("q", "c", 2)
    assert (consumer["prefetch"], consumer["ack_required"], consumer["active"]) == (2, True, True)


def test_who_waits_behind_a_single_active_consumer(world: DiskWorld, client: Client) -> None:
    declare(client, "q", single_active_consumer=True)
    for tag in "ab":
        client.ask(1, commands.Basic.Consume(queue="q", consumer_tag=tag))
    assert [(row["tag"], row["active"]) for row in listed(world, "consumers")] == [
        ("a", True),
        ("b", False),
    ]


def test_channels_and_connections(world: DiskWorld, client: Client) -> None:
    client.ask(1, commands.Confirm.Select())
    declare(client, "q")
    client.send(wire.publish(1, "q", b"unconfirmed", commands.Basic.Properties(delivery_mode=2)))
    [channel] = listed(world, "channels")
    assert (channel["number"], channel["confirm"], channel["unconfirmed"]) == (1, True, 1)
    assert (channel["transactional"], channel["prefetch"]) == (False, 0)
    early = world.client()
    rows = listed(world, "connections")
    states = sorted((str(row["state"]), str(row["user"])) for row in rows)
    assert states == [("running", "guest"), ("starting", "")]
    early.connection.lost("gone")
    assert len(listed(world, "connections")) == 1


def test_exchanges_bindings_vhosts(world: DiskWorld, client: Client) -> None:
    client.ask(1, commands.Exchange.Declare(exchange="x", exchange_type="topic", durable=True))
    declare(client, "q")
    client.ask(1, commands.Queue.Bind(queue="q", exchange="x", routing_key="a.#"))
    exchanges = {row["name"]: row for row in listed(world, "exchanges")}
    assert exchanges["x"]["type"] == "topic"
    assert {"", "amq.direct", "amq.fanout"} <= exchanges.keys()
    [binding] = listed(world, "bindings")
    assert binding == {
        "vhost": "/",
        "source": "x",
        "destination": "q",
        "destination_type": "queue",
        "routing_key": "a.#",
        "arguments": {},
    }
    [vhost] = listed(world, "vhosts")
    assert (vhost["name"], vhost["queues"]) == ("/", 1)


def test_queues_that_clients_cannot_see_are_not_shown(world: DiskWorld, client: Client) -> None:
    client.ask(
        1,
        commands.Exchange.Declare(
            exchange="x",
            exchange_type="x-delayed-message",
            arguments={"x-delayed-type": "direct"},
            durable=True,
        ),
    )
    assert world.vhost.delay_queues
    assert listed(world, "queues") == []
    [vhost] = listed(world, "vhosts")
    assert vhost["queues"] == 0
    [overview] = listed(world, "overview")
    assert overview["queues"] == 0


def test_alarms_and_store(world: DiskWorld, client: Client) -> None:
    client.ask(1, commands.Queue.Declare(queue="q", durable=True))
    alarms = {str(row["name"]): row for row in listed(world, "alarms")}
    assert list(alarms) == ["memory", "disk", "storage"]  # as the log calls them
    assert not any(row["raised"] for row in alarms.values())
    world.context.alarms.read(1 << 62, 1 << 62)
    assert [row["name"] for row in listed(world, "alarms") if row["raised"]] == ["memory"]
    world.context.alarms.read(0, 1 << 62)
    world.sync()
    [store] = listed(world, "store")
    before = store["last_lsn"]
    publish(client, "q", b"1", b"2", delivery_mode=2)
    [store] = listed(world, "store")
    assert store["last_lsn"] == before + 2
    assert store["watermark_lsn"] < store["last_lsn"]
    world.sync()
    [store] = listed(world, "store")
    assert store["watermark_lsn"] >= store["last_lsn"]
    assert store["syncs"] > 0
    assert store["segments"] == 1


class TestSlices:
    """A listing of many goes on in other turns, and waits for its reader."""

    def test_a_slice_ends_with_its_time(self, world: DiskWorld, client: Client) -> None:
        for number in range(100):
            declare(client, f"q{number}")
        later: list[Callable[[], None]] = []
        looks = 0

        def clock() -> float:
            nonlocal looks
            looks += 1
            return float(looks)

        registry = ControlCommands()
        ListingCommands(views_of(world).listings, KINDS, RowSender(later.append, clock)).register(
            registry
        )
        reader = Reader()
        registry.run({"command": "list queues"}, reader)
        first = len(reader.lines)
        assert 0 < first < 100
        slices = 1
        client.ask(1, commands.Queue.Delete(queue="q99"))
        while later:
            before = len(reader.lines)
            later.pop(0)()
            assert len(reader.lines) - before <= first
            slices += 1
        assert slices >= 100 // first
        assert [row["name"] for row in reader.lines] == [f"q{number}" for number in range(99)]

    def test_nothing_is_made_for_a_reader_that_does_not_read(self, world: DiskWorld) -> None:
        later: list[Callable[[], None]] = []
        registry = ControlCommands()
        ListingCommands(
            views_of(world).listings, KINDS, RowSender(later.append, lambda: 0.0)
        ).register(registry)
        reader = Reader()
        reader.is_full = True
        registry.run({"command": "list exchanges"}, reader)
        # Nothing runs until the reader reads.
        assert (reader.lines, later) == ([], [])
        reader.is_full = False
        assert reader.waiting is not None
        reader.waiting()
        assert reader.lines
        assert reader.facts is not None

    def test_a_reader_that_has_gone_ends_it(self, world: DiskWorld) -> None:
        later: list[Callable[[], None]] = []
        registry = ControlCommands()
        ListingCommands(
            views_of(world).listings, KINDS, RowSender(later.append, lambda: 0.0)
        ).register(registry)
        reader = Reader()
        reader.is_open = False
        registry.run({"command": "list vhosts"}, reader)
        assert (reader.lines, reader.facts, later) == ([], None, [])

    def test_listings_at_once_share_one_slice_of_a_turn(self) -> None:
        """LIMIT-23."""

        def numbers(count: int) -> Iterator[Numbered]:
            yield from map(Numbered, range(count))

        sending = Sending()
        many, few, broken = Reader(), Reader(), Reader()
        many.columns = few.columns = ["number"]
        sending.sender.send(numbers(1000), many)
        sending.sender.send(failing(), broken)
        sending.sender.send(numbers(20), few)
        assert len(sending.later) == 1
        sending.turn()
        with pytest.raises(ZeroDivisionError):
            sending.turn()
        while not few.has_answer():
            assert not many.has_answer()
            sending.turn()
        assert few.facts == {"ok": True, "count": 20}
        while not many.has_answer():
            assert len(sending.later) == 1
            sending.turn()
        assert many.facts == {"ok": True, "count": 1000}
        assert sending.later == []


class Numbered(Struct, frozen=True, array_like=True):
    number: int


def failing() -> Iterator[Numbered]:
    yield Numbered(1 // 0)


class Sending:
    """A sender whose slices end whenever it looks at the clock."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self._looks = 0
        self.sender = RowSender(self.later.append, self._clock)

    def _clock(self) -> float:
        self._looks += 1
        return float(self._looks)

    def turn(self) -> None:
        self.later.pop(0)()
