"""The consistent-hash exchange: each message to one binding, the same key always to the same.

The binding key is a weight. Every destination stands on a ring at as many points as it has weight,
times some; a key goes to the next point behind its own hash. So a binding that is added takes keys
from all others and moves none between them, and gives them back when it goes. The ring is put
together when a message needs it, once for all bindings that have come and gone by then.

Spec: REDELIVER-52, LIMIT-26
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import Field, Table, as_integer, as_text, render
from vouchmq.server.broker.exchanges.bindings import Binding, Destination

HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
PROPERTIES: Final = ("message_id", "correlation_id", "timestamp")
# Points on the ring for each unit of weight: shares of equal weights then differ by some percent.
POINTS: Final = 40
# More would keep the broker from its work while it puts them on the ring (LIMIT-23).
MOST_WEIGHT: Final = 1000
MOST_WEIGHT_TOGETHER: Final = 2500
HASH_OCTETS: Final = 8
# What one digest of the hash function gives.
PLACES: Final = 8
DIGEST: Final = Struct(f">{PLACES}Q")
# A point and whose it is make one number, which sorts faster than a pair.
OWNER_BITS: Final = 24
OWNER: Final = (1 << OWNER_BITS) - 1
WEIGHT: Final = re.compile(r"[+-]?[0-9]+")
# Where the publisher puts properties among the headers, for those who route by them.
PROPERTY_PREFIX: Final = "\n"


class Points:
    """One destination's bindings, the heaviest of which says at how many points it stands."""

    __slots__ = ("_name", "bindings", "places", "weight")

    def __init__(self, name: str) -> None:
        self._name = name
        self.bindings: dict[Binding, int] = {}
        self.weight = 0
        self.places: list[int] = []

    def add(self, binding: Binding) -> None:
        """Give the destination of a binding its points on the hash ring."""
        weight = self.bindings[binding] = int(binding.routing_key)
        if weight > self.weight:
            self._weigh(weight)

    def remove(self, binding: Binding) -> None:
        """Take the points of a removed binding off the hash ring."""
        if self.bindings.pop(binding) == self.weight:
            self._weigh(max(self.bindings.values(), default=0))

    def _weigh(self, weight: int) -> None:
        if weight != self.weight:
            self.weight = weight
            self.places = places_of(self._name, weight * POINTS)


class ConsistentHashRouter:
    """Bindings on a ring.

    Args:
        arguments: of the exchange; they say what is hashed instead of the routing key
    """

    __slots__ = ("_destinations", "_hash_ring", "_header", "_owners", "_weight")

    def __init__(self, arguments: Table) -> None:
        named = as_text(arguments.get(HASH_PROPERTY))
        self._header = as_text(arguments.get(HASH_HEADER))
        if named is not None:
            self._header = PROPERTY_PREFIX + named
        self._destinations: dict[Destination, Points] = {}
        self._weight = 0
        self._hash_ring: list[int] = []
        self._owners: list[Binding] = []

    def validate(self, binding: Binding) -> None:
        """Refuse a binding key that is no weight, or one weight too many.

        Raises:
            PreconditionFailed: 406
        """
        weight = binding.routing_key
        if not WEIGHT.fullmatch(weight):
            shown = f'<<"{weight}">>' if weight else "<<>>"
            raise PreconditionFailed(f"The binding key must be an integer: {shown}")
        if int(weight) < 1:
            raise PreconditionFailed("The binding key must be greater than 0")
        if int(weight) > MOST_WEIGHT:
            raise PreconditionFailed(f"The binding key must not be greater than {MOST_WEIGHT}")
        there = self._destinations.get((binding.kind, binding.destination))
        more = int(weight) - (there.weight if there is not None else 0)
        if more > 0 and self._weight + more > MOST_WEIGHT_TOGETHER:
            raise PreconditionFailed(
                f"The binding keys of exchange '{binding.source}' must not add up to more than "
                f"{MOST_WEIGHT_TOGETHER}"
            )

    def add(self, binding: Binding) -> None:
        """Take in a binding that is not in yet."""
        kind, name = destination = (binding.kind, binding.destination)
        points = self._destinations.get(destination)
        if points is None:
            points = self._destinations[destination] = Points(f"{kind}\n{name}\n")
        self._weight -= points.weight
        points.add(binding)
        self._weight += points.weight
        self._hash_ring.clear()

    def remove(self, binding: Binding) -> None:
        """Take out a binding that is in."""
        destination = (binding.kind, binding.destination)
        points = self._destinations.get(destination)
        if points is None or binding not in points.bindings:
            # It left with its destination.
            return
        self._weight -= points.weight
        points.remove(binding)
        self._weight += points.weight
        if not points.bindings:
            del self._destinations[destination]
        self._hash_ring.clear()

    def drop_destination(self, destination: Destination) -> None:
        """Nobody else has a part of its points: they go to the others at once."""
        points = self._destinations.pop(destination, None)
        if points is not None:
            self._weight -= points.weight
            self._hash_ring.clear()

    def match(self, keys: Sequence[str], headers: Table | None) -> Iterator[Binding]:
        """The binding of each key, or of what is hashed instead of them."""
        if not self._destinations:
            return
        if not self._hash_ring:
            self._build()
        if self._header is not None:
            keys = (hashed(headers.get(self._header) if headers else None),)
        for key in keys:
            at = bisect_left(self._hash_ring, hash_of(key) << OWNER_BITS)
            yield self._owners[self._hash_ring[at % len(self._hash_ring)] & OWNER]

    def _build(self) -> None:
        """Put all points on the ring.

        Points that fall together belong to whoever comes first by name, on every broker alike.
        """
        self._owners.clear()
        for _, points in sorted(self._destinations.items(), key=lambda each: each[0][1]):
            owner = len(self._owners)
            self._owners.append(next(iter(points.bindings)))
            self._hash_ring += [place | owner for place in points.places]
        # Each destination's points are in order already, so this is a merge.
        self._hash_ring.sort()


def check_hash_arguments(arguments: Table) -> None:
    """Check the arguments of a new exchange.

    Raises:
        PreconditionFailed: 406
    """
    if HASH_HEADER in arguments and HASH_PROPERTY in arguments:
        raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
    named = arguments.get(HASH_PROPERTY)
    if named is not None and as_text(named) not in PROPERTIES:
        raise PreconditionFailed(f"Unsupported property: {as_text(named) or render(named)}")


def hashed(field: Field | None) -> str:
    """A header as a key; those without it are all alike."""
    if field is None:
        return ""
    text = as_text(field)
    if text is not None:
        return text
    number = as_integer(field)
    return str(number) if number is not None else render(field)


def hash_of(key: str) -> int:
    """Where on the ring a key stands; the same on every broker."""
    octets = key.encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(octets, digest_size=HASH_OCTETS).digest(), "big")


def places_of(name: str, count: int) -> list[int]:
    """Where on the ring a name stands, in order; each with room for the number of its owner."""
    octets = name.encode("utf-8", "surrogateescape")
    places: list[int] = []
    for number in range(count // PLACES):
        digest = blake2b(b"%b%d" % (octets, number), digest_size=HASH_OCTETS * PLACES).digest()
        places += [place << OWNER_BITS for place in DIGEST.unpack(digest)]
    places.sort()
    return places
