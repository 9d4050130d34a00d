"""A broker whose journal goes through a shared log: what is told waits for the log as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import NOTIFIED, SETTINGS, Client, World, confirms
from vouchmq.server.admin.views import Views
from vouchmq.server.connection.committed import Commits
from vouchmq.server.connection.wire import FLOODED
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import LogView
from vouchmq.store.replication.log_writer import LogWriter
from vouchmq.store.replication.record import Subjects

PERSISTENT = commands.Basic.Properties(delivery_mode=2)


class LeadingNode:
    """A broker that leads, and a log that answers when it is told to."""

    def __init__(self, **settings: Any) -> None:
        self.messages = [record.origin(b"0123456789abcdef")]
        self.sent: list[tuple[int, bytes]] = []
        view = LogView()
        view.found(1, self.messages[0])
        self.writer = LogWriter(self, self, Subjects("t"), view.at)
        self.writer.claim("n", bytes(record.NONCE_SIZE))
        self.commit()
        self.world = World(
            replace(SETTINGS, **{"unsynced_limit_bytes": 1 << 20, **settings}), tap=self.writer
        )

    def send(self, token: int, subject: str, expected: int, parts: Sequence[bytes]) -> None:
        assert subject.startswith("vq.t.")
        assert expected == len(self.messages)
        self.sent.append((token, b"".join(parts)))

    def read_from(self, token: int, sequence: int) -> None:
        raise AssertionError(f"no doubt arises here: {token}, {sequence}")

    def purge(self, subject: str) -> None:
        raise AssertionError(f"nothing is gone: {subject}")

    def commit(self) -> None:
        """Commit what has been sent, and what is sent because of that."""
        while self.sent:
            token, raw = self.sent.pop()
            self.messages.append(raw)
            self.writer.acked(token, len(self.messages))

    def claimed(self) -> None:
        pass

    def committed(self, block: int, lsn: int) -> None:
        self.world.runtime.journal_writer.committed(block, lsn)

    def deposed(self, epoch: int) -> None:
        raise AssertionError(f"deposed by {epoch}")

    def handed_over(self) -> None:
        raise AssertionError("nobody hands over")

    def broken(self, reason: str) -> None:
        raise AssertionError(reason)

    def confirming(self) -> Client:
        """A client in confirm mode, and a durable queue `q`."""
        client = self.world.connect(capabilities=(*NOTIFIED, "connection.blocked"))
        client.open()
        client.method(1, commands.Queue.Declare(queue="q", durable=True))
        client.method(1, commands.Confirm.Select())
        self.world.sync()
        self.commit()
        client.hear()
        return client


def test_a_confirm_waits_for_the_disk_and_for_the_log() -> None:
    node = LeadingNode()
    client = node.confirming()
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.sync()
    assert confirms(client.hear()) == []
    node.commit()
    assert confirms(client.hear()) == [("Basic.Ack", 1, False)]


def test_a_confirm_waits_for_a_standby_if_that_is_asked_for() -> None:
    node = LeadingNode(ha_confirm="log+standby")
    writer = node.world.runtime.journal_writer
    client = node.confirming()
    writer.synced_on_standby(node.writer.at.lsn)
    # The queue's declaration has waited as well.
    assert "Queue.DeclareOk" in client.names()
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.sync()
    node.commit()
    assert confirms(client.hear()) == []
    writer.synced_on_standby(node.writer.at.lsn)
    assert confirms(client.hear()) == [("Basic.Ack", 1, False)]


def test_what_no_standby_has_counts_as_unsynced() -> None:
    node = LeadingNode(ha_confirm="log+standby")
    client = node.confirming()
    client.send(wire.publish(1, "q", bytes(1000), PERSISTENT))
    node.world.sync()
    node.commit()
    node.writer.held_bytes = 123_456
    assert node.world.runtime.journal.unsafe_bytes == 123_456


def test_a_confirm_waits_for_a_disk_that_is_slower_than_the_log() -> None:
    node = LeadingNode()
    client = node.confirming()
    # Behind two reads the helper does the sync, and nothing is told before its answer is read.
    for body in (b"x", b"y"):
        client.send(wire.publish(1, "q", body, PERSISTENT))
    node.world.run_turns()
    assert not node.world.runtime.commit.is_idle
    node.commit()
    assert confirms(client.hear()) == []
    node.world.sync()
    assert confirms(client.hear()) == [("Basic.Ack", 2, True)]


def test_a_record_waits_for_no_sync() -> None:
    """The log is slower than the disk as a rule: it has to begin when a block is written."""
    node = LeadingNode()
    client = node.confirming()
    for body in (b"x", b"y"):
        client.send(wire.publish(1, "q", body, PERSISTENT))
    node.world.run_turns()
    node.commit()
    client.send(wire.publish(1, "q", b"z", PERSISTENT))
    node.world.run_turns()
    # That of the first two.
    assert not node.world.runtime.commit.is_idle
    ((_, raw),) = node.sent
    assert b"z" in raw
    node.commit()
    node.world.sync()
    assert confirms(client.hear())[-1] == ("Basic.Ack", 3, False)


def test_a_durable_declaration_is_answered_when_it_is_committed() -> None:
    node = LeadingNode()
    client = node.confirming()
    client.method(1, commands.Queue.Declare(queue="other", durable=True))
    node.world.sync()
    assert client.hear() == []
    node.commit()
    ((_, answer),) = client.hear()
    assert isinstance(answer, commands.Queue.DeclareOk)


def test_what_comes_while_a_record_is_under_way_is_confirmed_with_the_next() -> None:
    node = LeadingNode()
    client = node.confirming()
    for number in range(5):
        client.send(wire.publish(1, "q", b"%d" % number, PERSISTENT))
        node.world.sync()
    before = len(node.messages)
    node.commit()
    assert len(node.messages) == before + 2
    assert confirms(client.hear())[-1] == ("Basic.Ack", 5, True)


def test_publishers_are_held_while_too_much_is_not_committed() -> None:
    node = LeadingNode(unsynced_limit_bytes=10_000)
    client = node.confirming()
    for _ in range(3):
        client.send(wire.publish(1, "q", bytes(4000), PERSISTENT))
        node.world.sync()
        assert client.paused == set()
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.sync()
    assert client.paused == {FLOODED}
    node.commit()
    assert client.paused == set()


def test_nothing_is_told_of_the_log_when_the_disk_has_failed() -> None:
    node = LeadingNode()
    client = node.confirming()
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.run_turns()
    node.world.runtime.journal_writer.storage_failed("gone")
    node.commit()
    assert all(name == "Basic.Nack" for name, _, _ in confirms(client.hear()))


def test_the_log_is_the_journal_byte_for_byte() -> None:
    node = LeadingNode()
    client = node.confirming()
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.sync()
    node.commit()
    found = b""
    for raw in node.messages:
        one = record.open_record(raw)
        assert one is not None
        if one.header.kind == record.BLOCKS:
            assert one.header.offset == len(found)
            found += one.body
    segment = node.world.journal.chain.active
    written = bytes(node.world.disk.visible[segment.name].visible[: segment.offset])
    assert found == written


def consuming(node: LeadingNode, **more: bool) -> Client:
    """Another client, which consumes from `q`."""
    consumer = node.world.connect()
    consumer.open()
    consumer.consume("q", "c", **more)
    node.world.sync()
    node.commit()
    consumer.hear()
    return consumer


def test_a_delivery_waits_for_the_log_but_not_for_the_disk() -> None:
    node = LeadingNode()
    client = node.confirming()
    consumer = consuming(node)
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.run_turns()
    assert consumer.hear() == []
    node.commit()
    assert [body for _, _, body, _ in consumer.deliveries()] == [b"x"]


def test_deliveries_need_not_wait_where_an_operator_wants_them_at_once() -> None:
    node = LeadingNode(ha_deliver="at_once")
    client = node.confirming()
    consumer = consuming(node)
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.run_turns()
    assert [body for _, _, body, _ in consumer.deliveries()] == [b"x"]


def test_get_waits_for_the_log_and_what_follows_keeps_its_order() -> None:
    node = LeadingNode()
    client = node.confirming()
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.run_turns()
    getter = node.world.connect()
    getter.open()
    getter.hear()
    getter.method(1, commands.Basic.Get(queue="q"))
    getter.method(1, commands.Basic.Qos(prefetch_count=1))
    node.world.run_turns()
    assert getter.hear() == []
    node.commit()
    names = getter.names()
    assert names[0] == "Basic.GetOk"
    assert names[-1] == "Basic.QosOk"


def test_a_client_that_closes_is_answered_before_what_the_log_does_not_have() -> None:
    node = LeadingNode()
    client = node.confirming()
    consumer = consuming(node)
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.run_turns()
    consumer.method(0, commands.Connection.Close(200, "", 0, 0))
    node.world.run_turns()
    assert consumer.names() == ["Connection.CloseOk"]
    node.commit()
    assert consumer.hear() == []
    assert commits_of(node).waiting_count == 0
    node.world.sync()
    client.hear()
    assert client.message_count("q") == 1


def test_of_what_waits_for_the_log_no_more_is_kept_than_of_a_slow_client() -> None:
    node = LeadingNode(deliver_high_water_bytes=20_000)
    client = node.confirming()
    consumer = consuming(node)
    for _ in range(20):
        client.send(wire.publish(1, "q", bytes(4000), PERSISTENT))
        node.world.run_turns()
    assert consumer.hear() == []
    assert ready_count(node) >= 10
    for _ in range(20):
        node.commit()
        node.world.sync()
    assert len(consumer.deliveries()) == 20


def test_a_leader_that_was_replaced_delivers_nothing_that_waited() -> None:
    node = LeadingNode()
    client = node.confirming()
    consumer = consuming(node)
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.run_turns()
    commits_of(node).end()
    client.send(wire.publish(1, "q", b"y", PERSISTENT))
    node.world.run_turns()
    node.commit()
    assert consumer.hear() == []
    for connection in list(node.world.runtime.connections):
        connection.shut_down("another broker leads")
    node.world.run_turns()
    assert consumer.names() == ["Connection.Close"]


def test_publishers_are_blocked_by_an_alarm_while_the_log_stalls() -> None:
    node = LeadingNode()
    client = node.confirming()
    alarms = node.world.runtime.alarms
    alarms.log_stalled(is_stalled=True)
    client.send(wire.publish(1, "q", b"x", PERSISTENT))
    node.world.run_turns()
    ((_, blocked),) = client.hear()
    assert isinstance(blocked, commands.Connection.Blocked)
    assert blocked.reason == "replication"
    alarms.log_stalled(is_stalled=False)
    node.world.sync()
    node.commit()
    assert client.names() == ["Connection.Unblocked", "Basic.Ack"]


def test_who_waits_for_the_log_is_blocked_when_it_stalls() -> None:
    """A client that waits for each confirm would never publish again, and not learn why."""
    node = LeadingNode()
    waits, rests, declares = node.confirming(), node.confirming(), node.confirming()
    waits.send(wire.publish(1, "q", b"x", PERSISTENT))
    declares.method(1, commands.Queue.Declare(queue="new", durable=True))
    node.world.run_turns()
    alarms = node.world.runtime.alarms
    alarms.log_stalled(is_stalled=True)
    assert waits.names() == ["Connection.Blocked"]
    assert declares.names() == ["Connection.Blocked"]
    assert rests.hear() == []
    assert alarms.blocked_count == 2
    node.world.sync()
    node.commit()
    alarms.log_stalled(is_stalled=False)
    node.world.run_turns()
    assert waits.names() == ["Basic.Ack", "Connection.Unblocked"]
    assert declares.names() == ["Queue.DeclareOk", "Connection.Unblocked"]
    assert rests.hear() == []


def ready_count(node: LeadingNode) -> int:
    return node.world.runtime.broker.vhosts["/"].queues["q"].ready_count


def commits_of(node: LeadingNode) -> Commits:
    commits = node.world.runtime.context.commits
    assert commits is not None
    return commits


def test_the_alarm_is_listed_where_there_is_a_log() -> None:
    node = LeadingNode()
    runtime = node.world.runtime
    views = Views(runtime.context, runtime.connections, runtime.journal, runtime.commit)
    node.world.runtime.alarms.log_stalled(is_stalled=True)
    assert [(each.name, each.raised) for each in views.alarms()][-1] == ("replication", True)
