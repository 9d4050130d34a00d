"""How a replay is cut into jobs, and where it goes on. No Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vouchmq.spark.replay.slices import MAX_FILES, Place, Resume, ResumeError, Unit, slices_of


def unit(number: int, rows: int, *places: Place, chunk: int = 0) -> Unit:
    return Unit(f"part-{number}", chunk, rows, places)


def test_slices_hold_so_many_rows_and_files() -> None:
    units = [unit(n, 400) for n in range(10)]
    assert [len(each.units) for each in slices_of(units, 1000, in_order=False)] == [2, 2, 2, 2, 2]
    assert [each.rows for each in slices_of([unit(0, 5000)], 1000, in_order=False)] == [5000]
    small = [unit(n, 1) for n in range(2 * MAX_FILES + 1)]
    assert [len(each.files) for each in slices_of(small, 10**6, in_order=False)] == [
        MAX_FILES,
        MAX_FILES,
        1,
    ]
    assert slices_of([], 1000, in_order=True) == []


def test_offsets_that_overlap_stay_together() -> None:
    units = [
        unit(0, 500, Place("a", None, 0, 499)),
        unit(1, 500, Place("a", None, 500, 999)),
        # After a crash some came again, behind those of another file.
        unit(2, 500, Place("a", None, 1300, 1799), Place("b", None, 0, 5)),
        unit(3, 500, Place("a", None, 1000, 1299)),
        unit(4, 500, Place("a", None, 1800, 1900)),
    ]
    found = slices_of(units, 500, in_order=True)
    assert [[each.file[-1] for each in one.units] for one in found] == [
        ["0"],
        ["1"],
        ["2", "3"],
        ["4"],
    ]
    assert len(slices_of(units, 500, in_order=False)) == 5


def test_another_incarnation_of_a_queue_has_its_own_order() -> None:
    units = [
        unit(0, 500, Place("a", 1, 0, 499)),
        unit(1, 500, Place("a", 2, 0, 499)),
        unit(2, 500, Place("a", None, None, None)),
        unit(3, 500, Place("b", None, 0, 499)),
    ]
    assert len(slices_of(units, 500, in_order=True)) == 4


PLACES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 8)), min_size=1, max_size=3
)


@given(st.lists(PLACES, max_size=14), st.integers(1, 5))
def test_no_slice_comes_before_what_belongs_before_it(
    rows: list[list[tuple[str, int, int]]], max_rows: int
) -> None:
    units = [
        unit(n, 1, *(Place(queue, None, at, at + size) for queue, at, size in places))
        for n, places in enumerate(rows)
    ]
    found = slices_of(units, max_rows, in_order=True)
    assert [each for one in found for each in one.units] == units
    for number in range(1, len(found)):
        before = [p for one in found[:number] for each in one.units for p in each.places]
        behind = [p for one in found[number:] for each in one.units for p in each.places]
        for queue in "ab":
            tops = [p.last for p in before if p.queue == queue and p.last is not None]
            lows = [p.first for p in behind if p.queue == queue and p.first is not None]
            assert not tops or not lows or max(tops) < min(lows)


def test_a_replay_goes_on_where_it_was() -> None:
    units = [unit(n, 10) for n in range(6)]
    begun = Resume({"exchange": "x"}, 10)
    assert begun.left(units) == units
    half = Resume.of(begun.after(units, 4).text())
    assert half.left(units) == units[4:]
    assert half.after(units, 2).left(units) == []
    # An archive that has grown is gone on with; one that has changed is not.
    assert half.left([*units, unit(6, 10)]) == [*units[4:], unit(6, 10)]
    with pytest.raises(ResumeError, match="changed"):
        half.left([unit(9, 10), *units])
    with pytest.raises(ResumeError, match="changed"):
        half.left(units[:3])
    half.check_task({"exchange": "x"})
    with pytest.raises(ResumeError, match="exchange 'x', not 'y'"):
        half.check_task({"exchange": "y"})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v": 2}', '{"v": 1, "task": {}}'])
def test_what_is_no_checkpoint_is_told(text: str) -> None:
    with pytest.raises(ResumeError, match="not the checkpoint of a replay"):
        Resume.of(text)
