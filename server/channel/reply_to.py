"""Direct reply-to: names that lead straight to a consumer, with no queue between.

A reply is written to the waiting channel at once or not at all: no storage, no acknowledgement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.protocol.fields import encode_shortstr
from vouchmq.protocol.runs import encode_deliveries

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.message import Message
    from vouchmq.server.channel.consumer import DeliveryChannel

# Replies to one client that a turn may pile up.
SWAMPED_OCTETS: Final = 16 * 1024 * 1024
PREFIX: Final = "amq.rabbitmq.reply-to."


class ReplyConsumer:
    """The one reply consumer of a channel.

    Args:
        channel: where replies go
        tag: its consumer tag
        name: the generated name that publishers of replies use as routing key
    """

    __slots__ = ("_shortstr", "channel", "name", "tag")

    def __init__(self, channel: DeliveryChannel, tag: str, name: str) -> None:
        self.channel = channel
        self.tag = tag
        self.name = name
        self._shortstr = encode_shortstr(tag)

    def deliver(self, message: Message) -> bool:
        """Write a reply; its delivery tag cannot be acked (CONS-63).

        Returns:
            False when the client leaves too much unread: at most once is then not at all.
        """
        channel = self.channel
        if channel.is_swamped or channel.outbox.size > SWAMPED_OCTETS:
            return False
        tag = channel.next_tag
        channel.next_tag = tag + 1
        channel.counters.delivered_no_ack += 1
        limits = (channel.frame_max, 0)
        parts = encode_deliveries([message], tag, channel.octets, self._shortstr, limits)
        channel.outbox.add_content(parts)
        return True


class ReplyNames:
    """The live generated names of this broker.

    Args:
        random_token: at least 128 random bits as text, so that a name cannot be guessed
    """

    def __init__(self, random_token: Callable[[], str]) -> None:
        self._random_token = random_token
        self._consumers: dict[str, ReplyConsumer] = {}

    def open(self, channel: DeliveryChannel, tag: str) -> ReplyConsumer:
        """Make a name for a channel's reply consumer."""
        consumer = ReplyConsumer(channel, tag, PREFIX + self._random_token())
        self._consumers[consumer.name] = consumer
        return consumer

    def close(self, consumer: ReplyConsumer) -> None:
        """The name dies with its consumer."""
        self._consumers.pop(consumer.name, None)

    def find(self, name: str) -> ReplyConsumer | None:
        """The consumer behind a name, if it lives."""
        return self._consumers.get(name)

    def is_live(self, name: str) -> bool:
        """True while somebody listens under this name (CONS-64)."""
        return name in self._consumers
