"""Dead letters as the cases see them: queues that make them, and `x-death` taken apart.

The header's layout is part of the rules, so it is read with its types: nothing here repairs or
skips what does not look as it should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vouchmq.conformance.client import Channel
from vouchmq.conformance.events import Event
from vouchmq.conformance.expect import MismatchError, check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed, plain

# A time to live that ends within every case's patience, and one that never does.
SHORT_MS: Final = 100
NEVER_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Death:
    """One table of `x-death`: its fields in the order in which they stand there."""

    fields: Mapping[str, Plain]

    def __getitem__(self, name: str) -> object:
        return plain(self.fields[name])

    @property
    def layout(self) -> list[tuple[str, str]]:
        """Names and type octets, in order."""
        return [(name, _typed(value).kind) for name, value in self.fields.items()]

    @property
    def short(self) -> tuple[object, object, object]:
        """Queue, reason, count."""
        return self["queue"], self["reason"], self["count"]


def _typed(value: Plain) -> Typed:
    if not isinstance(value, Typed):
        raise MismatchError(f"{value!r} has lost its type")
    return value


def headers(event: Event) -> Mapping[str, Plain]:
    """The headers table with its types; empty without one."""
    table = event.properties.get("headers", {})
    if not isinstance(table, Mapping):
        raise MismatchError(f"headers are {table!r}")
    return table


def deaths(event: Event) -> list[Death]:
    """The tables of `x-death`, as they stand.

    Raises:
        MismatchError: there is no such header, or it is no array of tables.
    """
    array = headers(event).get("x-death")
    check(isinstance(array, Typed) and array.kind == "A", f"x-death is {array!r}")
    items = _typed(array).value
    out: list[Death] = []
    for item in items if isinstance(items, Sequence) else ():
        table = _typed(item)
        check(table.kind == "F", f"x-death holds {table!r}")
        out.append(Death(table.value if isinstance(table.value, Mapping) else {}))
    return out


def history(event: Event) -> list[tuple[object, object, object]]:
    """Queue, reason, count of each death, newest first."""
    return [death.short for death in deaths(event)]


def mortal(
    stage: Stage,
    channel: Channel,
    arguments: Table | None = None,
    *,
    durable: bool = False,
) -> tuple[str, str]:
    """A queue with these arguments, and the queue that gets its dead letters."""
    target = stage.queue(channel, label="dead", durable=durable)
    lead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    source = stage.queue(channel, arguments={**(arguments or {}), **lead}, durable=durable)
    return source, target


def fetch(channel: Channel, queue: str) -> Event:
    """The one message a queue comes to have."""
    channel.holds(queue, 1)
    event = channel.get(queue)
    equal(event.name, "basic.get_ok", f"get from {queue}")
    return event


def reject_head(channel: Channel, queue: str) -> None:
    """Get the head of a queue and reject it without requeue."""
    event = channel.get(queue, no_ack=False)
    equal(event.name, "basic.get_ok", f"get from {queue}")
    channel.reject(event.tag, requeue=False)


def kill(stage: Stage, channel: Channel, queue: str, body: str = "x") -> None:
    """Put one message into an empty queue and reject it."""
    stage.load(channel, queue, body)
    reject_head(channel, queue)
