"""Where a consumer of a stream wants to start, and what of it: its arguments, checked.

Must not know streams, nor consumers.

Spec: STREAM-20, STREAM-22
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.contents import HAS_HEADERS, property_block, remembered
from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import INTEGER_KINDS, Field, as_text, type_name
from vouchmq.protocol.properties import Properties

if TYPE_CHECKING:
    from vouchmq.protocol.fields import Table
    from vouchmq.server.broker.message import Message

OFFSET: Final = "x-stream-offset"
FILTER: Final = "x-stream-filter"
MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
FILTER_VALUE: Final = "x-stream-filter-value"

# `last` starts at most so many messages before the end.
LAST_MESSAGES: Final = 256
_INTERVAL: Final = re.compile(r"([0-9]{1,18})([YMDhms])", re.ASCII)
# As RabbitMQ counts: a year has 365 days, a month 30.
_UNIT_S: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3600, "m": 60, "s": 1}
# An offset or moment beyond all others.
ENDLESS: Final = 1 << 62


@remembered
def filter_values(block: bytes) -> frozenset[bytes]:
    """The filter values of a property block; none: it is unfiltered (STREAM-22)."""
    headers = Properties(block).headers or {}
    field = headers.get(FILTER_VALUE)
    return texts_of(field) or frozenset() if field is not None else frozenset()


def texts_of(field: Field) -> frozenset[bytes] | None:
    """A string, or the strings of an array; None if it is neither."""
    if field.kind == "S" and isinstance(field.value, bytes):
        return frozenset((field.value,))
    if field.kind != "A" or not isinstance(field.value, tuple):
        return None
    items = [item for item in field.value if isinstance(item, Field) and item.kind == "S"]
    if len(items) != len(field.value):
        return None
    return frozenset(item.value for item in items if isinstance(item.value, bytes))


class Filter:
    """Which messages a consumer wants (STREAM-22).

    Args:
        values: one of them must be the message's
        match_unfiltered: those without a value are wanted, too
    """

    __slots__ = ("_match_unfiltered", "_values")

    def __init__(self, values: frozenset[bytes], *, match_unfiltered: bool) -> None:
        self._values = values
        self._match_unfiltered = match_unfiltered

    def wants(self, message: Message) -> bool:
        """Whether the consumer gets this one."""
        raw = message[0]
        if not raw[HAS_HEADERS[0]] & HAS_HEADERS[1]:
            return self._match_unfiltered
        values = filter_values(property_block(raw))
        return bool(values & self._values) if values else self._match_unfiltered


@dataclass(slots=True, frozen=True)
class Start:
    """Where to start: one of `offset`, `last_count`, `wall_ms` and `ago_ms`, else the next message.

    Args:
        offset: that one, or the nearest there is
        last_count: so many messages before the end
        wall_ms: what has arrived since then, by the time of day
        ago_ms: what has arrived within so long
        filter: which messages are wanted, None: all
    """

    offset: int | None = None
    last_count: int | None = None
    wall_ms: int | None = None
    ago_ms: int | None = None
    filter: Filter | None = None


def interval_ms(text: str) -> int | None:
    """How long `7D`, `1h` and the like are; None if the text is no interval.

    Spec: STREAM-20, QUEUE-55
    """
    match = _INTERVAL.fullmatch(text)
    return None if match is None else min(int(match[1]) * _UNIT_S[match[2]] * 1000, ENDLESS)


def start_of(queue: str, arguments: Table) -> Start:
    """What the arguments of a consume ask for; `queue` is the {Q} of the texts.

    Raises:
        PreconditionFailed: 406, naming the argument at fault.

    Spec: STREAM-20, STREAM-22
    """
    wanted = _filter_of(queue, arguments)
    field = arguments.get(OFFSET)
    if field is None:
        return Start(filter=wanted)
    value, text = field.value, as_text(field)
    if text is not None:
        return _start_of_text(queue, text, wanted)
    if field.kind == "T" and isinstance(value, int):
        return Start(wall_ms=min(value * 1000, ENDLESS), filter=wanted)
    if field.kind in INTEGER_KINDS and isinstance(value, int):
        if value < 0:
            return Start(last_count=-value, filter=wanted)
        return Start(offset=value, filter=wanted)
    raise PreconditionFailed(
        f"invalid arg '{OFFSET}' for {queue}: {{unacceptable_type,{type_name(field)}}}"
    )


def _start_of_text(queue: str, text: str, wanted: Filter | None) -> Start:
    if text == "next":
        return Start(filter=wanted)
    if text == "first":
        return Start(offset=0, filter=wanted)
    if text == "last":
        return Start(last_count=LAST_MESSAGES, filter=wanted)
    ago_ms = interval_ms(text)
    if ago_ms is None:
        raise PreconditionFailed(
            f"invalid arg '{OFFSET}' for {queue}: \"unsupported offset '{text}'\""
        )
    return Start(ago_ms=ago_ms, filter=wanted)


def _filter_of(queue: str, arguments: Table) -> Filter | None:
    unfiltered = arguments.get(MATCH_UNFILTERED)
    if unfiltered is not None and unfiltered.kind != "t":
        raise _bad(queue, MATCH_UNFILTERED, unfiltered)
    field = arguments.get(FILTER)
    if field is None:
        return None
    values = texts_of(field)
    if values is None:
        raise _bad(queue, FILTER, field)
    match_unfiltered = unfiltered is not None and bool(unfiltered.value)
    return Filter(values, match_unfiltered=match_unfiltered)


def _bad(queue: str, name: str, field: Field) -> PreconditionFailed:
    why = f"{{unacceptable_type,{type_name(field)}}}"
    return PreconditionFailed(f"invalid arg '{name}' for {queue}: {why}")
