"""The ledger while it is on, for everybody who has something to tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.ledger.channel_recorder import ChannelEventRecorder
    from vouchmq.server.ledger.publish_numbers import PublishNumbers


class RunningLedger(Protocol):
    """The ledger, as the rest of the broker knows it."""

    def opened(
        self, numbers: PublishNumbers, vhost: str, channel: int
    ) -> ChannelEventRecorder | None:
        """A recorder for a new channel of the connection that has these numbers."""

    def declared(self, queue: Queue) -> None:
        """There is a new queue."""

    def changed(self, queue: Queue) -> None:
        """A queue has other features."""

    def synced(self, watermark: int, duration_ms: float) -> None:
        """Everything up to this LSN is on disk."""

    def look(self) -> None:
        """About once a second: is it time for another file, or for inventories?"""


class ActiveLedger:
    """What `Ledger` sets when it is switched on or off."""

    __slots__ = ("ledger",)

    def __init__(self) -> None:
        self.ledger: RunningLedger | None = None
