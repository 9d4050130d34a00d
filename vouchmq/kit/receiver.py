"""What an application consumes with: one acknowledgement mode on a channel of its own.

A receiver is what JMS calls a session. The messages come from its intake, its settling decides
when they are acknowledged; here is who gets them, `receive()` or listeners, and the transaction.

Spec: REDELIVER-30, REDELIVER-31, REDELIVER-36, REDELIVER-50, REDELIVER-53, REDELIVER-54
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.kit import intake, settling
from vouchmq.kit.channel import to_the_end
from vouchmq.kit.errors import (
    ChannelLostError,
    IllegalStateError,
    KitError,
    TransactionRolledBackError,
)
from vouchmq.kit.modes import Mode, Options
from vouchmq.kit.retry import as_message
from vouchmq.kit.sources import Callback, Source, Subscription

if TYPE_CHECKING:
    import aio_pika

    from vouchmq.kit.message import Message, MessageChannel

_log: Final = logging.getLogger("vouchmq.kit")


class Owner(intake.Owner, settling.Owner, Protocol):
    """What a receiver needs of its connection."""


class Use(Enum):
    """How a receiver is used; listening and receiving exclude each other (REDELIVER-53)."""

    IDLE = "idle"
    LISTENING = "a listener"
    RECEIVING = "receive()"


class Receiver:
    """Consumes in one acknowledgement mode, on a channel of its own.

    Made by `Connection.receiver()`. All of its listeners share the channel, so in the modes
    `client` and `transacted` one call settles the messages of all of them; a receiver for each
    queue keeps them apart (REDELIVER-54).
    """

    def __init__(self, owner: Owner, options: Options) -> None:
        self.options: Final = options
        self._owner: Final = owner
        self._use = Use.IDLE
        self._receiving: Final = asyncio.Lock()
        self._adding: Final = asyncio.Lock()
        self._has_ended: Final = asyncio.Event()
        self._is_closing = False
        self._published_count = 0
        self._is_transaction_lost = False
        self._dispatcher: asyncio.Task[None] | None = None
        self._intake: Final = intake.Intake(
            owner,
            options,
            self,
            on_channel=self._channel_opened,
            on_lost=self._channel_lost,
            on_failed=self._failed,
        )
        self._settling: Final = settling.Settling(
            owner, options, self._intake.spawn, self._intake.drop_through
        )

    @property
    def mode(self) -> Mode:
        """The acknowledgement mode that the receiver was made with."""
        return self.options.mode

    @property
    def is_closed(self) -> bool:
        """True once `close()` has begun, or the receiver has ended by itself."""
        return self._is_closing

    async def __aenter__(self) -> Receiver:
        """Itself; leaving the block closes it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the receiver, as `close` does."""
        await self.close()

    # What an application calls.

    async def listen(self, queue: str, callback: Callback) -> None:
        """Have `callback(message)` called, and awaited, for each message of the queue.

        One at a time over all listeners of the receiver. What it raises is logged and counts as
        failure: `auto`, `dups_ok` and `individual` give the message back, `transacted` rolls back,
        `client` leaves it unacknowledged, as JMS does.

        Raises:
            ValueError: the prefetch is 0 (REDELIVER-37)
            IllegalStateError: the receiver is used with `receive()`, or closed
            RefusedError: the broker does not allow it; there is no such queue, for one

        Spec: REDELIVER-30, REDELIVER-37, REDELIVER-53
        """
        self._check_callback(callback)
        await self._begin(Source(queue, callback), Use.LISTENING)

    async def subscribe(
        self, exchange: str, routing_key: str = "", callback: Callback | None = None
    ) -> str:
        """Get what is published to an exchange from now on, through an exclusive queue.

        With a callback it is a listener, otherwise its messages come from `receive()`. Returns
        the queue's name; after a reconnect there is another queue, and what was published
        meanwhile is not in it.

        Raises:
            ValueError: a callback, but the prefetch is 0
            IllegalStateError: the receiver is used otherwise, or closed
            RefusedError: the broker does not allow it; there is no such exchange, for one

        Spec: REDELIVER-35
        """
        use = Use.RECEIVING
        if callback is not None:
            self._check_callback(callback)
            use = Use.LISTENING
        source = Source("", callback, Subscription(exchange, routing_key))
        await self._begin(source, use)
        return source.queue

    async def receive(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as in JMS
        *,
        queue: str | None = None,
    ) -> Message | None:
        """The next message, or None when none came for `timeout` seconds (None: wait for ever).

        The first call, or `subscribe`, says which queue. With prefetch 0 each message is pulled
        from the queue by this call. In mode `auto` it is acknowledged before it is returned, so
        it is lost if the caller fails.

        Raises:
            ValueError: no queue was named yet
            IllegalStateError: the receiver has a listener, receives from another queue, or is
                closed
            RefusedError: the broker does not allow it

        Spec: REDELIVER-31, REDELIVER-37, REDELIVER-53
        """
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout is None else loop.time() + timeout
        self._check_use(Use.RECEIVING)
        async with self._receiving:
            self._check_use(Use.RECEIVING)
            if not self._intake.sources:
                if queue is None:
                    raise ValueError("receive() has no queue yet: pass queue=")
                await self._begin(Source(queue, None), Use.RECEIVING)
            elif queue is not None and queue != self._intake.sources[0].queue:
                known = self._intake.sources[0].queue
                raise IllegalStateError(
                    f"this receiver reads from {known!r}; create another one for {queue!r}"
                )
            taken = await self._intake.next(deadline_s)
            if taken is None:
                return None
            message, _ = taken
            if self.mode.acknowledges_itself:
                await self._settling.dealt_with(message)
            self._settling.extend(message.channel)
            return message

    async def stop(self) -> None:
        """End listening or receiving; afterwards the receiver may do either.

        What the application has not seen goes back to the queue. A callback that is at work is
        waited for, unless it is the caller.
        """
        await self._intake.pause()
        await self._wait_for_dispatcher()
        if self._intake.channel is not None:
            await self._settling.flush(self._intake.channel)
        self._use = Use.IDLE

    async def commit(self) -> None:
        """Acknowledge what was handed out, and commit it with what was published.

        Raises:
            TransactionRolledBackError: the channel ended before or meanwhile; in the latter case
                nobody knows whether the broker has committed
            IllegalStateError: not in mode transacted, or closed

        Spec: REDELIVER-36
        """
        channel = await self._transaction("commit")
        tag = channel.ledger.youngest
        self._published_count = 0
        try:
            if tag:
                await channel.ack_through(tag)
            await channel.commit()
        except ChannelLostError as error:
            raise TransactionRolledBackError(
                f"the outcome of the commit is unknown: {error}"
            ) from error
        await self._settling.shrink(channel)

    async def rollback(self) -> None:
        """Forget what was published, and have everything that was handed out redelivered.

        AMQP's rollback redelivers nothing (TX-10), so recover(requeue=1) follows it. Messages
        that the application has not seen yet come again with the others.

        Spec: REDELIVER-36
        """
        self._require(Mode.TRANSACTED, "rollback")
        self._published_count = 0
        if self._is_transaction_lost:
            self._is_transaction_lost = False
            return
        channel = await self._intake.current()
        await self._settling.take_back(channel)

    async def recover(self) -> None:
        """Have everything that is unacknowledged redelivered; mode client only, as in JMS."""
        self._require(Mode.CLIENT, "recover")
        await self._settling.take_back(await self._intake.current())

    async def publish(
        self, message: aio_pika.Message | bytes | str, routing_key: str, *, exchange: str = ""
    ) -> None:
        """Publish: in mode transacted within the transaction, otherwise with a confirm.

        A body alone becomes a persistent message.

        Raises:
            aio_pika.exceptions.DeliveryError: no queue, or refused; not in mode transacted
            ChannelLostError: it is not known to be stored
        """
        if self.mode is not Mode.TRANSACTED:
            await self._owner.publish(message, routing_key, exchange=exchange)
            return
        channel = await self._transaction("publish")
        self._published_count += 1
        await channel.publish(as_message(message), exchange, routing_key, mandatory=False)

    async def close(self) -> None:
        """Send the acks that wait, and close the channel; what is unacknowledged is requeued.

        A callback that is at work is waited for; called by the callback itself, the receiver
        closes when it has returned.
        """
        if asyncio.current_task() is self._dispatcher:
            self._intake.finish()
            self._intake.spawn(self.close())
            return
        if self._is_closing:
            await self._has_ended.wait()
            return
        self._is_closing = True
        self._intake.finish()
        await self._wait_for_dispatcher()
        channel = self._intake.channel
        if channel is not None:
            await self._settling.flush(channel)
            await channel.close()
        self._has_ended.set()

    async def wait_closed(self) -> None:
        """Wait until it is closed.

        Raises:
            KitError: it has ended by itself, since the broker does not let it go on
        """
        await self._has_ended.wait()
        if self._intake.error is not None:
            raise self._intake.error

    # What messages and the connection call.

    async def open(self) -> None:
        """Open the channel; done by `Connection.receiver()`."""
        await self._intake.open()

    async def acknowledge(self, message: Message) -> None:
        """What `message.acknowledge()` does; IllegalStateError in modes that do it themselves."""
        await self._settling.acknowledge(message)

    async def reject(self, message: Message, *, requeue: bool) -> None:
        """What `message.reject()` does; IllegalStateError in modes that do it themselves."""
        await self._settling.reject(message, requeue=requeue)

    # Listening.

    async def _begin(self, source: Source, use: Use) -> None:
        """Take messages from one source more, even if the caller gives up meanwhile."""
        await to_the_end(self._add(source, use))

    async def _add(self, source: Source, use: Use) -> None:
        async with self._adding:
            self._check_use(use)
            if use is Use.RECEIVING and self._intake.sources:
                return
            before, self._use = self._use, use
            try:
                await self._intake.add(source)
            except BaseException:
                self._use = before
                raise
        if use is Use.LISTENING and (self._dispatcher is None or self._dispatcher.done()):
            self._dispatcher = asyncio.create_task(self._dispatch())

    async def _dispatch(self) -> None:
        """Call the listeners, one message after the other."""
        try:
            while (taken := await self._intake.next(None)) is not None:
                message, callback = taken
                if callback is None:
                    raise IllegalStateError(
                        "a message arrived for receive() while a listener is set"
                    )
                has_succeeded = await _run(callback, message)
                try:
                    await self._handled(message, has_succeeded=has_succeeded)
                except ChannelLostError as error:
                    _log.warning("%r will be redelivered: %s", message, error)
        except KitError as error:
            # It may be the intake's own error; then this changes nothing.
            self._intake.fail(error)
        except Exception as error:  # noqa: BLE001 - nobody awaits this task
            _log.exception("a receiver ends")
            self._intake.fail(KitError(f"the receiver failed: {error!r}"))

    async def _handled(self, message: Message, *, has_succeeded: bool) -> None:
        """Settle, or not, after a listener; unless it has done so itself.

        Spec: REDELIVER-30
        """
        if has_succeeded:
            if self.mode.acknowledges_itself:
                await self._settling.dealt_with(message)
            self._settling.extend(message.channel)
        elif self.mode is Mode.TRANSACTED:
            await self.rollback()
        elif self.mode is not Mode.CLIENT:
            await self._settling.give_back(message)

    # The channel and its successors.

    def _channel_opened(self) -> None:
        self._settling.begin()

    def _channel_lost(self, channel: MessageChannel) -> None:
        """A transaction ends with its channel (TX-12); whoever goes on with it must know."""
        if self._published_count or (self.mode is Mode.TRANSACTED and len(channel.ledger)):
            self._is_transaction_lost = True
            self._published_count = 0

    def _failed(self) -> None:
        self._intake.spawn(self.close())

    async def _transaction(self, call: str) -> MessageChannel:
        """The channel of the transaction that is under way."""
        self._require(Mode.TRANSACTED, call)
        if self._is_transaction_lost:
            self._is_transaction_lost = False
            raise TransactionRolledBackError("the channel was lost, and the transaction with it")
        return await self._intake.current()

    def _require(self, mode: Mode, call: str) -> None:
        if self.mode is not mode:
            raise IllegalStateError(
                f"{call}() belongs to mode {mode.value}; this receiver has mode {self.mode.value}"
            )

    def _check_use(self, use: Use) -> None:
        if self._intake.error is not None:
            raise self._intake.error
        if self._is_closing:
            raise IllegalStateError("the receiver is closed")
        if self._use not in (use, Use.IDLE):
            raise IllegalStateError(
                f"{use.value} does not go with {self._use.value} on one receiver: stop() it first"
            )

    def _check_callback(self, callback: Callback) -> None:
        if not callable(callback):
            raise TypeError(f"a listener must be callable, not {callback!r}")
        if self.options.prefetch == 0:
            raise ValueError("a listener needs prefetch > 0: with 0 messages are pulled, receive()")

    async def _wait_for_dispatcher(self) -> None:
        dispatcher = self._dispatcher
        if dispatcher is not None and dispatcher is not asyncio.current_task():
            await asyncio.shield(dispatcher)


async def _run(callback: Callback, message: Message) -> bool:
    """Call a listener; False when it failed."""
    try:
        result = callback(message)
        if inspect.isawaitable(result):
            await result
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        _log.warning("the listener of %r gave up: something it waited for was cancelled", message)
        return False
    except Exception:  # noqa: BLE001 - whatever a listener raises is its failure
        _log.exception("the listener of %r failed", message)
        return False
    return True
