"""What a death does to a message: its headers, its keys, and the history that ends cycles.

Everything here works on octets and is a function of them, so that messages that look alike are
rewritten once. Must not know queues as objects, nor where a dead letter goes.

Spec: DLX-06, DLX-13 … DLX-22
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.protocol.constants import PERSISTENT_DELIVERY_MODE
from vouchmq.protocol.contents import (
    BLIND_COPY,
    DEATH,
    Note,
    made_alike,
    notes_of,
    property_block,
    remembered,
    with_notes,
    with_properties,
)
from vouchmq.protocol.fields import (
    Field,
    Table,
    as_integer,
    as_text,
    decode_shortstr,
    encode_table,
    long_int,
    longstr,
    timestamp,
)
from vouchmq.protocol.properties import (
    Properties,
    with_entries,
    with_headers,
    without_expiration,
)
from vouchmq.protocol.text import decode_text, encode_text
from vouchmq.server.broker.queues.settlement import DeadLetterReason

if TYPE_CHECKING:
    from vouchmq.server.broker.message import Message

X_DEATH: Final = "x-death"
FIRST: Final = "x-first-death-"
LAST: Final = "x-last-death-"
ADDED: Final = (X_DEATH, FIRST, LAST)
_MOST: Final = (1 << 63) - 1  # what a client says may be that much already
_REASONS: Final = tuple(DeadLetterReason)
# What is known of a block with a long x-death is some hundred objects, all of which the garbage
# collector looks at: 4,096 such blocks stop everything for a quarter of a second.
MOST_REWRITTEN: Final = 256
_NOTHING: Final[frozenset[str]] = frozenset()


class Attempt(NamedTuple):
    """A dead letter on its way: why and when it died, and the queues that have taken it."""

    reason: DeadLetterReason
    time_s: int
    taken_by: frozenset[str] = frozenset()


class Death(NamedTuple):
    """What is the same for all messages that die together.

    `routing_key` is the dead letter key, None when there is none; `time_s` the wall clock.
    """

    queue: str
    reason: DeadLetterReason
    exchange: str
    routing_key: str | None
    time_s: int
    heeds_clients: bool = True


class DeadLetter(NamedTuple):
    """A message after its death: its content, the keys it is routed by, whether it is persistent.

    `seen` holds the queues in which it has died since a client published it, except those behind
    a rejection: to go there again would be a cycle (DLX-20). `hops` counts its deaths, as `x-death`
    does.
    """

    raw: bytes
    keys: tuple[str, ...]
    headers: Table | None
    seen: frozenset[str]
    persistent: bool
    hops: int = 0


def dead_letter(message: Message, death: Death) -> DeadLetter:
    """Make the dead letter of a message."""
    raw, tail, _, _ = message
    exchange, at = decode_shortstr(tail, 0)
    routing_key, _ = decode_shortstr(tail, at)
    notes = notes_of(raw)
    look = _rewritten(property_block(raw), death, exchange, routing_key)
    history = _history(notes, death)
    blind = [] if death.routing_key is not None else [n for n in notes if n[0] == BLIND_COPY]
    first = with_notes(with_properties(raw, look.block), history + blind)
    if death.routing_key is not None:
        keys: tuple[str, ...] = (death.routing_key,)
    else:
        keys = (routing_key, *look.copies, *(decode_text(key) for _, key in blind))
    seen = _seen(history, death)
    return DeadLetter(first, keys, look.headers, seen, look.persistent, look.hops)


def dead_letters(same: list[Message], death: Death) -> tuple[DeadLetter, list[bytes]]:
    """The dead letter of the first of messages that are the same (`runs_of_same`), and of all."""
    first = dead_letter(same[0], death)
    raws = [first.raw]
    if len(same) > 1:
        raws += made_alike(same[0][0], first.raw, (message[0] for message in same[1:]))
    return first, raws


class _Rewritten(NamedTuple):
    """What is the same for all messages that have the same properties."""

    block: bytes
    copies: tuple[str, ...]
    headers: Table | None
    persistent: bool
    hops: int


def _history(notes: list[Note], death: Death) -> list[Note]:
    """The deaths of a message, newest first, one for each queue and reason (DLX-21)."""
    newest = (DEATH, bytes((_REASONS.index(death.reason),)) + encode_text(death.queue))
    return [newest] + [note for note in notes if note[0] == DEATH and note != newest]


def _seen(history: list[Note], death: Death) -> frozenset[str]:
    if death.reason is DeadLetterReason.REJECTED:
        return _NOTHING
    seen: set[bytes] = set()
    for _, octets in history:
        if _REASONS[octets[0]] is DeadLetterReason.REJECTED:
            break
        seen.add(octets[1:])
    return frozenset(decode_text(name) for name in seen)


def _rewrite(block: bytes, death: Death, exchange: str, routing_key: str) -> _Rewritten:
    """The property block of a dead letter, and what is to be known of it."""
    properties = Properties(block)
    headers = properties.headers or {}
    copies = _copies(headers)
    persistent = properties.delivery_mode == PERSISTENT_DELIVERY_MODE
    if not any(key == "CC" or key.startswith(ADDED) for key in headers):
        # The usual one: its first death, and nothing of its own has to go.
        added, entries = _first_death(death, exchange, routing_key, properties.expiration)
        written = without_expiration(with_entries(block, entries))
        return _Rewritten(written, copies, headers | added, persistent, 1)
    added = _added(headers, properties.expiration, death, exchange, routing_key)
    without = {"CC"} if death.routing_key is not None else _NOTHING
    written = without_expiration(with_headers(block, added, without=without))
    tables = (event.value for event in _events(added[X_DEATH]))
    hops = sum(as_integer(one.get("count")) or 0 for one in tables if isinstance(one, dict))
    return _Rewritten(written, copies, Properties(written).headers, persistent, hops)


def _added(
    headers: Table, expiration: str | None, death: Death, exchange: str, routing_key: str
) -> Table:
    """The headers of this death; those of the first one stay as they are."""
    added: Table = {X_DEATH: _x_death(headers, expiration, death, exchange, routing_key)}
    facts = {"queue": death.queue, "reason": death.reason.value, "exchange": exchange}
    if not any(FIRST + name in headers for name in facts):
        added |= {FIRST + name: longstr(text) for name, text in facts.items()}
    return added | {LAST + name: longstr(text) for name, text in facts.items()}


@lru_cache(MOST_REWRITTEN)
def _first_death(
    death: Death, exchange: str, routing_key: str, expiration: str | None
) -> tuple[Table, bytes]:
    """The headers that a message without any of them gets, also encoded: many share these."""
    added = _added({}, expiration, death, exchange, routing_key)
    return added, encode_table(added)[4:]


_rewritten = remembered(_rewrite, MOST_REWRITTEN)


def _x_death(
    headers: Table, expiration: str | None, death: Death, exchange: str, routing_key: str
) -> Field:
    """The x-death header with this death in front (DLX-17, DLX-18)."""
    events = _events(headers.get(X_DEATH)) if death.heeds_clients else []
    for event in events:
        table = event.value
        if not isinstance(table, dict):
            continue
        same_queue = as_text(table.get("queue")) == death.queue
        if same_queue and as_text(table.get("reason")) == death.reason.value:
            events.remove(event)
            count = as_integer(table.get("count")) or 0
            again = Field("F", {**table, "count": long_int(min(count + 1, _MOST))})
            return Field("A", (again, *events))
    keys = tuple(longstr(key) for key in (routing_key, *_copies(headers)))
    table = {} if expiration is None else {"original-expiration": longstr(expiration)}
    table |= {
        "count": long_int(1),
        "reason": longstr(death.reason.value),
        "queue": longstr(death.queue),
        "time": timestamp(death.time_s),
        "exchange": longstr(exchange),
        "routing-keys": Field("A", keys),
    }
    return Field("A", (Field("F", table), *events))


def _events(field: Field | None) -> list[Field]:
    """The entries of an x-death header; none when it is malformed.

    Brokers of old have written an entry without a count for each death: the first of a queue and
    reason stands for all of them, and they are its count when it has none of its own.

    Spec: DLX-22
    """
    if field is None or field.kind != "A" or not isinstance(field.value, tuple):
        return []
    tables = [event.value for event in field.value if isinstance(event, Field)]
    first: dict[tuple[str | None, str | None], Table] = {}
    entries: Counter[tuple[str | None, str | None]] = Counter()
    for table in tables:
        if not isinstance(table, dict) or not _is_event(table):
            return []
        key = as_text(table["queue"]), as_text(table["reason"])
        entries[key] += 1
        first.setdefault(key, table)
    return [
        Field("F", table if "count" in table else {**table, "count": long_int(entries[key])})
        for key, table in first.items()
    ]


def _is_event(table: Table) -> bool:
    return (
        as_text(table.get("queue")) is not None
        and as_text(table.get("reason")) is not None
        and ("count" not in table or as_integer(table["count"]) is not None)
    )


def _copies(headers: Table) -> tuple[str, ...]:
    """The further routing keys in CC; what is no text does not count (PUB-10)."""
    field = headers.get("CC")
    if field is None or not isinstance(field.value, tuple):
        return ()
    texts = (as_text(item) for item in field.value if isinstance(item, Field))
    return tuple(text for text in texts if text is not None)
