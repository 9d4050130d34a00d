"""Policies after any changes: everybody has what governs them now, and was told of each change.

With steps in later turns this holds once all have been taken, whatever has changed in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

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
from vouchmq.server.broker.policy.engine import take_all
from vouchmq.server.broker.policy.policies import NO_POLICY, Policy, PolicyMatch
from vouchmq.server.broker.vhost import VHost

Lists = tuple[dict[str, Policy], dict[str, Policy]]

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


def apply(vhost: VHost[QueueStandIn], lists: Lists, change: tuple[object, ...]) -> None:
    """Do it, and note which policies there are."""
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


def check(vhost: VHost[QueueStandIn], lists: Lists, told: dict[QueueStandIn, PolicyMatch]) -> None:
    """Everybody has what governs them now."""
    for one in vhost.queues.values():
        is_quorum = one.spec.arguments["x-queue-type"] == longstr("quorum")
        kind_of_queue = "quorum_queues" if is_quorum else "classic_queues"
        wanted = PolicyMatch(*(best(some, one.spec.name, kind_of_queue) for some in lists))
        assert told.get(one, NO_POLICY) == wanted == vhost.policy_engine.policy_of_queue(one)
    for each in vhost.exchanges.values():
        ruler = best(lists[0], each.name, "exchanges") if each.name else None
        alternate = ruler.definition.get("alternate-exchange") if ruler is not None else None
        assert each.alternate == alternate


@given(steps, st.integers(0, 5))
def test_everybody_has_what_governs_them(
    changes: list[tuple[object, ...]], steps_between: int
) -> None:
    """Of what a change leads to so many steps are taken before the next change, 0: all."""
    told: dict[QueueStandIn, PolicyMatch] = {}

    def regulate(one: QueueStandIn, policy_match: PolicyMatch) -> None:
        assert told.get(one, NO_POLICY) != policy_match, "told of nothing new"
        told[one] = policy_match

    waiting: list[Iterator[None]] = []

    def go_on(count: int) -> None:
        for sweep in waiting:
            for _ in islice(sweep, count):
                pass

    journal = JournalStandIn()
    broker: Broker[QueueStandIn] = Broker(
        new_queue=QueueStandIn,
        define=journal.define,
        drop_queue=journal.drop_queue,
        random_name=Names(),
        regulate=regulate,
        in_slices=waiting.append if steps_between else take_all,
    )
    vhost, _ = broker.create_vhost("/")
    lists: Lists = ({}, {})
    for change in changes:
        go_on(steps_between)
        with suppress(AmqpError):
            apply(vhost, lists, change)
        if not steps_between:
            check(vhost, lists, told)
    take_all(vhost.policy_engine.settling())
    check(vhost, lists, told)
