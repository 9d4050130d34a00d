"""The four ways of x-match, the comparison of values, and the arguments that are refused."""

from __future__ import annotations

from typing import cast

import pytest

from tests.unit.server.broker.stand_ins import integer
from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import Field, Table, boolean, longstr
from vouchmq.server.broker.exchanges import headers as headers_module
from vouchmq.server.broker.exchanges.bindings import Binding
from vouchmq.server.broker.exchanges.headers import HeadersRouter

ONE = {"a": integer(1)}
VOID = Field("V", None)
BOTH = {"a": integer(1), "b": longstr("x")}


def matches(arguments: Table, headers: Table | None, mode: str | None = None) -> bool:
    router = HeadersRouter()
    table = dict(arguments)
    if mode is not None:
        table["x-match"] = longstr(mode)
    binding = Binding("x", "queue", "q", "ignored", table)
    router.validate(binding)
    router.add(binding)
    return bool(list(filter(None, router.match(["other"], headers))))


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
    assert not list(filter(None, router.match([""], None)))


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
        HeadersRouter().validate(Binding("x", "queue", "q", "", {"x-match": value}))
    assert refusal.value.reply_text == f"PRECONDITION_FAILED - {text}"


class Counted(HeadersRouter):
    """Knows how many bindings were looked at."""

    def looked_at(self, headers: Table) -> int:
        """So many bindings does a message with these headers meet."""
        looks = 0

        class Pattern:
            def __init__(self, pattern: headers_module.Pattern) -> None:
                self.pattern = pattern

            def matches(self, table: Table) -> bool:
                nonlocal looks
                looks += 1
                return self.pattern.matches(table)

        kept, self._patterns = (
            self._patterns,
            {one: cast("headers_module.Pattern", Pattern(p)) for one, p in self._patterns.items()},
        )
        list(self.match([""], headers))
        self._patterns = kept
        return looks


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_message_meets_the_bindings_that_ask_for_its_headers_only(mode: str) -> None:
    """LIMIT-23: 3,000 bindings cost a message that has nothing to do with them nothing."""
    router = Counted()
    bindings = []
    for number in range(3000):
        table = {"x-match": longstr(mode), "a": integer(number), "b": longstr("x"), "c": VOID}
        if mode == "any":
            del table["b"], table["c"]
        bindings.append(Binding("x", "queue", f"q{number}", "", table))
        router.add(bindings[-1])
    assert router.looked_at({"a": integer(-1), "d": integer(1)}) == 0
    assert router.looked_at({"a": integer(7), "b": longstr("x"), "c": integer(1)}) <= 2
    assert list(router.match([""], {"a": integer(7), "b": longstr("x"), "c": VOID})) == [
        bindings[7]
    ]
    for binding in bindings:
        router.remove(binding)
    assert not list(router.match([""], {"a": integer(7), "b": longstr("x"), "c": VOID}))


def test_what_asks_for_any_header_is_named_once() -> None:
    router = HeadersRouter()
    table = {"x-match": longstr("any"), "a": integer(1), "b": VOID}
    binding = Binding("x", "queue", "q", "", table)
    router.add(binding)
    assert list(router.match([""], {"a": integer(1), "b": integer(2)})) == [binding]


def test_bindings_that_are_looked_at_in_vain_can_be_interrupted() -> None:
    """LIMIT-23: a step for each."""
    router = HeadersRouter()
    wanted = {"a": longstr("1"), "b": longstr("2"), "x-match": longstr("all")}
    for number in range(100):
        router.add(Binding("x", "queue", "q", str(number), dict(wanted)))
    headers = {"a": longstr("1"), "b": longstr("3")}
    steps = list(router.match([""], headers))
    headers = {"a": longstr("0"), "b": longstr("2")}
    steps += router.match([""], headers)
    assert steps == [None] * 100
