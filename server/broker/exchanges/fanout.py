"""Fanout exchanges: every binding matches every message.

Spec: EXCH-32
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vouchmq.protocol.fields import Table
from vouchmq.server.broker.exchanges.bindings import Binding, Destination


class FanoutRouter:
    """Bindings in the order of binding."""

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}

    def validate(self, binding: Binding) -> None:
        """Any key and any arguments will do."""

    def add(self, binding: Binding) -> None:
        """Take in a binding that is not in yet."""
        self._bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        """Take out a binding that is in."""
        del self._bindings[binding]

    def drop_destination(self, destination: Destination) -> None:
        """They are removed one by one."""

    def match(self, keys: Sequence[str], headers: Table | None) -> Iterator[Binding]:
        """All bindings, once, however many keys there are (EXCH-35)."""
        return iter(self._bindings)
