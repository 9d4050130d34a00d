"""Outstanding deliveries by tag: what can be taken, and in which shape it comes out."""

from __future__ import annotations

from bisect import bisect_right
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.server.queues import silent_channel
from vouchmq.server.broker.message import Message
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.channel.consumer import Consumer, Credit
from vouchmq.server.channel.unacked import RUN_MESSAGES, Unacked, UnackedBatch

QUEUE = cast("ClassicQueue", SimpleNamespace(name="q"))


def consumer(tag: str) -> Consumer:
    """A consumer that nobody asks for anything."""
    channel = silent_channel()
    return Consumer(channel, QUEUE, tag, no_ack=False, priority=0, credit=Credit())


ALICE, BOB = consumer("alice"), consumer("bob")


def messages(first: int, count: int) -> list[Message]:
    """Messages whose seq is their delivery tag."""
    return [(b"raw", b"tail", tag, 0) for tag in range(first, first + count)]


def tags(taken: list[UnackedBatch] | None) -> list[int]:
    """Tags taken out; each stands beside its own message."""
    assert taken is not None
    for entry in taken:
        assert [message[2] for message in entry.messages] == list(entry.tags)
    return [tag for entry in taken for tag in entry.tags]


@pytest.fixture
def unacked() -> Unacked:
    """Tags 1…5 of Alice, 6…8 of Bob, 9 got, 10…12 of Alice."""
    held = Unacked()
    held.add(1, messages(1, 5), ALICE, QUEUE)
    held.add(6, messages(6, 3), BOB, QUEUE)
    held.add(9, messages(9, 1), None, QUEUE)
    held.add(10, messages(10, 3), ALICE, QUEUE)
    return held


def test_range_in_order_is_one_slice(unacked: Unacked) -> None:
    taken, unknown = unacked.take_range(1, 3)
    assert (tags(taken), unknown, len(taken)) == ([1, 2, 3], 0, 1)
    assert unacked.count == 9


def test_range_over_several_consumers_says_whose_each_was(unacked: Unacked) -> None:
    taken, unknown = unacked.take_range(4, 10)
    assert not unknown
    assert [(list(entry.tags), entry.consumer) for entry in taken] == [
        ([4, 5], ALICE),
        ([6, 7, 8], BOB),
        ([9], None),
        ([10], ALICE),
    ]


def test_tag_taken_once_is_unknown_afterwards(unacked: Unacked) -> None:
    unacked.take_range(2, 2)
    assert unacked.take_range(2, 2) == ([], 2)


