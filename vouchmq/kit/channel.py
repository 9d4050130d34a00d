"""One open channel of an ordinary AMQP client, with what of its deliveries is still to be settled.

Two things are added to aio-pika's channel: settlements go through a ledger, and are dropped once
the channel is closed; and a call that the channel's end has interrupted raises an error of one
kind, `ChannelLostError`, instead of one of many. Knows no modes.

Spec: REDELIVER-51
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import aio_pika
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, AMQPChannelError, AMQPError

from vouchmq.kit.errors import ChannelLostError, RefusedError
from vouchmq.kit.unsettled import UnsettledDeliveries

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection

    from vouchmq.kit.redelivery import Arguments

Result = TypeVar("Result")
Item = TypeVar("Item")


class Channel(Generic[Item]):
    """A channel between its opening and its end; a new one is another object.

    An `Item` is what the application is handed out of a delivery.

    Args:
        outer: aio-pika's channel, open
        on_lost: called once when the channel ends without `close()`
    """

    def __init__(self, outer: aio_pika.Channel, on_lost: Callable[[Channel[Item]], None]) -> None:
        self.ledger: UnsettledDeliveries[Item] = UnsettledDeliveries()
        # The highest tag that has arrived, handed out or not.
        self.newest_tag = 0
        self._outer = outer
        self._on_lost = on_lost
        self._is_ending = False

    @classmethod
    async def open(
        cls,
        connection: AbstractConnection,
        on_lost: Callable[[Channel[Item]], None],
        *,
        confirms: bool = False,
    ) -> Channel[Item]:
        """Open a channel on a connection that is up; with `confirms` its publishes are confirmed.

        Raises:
            ChannelLostError: the connection went down meanwhile
        """
        outer = aio_pika.Channel(connection, publisher_confirms=confirms, on_return_raises=confirms)
        opened = cls(outer, on_lost)
        await opened.complete(outer.initialize())
        outer.close_callbacks.add(opened._ended)
        raw = await outer.get_underlay_channel()
        # It may have ended before there was a callback to tell of it.
        if raw.is_closed:
            opened.ledger.close()
            raise ChannelLostError("the channel was closed as it was opened")
        return opened

    @property
    def is_open(self) -> bool:
        """False from the moment its end is known."""
        return not self._is_ending and not self._outer.is_closed

    async def complete(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Await a call of the AMQP client to its end, even if whoever awaits it is cancelled.

        The client closes the channel when a call is given up before its reply.

        Raises:
            RefusedError: the broker has refused it and closed the channel
            ChannelLostError: the channel ended before the reply; the cause tells more
        """
        try:
            return await to_the_end(call)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The client cancels the calls of a channel that ends.
            raise ChannelLostError("the channel was closed") from error
        except AMQPChannelError as error:
            # The broker's words say it all; how the client came by them helps nobody.
            raise RefusedError(str(error) or type(error).__name__) from None
        except (*CONNECTION_EXCEPTIONS, AMQPError) as error:
            raise ChannelLostError(str(error) or type(error).__name__) from error

    async def consume(
        self, queue: str, deliver: Callable[[aio_pika.IncomingMessage], None], tag: str
    ) -> None:
        """Start a consumer; `deliver` is called for each message, in the order they arrive."""
        raw = await self._outer.get_underlay_channel()

        async def arrived(delivered: Any) -> None:
            self.newest_tag = delivered.delivery_tag
            deliver(aio_pika.IncomingMessage(delivered, no_ack=False))

        await self.complete(raw.basic_consume(queue, arrived, consumer_tag=tag))

    async def on_consumer_cancelled(self, told: Callable[[str], None]) -> None:
        """Have `told` called with the tag of each consumer that the broker cancels (CONS-40)."""
        raw = await self._outer.get_underlay_channel()
        raw.on_consumer_cancel_callbacks.add(lambda frame: told(str(frame.consumer_tag)))

    async def cancel(self, tag: str) -> None:
        """End a consumer; what it has been delivered stays with the channel (ACK-41)."""
        raw = await self._outer.get_underlay_channel()
        await self.complete(raw.basic_cancel(tag))

    async def get(self, queue: str) -> aio_pika.IncomingMessage | None:
        """One message of the queue, None when there is none."""
        raw = await self._outer.get_underlay_channel()
        delivered = await self.complete(raw.basic_get(queue))
        if delivered.delivery_tag is None:
            return None
        self.newest_tag = delivered.delivery_tag
        return aio_pika.IncomingMessage(delivered, no_ack=False)

    async def limit(self, count: int, *, of_channel: bool) -> None:
        """Bound the unsettled deliveries: of the channel, or of each consumer to come (QOS-02)."""
        await self.complete(self._outer.set_qos(prefetch_count=count, global_=of_channel))

    async def ack(self, tag: int) -> None:
        """Acknowledge a delivery; nothing happens if it is settled already."""
        if self.ledger.settle(tag):
            raw = await self._outer.get_underlay_channel()
            await self._settle(raw.basic_ack(tag, wait=False))

    async def ack_through(self, tag: int) -> None:
        """Acknowledge this delivery and all handed out before it, if it is outstanding."""
        if self.ledger.settle_through(tag):
            raw = await self._outer.get_underlay_channel()
            await self._settle(raw.basic_ack(tag, multiple=True, wait=False))

    async def reject(self, tag: int, *, requeue: bool) -> None:
        """Give one delivery back to its queue, or to the queue's dead-letter exchange."""
        if self.ledger.settle(tag):
            await self.give_back(tag, requeue=requeue)

    async def give_back(self, tag: int, *, requeue: bool = True) -> None:
        """Reject a delivery that nobody was handed."""
        raw = await self._outer.get_underlay_channel()
        await self._settle(raw.basic_reject(tag, requeue=requeue, wait=False))

    async def recover(self) -> None:
        """Have the broker requeue everything that is unsettled on the channel (ACK-20)."""
        raw = await self._outer.get_underlay_channel()
        self.ledger.forget_all()
        await self.complete(raw.basic_recover(requeue=True))

    async def select(self) -> None:
        """Make the channel transactional (TX-01)."""
        raw = await self._outer.get_underlay_channel()
        await self.complete(raw.tx_select())

    async def commit(self) -> None:
        """Commit, and wait until it is done."""
        raw = await self._outer.get_underlay_channel()
        await self.complete(raw.tx_commit())

    async def rollback(self) -> None:
        """Forget what was published and settled since the last commit."""
        raw = await self._outer.get_underlay_channel()
        await self.complete(raw.tx_rollback())

    async def publish(
        self, message: aio_pika.Message, exchange: str, routing_key: str, *, mandatory: bool
    ) -> None:
        """Publish; on a channel with confirms, wait for the confirm.

        Raises:
            aio_pika.exceptions.DeliveryError: the broker has refused or returned it
            ChannelLostError: nobody knows whether the broker has it
        """
        target = await self._outer.get_exchange(exchange, ensure=False)
        try:
            await target.publish(message, routing_key, mandatory=mandatory)
        except (aio_pika.exceptions.DeliveryError, aio_pika.exceptions.PublishError):
            raise
        except (*CONNECTION_EXCEPTIONS, AMQPError) as error:
            raise ChannelLostError(str(error) or type(error).__name__) from error

    async def declare(
        self, queue: str, *, durable: bool, exclusive: bool, auto_delete: bool, arguments: Arguments
    ) -> None:
        """Declare a queue and wait for the broker's answer."""
        raw = await self._outer.get_underlay_channel()
        await self.complete(
            raw.queue_declare(
                queue,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=dict(arguments),
            )
        )

    async def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Bind a queue to an exchange."""
        raw = await self._outer.get_underlay_channel()
        await self.complete(raw.queue_bind(queue, exchange, routing_key))

    async def close(self) -> None:
        """Close it; the broker requeues what is unsettled (ACK-40)."""
        self._is_ending = True
        self.ledger.close()
        with suppress(ChannelLostError):
            await self.complete(self._outer.close())

    async def _settle(self, sending: Awaitable[None]) -> None:
        """Send a settlement, unless the channel has ended meanwhile."""
        with suppress(*CONNECTION_EXCEPTIONS, AMQPError):
            await sending

    def _ended(self, *_: object) -> None:
        """The client's word that the channel is gone."""
        if not self._is_ending:
            self._is_ending = True
            self._on_lost(self)
        self.ledger.close()


async def to_the_end(call: Coroutine[Any, Any, Result]) -> Result:
    """Await a call that goes on even if whoever awaits it is cancelled."""
    running = asyncio.ensure_future(call)
    # Read the error in any case: there may be nobody left to whom it is raised.
    running.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(running)
