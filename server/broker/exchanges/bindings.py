"""Bindings of one vhost: found by the whole tuple, by source, and by destination.

Every look-up and every removal is constant in the number of bindings, so that deleting an exchange
or queue costs its own bindings and nothing else. Must not know how an exchange type matches.

Spec: EXCH-20
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from vouchmq.protocol.fields import Field, Table, encode_table

DestinationKind = Literal["queue", "exchange"]
# Source, kind and name of the destination, routing key, arguments in canonical octets.
Identity = tuple[str, DestinationKind, str, str, bytes]
Destination = tuple[DestinationKind, str]

_K = TypeVar("_K")


@dataclass(slots=True, frozen=True, eq=False)
class Binding:
    """One way from an exchange to a queue or to another exchange.

    Compared by identity: `Bindings` holds at most one object per tuple.
    """

    source: str
    kind: DestinationKind
    destination: str
    routing_key: str
    arguments: Table

    @property
    def identity(self) -> Identity:
        """The tuple that tells this binding from all others (EXCH-20)."""
        return (
            self.source,
            self.kind,
            self.destination,
            self.routing_key,
            _canonical(self.arguments),
        )


class Bindings:
    """The bindings of a vhost. Iteration is in the order of binding."""

    __slots__ = ("_by_destination", "_by_identity", "_by_source")

    def __init__(self) -> None:
        self._by_identity: dict[Identity, Binding] = {}
        # Dictionaries serve as sets that keep their order, which a simulation must repeat.
        self._by_source: dict[str, dict[Binding, None]] = {}
        self._by_destination: dict[Destination, dict[Binding, None]] = {}

    def __len__(self) -> int:
        return len(self._by_identity)

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._by_identity.values())

    def find(self, identity: Identity) -> Binding | None:
        """The binding with exactly this tuple."""
        return self._by_identity.get(identity)

    def add(self, binding: Binding) -> bool:
        """Take `binding` in; False, and no change, when its tuple is there already."""
        if self._by_identity.setdefault(binding.identity, binding) is not binding:
            return False
        self._by_source.setdefault(binding.source, {})[binding] = None
        destination: Destination = (binding.kind, binding.destination)
        self._by_destination.setdefault(destination, {})[binding] = None
        return True

    def remove(self, binding: Binding) -> bool:
        """Take `binding` out; False when it is not in."""
        if self._by_identity.pop(binding.identity, None) is None:
            return False
        _discard(self._by_source, binding.source, binding)
        _discard(self._by_destination, (binding.kind, binding.destination), binding)
        return True

    def is_source(self, exchange: str) -> bool:
        """Whether any binding leads from this exchange."""
        return exchange in self._by_source

    def from_source(self, exchange: str) -> list[Binding]:
        """The bindings that lead from this exchange."""
        return list(self._by_source.get(exchange, ()))

    def to_destination(self, kind: DestinationKind, name: str) -> list[Binding]:
        """The bindings that lead to this queue or exchange."""
        return list(self._by_destination.get((kind, name), ()))


def _discard(index: dict[_K, dict[Binding, None]], key: _K, binding: Binding) -> None:
    bindings = index[key]
    del bindings[binding]
    if not bindings:
        del index[key]


def _canonical(arguments: Table) -> bytes:
    """The arguments as octets that do not depend on the order in which they were sent.

    Types count, as they do in RabbitMQ; `L` is only another octet for `l`.
    """
    if not arguments:
        return b""
    return encode_table(
        {
            name: Field("l", field.value) if field.kind == "L" else field
            for name, field in sorted(arguments.items())
        }
    )
