"""Positions of messages as blocks tell them, against a plain dictionary."""

from __future__ import annotations

import random

import pytest

from vouchmq.store.journal.positions import WIDTH, Positions, Rows


@pytest.mark.parametrize("seed", range(20))
def test_positions_agree_with_a_dictionary(seed: int) -> None:
    """Rows come in any order, twice, in parts; and nothing is made up for what none tells of."""
    draw = random.Random(seed)
    truth, lsn = {}, 1
    for position in range(200):
        lsn += draw.choice((1, 1, 1, 2, 9))
        truth[lsn] = position
    lsns = sorted(truth)
    rows = Rows()
    told: set[int] = set()
    for _ in range(60):
        at = draw.randrange(len(lsns))
        count = 1
        while at + count < len(lsns) and lsns[at + count] == lsns[at] + count and count < 5:
            count += 1
        rows.add(7, lsns[at], count, truth[lsns[at]])
        told.update(lsns[at : at + count])
    positions = Positions()
    numbers = iter(rows.flat)
    for queue_id, first, count, position in zip(*[numbers] * WIDTH, strict=True):
        assert queue_id == 7
        positions.add(first, count, position)
    assert {lsn: positions.of(lsn) for lsn in range(lsn + 5)} == {
        each: truth[each] if each in told else None for each in range(lsn + 5)
    }
    parts = list(positions.split(0, lsn + 5))
    assert sum(count for _, count, _ in parts) == lsn + 5
    for first, count, of_first in parts:
        for n in range(count):
            assert (truth[first + n] if first + n in told else None) == (
                None if of_first is None else of_first + n
            )


def test_rows_that_go_on_are_one() -> None:
    rows = Rows()
    took = [rows.add(q, lsn, 2, at) for q, lsn, at in ((1, 5, 0), (2, 5, 9), (1, 7, 2), (1, 9, 5))]
    assert took == [True, True, False, True]
    assert list(rows.flat) == [1, 5, 4, 0, 2, 5, 2, 9, 1, 9, 2, 5]
