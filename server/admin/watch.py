"""`watch events`: what happens in a broker, told as it happens until the reader goes.

Each event is a row: when, its name, and what there is to know of it. A reader that does not keep up
loses events rather than have the broker keep them: the next row that it gets then says how many.

Must not know sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from vouchmq.server.admin.commands import Arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.broker.events import EventBus

MISSED: Final = "events.missed"


class WatchArguments(Arguments, frozen=True):
    """Which events: of this virtual host, whose names begin with one of these."""

    vhost: str | None = None
    prefixes: tuple[str, ...] = ()


class EventView(Struct, frozen=True, array_like=True):
    """One event; `time_ms` since 1970."""

    time_ms: int
    event: str
    facts: Mapping[str, object]


class WatchCommand:
    """Tells events.

    Args:
        events: what happens
        wall_ms: milliseconds since 1970
    """

    def __init__(self, events: EventBus, wall_ms: Callable[[], int]) -> None:
        self._events = events
        self._wall_ms = wall_ms

    def register(self, commands: ControlCommands) -> None:
        """Enter `watch events`."""
        commands.register("watch events", WatchArguments, self._watch)

    def _watch(self, wanted: WatchArguments, reply: Reply) -> None:
        missed = 0

        def heard(event: str, facts: dict[str, object]) -> None:
            nonlocal missed
            # What belongs to no virtual host concerns all of them.
            if wanted.vhost not in {None, facts.get("vhost", wanted.vhost)}:
                return
            if wanted.prefixes and not event.startswith(wanted.prefixes):
                return
            if reply.is_full:
                missed += 1
                return
            rows = [EventView(self._wall_ms(), event, facts)]
            if missed:
                rows.insert(0, EventView(self._wall_ms(), MISSED, {"count": missed}))
                missed = 0
            reply.send({"rows": rows})

        reply.send({"columns": list(EventView.__struct_fields__)})
        self._events.listen(heard)
        reply.when_gone(lambda: self._events.leave(heard))
