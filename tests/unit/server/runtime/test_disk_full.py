"""A disk that refuses: what is lost is said to be lost, what is kept stays, and it ends.

The whole broker on a simulated disk. CONF-07, CONF-12, TX-09, LIMIT-15, DURABLE-21.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest
from pamqp import base, commands
from structlog.testing import capture_logs

from tests import wire
from tests.unit.server.amqp_client import got
from tests.unit.server.full_disk import refuse
from tests.unit.server.in_memory import NOTIFIED, Client, closes_channel, confirms, delivery
from tests.unit.server.on_disk import DiskWorld
from tests.unit.store.journals import corrupt, segments_on
from vouchmq.server.broker.policy.policies import Policy
from vouchmq.server.connection.wire import BLOCKED, STALLED
from vouchmq.server.runtime.compaction_scheduler import CompactionScheduler
from vouchmq.store.sync.group_commit import GroupCommit

HEARING = (*NOTIFIED, "connection.blocked")
LOST = "RESOURCE_ERROR - failed to deliver message"


@pytest.fixture
def world() -> DiskWorld:
    """A broker on a disk that works."""
    return DiskWorld()


@pytest.fixture
def client(world: DiskWorld) -> Client:
    """A client in confirm mode with the durable queue d, the transient queue t and both on f."""
    client = world.connect(capabilities=HEARING)
    client.open()
    client.declare("d", durable=True)
    client.declare("t")
    for queue in "dt":
        client.ask(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
    client.method(1, commands.Confirm.Select())
    assert client.names() == ["Confirm.SelectOk"]
    return client


def other(world: DiskWorld) -> Client:
    """Another client with channel 1 open."""
    client = world.connect(capabilities=HEARING)
    client.open()
    return client


def stored(number: int, key: str = "d", **more: str) -> bytes:
    """A persistent publish whose body is its number."""
    return wire.publish(1, key, b"%d" % number, wire.persistent(), **more)  # type: ignore[arg-type]


def consumed(world: DiskWorld, queue: str = "d") -> list[wire.Heard]:
    """What another consumer gets from a queue."""
    client = other(world)
    client.method(1, commands.Basic.Consume(queue=queue, consumer_tag="c", no_ack=True))
    return client.hear()[1:]


def numbers(world: DiskWorld, queue: str = "d") -> list[bytes]:
    """The bodies of that."""
    return [delivery(what)[2] for _, what in consumed(world, queue)]


def returns_of_head(world: DiskWorld) -> int:
    """How often the head of q has come back by what its delivery says, which takes it."""
    headers = got(other(world), "q", no_ack=False).properties.headers or {}
    return int(headers.get("x-delivery-count", 0))


class TestPublishes:
    """CONF-12."""

    def test_refused_ones_are_nacked_and_gone(self, world: DiskWorld, client: Client) -> None:
        client.send(stored(1))
        world.sync()
        assert confirms(client.hear()) == [("Basic.Ack", 1, False)]
        refuse(world)
        client.send(stored(2), stored(3), stored(4, "", exchange="amq.fanout"))
        assert confirms(client.hear()) == [("Basic.Nack", 4, True)]
        assert world.context.alarms.is_storage_failing
        assert numbers(world) == [b"1"]
        assert numbers(world, "t") == []
        assert not world.fatal

    def test_earlier_ones_wait_on_and_transient_ones_stay(
        self, world: DiskWorld, client: Client
    ) -> None:
        client.send(stored(1))
        world.turn.run()
        refuse(world)
        client.send(stored(2), wire.publish(1, "d", b"transient"), stored(3))
        world.turn.run()
        said = confirms(wire.hear(bytes(client.octets)))
        assert said == [
            ("Basic.Nack", 2, False),
            ("Basic.Nack", 4, False),
            ("Basic.Ack", 3, False),
        ]
        world.sync()
        assert confirms(client.hear())[3:] == [("Basic.Ack", 1, False)]
        assert numbers(world) == [b"1", b"transient"]

    @pytest.mark.parametrize("has_confirms", [True, False])
    def test_a_duplicate_of_an_earlier_one_is_where_that_is(
        self, world: DiskWorld, client: Client, has_confirms: bool
    ) -> None:
        """CONF-12, DUP-02: the LSN of its original may be older than any refusal."""
        table: dict[str, Any] = {"x-message-deduplication": True}
        client.ask(1, commands.Queue.Declare(queue="k", durable=True, arguments=table))
        header: dict[str, Any] = {"x-deduplication-header": "same"}
        keyed = commands.Basic.Properties(delivery_mode=2, headers=header)
        client.send(wire.publish(1, "k", b"1", keyed))
        world.sync()
        client.hear()
        refuse(world)
        client.send(stored(2))
        assert confirms(client.hear()) == [("Basic.Nack", 2, False)]
        world.check()
        again = client if has_confirms else other(world)
        again.send(wire.publish(1, "k", b"1", keyed))
        world.sync()
        assert confirms(again.hear()) == ([("Basic.Ack", 3, False)] if has_confirms else [])
        again.method(1, commands.Basic.Qos(prefetch_count=1))
        assert again.names() == ["Basic.QosOk"]
        assert numbers(world, "k") == [b"1"]

    def test_a_waiting_consumer_gets_nothing_of_it(self, world: DiskWorld, client: Client) -> None:
        taker = other(world)
        taker.consume("d", "c")
        refuse(world)
        client.send(stored(1))
        assert confirms(client.hear()) == [("Basic.Nack", 1, False)]
        assert taker.hear() == []

    def test_a_message_is_in_one_block_with_its_delivery(
        self, world: DiskWorld, client: Client
    ) -> None:
        taker = other(world)
        taker.consume("d", "c")
        written = world.disk.calls["write"]
        client.send(stored(1))
        assert [delivery(what)[3] for _, what in taker.hear()] == [False]
        assert world.disk.calls["write"] == written + 1
        world.sync()
        again = world.after_power_cut()
        assert [delivery(what)[3] for _, what in consumed(again)] == [True]

    def test_the_delivery_of_a_refused_one_is_not_that_of_the_next(
        self, world: DiskWorld, client: Client
    ) -> None:
        taker = other(world)
        taker.consume("d", "c")
        refuse(world)
        client.send(stored(1))
        client.hear()
        taker.method(1, commands.Basic.Cancel(consumer_tag="c"))
        world.check()
        world.sync()
        client.send(stored(2))
        world.sync()
        assert ("Basic.Ack", 2, False) in confirms(client.hear())
        again = world.after_power_cut()
        assert [delivery(what)[2:] for _, what in consumed(again)] == [(b"2", False)]

    def test_neither_does_get(self, world: DiskWorld, client: Client) -> None:
        taker = other(world)
        refuse(world)
        client.send(stored(1))
        taker.method(1, commands.Basic.Get(queue="d"))
        assert taker.names() == ["Basic.GetEmpty"]
        assert confirms(client.hear()) == [("Basic.Nack", 1, False)]

    @pytest.mark.parametrize("mode", [1, 2])
    def test_nor_does_get_behind_a_head_whose_time_is_over(
        self, world: DiskWorld, client: Client, mode: int
    ) -> None:
        """What was the head when somebody asked is on disk, what is handed out need not be."""
        mortal = commands.Basic.Properties(delivery_mode=mode, expiration="10")
        client.send(wire.publish(1, "d", b"1", mortal))
        world.sync()
        client.hear()
        taker = other(world)
        world.now += 1
        refuse(world)
        client.send(stored(2))
        taker.method(1, commands.Basic.Get(queue="d"))
        assert taker.names() == ["Basic.GetEmpty"]
        assert confirms(client.hear()) == [("Basic.Nack", 2, False)]

    def test_nor_behind_a_head_that_has_come_back_too_often(self, world: DiskWorld) -> None:
        """Only when it is taken the queue sees that nobody may have it."""
        client = other(world)
        client.declare("r", durable=True)
        policies = world.vhost.policy_engine
        policies.set_policy(Policy("p", "^r$", {"delivery-limit": 5}))
        client.send(stored(1, "r"))
        for tag in (1, 2):
            client.method(1, commands.Basic.Get(queue="r"))
            client.send(wire.nack(1, tag))
        policies.set_policy(Policy("p", "^r$", {"delivery-limit": 1}))
        client.method(1, commands.Confirm.Select())
        world.sync()
        client.hear()
        taker = other(world)
        refuse(world)
        client.send(stored(2, "r"))
        taker.method(1, commands.Basic.Get(queue="r"))
        assert taker.names() == ["Basic.GetEmpty"]
        assert confirms(client.hear()) == [("Basic.Nack", 1, False)]

    def test_get_of_a_connection_that_ends_by_it(self, world: DiskWorld, client: Client) -> None:
        """What is ready stays so: nobody would ever have it otherwise."""
        arguments: dict[str, Any] = {"x-max-priority": 1}
        client.ask(1, commands.Queue.Declare(queue="p", durable=True, arguments=arguments))
        client.send(stored(1, "p"))
        world.sync()
        client.hear()
        blind = other(world)
        client.send(wire.publish(1, "p", b"2", wire.persistent(priority=1)))
        refuse(world)
        blind.send(stored(3), wire.method(1, commands.Basic.Get(queue="p")))
        assert blind.names() == ["Connection.Close"]
        queue = world.vhost.queues["p"]
        assert (queue.ready_count, queue.unacked_count) == (1, 0)
        assert numbers(world, "p") == [b"1"]

    def test_get_of_what_a_broken_disk_has_refused(self, world: DiskWorld, client: Client) -> None:
        taker = other(world)
        refuse(world, number=errno.EIO)
        client.send(stored(1))
        taker.method(1, commands.Basic.Get(queue="d"))
        assert taker.hear() == []
        assert world.fatal

    @pytest.mark.parametrize(
        "look",
        [
            commands.Queue.Declare(queue="d", passive=True),
            commands.Queue.Purge(queue="d"),
            commands.Basic.Get(queue="d"),
        ],
    )
    def test_nor_a_consumer_that_is_served_before_a_command_looks(
        self, world: DiskWorld, client: Client, look: base.Frame
    ) -> None:
        """CONS-52: the command sees the queue without it, and nobody has had it."""
        taker = other(world)
        taker.consume("d", "c")
        refuse(world)
        client.send(stored(1), wire.method(1, look))
        said = client.hear()
        assert confirms(said) == [("Basic.Nack", 1, False)]
        assert getattr(said[-1][1], "message_count", 0) == 0
        assert taker.hear() == []

    def test_a_delivery_before_a_command_is_written_before_it_leaves(
        self, world: DiskWorld, client: Client
    ) -> None:
        """DURABLE-12: a sync that ends in between must not let it out before its mark."""
        taker = other(world)
        taker.consume("d", "c")
        client.send(stored(1), wire.method(1, commands.Queue.Declare(queue="d", passive=True)))
        written = world.disk.calls["write"]
        assert not taker.octets
        world.context.turn.flush()
        assert taker.octets
        assert world.disk.calls["write"] == written + 1

    def test_nor_who_would_take_an_immediate_one(self, world: DiskWorld, client: Client) -> None:
        taker = other(world)
        taker.consume("d", "c")
        refuse(world)
        client.send(wire.publish(1, "d", b"1", wire.persistent(), immediate=True))
        assert confirms(client.hear()) == [("Basic.Nack", 1, False)]
        assert taker.hear() == []

    def test_without_confirms_the_connection_ends(self, world: DiskWorld, client: Client) -> None:
        blind, innocent = other(world), other(world)
        refuse(world)
        blind.send(stored(1))
        innocent.send(wire.publish(1, "d", b"transient"))
        (_, close), *rest = blind.hear()
        assert isinstance(close, commands.Connection.Close)
        assert (close.reply_code, close.reply_text) == (506, LOST)
        assert (close.class_id, close.method_id) == (60, 40)
        assert not rest
        blind.method(0, commands.Connection.CloseOk())
        assert blind.ends == ["finished"]
        assert innocent.hear() == []
        assert numbers(world) == [b"transient"]

    def test_numbers_go_on(self, world: DiskWorld, client: Client) -> None:
        refuse(world)
        client.send(stored(1))
        client.hear()
        world.check()
        client.send(stored(2))
        world.sync()
        assert confirms(client.hear()) == [("Basic.Ack", 2, False)]
        assert numbers(world.after_power_cut()) == [b"2"]


class TestRecovery:
    """LIMIT-15."""

    def test_publishers_wait_until_a_probe_is_synced(
        self, world: DiskWorld, client: Client
    ) -> None:
        refuse(world, times=3)
        client.send(stored(1))
        client.hear()
        client.send(stored(2))
        assert client.names() == ["Connection.Blocked"]
        for _ in range(2):
            world.check()
            assert world.context.alarms.is_storage_failing
        assert client.paused == {BLOCKED}
        world.check()
        assert not world.context.alarms.is_raised
        world.sync()
        said = client.hear()
        assert isinstance(said[0][1], commands.Connection.Unblocked)
        assert confirms(said) == [("Basic.Ack", 2, False)]

    def test_a_probe_without_room_for_a_segment_is_not_enough(
        self, world: DiskWorld, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refuse(world)
        client.send(stored(1))
        client.hear()
        monkeypatch.setattr(world.disk, "free_bytes", lambda: 65535)
        world.check()
        assert world.context.alarms.is_storage_failing
        monkeypatch.setattr(world.disk, "free_bytes", lambda: 65536)
        world.check()
        assert not world.context.alarms.is_raised

    def test_the_file_of_a_dead_segment_is_room_unless_compaction_wants_it(
        self, world: DiskWorld, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refuse(world)
        client.send(stored(1))
        client.hear()
        monkeypatch.setattr(world.disk, "free_bytes", lambda: 0)
        world.check()
        assert world.context.alarms.is_storage_failing
        segment_pool = world.runtime.journal.chain._segment_pool
        world.disk.create("7.spare", segment_pool.size_bytes).close()
        segment_pool._names.append("7.spare")
        with monkeypatch.context() as patch:
            patch.setattr(CompactionScheduler, "is_at_work", True)
            world.check()
            assert world.context.alarms.is_storage_failing
        world.check()
        assert not world.context.alarms.is_raised

    def test_a_probe_before_another_refusal_is_not_enough(
        self, world: DiskWorld, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody would try again, and who asks for what is there already would wait for ever."""
        late, again = other(world), other(world)
        refuse(world)
        client.send(stored(1))
        client.hear()
        with monkeypatch.context() as slowly:
            slowly.setattr(GroupCommit, "request", lambda self: None)
            world.check()  # what is written now is synced behind the next refusal
            refuse(world)
            late.method(1, commands.Queue.Declare(queue="new", durable=True))
            assert late.names() == ["Connection.Close"]
        world.runtime.commit.request()
        world.sync()
        assert world.context.alarms.is_storage_failing
        again.method(1, commands.Queue.Declare(queue="new", durable=True))
        world.check()
        assert again.names() == ["Queue.DeclareOk"]

    def test_a_refusal_is_logged_once_until_the_disk_has_taken_something(
        self, world: DiskWorld, client: Client
    ) -> None:
        counts = []
        for runs in (2, 1, 3):
            refuse(world)
            with capture_logs() as logs:
                client.send(*(stored(number) for number in range(runs)))
                world.run_turns()
                refuse(world)
                world.check()
            counts.append([each["count"] for each in logs if each["event"] == "journal.disk_full"])
            assert {each["log_level"] for each in logs if "count" in each} == {"warning"}
            world.check()
            client.hear()
        assert counts == [[2], [1], [3]]

    def test_a_turn_does_not_try_again_by_itself(self, world: DiskWorld, client: Client) -> None:
        client.send(stored(1))
        world.sync()
        client.hear()
        taker = other(world)
        refuse(world, times=100)
        client.send(stored(2))
        client.hear()
        writes = world.disk.calls["write"]
        taker.consume("d", "c")
        for _ in range(10):
            world.turn.run()
        assert world.disk.calls["write"] == writes

    def test_deliveries_and_acks_go_on_and_last(self, world: DiskWorld, client: Client) -> None:
        for number in range(1, 5):
            client.send(stored(number))
        world.sync()
        client.hear()
        taker = other(world)
        refuse(world, times=2)
        client.send(stored(5))
        client.hear()
        (*_, last) = taker.consume("d", "c")
        assert delivery(last[1])[2] == b"4"
        taker.send(wire.ack(1, 1), wire.ack(1, 3))
        assert taker.hear() == []
        world.check()
        world.check()
        assert not world.context.alarms.is_raised
        assert numbers(world.after_power_cut()) == [b"2", b"4"]


