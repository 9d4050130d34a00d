"""LSNs of messages: a range where they follow each other, and only there."""

from __future__ import annotations

import pytest

from vouchmq.server.broker.message import Message, lsns_of


def messages(*seqs: int) -> list[Message]:
    return [(b"raw", b"tail", seq, 0) for seq in seqs]


@pytest.mark.parametrize("lsns", [(7, 8), (1, 2, 3, 4)])
def test_stored_messages_in_a_row_are_a_range(lsns: tuple[int, ...]) -> None:
    found = lsns_of(messages(*(2 * lsn + 1 for lsn in lsns)))
    assert isinstance(found, range)
    assert tuple(found) == lsns


@pytest.mark.parametrize("lsns", [(), (7,), (7, 9), (5, 9, 3, 8), (8, 7), (1, 3, 2, 4)])
def test_others_are_given_one_by_one(lsns: tuple[int, ...]) -> None:
    assert lsns_of(messages(*(2 * lsn + 1 for lsn in lsns))) == list(lsns)


def test_what_is_not_stored_is_left_out() -> None:
    assert lsns_of(messages(2, 5, 6, 7, 12)) == range(2, 4)
    assert lsns_of(messages(2, 4)) == []
