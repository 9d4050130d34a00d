"""The exchanges of a vhost with the bindings between them: the graph that a message walks.

Must not know queues beyond their names, nor what is durable.

Spec: EXCH-24, EXCH-30, EXCH-35, EXCH-60 … EXCH-62
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from protocol.fields import Table
from server.broker.bindings import Binding, Bindings
from server.broker.delays import delay_ms, hold_name, is_hidden
from server.broker.exchange import PREDECLARED, Exchange
from server.broker.names import DEFAULT_EXCHANGE

_Q = TypeVar("_Q")


class Routes:
    """Exchanges by name, and their bindings in the index and in the routers alike."""

    __slots__ = ("bindings", "exchanges")

    def __init__(self, vhost: str) -> None:
        """The graph of a new vhost: the predeclared exchanges, no binding (EXCH-02)."""
        self.bindings = Bindings()
        self.exchanges = {
            name: Exchange(name, vhost, exchange_type, True, False, internal, {})
            for name, exchange_type, internal in PREDECLARED
        }

    def add(self, binding: Binding) -> bool:
        """Put a binding in whose source exists; False when it is there already."""
        if not self.bindings.add(binding):
            return False
        self.exchanges[binding.source].router.add(binding)
        return True

    def remove(self, bindings: Iterable[Binding]) -> list[Exchange]:
        """Take bindings out; gives the exchanges that are the source of none any more."""
        unbound: list[Exchange] = []
        for binding in bindings:
            if not self.bindings.remove(binding):
                continue
            # The source may be an exchange that has been deleted, router and all.
            source = self.exchanges.get(binding.source)
            if source is not None:
                source.router.remove(binding)
                if not self.bindings.is_source(source.name):
                    unbound.append(source)
        return unbound

    def bindings_of(self, exchange: Exchange) -> list[Binding]:
        """The bindings that lead from and to an exchange."""
        return self.bindings.from_source(exchange.name) + self.bindings.to_destination(
            "exchange", exchange.name
        )

    def walk(
        self,
        exchange: Exchange,
        keys: Sequence[str],
        headers: Table | None,
        queues: Mapping[str, _Q],
        stops: Callable[[Exchange], bool] = lambda _: False,
    ) -> tuple[_Q, ...]:
        """Those of `queues` that a message reaches from `exchange`, each once.

        Bindings between exchanges are followed, and the alternate exchange of every exchange
        whose own bindings match nothing; each exchange is visited once, so cycles end. It goes
        no further at an exchange that `stops` it.
        """
        found: dict[str, _Q] = {}
        seen = {exchange.name}
        pending = [exchange]
        while pending:
            at = pending.pop()
            for name in () if stops(at) else _step(at, keys, headers, queues, found):
                if name not in seen:
                    seen.add(name)
                    # An alternate exchange need not exist (EXCH-62).
                    onward = self.exchanges.get(name)
                    if onward is not None:
                        pending.append(onward)
        return tuple(found.values())


def _step(
    exchange: Exchange,
    keys: Sequence[str],
    headers: Table | None,
    queues: Mapping[str, _Q],
    found: dict[str, _Q],
) -> list[str]:
    """Add what `exchange` itself leads to to `found`; gives the exchanges to go on to."""
    if exchange.name == DEFAULT_EXCHANGE:
        # Every queue that can be named is bound under its name, and nothing else is (EXCH-03).
        found.update((key, queues[key]) for key in keys if key in queues and not is_hidden(key))
        return []
    if exchange.delays and delay_ms(headers):
        name = hold_name(exchange.name)
        found[name] = queues[name]
        return []
    onward: list[str] = []
    matched = False
    for binding in exchange.router.match(keys, headers):
        matched = True
        if binding.kind == "queue":
            found[binding.destination] = queues[binding.destination]
        else:
            onward.append(binding.destination)
    if not matched and exchange.alternate is not None:
        onward.append(exchange.alternate)
    return onward
