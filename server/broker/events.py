"""What happens in a broker, for whoever watches it: things come and go.

    VHost, Connection, Channel, Alarms ── tell ──▶ EventBus ──▶ everybody who listens, at once

The names are those of RabbitMQ's event exchange (`queue.created`, `connection.closed`, …). Of
messages nothing is told: that is what the ledger is for. While nobody listens, an event costs a
call; who listens must not take long, nor raise.

Must not know who listens.
"""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[str, dict[str, object]], None]


class EventBus:
    """Passes events on to those who listen."""

    __slots__ = ("_listeners", "is_heard")

    def __init__(self) -> None:
        self._listeners: dict[Listener, None] = {}
        self.is_heard = False  # whether anybody listens: who tells often looks first

    def tell(self, event: str, **facts: object) -> None:
        """Something has happened."""
        for listener in tuple(self._listeners):
            listener(event, facts)

    def listen(self, listener: Listener) -> None:
        """Have `listener` called with the name and the facts of all that happens from now on."""
        self._listeners[listener] = None
        self.is_heard = True

    def leave(self, listener: Listener) -> None:
        """It is not called any more."""
        self._listeners.pop(listener, None)
        self.is_heard = bool(self._listeners)
