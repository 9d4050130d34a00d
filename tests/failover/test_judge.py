"""The judge of clients with several addresses finds what is wrong, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.failover.clients import Delivered, Gone, History
from tests.failover.judge import judge


def name(number: int) -> bytes:
    return b"m:%d" % number


def honest() -> History:
    """0 was acked for good; 1 and 2 came again from another broker; 3 was on its way; 5 is left."""
    history = History(prefetch=1, connections={0: "a", 1: "b"})
    history.published = [name(number) for number in range(7)]
    history.confirmed = {name(number) for number in range(6)}
    history.events = [
        *(Delivered(0, name(number), redelivered=False) for number in (0, 1, 2)),
        Gone((name(0),)),
        *(Delivered(1, name(number), redelivered=True) for number in (1, 2, 3)),
        Delivered(1, name(4), redelivered=False),
    ]
    return history


LEFT = [(name(5), False)]


def test_nothing_is_wrong_with_what_may_be() -> None:
    assert judge(honest(), LEFT, is_single=True) == []
    assert judge(honest(), [*LEFT, (name(6), False)], is_single=True) == []
    assert judge(honest(), [(name(4), True), *LEFT], is_single=True) == []


def late(history: History) -> None:
    history.events.append(Delivered(0, name(5), redelivered=False))


def back(history: History) -> None:
    history.events.append(Delivered(1, name(0), redelivered=True))


def unmarked(history: History) -> None:
    history.events.append(Delivered(1, name(2), redelivered=False))


def marked(history: History) -> None:
    history.prefetch = 0


def disorder(history: History) -> None:
    history.events[1:3] = reversed(history.events[1:3])


def unknown(history: History) -> None:
    history.events.append(Delivered(1, name(9), redelivered=False))


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        (late, "a delivered 1 to connection 0 when b delivered"),
        (back, "again after a committed ack"),
        (unmarked, "delivered before and are not marked"),
        (marked, "marked and were never seen"),
        (disorder, "came after"),
        (unknown, "nobody published"),
    ],
)
def test_what_may_not_be_is_found(change: Callable[[History], None], sign: str) -> None:
    history = honest()
    change(history)
    found = judge(history, LEFT, is_single=True)
    assert any(sign in each for each in found), found


@pytest.mark.parametrize(
    ("left", "sign"),
    [
        ([], "confirmed messages are lost: m:5"),
        ([*LEFT, *LEFT], "in the queue twice"),
        ([(name(0), True), *LEFT], "again after a committed ack"),
        ([(name(4), False), *LEFT], "not marked"),
    ],
)
def test_what_is_left_is_judged(left: list[tuple[bytes, bool]], sign: str) -> None:
    found = judge(honest(), left)
    assert any(sign in each for each in found), found
