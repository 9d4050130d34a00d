"""Direct routing: equal keys, nothing else."""

from __future__ import annotations

from vouchmq.server.broker.exchanges.bindings import Binding
from vouchmq.server.broker.exchanges.direct import DirectRouter


def test_equal_key_matches_and_no_other() -> None:
    router = DirectRouter()
    binding = Binding("x", "queue", "q", "a.b", {})
    router.add(binding)
    assert list(router.match(["a.b"], None)) == [binding]
    assert not list(router.match(["a.*", "a", "A.B", ""], None))


def test_removal_takes_only_the_binding_itself() -> None:
    router = DirectRouter()
    one = Binding("x", "queue", "q1", "k", {})
    two = Binding("x", "queue", "q2", "k", {})
    router.add(one)
    router.add(two)
    router.remove(one)
    assert list(router.match(["k"], None)) == [two]
    router.remove(two)
    assert not list(router.match(["k"], None))


def test_any_key_and_arguments_may_be_bound() -> None:
    DirectRouter().validate(Binding("x", "queue", "q", "#.#.#", {}))
