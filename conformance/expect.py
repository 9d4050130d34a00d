"""What a case says when it judges: small checks that raise `MismatchError` with both sides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

POLL_S: Final = 0.02
PATIENCE_S: Final = 10.0

Text: TypeAlias = "str | None"
_Value = TypeVar("_Value")


class MismatchError(Exception):
    """The broker did something else than the rule says."""


class LateError(MismatchError):
    """What the rule says came later than it allows, as it also does where the machine stood still.

    The case is tried again: a broker that is late by its own doing is late each time.
    """


class SkipError(Exception):
    """The case cannot be judged here; the message says what it needs."""


def check(claim: bool, otherwise: str) -> None:
    """Fail with `otherwise` unless the claim holds."""
    if not claim:
        raise MismatchError(otherwise)


def equal(got: object, wanted: object, what: str) -> None:
    """Fail unless both are equal."""
    if got != wanted:
        raise MismatchError(f"{what}: got {got!r}, wanted {wanted!r}")


def within(took_s: float, limit_s: float, what: str) -> None:
    """Fail as late if this took longer than the limit."""
    if took_s > limit_s:
        raise LateError(f"{what}: after {took_s:.3f} s, {limit_s} s are allowed")


class Starting(str):
    """A reply text of which only the beginning is laid down."""

    __slots__ = ()


def says(got: str, wanted: Text, what: str) -> None:
    """Fail unless the text is the wanted one; a `Starting` needs only its beginning."""
    if isinstance(wanted, Starting):
        check(got.startswith(wanted), f"{what}: got {got!r}, wanted {str(wanted)!r} and more")
    elif wanted is not None:
        equal(got, wanted, what)


def eventually(
    look: Callable[[], _Value], wanted: _Value, what: str, patience_s: float = PATIENCE_S
) -> None:
    """Look again and again until the wanted value is seen; fail when patience ends."""
    deadline = time.monotonic() + patience_s
    while (got := look()) != wanted:
        if time.monotonic() > deadline:
            raise MismatchError(f"{what}: still {got!r} after {patience_s} s, wanted {wanted!r}")
        time.sleep(POLL_S)
