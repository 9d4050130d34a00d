"""Values from outside: what types and checks let pass, and how a fault is told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from vouchmq.server.errors import StartupError
from vouchmq.server.settings.validation import (
    Check,
    Faults,
    InvalidValueError,
    Name,
    converted,
    expected,
    read_record,
    unknown_keys,
)


def first(value: Any) -> str:
    if not value:
        raise InvalidValueError("empty", "[0]")
    return str(value[0])


Percent = Annotated[int, Meta(ge=0, le=100)]


class Record(Struct, frozen=True, kw_only=True, rename={"share": "the-share"}):
    where: str
    name: Name
    share: Percent = 50
    head: Annotated[Any, Check(first)] = ""
    tags: tuple[str, ...] = ()


def read(**values: object) -> tuple[Record | None, list[str]]:
    faults = Faults()
    found = read_record(Record, values, "rows[3]", faults, where="rows[3]")
    return found, faults.lines


def test_a_record_is_made_of_what_fits() -> None:
    found, lines = read(**{"name": "n", "the-share": 7, "head": "abc", "tags": ["x"], "more": 1})
    assert lines == []
    made = Record(where="rows[3]", name="n", share=7, head="a", tags=("x",))
    assert found == made
    assert read(name="n")[0] == Record(where="rows[3]", name="n")


def test_all_faults_of_a_record_are_told_with_their_places() -> None:
    found, lines = read(**{"where": 1, "the-share": 700, "head": "", "tags": ["x", 1]})
    assert found is None
    assert lines == [
        "rows[3].name: missing",
        "rows[3].the-share: expected an integer from 0 to 100, not 700",
        "rows[3].head[0]: empty",
        "rows[3].tags: expected a list of strings",
    ]


def test_a_value_that_may_be_a_secret_is_not_shown() -> None:
    assert read(name=1234)[1] == ["rows[3].name: expected a string, not a number"]


def test_keys_that_nobody_knows() -> None:
    assert unknown_keys(Record, ["name", "share", "the-share", "b", "a"]) == ["a", "b", "share"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (bool, "true or false"),
        (Percent, "an integer from 0 to 100"),
        (Annotated[float, Meta(ge=0.1)], "a number of at least 0.1"),
        (Annotated[Literal["b", "a"], Meta(description="x")], "one of b, a"),
        (Path, "a path"),
        (Name, "a string"),
        (tuple[str, ...], "a list of strings"),
        (dict[str, Any], "an object"),
    ],
)
def test_types_in_words(kind: Any, words: str) -> None:
    assert expected(kind) == words
    with pytest.raises(InvalidValueError, match=f"^expected {words}$"):
        converted(kind, None)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(int, "-7", -7), (float, "7", 7.0), (str, "7", "7"), (Path, "~/x", Path.home() / "x")],
)
def test_text_may_stand_for_a_number(kind: Any, text: str, value: object) -> None:
    assert converted(kind, text, strict=False) == value


@pytest.mark.parametrize(("kind", "value"), [(int, "7"), (int, True), (float, False), (int, 7.5)])
def test_other_types_are_not_bent(kind: Any, value: object) -> None:
    with pytest.raises(InvalidValueError):
        converted(kind, value)


@pytest.mark.parametrize("path", ["", "a\0b", 1])
def test_what_is_no_path(path: object) -> None:
    with pytest.raises(InvalidValueError, match="expected a path"):
        converted(Path, path)


@pytest.mark.parametrize("name", ["", "é" * 128, "a\nb", "\ud800"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InvalidValueError):
        converted(Name, name)


def test_without_faults_nothing_is_refused() -> None:
    faults = Faults()
    faults.refuse(StartupError)
    faults.add("a.b", "missing")
    with pytest.raises(StartupError, match=r"^a\.b: missing$"):
        faults.refuse(StartupError)
