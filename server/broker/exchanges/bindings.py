"""Bindings of one vhost: found by the whole tuple, by source, and by destination.

All bindings from one exchange to one queue or exchange make a link, and a deletion takes out links:
all that lead from an exchange in one step, and each that leads to an exchange or queue in one,
however many bindings there are. Must not know how an exchange type matches.

Spec: EXCH-20
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Literal

from vouchmq.protocol.fields import Field, Table, encode_table

DestinationKind = Literal["queue", "exchange"]
# Source, kind and name of the destination, routing key, arguments in canonical octets.
Identity = tuple[str, DestinationKind, str, str, bytes]
Destination = tuple[DestinationKind, str]
# Routing key, with the arguments in canonical octets if there are any.
Key = str | tuple[str, bytes]


class Link:
    """The bindings from one exchange to one queue or exchange, by routing key and arguments.

    What the router of the exchange may still name of one that `is_gone` matches nothing.
    """

    __slots__ = ("bindings", "destination", "is_gone", "source")

    def __init__(self, source: str, destination: Destination) -> None:
        self.source = source
        self.destination = destination
        self.bindings: dict[Key, Binding] = {}
        self.is_gone = False


UNLINKED: Final = Link("", ("queue", ""))
"""What a binding belongs to that nobody has put in."""


@dataclass(slots=True, eq=False)
class Binding:
    """One way from an exchange to a queue or to another exchange.

    Compared by identity: `Bindings` holds at most one object per tuple. `number` is given in the
    order of binding.
    """

    source: str
    kind: DestinationKind
    destination: str
    routing_key: str
    arguments: Table
    link: Link = field(default=UNLINKED, init=False, repr=False)
    number: int = field(default=0, init=False, repr=False)

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

    @property
    def key(self) -> Key:
        """What tells this binding from all others of its link."""
        return key_of(self.routing_key, _canonical(self.arguments))


in_order: Final = attrgetter("number")


class Bindings:
    """The bindings of a vhost. Iteration is in the order of binding."""

    __slots__ = ("_by_destination", "_by_source", "_number")

    def __init__(self) -> None:
        # Dictionaries serve as sets that keep their order, which a simulation must repeat. By
        # destination there may also be links from exchanges that are gone, for a while.
        self._by_source: dict[str, dict[Destination, Link]] = {}
        self._by_destination: dict[Destination, dict[str, Link]] = {}
        self._number = 0

    def __len__(self) -> int:
        return sum(map(len, (link.bindings for link in self._links())))

    def __iter__(self) -> Iterator[Binding]:
        return iter(bindings_in(self._links()))

    def _links(self) -> Iterator[Link]:
        return (link for links in self._by_source.values() for link in links.values())

    def each(self, source: str | None = None) -> Iterator[Binding]:
        """All bindings, or those of one source, by source and destination: one at a step.

        What is bound meanwhile may be missing; what is gone by its turn is left out. So whoever
        lists very many can let others change them in between (LIMIT-23).
        """
        for name in list(self._by_source) if source is None else [source]:
            for link in list(self._by_source.get(name, {}).values()):
                for key, binding in list(link.bindings.items()):
                    if self._has(link) and link.bindings.get(key) is binding:
                        yield binding

    def _has(self, link: Link) -> bool:
        return self._by_source.get(link.source, {}).get(link.destination) is link

    def find(self, identity: Identity) -> Binding | None:
        """The binding with exactly this tuple."""
        source, kind, name, routing_key, arguments = identity
        link = self._by_source.get(source, {}).get((kind, name))
        return link.bindings.get(key_of(routing_key, arguments)) if link is not None else None

    def add(self, binding: Binding) -> bool:
        """Take `binding` in; False, and no change, when its tuple is there already."""
        destination: Destination = (binding.kind, binding.destination)
        links = self._by_source.setdefault(binding.source, {})
        link = links.get(destination)
        if link is None:
            link = links[destination] = Link(binding.source, destination)
            self._by_destination.setdefault(destination, {})[binding.source] = link
        if link.bindings.setdefault(binding.key, binding) is not binding:
            return False
        binding.link = link
        binding.number = self._number = self._number + 1
        return True

    def remove(self, binding: Binding) -> bool:
        """Take `binding` out; False when it is not in."""
        link = self._by_source.get(binding.source, {}).get((binding.kind, binding.destination))
        if link is None or link.bindings.pop(binding.key, None) is None:
            return False
        if not link.bindings:
            self.cut([link])
        return True

    def cut(self, links: Iterable[Link]) -> None:
        """Take links out, with all their bindings."""
        for link in links:
            of_source = self._by_source[link.source]
            del of_source[link.destination]
            if not of_source:
                del self._by_source[link.source]
            self.forget(link)

    def cut_from(self, exchange: str) -> dict[Destination, Link]:
        """Take out all links that lead from an exchange; each is to be given to `forget`."""
        return self._by_source.pop(exchange, {})

    def forget(self, link: Link) -> None:
        """Let go of a link that is out."""
        link.is_gone = True
        of_destination = self._by_destination.get(link.destination, {})
        if of_destination.get(link.source) is link:
            del of_destination[link.source]
            if not of_destination:
                del self._by_destination[link.destination]

    def is_source(self, exchange: str) -> bool:
        """Whether any binding leads from this exchange."""
        return exchange in self._by_source

    def is_destination(self, kind: DestinationKind, name: str) -> bool:
        """Whether any binding leads to this queue or exchange."""
        return bool(self.links_to(kind, name))

    def links_to(self, kind: DestinationKind, name: str) -> list[Link]:
        """The links that lead to this queue or exchange."""
        links = self._by_destination.get((kind, name), {}).values()
        return [link for link in links if self._has(link)]

    def from_source(self, exchange: str) -> list[Binding]:
        """The bindings that lead from this exchange."""
        return bindings_in(self._by_source.get(exchange, {}).values())

    def to_destination(self, kind: DestinationKind, name: str) -> list[Binding]:
        """The bindings that lead to this queue or exchange."""
        return bindings_in(self.links_to(kind, name))


def key_of(routing_key: str, arguments: bytes) -> Key:
    """The key of a binding in its link; most have no arguments, which spares a tuple."""
    return (routing_key, arguments) if arguments else routing_key


def bindings_in(links: Iterable[Link]) -> list[Binding]:
    """The bindings of some links, in the order of binding."""
    return sorted((each for link in links for each in link.bindings.values()), key=in_order)


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
