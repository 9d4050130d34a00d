"""The way in: a connection that comes back by itself, its queues, and receivers on it.

Spec: REDELIVER-50
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

try:
    import aio_pika
except ImportError as missing:
    raise ImportError("vouchmq.kit needs aio-pika: pip install 'vouchmq[kit]'") from missing

from vouchmq.kit.channel import Channel
from vouchmq.kit.errors import ChannelLostError, IllegalStateError
from vouchmq.kit.modes import OPTIMIZE_ACK_TIMEOUT_S, Mode, Options, check_prefetch, mode_named
from vouchmq.kit.receiver import Receiver
from vouchmq.kit.redelivery import (
    Argument,
    Arguments,
    RedeliveryPolicy,
    broker_arguments,
    can_hold_back,
)
from vouchmq.kit.retry import Retries, as_message
from vouchmq.kit.sources import Subscription, fresh_queue_name

if TYPE_CHECKING:
    from aio_pika.abc import AbstractRobustConnection

    from vouchmq.kit.message import MessageChannel

PREFETCH: Final = 100
RECONNECT_INTERVAL_S: Final = 1.0
_DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"


class Unset(Enum):
    """Tells "not given" from None, which means "none"."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


async def connect(
    url: str,
    *,
    prefetch: int = PREFETCH,
    redelivery: RedeliveryPolicy | None = RedeliveryPolicy(),  # noqa: B008 - it is frozen
    reconnect_interval: float = RECONNECT_INTERVAL_S,
) -> Connection:
    """Connect to the broker at this amqp:// URL.

    Args:
        url: where; amqps:// for TLS, parameters as aio-pika has them
        prefetch: of receivers that say nothing else, 0…65535
        redelivery: of queues whose declaration says nothing else; None: no policy
        reconnect_interval: seconds between attempts after the connection was lost

    Raises:
        TypeError, ValueError: an argument is wrong
        ConnectionError: nobody there, or not let in

    Spec: REDELIVER-50
    """
    check_prefetch(prefetch)
    _check_policy(redelivery)
    raw = await aio_pika.connect_robust(url, reconnect_interval=reconnect_interval)
    return Connection(raw, prefetch, redelivery)


