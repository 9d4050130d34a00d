"""Headers exchanges: a binding's arguments are compared with the message's headers.

Spec: EXCH-34, EXCH-50, EXCH-51, EXCH-52, EXCH-53
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import (
    Field,
    Table,
    as_text,
    header_equal,
    header_key,
    render,
    type_name,
)
from vouchmq.server.broker.exchanges.bindings import Binding, Destination

X_MATCH: Final = "x-match"
ALL: Final = "all"
ALL_WITH_X: Final = "all-with-x"
ANY: Final = "any"
ANY_WITH_X: Final = "any-with-x"

# A header's name and the key of its value.
Place = tuple[str, tuple[Hashable, ...]]
ANY_VALUE: Final = ()

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


@dataclass(slots=True, frozen=True)
class Pattern:
    """What one binding asks of the headers."""

    needs_all: bool
    wanted: tuple[tuple[str, Field], ...]

    def matches(self, headers: Table) -> bool:
        """Whether these headers satisfy the binding; nothing wanted satisfies all, never any."""
        found = (_has(headers, name, value) for name, value in self.wanted)
        return all(found) if self.needs_all else any(found)

    def places(self) -> list[Place]:
        """Under which the binding can be found, one for each header that it asks for."""
        return [
            (name, ANY_VALUE if field.kind == "V" else header_key(field))
            for name, field in self.wanted
        ]


class HeadersRouter:
    """Bindings with their patterns, found by what they ask for.

    A binding that needs all stands under one header that it asks for, one that needs any under
    each; so a message meets those bindings only that ask for a header it has.
    """

    __slots__ = ("_always", "_patterns", "_places")

    def __init__(self) -> None:
        self._patterns: dict[Binding, Pattern] = {}
        # By a header's name and the key of its value; with an empty key any value will do.
        self._places: dict[Place, dict[Binding, None]] = {}
        self._always: dict[Binding, None] = {}

    def validate(self, binding: Binding) -> None:
        """Accept the four values of x-match, or none.

        Raises:
            PreconditionFailed: 406, another value or type.

        Spec: EXCH-52
        """
        field = binding.arguments.get(X_MATCH)
        if field is None:
            return
        mode = as_text(field)
        if mode is None:
            raise PreconditionFailed(
                f"Invalid x-match field type {type_name(field)} (value {render(field)}); "
                "expected longstr"
            )
        if mode not in {ALL, ANY, ALL_WITH_X, ANY_WITH_X}:
            raise PreconditionFailed(
                f'Invalid x-match field value <<"{mode.translate(_ESCAPES)}">>; '
                "expected all, any, all-with-x, or any-with-x"
            )

    def add(self, binding: Binding) -> None:
        """Take in a binding that is not in yet."""
        pattern = self._patterns[binding] = pattern_of(binding.arguments)
        if not pattern.wanted:
            if pattern.needs_all:
                self._always[binding] = None
            return
        places = pattern.places()
        if pattern.needs_all:
            # A value tells more bindings apart than a name does, and a rare one most.
            places = [min(places, key=lambda place: (not place[1], self._count_at(place)))]
        for place in places:
            self._places.setdefault(place, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        """Take out a binding that is in."""
        pattern = self._patterns.pop(binding)
        self._always.pop(binding, None)
        for place in pattern.places():
            bindings = self._places.get(place, {})
            if binding in bindings:
                del bindings[binding]
                if not bindings:
                    del self._places[place]

    def drop_destination(self, destination: Destination) -> None:
        """They are removed one by one."""

    def match(self, keys: Sequence[str], headers: Table | None) -> Iterator[Binding | None]:
        """The matching bindings; keys do not count, no headers are an empty table (EXCH-53).

        None for each that was looked at and does not match.
        """
        table = headers or {}
        yield from self._always
        places, patterns = self._places, self._patterns
        if not places:
            return
        asked: dict[Binding, None] = {}
        for name, field in table.items():
            for place in ((name, header_key(field)), (name, ANY_VALUE)):
                for binding in places.get(place, ()):
                    if binding not in asked:
                        asked[binding] = None
                        yield binding if patterns[binding].matches(table) else None

    def _count_at(self, place: Place) -> int:
        return len(self._places.get(place, ()))


def pattern_of(arguments: Table) -> Pattern:
    """The pattern that valid binding arguments stand for.

    Spec: EXCH-50
    """
    mode = as_text(arguments.get(X_MATCH)) or ALL
    counts_x = mode in {ALL_WITH_X, ANY_WITH_X}
    wanted = tuple(
        (name, field)
        for name, field in arguments.items()
        if name != X_MATCH and (counts_x or not name.startswith("x-"))
    )
    return Pattern(mode in {ALL, ALL_WITH_X}, wanted)


def _has(headers: Table, name: str, wanted: Field) -> bool:
    header = headers.get(name)
    if header is None:
        return False
    # A void asks only that the header be there (EXCH-51).
    return wanted.kind == "V" or header_equal(header, wanted)
