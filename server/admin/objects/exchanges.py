"""`put exchange`, `delete exchange`, `put binding`, `delete binding`: as clients do it.

Each is answered when it is on disk, if it concerns something durable. Must not know sockets.

Spec: HTTP-16, HTTP-21, HTTP-22, PERM-03, PERM-06
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import structlog
from msgspec import field
from pamqp import commands as amqp

from vouchmq.protocol.errors import NotFound
from vouchmq.protocol.text import shown_values
from vouchmq.server.admin.audit import Changing, who
from vouchmq.server.admin.objects.values import named, new_name, short, table_of
from vouchmq.server.broker.exchanges.bindings import Binding
from vouchmq.server.broker.names import exchange_text
from vouchmq.server.definitions.export import plain_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pamqp import base

    from vouchmq.protocol.constants import Ids
    from vouchmq.protocol.fields import Table
    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.admin.objects.operator import Operator, OperatorConnection
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost

log = structlog.get_logger(__name__)


BIND: Final = {"queue": amqp.Queue.Bind, "exchange": amqp.Exchange.Bind}
UNBIND: Final = {"queue": amqp.Queue.Unbind, "exchange": amqp.Exchange.Unbind}
# What the methods call source and destination.
ENDS: Final = {"queue": ("exchange", "queue"), "exchange": ("source", "destination")}


class PutExchange(Changing, frozen=True, kw_only=True):
    """An exchange to be declared."""

    vhost: str = "/"
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


class DeleteExchange(Changing, frozen=True, kw_only=True):
    """An exchange to be deleted; `if_unused`: only if it is the source of no binding."""

    vhost: str = "/"
    name: str
    if_unused: bool = False


class BindingArguments(Changing, frozen=True, kw_only=True):
    """A binding from the exchange `source`."""

    vhost: str = "/"
    source: str
    destination: str
    destination_type: Literal["queue", "exchange"] = "queue"
    routing_key: str = ""
    arguments: dict[str, object] = field(default_factory=dict)


class ExchangeCommands:
    """The commands of exchanges and their bindings.

    Args:
        operator: opens connections for commands
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands."""
        commands.register("put exchange", PutExchange, self._put)
        commands.register("delete exchange", DeleteExchange, self._delete)
        commands.register("put binding", BindingArguments, self._bind)
        commands.register("delete binding", BindingArguments, self._unbind)

    def _put(self, asked: PutExchange, reply: Reply) -> None:
        new_name(name=asked.name, type=asked.type)
        table = table_of(asked.arguments)
        vhost = self._operator.vhost(asked.vhost)
        is_new = asked.name not in vhost.exchanges

        def made() -> Mapping[str, object]:
            if is_new:
                log.info(
                    "admin.exchange_created", **who(asked), vhost=asked.vhost, exchange=asked.name
                )
            return {"created": is_new}

        method = amqp.Exchange.Declare(
            durable=asked.durable, auto_delete=asked.auto_delete, internal=asked.internal
        )
        named(method, exchange=asked.name, exchange_type=asked.type)
        self._call(asked, vhost.name, reply, method, table, made)

    def _delete(self, asked: DeleteExchange, reply: Reply) -> None:
        short(name=asked.name)
        vhost = self._operator.vhost(asked.vhost)
        was_there = asked.name in vhost.exchanges

        def gone() -> Mapping[str, object]:
            if not was_there:
                raise NotFound(f"no {exchange_text(asked.name, vhost.name)}")
            log.info("admin.exchange_deleted", **who(asked), vhost=asked.vhost, exchange=asked.name)
            return {}

        method = named(amqp.Exchange.Delete(if_unused=asked.if_unused), exchange=asked.name)
        self._call(asked, vhost.name, reply, method, {}, gone)

    def _bind(self, asked: BindingArguments, reply: Reply) -> None:
        vhost = self._operator.vhost(asked.vhost)
        table = _checked(asked)
        new_name(routing_key=asked.routing_key)
        is_new = vhost.bindings.find(_binding(asked, table).identity) is None

        def made() -> Mapping[str, object]:
            if is_new:
                log.info("admin.binding_created", **who(asked), **_ends(asked))
            return {"created": is_new}

        method = _method(BIND[asked.destination_type], asked)
        self._call(asked, vhost.name, reply, method, table, made)

    def _unbind(self, asked: BindingArguments, reply: Reply) -> None:
        vhost = self._operator.vhost(asked.vhost)
        binding = found(vhost, asked)

        def gone() -> Mapping[str, object]:
            if binding is None:
                raise NotFound(
                    f"no binding from exchange '{asked.source}' to {asked.destination_type} "
                    f"'{asked.destination}' with this key and these arguments in vhost "
                    f"'{vhost.name}'"
                )
            log.info("admin.binding_deleted", **who(asked), **_ends(asked))
            return {}

        table = binding.arguments if binding is not None else _checked(asked)
        method = _method(UNBIND[asked.destination_type], asked)
        self._call(asked, vhost.name, reply, method, table, gone)

    def _call(
        self,
        asked: Changing,
        vhost: str,
        reply: Reply,
        method: base.Frame,
        table: Table,
        done: Callable[[], Mapping[str, object]],
    ) -> None:
        """Have a method done; `done` says what was, when its answer comes."""

        def heard(connection: OperatorConnection, _: Ids, _payload: bytes, _raw: bytes) -> None:
            try:
                connection.answer(**done())
            except NotFound as error:
                connection.fail(error)

        connection = self._operator.open(vhost, asked.user, reply, heard)
        connection.call(method, table)


def found(vhost: VHost[Queue], asked: BindingArguments) -> Binding | None:
    """The binding that is meant: that of these very arguments, or else of equal plain values.

    Clients give their integers other widths than a plain value gets, and both are shown alike.
    """
    binding = vhost.bindings.find(_binding(asked, _checked(asked)).identity)
    if binding is not None:
        return binding
    for link in vhost.bindings.links_to(asked.destination_type, asked.destination):
        for each in link.bindings.values() if link.source == asked.source else ():
            is_same = each.routing_key == asked.routing_key
            if is_same and shown_values(plain_table(each.arguments)) == asked.arguments:
                return each
    return None


def _checked(asked: BindingArguments) -> Table:
    short(source=asked.source, destination=asked.destination, routing_key=asked.routing_key)
    return table_of(asked.arguments)


def _binding(asked: BindingArguments, table: Table) -> Binding:
    ends = (asked.source, asked.destination_type, asked.destination)
    return Binding(*ends, asked.routing_key, table)


def _method(kind: type[base.Frame], asked: BindingArguments) -> base.Frame:
    """The method that makes or removes a binding; those of queues call its ends otherwise."""
    source, destination = ENDS[asked.destination_type]
    ends = {source: asked.source, destination: asked.destination}
    return named(kind(), routing_key=asked.routing_key, **ends)


def _ends(asked: BindingArguments) -> dict[str, object]:
    return {
        "vhost": asked.vhost,
        "source": asked.source,
        "destination": asked.destination,
        "destination_type": asked.destination_type,
        "routing_key": asked.routing_key,
    }
