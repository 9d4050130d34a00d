"""Which bindings are the same, and the three ways to find them."""

from __future__ import annotations

import pytest

from tests.unit.server.broker.stand_ins import integer
from vouchmq.protocol.fields import Field, Table, boolean, longstr
from vouchmq.server.broker.exchanges.bindings import Binding, Bindings


def binding(key: str = "k", arguments: Table | None = None, queue: str = "q") -> Binding:
    return Binding("x", "queue", queue, key, arguments or {})


def test_same_tuple_is_taken_once() -> None:
    bindings = Bindings()
    assert bindings.add(binding())
    assert not bindings.add(binding())
    assert len(bindings) == 1


@pytest.mark.parametrize(
    "other",
    [
        binding("K"),
        binding(queue="r"),
        binding(arguments={"a": integer(1)}),
        Binding("x", "exchange", "q", "k", {}),
        Binding("y", "queue", "q", "k", {}),
    ],
)
def test_every_part_of_the_tuple_counts(other: Binding) -> None:
    bindings = Bindings()
    bindings.add(binding())
    assert bindings.find(other.identity) is None
    assert bindings.add(other)


def test_order_of_arguments_does_not_count_but_their_types_do() -> None:
    one, two = integer(1), longstr("x")
    assert binding(arguments={"a": one, "b": two}).identity == (
        binding(arguments={"b": two, "a": one}).identity
    )
    assert binding(arguments={"a": Field("l", 1)}).identity == (
        binding(arguments={"a": Field("L", 1)}).identity
    )
    assert binding(arguments={"a": one}).identity != (
        binding(arguments={"a": Field("l", 1)}).identity
    )
    assert binding(arguments={"a": boolean(True)}).identity != (
        binding(arguments={"a": Field("b", 1)}).identity
    )


def test_removed_binding_is_found_no_way() -> None:
    bindings = Bindings()
    gone, kept = binding("a"), binding("b")
    bindings.add(gone)
    bindings.add(kept)
    assert bindings.remove(gone)
    assert not bindings.remove(gone)
    assert bindings.find(gone.identity) is None
    assert list(bindings) == bindings.from_source("x") == [kept]
    assert bindings.to_destination("queue", "q") == [kept]
    assert bindings.remove(kept)
    assert not bindings.is_source("x")
    assert not bindings.from_source("x")
    assert not bindings.to_destination("queue", "q")


def test_queue_and_exchange_of_one_name_are_two_destinations() -> None:
    bindings = Bindings()
    bindings.add(binding())
    assert not bindings.to_destination("exchange", "q")


def test_bindings_are_listed_one_at_a_step() -> None:
    """LIMIT-23: what changes between two steps is heeded, so nothing is copied as a whole."""
    bindings = Bindings()
    for source in ("x", "y"):
        for number in range(4):
            bindings.add(Binding(source, "queue", f"q{number % 2}", f"k{number}", {}))
    steps = bindings.each()
    first = next(steps)
    assert (first.source, first.destination, first.routing_key) == ("x", "q0", "k0")
    for each in [*bindings.from_source("x"), *bindings.to_destination("queue", "q1")]:
        bindings.remove(each)
    bindings.add(Binding("y", "queue", "q0", "k8", {}))
    assert [(each.source, each.routing_key) for each in steps] == [
        ("y", "k0"),
        ("y", "k2"),
        ("y", "k8"),
    ]
    assert [each.routing_key for each in bindings.each("y")] == ["k0", "k2", "k8"]
    assert list(bindings.each("x")) == []


def test_what_left_an_exchange_that_is_gone_is_not_listed() -> None:
    bindings = Bindings()
    for number in range(3):
        bindings.add(binding(f"k{number}"))
    steps = bindings.each()
    next(steps)
    assert len(bindings.cut_from("x")) == 1  # its link is let go of later
    assert list(steps) == []
