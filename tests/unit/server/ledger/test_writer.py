"""Lines get dense numbers, wait within bounds, and a gap says what they have cost."""

from __future__ import annotations

import errno
import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vouchmq.server.ledger.text import file_name_part, lsns_text, pairs_text, ranges_in, ranges_text
from vouchmq.server.ledger.writer import RETRY_US, LedgerWriter

LIMIT = 300_000


class Sink:
    """A file that can be full."""

    def __init__(self) -> None:
        self.data = b""
        self.is_full = False
        self.told: list[bool] = []

    def write(self, data: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data += data

    def failing(self, is_so: bool) -> None:
        self.told.append(is_so)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data.splitlines()]


class Stage:
    """A book, its file and its clock."""

    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.sink = Sink()
        self.writer = LedgerWriter("b@h", 3, self.sink, lambda: self.now_us, LIMIT)

    def put(self, count: int, size: int = 100) -> None:
        for _ in range(count):
            self.writer.put(f'x","y":"{"z" * size}"')


def test_lines_have_their_place_and_time() -> None:
    stage = Stage()
    stage.writer.name('boot","fmt":1')
    stage.now_us += 7
    stage.writer.put('syn","wm":5')
    assert stage.sink.data == b""
    stage.writer.flush()
    stage.writer.put('syn","wm":6')
    stage.writer.flush()
    stage.writer.flush()
    assert stage.sink.lines() == [
        {"b": "b@h", "o": 3, "n": 0, "t": 1_000_000, "e": "boot", "fmt": 1},
        {"b": "b@h", "o": 3, "n": 1, "t": 1_000_000, "e": "syn", "wm": 5},
        {"b": "b@h", "o": 3, "n": 2, "t": 1_000_007, "e": "syn", "wm": 6},
    ]


def test_much_is_written_without_waiting() -> None:
    stage = Stage()
    stage.put(4000)
    assert len(stage.sink.data) > 262144
    stage.writer.flush()
    assert [line["n"] for line in stage.sink.lines()] == list(range(4000))


def test_a_full_disk_costs_nothing_while_the_buffer_has_room() -> None:
    stage = Stage()
    stage.sink.is_full = True
    stage.put(100)
    stage.writer.flush()
    assert stage.sink.told == [True]
    stage.sink.is_full = False
    stage.writer.flush()
    assert stage.sink.data == b"", "tried again at once"
    stage.now_us += RETRY_US
    stage.put(1)
    stage.writer.flush()
    assert [line["n"] for line in stage.sink.lines()] == list(range(101))
    assert stage.sink.told == [True, False]
    assert stage.writer.lost_count == 0


def test_a_gap_says_how_many_and_their_numbers_stay_unused() -> None:
    stage = Stage()
    stage.sink.is_full = True
    stage.put(5000)
    kept = stage.writer.octets
    assert LIMIT < kept < LIMIT + 200
    stage.writer.name('rte","id":1')
    stage.sink.is_full = False
    stage.now_us += RETRY_US
    stage.put(3)
    stage.writer.flush()
    lines = stage.sink.lines()
    gaps = [line for line in lines if line["e"] == "gap"]
    assert len(gaps) == 1
    numbers = [line["n"] for line in lines]
    assert numbers == sorted(numbers)
    assert gaps[0]["lost"] == stage.writer.number - len(lines) == stage.writer.lost_count > 0
    assert any(line["e"] == "rte" for line in lines)
    assert [line["e"] for line in lines[-4:]] == ["gap", "x", "x", "x"]


def test_the_end_tells_of_a_gap_too() -> None:
    stage = Stage()
    stage.sink.is_full = True
    stage.put(5000)
    stage.sink.is_full = False
    stage.writer.close()
    assert stage.sink.lines()[-1]["e"] == "gap"


def test_a_line_that_cannot_be_written_at_the_end_is_no_error() -> None:
    stage = Stage()
    stage.sink.is_full = True
    stage.put(5)
    stage.writer.close()
    assert stage.sink.data == b""


@given(st.lists(st.integers(1, 60)))
def test_ranges_hold_the_numbers_in_their_order(numbers: list[int]) -> None:
    ranges = json.loads(ranges_text(numbers))
    assert [n for first, last in ranges for n in range(first, last + 1)] == numbers
    messages = [(b"", b"", number * 2 + number % 3 % 2, 0) for number in numbers]
    if messages:
        assert json.loads(lsns_text(messages)) == ranges


@given(st.sets(st.integers(1, 60)))
def test_ranges_of_ascending_numbers_are_as_few_as_can_be(numbers: set[int]) -> None:
    pairs = list(ranges_in(sorted(numbers)))
    assert all(a[1] + 1 < b[0] for a, b in pairwise(pairs))
    assert json.loads(pairs_text(pairs)) == [list(pair) for pair in pairs]


def test_names_of_files() -> None:
    assert file_name_part("vouchmq@localhost") == "vouchmq@localhost"
    assert file_name_part("../a b/ü") == "_a_b__"
    assert file_name_part("...") == "vouchmq"
