"""Code that reads numbers of the wire in two ways, one for each build: held against itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from unittest.mock import patch

from vouchmq.protocol import native
from vouchmq.protocol.errors import AmqpError

R = TypeVar("R")


@contextmanager
def reading(*, natively: bool) -> Iterator[None]:
    """Numbers are read as the compiled build does it, or as the interpreter does it."""
    with patch.object(native, "IS_NATIVE", natively):
        yield


def both_ways(function: Callable[..., R], *arguments: object) -> R:
    """What a function gives or raises, which must be the same both ways."""
    found: list[R] = []
    errors: list[AmqpError] = []
    for natively in (True, False):
        with reading(natively=natively):
            try:
                found.append(function(*arguments))
            except AmqpError as error:
                errors.append(error)
    if errors:
        assert not found, (errors, found)
        one, other = ((type(error), error.ids, str(error)) for error in errors)
        assert one == other
        raise errors[0]
    assert found[0] == found[1]
    return found[0]