class TestTransactions:
    """TX-09."""

    @pytest.fixture
    def tx(self, world: DiskWorld, client: Client) -> Client:
        """A transactional client that has got messages 1 and 2 of three, unacked."""
        for number in (1, 2, 3):
            client.send(stored(number))
        world.sync()
        client.hear()
        tx = other(world)
        tx.method(1, commands.Tx.Select())
        assert tx.names() == ["Tx.SelectOk"]
        for _ in (1, 2):
            tx.method(1, commands.Basic.Get(queue="d"))
            assert tx.names() == ["Basic.GetOk"]
        return tx

    def test_a_refused_commit_changes_nothing(self, world: DiskWorld, tx: Client) -> None:
        refuse(world)
        tx.send(stored(4), wire.ack(1, 1), wire.publish(1, "d", b"5"), wire.nack(1, 2))
        text = "PRECONDITION_FAILED - partial tx completion"
        with closes_channel(tx, 406, text, (90, 20)):
            tx.method(1, commands.Tx.Commit())
        world.check()
        assert world.vhost.queues["d"].ready_count == 4  # the transient 5 was not to be stored
        assert numbers(world.after_power_cut()) == [b"1", b"2", b"3"]

    @pytest.mark.parametrize(
        ("mode", "is_cut"),
        [(1, False), (2, False), (2, True)],
        ids=["transient", "persistent", "power cut"],
    )
    def test_a_refused_commit_gives_no_new_lives(
        self, world: DiskWorld, client: Client, mode: int, is_cut: bool
    ) -> None:
        """REDELIVER-13."""
        limit: dict[str, Any] = {"x-delivery-limit": 9}
        client.ask(1, commands.Queue.Declare(queue="q", durable=True, arguments=limit))
        client.send(wire.publish(1, "q", b"poison", commands.Basic.Properties(delivery_mode=mode)))
        tx = other(world)
        tx.method(1, commands.Basic.Get(queue="q"))
        tx.send(wire.nack(1, 1))
        tx.method(1, commands.Tx.Select())
        tx.method(1, commands.Basic.Get(queue="q"))
        world.sync()
        tx.hear()
        refuse(world)
        tx.send(wire.nack(1, 2, requeue=False), stored(4))
        with closes_channel(tx, 406, "PRECONDITION_FAILED - partial tx completion", (90, 20)):
            tx.method(1, commands.Tx.Commit())
        world.check()
        # The first nack and the end of the channel.
        after = world.after_power_cut() if is_cut else world
        assert returns_of_head(after) == 2

    def test_acks_alone(self, world: DiskWorld, tx: Client) -> None:
        refuse(world)
        tx.send(wire.ack(1, 1), wire.ack(1, 2))
        text = "PRECONDITION_FAILED - partial tx completion"
        with closes_channel(tx, 406, text, (90, 20)):
            tx.method(1, commands.Tx.Commit())
        world.check()
        assert world.vhost.queues["d"].ready_count == 3
        assert numbers(world.after_power_cut()) == [b"1", b"2", b"3"]

    def test_acks_taken_back_can_be_given_again(self, world: DiskWorld, tx: Client) -> None:
        tx.method(1, commands.Basic.Get(queue="d"))
        assert tx.names() == ["Basic.GetOk"]
        refuse(world)
        tx.send(*(wire.ack(1, tag) for tag in (1, 2, 3)))
        text = "PRECONDITION_FAILED - partial tx completion"
        with closes_channel(tx, 406, text, (90, 20)):
            tx.method(1, commands.Tx.Commit())
        world.check()
        queue = world.vhost.queues["d"]
        assert (queue.ready_count, queue.unacked_count) == (3, 0)
        assert numbers(world) == [b"1", b"2", b"3"]
        world.check()
        other(world).declare("so-that-something-is-synced", durable=True)
        assert numbers(world.after_power_cut()) == []

    def test_a_commit_while_the_disk_refuses_is_tried(self, world: DiskWorld, tx: Client) -> None:
        tx.send(stored(4), wire.ack(1, 1))
        refuse(world)
        blind = other(world)
        blind.send(stored(9))
        world.sync()
        assert blind.names() == ["Connection.Close"]
        tx.method(1, commands.Tx.Commit())
        world.sync()
        assert tx.names() == ["Tx.CommitOk"]
        assert numbers(world.after_power_cut()) == [b"2", b"3", b"4"]


