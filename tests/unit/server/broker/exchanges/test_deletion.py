"""What was bound is gone in one step; what is left of it goes little by little.

Spec: EXCH-11, EXCH-12, EXCH-13, LIMIT-23
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.unit.server.broker.stand_ins import integer
from vouchmq.protocol.fields import Table
from vouchmq.server.broker.exchanges import routes as module
from vouchmq.server.broker.exchanges.bindings import Binding, DestinationKind
from vouchmq.server.broker.exchanges.exchange import Exchange
from vouchmq.server.broker.exchanges.routes import Routes

TYPES = ("direct", "fanout", "topic", "headers", "x-consistent-hash")
COUNT = 50
PER_TURN = 7


class Graph:
    """Routes whose later turns come by hand; queues `q` and `other`, exchanges by name."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.routes = Routes("/", self.work.append)
        self.queues = {"q": "q", "other": "other"}

    def declare(self, name: str, exchange_type: str, arguments: Table | None = None) -> Exchange:
        exchange = Exchange(name, "/", exchange_type, False, False, False, arguments or {})
        self.routes.exchanges[name] = exchange
        return exchange

    def bind(self, source: str, destination: str, number: int, *, exchange: bool = False) -> bool:
        kind: DestinationKind = "exchange" if exchange else "queue"
        key, table = str(number % 9 + 1), {"n": integer(number)}
        return self.routes.add(Binding(source, kind, destination, key, table))

    def delete(self, exchange: Exchange) -> list[Exchange]:
        del self.routes.exchanges[exchange.name]
        return self.routes.detach_exchange(exchange)

    def routed(self, exchange: Exchange, number: int = 1) -> set[str]:
        headers = {"n": integer(number)}
        keys = (str(number % 9 + 1),)
        return set(self.routes.walk(exchange, keys, headers, self.queues, {}).end())

    def run_turn(self) -> None:
        work, self.work[:] = list(self.work), []
        for job in work:
            job()


@pytest.fixture(params=[0, 3])
def graph(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Graph:
    monkeypatch.setattr(module, "NOW_BINDINGS", request.param)
    monkeypatch.setattr(module, "TURN_BINDINGS", PER_TURN)
    return Graph()


def removals(exchange: Exchange) -> list[Binding]:
    """What is taken out of the router of an exchange from now on."""
    removed: list[Binding] = []
    router, remove = exchange.router, exchange.router.remove

    def watched(binding: Binding) -> None:
        removed.append(binding)
        remove(binding)

    stub = type("Watched", (), {"__getattr__": lambda _self, name: getattr(router, name)})()
    stub.remove = watched
    exchange.router = stub
    return removed


@pytest.mark.parametrize("exchange_type", TYPES)
def test_a_queue_is_gone_at_once_and_its_bindings_a_few_per_turn(
    graph: Graph, exchange_type: str
) -> None:
    source = graph.declare("e", exchange_type)
    for number in range(COUNT):
        graph.bind("e", "q", number)
    graph.bind("e", "other", 1)
    removed = removals(source)
    del graph.queues["q"]
    assert graph.routes.detach_queue("q") == []
    assert graph.routed(source) == {"other"}
    assert len(graph.routes.bindings) == 1
    assert not graph.routes.bindings.is_destination("queue", "q")
    taken = [len(removed)]
    while graph.work:
        graph.run_turn()
        taken.append(len(removed))
        assert graph.routed(source) == {"other"}
    assert taken[-1] == COUNT
    assert max(after - before for before, after in pairwise(taken)) <= PER_TURN
    assert taken[0] <= 3


@pytest.mark.parametrize("exchange_type", TYPES)
def test_one_of_the_same_name_has_its_own_bindings_only(graph: Graph, exchange_type: str) -> None:
    source = graph.declare("e", exchange_type)
    for number in range(COUNT):
        graph.bind("e", "q", number)
    graph.routes.detach_queue("q")
    assert graph.routed(source) == set()
    assert graph.bind("e", "q", 1)
    assert not graph.bind("e", "q", 1)
    assert graph.routed(source, 1) == {"q"}
    while graph.work:
        graph.run_turn()
        assert graph.routed(source, 1) == {"q"}
    if exchange_type not in {"fanout", "x-consistent-hash"}:
        assert graph.routed(source, 2) == set()
    assert graph.routes.detach_queue("q") == [source]
    assert graph.routed(source, 1) == set()


def test_an_exchange_of_the_same_name_has_its_own_bindings_only(graph: Graph) -> None:
    first = graph.declare("e", "direct")
    before = graph.declare("before", "fanout")
    for number in range(COUNT):
        graph.bind("e", "q", number)
        graph.bind("before", "e", number, exchange=True)
    assert graph.delete(first) == [before]
    second = graph.declare("e", "direct")
    assert graph.routed(before) == graph.routed(second) == set()
    assert not graph.routes.bindings.is_source("e")
    graph.bind("e", "q", 4)
    while graph.work:
        graph.run_turn()
        assert graph.routes.bindings.is_destination("queue", "q")
        assert [each.source for each in graph.routes.bindings.to_destination("queue", "q")] == ["e"]
    assert graph.routed(second, 4) == {"q"}
    assert graph.routed(second, 5) == set()
    assert graph.routed(before) == set()


def test_an_exchange_to_many_queues_leaves_nothing(graph: Graph) -> None:
    source, kept = graph.declare("e", "topic"), graph.declare("kept", "fanout")
    for number in range(COUNT):
        graph.bind("e", f"q{number}", number)
        graph.bind("kept", f"q{number}", number)
    assert graph.delete(source) == []
    for number in range(COUNT):
        (left,) = graph.routes.bindings.to_destination("queue", f"q{number}")
        assert left.source == "kept"
    while graph.work:
        graph.run_turn()
    assert len(graph.routes.bindings) == COUNT
    assert graph.routes.detach_queue("q0") == []
    del graph.routes.exchanges["kept"]
    graph.routes.detach_exchange(kept)
    while graph.work:
        graph.run_turn()
    assert not graph.routes.bindings.is_destination("queue", "q1")


def test_an_exchange_bound_to_itself_goes(graph: Graph) -> None:
    source = graph.declare("e", "fanout")
    graph.bind("e", "e", 1, exchange=True)
    graph.bind("e", "q", 1)
    assert graph.delete(source) == []
    while graph.work:
        graph.run_turn()
    assert list(graph.routes.bindings) == []
    assert not graph.routes.bindings.is_destination("exchange", "e")


def test_without_later_turns_everything_goes_at_once() -> None:
    graph = Graph()
    graph.routes = Routes("/")
    source = graph.declare("e", "direct")
    for number in range(1000):
        graph.bind("e", "q", number)
    removed = removals(source)
    graph.routes.detach_queue("q")
    assert len(removed) == 1000


def test_bindings_keep_their_order(graph: Graph) -> None:
    for name in ("a", "b"):
        graph.declare(name, "fanout")
    for number in range(6):
        graph.bind("ab"[number % 2], ("q", "other")[number % 3 % 2], number)
    assert [each.arguments["n"] for each in graph.routes.bindings] == [
        integer(number) for number in range(6)
    ]
    assert [each.number for each in graph.routes.bindings.from_source("a")] == [1, 3, 5]
