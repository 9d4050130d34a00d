"""Routing against oracles that are too slow to be wrong."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.property.routing_oracles import topic_oracle
from tests.unit.server.broker.stand_ins import QueueStandIn, exchange, new_vhost, queue, routed
from vouchmq.protocol.fields import Field, Table, boolean, header_equal, longstr
from vouchmq.server.broker.exchanges.bindings import Binding
from vouchmq.server.broker.exchanges.headers import HeadersRouter
from vouchmq.server.broker.exchanges.topic import TopicRouter
from vouchmq.server.broker.vhost import VHost

ME = object()
WORDS = ["a", "b", "", "*", "#", "a*"]
keys = st.lists(st.sampled_from(WORDS), max_size=6).map(".".join)


def words_of(key: str) -> list[str]:
    return key.split(".") if key else []


@given(st.lists(keys, min_size=1, max_size=8), st.data())
def test_topic_match_equals_the_naive_oracle(patterns: list[str], data: st.DataObject) -> None:
    router = TopicRouter()
    bindings = [Binding("x", "queue", str(i), key, {}) for i, key in enumerate(patterns)]
    for binding in bindings:
        router.add(binding)
    removed = data.draw(st.lists(st.sampled_from(bindings), unique=True))
    for binding in removed:
        router.remove(binding)
    wanted = data.draw(st.lists(keys, min_size=1, max_size=2))
    expected = {
        binding
        for binding, key in itertools.product(bindings, wanted)
        if binding not in removed and topic_oracle(words_of(binding.routing_key), words_of(key))
    }
    # None is a step that has found nothing (LIMIT-23).
    assert set(router.match(wanted, None)) - {None} == expected


values = st.sampled_from(
    [
        Field("I", 1),
        Field("l", 1),
        Field("l", 2),
        Field("d", 1.0),
        boolean(True),
        longstr("1"),
        Field("V", None),
        Field("F", {"k": Field("b", 1)}),
        Field("F", {"k": Field("l", 1)}),
        Field("A", (Field("I", 1),)),
    ]
)
tables = st.dictionaries(st.sampled_from(["a", "b", "c", "x-a", "x-b", "x-match-not"]), values)
modes = st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"])


def headers_oracle(mode: str | None, arguments: Table, headers: Table) -> bool:
    """EXCH-50 and EXCH-51 as they are written."""
    with_x = mode in {"all-with-x", "any-with-x"}
    verdicts = []
    for name, value in arguments.items():
        if name == "x-match" or (name.startswith("x-") and not with_x):
            continue
        present = name in headers
        equal = present and (value.kind == "V" or header_equal(headers[name], value))
        verdicts.append(equal)
    if mode in {"any", "any-with-x"}:
        return True in verdicts
    return False not in verdicts


@given(modes, tables, st.none() | tables)
def test_headers_match_equals_the_naive_oracle(
    mode: str | None, arguments: Table, headers: Table | None
) -> None:
    table = dict(arguments)
    if mode is not None:
        table["x-match"] = longstr(mode)
    router = HeadersRouter()
    binding = Binding("x", "queue", "q", "", table)
    router.validate(binding)
    router.add(binding)
    expected = [binding] if headers_oracle(mode, arguments, headers or {}) else []
    found = [binding for binding in router.match(["", "k"], headers) if binding is not None]
    assert found == expected


QUEUES = ["p", "q", "r"]
# Every exchange has at most one alternate; z's is missing.
EXCHANGES = {"v": ("topic", "w"), "w": ("direct", "v"), "x": ("fanout", None), "z": ("direct", "n")}
Edge = tuple[str, str, str]
edges = st.tuples(
    st.sampled_from(list(EXCHANGES)),
    st.sampled_from(QUEUES + list(EXCHANGES)),
    st.sampled_from(["a", "b", "a.b", "#", "a.*"]),
)
operations = st.lists(st.tuples(st.booleans(), edges), max_size=30)


def build() -> VHost[QueueStandIn]:
    vhost = new_vhost()
    for name in QUEUES:
        queue(vhost, name)
    for name, (exchange_type, alternate) in EXCHANGES.items():
        exchange(vhost, name, exchange_type, alternate=alternate)
    return vhost


def route_oracle(bound: list[Edge], source: str, wanted: list[str], seen: set[str]) -> set[str]:
    """EXCH-30 and EXCH-60 over a plain list of bindings."""
    if source in seen or source not in EXCHANGES:
        return set()
    seen.add(source)
    exchange_type, alternate = EXCHANGES[source]
    targets = [
        destination
        for origin, destination, key in bound
        if origin == source
        and (
            exchange_type == "fanout"
            or (exchange_type == "direct" and key in wanted)
            or (
                exchange_type == "topic"
                and any(topic_oracle(words_of(key), words_of(each)) for each in wanted)
            )
        )
    ]
    if not targets and alternate is not None:
        targets = [alternate]
    found = set()
    for target in targets:
        found |= {target} if target in QUEUES else route_oracle(bound, target, wanted, seen)
    return found


@given(operations, st.lists(st.sampled_from(["a", "b", "a.b", "a.c"]), min_size=1, max_size=2))
def test_binding_and_unbinding_at_random_equals_a_list(
    steps: list[tuple[bool, Edge]], wanted: list[str]
) -> None:
    vhost = build()
    model: list[Edge] = []
    for is_bind, edge in steps:
        source, destination, key = edge
        before = vhost.generation
        change = vhost.bind if is_bind else vhost.unbind
        if destination in QUEUES:
            change(source, "queue", destination, key, {}, ME)
        else:
            change(source, "exchange", destination, key, {}, ME)
        changed = is_bind is not (edge in model)
        assert (vhost.generation > before) is changed
        if changed and is_bind:
            model.append(edge)
        elif changed:
            model.remove(edge)
    assert [(b.source, b.destination, b.routing_key) for b in vhost.bindings] == model
    for name in EXCHANGES:
        assert routed(vhost, name, *wanted) == sorted(route_oracle(model, name, wanted, set()))
