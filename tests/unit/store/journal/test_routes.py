"""Numbers of routes: one for each, also when many are asked for at once."""

from __future__ import annotations

from vouchmq.store.journal.routes import RouteTable

LIMIT = 4096


def test_routes_that_are_asked_for_together_have_a_number_each() -> None:
    routes = RouteTable()
    known = routes.add((1,), b"a")
    elsewhere = routes.add((2,), b"b")
    numbers = routes.number_all((1,), [b"b", b"a", b"c", b"b"])
    assert numbers is not None
    assert numbers[1] == known
    assert numbers[0] == numbers[3] != elsewhere
    assert len({*numbers, elsewhere}) == 4
    assert routes.number_all((1,), [b"c", b"b"]) == [numbers[2], numbers[0]]
    assert {routes.by_number[number][1] for number in numbers} == {b"a", b"b", b"c"}
    # A block tells each of them once.
    assert sorted(routes.new) == sorted({*numbers, elsewhere})


def test_a_table_without_room_for_all_numbers_none_of_them() -> None:
    routes = RouteTable()
    tails = [b"%d" % number for number in range(LIMIT)]
    assert routes.number_all((1,), tails[:-1]) == [*range(LIMIT - 1)]
    assert routes.number_all((1,), [b"other", b"another"]) is None
    assert routes.number_all((7,), [b"other", b"another"]) is None
    assert len(routes.by_number) == LIMIT - 1
    assert routes.number_all((1,), tails[:3]) == [0, 1, 2]
    assert routes.number_all((7,), [b"other"]) == [LIMIT - 1]
    assert routes.is_full