class TestDefinitions:
    """What cannot be stored is not said to exist, and comes to exist with the next block."""

    def test_a_refused_declare_ends_the_connection(self, world: DiskWorld, client: Client) -> None:
        refuse(world)
        client.method(1, commands.Queue.Declare(queue="new", durable=True))
        (_, close), *rest = client.hear()
        assert isinstance(close, commands.Connection.Close)
        assert close.reply_code == 506
        assert (close.reply_text or "").startswith("RESOURCE_ERROR - ")
        assert (close.class_id, close.method_id) == (50, 10)
        assert not rest
        client.method(0, commands.Connection.CloseOk())
        assert client.ends == ["finished"]
        assert "new" not in world.after_power_cut().vhost.queues

    def test_with_no_wait_too(self, world: DiskWorld, client: Client) -> None:
        refuse(world)
        client.method(1, commands.Queue.Declare(queue="new", durable=True, nowait=True))
        assert client.names() == ["Connection.Close"]

    def test_who_asks_again_waits_for_the_new_record(
        self, world: DiskWorld, client: Client
    ) -> None:
        refuse(world, times=3)
        client.method(1, commands.Queue.Declare(queue="new", durable=True))
        assert client.names() == ["Connection.Close"]
        again = other(world)
        again.method(1, commands.Queue.Declare(queue="new", durable=True))
        for _ in range(2):
            world.check()
            assert again.hear() == []
            assert again.paused == {STALLED}
        world.check()
        assert again.names() == ["Queue.DeclareOk"]
        assert "new" in world.after_power_cut().vhost.queues

    def test_a_deletion_is_given_again(self, world: DiskWorld, client: Client) -> None:
        client.send(stored(1))
        world.sync()
        client.hear()
        refuse(world)
        client.method(1, commands.Queue.Delete(queue="d"))
        assert client.names() == ["Connection.Close"]
        assert "d" not in world.vhost.queues
        world.check()
        assert not world.context.alarms.is_raised
        reborn = world.after_power_cut()
        assert "d" not in reborn.vhost.queues
        assert not reborn.runtime.report.messages

    def test_messages_to_a_queue_that_was_refused(self, world: DiskWorld, client: Client) -> None:
        refuse(world)
        client.method(1, commands.Queue.Declare(queue="new", durable=True))
        client.hear()
        world.check()
        feeder = other(world)
        feeder.method(1, commands.Confirm.Select())
        feeder.send(stored(1, "new"))
        world.sync()
        assert confirms(feeder.hear()) == [("Basic.Ack", 1, False)]
        assert numbers(world.after_power_cut(), "new") == [b"1"]


