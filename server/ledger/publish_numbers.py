"""What a connection keeps for the ledger, whether that is on or not: so it is small and quick."""

from __future__ import annotations


class PublishNumbers:
    """What the ledger calls a connection, and how far its channels have counted their publishes.

    `by_channel` has the last publish number of each channel that the connection has had; they go on
    where a channel is opened again. All of it is of one epoch of the ledger; 0 is none.
    """

    __slots__ = ("by_channel", "connection", "epoch")

    def __init__(self) -> None:
        self.begin(0, 0)

    def begin(self, epoch: int, connection: int) -> None:
        """Count anew, under this number of the connection."""
        self.epoch = epoch
        self.connection = connection
        self.by_channel: dict[int, int] = {}
