"""The channels of one connection: which numbers are open, closing, or have just been closed.

Raises what a client gets wrong about channel numbers; the connection turns that into closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.protocol import constants as c
from vouchmq.protocol.codec import channel_close, channel_close_ok, channel_open_ok
from vouchmq.protocol.errors import ChannelError, CommandInvalid, NotAllowed
from vouchmq.server.channel.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.protocol.codec import Command
    from vouchmq.protocol.constants import Ids
    from vouchmq.protocol.errors import SoftError
    from vouchmq.protocol.reader import Reader
    from vouchmq.server.connection.port import ConnectionPort

# What begins or ends a channel; the rest of its class is for the channel itself.
CHANNEL_ENDS: Final = frozenset({c.CHANNEL_OPEN, c.CHANNEL_CLOSE, c.CHANNEL_CLOSE_OK})
LATE_SETTLEMENT_S: Final = 10.0
# Settlements and cancels that may cross a channel's close (CHAN-12).
LATE_IDS: Final = frozenset({c.BASIC_ACK, c.BASIC_REJECT, c.BASIC_NACK, c.BASIC_CANCEL})
# What is done even while answers pile up unsent: it has no answer, or ends what causes them.
SETTLES_OR_ENDS: Final = frozenset(
    LATE_IDS | {c.BASIC_CANCEL_OK, c.CHANNEL_FLOW, c.CHANNEL_CLOSE, c.CHANNEL_CLOSE_OK}
)


class ChannelTable:
    """Opens and closes channels.

    Args:
        connection: whose channels they are
        reader: told which channels' frames no longer count
        channels: open and closing ones by number
    """

    __slots__ = ("_closed", "_connection", "_reader", "channels")

    def __init__(
        self, connection: ConnectionPort, reader: Reader, channels: dict[int, Channel]
    ) -> None:
        self._connection = connection
        self._reader = reader
        self.channels = channels
        self._closed: dict[int, float] = {}  # number → when it was closed

    def missing(self, number: int, ids: Ids) -> None:
        """Judge what came for a number that is not open.

        Raises:
            ChannelError: 504, unless it is a settlement that crossed the close (CHAN-02, CHAN-12)
        """
        if ids in LATE_IDS and number in self._closed:
            if self._connection.context.clock() - self._closed[number] < LATE_SETTLEMENT_S:
                return
            del self._closed[number]
        raise ChannelError("expected 'channel.open'")

    def handle(self, number: int, command: Command, channel_max: int) -> None:
        """channel.open, close, close-ok.

        Raises:
            HardError: 503, 504 or 530 (CHAN-01…04, CHAN-11, CONN-33)
        """
        channel = self.channels.get(number)
        ids = command.ids
        if ids == c.CHANNEL_OPEN:
            if channel is not None:
                raise ChannelError("second 'channel.open' seen")
            self._open(number, channel_max)
        elif channel is None:
            raise ChannelError("expected 'channel.open'")
        elif ids == c.CHANNEL_CLOSE:
            if channel.is_closing:
                self._connection.outbox.send(channel_close_ok(number))
                return
            channel.close()
            self._forget(number)
            channel.reply(channel_close_ok(number))
        elif channel.is_closing:
            self._forget(number)
        else:
            raise CommandInvalid("unimplemented method")

    def fail(self, number: int, error: SoftError, ids: Ids) -> None:
        """A soft error closes the channel and leaves the others alone (CHAN-11, CHAN-13)."""
        self.channels[number].close()
        self._reader.discard_channel(number)
        self._connection.send_behind_replies(channel_close(number, error, ids))

    def close_some(self, is_over: Callable[[], bool]) -> bool:
        """End channels with their connection while there is time; False: there are more.

        Nothing is delivered meanwhile to those that are left.
        """
        # They stay in sight meanwhile: what one holds unacked may go with a queue of another.
        for channel in list(self.channels.values()):
            if not channel.is_closing:
                channel.close("connection")
                if is_over():
                    break
        else:
            self.channels.clear()
            return True
        for channel in self.channels.values():
            channel.flow_active = False
        return False

    def _open(self, number: int, channel_max: int) -> None:
        count = len(self.channels)
        if channel_max and count >= channel_max:
            raise NotAllowed(
                f"number of channels opened ({count}) has reached the negotiated channel_max "
                f"({channel_max})",
                ids=(0, 0),
            )
        self._connection.context.channel_opened(self._connection.user)
        self.channels[number] = Channel(self._connection, number)
        self._closed.pop(number, None)
        self._connection.outbox.send(channel_open_ok(number))

    def _forget(self, number: int) -> None:
        del self.channels[number]
        self._reader.forget_channel(number)
        self._closed[number] = self._connection.context.clock()
