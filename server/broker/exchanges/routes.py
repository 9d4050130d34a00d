"""The exchanges of a vhost with the bindings between them: the graph that a message walks.

Must not know queues beyond their names, nor what is durable.

Spec: EXCH-24, EXCH-30, EXCH-35, EXCH-60 … EXCH-62
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

from vouchmq.protocol.fields import Table
from vouchmq.server.broker.delays import delay_ms, delay_queue_name
from vouchmq.server.broker.exchanges.bindings import Binding, Bindings, Destination, Link
from vouchmq.server.broker.exchanges.exchange import PREDECLARED, Exchange, Router
from vouchmq.server.broker.names import DEFAULT_EXCHANGE

_Q = TypeVar("_Q")

# Bindings followed between two looks at the clock, and what an exchange counts for.
STEP_BINDINGS: Final = 256
EXCHANGE_BINDINGS: Final = 8
# Bindings that are gone, removed from their routers at once and in each later turn: 1 us each.
NOW_BINDINGS: Final = 256
TURN_BINDINGS: Final = 2048

Later = Callable[[Callable[[], None]], None]


def never(_exchange: Exchange) -> bool:
    """No exchange stops a message."""
    return False


class Routes:
    """Exchanges by name, and their bindings in the index and in the routers alike."""

    __slots__ = (
        *("_is_put_off", "_later", "_leftovers", "_removal"),
        *("bindings", "exchanges", "removals"),
    )

    def __init__(self, vhost: str, later: Later | None = None) -> None:
        """The graph of a new vhost: the predeclared exchanges, no binding (EXCH-02).

        `later` calls what it is given in the next turn; without it nothing is put off.
        """
        self._later = later
        # Routers with links that are gone, whose bindings are taken out of them little by little.
        self._leftovers: deque[tuple[Router, dict[Destination, Link]]] = deque()
        self._removal: Iterator[None] | None = None
        self._is_put_off = False
        self.removals = 0  # how often that was done: what walks a router must begin again
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

    def detach_exchange(self, exchange: Exchange) -> list[Exchange]:
        """Take out all bindings from and to an exchange that is no longer among the others.

        Gives the exchanges that are the source of none any more.
        """
        unbound = self._cut(self.bindings.links_to("exchange", exchange.name))
        links = self.bindings.cut_from(exchange.name)
        if links:
            self._leftovers.append((exchange.router, links))
        self._remove_some(NOW_BINDINGS)
        return unbound

    def detach_queue(self, name: str) -> list[Exchange]:
        """Take out all bindings to a queue; gives the exchanges that are the source of none."""
        unbound = self._cut(self.bindings.links_to("queue", name))
        self._remove_some(NOW_BINDINGS)
        return unbound

    def _cut(self, links: list[Link]) -> list[Exchange]:
        self.bindings.cut(links)
        unbound: list[Exchange] = []
        for link in links:
            source = self.exchanges.get(link.source)
            if source is None:
                # An exchange that was bound to itself.
                continue
            source.router.drop_destination(link.destination)
            self._leftovers.append((source.router, {link.destination: link}))
            if not self.bindings.is_source(source.name):
                unbound.append(source)
        return unbound

    def _remove_some(self, count: int) -> None:
        """Take bindings that are gone out of their routers; the rest of them in later turns."""
        if self._removal is None:
            if not self._leftovers:
                return
            self._removal = self._remove_all()
        self.removals += 1
        for _ in islice(self._removal, count if self._later is not None else None):
            pass
        if self._later is not None and self._is_removing() and not self._is_put_off:
            self._is_put_off = True
            self._later(self._go_on)

    def _is_removing(self) -> bool:
        """Whether there is more to remove: the generator itself says that by ending it."""
        return self._removal is not None

    def _go_on(self) -> None:
        self._is_put_off = False
        self._remove_some(TURN_BINDINGS)

    def _remove_all(self) -> Iterator[None]:
        """A step for each link and each binding."""
        while self._leftovers:
            router, links = self._leftovers.popleft()
            while links:
                # One by one: to let go of very many at once takes long as well.
                link = links.popitem()[1]
                self.bindings.forget(link)
                yield
                while link.bindings:
                    router.remove(link.bindings.popitem()[1])
                    yield
        self._removal = None

    def walk(
        self,
        exchange: Exchange,
        keys: Sequence[str],
        headers: Table | None,
        queues: Mapping[str, _Q],
        delay_queues: Mapping[str, _Q],
        stops: Callable[[Exchange], bool] = never,
    ) -> RouteWalk[_Q]:
        """The way of a message from `exchange`, to those of `queues` that it reaches.

        It goes no further at an exchange that `stops` it, and waits at one that delays it in that
        one's own of `delay_queues`.
        """
        return RouteWalk(self.exchanges, exchange, keys, headers, queues, delay_queues, stops)


class RouteWalk(Generic[_Q]):
    """The way of one message through the exchanges; it may be gone in several goes.

    Bindings between exchanges are followed, and the alternate exchange of every exchange whose own
    bindings match nothing; each exchange is visited once, so cycles end. Between two goes nothing
    of the topology may change.
    """

    __slots__ = ("_found", "_steps")

    def __init__(
        self,
        exchanges: Mapping[str, Exchange],
        exchange: Exchange,
        keys: Sequence[str],
        headers: Table | None,
        queues: Mapping[str, _Q],
        delay_queues: Mapping[str, _Q],
        stops: Callable[[Exchange], bool],
    ) -> None:
        self._found: dict[str, _Q] = {}
        self._steps = self._walk(exchanges, exchange, keys, headers, queues, delay_queues, stops)

    def end(self) -> tuple[_Q, ...]:
        """End the walk; returns the queues it reached, each once."""
        for _ in self._steps:
            pass
        return tuple(self._found.values())

    def go(self, is_over: Callable[[], bool]) -> tuple[_Q, ...] | None:
        """The queues, None when the time is over before the end: then go on another time."""
        for _ in self._steps:
            if is_over():
                return None
        return tuple(self._found.values())

    def _walk(
        self,
        exchanges: Mapping[str, Exchange],
        exchange: Exchange,
        keys: Sequence[str],
        headers: Table | None,
        queues: Mapping[str, _Q],
        delay_queues: Mapping[str, _Q],
        stops: Callable[[Exchange], bool],
    ) -> Iterator[None]:
        """Walk; a pause after every few exchanges and bindings."""
        found = self._found
        seen = {exchange.name}
        pending = [exchange]
        left = STEP_BINDINGS
        while pending:
            at = pending.pop()
            if stops(at):
                continue
            if at.name == DEFAULT_EXCHANGE:
                # Every queue is bound under its name, and nothing else is (EXCH-03).
                found.update((key, queues[key]) for key in keys if key in queues)
                continue
            if at.delays and delay_ms(headers):
                found[delay_queue_name(at.name)] = delay_queues[at.name]
                continue
            onward: list[str] = []
            matched = False
            left -= EXCHANGE_BINDINGS
            for binding in at.router.match(keys, headers):
                left -= 1
                if left <= 0:
                    left = STEP_BINDINGS
                    yield
                if binding is None or binding.link.is_gone:
                    continue
                matched = True
                if binding.kind == "queue":
                    found[binding.destination] = queues[binding.destination]
                else:
                    onward.append(binding.destination)
            if not matched and at.alternate is not None:
                onward.append(at.alternate)
            for name in onward:
                # An alternate exchange need not exist (EXCH-62).
                if name not in seen and name in exchanges:
                    seen.add(name)
                    pending.append(exchanges[name])
