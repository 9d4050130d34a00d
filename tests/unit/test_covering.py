"""Covering arrays and sequences: nothing that they promise is missing."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.covering import Level, covering_rows, pairs_of, side_by_side

FACTORS = {
    "type": ("classic", "quorum"),
    "levels": (0, 3, 10),
    "ttl": (None, 0, 20, 60),
    "overflow": (None, "drop-head", "drop-lowest"),
    "letters": (False, True),
}


def fitting(one: Level, other: Level) -> bool:
    if one == ("type", "quorum") and other[0] == "levels":
        return other[1] == 0
    lowest = ("overflow", "drop-lowest")
    return other != lowest or one not in {("levels", 0), ("type", "quorum")}


@pytest.mark.parametrize("is_limited", [False, True])
def test_every_pair_of_levels_is_in_some_row(is_limited: bool) -> None:
    options = (FACTORS, fitting) if is_limited else (FACTORS,)
    rows, wanted = covering_rows(*options), pairs_of(*options)
    found = {pair for row in rows for pair in combinations(row.items(), 2)}
    assert all(list(row) == list(FACTORS) for row in rows)
    # Nothing that is wanted is missing, and nothing that is forbidden is there.
    assert found == wanted
    assert rows == covering_rows(*options)
    # All combinations would be 144 rows.
    assert 12 <= len(rows) <= 20


def test_every_operation_follows_every_other_and_itself_once() -> None:
    for count in (1, 2, 5, 30):
        sequence = side_by_side(range(count))
        follows = list(zip(sequence, sequence[1:] + sequence[:1], strict=True))
        assert sorted(follows) == [(one, other) for one in range(count) for other in range(count)]
