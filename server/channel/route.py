"""What a `basic.publish` frame means: exchange and key, flags, and the queues behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.protocol.properties import CARE
from vouchmq.server.broker.enqueue import Target

if TYPE_CHECKING:
    from vouchmq.protocol.fields import Table
    from vouchmq.server.broker.exchanges.exchange import Exchange
    from vouchmq.server.broker.features.dedup import KeyWindow


class Route(Target):
    """What a `basic.publish` frame means, as long as the topology stays as it is."""

    __slots__ = (
        "examined_modes",
        "exchange",
        "generation",
        "immediate",
        "is_examined",
        "is_refused",
        "mandatory",
        "reads_keys",
        "reads_properties",
        "routing_key",
        "way",
        "window",
    )

    def __init__(self, exchange: str, routing_key: str, tail: bytes) -> None:
        super().__init__(tail)
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = False
        self.immediate = False
        self.is_examined = False
        self.is_refused = False
        self.reads_keys = False
        self.reads_properties = False
        self.way: tuple[Exchange, tuple[str, ...], Table] | None = None
        # Of the exchange, when nothing else on the way reads more than routing keys.
        self.window: KeyWindow | None = None
        self.examined_modes = CARE
        self.generation = -1
