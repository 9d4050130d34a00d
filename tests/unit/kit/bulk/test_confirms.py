"""Which rows a broker has confirmed, nacked or returned, however it says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vouchmq.kit.bulk.confirms import Confirms, Row
from vouchmq.kit.bulk.errors import BulkError
from vouchmq.kit.bulk.frames import Outcome, Returned

NO_ROUTE = (312, "NO_ROUTE")


def row(body: bytes = b"", key: str = "q", properties: bytes = b"\x00\x00") -> Row:
    return ("", key, properties, body)


def taken(confirms: Confirms, sent: int, *outcomes: Outcome | Returned) -> int:
    confirms.take(deque(outcomes), sent)
    return confirms.outstanding(sent)


class Watch:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.confirmed: list[int] = []
        self.nacked: list[int] = []
        self.came_back: list[int] = []

    def sending(self, first: int, rows: Sequence[Row]) -> None:
        self.sent.extend(range(first, first + len(rows)))

    def settled(self, rows: Sequence[int], *, confirmed: bool) -> None:
        (self.confirmed if confirmed else self.nacked).extend(rows)

    def returned(self, row: int, message: Returned) -> None:
        self.came_back.append(row)


def test_one_confirm_speaks_for_many() -> None:
    confirms = Confirms(10, keeps_rows=False, watch=None)
    assert confirms.outstanding(500) == 500
    assert taken(confirms, 500, (310, True, True)) == 200
    assert taken(confirms, 500, (510, False, True)) == 199
    assert taken(confirms, 500, (0, True, True)) == 0
    assert confirms.result.confirmed == 500


def test_a_nack_names_its_rows_and_spares_those_with_a_word_of_their_own() -> None:
    confirms = Confirms(100, keeps_rows=False, watch=None)
    assert taken(confirms, 6, (102, False, True), (104, True, False)) == 2
    assert confirms.result.nacked == [0, 2, 3]
    assert taken(confirms, 6, (106, True, True)) == 0
    assert confirms.result.confirmed == 3


def test_what_is_said_twice_counts_once() -> None:
    confirms = Confirms(0, keeps_rows=False, watch=None)
    assert taken(confirms, 3, (3, False, True), (3, False, True), (1, True, True)) == 1
    assert taken(confirms, 3, (1, False, True), (1, True, True), (2, False, True)) == 0
    assert confirms.result.confirmed == 3


def test_a_confirm_of_what_was_never_sent_is_an_error() -> None:
    with pytest.raises(BulkError, match="confirmed publish 8, but only 7"):
        taken(Confirms(5, keeps_rows=False, watch=None), 2, (8, True, True))


def test_a_return_is_told_with_its_row() -> None:
    rows = [row(b"a"), row(b"b", "nowhere"), row(b"c"), row(b"b", "nowhere"), row(b"d", "nowhere")]
    confirms = Confirms(7, keeps_rows=True, watch=None)
    confirms.note(0, rows)
    first = Returned(*NO_ROUTE, "", "nowhere", b"\x00\x00", b"b")
    outcomes: list[Outcome | Returned] = [(8, True, True), first, (9, True, True), first]
    assert taken(confirms, 5, *outcomes) == 3
    last = Returned(*NO_ROUTE, "", "nowhere", b"\x00\x00", b"d")
    assert taken(confirms, 5, last, (0, True, True)) == 0
    assert [each[0] for each in confirms.result.returned] == [1, 3, 4]
    assert confirms.result.returned[0] == (1, 312, "NO_ROUTE", "", "nowhere")
    assert confirms.result.confirmed == 5


def test_a_return_whose_properties_were_rewritten_is_recognised_by_the_rest() -> None:
    confirms = Confirms(0, keeps_rows=True, watch=None)
    confirms.note(0, [row(b"a"), row(b"b", "k", b"\x20\x00")])
    taken(confirms, 2, Returned(*NO_ROUTE, "", "k", b"\x00\x00", b"b"))
    taken(confirms, 2, Returned(*NO_ROUTE, "", "k", b"\x00\x00", b"never sent"))
    assert [each[0] for each in confirms.result.returned] == [1, -1]


Script = st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.booleans()), max_size=20)


@settings(deadline=None)
@given(Script, st.integers(0, 12), st.booleans())
def test_any_order_of_confirms_is_counted_as_a_list_would(
    script: list[Outcome], sent: int, is_watched: bool
) -> None:
    base = 3
    watch = Watch()
    confirms = Confirms(base, keeps_rows=is_watched, watch=watch if is_watched else None)
    confirms.note(0, [row(str(place).encode()) for place in range(sent)])
    known: dict[int, bool] = {}
    for number, is_multiple, is_ack in script:
        newest = base + sent
        if number > newest or (number == 0 and not is_multiple):
            continue
        until = number or newest
        for each in range(base + 1, newest + 1) if is_multiple else [number]:
            if base < each <= until:
                known.setdefault(each, is_ack)
        taken(confirms, sent, (number, is_multiple, is_ack))
        assert confirms.outstanding(sent) == sent - len(known)
    nacked = [number - base - 1 for number, is_ack in known.items() if not is_ack]
    assert sorted(confirms.result.nacked) == sorted(nacked)
    assert confirms.result.confirmed == len(known) - len(nacked)
    if is_watched:
        assert watch.sent == list(range(sent))
        assert sorted(watch.nacked) == sorted(nacked)
        assert len(watch.confirmed) == len(set(watch.confirmed)) == confirms.result.confirmed
