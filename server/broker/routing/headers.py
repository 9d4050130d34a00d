"""Headers exchanges: a binding's arguments are compared with the message's headers.

Spec: EXCH-34, EXCH-50, EXCH-51, EXCH-52, EXCH-53
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import PreconditionFailed
from protocol.fields import Field, Table, as_text, header_equal, render, type_name
from server.broker.bindings import Binding

X_MATCH: Final = "x-match"
ALL: Final = "all"
ALL_WITH_X: Final = "all-with-x"
ANY: Final = "any"
ANY_WITH_X: Final = "any-with-x"

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


class HeadersRouter:
    """Bindings with their patterns, asked one after the other."""

    __slots__ = ("_patterns",)

    def __init__(self) -> None:
        self._patterns: dict[Binding, Pattern] = {}

    def validate(self, routing_key: str, arguments: Table) -> None:
        """Accept the four values of x-match, or none.

        Raises:
            PreconditionFailed: 406, another value or type.

        Spec: EXCH-52
        """
        field = arguments.get(X_MATCH)
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
        self._patterns[binding] = pattern_of(binding.arguments)

    def remove(self, binding: Binding) -> None:
        """Take out a binding that is in."""
        del self._patterns[binding]

    def match(self, keys: Sequence[str], headers: Table | None) -> Iterator[Binding]:
        """The matching bindings; keys do not count, no headers are an empty table (EXCH-53)."""
        table = headers or {}
        for binding, pattern in self._patterns.items():
            if pattern.matches(table):
                yield binding


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
