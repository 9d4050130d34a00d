"""Pairs without saying them all: rows in which any two levels meet, and runs in which any two meet.

A rule that is tested alone says nothing of two rules together, and there are too many rules for
all of their combinations. Most faults of combinations are faults of two; rows that hold every pair
of levels of any two factors are few, and a sequence that holds every ordered pair of operations
side by side, an operation after itself included, is as long as there are pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")
Level = tuple[str, Hashable]  # a factor and the value that it takes
Pair = tuple[Level, Level]


def always(one: Level, other: Level) -> bool:
    """Forbid no pair."""
    del one, other
    return True


def pairs_of(
    factors: Mapping[str, Sequence[Hashable]], allowed: Callable[[Level, Level], bool] = always
) -> set[Pair]:
    """Every pair of levels of two factors that may be together, the earlier factor first."""
    return {
        ((one, first), (other, second))
        for one, other in combinations(factors, 2)
        for first in factors[one]
        for second in factors[other]
        if allowed((one, first), (other, second))
    }


def covering_rows(
    factors: Mapping[str, Sequence[Hashable]], allowed: Callable[[Level, Level], bool] = always
) -> list[dict[str, Hashable]]:
    """Rows with one level of each factor, in which every allowed pair is somewhere.

    Greedy and without chance: a row begins with the pair that is missing longest, and every other
    factor takes the level that brings the most missing pairs, of equal ones the least used.

    Args:
        factors: by name
        allowed: whether two levels may be together, asked with the earlier factor first; what it
            allows must leave every other factor a level
    """
    order = {name: place for place, name in enumerate(factors)}

    def sorted_pair(one: Level, other: Level) -> Pair:
        return (one, other) if order[one[0]] < order[other[0]] else (other, one)

    wanted = pairs_of(factors, allowed)
    missing = dict.fromkeys(sorted(wanted, key=repr))
    used: dict[Level, int] = {}
    rows: list[dict[str, Hashable]] = []
    while missing:
        row: dict[str, Hashable] = dict(next(iter(missing)))
        for name in sorted(factors, key=lambda each: -len(factors[each])):
            if name in row:
                continue
            fitting = [
                level
                for level in factors[name]
                if all(sorted_pair((name, level), each) in wanted for each in row.items())
            ]
            row[name] = max(
                fitting,
                key=lambda level, name=name, row=row: (  # type: ignore[misc]
                    sum(sorted_pair((name, level), each) in missing for each in row.items()),
                    -used.get((name, level), 0),
                ),
            )
        for one, other in combinations(row.items(), 2):
            missing.pop(sorted_pair(one, other), None)
        for each in row.items():
            used[each] = used.get(each, 0) + 1
        rows.append({name: row[name] for name in factors})
    return rows


def side_by_side(operations: Sequence[T]) -> list[T]:
    """A ring in which each operation comes once behind every one, itself included.

    It is a de Bruijn sequence of order two: the Lyndon words whose length divides two, in order.
    """
    found: list[T] = []
    for place, one in enumerate(operations):
        found.append(one)
        for other in operations[place + 1 :]:
            found += (one, other)
    return found
