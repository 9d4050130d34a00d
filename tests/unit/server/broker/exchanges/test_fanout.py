"""Fanout routing: every binding, once."""

from __future__ import annotations

from vouchmq.server.broker.exchanges.bindings import Binding
from vouchmq.server.broker.exchanges.fanout import FanoutRouter


def test_every_binding_matches_once_whatever_the_keys() -> None:
    router = FanoutRouter()
    bindings = [Binding("x", "queue", f"q{i}", str(i), {}) for i in range(3)]
    for binding in bindings:
        router.add(binding)
    assert list(router.match(["a", "b"], None)) == bindings
    router.remove(bindings[1])
    assert list(router.match([""], None)) == [bindings[0], bindings[2]]


def test_any_key_and_arguments_may_be_bound() -> None:
    FanoutRouter().validate(Binding("x", "queue", "q", "#.#.#", {}))
