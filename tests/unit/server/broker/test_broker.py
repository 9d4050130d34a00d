"""The registry of vhosts, and that a restart gives back what is durable and nothing else."""

from __future__ import annotations

import pytest

from tests.unit.server.broker.stand_ins import (
    JournalStandIn,
    QueueStandIn,
    exchange,
    integer,
    new_broker,
    queue,
    routed,
)
from vouchmq.protocol.fields import longstr
from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.broker import Broker, keeper_of
from vouchmq.server.broker.counters import QueueCounters

ME = object()


def restored(records: list[bytes]) -> Broker[QueueStandIn]:
    journal = JournalStandIn()
    broker = new_broker(journal)
    broker.restore(records)
    assert journal.records == [], "a restart logs nothing"
    return broker


def test_vhost_is_made_once_and_logged() -> None:
    journal = JournalStandIn()
    broker = new_broker(journal)
    vhost, lsn = broker.create_vhost("/")
    assert lsn == journal.lsn == 1
    assert broker.create_vhost("/") == (vhost, 1)
    assert broker.create_vhost("other")[0] is not vhost
    assert list(restored(journal.records).vhosts) == ["/", "other"]


def test_vhosts_are_apart() -> None:
    broker = new_broker()
    one, two = broker.create_vhost("1")[0], broker.create_vhost("2")[0]
    queue(one, "q")
    exchange(one, "x")
    assert routed(one, "", "q") == ["q"]
    assert routed(two, "", "q") == []
    assert "x" not in two.exchanges


@pytest.mark.parametrize("source", ["log", "snapshot"])
def test_restart_brings_back_the_durable_and_nothing_else(source: str) -> None:
    journal = JournalStandIn()
    broker = new_broker(journal)
    vhost = broker.create_vhost("/")[0]
    arguments = {"x-max-priority": integer(0, "s"), "mine": longstr(b"\xff")}
    queue(vhost, "stored", durable=True, auto_delete=True, arguments=arguments)
    queue(vhost, "transient")
    queue(vhost, "exclusive", durable=True, owner=ME)
    exchange(vhost, "x", "topic", durable=True, auto_delete=True, internal=True, alternate="alt")
    exchange(vhost, "gone", "topic")
    for name in ("stored", "transient", "exclusive"):
        for via in ("x", "gone", "amq.topic"):
            vhost.bind(via, "queue", name, "a.#", {"b": integer(1)}, ME)
    vhost.bind("amq.topic", "exchange", "x", "#", {}, ME)
    vhost.bind("amq.topic", "exchange", "gone", "#", {}, ME)
    again = restored(journal.records if source == "log" else broker.definitions())
    back = again.vhosts["/"]
    assert list(back.queues) == ["stored"]
    assert back.queues["stored"].spec == vhost.queues["stored"].spec
    assert again.stored_queues() == {back.queues["stored"].spec.queue_id: back.queues["stored"]}
    back.exchanges["x"].require_equivalent(vhost.exchanges["x"])
    assert set(back.exchanges) == set(vhost.exchanges) - {"gone"}
    assert sorted((each.source, each.kind, each.destination) for each in back.bindings) == [
        ("amq.topic", "exchange", "x"),
        ("amq.topic", "queue", "stored"),
        ("x", "queue", "stored"),
    ]
    assert routed(back, "x", "a.b") == ["stored"]
    assert again.definitions() == broker.definitions()


def test_durable_auto_delete_exchange_outlives_its_transient_bindings_over_a_restart() -> None:
    journal = JournalStandIn()
    vhost = new_broker(journal).create_vhost("/")[0]
    exchange(vhost, "x", durable=True, auto_delete=True)
    queue(vhost, "transient")
    queue(vhost, "stored", durable=True)
    vhost.bind("x", "queue", "transient", "k", {}, ME)
    vhost.bind("x", "queue", "stored", "k", {}, ME)
    vhost.unbind("x", "queue", "stored", "k", {}, ME)
    assert "x" in vhost.exchanges
    assert "x" in restored(journal.records).vhosts["/"].exchanges


def test_queue_ids_are_never_given_twice() -> None:
    journal = JournalStandIn()
    broker = new_broker(journal)
    vhost = broker.create_vhost("/")[0]
    used = {queue(vhost, f"q{i}", durable=True).spec.queue_id for i in range(3)}
    assert 0 not in used
    for i in range(3):
        vhost.delete_queue(f"q{i}", ME)
    for records in (journal.records, broker.definitions(), restored(journal.records).definitions()):
        again = restored(records).vhosts["/"]
        assert queue(again, "new", durable=True).spec.queue_id not in used
    assert queue(broker.create_vhost("2")[0], "new", durable=True).spec.queue_id not in used


def test_replay_over_a_snapshot_that_holds_it_already_ends_the_same() -> None:
    journal = JournalStandIn()
    broker = new_broker(journal)
    vhost = broker.create_vhost("/")[0]
    queue(vhost, "q", durable=True)
    exchange(vhost, "x", durable=True)
    vhost.bind("x", "queue", "q", "old", {}, ME)
    vhost.delete_queue("q", ME)
    queue(vhost, "q", durable=True)
    vhost.bind("x", "queue", "q", "new", {}, ME)
    queue(vhost, "p", durable=True)
    vhost.delete_queue("p", ME)
    for first in range(len(journal.records)):
        again = restored(broker.definitions() + journal.records[first:])
        assert again.definitions() == broker.definitions()


