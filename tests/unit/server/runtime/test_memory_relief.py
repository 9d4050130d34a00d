"""What connections may make the broker hold: bounds, the alarm, who is closed (LIMIT-27, 28)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import NOTIFIED, SETTINGS, Client, World, closes_connection
from tests.unit.server.queues import Stage
from vouchmq.server.broker.queues.settlement import Outcome
from vouchmq.server.connection.connection import BESIDE_MESSAGE_OCTETS, TIGHT_PART
from vouchmq.server.connection.wire import BLOCKED
from vouchmq.server.runtime.context import Limits
from vouchmq.server.runtime.memory_relief import (
    GRACE_S,
    LEAST_OCTETS,
    MARGIN_OCTETS,
    PAUSE_S,
    REFUSING_S,
    MemoryRelief,
)

MIB = 1024 * 1024
LIMIT = 40 * MIB
PLENTY = 1 << 40
MESSAGE = 100_000
END_OCTETS = 9
HEARING = (*NOTIFIED, "connection.blocked")
CLOSED = "RESOURCE_ERROR - memory is low and this connection uses much of it"


@pytest.fixture
def world() -> World:
    """A broker with a watermark, whose connections may hold two messages unfinished."""
    world = World(
        replace(SETTINGS, connection_memory_bytes=2 * MIB, max_message_size_bytes=MESSAGE)
    )
    world.context.alarms.memory_limit_octets = LIMIT
    return world


@pytest.fixture
def memory_relief(world: World) -> MemoryRelief:
    """Its relief."""
    return MemoryRelief(world.context.alarms, lambda: list(world.connections), lambda: world.now)


def opened(world: World, channels: int = 1, *, transactional: bool = False) -> Client:
    client = world.connect(capabilities=HEARING)
    for number in range(1, channels + 1):
        client.open(number)
        if transactional:
            client.ask(number, commands.Tx.Select())
    return client


def whole(channel: int, octets: int = MESSAGE) -> bytes:
    """A publish, the last frame of which is one octet."""
    body = wire.ONE_BODY
    full, rest = divmod(octets - 1, body)
    sizes = [body] * full + [rest] * bool(rest) + [1]
    return wire.publish(channel, "q", bytes(octets), sizes=sizes)


def but_the_end(channel: int, octets: int = MESSAGE) -> bytes:
    """The same without that frame."""
    return whole(channel, octets)[:-END_OCTETS]


def the_end(channel: int) -> bytes:
    """That frame."""
    return whole(channel)[-END_OCTETS:]


def closes(client: Client) -> list[int]:
    """Codes of connection.close that were heard."""
    said = (what for _, what in client.hear())
    return [what.reply_code or 0 for what in said if isinstance(what, commands.Connection.Close)]


class TestOneConnection:
    """LIMIT-27."""

    def test_unfinished_contents_are_counted_until_their_end(self, world: World) -> None:
        client = opened(world, 3)
        connection = client.connection
        assert connection.buffered_octets == 0
        for number in (1, 2, 3):
            client.send(but_the_end(number))
            client.world.run_turns()
            assert number * MESSAGE < connection.buffered_octets < number * (MESSAGE + 2000)
        client.send(the_end(1))
        client.hear()
        assert 2 * MESSAGE < connection.buffered_octets < 2 * MESSAGE + 4000
        client.send(the_end(3))
        # In the middle of a content, which is an error.
        client.method(2, commands.Basic.Qos())
        assert closes(client) == [505]
        assert connection.buffered_octets < 100

    def test_too_much_of_them_closes(self, world: World) -> None:
        beside = 3 * MIB
        world.context.limits = Limits(connection_memory_bytes=beside, max_message_size_bytes=beside)
        client = opened(world, 10)
        for number in range(1, 4):
            client.send(but_the_end(number, MIB))
        assert closes(client) == []
        with closes_connection(
            client,
            506,
            f"RESOURCE_ERROR - unfinished messages and transactions of more than {beside} bytes",
            (0, 0),
        ):
            client.send(but_the_end(4, MIB + BESIDE_MESSAGE_OCTETS))

    def test_one_message_of_the_largest_size_is_always_taken(self, world: World) -> None:
        largest = 4 * MIB
        world.context.limits = Limits(connection_memory_bytes=MIB, max_message_size_bytes=largest)
        client = opened(world)
        client.declare("q")
        octets = whole(1, largest)
        for at in range(0, len(octets), 65536):
            client.send(octets[at : at + 65536])
        assert client.message_count("q") == 1

    def test_transactions_count(self, world: World) -> None:
        client = opened(world, 5, transactional=True)
        client.declare("q", 1)
        for number in range(1, 5):
            for _ in range(4):
                client.send(whole(number, MESSAGE))
        assert client.connection.uncommitted_bytes > 16 * MESSAGE
        client.ask(1, commands.Tx.Rollback())
        client.ask(2, commands.Tx.Commit())
        client.method(3, commands.Channel.Close(200, "", 0, 0))
        client.hear()
        assert 4 * MESSAGE < client.connection.uncommitted_bytes < 5 * MESSAGE
        for _ in range(20):
            client.send(whole(5, MESSAGE))
        assert closes(client) == [506]
        assert client.connection.uncommitted_bytes == 0

    def test_unacked_deliveries_are_about_what_they_are(self, world: World) -> None:
        client = opened(world)
        client.declare("q")
        for number in range(1000):
            client.send(wire.publish(1, "q", bytes(100 + number)))
        client.consume("q", "c")
        about = client.connection.unacked_octets
        assert 0.8 < about / (1000 * (600 + 180)) < 1.2
        client.send(wire.ack(1, 990, multiple=True))
        assert client.connection.unacked_octets < about / 50


class TestAlarm:
    """LIMIT-10, LIMIT-27."""

    def test_who_holds_an_unfinished_content_is_not_read_on(self, world: World) -> None:
        half, idle = opened(world), opened(world)
        half.send(but_the_end(1))
        world.context.alarms.read(LIMIT + 1, PLENTY)
        assert half.paused == {BLOCKED}
        assert [what.name for _, what in half.hear() if what] == ["Connection.Blocked"]  # type: ignore[union-attr]
        assert idle.paused == set()
        world.context.alarms.read(0, PLENTY)
        assert half.paused == set()
        assert half.names() == ["Connection.Unblocked"]

    def test_a_method_with_a_large_table_waits_like_a_publish(self, world: World) -> None:
        client = opened(world)
        client.connection._reader.set_frame_max(100_000)
        world.context.alarms.read(LIMIT + 1, PLENTY)
        client.declare("small")
        table = {f"key{number}": "x" * 200 for number in range(25)}
        client.method(1, commands.Queue.Declare(queue="large", arguments=table))  # type: ignore[arg-type]
        assert [what.name for _, what in client.hear() if what] == ["Connection.Blocked"]  # type: ignore[union-attr]
        assert client.paused == {BLOCKED}
        assert set(world.vhost.queues) == {"small"}
        world.context.alarms.read(0, PLENTY)
        world.sync()
        assert set(world.vhost.queues) == {"small", "large"}

    def test_the_disk_alarm_lets_it_end(self, world: World) -> None:
        half = opened(world)
        half.send(but_the_end(1))
        world.context.alarms.disk_limit_octets = 100
        world.context.alarms.read(0, 1)
        assert half.paused == set()

    def test_less_is_kept_for_clients_before_memory_is_low(self, world: World) -> None:
        client = opened(world)
        high = world.context.limits.deliver_high_water_bytes
        world.context.alarms.read(int(LIMIT * 0.81), PLENTY)
        assert not world.context.alarms.is_raised
        late = opened(world)
        assert client.unsent_limit == late.unsent_limit == high // TIGHT_PART
        client.connection.outbox.send(bytes(high // TIGHT_PART))
        assert client.connection.outbox.blocked
        world.context.alarms.read(int(LIMIT * 0.76), PLENTY)
        assert client.unsent_limit == high // TIGHT_PART
        world.context.alarms.read(int(LIMIT * 0.74), PLENTY)
        assert client.unsent_limit == high


class TestRelief:
    """LIMIT-28."""

    def look(self, world: World, memory_relief: MemoryRelief, used: int) -> bool:
        world.context.alarms.read(used, PLENTY)
        return memory_relief.look()

    def refuses(self, memory_relief: MemoryRelief) -> bool:
        return memory_relief.is_refusing()

    def test_nobody_is_closed_while_memory_is_not_low(
        self, world: World, memory_relief: MemoryRelief
    ) -> None:
        client = opened(world)
        client.send(but_the_end(1))
        for _ in range(3):
            world.now += 2 * GRACE_S
            assert not self.look(world, memory_relief, LIMIT)
        assert closes(client) == []

    def test_far_above_the_largest_go_at_once_and_no_more_than_it_takes(
        self, world: World, memory_relief: MemoryRelief
    ) -> None:
        world.context.limits = Limits()
        sizes = (1 * MIB, 20 * MIB, 5 * MIB, 25 * MIB)
        clients = []
        for size in sizes:
            clients.append(opened(world, 4))
            for number in range(1, 5):
                clients[-1].send(but_the_end(number, size // 4))
        assert self.look(world, memory_relief, LIMIT + MARGIN_OCTETS + 1)
        assert [closes(client) for client in clients] == [[], [506], [], [506]]
        assert self.refuses(memory_relief)
        assert memory_relief.closed_count == 2
        assert all(each.connection.buffered_octets == 0 for each in (clients[1], clients[3]))
        # What was let go needs a moment.
        assert not self.look(world, memory_relief, LIMIT + MARGIN_OCTETS + 1)
        world.now += 1.1 * PAUSE_S
        assert self.look(world, memory_relief, LIMIT + MARGIN_OCTETS + 1)
        assert [closes(client) for client in clients] == [[506], [], [506], []]
        world.now += REFUSING_S
        assert not self.refuses(memory_relief)
        assert not self.look(world, memory_relief, LIMIT + MARGIN_OCTETS + 1)

    def test_closer_above_there_is_time_as_long_as_it_gets_less(
        self, world: World, memory_relief: MemoryRelief
    ) -> None:
        world.context.limits = Limits()
        client = opened(world, 6)
        for number in range(1, 7):
            client.send(but_the_end(number, 2 * MIB))
        used = LIMIT + 10 * MIB
        for _ in range(3):
            used -= 2 * MIB
            assert not self.look(world, memory_relief, used)
            world.now += 0.9 * GRACE_S
        assert not self.look(world, memory_relief, used)
        world.now += 0.2 * GRACE_S
        assert self.look(world, memory_relief, used)
        assert closes(client) == [506]

    def test_nobody_is_closed_in_vain(self, world: World, memory_relief: MemoryRelief) -> None:
        client = opened(world)
        client.send(but_the_end(1))
        assert client.connection.buffered_octets > LEAST_OCTETS
        for _ in range(3):
            assert not self.look(world, memory_relief, LIMIT + MIB)
            world.now += 2 * GRACE_S
        assert closes(client) == []

    def test_much_unacked_gets_no_more_until_it_is_acked(
        self, world: World, memory_relief: MemoryRelief
    ) -> None:
        world.context.alarms.memory_limit_octets = limit = 1_000_000
        client = opened(world)
        client.declare("q")
        client.qos(8)
        client.consume("q", "c")
        for _ in range(10):
            client.send(whole(1, MESSAGE // 4))
        assert len(client.deliveries()) == 8
        self.look(world, memory_relief, limit + 1)
        client.send(wire.ack(1, 1))
        assert client.deliveries() == []
        client.send(wire.ack(1, 5, multiple=True))
        self.look(world, memory_relief, limit + 1)
        assert len(client.deliveries()) == 2

    def test_who_does_not_hear_is_cut_off(self, world: World, memory_relief: MemoryRelief) -> None:
        client = opened(world)
        client.send(but_the_end(1))
        client.unsent_octets = MIB
        assert self.look(world, memory_relief, LIMIT + MARGIN_OCTETS + 1)
        assert client.ends == ["aborted"]


class TestPaging:
    """LIMIT-21."""

    def test_what_has_come_back_is_left_to_the_disk_once_nothing_more_can(self) -> None:
        stage = Stage(budget=(64 * 1024, 1 << 62), message_octets=1000)
        alice = stage.consume("alice")
        bob = stage.consume("bob", 1)
        stage.enqueue(500, stored=True)
        stage.turn.run()
        assert len(alice.served) == 499
        back = [*alice.held]
        stage.queue.remove_consumer(alice)
        bob.left = 0
        stage.queue.requeue(back, Outcome.LOST)
        stage.pager.run()
        # Bob's may still come back, in front of what would be on disk.
        assert stage.queue.ready.backlog is None
        stage.queue.remove_consumer(bob)
        stage.queue.requeue([*bob.held], Outcome.LOST)
        stage.pager.run()
        assert stage.queue.ready.octets < 64 * 1024
        assert stage.queue.ready_count == 500
        carol = stage.consume("carol")
        stage.turn.run()
        assert [seq for seq, _ in carol.served] == sorted(seq for seq, _ in carol.served)
        assert len(carol.served) == 500
        assert all(is_again for _, is_again in carol.served)
