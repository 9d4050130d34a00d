"""What each method of a channel does: a table from the method's class to its handler.

Handlers of consuming are in `consume.py`, those of exchanges, queues and bindings in `topology.py`;
those that settle deliveries or change what the channel does with publishes are here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pamqp import base, commands

from vouchmq.protocol.access_request import AccessRequest
from vouchmq.protocol.codec import (
    access_request_ok,
    confirm_select_ok,
    flow_ok,
    tx_select_ok,
)
from vouchmq.protocol.constants import BASIC_ACK, BASIC_NACK, BASIC_REJECT
from vouchmq.protocol.errors import (
    ChannelError,
    CommandInvalid,
    NotImplementedByBroker,
    PreconditionFailed,
)
from vouchmq.server.broker.queues.settlement import Outcome
from vouchmq.server.channel import consume, topology
from vouchmq.server.channel.confirms import Confirms
from vouchmq.server.channel.handler import handler
from vouchmq.server.channel.tx import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.protocol.codec import Command
    from vouchmq.protocol.fields import Table
    from vouchmq.server.channel.channel import Channel


def ack(channel: Channel, method: commands.Basic.Ack, _arguments: Table) -> None:
    """basic.ack outside a run."""
    tag, multiple = method.delivery_tag or 0, bool(method.multiple)
    channel.settle_tag(tag, Outcome.ACKED, BASIC_ACK, multiple=multiple)


def nack(channel: Channel, method: commands.Basic.Nack, _arguments: Table) -> None:
    """basic.nack."""
    tag, multiple = method.delivery_tag or 0, bool(method.multiple)
    outcome = Outcome.NACKED if method.requeue else Outcome.DISCARDED
    channel.settle_tag(tag, outcome, BASIC_NACK, multiple=multiple)


def reject(channel: Channel, method: commands.Basic.Reject, _arguments: Table) -> None:
    """basic.reject."""
    tag = method.delivery_tag or 0
    outcome = Outcome.REJECTED if method.requeue else Outcome.DISCARDED
    channel.settle_tag(tag, outcome, BASIC_REJECT, multiple=False)


def select_confirms(channel: Channel, method: commands.Confirm.Select, _arguments: Table) -> None:
    """confirm.select (CONF-01, CONF-02)."""
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.number, channel.context.confirm_times)
        channel.confirms.recorder = channel.recorder
        if channel.recorder is not None:
            channel.recorder.selected()
    if not method.nowait:
        channel.reply(confirm_select_ok(channel.number))


def select_transactions(channel: Channel, _method: commands.Tx.Select, _arguments: Table) -> None:
    """tx.select (TX-01)."""
    if channel.confirms is not None:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(
            channel.context.limits.tx_max_bytes, channel.connection, channel
        )
        if channel.recorder is not None:
            channel.recorder.tells_answers("tx")
    channel.reply(tx_select_ok(channel.number))


def set_flow(channel: Channel, method: commands.Channel.Flow, _arguments: Table) -> None:
    """channel.flow from the client (CHAN-20)."""
    if channel.context.limits.reject_flow and not method.active:
        raise NotImplementedByBroker("active=false")
    channel.flow_active = bool(method.active)
    channel.reply(flow_ok(channel.number, channel.flow_active))
    if channel.flow_active:
        channel.wake_consumers()


def handle(channel: Channel, command: Command) -> None:
    """Do what a method asks for.

    Raises:
        AmqpError: the rule it breaks
    """
    if channel.is_committing:
        raise ChannelError("unexpected command while processing 'tx.commit'")
    handler = HANDLERS.get(type(command.method))
    if handler is None:
        raise CommandInvalid("unimplemented method")
    handler(channel, command)


HANDLERS: Final[dict[type[base.Frame], Callable[[Channel, Command], None]]] = {
    **topology.HANDLERS,
    **consume.HANDLERS,
    **dict(
        (
            handler(commands.Channel.Flow, set_flow),
            handler(commands.Basic.Ack, ack),
            handler(commands.Basic.Reject, reject),
            handler(commands.Basic.Nack, nack),
            handler(commands.Confirm.Select, select_confirms),
            handler(commands.Tx.Select, select_transactions),
        )
    ),
    AccessRequest: lambda channel, _: channel.reply(access_request_ok(channel.number)),
    commands.Tx.Commit: lambda channel, _: channel.commit(),
    commands.Tx.Rollback: lambda channel, _: channel.rollback(),
}
