"""A vhost after any changes: what a restart gives back, from the log and from a snapshot in it."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.server.broker.stand_ins import (
    JournalStandIn,
    QueueStandIn,
    exchange,
    new_broker,
    queue,
)
from vouchmq.protocol.errors import AmqpError
from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.broker import Broker
from vouchmq.server.broker.policy.policies import Policy
from vouchmq.server.broker.vhost import VHost

ME = object()
names = st.sampled_from(["a", "b"])
flags = st.booleans()
keys = st.sampled_from(["", "k"])
changes = st.one_of(
    st.tuples(st.just("queue"), names, flags, flags),
    st.tuples(st.just("delete queue"), names),
    st.tuples(st.just("exchange"), names, flags, flags),
    st.tuples(st.just("delete exchange"), names),
    st.tuples(st.just("bind"), st.sampled_from(["a", "b", "amq.topic"]), flags, names, keys),
    st.tuples(st.just("unbind"), st.sampled_from(["a", "b", "amq.topic"]), flags, names, keys),
    st.tuples(
        st.just("policy"), names, st.sampled_from(["", "^a", "b$"]), flags, st.integers(0, 2)
    ),
    st.tuples(st.just("clear"), names, flags),
)


def change(vhost: VHost[QueueStandIn], step: tuple[object, ...]) -> None:
    match step:
        case ("queue", str(name), bool(durable), bool(exclusive)):
            queue(vhost, name, durable=durable, owner=ME if exclusive else None)
        case ("delete queue", str(name)):
            vhost.delete_queue(name, ME)
        case ("exchange", str(name), bool(durable), bool(auto_delete)):
            exchange(vhost, name, "topic", durable=durable, auto_delete=auto_delete)
        case ("delete exchange", str(name)):
            vhost.delete_exchange(name)
        case ("bind", str(source), bool(to_queue), str(name), str(key)):
            vhost.bind(source, "queue" if to_queue else "exchange", name, key, {}, ME)
        case ("unbind", str(source), bool(to_queue), str(name), str(key)):
            vhost.unbind(source, "queue" if to_queue else "exchange", name, key, {}, ME)
        case ("policy", str(name), str(pattern), bool(is_operator), int(number)):
            # An exchange that delays by policy has a queue, which is a definition, too.
            keys = {"max-length": number} if is_operator else {"delayed-message": number > 0}
            policy = Policy(name, pattern, keys, priority=number, is_operator=is_operator)
            vhost.policy_engine.set_policy(policy)
        case ("clear", str(name), bool(is_operator)):
            vhost.policy_engine.delete_policy(name, is_operator=is_operator)


def restored(records: list[bytes]) -> Broker[QueueStandIn]:
    broker = new_broker()
    broker.restore(records)
    return broker


def durable_state(broker: Broker[QueueStandIn]) -> set[bytes]:
    """The definitions in no order, without the counter, which may run ahead."""
    records = broker.definitions()
    assert len(records) == len(set(records))
    return {r for r in records if not isinstance(d.decode(r), d.QueueIdsReserved)}


@given(st.lists(changes, max_size=40), st.data())
def test_restart_gives_back_exactly_the_durable_state(
    steps: list[tuple[object, ...]], data: st.DataObject
) -> None:
    journal = JournalStandIn()
    broker = new_broker(journal)
    vhost = broker.create_vhost("/")[0]
    # A snapshot is taken at some moment; what was logged a little before may come once more.
    snapshot_at = data.draw(st.integers(0, len(steps)))
    overlap = data.draw(st.integers(0, 10))
    snapshot, logged_before = broker.definitions(), len(journal.records)
    for number, step in enumerate(steps):
        if number == snapshot_at:
            snapshot, logged_before = broker.definitions(), len(journal.records)
        with suppress(AmqpError):
            change(vhost, step)
    expected = durable_state(broker)
    assert durable_state(restored(journal.records)) == expected
    assert durable_state(restored(broker.definitions())) == expected
    tail = journal.records[max(0, logged_before - overlap) :]
    again = restored(snapshot + tail)
    assert durable_state(again) == expected
    used = {
        each.queue_id
        for each in map(d.decode, journal.records)
        if isinstance(each, d.QueueDeclared)
    }
    fresh = queue(again.vhosts["/"], "fresh", durable=True)
    assert fresh.spec.queue_id not in used
