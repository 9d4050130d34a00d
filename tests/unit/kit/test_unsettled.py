"""No tag is settled twice, and none of a channel that is closed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vouchmq.kit.unsettled import UnsettledDeliveries


def ledger_of(count: int) -> UnsettledDeliveries[str]:
    """A ledger whose first `count` deliveries are handed out."""
    made: UnsettledDeliveries[str] = UnsettledDeliveries()
    for tag in range(1, count + 1):
        made.hand_out(tag, f"m{tag}")
    return made


def test_a_tag_is_settled_once() -> None:
    """REDELIVER-51."""
    ledger = ledger_of(2)
    assert ledger.settle(1)
    assert not ledger.settle(1)
    assert not ledger.settle(7)
    assert ledger.items() == [(2, "m2")]


def test_multiple_settles_the_older_ones() -> None:
    ledger = ledger_of(4)
    assert ledger.settle_through(3)
    assert ledger.items() == [(4, "m4")]
    assert not ledger.settle(2)
    assert not ledger.settle_through(3)


def test_multiple_needs_its_own_tag_outstanding() -> None:
    """ACK-05: the broker knows it only then."""
    ledger = ledger_of(3)
    assert ledger.settle(3)
    assert not ledger.settle_through(3)
    assert [tag for tag, _ in ledger.items()] == [1, 2]


def test_what_is_not_handed_out_is_not_settled() -> None:
    ledger = ledger_of(2)
    assert not ledger.settle_through(3)
    assert (len(ledger), ledger.youngest) == (2, 2)


def test_a_closed_channel_settles_nothing() -> None:
    """REDELIVER-51."""
    ledger = ledger_of(3)
    ledger.close()
    assert not ledger.settle(1)
    assert not ledger.settle_through(3)
    ledger.hand_out(4, "late")
    assert not ledger.settle(4)
    assert ledger.youngest == 0


def test_recovery_makes_the_tags_dead_but_not_the_channel() -> None:
    ledger = ledger_of(3)
    ledger.forget_all()
    assert not ledger.settle(2)
    ledger.hand_out(4, "again")
    assert ledger.settle(4)


def test_deliveries_are_handed_out_in_order() -> None:
    ledger = ledger_of(3)
    with pytest.raises(ValueError, match="delivery 2 handed out after 3"):
        ledger.hand_out(2, "late")


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=40))
def test_every_tag_reaches_the_broker_at_most_once(calls: list[tuple[bool, int]]) -> None:
    """Against the broker's own rule: an unknown tag closes the channel (ACK-05)."""
    ledger = ledger_of(10)
    at_broker = set(range(1, 11))
    for multiple, tag in calls:
        if multiple:
            if ledger.settle_through(tag):
                assert tag in at_broker
                at_broker -= set(range(1, tag + 1))
        elif ledger.settle(tag):
            assert tag in at_broker
            at_broker.remove(tag)
    assert {tag for tag, _ in ledger.items()} == at_broker
