"""Policies after any changes: everybody has what governs them now, and was told of each change."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.server.broker.stand_ins import (
    JournalStandIn,
    Names,
    QueueStandIn,
    exchange,
    queue,
)
from vouchmq.protocol.errors import AmqpError
from vouchmq.protocol.fields import longstr
from vouchmq.server.broker.broker import Broker
from vouchmq.server.broker.policy.policies import NO_POLICY, Policy, PolicyMatch

NAMES = ("a", "ab", "b", "ba")
names = st.sampled_from(NAMES)
flags = st.booleans()
policies = st.builds(
    Policy,
    name=st.sampled_from(["p", "q", "r"]),
    pattern=st.sampled_from(["", "a", "^a", "b$", "^x"]),
    definition=st.sampled_from([{"max-length": 1}, {"alternate-exchange": "y"}, {"expires": 9}]),
    apply_to=st.sampled_from(["all", "queues", "classic_queues", "quorum_queues"]),
    priority=st.integers(-1, 1),
)
operator_policies = st.builds(
    Policy,
    name=st.sampled_from(["p", "q"]),
    pattern=st.sampled_from(["", "^a", "b"]),
    definition=st.sampled_from([{"max-length": 1}, {"message-ttl": 2}]),
    apply_to=st.sampled_from(["queues", "quorum_queues"]),
    priority=st.integers(-1, 1),
    is_operator=st.just(True),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), policies),
        st.tuples(st.just("set"), operator_policies),
        st.tuples(st.just("clear"), st.sampled_from(["p", "q", "r"]), flags),
        st.tuples(st.just("queue"), names, flags),
        st.tuples(st.just("delete queue"), names),
        st.tuples(st.just("exchange"), names),
        st.tuples(st.just("delete exchange"), names),
    ),
    max_size=30,
)


def found(pattern: str, name: str) -> bool:
    """What a search finds, for the few patterns here."""
    if pattern.startswith("^"):
        return name.startswith(pattern[1:])
    return name.endswith(pattern[:-1]) if pattern.endswith("$") else pattern in name


def best(some: dict[str, Policy], name: str, kind: str) -> Policy | None:
    """POLICY-02, told once more."""
    able = [
        each
        for each in some.values()
        if found(each.pattern, name)
        and (each.apply_to in {"all", kind} or (each.apply_to == "queues" and kind != "exchanges"))
    ]
    top = max((each.priority for each in able), default=0)
    return min((each for each in able if each.priority == top), key=lambda p: p.name, default=None)


@given(steps)
def test_everybody_has_what_governs_them(changes: list[tuple[object, ...]]) -> None:
    told: dict[QueueStandIn, PolicyMatch] = {}

    def regulate(one: QueueStandIn, policy_match: PolicyMatch) -> None:
        assert told.get(one, NO_POLICY) != policy_match, "told of nothing new"
        told[one] = policy_match

    journal = JournalStandIn()
    broker: Broker[QueueStandIn] = Broker(
        new_queue=QueueStandIn,
        define=journal.define,
        drop_queue=journal.drop_queue,
        random_name=Names(),
        regulate=regulate,
    )
    vhost, _ = broker.create_vhost("/")
    lists: tuple[dict[str, Policy], dict[str, Policy]] = ({}, {})
    for change in changes:
        with suppress(AmqpError):
            match change:
                case ("set", Policy() as policy):
                    vhost.policy_engine.set_policy(policy)
                    lists[policy.is_operator][policy.name] = policy
                case ("clear", str(name), bool(is_operator)):
                    lsn = vhost.policy_engine.delete_policy(name, is_operator=is_operator)
                    assert (lsn is None) == (lists[is_operator].pop(name, None) is None)
                case ("queue", str(name), bool(is_quorum)):
                    kind = longstr("quorum" if is_quorum else "classic")
                    queue(vhost, name, durable=True, arguments={"x-queue-type": kind})
                case ("delete queue", str(name)):
                    vhost.delete_queue(name, None)
                case ("exchange", str(name)):
                    exchange(vhost, name)
                case ("delete exchange", str(name)):
                    vhost.delete_exchange(name)
        for one in vhost.queues.values():
            is_quorum = one.spec.arguments["x-queue-type"] == longstr("quorum")
            kind_of_queue = "quorum_queues" if is_quorum else "classic_queues"
            wanted = PolicyMatch(*(best(some, one.spec.name, kind_of_queue) for some in lists))
            assert told.get(one, NO_POLICY) == wanted == vhost.policy_engine.policy_of_queue(one)
        for each in vhost.exchanges.values():
            ruler = best(lists[0], each.name, "exchanges") if each.name else None
            alternate = ruler.definition.get("alternate-exchange") if ruler is not None else None
            assert each.alternate == alternate
