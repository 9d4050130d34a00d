"""A delayed message when its time has come: what it looks like to whoever gets it.

Spec: DELAY-13, DELAY-14
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vouchmq.protocol.constants import PERSISTENT_DELIVERY_MODE
from vouchmq.protocol.contents import (
    BLIND_COPY,
    made_alike,
    notes_of,
    property_block,
    with_properties,
)
from vouchmq.protocol.fields import Table, as_text, decode_shortstr, long_int
from vouchmq.protocol.properties import Properties, with_headers
from vouchmq.protocol.text import decode_text
from vouchmq.server.broker.delays.delay import X_DELAY, delay_ms

if TYPE_CHECKING:
    from vouchmq.server.broker.message import Message


class Undelayed(NamedTuple):
    """Its content with the delay negated, the keys and headers it is routed by."""

    raw: bytes
    keys: tuple[str, ...]
    headers: Table
    persistent: bool


def all_undelayed(same: list[Message]) -> tuple[Undelayed, list[bytes]]:
    """The first of messages that are the same (`runs_of_same`) as it leaves, and all of them."""
    due = undelayed(same[0])
    raws = [due.raw]
    if len(same) > 1:
        raws += made_alike(same[0][0], due.raw, (message[0] for message in same[1:]))
    return due, raws


def undelayed(message: Message) -> Undelayed:
    """Make of a held message the one that leaves."""
    raw, tail, _, _ = message
    block = property_block(raw)
    properties = Properties(block)
    headers = properties.headers or {}
    done = long_int(-delay_ms(headers))
    _, at = decode_shortstr(tail, 0)
    routing_key, _ = decode_shortstr(tail, at)
    copies = headers.get("CC")
    items = copies.value if copies is not None and isinstance(copies.value, tuple) else ()
    texts = (as_text(item) for item in items if not isinstance(item, int))
    blind = tuple(decode_text(octets) for kind, octets in notes_of(raw) if kind == BLIND_COPY)
    return Undelayed(
        with_properties(raw, with_headers(block, {X_DELAY: done}, without=frozenset())),
        (routing_key, *(text for text in texts if text is not None), *blind),
        {**headers, X_DELAY: done},
        properties.delivery_mode == PERSISTENT_DELIVERY_MODE,
    )
