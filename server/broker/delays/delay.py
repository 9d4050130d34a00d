"""Delaying exchanges: what the x-delay header asks for, and where delayed messages are held.

A delaying exchange has a queue of its own that nobody can name. A message with a delay is routed
there instead of through the exchange's bindings, so everything that holds for messages in queues
holds for delayed ones: stored with the confirm they wait for, refused by a full disk, restored.
When its time has come a message leaves it as if it were published to the exchange just then.

Spec: DELAY-10 … DELAY-21
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.constants import (
    BASIC_PUBLISH,
)
from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import as_integer, as_text, render

if TYPE_CHECKING:
    from vouchmq.protocol.fields import Field, Table

X_DELAYED_MESSAGE: Final = "x-delayed-message"
X_DELAYED_TYPE: Final = "x-delayed-type"
X_DELAYED_EXCHANGE: Final = "x-delayed-exchange"
X_DELAY: Final = "x-delay"
MOST_DELAY_MS: Final = 315_360_000_000
# Line feeds are stripped from the names that clients give, so no queue of theirs is called that.
DELAY_QUEUE_PREFIX: Final = "\ndelayed\n"
FILTER_PREFIX: Final = "\nkeys\n"
_NUMBER: Final = re.compile(r"([+-]?)0*([0-9]+)(\.[0-9]*)?")
# Texts with more digits than this are too large anyway, and slow to read.
_MOST_DIGITS: Final = 40


def delay_queue_name(exchange: str) -> str:
    """The name of the queue that holds an exchange's delayed messages."""
    return DELAY_QUEUE_PREFIX + exchange


def is_hidden(name: str) -> bool:
    """Whether a queue serves an exchange and can be named by nobody."""
    return name.startswith("\n")


def filter_name(exchange: str) -> str:
    """The name of the queue that keeps the keys of a de-duplicating exchange."""
    return FILTER_PREFIX + exchange


def held_for(name: str) -> str | None:
    """The exchange whose delayed messages a queue of this name holds."""
    return name.removeprefix(DELAY_QUEUE_PREFIX) if name.startswith(DELAY_QUEUE_PREFIX) else None


def delay_ms(headers: Table | None) -> int:
    """How long a message with these headers is held, 0: not at all (DELAY-12)."""
    value = _number(headers.get(X_DELAY)) if headers else 0
    return value if 0 < value <= MOST_DELAY_MS else 0


def check_delay(headers: Table | None) -> None:
    """Refuse a delay of more than ten years.

    Raises:
        PreconditionFailed: 406

    Spec: DELAY-12
    """
    field = headers.get(X_DELAY) if headers else None
    value = _number(field)
    if field is not None and value > MOST_DELAY_MS:
        shown = as_text(field) or render(field)
        raise PreconditionFailed(
            f"invalid x-delay '{shown}': {{value_too_large,{value}}}", ids=BASIC_PUBLISH
        )


def _number(field: Field | None) -> int:
    """Integers of any width, texts that are numbers, floats without their fraction."""
    if field is None:
        return 0
    number = as_integer(field)
    if number is not None:
        return number
    if isinstance(field.value, float):
        return int(field.value) if math.isfinite(field.value) else 0
    match = _NUMBER.fullmatch(as_text(field) or "")
    return int(match[1] + match[2][:_MOST_DIGITS]) if match is not None else 0
