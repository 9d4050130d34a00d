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