class Connection:
    """Made by `connect()`; an asynchronous context manager that closes itself."""

    def __init__(
        self, raw: AbstractRobustConnection, prefetch: int, redelivery: RedeliveryPolicy | None
    ) -> None:
        self._raw: Final = raw
        self._prefetch: Final = prefetch
        self._redelivery: Final = redelivery
        self._receivers: list[Receiver] = []
        self._retries: dict[str, Retries] = {}
        self._publishing: Final = asyncio.Lock()
        self._publisher: MessageChannel | None = None
        self._closing: Final = asyncio.Event()

    async def __aenter__(self) -> Connection:
        """Return the connection; the end of `async with` closes it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection, as `close` does."""
        await self.close()

    @property
    def holds_back(self) -> bool:
        """True when the broker delays and limits redeliveries itself."""
        transport = self._raw.transport
        if transport is None:
            raise ChannelLostError("the connection is down")
        return can_hold_back(transport.connection.server_properties or {})

    async def declare(
        self,
        queue: str,
        *,
        redelivery: RedeliveryPolicy | Unset | None = UNSET,
        dead_letter_queue: str | Unset | None = UNSET,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Argument] | None = None,
    ) -> str:
        """Declare a queue so that the redelivery policy holds for it; its name.

        Every program that consumes the queue through the kit must declare it so. Where the broker
        cannot hold messages back the kit does it, with retry queues named after the queue and its
        delays, for the queues that were declared on this connection.

        Args:
            queue: its name
            redelivery: None for none; not given: the connection's
            dead_letter_queue: where messages go after the last redelivery. Not given:
                `<queue>.dlq` if the policy has a last one. None: they are dropped. It is declared
                too, unless `arguments` say where dead letters go.
            durable: it survives a restart
            exclusive: it belongs to the connection and ends with it
            auto_delete: it ends with its last consumer
            arguments: more arguments; these win over the policy's

        Raises:
            TypeError, ValueError: a wrong argument, or a policy with too many delays
            RefusedError: the broker does not allow it; the queue exists with other arguments,
                for one
            ChannelLostError: the connection went down meanwhile

        Spec: REDELIVER-45…47, REDELIVER-50
        """
        policy = self._redelivery if redelivery is UNSET else redelivery
        _check_policy(policy)
        given: Arguments = dict(arguments or {})
        target = _dead_letter_target(queue, policy, dead_letter_queue, given)
        channel = await self.open_channel(_ignore)
        try:
            made, retries = self._translated(policy, queue, given)
            if target is not None:
                made |= {_DEAD_LETTER_EXCHANGE: "", "x-dead-letter-routing-key": target}
                await _declare_durable(channel, target, {})
            await channel.declare(
                queue,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=made | given,
            )
            await self._declare_retries(channel, queue, retries, exclusive=exclusive)
        finally:
            await channel.close()
        return queue

    async def receiver(
        self,
        mode: str | Mode,
        *,
        prefetch: int | None = None,
        optimize_ack: bool = False,
        optimize_ack_timeout: float = OPTIMIZE_ACK_TIMEOUT_S,
        prefetch_extension: bool = True,
    ) -> Receiver:
        """A receiver on a channel of its own.

        Args:
            mode: `auto`, `client`, `dups_ok`, `transacted` or `individual`
            prefetch: not given: the connection's; 0: `receive()` pulls each message
            optimize_ack: one ack for many messages, at 0.65 of the prefetch or after the timeout
            optimize_ack_timeout: seconds
            prefetch_extension: False for quorum queues of RabbitMQ, which refuse the limit of a
                channel that `client` and `transacted` set otherwise

        Raises:
            TypeError, ValueError: an option is wrong, or does not go with another
            ChannelLostError: the connection went down meanwhile

        Spec: REDELIVER-30…37
        """
        options = Options(
            mode_named(mode),
            self._prefetch if prefetch is None else prefetch,
            optimize_ack,
            optimize_ack_timeout,
            prefetch_extension,
        )
        made = Receiver(self, options)
        await made.open()
        self._receivers = [each for each in self._receivers if not each.is_closed]
        self._receivers.append(made)
        return made

    async def publish(
        self, message: aio_pika.Message | bytes | str, routing_key: str, *, exchange: str = ""
    ) -> None:
        """Publish, and return when the broker has confirmed it.

        A body alone becomes a persistent message.

        Raises:
            aio_pika.exceptions.DeliveryError: it reached no queue, or was refused
            ChannelLostError: the channel ended before the confirm; it may be stored or not
        """
        made = as_message(message)
        async with self._publishing:
            if self._publisher is None or not self._publisher.is_open:
                self._publisher = await self.open_channel(_ignore, confirms=True)
            channel = self._publisher
        await channel.publish(made, exchange, routing_key, mandatory=True)

    async def close(self) -> None:
        """Close the receivers, each after the callback that is at work, and the connection."""
        if self._closing.is_set():
            return
        self._closing.set()
        for receiver in self._receivers:
            await receiver.close()
        if self._publisher is not None:
            await self._publisher.close()
        await self._raw.close()

    # What receivers call.

    async def open_channel(
        self, on_lost: Callable[[MessageChannel], None], *, confirms: bool = False
    ) -> MessageChannel:
        """A channel, as soon as the connection is up.

        Raises:
            IllegalStateError: the connection was closed
            ChannelLostError: it went down again meanwhile
        """
        up = asyncio.ensure_future(self._raw.ready())
        over = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((up, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
            over.cancel()
        if self._closing.is_set():
            raise IllegalStateError("the connection is closed")
        return await Channel.open(self._raw, on_lost, confirms=confirms)

    async def declare_subscription(
        self, channel: MessageChannel, subscription: Subscription
    ) -> str:
        """An exclusive queue under the connection's policy, bound; its name.

        What fails for the last time is dropped: a queue of the moment has no dead letters.
        """
        queue = fresh_queue_name()
        arguments, retries = self._translated(self._redelivery, queue, {})
        await channel.declare(
            queue, durable=False, exclusive=True, auto_delete=True, arguments=arguments
        )
        await self._declare_retries(channel, queue, retries, exclusive=True)
        await channel.bind(queue, subscription.exchange, subscription.routing_key)
        return queue

    def retries_of(self, queue: str) -> Retries | None:
        """How the kit returns messages of this queue, None when the broker sees to it."""
        return self._retries.get(queue)

    def _translated(
        self, policy: RedeliveryPolicy | None, queue: str, given: Arguments
    ) -> tuple[Arguments, Retries | None]:
        """The policy as arguments of the queue, and what is left for the kit to do."""
        if policy is None:
            return {}, None
        arguments = broker_arguments(policy)
        if arguments is not None and (self.holds_back or not arguments):
            return arguments, None
        # A limit of the broker's catches what fails without a word, by a crash.
        kept: Arguments = {}
        has_limits = self.holds_back or given.get("x-queue-type") == "quorum"
        if has_limits and policy.is_limited:
            kept["x-delivery-limit"] = policy.max_redeliveries
        return kept, Retries(policy, queue)

    async def _declare_retries(
        self, channel: MessageChannel, queue: str, retries: Retries | None, *, exclusive: bool
    ) -> None:
        self._retries.pop(queue, None)
        if retries is None:
            return
        for waiting in retries.queues:
            if exclusive:
                await channel.declare(
                    waiting.name,
                    durable=False,
                    exclusive=True,
                    auto_delete=False,
                    arguments=waiting.arguments,
                )
            else:
                await _declare_durable(channel, waiting.name, waiting.arguments)
        self._retries[queue] = retries


def _check_policy(policy: RedeliveryPolicy | None) -> None:
    if policy is not None and not isinstance(policy, RedeliveryPolicy):
        raise TypeError(f"redelivery must be a RedeliveryPolicy or None, not {policy!r}")


def _dead_letter_target(
    queue: str,
    policy: RedeliveryPolicy | None,
    asked: str | Unset | None,
    given: Arguments,
) -> str | None:
    """The queue for dead letters that a declaration asks for, by itself or by its policy."""
    if _DEAD_LETTER_EXCHANGE in given:
        return None
    if not isinstance(asked, Unset):
        return asked
    return f"{queue}.dlq" if policy is not None and policy.is_limited else None


async def _declare_durable(channel: MessageChannel, queue: str, arguments: Arguments) -> None:
    await channel.declare(
        queue, durable=True, exclusive=False, auto_delete=False, arguments=arguments
    )


def _ignore(_: MessageChannel) -> None:
    """Nobody needs to know that this channel has ended: the next call opens another."""
