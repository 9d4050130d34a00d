"""`put queue`, `delete queue`, `purge queue` as clients do it; `pause queue`, `resume queue`.

Each is answered when it is on disk, if the queue is durable. Must not know sockets.

Spec: HTTP-19, HTTP-20, HTTP-36, PERM-04
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from msgspec import field
from pamqp import commands as amqp

from vouchmq.protocol.errors import NotFound
from vouchmq.protocol.fields import decode_shortstr
from vouchmq.server.admin.audit import Changing, who
from vouchmq.server.admin.commands import CommandRefused
from vouchmq.server.admin.objects.operator import hear_nothing
from vouchmq.server.admin.objects.values import named, new_name, short, table_of
from vouchmq.server.broker.names import queue_text

if TYPE_CHECKING:
    from vouchmq.protocol.constants import Ids
    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.admin.objects.operator import Operator, OperatorConnection

log = structlog.get_logger(__name__)


class QueueArguments(Changing, frozen=True, kw_only=True):
    """The queue that a command is about."""

    vhost: str = "/"
    name: str


class PutQueue(QueueArguments, frozen=True, kw_only=True):
    """A queue to be declared; the broker names one without a name."""

    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


class DeleteQueue(QueueArguments, frozen=True, kw_only=True):
    """A queue to be deleted, perhaps only without consumers, or without ready messages."""

    if_unused: bool = False
    if_empty: bool = False


class QueueCommands:
    """The commands that act on queues as a whole.

    Args:
        operator: opens connections for commands
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands."""
        commands.register("put queue", PutQueue, self._put)
        commands.register("delete queue", DeleteQueue, self._delete)
        commands.register("purge queue", QueueArguments, self._purge)
        commands.register("pause queue", QueueArguments, self._pause)
        commands.register("resume queue", QueueArguments, self._resume)

    def _put(self, asked: PutQueue, reply: Reply) -> None:
        new_name(name=asked.name)
        table = table_of(asked.arguments)
        vhost = self._operator.vhost(asked.vhost)
        is_new = asked.name not in vhost.queues

        def heard(connection: OperatorConnection, _: Ids, payload: bytes, _raw: bytes) -> None:
            name, at = decode_shortstr(payload, 4)
            if is_new:
                log.info("admin.queue_created", **who(asked), vhost=vhost.name, queue=name)
            ready, consumers = (_number(payload, at), _number(payload, at + 4))
            connection.answer(created=is_new, name=name, messages=ready, consumers=consumers)

        connection = self._operator.open(asked.vhost, asked.user, reply, heard)
        method = amqp.Queue.Declare(durable=asked.durable, auto_delete=asked.auto_delete)
        connection.call(named(method, queue=asked.name), table)

    def _delete(self, asked: DeleteQueue, reply: Reply) -> None:
        was_there = self._is_there(asked)

        def heard(connection: OperatorConnection, _: Ids, payload: bytes, _raw: bytes) -> None:
            if not was_there:
                connection.fail(NotFound(f"no {queue_text(asked.name, asked.vhost)}"))
                return
            log.info("admin.queue_deleted", **who(asked), vhost=asked.vhost, queue=asked.name)
            connection.answer(messages=_number(payload, 4))

        connection = self._operator.open(asked.vhost, asked.user, reply, heard)
        method = amqp.Queue.Delete(if_unused=asked.if_unused, if_empty=asked.if_empty)
        connection.call(named(method, queue=asked.name))

    def _purge(self, asked: QueueArguments, reply: Reply) -> None:
        self._is_there(asked)

        def heard(connection: OperatorConnection, _: Ids, payload: bytes, _raw: bytes) -> None:
            count = _number(payload, 4)
            log.info(
                "admin.queue_purged",
                **who(asked),
                vhost=asked.vhost,
                queue=asked.name,
                count=count,
            )
            connection.answer(messages=count)

        connection = self._operator.open(asked.vhost, asked.user, reply, heard)
        connection.call(named(amqp.Queue.Purge(), queue=asked.name))

    def _pause(self, asked: QueueArguments, reply: Reply) -> None:
        self._set_paused(asked, reply, is_paused=True)

    def _resume(self, asked: QueueArguments, reply: Reply) -> None:
        self._set_paused(asked, reply, is_paused=False)

    def _set_paused(self, asked: QueueArguments, reply: Reply, *, is_paused: bool) -> None:
        connection = self._operator.open(asked.vhost, asked.user, reply, hear_nothing)

        def set_it() -> None:
            vhost = connection.vhost
            connection.user.require("configure", "queue", asked.name, vhost.name)
            queue = vhost.find_queue(asked.name, connection)
            has_changed = queue.is_paused is not is_paused
            lsn = vhost.pause_queue(queue, is_paused=is_paused)
            if has_changed and is_paused:
                log.info("admin.queue_paused", **who(asked), vhost=asked.vhost, queue=asked.name)
            elif has_changed:
                log.info("admin.queue_resumed", **who(asked), vhost=asked.vhost, queue=asked.name)
            connection.answer_stored(lsn, changed=has_changed)

        connection.do(set_it)

    def _is_there(self, asked: QueueArguments) -> bool:
        # Without a name a method means the queue that was declared last, which is none here.
        if not asked.name:
            raise CommandRefused("name: a queue without a name cannot be meant")
        short(name=asked.name)
        return asked.name in self._operator.vhost(asked.vhost).queues


def _number(payload: bytes, at: int) -> int:
    return int.from_bytes(payload[at : at + 4], "big")
