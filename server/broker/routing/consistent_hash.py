"""The consistent-hash exchange: each message to one binding, the same key always to the same.

The binding key is a weight. Every binding stands on a ring at as many points as it has weight,
times some; a key goes to the next point behind its own hash. So a binding that is added takes keys
from all others and moves none between them, and gives them back when it goes.

Spec: REDELIVER-52
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

from protocol.errors import PreconditionFailed
from protocol.fields import Field, Table, as_integer, as_text, render
from server.broker.bindings import Binding

HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
PROPERTIES: Final = ("message_id", "correlation_id", "timestamp")
# Points on the ring for each unit of weight: shares of equal weights then differ by some percent.
POINTS: Final = 40
# More would keep the broker from its work while it puts them on the ring (LIMIT-23).
MOST_WEIGHT: Final = 1000
WEIGHT: Final = re.compile(r"[+-]?[0-9]+")
# Where the publisher puts properties among the headers, for those who route by them.
PROPERTY_PREFIX: Final = "\n"


class ConsistentHashRouter:
    """Bindings on a ring.

    Args:
        arguments: of the exchange; they say what is hashed instead of the routing key
    """

    __slots__ = ("_header", "_owners", "_points")

    def __init__(self, arguments: Table) -> None:
        named = as_text(arguments.get(HASH_PROPERTY))
        self._header = as_text(arguments.get(HASH_HEADER))
        if named is not None:
            self._header = PROPERTY_PREFIX + named
        self._points: list[int] = []
        self._owners: list[Binding] = []

    def validate(self, routing_key: str, arguments: Table) -> None:
        """Refuse a binding key that is no weight.

        Raises:
            PreconditionFailed: 406
        """
        del arguments
        if not WEIGHT.fullmatch(routing_key):
            shown = f'<<"{routing_key}">>' if routing_key else "<<>>"
            raise PreconditionFailed(f"The binding key must be an integer: {shown}")
        if int(routing_key) < 1:
            raise PreconditionFailed("The binding key must be greater than 0")
        if int(routing_key) > MOST_WEIGHT:
            raise PreconditionFailed(f"The binding key must not be greater than {MOST_WEIGHT}")

    def add(self, binding: Binding) -> None:
        """Take in a binding that is not in yet."""
        pairs = list(zip(self._points, self._owners, strict=True))
        pairs += [(point, binding) for point in points_of(binding)]
        # Points that fall together belong to whoever comes first by name, on every broker alike.
        pairs.sort(key=lambda pair: (pair[0], pair[1].destination))
        self._points = [point for point, _ in pairs]
        self._owners = [owner for _, owner in pairs]

    def remove(self, binding: Binding) -> None:
        """Take out a binding that is in."""
        kept = [at for at, owner in enumerate(self._owners) if owner is not binding]
        self._points = [self._points[at] for at in kept]
        self._owners = [self._owners[at] for at in kept]

    def match(self, keys: Sequence[str], headers: Table | None) -> Iterator[Binding]:
        """The binding of each key, or of what is hashed instead of them."""
        if not self._points:
            return
        if self._header is not None:
            keys = (hashed(headers.get(self._header) if headers else None),)
        for key in keys:
            at = bisect_left(self._points, hash_of(key))
            yield self._owners[at % len(self._owners)]


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
    return int.from_bytes(blake2b(octets, digest_size=8).digest(), "big")


def points_of(binding: Binding) -> list[int]:
    """Where on the ring a binding stands."""
    name = f"{binding.kind}\n{binding.destination}\n"
    return [hash_of(f"{name}{number}") for number in range(int(binding.routing_key) * POINTS)]