class TestFatal:
    """DURABLE-21: what the disk said cannot be taken back."""

    def test_a_failed_sync(self, world: DiskWorld, client: Client) -> None:
        world.disk.fail_next("sync")
        client.send(stored(1), stored(2))
        world.sync()
        assert confirms(client.hear()) == [("Basic.Nack", 2, True)]
        assert len(world.fatal) == 1
        syncs = world.disk.calls["sync"]
        client.send(stored(3))
        world.sync()
        assert confirms(client.hear()) == [("Basic.Nack", 3, False)]
        world.check()
        assert world.disk.calls["sync"] == syncs
        assert len(world.fatal) == 1

    def test_a_write_that_failed_for_another_reason(self, world: DiskWorld, client: Client) -> None:
        refuse(world, number=errno.EIO)
        client.send(stored(1))
        world.sync()
        assert confirms(client.hear()) == [("Basic.Nack", 1, False)]
        assert len(world.fatal) == 1
        assert "journal" in world.fatal[0]

    def test_a_commit_in_flight_is_told(self, world: DiskWorld, client: Client) -> None:
        tx = other(world)
        tx.method(1, commands.Tx.Select())
        tx.send(stored(1))
        tx.hear()
        world.disk.fail_next("sync")
        text = "PRECONDITION_FAILED - partial tx completion"
        with closes_channel(tx, 406, text, (90, 20)):
            tx.method(1, commands.Tx.Commit())