def test_a_vhost_that_is_set_again_is_changed() -> None:
    journal = JournalStandIn()
    broker = new_broker(journal)
    vhost, first = broker.put_vhost(d.VHostSet("v", "old", ["a"], max_queues=1))
    assert broker.put_vhost(vhost.settings()) == (vhost, first)
    settings = d.VHostSet("v", "new", [], "stream", True, 2, -1, 0)
    assert broker.put_vhost(settings) == (vhost, journal.lsn)
    again = restored(journal.records).vhosts["v"]
    for each in (vhost, again):
        assert each.settings() == settings
        assert (each.connection_limit, each.queue_limit, each.exchange_limit) == (2, None, 0)
    assert restored(broker.definitions()).vhosts["v"].settings() == settings


class TestDeletedVHost:
    """VHOST-05: one record says that all of it is gone."""

    def setup_method(self) -> None:
        self.journal = JournalStandIn()
        self.broker = new_broker(self.journal)
        self.vhost = self.broker.create_vhost("v")[0]
        self.queue = queue(self.vhost, "q", durable=True)
        exchange(self.vhost, "x", durable=True, auto_delete=True)
        self.vhost.bind("x", "queue", "q", "k", {}, ME)

    def delete(self) -> int:
        found = self.broker.delete_vhost("v")
        assert found is not None
        assert found[0] is self.vhost
        return found[1]

    def test_it_is_gone_after_a_replay(self) -> None:
        lsn = self.delete()
        assert lsn == self.journal.lsn
        assert "v" not in self.broker.vhosts
        assert restored(self.journal.records).vhosts == {}
        assert restored(self.broker.definitions()).vhosts == {}
        assert self.broker.delete_vhost("v") is None

    def test_what_goes_later_is_dropped_and_written_nowhere(self) -> None:
        """Or its record would take what somebody has declared in a new one of that name."""
        self.delete()
        records = list(self.journal.records)
        again = self.broker.create_vhost("v")[0]
        other = queue(again, "q", durable=True)
        assert other.spec.queue_id != self.queue.spec.queue_id
        assert len(list(self.vhost.dismantle())) > 1
        assert (self.vhost.queues, self.vhost.exchanges) == ({}, {})
        assert self.journal.dropped == [self.queue.spec.queue_id]
        assert len(self.journal.records) == len(records) + 2
        found = restored(self.journal.records).vhosts["v"]
        assert found.queues["q"].spec == other.spec
        assert "x" not in found.exchanges

    def test_what_is_declared_in_it_meanwhile_is_written_nowhere(self) -> None:
        self.delete()
        queue(self.vhost, "late", durable=True)
        assert restored(self.journal.records).vhosts == {}

    def test_what_was_counted_stays_counted(self) -> None:
        self.queue.counters.published = 5
        self.vhost.deleted_counters.add("classic", QueueCounters(published=2))
        self.vhost.deleted_counters.add("stream", QueueCounters(acked=3))
        self.vhost.exchanges["x"].counters.published_out = 4
        self.vhost.deleted_counters.exchanges.published_out = 1
        self.delete()
        for _ in self.vhost.dismantle():
            pass
        assert self.broker.deleted_counters.by_type == {
            "classic": QueueCounters(published=7),
            "stream": QueueCounters(acked=3),
        }
        assert self.broker.deleted_counters.exchanges.published_out == 5

    def test_a_replay_over_a_snapshot_ends_the_same(self) -> None:
        self.delete()
        queue(self.broker.create_vhost("v")[0], "new", durable=True)
        for first in range(len(self.journal.records)):
            again = restored(self.broker.definitions() + self.journal.records[first:])
            assert again.definitions() == self.broker.definitions()


def test_a_vhost_whose_record_was_damaged_exists_all_the_same() -> None:
    again = restored([d.encode(d.QueueDeclared("theirs", "q", 1, False, {}))])
    assert list(again.vhosts["theirs"].queues) == ["q"]
    assert d.encode(d.VHostSet("theirs")) in again.definitions()


def test_a_queue_of_many_levels_is_entered_once() -> None:
    """PRIO-01: its levels are found by their ids all the same."""
    broker = restored([])
    vhost = broker.create_vhost("/")[0]
    queue(vhost, "plain", durable=True)
    queue(vhost, "many", durable=True, arguments={"x-max-priority": integer(255, "s")})
    queue(vhost, "next", durable=True)
    queues = broker.stored_queues()
    assert len(queues) == 3
    ids = sorted(queues)
    first = vhost.queues["many"].spec.queue_id
    found = {
        at: keeper_of(queues, ids, at) for at in (0, first - 1, first, first + 255, first + 256)
    }
    names = [each.spec.name if each is not None else None for each in found.values()]
    assert names == [None, "plain", "many", "many", "next"]
    assert keeper_of(queues, ids, first + 257) is None
    assert keeper_of({}, [], 1) is None
