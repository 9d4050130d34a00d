"""What a message was published with, and where it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.protocol.fields import Table
from vouchmq.server.broker.enqueue import Target
from vouchmq.server.broker.exchanges.exchange import Exchange

if TYPE_CHECKING:
    from vouchmq.server.broker.counters import ExchangeCounters
    from vouchmq.server.broker.queues.api import Queue


class Route(Target):
    """Exchange, key and flags of a publish, and the queues that it goes to. It never changes."""

    __slots__ = ("counters", "exchange", "immediate", "mandatory", "routing_key")

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        tail: bytes,
        queues: tuple[Queue, ...],
        *,
        counters: ExchangeCounters,
        mandatory: bool,
        immediate: bool,
    ) -> None:
        super().__init__(tail, queues)
        self.counters: Final = counters  # of the exchange
        self.exchange: Final = exchange
        self.routing_key: Final = routing_key
        self.mandatory: Final = mandatory
        self.immediate: Final = immediate

    def to(self, queues: tuple[Queue, ...]) -> Route:
        """The same to other queues."""
        return Route(
            self.exchange,
            self.routing_key,
            self.tail,
            queues,
            counters=self.counters,
            mandatory=self.mandatory,
            immediate=self.immediate,
        )


class Way(NamedTuple):
    """Where a message sets out, and what exchanges route it by."""

    exchange: Exchange
    keys: tuple[str, ...]
    headers: Table