def test_range_stops_at_the_first_unknown_tag(unacked: Unacked) -> None:
    unacked.take_range(4, 4)
    taken, unknown = unacked.take_range(2, 6)
    assert (tags(taken), unknown) == ([2, 3], 4)
    assert tags(unacked.take_all()) == [1, 5, 6, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("tag", [0, 13, 2**63, 2**64 - 1])
def test_tag_never_given_is_unknown(unacked: Unacked, tag: int) -> None:
    assert unacked.take_range(tag, tag)[0] == []
    assert unacked.take_up_to(tag) is None
    assert unacked.count == 12


def test_range_without_end_stops_where_the_tags_end(unacked: Unacked) -> None:
    taken, unknown = unacked.take_range(11, 2**64 - 1)
    assert (tags(taken), unknown) == ([11, 12], 13)


def test_up_to_takes_over_all_consumers(unacked: Unacked) -> None:
    unacked.take_range(2, 3)
    assert tags(unacked.take_up_to(7)) == [1, 4, 5, 6, 7]
    assert unacked.count == 5
    assert tags(unacked.take_up_to(12)) == [8, 9, 10, 11, 12]
    assert unacked.count == 0


def test_up_to_needs_the_tag_itself(unacked: Unacked) -> None:
    """ACK-05: smaller outstanding ones do not make it known."""
    unacked.take_range(7, 7)
    assert unacked.take_up_to(7) is None
    assert unacked.count == 11


def test_most_up_to_is_never_too_few(unacked: Unacked) -> None:
    unacked.take_range(7, 7)
    assert [unacked.most_up_to(tag) for tag in (0, 1, 6, 7, 8, 100)] == [0, 1, 6, 7, 8, 11]
    unacked.take_up_to(6)
    assert unacked.most_up_to(9) == 3  # with the one that is taken already
    unacked.take_all()
    assert unacked.most_up_to(100) == 0


def test_take_of_one_consumer(unacked: Unacked) -> None:
    assert tags(unacked.take_of(ALICE)) == [1, 2, 3, 4, 5, 10, 11, 12]
    assert tags(unacked.take_all()) == [6, 7, 8, 9]


def test_put_back_under_the_old_tags(unacked: Unacked) -> None:
    whole, _ = unacked.take_range(6, 8)
    hole, _ = unacked.take_range(3, 3)
    front, _ = unacked.take_range(1, 1)
    unacked.restore([*front, *whole, *hole])
    assert unacked.count == 12
    found = unacked.live()
    assert tags(found) == list(range(1, 13))
    assert [entry.consumer for entry in found for _ in entry.tags] == (
        [ALICE] * 5 + [BOB] * 3 + [None] + [ALICE] * 3
    )


def test_looking_takes_nothing(unacked: Unacked) -> None:
    assert tags(unacked.live()) == list(range(1, 13))
    assert unacked.count == 12


def test_deliveries_to_one_consumer_join_up_to_the_bound() -> None:
    unacked = Unacked()
    for tag in range(1, RUN_MESSAGES + 2):
        unacked.add(tag, messages(tag, 1), ALICE, QUEUE)
    assert [len(entry.messages) for entry in unacked.live()] == [RUN_MESSAGES, 1]


def test_handed_list_is_not_kept() -> None:
    unacked = Unacked()
    mine = messages(1, 2)
    unacked.add(1, mine, ALICE, QUEUE)
    unacked.add(3, messages(3, 1), ALICE, QUEUE)
    unacked.take_range(2, 2)
    assert mine == messages(1, 2)


def test_what_was_written_at_another_time_stands_by_itself() -> None:
    held = Unacked()
    held.add(1, messages(1, 2), ALICE, QUEUE, 100)
    held.add(3, messages(3, 2), ALICE, QUEUE, 180)
    assert held.times() == [(ALICE, QUEUE, 100), (ALICE, QUEUE, 180)]
    taken = held.take_up_to(3)
    assert held.times() == [(ALICE, QUEUE, 180)]
    held.restore(taken or [])
    assert held.times() == [(ALICE, QUEUE, 100), (ALICE, QUEUE, 180), (ALICE, QUEUE, 180)]


def test_what_is_put_back_stands_in_runs_again() -> None:
    """A large commit that is rolled back must not leave a run for each delivery."""
    held = Unacked()
    held.add(1, messages(1, RUN_MESSAGES), ALICE, QUEUE)
    taken = [entry for tag in range(1, RUN_MESSAGES + 1) for entry in held.take_range(tag, tag)[0]]
    held.restore(taken)
    assert len(held.times()) == 1
    assert tags(held.take_all()) == list(range(1, RUN_MESSAGES + 1))


def test_runs_come_back_as_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIMIT-23: a rollback of very many acks costs as much as their runs."""
    held = Unacked()
    for first in range(1, 10 * RUN_MESSAGES, RUN_MESSAGES):
        held.add(first, messages(first, RUN_MESSAGES), ALICE, QUEUE)
    taken = held.take_up_to(10 * RUN_MESSAGES) or []
    looks = 0

    def counted(*args: Any, **more: Any) -> int:
        nonlocal looks
        looks += 1
        return bisect_right(*args, **more)

    monkeypatch.setattr("vouchmq.server.channel.unacked.bisect_right", counted)
    held.restore(taken)
    assert looks == len(taken) == 10
    assert len(held.times()) == 10
    assert tags(held.take_all()) == list(range(1, 10 * RUN_MESSAGES + 1))
