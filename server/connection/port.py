"""A connection, as its channels see it, and as its other parts do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.protocol.errors import SoftError
    from vouchmq.protocol.reader import Event
    from vouchmq.protocol.runs import Piece
    from vouchmq.server.auth.users import User
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.connection.outbox import Outbox
    from vouchmq.server.connection.wire import Wire
    from vouchmq.server.ledger.publish_numbers import PublishNumbers
    from vouchmq.server.runtime.context import BrokerContext


class ChannelWire(Protocol):
    """A socket, as far as a channel is concerned."""

    name: str

    @property
    def is_swamped(self) -> bool:
        """True while the client leaves more unread than it may."""


class ChannelHost(Protocol):
    """What a channel may ask of its connection.

    `frame_max` 0 is no limit.
    """

    context: BrokerContext
    outbox: Outbox
    user: User
    vhost: VHost[Queue]
    frame_max: int
    uncommitted_bytes: int
    publish_numbers: PublishNumbers

    @property
    def wire(self) -> ChannelWire:
        """Where what is sent goes."""

    def has_capability(self, name: str) -> bool:
        """What the client said it can do (CONN-14)."""

    # Replies

    def hold_reply(self, frame: bytes, lsn: int) -> None:
        """Send this reply once `lsn` is on disk; until then nothing further is done (GEN-08)."""

    def send_behind_replies(self, *pieces: Piece) -> None:
        """Send at once, but not before a reply that is being held."""

    # Work

    def put_off(self, event: Event) -> None:
        """Take this event, or what is left of one, in a later turn, and nothing before (GEN-08)."""

    def go_on_later(self, number: int, job: Callable[[], None]) -> None:
        """Do the rest of a method in a later turn, unless its channel is closed by then."""

    # Ends

    def fail_channel(self, number: int, error: SoftError) -> None:
        """Close a channel with an error, whether a method of its client has made it or not."""

    def storage_refused(self, first_lsn: int) -> None:
        """Nothing from this LSN on was stored: say so to whoever hoped for it (CONF-12, TX-09)."""


class ConnectionPort(ChannelHost, Protocol):
    """What a part of a connection may ask of it.

    `user` and `vhost` are there from connection.open-ok on.
    """

    wire: Wire

    @property
    def client_name(self) -> str:
        """What the client calls this connection; "" if it does not say (CONN-14)."""

    @property
    def has_consumers(self) -> bool:
        """True when any of its channels consumes from a queue."""

    @property
    def has_unfinished(self) -> bool:
        """True while a content has begun to come in, and not ended."""

    @property
    def awaits_commit(self) -> bool:
        """True while its client waits for a reply or a confirm of what is not safe yet."""

    def limit_unsent(self, *, is_tight: bool) -> None:
        """What may wait for the client: less while memory is tight."""
