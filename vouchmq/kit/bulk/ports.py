"""A bulk connection, as its channels see it, and a channel, as a publish in progress does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.kit.bulk.errors import BulkClosed
    from vouchmq.kit.bulk.frames import Inbox


class ConnectionPort(Protocol):
    """What may be asked of the connection that a channel is on: see `BulkConnection`."""

    frame_max: int
    heartbeat_s: int
    blocked_reason: str | None

    @property
    def read_timeout_s(self) -> float:
        """How long an answer may take, or the broker may take no bytes."""

    @property
    def is_blocked(self) -> bool:
        """True while the broker takes no publishes (FLOW-10)."""

    @property
    def ended(self) -> BulkClosed | None:
        """Why the connection can be used no more; None while it can."""

    def write(self, data: bytes) -> None:
        """Send whole frames, in the order of the calls."""

    def poll(self, timeout_s: float) -> None:
        """Read what has come, waiting for it at most `timeout_s`; hand it to the channels."""

    def poll_until(
        self, is_done: Callable[[], bool], timeout_s: float, *, is_quiet: bool = False
    ) -> bool:
        """Poll until something is true; False when the time is over."""

    def beat(self) -> None:
        """Send a heartbeat if one is due, and read nothing."""

    def close(self) -> None:
        """Close, and wait for the broker's word a little; no error when it has ended already."""

    def forget(self, number: int) -> None:
        """A channel has ended: its number is free."""


class PublishingChannel(Protocol):
    """What a publish in progress may ask of its channel."""

    @property
    def connection(self) -> ConnectionPort:
        """The connection it is on."""

    @property
    def inbox(self) -> Inbox:
        """What has come for it."""

    @property
    def may_publish(self) -> bool:
        """False while the broker wants no publishes, on this channel or at all."""

    @property
    def ended(self) -> BulkClosed | None:
        """Why the channel can be used no more; None while it can."""

    def fence(self) -> None:
        """Wait until the broker has worked off what was sent on this channel so far."""
