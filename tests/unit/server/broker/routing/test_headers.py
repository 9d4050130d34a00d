"""The four ways of x-match, the comparison of values, and the arguments that are refused."""

from __future__ import annotations

import pytest

from protocol.errors import PreconditionFailed
from protocol.fields import Field, Table, boolean, longstr
from server.broker.bindings import Binding
from server.broker.routing.headers import HeadersRouter
from tests.unit.server.broker.stand_ins import integer

ONE = {"a": integer(1)}
BOTH = {"a": integer(1), "b": longstr("x")}


def matches(arguments: Table, headers: Table | None, mode: str | None = None) -> bool:
    router = HeadersRouter()
    table = dict(arguments)
    if mode is not None:
        table["x-match"] = longstr(mode)
    router.validate("", table)
    router.add(Binding("x", "queue", "q", "ignored", table))
    return bool(list(router.match(["other"], headers)))


def test_all_needs_every_argument() -> None:
    assert matches(BOTH, {**BOTH, "c": integer(3)}, "all")
    assert matches(BOTH, BOTH)
    assert not matches(BOTH, ONE, "all")
    assert not matches(BOTH, {**BOTH, "b": longstr("y")})


def test_any_needs_one_argument() -> None:
    assert matches(BOTH, ONE, "any")
    assert matches(BOTH, {"b": longstr("x"), "a": integer(2)}, "any")
    assert not matches(BOTH, {"a": integer(2)}, "any")


@pytest.mark.parametrize(("mode", "expected"), [(None, True), ("all", True), ("any", False)])
def test_nothing_to_consider_matches_always_under_all_and_never_under_any(
    mode: str | None, expected: bool
) -> None:
    assert matches({}, BOTH, mode) is expected
    assert matches({"x-a": integer(1)}, None, mode) is expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("all", True), ("all-with-x", False), ("any", True), ("any-with-x", True)],
)
def test_arguments_beginning_with_x_count_only_with_x(mode: str, expected: bool) -> None:
    assert matches({"a": integer(1), "x-b": integer(1)}, ONE, mode) is expected
    assert matches({"x-b": integer(1)}, {"x-b": integer(1)}, "any-with-x")
    assert not matches({"x-b": integer(1)}, {"x-b": integer(2)}, "all-with-x")


def test_x_match_itself_is_never_compared() -> None:
    assert not matches({}, {"x-match": longstr("any-with-x")}, "any-with-x")
    assert matches({}, {}, "all-with-x")


def test_void_argument_asks_only_that_the_header_be_there() -> None:
    void = {"a": Field("V", None)}
    assert matches(void, {"a": boolean(False)})
    assert matches(void, {"a": Field("V", None)})
    assert not matches(void, {"b": boolean(False)})


def test_message_without_headers_is_one_with_none() -> None:
    assert matches({}, None)
    assert not matches(ONE, None)


def test_values_compare_by_class_and_value() -> None:
    assert matches({"a": integer(1, "b")}, {"a": integer(1, "l")})
    assert not matches({"a": integer(1)}, {"a": Field("d", 1.0)})
    assert not matches({"a": integer(1)}, {"a": boolean(True)})
    assert not matches({"a": longstr("1")}, {"a": integer(1)})


def test_removed_binding_matches_no_more() -> None:
    router = HeadersRouter()
    binding = Binding("x", "queue", "q", "", {})
    router.add(binding)
    router.remove(binding)
    assert not list(router.match([""], None))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            longstr("foo"),
            'Invalid x-match field value <<"foo">>; expected all, any, all-with-x, or any-with-x',
        ),
        (
            longstr('f"o\n'),
            'Invalid x-match field value <<"f\\"o\\n">>; '
            "expected all, any, all-with-x, or any-with-x",
        ),
        (integer(5), "Invalid x-match field type signedint (value 5); expected longstr"),
        (boolean(True), "Invalid x-match field type bool (value true); expected longstr"),
        (Field("F", {}), "Invalid x-match field type table (value []); expected longstr"),
        (Field("V", None), "Invalid x-match field type void (value undefined); expected longstr"),
        (
            Field("A", (integer(1),)),
            "Invalid x-match field type array (value [{signedint,1}]); expected longstr",
        ),
    ],
)
def test_other_x_match_is_refused_with_the_measured_text(value: Field, text: str) -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        HeadersRouter().validate("", {"x-match": value})
    assert refusal.value.reply_text == f"PRECONDITION_FAILED - {text}"
