"""When the messages of a receiver are acknowledged, and how they go back: the modes at work.

Spec: REDELIVER-30…36, REDELIVER-39
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from vouchmq.kit.batching import AckBatch
from vouchmq.kit.errors import ChannelLostError, IllegalStateError
from vouchmq.kit.modes import Mode, Options
from vouchmq.kit.retry import Publishing

if TYPE_CHECKING:
    from vouchmq.kit.message import Message, MessageChannel
    from vouchmq.kit.retry import Retries

_log: Final = logging.getLogger("vouchmq.kit")


class Owner(Publishing, Protocol):
    """What settling needs of the connection."""

    def retries_of(self, queue: str) -> Retries | None:
        """How messages of this queue come back, None when the broker sees to it."""


class Settling:
    """Acknowledges, rejects and recovers, for one receiver.

    Args:
        owner: knows the policies of queues, and publishes
        options: of the receiver
        spawn: does something beside
        drop_through: forgets arrived messages up to a tag
    """

    def __init__(
        self,
        owner: Owner,
        options: Options,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        drop_through: Callable[[int], None],
    ) -> None:
        self._owner: Final = owner
        self._options: Final = options
        self._spawn: Final = spawn
        self._drop_through: Final = drop_through
        # Raising the limit, while that is under way; done but for the reply when it is over.
        self._extension: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.begin()

    def begin(self) -> None:
        """A new channel: nothing of the old one is left to acknowledge."""
        self._extension = None
        self._stop_timer()
        now_s = asyncio.get_running_loop().time()
        self._batch = AckBatch(self._options.optimize_ack_timeout_s, now_s)

    async def acknowledge(self, message: Message) -> None:
        """`message.acknowledge()`.

        Mode client acks up to the youngest message that was handed out, by its tag: tag 0 would
        also mean those that are still on their way to the application.

        Spec: REDELIVER-33, REDELIVER-34
        """
        mode, channel = self._options.mode, message.channel
        if mode is Mode.INDIVIDUAL:
            await channel.ack(message.tag)
        elif mode is Mode.CLIENT:
            await channel.ack_through(channel.ledger.youngest)
            await self.shrink(channel)
        else:
            raise IllegalStateError(f"mode {mode.value} acknowledges by itself")

    async def reject(self, message: Message, *, requeue: bool) -> None:
        """`message.reject()`.

        Spec: REDELIVER-40, REDELIVER-41
        """
        mode = self._options.mode
        if mode not in (Mode.INDIVIDUAL, Mode.CLIENT):
            raise IllegalStateError(
                f"mode {mode.value} gives messages back by itself: raise, or roll back"
            )
        if requeue:
            await self.give_back(message)
        else:
            await message.channel.reject(message.tag, requeue=False)

    async def dealt_with(self, message: Message) -> None:
        """Ack now, or with others; in the modes that acknowledge by themselves.

        Spec: REDELIVER-32, REDELIVER-35
        """
        size = self._options.batch_size(is_topic_like=message.is_topic_like)
        if size == 1:
            await message.channel.ack(message.tag)
            return
        if message.tag not in message.channel.ledger:
            return
        is_lazy = self._options.mode is Mode.DUPS_OK and message.is_topic_like
        loop = asyncio.get_running_loop()
        self._batch.add(message.tag)
        if self._batch.is_due(size, loop.time(), timed=not is_lazy):
            await self.flush(message.channel)
        elif not is_lazy and self._timer is None:
            channel = message.channel
            self._timer = loop.call_at(
                self._batch.deadline_s, lambda: self._spawn(self.flush(channel))
            )

    async def flush(self, channel: MessageChannel) -> None:
        """Send the ack for those that wait; nothing if the channel has ended."""
        self._stop_timer()
        tag = self._batch.take(asyncio.get_running_loop().time())
        if tag:
            await channel.ack_through(tag)

    async def give_back(self, message: Message) -> None:
        """Return one message by its queue's policy, if it is still outstanding."""
        if message.tag not in message.channel.ledger:
            return
        retries = self._owner.retries_of(message.queue)
        if retries is None:
            await message.channel.reject(message.tag, requeue=True)
        else:
            await retries.settle(message, self._owner)

    async def take_back(self, channel: MessageChannel) -> None:
        """Return everything that was handed out; a transaction is rolled back before.

        Where the kit keeps the delays, or the channel has no limit, each message is settled by
        itself, and there is nothing left to recover. Otherwise recovery ends all deliveries so
        far, and new ones may arrive before its reply is noticed. To tell them apart by their
        tags the channel's limit is lowered first: while something is outstanding, nothing comes
        then.

        Raises:
            ChannelLostError: it has ended, which returns everything too

        Spec: REDELIVER-36, ACK-20, QOS-06
        """
        is_transacted = self._options.mode is Mode.TRANSACTED
        handed_out = [message for _, message in channel.ledger.items()]
        one_by_one = any(self._owner.retries_of(message.queue) for message in handed_out)
        if self._options.prefetch and not self._options.limits_channel:
            one_by_one = True
        if one_by_one or not handed_out:
            if is_transacted:
                await channel.rollback()
            for message in handed_out:
                await self.give_back(message)
            if handed_out and is_transacted:
                await channel.commit()
            await self.shrink(channel)
            return
        if self._options.prefetch:
            await self._end_extension()
            await channel.limit(1, of_channel=True)
        if is_transacted:
            await channel.rollback()
        last_dead = channel.newest_tag
        await channel.recover()
        self._drop_through(last_dead)
        if self._options.prefetch:
            await channel.limit(self._options.prefetch, of_channel=True)

    def extend(self, channel: MessageChannel) -> None:
        """Ask for more once half of the prefetch is handled and unacknowledged.

        Spec: REDELIVER-39
        """
        threshold = self._options.extension_threshold
        count = len(channel.ledger)
        if not threshold or count < threshold:
            return
        if self._extension is None:
            limit = channel.limit(self._options.extended_prefetch, of_channel=True)
            self._extension = self._spawn(_unless_lost(limit))
        elif count == self._options.extended_prefetch:
            done = "commit()" if self._options.mode is Mode.TRANSACTED else "acknowledge()"
            _log.warning("%d messages in hand: nothing more comes before %s", count, done)

    async def shrink(self, channel: MessageChannel) -> None:
        """Back to the plain prefetch, after everything was acknowledged."""
        if self._extension is not None:
            await self._end_extension()
            await _unless_lost(channel.limit(self._options.prefetch, of_channel=True))

    async def _end_extension(self) -> None:
        """Forget that the limit was raised, once it really is: the next limit must come after."""
        extension, self._extension = self._extension, None
        if extension is not None:
            await asyncio.shield(extension)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _unless_lost(call: Coroutine[Any, Any, None]) -> None:
    """A call that means nothing any more when its channel has ended."""
    try:
        await call
    except ChannelLostError as error:
        _log.debug("not done, as the channel ended: %s", error)