@pytest.mark.parametrize("ending", ["sync", "close"])
def test_a_get_is_written_down_before_it_is_told(
    world: DiskWorld, client: Client, ending: str
) -> None:
    """DURABLE-12: a sync, or a close, may let the answer out before the turn."""
    client.send(stored(1))
    world.sync()
    client.hear()
    writes = world.disk.calls["write"]
    client.method(1, commands.Basic.Get(queue="d"))
    assert not client.octets
    if ending == "sync":
        world.context.synced(world.context.watermark)
    else:
        client.method(0, commands.Connection.Close(200, "", 0, 0))
    assert client.octets, "nothing was told between the turns"
    assert world.disk.calls["write"] == writes + 1


# Files that are not where they were.


def test_nothing_is_confirmed_into_files_that_were_removed(
    world: DiskWorld, client: Client
) -> None:
    client.send(stored(1))
    world.sync()
    assert confirms(client.hear()) == [("Basic.Ack", 1, False)]
    (active,) = (name for name in world.disk.listdir() if name.endswith(".journal"))
    del world.disk.visible[active]
    world.now += 0.6
    client.send(stored(2))
    world.sync()
    assert confirms(client.hear()) == [("Basic.Nack", 2, False)]
    assert world.fatal == [f"{active} was removed"]
    assert world.context.has_failed


def test_files_that_were_removed_are_missed_without_traffic(world: DiskWorld) -> None:
    (active,) = (name for name in world.disk.listdir() if name.endswith(".journal"))
    world.check()
    assert world.fatal == []
    del world.disk.visible[active]
    world.check()
    assert world.fatal == [f"{active} was removed"]


@pytest.mark.parametrize("spoilt", [b"declared", b"message"])
def test_messages_whose_queue_was_damaged_are_told_of(world: DiskWorld, spoilt: bytes) -> None:
    """DURABLE-14: nobody can be served them, and whoever looks for them finds the reason."""
    client = other(world)
    client.declare("declared", durable=True)
    for body in (b"message", b"another"):
        client.send(wire.publish(1, "declared", body, wire.persistent()))
        world.sync()
    for name in segments_on(world.disk):
        at = bytes(world.disk.visible[name].visible).find(spoilt)
        if at >= 0:
            corrupt(world.disk, name, at, 1)
    with capture_logs() as logs:
        again = world.after_power_cut()
    told = [each["count"] for each in logs if each["event"] == "queue.orphaned"]
    assert ("declared" in again.vhost.queues) is (spoilt == b"message")
    assert told == ([2] if spoilt == b"declared" else [])
