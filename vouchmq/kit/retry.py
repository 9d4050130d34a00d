"""Redelivery where the broker cannot delay it: a copy into a retry queue, then the original's ack.

The copy is confirmed before the original is settled, so a crash between the two makes a duplicate
and never a loss. Knows no modes.

Spec: REDELIVER-45, REDELIVER-46, REDELIVER-50
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final, Protocol

import aio_pika

from vouchmq.kit.errors import ChannelLostError
from vouchmq.kit.redelivery import (
    COUNT_HEADER,
    EXCHANGE_HEADER,
    MILLISECONDS,
    ROUTING_KEY_HEADER,
    RedeliveryPolicy,
    RetryQueue,
    retry_queues,
    varied_ms,
)

if TYPE_CHECKING:
    from vouchmq.kit.message import Message

_log: Final = logging.getLogger("vouchmq.kit")
# Headers that would have the copy routed elsewhere, or taken for one that goes round in circles.
_LEFT_OUT: Final = ("CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count")
_LEFT_OUT_PREFIXES: Final = ("x-first-death-", "x-last-death-")


class Publishing(Protocol):
    """What a retry needs of a connection: to publish and wait for the confirm."""

    async def publish(
        self,
        message: aio_pika.Message | bytes | str,
        routing_key: str,
        *,
        exchange: str = "",
    ) -> None:
        """Publish, and return when the broker has it."""


class Retries:
    """The redeliveries of one queue."""

    def __init__(self, policy: RedeliveryPolicy, queue: str) -> None:
        """Raises ValueError when the policy needs too many queues."""
        self._policy: Final = policy
        self._queue: Final = queue
        self._waiting: Final = retry_queues(policy, queue)

    @property
    def queues(self) -> list[RetryQueue]:
        """What must be declared before the first message fails."""
        return list(self._waiting.values())

    async def settle(self, message: Message, publisher: Publishing) -> None:
        """Send a copy on its way and ack the message, or dead-letter it when it had its chances.

        If the copy cannot be published the message goes back to its queue without delay.
        """
        count = message.retry_count + 1
        if self._policy.is_limited and count > self._policy.max_redeliveries:
            _log.warning("%r: dead-lettered after %d redeliveries", message, count - 1)
            await message.channel.reject(message.tag, requeue=False)
            return
        delay_ms = self._policy.delay_ms(count)
        fitting = [each for each in self._waiting if each <= delay_ms]
        target = self._waiting[max(fitting)].name if fitting else self._queue
        copy = copied(message, count)
        if fitting:
            waited_ms = varied_ms(delay_ms, self._policy.collision_avoidance, random.random)
            copy.expiration = waited_ms / MILLISECONDS
        try:
            await publisher.publish(copy, target)
        except (ChannelLostError, aio_pika.exceptions.AMQPError) as error:
            _log.warning(
                "%r: requeued without delay, because its copy was lost: %s", message, error
            )
            await message.channel.reject(message.tag, requeue=True)
            return
        await message.channel.ack(message.tag)


def copied(message: Message, count: int) -> aio_pika.Message:
    """The same message for a retry queue; it remembers how often, and where it was published.

    The user-id is left out, as the broker refuses one that is not the connection's own; the
    expiration, as it belongs to the delay now.
    """
    original = message.incoming
    headers = {
        name: value
        for name, value in original.headers.items()
        if name not in _LEFT_OUT and not name.startswith(_LEFT_OUT_PREFIXES)
    }
    headers[COUNT_HEADER] = count
    headers[EXCHANGE_HEADER] = message.exchange
    headers[ROUTING_KEY_HEADER] = message.routing_key
    return aio_pika.Message(
        original.body,
        headers=headers,
        content_type=original.content_type,
        content_encoding=original.content_encoding,
        delivery_mode=original.delivery_mode,
        priority=original.priority,
        correlation_id=original.correlation_id,
        reply_to=original.reply_to,
        message_id=original.message_id,
        timestamp=original.timestamp,
        type=original.type,
        app_id=original.app_id,
    )


def as_message(message: aio_pika.Message | bytes | str) -> aio_pika.Message:
    """A body alone becomes a persistent message; text is encoded as UTF-8.

    Raises:
        TypeError: neither a message nor a body
    """
    if isinstance(message, aio_pika.Message):
        return message
    if isinstance(message, str):
        message = message.encode()
    if not isinstance(message, bytes):
        raise TypeError(f"a message must be bytes, str or aio_pika.Message, not {message!r}")
    return aio_pika.Message(message, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
