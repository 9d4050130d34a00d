"""What is told of a connection that comes or goes, see `server/broker/events.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

if TYPE_CHECKING:
    from vouchmq.protocol.errors import SoftError
    from vouchmq.server.auth.users import User
    from vouchmq.server.broker.events import EventBus
    from vouchmq.server.runtime.context import BrokerContext

log = structlog.get_logger(__name__)


class Named(Protocol):
    """Whatever has a name."""

    name: str


class Subject(Protocol):
    """A connection that has logged in."""

    user: User

    @property
    def label(self) -> str:
        """Its name, from the addresses of both ends."""

    @property
    def client_name(self) -> str:
        """What the client calls it."""

    @property
    def vhost(self) -> Named:
        """Its virtual host."""


def tell_opened(connection: Subject, context: BrokerContext) -> None:
    """Tell and log that a connection is open."""
    tell("connection.created", connection, context.events)
    if context.logs_connections:
        log.info(
            "connection.opened",
            connection=connection.label,
            user=connection.user.name,
            vhost=connection.vhost.name,
            client_name=connection.client_name,
        )


def tell(event: str, connection: Subject, events: EventBus) -> None:
    """Tell an event of a connection."""
    if events.is_heard:
        events.tell(
            event,
            name=connection.label,
            user=connection.user.name,
            vhost=connection.vhost.name,
            client_name=connection.client_name,
        )


def log_lost(connection: Subject, reason: str, duration_ms: int, *, was_open: bool) -> None:
    """Log that the socket is gone without a close.

    Health checks and load balancers come and go without an answer to connection.start.
    """
    (log.warning if was_open else log.debug)(
        "connection.lost", connection=connection.label, reason=reason, duration_ms=duration_ms
    )


def log_channel_failed(connection: Subject, number: int, error: SoftError, last_tag: int) -> None:
    """Log that a channel is closed with an error."""
    log.warning(
        "channel.closed",
        connection=connection.label,
        channel=number,
        reply_code=error.code,
        reason=error.reply_text,
        last_tag=last_tag,
    )
