"""Direct exchanges: a binding matches when its key is the message's key, octet for octet.

Spec: EXCH-31
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vouchmq.protocol.fields import Table
from vouchmq.server.broker.exchanges.bindings import Binding, Destination


class DirectRouter:
    """Routes to the bindings whose key is equal to a routing key."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[str, dict[Binding, None]] = {}

    def validate(self, binding: Binding) -> None:
        """Any key and any arguments will do."""

    def add(self, binding: Binding) -> None:
        """Take in a binding that is not in yet."""
        self._by_key.setdefault(binding.routing_key, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        """Take out a binding that is in."""
        bindings = self._by_key[binding.routing_key]
        del bindings[binding]
        if not bindings:
            del self._by_key[binding.routing_key]

    def drop_destination(self, destination: Destination) -> None:
        """They are removed one by one."""

    def match(self, keys: Sequence[str], headers: Table | None) -> Iterator[Binding]:
        """The bindings that match at least one key; cost is that of the answer."""
        for key in keys:
            yield from self._by_key.get(key, ())
