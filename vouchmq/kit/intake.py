"""Where a receiver's messages come from: its channel and that one's successors, and its buffer.

Messages are handed out one after the other, in the order in which they came, whatever queue they
are from; that is what makes ack(multiple=1) speak for handed-out messages only. When the channel
is lost a new one is set up in its place. Knows nothing of when messages are acknowledged.

Spec: REDELIVER-37, REDELIVER-39, REDELIVER-51
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from vouchmq.kit.channel import to_the_end
from vouchmq.kit.errors import ChannelLostError, IllegalStateError, KitError, RefusedError
from vouchmq.kit.message import Message
from vouchmq.kit.modes import Mode, Options
from vouchmq.kit.sources import Callback, Source, Subscription

if TYPE_CHECKING:
    import aio_pika

    from vouchmq.kit.message import MessageChannel, Settler

_log: Final = logging.getLogger("vouchmq.kit")
# Between the end of a channel and the next attempt to open one.
REOPEN_PAUSE_S: Final = 0.2
# Between two looks into an empty queue that is pulled from.
PULL_PAUSE_S: Final = 0.05

Taken = tuple[Message, Callback | None]


class Owner(Protocol):
    """What an intake needs of its connection."""

    async def open_channel(self, on_lost: Callable[[MessageChannel], None]) -> MessageChannel:
        """A channel, as soon as the connection is up."""

    async def declare_subscription(
        self, channel: MessageChannel, subscription: Subscription
    ) -> str:
        """Make and bind an exclusive queue; its name."""


class Intake:
    """The messages of one receiver, before the application has them.

    Args:
        owner: opens channels
        options: of the receiver
        settler: where the messages go to be acknowledged
        on_channel: called with each new channel
        on_lost: called with a channel that has ended by itself, and whose ledger still tells what
            was outstanding
        on_failed: called once, when the broker does not let it go on
    """

    def __init__(
        self,
        owner: Owner,
        options: Options,
        settler: Settler,
        *,
        on_channel: Callable[[], None],
        on_lost: Callable[[MessageChannel], None],
        on_failed: Callable[[], None],
    ) -> None:
        self.channel: MessageChannel | None = None
        self.sources: list[Source] = []
        self.error: KitError | None = None
        self._owner: Final = owner
        self._options: Final = options
        self._settler: Final = settler
        self._on_channel: Final = on_channel
        self._on_lost: Final = on_lost
        self._on_failed: Final = on_failed
        self._arrived: deque[Taken] = deque()
        # Something arrived or ended: whoever waits for a message looks again.
        self._stirred: Final = asyncio.Event()
        self._is_ready: Final = asyncio.Event()
        # A new channel gets the sources that there are, while nobody takes them away.
        self._setting_up: Final = asyncio.Lock()
        self._is_paused = False
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the first channel and begin to consume."""
        channel = await self._owner.open_channel(self._lost)
        await self._set_up(channel)
        self._adopt(channel)

    async def add(self, source: Source) -> None:
        """Take messages from one source more."""
        channel = await self.current()
        await self._consume(channel, source)
        self.sources.append(source)
        self._is_paused = False

    async def next(self, deadline_s: float | None) -> Taken | None:
        """Hand out the next message; None at the deadline, or when there will be no more."""
        while True:
            if self.error is not None:
                raise self.error
            if self._is_closed or self._is_paused:
                return None
            while self._arrived:
                message, callback = self._arrived.popleft()
                if message.channel.is_open:
                    message.channel.ledger.hand_out(message.tag, message)
                    return message, callback
            if self._options.prefetch == 0 and await self._pull():
                continue
            if not await self._wait(deadline_s):
                return None

    async def current(self) -> MessageChannel:
        """The channel, as soon as there is an open one.

        Raises:
            IllegalStateError: there will be none, as the receiver is closed
            KitError: there will be none, as the broker does not let it go on
        """
        while True:
            if self.error is not None:
                raise self.error
            if self._is_closed:
                raise IllegalStateError("the receiver is closed")
            if self.channel is not None and self.channel.is_open:
                return self.channel
            self._is_ready.clear()
            await self._is_ready.wait()

    def drop_through(self, tag: int) -> None:
        """Forget what arrived up to this tag: the broker has taken it back."""
        self._arrived = deque(each for each in self._arrived if each[0].tag > tag)

    async def pause(self) -> None:
        """End all sources; what nobody was handed goes back to its queue."""
        self._is_paused = True
        self._stirred.set()
        async with self._setting_up:
            sources, self.sources = self.sources, []
            channel = self.channel
            if channel is None or not channel.is_open:
                return
            try:
                for source in sources if self._options.prefetch else ():
                    await channel.cancel(source.tag)
            except ChannelLostError as error:
                _log.debug("nothing to cancel, as the channel ended: %s", error)
        while self._arrived:
            unseen, _ = self._arrived.popleft()
            await unseen.channel.give_back(unseen.tag)

    def finish(self) -> None:
        """Hand out nothing more and look for no other channel."""
        self._is_closed = True
        self._stirred.set()
        self._is_ready.set()

    async def _consume(self, channel: MessageChannel, source: Source) -> None:
        if source.subscription is not None:
            source.queue = await self._owner.declare_subscription(channel, source.subscription)
        if self._options.prefetch == 0:
            return

        def deliver(incoming: aio_pika.IncomingMessage) -> None:
            self._deliver(channel, source, incoming)

        await channel.consume(source.queue, deliver, source.tag)

    def _deliver(
        self, channel: MessageChannel, source: Source, incoming: aio_pika.IncomingMessage
    ) -> None:
        message = Message(
            incoming, source.queue, channel, self._settler, is_topic_like=source.is_topic_like
        )
        self._arrived.append((message, source.callback))
        self._stirred.set()

    async def _pull(self) -> bool:
        """Get one message; it lands among those that arrived, even if the caller gives up."""
        channel = await self.current()
        source = self.sources[0]

        async def fetch() -> bool:
            incoming = await channel.get(source.queue)
            if incoming is not None:
                self._deliver(channel, source, incoming)
            return incoming is not None

        try:
            return await to_the_end(fetch())
        except RefusedError:
            raise
        except ChannelLostError:
            return False

    async def _wait(self, deadline_s: float | None) -> bool:
        """Wait until something stirs; False when the time is over."""
        now_s = asyncio.get_running_loop().time()
        until_s = deadline_s
        if self._options.prefetch == 0:
            look_again_s = now_s + PULL_PAUSE_S
            until_s = look_again_s if deadline_s is None else min(deadline_s, look_again_s)
        self._stirred.clear()
        try:
            async with asyncio.timeout_at(until_s):
                await self._stirred.wait()
        except TimeoutError:
            return until_s != deadline_s
        return True

    async def _set_up(self, channel: MessageChannel) -> None:
        """Make a new channel what the old one was."""
        if self._options.mode is Mode.TRANSACTED:
            await channel.select()
        if self._options.prefetch:
            await channel.limit(self._options.prefetch, of_channel=self._options.limits_channel)
        await channel.on_consumer_cancelled(self._cancelled)
        for source in self.sources:
            await self._consume(channel, source)

    def _adopt(self, channel: MessageChannel) -> None:
        self.channel = channel
        self._on_channel()
        self._is_ready.set()
        if not channel.is_open:
            self._lost(channel)

    def _lost(self, channel: MessageChannel) -> None:
        """The channel has ended by itself: find another."""
        if channel is not self.channel:
            return
        self._on_lost(channel)
        self.channel = None
        if not self._is_closed and self.error is None:
            mode = self._options.mode.value
            _log.warning("the channel of a receiver in mode %s was lost; opening another", mode)
            self.spawn(self._restore())

    async def _restore(self) -> None:
        while not self._is_closed:
            await asyncio.sleep(REOPEN_PAUSE_S)
            try:
                channel = await self._owner.open_channel(self._lost)
                async with self._setting_up:
                    await self._set_up(channel)
                    self._adopt(channel)
            except RefusedError as error:
                self.fail(error)
                return
            except ChannelLostError:
                continue
            except IllegalStateError:
                # The connection was closed, and this receiver with it.
                return
            break
        if self._is_closed and self.channel is not None:
            await self.channel.close()

    def _cancelled(self, tag: str) -> None:
        """The broker has ended a consumer: its queue was deleted, most likely (CONS-40)."""
        for source in self.sources:
            if source.tag == tag:
                self.fail(KitError(f"the broker ended the consumption of queue {source.queue!r}"))

    def fail(self, error: KitError) -> None:
        """It cannot go on; everybody who waits is told."""
        if self.error is None and not self._is_closed:
            self.error = error
            self._stirred.set()
            self._is_ready.set()
            self._on_failed()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside; it ends by itself."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
