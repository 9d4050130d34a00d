"""A message as the application has it. What it does to the broker goes through its receiver.

Spec: REDELIVER-33, REDELIVER-34, REDELIVER-40, REDELIVER-41, REDELIVER-44
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from vouchmq.kit.redelivery import COUNT_HEADER, EXCHANGE_HEADER, ROUTING_KEY_HEADER

if TYPE_CHECKING:
    import aio_pika

    from vouchmq.kit.channel import Channel


# The channel that a message must be settled on.
MessageChannel: TypeAlias = "Channel[Message]"


class Settler(Protocol):
    """Whoever acknowledges for a receiver."""

    async def acknowledge(self, message: Message) -> None:
        """The application says that it has dealt with it."""

    async def reject(self, message: Message, *, requeue: bool) -> None:
        """The application gives it back."""


class Message:
    """One delivery.

    Args:
        incoming: as the client has read it
        queue: where it came from
        channel: where it must be settled, no other knows its tag
        settler: acknowledges it
        is_topic_like: it came through `subscribe`
    """

    __slots__ = ("_incoming", "_settler", "channel", "is_topic_like", "queue", "tag")

    def __init__(
        self,
        incoming: aio_pika.IncomingMessage,
        queue: str,
        channel: MessageChannel,
        settler: Settler,
        *,
        is_topic_like: bool,
    ) -> None:
        self._incoming = incoming
        self._settler = settler
        self.queue = queue
        self.channel = channel
        self.is_topic_like = is_topic_like
        self.tag = incoming.delivery_tag or 0

    def __repr__(self) -> str:
        """For logs: whence and which, never the body."""
        return f"<Message {self.tag} of {self.queue!r}, {len(self.body)} octets>"

    @property
    def body(self) -> bytes:
        """The content of the message, as bytes."""
        return self._incoming.body

    @property
    def headers(self) -> Mapping[str, Any]:
        """The table of headers; {} when there is none."""
        return self._incoming.headers

    @property
    def content_type(self) -> str | None:
        """As the publisher gave it."""
        return self._incoming.content_type

    @property
    def correlation_id(self) -> str | None:
        """The publisher's id, which a reply is to repeat."""
        return self._incoming.correlation_id

    @property
    def reply_to(self) -> str | None:
        """The queue where a reply is expected."""
        return self._incoming.reply_to

    @property
    def message_id(self) -> str | None:
        """As the publisher gave it."""
        return self._incoming.message_id

    @property
    def type(self) -> str | None:
        """As the publisher gave it."""
        return self._incoming.type

    @property
    def timestamp(self) -> datetime | None:
        """As the publisher gave it, in whole seconds."""
        return self._incoming.timestamp

    @property
    def priority(self) -> int:
        """As the publisher gave it; 0 when it gave none."""
        return self._incoming.priority or 0

    @property
    def is_persistent(self) -> bool:
        """True when it survives a restart of the broker in a durable queue."""
        return int(self._incoming.delivery_mode) == _PERSISTENT

    @property
    def exchange(self) -> str:
        """Where it was published, also when it has been in a retry queue since."""
        return str(self.headers.get(EXCHANGE_HEADER, self._incoming.exchange or ""))

    @property
    def routing_key(self) -> str:
        """The key it was published with, also when it has been in a retry queue since."""
        return str(self.headers.get(ROUTING_KEY_HEADER, self._incoming.routing_key or ""))

    @property
    def redelivered(self) -> bool:
        """True when this message has been delivered before."""
        return self.redelivery_count > 0

    @property
    def redelivery_count(self) -> int:
        """How often it was delivered before, as far as anybody has counted.

        The broker counts on queues with a delivery limit, the kit where it keeps the retry
        queues; where nobody does, 1 stands for "at least once".

        Spec: REDELIVER-12, REDELIVER-44
        """
        counted = self.retry_count + _count(self.headers.get("x-delivery-count"))
        return counted or int(bool(self._incoming.redelivered))

    @property
    def retry_count(self) -> int:
        """How often it has been through a retry queue of the kit."""
        return _count(self.headers.get(COUNT_HEADER))

    @property
    def incoming(self) -> aio_pika.IncomingMessage:
        """aio-pika's own view, for reading; settle through this class only."""
        return self._incoming

    async def acknowledge(self) -> None:
        """Tell the broker that this is dealt with.

        In mode `individual` that is this message, in mode `client` every message that the
        receiver has handed out. The second time, and after the channel has ended, it does
        nothing.

        Raises:
            IllegalStateError: in the other modes, which do it themselves

        Spec: REDELIVER-33, REDELIVER-34, REDELIVER-51
        """
        await self._settler.acknowledge(self)

    async def reject(self, *, requeue: bool = True) -> None:
        """Give this message back: to be redelivered, or to the dead letters.

        Only in the modes `client` and `individual`; otherwise raise in the listener, or roll
        back. Redelivery follows the policy that the queue was declared with.

        Raises:
            IllegalStateError: in the other modes

        Spec: REDELIVER-40, REDELIVER-41
        """
        await self._settler.reject(self, requeue=requeue)


_PERSISTENT = 2


def _count(value: object) -> int:
    """A header as a count; 0 when it is none."""
    return value if isinstance(value, int) and value > 0 else 0
